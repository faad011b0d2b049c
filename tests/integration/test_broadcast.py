"""`BroadcastLoader` on two gloo ranks: one reads, both have the same, and both meet what the one meets."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dataloader_client import DataServiceLoader
from dataloader_client.errors import MeshMismatchError
from reading import fingerprint, take_step
from real_job import REPO, STOP_S, Served, environment, job_values, serve, starting, write_config

torch = pytest.importorskip("torch", reason="needs torch")

RANKS = """
import json, os, sys
import torch.distributed as dist
from dataloader_client import Mesh
from dataloader_client.errors import DataServiceError
from dataloader_client.integrations.broadcast import BroadcastLoader
from reading import fingerprint

dist.init_process_group("gloo")
address, folder = sys.argv[1:]
rank = dist.get_rank()
found = {}
with BroadcastLoader(
    address if rank == 0 else "127.0.0.1:1", mesh=Mesh(tp=2), rank=rank, group=dist.group.WORLD, timeout_s=1
) as loader:

    def take():
        batches = [next(loader)]
        while not batches[-1].is_last_microbatch:
            batches.append(next(loader))
        return fingerprint(batches)

    assert (loader.reader is None) == (rank == 1)
    found["steps"] = [take(), take()]
    found["state"] = loader.state_dict()
    next(loader)
    found["inside"] = loader.state_dict()
    loader.load_state_dict(found["state"])
    found["again"] = take()
    os.write(1, b"read\\n")  # one write: torchrun's ranks share this pipe, unbuffered
    try:
        while True:
            take()
    except DataServiceError as error:
        found["error"] = [type(error).__name__, str(error)]
with open(f"{folder}/{rank}.json", "w") as file:
    json.dump(found, file)
dist.destroy_process_group()
"""


@pytest.fixture
def served(data: Path, tmp_path: Path) -> Iterator[Served]:
    with starting(write_config(tmp_path / "job.yaml", job_values(data))) as served:
        yield served.wait_ready()


def launch(served: Served, folder: Path) -> subprocess.Popen[str]:
    (folder / "ranks.py").write_text(RANKS)
    paths = f"{environment()['PYTHONPATH']}:{REPO / 'tests'}"
    run = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    return subprocess.Popen(
        [sys.executable, *run, str(folder / "ranks.py"), served.address, str(folder)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(GLOO_SOCKET_IFNAME="lo", OMP_NUM_THREADS="1") | {"PYTHONPATH": paths},
    )


def test_one_reads_and_both_have_it_until_the_service_is_gone(served: Served, tmp_path: Path) -> None:
    with DataServiceLoader(served.address) as loader:
        expected: list[dict[str, Any]] = []
        for _ in range(2):
            expected.append(fingerprint(take_step(loader)))
        state = loader.state_dict()
        next(loader)
        inside = loader.state_dict()
        loader.load_state_dict(state)
        again = fingerprint(take_step(loader))
    with launch(served, tmp_path) as ranks:
        try:
            assert ranks.stdout is not None
            assert [ranks.stdout.readline() for _ in range(2)] == ["read\n"] * 2
            served.process.kill()
            _, said = ranks.communicate(timeout=2 * STOP_S)
        finally:
            ranks.kill()
    assert ranks.returncode == 0, said
    for rank in range(2):
        found = json.loads((tmp_path / f"{rank}.json").read_text())
        assert found["steps"] == expected
        assert found["again"] == again
        assert found["state"] == state
        assert found["inside"] == inside
        name, text = found["error"]
        assert name == "ServiceUnavailableError"
        assert served.address in text
        assert text.endswith("(met by the first of the tp peers)") == (rank == 1)


def test_a_group_that_is_none_of_tp_peers(monkeypatch: pytest.MonkeyPatch) -> None:
    from dataloader_client.integrations import broadcast

    monkeypatch.setattr(broadcast.dist, "get_world_size", lambda _group: 4)
    with pytest.raises(MeshMismatchError, match=r"group has 4 ranks and mesh .*tp=2 2 tp peers"):
        broadcast.BroadcastLoader("127.0.0.1:1", mesh={"tp": 2}, rank=0, group=None)  # type: ignore[arg-type]


def test_peers_of_an_evaluation(data: Path, tmp_path: Path) -> None:
    """A group of one, in this process: what is read by turns begins anew, and ends."""
    values = job_values(data)
    values["sources"]["notes"]["extent"] = 256
    values["evaluation"] = {"held_out": {"notes": 0.3}}
    from dataloader_client.integrations.broadcast import BroadcastLoader

    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        with (
            serve(write_config(tmp_path / "job.yaml", values)) as served,
            BroadcastLoader(
                served.address, mesh={"tp": 1}, rank=0, group=torch.distributed.group.WORLD, split="eval"
            ) as loader,
        ):
            passes = [[(batch.step, batch.microbatch) for batch in loader] for _ in range(2)]
    finally:
        torch.distributed.destroy_process_group()
    assert passes[0] == passes[1] != []
