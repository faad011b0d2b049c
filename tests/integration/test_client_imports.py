"""The client needs grpcio, protobuf and numpy, and nothing else; and its public names are these."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import dataloader_client

CLIENTS = Path(dataloader_client.__file__).parent.parent

BLOCKER = """
import importlib.abc, sys

ABSENT = {"torch", "pyarrow", "pydantic", "redis", "ray", "yaml", "cv2", "PIL", "dataloader_svc",
          "dataloader_balancers", "click", "jinja2", "grpc_tools"}

class Blocker(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ABSENT:
            raise ModuleNotFoundError(f"No module named {name!r} (blocked)", name=name)
        return None

sys.meta_path.insert(0, Blocker())
"""


def run(code: str) -> subprocess.CompletedProcess[str]:
    """Run code in a fresh interpreter that sees the client and cannot import what is blocked."""
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", BLOCKER + textwrap.dedent(code)],
        env={**os.environ, "PYTHONPATH": str(CLIENTS)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_imports_with_only_grpc_protobuf_and_numpy():
    done = run(
        """
        import dataloader_client, sys
        from dataloader_client import DataServiceLoader, Mesh
        outside = {name.partition(".")[0] for name in sys.modules} - sys.stdlib_module_names
        allowed = {"dataloader_client", "grpc", "google", "numpy", "typing_extensions", "cython_runtime"}
        # What starts with an underscore or "site" is the interpreter's and the installer's own.
        print(sorted(name for name in outside - allowed if not name.startswith(("_", "site"))))
        """
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["[]"]


def test_the_blocker_blocks():
    done = run("import torch")
    assert done.returncode != 0
    assert "blocked" in done.stderr


def test_arrays_work_without_torch_and_tensors_say_what_is_missing():
    done = run(
        """
        import numpy as np
        from dataloader_client.batch import SPAN_FIELDS, split
        from dataloader_client.wire import Frame
        arrays = {f"0/{field.name}": np.zeros(0, field.dtype) for field in SPAN_FIELDS}
        arrays["0/input_ids"] = np.arange(3)
        meta = dict(step=0, microbatches=1, sources=[], presence={}, max_seqlen=[3], num_tokens=[3],
                    loss_weight_sum=1.0, digest="", metrics={}, trace={})
        (batch,) = split(Frame(arrays, meta))
        print(batch.numpy["input_ids"].tolist())
        try:
            batch.inputs
        except ModuleNotFoundError as error:
            print(error.name)
        """
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["[0, 1, 2]", "torch"]


def test_the_public_surface():
    assert sorted(dataloader_client.__all__) == [
        "AccessDeniedError",
        "Batch",
        "Coords",
        "DataServiceError",
        "DataServiceLoader",
        "DataStoppedError",
        "LoaderStats",
        "LocalService",
        "LocalServiceError",
        "Manifest",
        "Mesh",
        "MeshMismatchError",
        "MixtureChange",
        "MixtureError",
        "ServiceUnavailableError",
        "SessionSupersededError",
        "Span",
        "StateMismatchError",
        "TLS",
        "VersionMismatchError",
        "WireError",
    ]
    assert all(hasattr(dataloader_client, name) for name in dataloader_client.__all__)
    errors = [name for name in dataloader_client.__all__ if name.endswith("Error")]
    assert all(issubclass(getattr(dataloader_client, e), dataloader_client.DataServiceError) for e in errors)
