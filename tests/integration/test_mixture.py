"""The mixture of a running job, changed by command and by trainer: real processes, killed in between."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from dataloader_client import DataServiceLoader, Mesh, MixtureError
from reading import assert_equal, fingerprint, take_step
from real_job import assert_gone, job_values, run_cli, serve, write_config, write_data

FILE = {"notes": 0.4, "pages": 0.4, "photos": 0.2}


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return write_config(tmp_path / "job.yaml", job_values(write_data(tmp_path / "data")))


def shares(states: list[dict[str, Any]]) -> dict[str, float]:
    """Of the tokens that were drawn between the first and the last of `states`."""
    first, last = (each["service"]["sources"] for each in (states[0], states[-1]))
    drawn = {name: last[name]["tokens"] - first[name]["tokens"] for name in last}
    return {name: amount / sum(drawn.values()) for name, amount in drawn.items()}


def test_by_command_at_a_named_step(config: Path) -> None:
    with serve(config) as served, DataServiceLoader(served.address, mesh=Mesh()) as loader:
        take_step(loader)
        made = run_cli("mixture", served.address, "set", "notes=3", "photos=1", "--at-step", "12", "--json")
        assert made.returncode == 0, made.stderr
        assert json.loads(made.stdout) == {
            "at_step": 12,
            "over": 0,
            "weights": {"notes": 0.75, "photos": 0.25},
        }
        states = []
        for step in range(1, 40):
            assert take_step(loader)[0].step == step
            states.append(loader.state_dict())
        assert shares(states[:11]) == pytest.approx(FILE, abs=0.08)
        assert shares(states[11:]) == pytest.approx({"notes": 0.75, "photos": 0.25, "pages": 0}, abs=0.08)
        shown = json.loads(run_cli("mixture", served.address, "show", "--json").stdout)
        assert shown["weights"] == {"notes": 0.75, "photos": 0.25}
        assert [entry["step"] for entry in shown["schedule"]] == [0, 12]
        text = run_cli("mixture", served.address, "show").stdout
        assert "notes=0.75 photos=0.25, from step 12 on (asked for at step" in text

        late = run_cli("mixture", served.address, "set", "notes=1", "--at-step", "20")
        assert late.returncode == 2
        assert "step 20 is already planned: the first step that is not is" in late.stderr
        typed = run_cli("mixture", served.address, "set", "nots=1")
        assert typed.returncode == 2
        assert "there is no source 'nots'; there are notes, pages, photos" in typed.stderr
        assert run_cli("mixture", served.address, "set", "notes").returncode == 2
        assert run_cli("mixture", served.address, "set", "notes=1", "--ramp", "linear").returncode == 2


def test_by_a_trainer_and_all_is_killed(config: Path) -> None:
    """Killed before the change holds; then the store is lost, too: the trainer's state knows it."""
    whole, states = {}, {}
    with serve(config) as served, DataServiceLoader(served.address, mesh=Mesh()) as loader:
        take_step(loader)
        made = loader.set_mixture({"pages": 1, "photos": 1}, at_step=14, over=4)
        assert (made.at_step, made.over) == (14, 4)
        for process in served.family():
            process.send_signal(signal.SIGKILL)
        for step in range(1, 25):
            whole[step] = fingerprint(take_step(loader))
            states[step] = loader.state_dict()
        family = served.family()
        served.process.kill()
        assert_gone(family)
    assert shares([states[18], states[24]])["notes"] < 0.05
    before = states[11]
    assert before["service"]["mixture"][0]["at_step"] == 14
    for path in (config.parent / ".dataloader-svc").glob("*.db*"):
        path.unlink()
    with serve(config) as served, DataServiceLoader(served.address, mesh=Mesh(), state=before) as loader:
        again = {step: fingerprint(take_step(loader)) for step in range(12, 25)}
        with pytest.raises(MixtureError, match="already planned"):
            loader.set_mixture({"pages": 1}, at_step=13)
        with pytest.raises(MixtureError, match="no source"):
            loader.set_mixture({"page": 1})
        with pytest.raises(MixtureError, match="sum to 0"):
            loader.set_mixture({})
        with pytest.raises(MixtureError, match="a number"):
            loader.set_mixture({"pages": "much"})
        with pytest.raises(MixtureError, match="at_step is -1"):
            loader.set_mixture({"pages": 1}, at_step=-1)
    assert_equal(again, whole)


@pytest.mark.parametrize("point", ["planner.mixture_asked", "planner.mixture_written"])
def test_killed_while_it_is_made(config: Path, tmp_path: Path, point: str) -> None:
    """Asked again by the client, it is made once, and the steps are those of a job that nobody killed."""
    marks = tmp_path / "marks"
    marks.mkdir()
    found = []
    for fault in ({}, {"DATALOADER_FAULT": f"{point}:kill:1", "DATALOADER_FAULT_DIR": str(marks)}):
        with serve(config, **fault) as served, DataServiceLoader(served.address, mesh=Mesh()) as loader:
            take_step(loader)
            loader.set_mixture({"photos": 1}, at_step=15)
            found.append({step: fingerprint(take_step(loader)) for step in range(1, 25)})
            shown = json.loads(run_cli("mixture", served.address, "show", "--json").stdout)
            assert [change["at_step"] for change in shown["changes"]] == [15]
        for path in (config.parent / ".dataloader-svc").glob("*.db*"):
            path.unlink()
    assert [path.name for path in marks.iterdir()] == [f"{point}_kill_1"]
    assert_equal(found[1], found[0])
