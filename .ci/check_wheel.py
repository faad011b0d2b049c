"""Build the wheel, install it in empty environments, and see that each package imports with what it declares.

- the client's environment has grpcio, protobuf and numpy alone: `dataloader_client` and
  `dataloader_balancers` import, the service says which extra it needs;
- the server's environment has `[server]`: the command starts and prints its version.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CONSTRAINTS = ROOT / "constraints.txt"


def run(*command: str | Path, **options: object) -> str:
    done = subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, check=False, **options
    )
    if done.returncode:
        sys.exit(f"failed: {' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
    return done.stdout


def environment(folder: Path) -> Path:
    venv.create(folder, with_pip=True)
    return folder / "bin"


def main() -> None:
    with tempfile.TemporaryDirectory() as scratch:
        work = Path(scratch)
        run(sys.executable, "-m", "build", "--wheel", "--outdir", work, ROOT)
        (wheel,) = work.glob("*.whl")
        print(f"built {wheel.name}, {wheel.stat().st_size >> 10} KiB")

        light = environment(work / "client")
        run(light / "pip", "install", "-q", "-c", CONSTRAINTS, wheel)
        names = "import dataloader_client, dataloader_balancers; print(dataloader_client.__all__)"
        run(light / "python", "-c", names, cwd=work)
        listed = run(light / "pip", "list", "--format=freeze")
        packages = {line.split("==")[0].lower() for line in listed.splitlines()} - {
            "pip",
            "setuptools",
            "wheel",
        }
        allowed = {"dataloader-svc", "grpcio", "numpy", "protobuf", "typing_extensions"}
        if packages - allowed:
            sys.exit(f"the client's environment grew: {sorted(packages - allowed)}")
        refused = subprocess.run(
            [str(light / "dataloader-svc"), "--version"],
            capture_output=True,
            text=True,
            check=False,
            cwd=work,
        )
        if refused.returncode == 0 or "[server]" not in refused.stderr or "Traceback" in refused.stderr:
            sys.exit(f"without [server] the command must name the extra; it said:\n{refused.stderr}")
        print(f"client environment: {', '.join(sorted(packages))}")

        full = environment(work / "server")
        run(full / "pip", "install", "-q", "-c", CONSTRAINTS, f"{wheel}[server]")
        print(run(full / "dataloader-svc", "--version", cwd=work).strip())
        run(full / "dataloader-svc", "check", "--help", cwd=work)


if __name__ == "__main__":
    main()
