"""A trainer that commits its checkpoints: the store stays small, and the job goes on from each of them."""

from __future__ import annotations

import contextlib
import json
import signal
from pathlib import Path

from dataloader_client import Coords, DataServiceLoader, Mesh
from reading import assert_equal, fingerprint, take_step
from real_job import assert_gone, job_values, run_cli, serve, write_config, write_data

DP2 = Mesh(dp=2)


def test_the_log_is_truncated_and_the_job_goes_on(tmp_path: Path) -> None:
    values = job_values(write_data(tmp_path / "data"), planner={"keep": 3})
    config = write_config(tmp_path / "job.yaml", values)
    with serve(config) as served, contextlib.ExitStack() as stack:
        ranks = [
            stack.enter_context(DataServiceLoader(served.address, mesh=DP2, coords=Coords(dp=dp)))
            for dp in range(2)
        ]
        for _ in range(20):
            for loader in ranks:
                take_step(loader)
        state = ranks[0].state_dict()
        assert ranks[0].commit(state["step"]) == 0
        assert ranks[1].commit() == 20
        expected = {step: fingerprint(take_step(ranks[0])) for step in range(20, 24)}
        family = served.family()
        served.process.kill()
        assert_gone(family)
    gone = run_cli("explain", config, "--step", "3")
    assert gone.returncode == 4
    assert "step 3 is not in the plan log any more: it has steps 16 to" in gone.stderr
    assert run_cli("explain", config, "--step", "16").returncode == 0
    with serve(config) as served:
        for process in served.family():
            process.send_signal(signal.SIGKILL)
        with DataServiceLoader(served.address, mesh=DP2, coords=Coords(), state=state) as loader:
            again = {step: fingerprint(take_step(loader)) for step in range(20, 24)}
    assert_equal(again, expected)
    shown = json.loads(run_cli("explain", config, "--step", "20", "--json").stdout)
    assert shown["generation"] == 1
