"""The service for these workloads: `serve` on a configuration, a client beside it."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

TOKENIZER = Path(__file__).resolve().parents[4] / "build" / "demo" / "tokenizer.json"


@contextlib.contextmanager
def serving(**config: Any) -> Iterator[tuple[str, str]]:
    """(address, store) of a service that has ended with the context."""
    with tempfile.TemporaryDirectory() as scratch:
        path, store = Path(scratch, "job.yaml"), f"sqlite:///{scratch}/job.db"
        values = {"job": "correct", "seed": 17, "tokenizer": str(TOKENIZER), "sequence_length": 1024}
        path.write_text(json.dumps(values | config))  # JSON is YAML
        command = [sys.executable, "-m", "dataloader_svc", "serve", str(path), "--json"]
        command += ["--address", "127.0.0.1:0", "--store", store]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            try:
                yield json.loads(process.stdout.readline())["address"], store
            finally:
                process.terminate()
