"""Ranks of a trainer that are dead, or stopped, or hang: what is kept for them is let go, not for ever held.

Real ranks, real signals. The limit is three seconds here; ranks that work and wait are not touched by it.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from holding import status
from rank_process import RankProcess
from real_job import Served, job_values, serve, write_config

LIMIT_S = 3.0
MOST_TURNS = 300

SHARED_MEMORY = "/memfd:dataloader-batch"


def until(served: Served, turn: Callable[[], object], done: Callable[[], bool]) -> None:
    """Take turns, which let time go by, until it is so."""
    for _ in range(MOST_TURNS):
        if done():
            return
        turn()
    pytest.fail(f"{status(served.address)}\n{served.logs()}")


def a_moment() -> None:
    """The silence, which is the fault itself."""
    threading.Event().wait(0.1)


def batch_memory(served: Served) -> int:
    """Bytes of batches that the constructor holds or keeps warm, as the kernel counts them."""
    maps = served.roles()["constructor-0"].memory_maps(grouped=False)
    return sum(entry.rss for entry in maps if entry.path.startswith(SHARED_MEMORY))


@pytest.mark.parametrize("ended_by", [signal.SIGKILL, signal.SIGSTOP])
def test_a_rank_that_is_silent_is_named_and_holds_no_memory(
    data: Path, tmp_path: Path, ended_by: signal.Signals
) -> None:
    values = job_values(data, constructor={"idle_timeout": LIMIT_S})
    config = write_config(tmp_path / "job.yaml", values)
    with (
        serve(config) as served,
        RankProcess(served.address, 2, 0) as quick,
        RankProcess(served.address, 2, 1) as lost,
    ):
        lost.read(2)
        lost.process.send_signal(ended_by)
        # The other one goes on, and only the lost one is named.
        done = 0

        def read_on() -> None:
            nonlocal done
            done += len(quick.read(1)["steps"])

        until(served, read_on, lambda: "a read for" in served.logs())
        named = "rank without a read for 3 s: dp=1 asked for step "
        assert named in served.logs()
        assert "no rank has" not in served.logs()
        assert status(served.address).silent_ranks == 1
        assert batch_memory(served) > 0

        # Then it hangs too, as ranks do in a collective with one that is dead.
        until(served, a_moment, lambda: status(served.address).held_bytes == 0)
        # What is left is what a process that lives has mapped itself: the batches that it has read ahead.
        until(served, a_moment, lambda: batch_memory(served) == status(served.address).lent_bytes)
        assert "no rank has asked for anything for 3 s: dp=0 asked for step " in served.logs()
        assert status(served.address).silent_ranks == 2

        # Whoever comes back gets what it would have got.
        if ended_by is signal.SIGSTOP:
            lost.process.send_signal(signal.SIGCONT)
            lost.read(done - 2)
            both = [[digest(step) for step in rank.read(4)["steps"]] for rank in (lost, quick)]
            assert both[0] == both[1]
        else:
            assert len(quick.read(2)["steps"]) == 2
        assert served.stderr == ""


def digest(step: dict[str, str]) -> str:
    """Of the whole global step: every rank of it has the same."""
    return step["0/rest"].rpartition(",")[2]
