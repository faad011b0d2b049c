"""The Python environments that the peers run in: made once under build/peers, tried by importing.

Some peers can't live together (mosaicml-streaming's pins break others, TensorFlow brings its own protobuf),
and a pip install of all in one environment succeeds and then fails at import: so three, and each peer is
imported before it is run. A peer that does not install or import is listed with what it said.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.bench.peers.table import Peer

TORCH = "torch==2.13.0"
SHARED = (
    "pillow",
    "simplejpeg",
    "opencv-python-headless",
    "pyarrow",
    "fastokens",
    "tokenizers",
    "psutil",
    "numpy",
)
ENVIRONMENTS: dict[str, tuple[str, ...]] = {
    "main": (
        TORCH,
        "torchdata==0.11.0",
        "webdataset==1.0.2",
        "grain==0.2.18",
        "array_record",
        "litdata==0.2.76",
        "megatron-energon==7.4.1",
        "spdl==0.8.0",
        "ray[data]==2.60.0",
        "aiohttp",  # Ray reads no local path without fsspec's HTTP part
    ),
    "streaming": ("torch", "torchvision", "mosaicml-streaming==0.13.0"),  # torchvision must fit its torch
    "tensorflow": ("tensorflow-cpu==2.21.0",),
}


class Environments:
    """Interpreters by the environment's name; made where they are missing."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def python(self, name: str) -> str:
        """The interpreter of an environment, which is made first if need be.

        Raises `subprocess.CalledProcessError` with pip's output where it can't be installed.
        """
        if name == "project":
            return sys.executable
        home = self.folder / name
        python = home / "bin" / "python"
        ready = home / ".ready"
        wanted = "\n".join((*ENVIRONMENTS[name], *SHARED))
        if ready.exists() and ready.read_text() == wanted:
            return str(python)
        print(f"bench-peers: making the environment {name} (a few minutes)", file=sys.stderr, flush=True)
        _run(sys.executable, "-m", "venv", str(home))
        first = [part for part in ENVIRONMENTS[name] if part == TORCH]
        for packages in (first, [*ENVIRONMENTS[name], *SHARED]):
            if packages:
                _run(str(python), "-m", "pip", "install", "-q", *packages)
        ready.write_text(wanted)
        return str(python)

    def version(self, peer: Peer) -> str:
        """The peer's installed version; raises `subprocess.CalledProcessError` where it does not import."""
        code = f"import importlib.metadata as m; print(m.version({peer.package!r}))"
        return _run(self.python(peer.environment), "-c", code).strip()


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines()
        raise RuntimeError(f"{' '.join(command[:5])} ...: {lines[-1] if lines else done.returncode}")
    return done.stdout
