"""A trainer that stands still, with 306 sources: what each role holds stays within what was declared, and the
other trainer does not notice.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest

from dataloader_client import Coords, DataServiceLoader, Mesh
from dataloader_svc.testing.data import TinyRow, write_source
from dataloader_svc.testing.tokenizer import make_tokenizer
from holding import status, trainer
from reading import fingerprint, take_step
from real_job import serve, words, write_config

SOURCES = 306
MIB = 2**20
CONSTRUCTOR, LOADER = 12 * MIB, 8 * MIB
OWN = 32 * MIB
"""What a process of Python and gRPC takes beside what it holds: heaps that are not given back, buffers of
connections. The same for any number of ranks, steps and sources; a step of this job takes up to 3 MiB."""
STEPS = 40


@pytest.fixture(scope="module")
def values(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("many")
    names = [f"s{number:03}" for number in range(SOURCES)]
    for number, name in enumerate(names):
        rows = [TinyRow(text=words(row, 60 + (row * 37 + number) % 90, seed=number)) for row in range(30)]
        write_source(folder / name, "jsonl", rows)
    make_tokenizer(folder / "tokenizer")
    sources = {name: {"format": "jsonl", "path": f"{folder}/{name}/*", "text": "text"} for name in names}
    return {
        "job": "many",
        "seed": 3,
        "tokenizer": str(folder / "tokenizer"),
        "sequence_length": 4096,
        "global_batch": {"sequences": 8},
        "sources": sources,
        "mixture": {"schedule": [{"step": 0, **dict.fromkeys(names, 1.0)}]},
        "loader": {"count": 2, "memory": LOADER, "threads": 1},
        "index_cache": str(folder / "index"),
    }


def pss(process: psutil.Process) -> int:
    return int(process.memory_full_info().pss)


@pytest.mark.parametrize("shared", ["auto", False])
def test_a_trainer_that_stands_still_with_many_sources(
    values: dict[str, Any], tmp_path: Path, shared: object
) -> None:
    values = {**values, "constructor": {"memory": CONSTRUCTOR, "shared_memory": shared}}
    config = write_config(tmp_path / "job.yaml", values)
    with serve(config) as served:
        roles = served.roles()
        fresh = {name: pss(process) for name, process in roles.items()}
        reference = {}
        with trainer(served.address, dp=2, rank=1, steps=3) as slow:
            os.kill(slow.pid, signal.SIGSTOP)  # with three steps held, and reads under way
            most = 0
            with DataServiceLoader(served.address, mesh=Mesh(dp=2), coords=Coords(dp=0)) as loader:
                for step in range(STEPS):
                    batches = take_step(loader)
                    assert batches[0].step == step
                    reference[step] = fingerprint(batches)
                    found = status(served.address)
                    most = max(most, found.held_bytes)
                    assert found.held_bytes + found.shared_limit_bytes <= found.limit_bytes == CONSTRUCTOR
                    assert found.lent_bytes <= found.shared_limit_bytes
                    del batches
                assert most > CONSTRUCTOR // 4  # the bound was in reach
                grown = {name: pss(process) - fresh[name] for name, process in roles.items()}
                assert grown["constructor-0"] < CONSTRUCTOR + OWN, grown
                for name in ("loader-0", "loader-1"):
                    assert grown[name] < LOADER + OWN, grown
                assert grown["planner-0"] < OWN, grown
                os.kill(slow.pid, signal.SIGCONT)
                assert slow.stdin is not None
                assert slow.stdout is not None
                slow.stdin.write("\n")
                slow.stdin.flush()
                assert slow.stdout.readline() == "read 3\n"  # it goes on where it stood
                assert fingerprint(loader.read(1)) == reference[1]
        assert served.stderr == ""
