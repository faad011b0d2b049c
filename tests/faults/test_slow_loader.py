"""A loader that is slow against its peer, or silent, is named and replaced; what is delivered stays."""

from __future__ import annotations

import json
import signal
from contextlib import closing
from pathlib import Path

import pytest

from dataloader_svc.config.load import load_config
from dataloader_svc.engine.spec import job_spec
from dataloader_svc.store import open_store
from dataloader_svc.store.replaced_log import replaced
from reading import Reader, assert_equal
from real_job import Served, job_values, run_cli, serve, write_config

ROUND = 60
MOST_ROUNDS = 60


@pytest.fixture
def calm(data: Path, tmp_path: Path) -> dict[int, object]:
    """The first round of a job that nobody disturbs."""
    (tmp_path / "calm").mkdir()
    config = write_config(tmp_path / "calm" / "job.yaml", job_values(data))
    with serve(config) as served, Reader(served.address) as reader:
        reader.allow(ROUND)
        reader.wait()
    return reader.steps


def read_until_replaced(served: Served, reader: Reader, text: str) -> None:
    """Read on until the service says `text`: loaders are judged by their work."""
    for _ in range(MOST_ROUNDS):
        reader.allow(ROUND)
        reader.wait()
        if text in served.stderr:
            return
    pytest.fail(f"nobody is replaced:\n{served.stderr}\n{served.logs()}")


def test_a_slow_loader_is_named_drained_and_replaced_by_its_shadow(
    data: Path, tmp_path: Path, calm: dict[int, object]
) -> None:
    marks = tmp_path / "fired"
    marks.mkdir()
    values = job_values(data, loader={"count": 2, "shadows": 1})
    config = write_config(tmp_path / "job.yaml", values)
    # Late enough that both have told what work takes them.
    fault = {"DATALOADER_FAULT": "loader.working:slow:100", "DATALOADER_FAULT_DIR": str(marks)}
    with serve(config, **fault) as served, Reader(served.address) as reader:
        read_until_replaced(served, reader, "was slow and is replaced")
        (mark,) = marks.iterdir()
        slow = next(name for name, pid in served.pids.items() if pid == int(mark.read_text()))
        served.wait_said(f"{slow} is back")
        reader.allow(ROUND)
        reader.wait()
    assert f"{slow} was slow and is replaced: it takes " in served.stderr
    assert served.stderr.count("is replaced") == 1
    assert f"{slow} at 127.0.0.1:" in served.logs()
    log = (served.run_dir / "logs" / f"{slow}.log").read_text()
    assert "takes its place" in log, "the shadow"
    assert_equal({step: reader.steps[step] for step in calm}, calm)
    spec = job_spec(load_config(config), tmp_path, "127.0.0.1:0")
    with closing(open_store(spec.store, spec.base_dir)) as store:
        (row,) = replaced(store)
    assert (row.loader, row.kind) == (slow, "slow")
    explained = json.loads(run_cli("explain", config, "--step", row.step - 1, "--json").stdout)
    assert any(
        note.startswith(f"{slow} was slow when step {row.step} came next") for note in explained["notes"]
    )


def test_a_loader_that_is_stopped_is_replaced(data: Path, tmp_path: Path, calm: dict[int, object]) -> None:
    config = write_config(tmp_path / "job.yaml", job_values(data))
    with serve(config) as served, Reader(served.address) as reader:
        reader.allow(10)
        reader.wait()
        stopped = served.roles()["loader-1"]
        stopped.send_signal(signal.SIGSTOP)
        reader.allow(ROUND)  # held up where a step needs what it holds, until it is replaced
        served.wait_said("loader-1 was silent and is replaced: it has not answered for ")
        served.wait_said("loader-1 is back")
        reader.wait()
        assert not stopped.is_running()
    assert_equal({step: reader.steps[step] for step in calm}, calm)


def test_the_planner_dies_around_what_it_writes_of_a_silent_one(
    data: Path, tmp_path: Path, calm: dict[int, object]
) -> None:
    """Before: the next planner finds it silent as well. After: it is replaced without a planner."""
    marks = tmp_path / "fired"
    marks.mkdir()
    config = write_config(tmp_path / "job.yaml", job_values(data))
    faults = ("planner.replaced_named:kill:1", "planner.replaced_written:kill:1")
    with (
        serve(config, DATALOADER_FAULT=",".join(faults), DATALOADER_FAULT_DIR=str(marks)) as served,
        Reader(served.address) as reader,
    ):
        reader.allow(10)
        reader.wait()
        served.roles()["loader-1"].send_signal(signal.SIGSTOP)
        reader.allow(ROUND)
        served.wait_said("loader-1 was silent and is replaced")
        served.wait_said("planner-0 is back", times=2)
        reader.wait()
    assert len(list(marks.iterdir())) == 2
    assert_equal({step: reader.steps[step] for step in calm}, calm)


def test_the_only_loader_is_replaced_too(data: Path, tmp_path: Path, calm: dict[int, object]) -> None:
    config = write_config(tmp_path / "job.yaml", job_values(data, loader={"count": 1}))
    with serve(config) as served, Reader(served.address) as reader:
        reader.allow(10)
        reader.wait()
        served.roles()["loader-0"].send_signal(signal.SIGSTOP)
        reader.allow(ROUND)
        served.wait_said("loader-0 was silent and is replaced")
        reader.wait()
    assert_equal({step: reader.steps[step] for step in calm}, calm)
