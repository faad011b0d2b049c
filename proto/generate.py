"""Generate `clients/dataloader_client/_pb` from `proto/`, or with --check say whether it is fresh.

protoc writes imports after the proto packages (`dataloader.v1`), which would put a generic name into a
user's site-packages; they are rewritten to `dataloader_client._pb`.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from grpc_tools import protoc

ROOT = Path(__file__).resolve().parent
TARGET = ROOT.parent / "clients" / "dataloader_client" / "_pb"


def generate() -> dict[str, str]:
    """File name -> content of all generated modules."""
    protos = sorted(path.relative_to(ROOT).as_posix() for path in ROOT.rglob("*.proto"))
    with tempfile.TemporaryDirectory() as out:
        if protoc.main(["protoc", f"-I{ROOT}", f"--python_out={out}", f"--pyi_out={out}", *protos]):
            raise SystemExit("protoc failed")
        files = {"__init__.py": '"""Generated from proto/ by `make proto`. Never edited."""\n'}
        for path in sorted(Path(out).rglob("*_pb2.py*")):
            text = path.read_text()
            files[path.name] = text.replace("from dataloader.v1 import", "from dataloader_client._pb import")
    return files


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 when a file is stale")
    args = parser.parse_args()
    files = generate()
    stale = [name for name, text in files.items() if not _same(TARGET / name, text)]
    stale += [path.name for path in TARGET.glob("*.py*") if path.name not in files]
    if args.check:
        if stale:
            print(f"stale generated code: {', '.join(sorted(stale))}; run `make proto`", file=sys.stderr)
        return 1 if stale else 0
    TARGET.mkdir(exist_ok=True)
    for name in stale:
        if name in files:
            (TARGET / name).write_text(files[name])
        else:
            (TARGET / name).unlink()
    print(f"{len(files)} files, {len(stale)} changed")
    return 0


def _same(path: Path, text: str) -> bool:
    return path.exists() and path.read_text() == text


if __name__ == "__main__":
    sys.exit(main())
