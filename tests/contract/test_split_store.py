"""A part of a job's store through the exam of stores, and what it shares with the rest of it."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from dataloader_svc.errors import NotLeader
from dataloader_svc.store import MemoryStore, Store, open_store
from dataloader_svc.store.split import SplitStore
from dataloader_svc.testing.fakes import FakeClock
from dataloader_svc.testing.store import StoreContract


class TestSplitStore(StoreContract):
    def url(self, place: Path) -> str:
        return "sqlite:///job.db"

    @pytest.fixture
    def store(self, tmp_path: Path, clock: FakeClock) -> Iterator[Store]:
        with closing(open_store(self.url(tmp_path), tmp_path, clock=clock)) as job:
            for seq in range(3):  # what the rest of the job has is none of its own
                job.append("plan/0", seq, b"the job's", fence=None)
            for key in ("a", "session", "eval", "evaluation/a"):
                job.put(key, b"the job's")
            job.acquire("leader", "the job", 1e9)
            yield SplitStore(job, "eval")


def test_parts_do_not_touch_each_other() -> None:
    job = MemoryStore()
    part = SplitStore(job, "eval")
    part.append("plan/1", 7, b"mine", fence=None)
    part.put("session", b"mine")
    assert job.last("plan/1") is None
    assert job.get("session") is None
    job.put("session", b"the job's")
    assert part.get("session") == b"mine"
    assert part.items("") == {"session": b"mine"}
    theirs, mine = job.acquire("planner", "a", 10.0), part.acquire("planner", "b", 10.0)
    assert theirs is not None
    assert mine is not None
    assert mine.name == "planner"
    part.release(mine)
    with pytest.raises(NotLeader):
        part.append("plan/1", 8, b"late", fence=mine.token)
    job.append("plan/1", 0, b"of the leader", fence=theirs.token)


def test_processes_are_the_jobs_but_for_the_planner() -> None:
    job = MemoryStore()
    part = SplitStore(job, "eval")
    job.put("endpoint/loader/0", b"a")
    job.put("endpoint/planner/0", b"b")
    part.put("endpoint/constructor/1", b"c")
    part.put("endpoint/planner/0", b"d")
    shared = {"endpoint/constructor/1": b"c", "endpoint/loader/0": b"a"}
    assert part.items("endpoint/") == {**shared, "endpoint/planner/0": b"d"} == part.items("")
    assert part.items("endpoint/loader/") == {"endpoint/loader/0": b"a"}
    assert part.items("endpoint/planner/") == {"endpoint/planner/0": b"d"}
    assert job.items("endpoint/") == {**shared, "endpoint/planner/0": b"b"}
    part.delete("endpoint/constructor/1")
    assert job.get("endpoint/constructor/1") is None
