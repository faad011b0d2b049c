"""Ranks of a trainer as processes: killed and back on another mesh, stopped, there twice, at odds."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path

import pytest

from rank_process import RankProcess
from real_job import job_values, serve, write_config


@pytest.fixture
def config(data: Path, tmp_path: Path) -> Path:
    return write_config(tmp_path / "job.yaml", job_values(data, constructor={"memory": "2MiB"}))


def test_all_are_killed_and_come_back_with_another_world_size(config: Path) -> None:
    with serve(config) as served:
        with RankProcess(served.address, 4, 0) as first, RankProcess(served.address, 4, 1) as second:
            first.ask(3)
            saved = second.read(3)["state"]
            assert first.answer()["state"] == saved
            first.ask(5)  # trained on, and lost with the crash
            first.answer()
            for rank in (first, second):
                rank.process.send_signal(signal.SIGKILL)
        with RankProcess(served.address, 2, 0, saved) as one, RankProcess(served.address, 2, 1, saved) as two:
            wide = [one.read(5), two.read(5)]
            assert wide[0]["state"] == wide[1]["state"]
        with RankProcess(served.address, 4, 0, saved) as again:
            same = again.read(5)
        assert same["state"] == wide[0]["state"]
        digests = [[step["0/rest"].rpartition(",")[2] for step in each["steps"]] for each in (same, wide[0])]
        assert digests[0] == digests[1]


def test_an_empty_service_elsewhere_gives_the_same_bits(data: Path, config: Path, tmp_path: Path) -> None:
    """Its own store, folder and index; all that it has of the job is the state. Pictures and arrays too."""
    with serve(config) as served, RankProcess(served.address, 1, 0) as rank:
        state = rank.read(3)["state"]
        expected = rank.read(4)
    machine = tmp_path / "machine"
    shutil.copytree(data, machine / "data", ignore=shutil.ignore_patterns("index"))
    moved = write_config(machine / "job.yaml", job_values(machine / "data"))
    with serve(moved) as served, RankProcess(served.address, 1, 0, state) as rank:
        assert rank.read(4) == expected


def test_one_that_is_stopped_and_one_that_is_there_twice_get_what_the_others_got(config: Path) -> None:
    """Far behind, with little memory in the constructor. One that is dead holds nothing up."""
    with (
        serve(config) as served,
        RankProcess(served.address, 1, 0) as quick,
        RankProcess(served.address, 1, 0) as slow,
    ):
        assert slow.read(2)["steps"] == quick.read(2)["steps"]
        slow.process.send_signal(signal.SIGSTOP)
        ahead = quick.read(30)
        slow.process.send_signal(signal.SIGCONT)
        assert slow.read(30) == ahead
        slow.process.send_signal(signal.SIGKILL)
        assert len(quick.read(30)["steps"]) == 30


def test_ranks_with_other_checkpoints_are_told_before_they_train(config: Path) -> None:
    with serve(config) as served:
        with RankProcess(served.address, 1, 0) as alone:
            early, late = alone.read(2)["state"], alone.read(3)["state"]
        with RankProcess(served.address, 2, 0, early) as first:
            assert len(first.read(1)["steps"]) == 1
            with RankProcess(served.address, 2, 1, late) as second:
                refused = second.answer()
            assert refused["error"] == "StateMismatchError"
            both = "rank dp=0 joined with the state of step 2", "rank dp=1 comes with the state of step 5"
            assert all(text in refused["text"] for text in both)
            told = first.read(1000)
            assert told["error"] == "SessionSupersededError"
            assert all(text in told["text"] for text in both)
        with RankProcess(served.address, 2, 1, late) as one, RankProcess(served.address, 2, 0, late) as two:
            assert one.read(2)["state"] == two.read(2)["state"]
