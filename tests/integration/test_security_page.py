"""docs/security.md, run: its commands in their order, its configuration, its client; and its figures."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from dataloader_client import TLS, AccessDeniedError, DataServiceLoader
from dataloader_svc.config.schema import Security
from dataloader_svc.constructor.service import MOST_AHEAD
from dataloader_svc.planner.messages import MOST_RANKS
from dataloader_svc.rpc.access import Access, Guard
from dataloader_svc.rpc.servicers import REQUEST_S
from real_job import REPO, environment, job_values, serve, write_config

PAGE = (REPO / "docs" / "security.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)


def run(command: list[str], folder: Path) -> str:
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=120, env=environment(), check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
def test_the_example(data: Path, tmp_path: Path) -> None:
    *make, export = blocks("bash")
    for text in make:
        run(["bash", "-euc", text], tmp_path)
    short, whole = (yaml.safe_load(text)["security"] for text in blocks("yaml"))
    assert short == {"token_file": whole["token_file"]}
    (program,) = blocks("python")
    config = write_config(tmp_path / "job.yaml", job_values(data, security=whole))
    with serve(config) as served:
        assert "127.0.0.1:7077" in program
        program = program.replace("127.0.0.1:7077", served.address) + "print(loader.read(0)[0].digest)\n"
        digest = run([sys.executable, "-c", program], tmp_path)
        short_program = (
            "from dataloader_client import DataServiceLoader\n"
            f"print(DataServiceLoader({served.address!r}).read(0)[0].digest)"
        )
        script = f'{export}\nexec "$0" -c "$1"'
        assert run(["bash", "-euc", script, sys.executable, short_program], tmp_path) == digest
        tls = TLS(*(tmp_path / name for name in ("ca.pem", "trainer.pem", "trainer.key")))
        with pytest.raises(AccessDeniedError, match="the token is not this service's"):
            DataServiceLoader(served.address, tls=tls, token="x" * 20)
    assert (tmp_path / "token").stat().st_mode & 0o077 == 0


def test_figures_are_those_of_the_code() -> None:
    assert f"`max_connections` ({Security().max_connections})" in PAGE
    assert f"{REQUEST_S:.0f} s for a request to come in" in PAGE
    assert f"at most {MOST_AHEAD:,} steps ahead" in PAGE
    assert MOST_RANKS == 2**20
    assert "at most 2^20 ranks" in PAGE
    options = dict(Access(Guard()).options())
    assert options["grpc.absolute_max_metadata_size"] == 16 * 2**10
    assert f"{options['grpc.server_handshake_timeout_ms'] // 1000} s for a TLS handshake" in PAGE
