"""Steps that a trainer passes over after a loss spike, and a second job from a state of it."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from dataloader_client import DataServiceLoader, Mesh, StateMismatchError
from reading import assert_equal, fingerprint, take_step
from real_job import job_values, run_cli, serve, write_config, write_data


def test_rewind_skip_and_fork(tmp_path: Path) -> None:
    data = write_data(tmp_path / "data")
    (tmp_path / "one").mkdir()
    config = write_config(tmp_path / "one" / "job.yaml", job_values(data))
    whole, states = {}, {}
    with serve(config) as served, DataServiceLoader(served.address, mesh=Mesh()) as loader:
        for step in range(14):
            whole[step] = fingerprint(take_step(loader))
            states[step] = loader.state_dict()
        loader.load_state_dict(states[3])
        loader.skip(6, 9, "loss spike")
        found = {}
        for number, step in enumerate([4, 5, 9, 10, 11, 12]):
            batches = take_step(loader)
            assert batches[0].step == step
            found[step] = fingerprint(batches)
            before = loader.state_dict()
            assert before["step"] == step + 1
            if number == 0:
                middle = before
            if number == 1:
                for process in served.family():
                    process.send_signal(signal.SIGKILL)
        with pytest.raises(StateMismatchError, match="step 10 can't be skipped"):
            loader.skip(10, 12)
        with pytest.raises(ValueError, match="can't skip steps 9 to 9"):
            loader.skip(9, 9)
    assert_equal(found, whole)
    (tmp_path / "state.json").write_text(json.dumps(middle))
    shown = run_cli("state", "show", tmp_path / "state.json").stdout
    assert "job tiny, step 5" in shown
    assert "steps 6 to 8 are skipped: loss spike" in shown
    explained = run_cli("explain", config, "--step", "7")
    assert "steps 6 to 8 are skipped: loss spike" in explained.stdout
    assert "generation 2 begins at step 4, after generation 1: steps 6 to 8 are" in explained.stdout

    (tmp_path / "two").mkdir()
    variant = write_config(tmp_path / "two" / "job.yaml", job_values(data, job="variant"))
    with serve(variant) as served, DataServiceLoader(served.address, mesh=Mesh(), state=middle) as loader:
        forked = {}
        for step in (5, 9, 10):  # the state knows what is skipped
            batches = take_step(loader)
            assert batches[0].step == step
            forked[step] = fingerprint(batches)
    assert_equal(forked, whole)
    shown = json.loads(run_cli("explain", variant, "--step", "9", "--json").stdout)
    assert "generation 1 begins at step 5: forked from job 'tiny' at step 5" in shown["notes"]
