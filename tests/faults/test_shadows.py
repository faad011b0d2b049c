"""A loader dies and its shadow takes its place: the same data, without a cold start."""

from __future__ import annotations

import asyncio
import json
from contextlib import closing
from pathlib import Path

import pytest

from dataloader_client import methods
from dataloader_client._pb import common_pb2
from dataloader_svc.config.load import load_config
from dataloader_svc.engine.access import role_credentials
from dataloader_svc.engine.spec import JobSpec, job_spec
from dataloader_svc.rpc.stubs import Peer
from dataloader_svc.store import open_store
from reading import Reader, assert_equal
from real_job import job_values, run_cli, serve, write_config

ROUND = 12
LIVES = 3


def test_a_shadow_takes_the_place_of_a_killed_loader(data: Path, tmp_path: Path) -> None:
    (tmp_path / "calm").mkdir()
    calm = write_config(tmp_path / "calm" / "job.yaml", job_values(data))
    with serve(calm) as served, Reader(served.address) as expected:
        expected.allow(ROUND * LIVES)
        expected.wait()
    config = write_config(tmp_path / "job.yaml", job_values(data, loader={"count": 1, "shadows": 1}))
    with serve(config) as served, Reader(served.address) as reader:
        assert set(served.pids) == {"planner-0", "loader-0", "constructor-0", "loader-shadow-0"}
        for life in range(LIVES):
            reader.allow(ROUND)
            reader.wait(life * ROUND + 3)
            roles = served.roles()
            roles["loader-0"].kill()
            served.wait_said("loader-0 is back", times=life + 1)
            reader.wait()
            served.wait_said("loader-shadow-0 is back", times=life + 1)
        for _ in range(50):  # it hears of a lease when it is free, so of some of them
            reader.allow(ROUND)
            reader.wait()
            if asyncio.run(_blocks_held(config, served.run_dir, "endpoint/loader-shadow/0")):
                break
        else:
            pytest.fail("the shadow reads nothing ahead")
        assert served.stderr.count("loader-0: killed by SIGKILL; a shadow takes its place") == LIVES
        log = (served.run_dir / "logs" / "loader-0.log").read_text()
        assert log.count("takes its place") == LIVES
        assert log.count("loader-0 serves at") == LIVES + 1, "a shadow writes to the log of whom it replaces"
    assert_equal({step: reader.steps[step] for step in expected.steps}, expected.steps)
    assert run_cli("quarantine", config, "--json").stdout == "[]\n"


async def _blocks_held(config: Path, run_dir: Path, key: str) -> int:
    """Of the loader that is registered under `key`."""
    loaded = load_config(config)
    with closing(open_store(job_spec(loaded, config.parent, "127.0.0.1:0").store, config.parent)) as store:
        endpoint = store.get(key)
    assert endpoint is not None
    peer = Peer(
        json.loads(endpoint)["address"], "loader", role_credentials(JobSpec.read(run_dir / "job.json"))
    )
    try:
        status = await peer.call(methods.LOADER_STATUS, common_pb2.Empty(), timeout_s=60.0)
        return int(status.held_blocks)
    finally:
        await peer.close()
