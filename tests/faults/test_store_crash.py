"""A real process that writes to the store and is killed, at an exact place or at any moment."""

import os
import signal
import subprocess
import sys
from contextlib import closing, contextmanager

import pytest

from dataloader_svc.errors import StoreError
from dataloader_svc.store import SqliteStore, sqlite

LOG = "plan/0"
WRITER = """
import sys
from pathlib import Path
from dataloader_svc.store import SqliteStore

store = SqliteStore(Path(sys.argv[1]))
lease = store.acquire("leader", "planner", 3600)
last = store.last("plan/0")
seq = 0 if last is None else last[0] + 1
while True:
    store.append("plan/0", seq, b"%d " % seq * 900, fence=lease.token)
    print(seq, flush=True)
    seq += 1
"""


def record(seq):
    return b"%d " % seq * 900


@contextmanager
def writer(path, **environment):
    child = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path)],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | environment,
    )
    with child:
        try:
            yield child
        finally:
            child.kill()


def assert_log(path, num_records):
    with closing(SqliteStore(path)) as store:
        assert store.read(LOG, 0, 10**6) == [(seq, record(seq)) for seq in range(num_records)]
        assert store._connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


@pytest.mark.parametrize("number", [1, 2, 7])
def test_killed_before_the_commit_the_record_is_not_there(tmp_path, number):
    path = tmp_path / "state.db"
    with writer(path, DATALOADER_FAULT=f"store.append_written:kill:{number}") as child:
        acknowledged = child.stdout.read().split()
    assert child.returncode == -signal.SIGKILL
    assert len(acknowledged) == number - 1
    assert_log(path, number - 1)


@pytest.mark.parametrize("number", [1, 2, 7])
def test_killed_after_the_commit_the_record_is_there_and_the_retry_succeeds(tmp_path, number):
    path = tmp_path / "state.db"
    with writer(path, DATALOADER_FAULT=f"store.append_committed:kill:{number}") as child:
        acknowledged = child.stdout.read().split()
    assert child.returncode == -signal.SIGKILL
    assert len(acknowledged) == number - 1
    with closing(SqliteStore(path)) as store:
        store.append(LOG, number - 1, record(number - 1), fence=None)
    assert_log(path, number)


def test_killed_at_any_moment_all_that_was_acknowledged_is_there(tmp_path):
    """Writers after each other on one file, each killed while it writes; the test keeps the file open."""
    path = tmp_path / "state.db"
    with closing(SqliteStore(path)) as store:
        for more in [1, 30, 3, 120, 11, 60]:
            with writer(path) as child:
                for _ in range(more):
                    acknowledged = int(child.stdout.readline())
                child.kill()
                acknowledged = max([acknowledged, *map(int, child.stdout.read().split())])
            last, _ = store.last(LOG)
            assert last - acknowledged in (0, 1)  # one more may have been in the making
            store.append(LOG, last + 1, record(last + 1), fence=None)
    assert_log(path, last + 2)


def test_a_writer_stopped_with_the_lock_is_named_as_such_and_its_death_frees_it(tmp_path, monkeypatch):
    monkeypatch.setattr(sqlite, "BUSY_TIMEOUT_S", 0.1)
    path = tmp_path / "state.db"
    with closing(SqliteStore(path)) as store:
        with writer(path, DATALOADER_FAULT="store.append_written:stop:3") as child:
            os.waitid(os.P_PID, child.pid, os.WSTOPPED)
            with pytest.raises(StoreError, match="another process has held its lock"):
                store.append(LOG, 2, b"mine", fence=None)
            assert [seq for seq, _ in store.read(LOG, 0, 10)] == [0, 1]
        store.append(LOG, 2, record(2), fence=None)
    assert_log(path, 3)


def test_the_next_life_of_a_killed_leader_leads_at_once(tmp_path):
    path = tmp_path / "state.db"
    with writer(path) as child:
        child.stdout.readline()
    with closing(SqliteStore(path)) as store:
        assert store.acquire("leader", "somebody else", 10) is None
        assert store.acquire("leader", "planner", 10) is not None


def test_killed_while_old_records_are_removed_all_of_them_are_there(tmp_path):
    path = tmp_path / "state.db"
    with closing(SqliteStore(path)) as store:
        for seq in range(6):
            store.append(LOG, seq, record(seq), fence=None)
    remover = "import sys; from pathlib import Path; from dataloader_svc.store import SqliteStore; "
    remover += "SqliteStore(Path(sys.argv[1])).truncate('plan/0', 4, fence=None)"
    fault = {"DATALOADER_FAULT": "store.truncate_written:kill:1"}
    command = [sys.executable, "-c", remover, str(path)]
    assert subprocess.run(command, env=os.environ | fault, check=False).returncode == -signal.SIGKILL
    assert_log(path, 6)
    assert subprocess.run(command, check=True).returncode == 0
    with closing(SqliteStore(path)) as store:
        assert store.read(LOG, 0, 10) == [(4, record(4)), (5, record(5))]
