"""A trainer's rank as a process of its own, told by lines what to do: for tests that kill and stop ranks."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any, Self

from real_job import REPO, environment

WAIT_S = 60.0

MAIN = """
import json, sys
from dataloader_client import DataServiceError, DataServiceLoader, Mesh
from reading import fingerprint, take_step

told = json.loads(sys.argv[1])
try:
    mesh = Mesh(dp=told["dp"])
    with DataServiceLoader(told["address"], mesh=mesh, rank=told["rank"], state=told["state"]) as loader:
        for line in sys.stdin:
            steps = [fingerprint(take_step(loader)) for _ in range(int(line))]
            print(json.dumps({"steps": steps, "state": loader.state_dict()}), flush=True)
except DataServiceError as error:
    print(json.dumps({"error": type(error).__name__, "text": str(error)}), flush=True)
"""
"""Imports what a trainer imports, and nothing of the service."""


class RankProcess:
    """Joins on start, with `state` if there is one. Ended with the `with` block."""

    def __init__(self, address: str, dp: int, rank: int, state: Any = None) -> None:
        told = json.dumps({"address": address, "dp": dp, "rank": rank, "state": state})
        paths = environment()["PYTHONPATH"] + f":{REPO / 'tests'}"
        self.process = subprocess.Popen(
            [sys.executable, "-c", MAIN, told],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment() | {"PYTHONPATH": paths},
        )

    def ask(self, steps: int) -> None:
        """Have it read so many steps."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{steps}\n")
        self.process.stdin.flush()

    def answer(self) -> dict[str, Any]:
        """{"steps": fingerprints, "state": its state_dict}, or {"error": class, "text": ...}."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"the rank ended with {self.process.wait(WAIT_S)}"
        found: dict[str, Any] = json.loads(line)
        return found

    def read(self, steps: int) -> dict[str, Any]:
        self.ask(steps)
        return self.answer()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait(WAIT_S)
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()
