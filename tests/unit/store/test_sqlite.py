"""What is particular to SQLite: files that are not ours or damaged, disks that refuse, checksums."""

import os
import sqlite3
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest

from dataloader_svc.errors import StoreError
from dataloader_svc.sample import RowRef, SampleId
from dataloader_svc.store import Quarantined, SqliteStore, add_quarantine, open_store, sqlite
from dataloader_svc.testing.fakes import FakeClock


@pytest.fixture
def path(tmp_path):
    return tmp_path / "state.db"


def filled(path, records=3):
    with closing(SqliteStore(path)) as store:
        for seq in range(records):
            store.append("plan/0", seq, b"record %d" % seq, fence=None)
        store.put("head", b"value")
    return path


def edit(path, statement, *values):
    with closing(sqlite3.connect(path)) as db:
        db.execute(statement, values)
        db.commit()


# --- files that are not a store


@pytest.mark.parametrize(
    "content", [b"hello, this is a text file\n" * 100, b"\x00" * 4096, b"PK\x03\x04" * 500]
)
def test_a_foreign_file_is_named_and_left_alone(path, content):
    path.write_bytes(content)
    with pytest.raises(StoreError, match=r"state\.db: .*no state store.*move it away"):
        SqliteStore(path)
    assert path.read_bytes() == content


def test_a_sqlite_file_of_another_program_is_left_alone(path):
    edit(path, "CREATE TABLE theirs (x)")
    before = path.read_bytes()
    with pytest.raises(StoreError, match="of another program.*move it away"):
        SqliteStore(path)
    assert path.read_bytes() == before


def test_an_empty_file_becomes_a_store(path):
    path.touch()
    filled(path)


def test_a_file_of_another_format_version(path):
    edit(filled(path), "PRAGMA user_version = 99")
    with pytest.raises(StoreError, match="format 99, this version reads format 1"):
        SqliteStore(path)


def test_a_folder_in_place_of_the_file(path):
    path.mkdir()
    with pytest.raises(StoreError, match=r"state\.db: .*can't be opened"):
        SqliteStore(path)


def test_a_folder_that_does_not_exist(tmp_path):
    with pytest.raises(StoreError, match=r"no/state\.db: No such file"):
        SqliteStore(tmp_path / "no" / "state.db")


# --- damage


def test_a_flipped_bit_in_a_record_is_named_by_log_and_number(path):
    edit(filled(path), "UPDATE log SET record = ? WHERE seq = 1", b"recorD 1")
    with closing(SqliteStore(path)) as store:
        place = r"state\.db: log plan/0: record 1: the checksum does not match"
        with pytest.raises(StoreError, match=place):
            store.read("plan/0", 0, 10)
        with pytest.raises(StoreError, match=place):
            store.append("plan/0", 1, b"record 1", fence=None)
        assert store.read("plan/0", 2, 1) == [(2, b"record 2")]
        assert store.last("plan/0") == (2, b"record 2")


def test_records_that_changed_places_are_noticed(path):
    edit(filled(path), "UPDATE log SET seq = CASE seq WHEN 1 THEN -1 ELSE seq END")
    edit(path, "UPDATE log SET seq = 1 WHERE seq = 2")
    edit(path, "UPDATE log SET seq = 2 WHERE seq = -1")
    with closing(SqliteStore(path)) as store, pytest.raises(StoreError, match="record 2: the checksum"):
        store.last("plan/0")


def test_a_flipped_bit_in_a_value_is_named_by_key(path):
    edit(filled(path), "UPDATE entry SET value = ?", b"valuE")
    with closing(SqliteStore(path)) as store:
        for call in (lambda: store.get("head"), lambda: store.items("h")):
            with pytest.raises(StoreError, match="key head: the checksum does not match"):
                call()


def test_a_damaged_page_is_a_store_error(path):
    filled(path)
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(b"\xff" * (size - 4096))
    with closing(SqliteStore(path)) as store, pytest.raises(StoreError, match=r"state\.db: .*damaged"):
        store.read("plan/0", 0, 10)


def test_a_cut_file_is_a_store_error(path):
    filled(path, records=500)
    os.truncate(path, 8192)
    with pytest.raises(StoreError, match=r"state\.db: .*damaged"), closing(SqliteStore(path)) as store:
        store.read("plan/0", 0, 1000)


# --- a disk that refuses


def test_a_folder_that_nobody_can_write(tmp_path):
    with pytest.raises(StoreError, match=r"/sys/kernel/state\.db: "):
        open_store("sqlite:////sys/kernel/state.db", tmp_path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere; the test above covers /sys")
def test_a_read_only_folder(path):
    filled(path)
    path.parent.chmod(0o500)
    try:
        refused = pytest.raises(StoreError, match="owner and permissions|can be written")
        with refused, closing(SqliteStore(path)) as store:
            store.put("a", b"")
    finally:
        path.parent.chmod(0o700)


def test_a_full_disk_is_an_error_that_keeps_what_was_acknowledged(path):
    with closing(SqliteStore(path)) as store:
        store._connection.execute("PRAGMA max_page_count = 20")
        acknowledged = 0
        with pytest.raises(StoreError, match="disk is full.*free some space"):
            for seq in range(100):
                store.append("plan/0", seq, b"x" * 4000, fence=None)
                acknowledged += 1
        assert acknowledged > 2
        assert store.last("plan/0")[0] == acknowledged - 1
        store._connection.execute("PRAGMA max_page_count = 1000")
        store.append("plan/0", acknowledged, b"after", fence=None)


FILE_SIZE_LIMIT = """
import resource, signal, sys
from pathlib import Path
from dataloader_svc.errors import StoreError
from dataloader_svc.store import SqliteStore

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
store = SqliteStore(Path(sys.argv[1]))
resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))
try:
    for seq in range(1000):
        store.append("plan/0", seq, bytes(4000), fence=None)
        print(seq, flush=True)
except StoreError as error:
    print(error, file=sys.stderr)
"""


def test_a_write_that_the_system_refuses_is_an_error_that_keeps_what_was_acknowledged(path):
    child = subprocess.run(
        [sys.executable, "-c", FILE_SIZE_LIMIT, str(path)], capture_output=True, text=True, check=True
    )
    assert "state.db: " in child.stderr
    assert "disk" in child.stderr
    acknowledged = [int(line) for line in child.stdout.split()]
    assert len(acknowledged) > 2
    with closing(SqliteStore(path)) as store:
        seqs = [seq for seq, _ in store.read("plan/0", 0, 2000)]
        assert seqs[: len(acknowledged)] == acknowledged
        assert len(seqs) - len(acknowledged) in (0, 1)  # the refused one may have happened


def test_a_lock_that_is_never_released_is_an_error(path, monkeypatch):
    monkeypatch.setattr(sqlite, "BUSY_TIMEOUT_S", 0.05)
    with closing(SqliteStore(path)) as store, closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreError, match="another process has held its lock"):
            store.put("a", b"")
        assert store.get("a") is None  # readers are not in the way
        other.execute("COMMIT")
        store.put("a", b"")


def test_a_store_that_was_removed_while_in_use_is_noticed_before_a_write(path):
    with closing(SqliteStore(path)) as store:
        store.append("plan/0", 0, b"r0", fence=None)
        path.rename(path.with_name("away.db"))
        with pytest.raises(StoreError, match="removed or replaced while in use"):
            store.append("plan/0", 1, b"r1", fence=None)
        path.touch()
        with pytest.raises(StoreError, match="removed or replaced while in use"):
            store.put("a", b"")


# --- how it is written


def test_what_must_last_is_synced_and_what_expires_is_not(path):
    statements = []
    with closing(SqliteStore(path)) as store:
        store._connection.set_trace_callback(statements.append)
        store.append("plan/0", 0, b"", fence=None)
        store.put("endpoint/a", b"", ttl_s=10)
        store.put("endpoint/b", b"", ttl_s=10)
        lease = store.acquire("leader", "a", 10)
        store.renew(lease)
        store.put("head", b"")
    levels = [line.split("= ")[1] for line in statements if "synchronous" in line]
    assert levels == ["FULL", "NORMAL", "FULL", "NORMAL", "FULL"]


def test_many_quarantined_rows_are_one_transaction(path):
    statements = []
    with closing(SqliteStore(path)) as store:
        store._connection.set_trace_callback(statements.append)
        add_quarantine(
            store, [Quarantined(SampleId("web", 0, n), RowRef("shard", n), "bad_record") for n in range(50)]
        )
    assert statements.count("COMMIT") == 1


def test_expired_entries_leave_the_file(path):
    clock = FakeClock()
    with closing(SqliteStore(path, clock)) as store:
        for number in range(100):
            store.put(f"endpoint/{number}", b"", ttl_s=5)
            clock.advance(1)
        assert store._connection.execute("SELECT count(*) FROM entry").fetchone()[0] <= 6


def test_many_that_create_the_file_at_once_all_get_a_store(tmp_path):
    """Without the lock on the folder, some find the file "locked" while another switches it to WAL mode."""
    with ThreadPoolExecutor(8) as pool:
        for number in range(10):
            barrier = threading.Barrier(8)

            def work(who, path=tmp_path / f"{number}.db", barrier=barrier):
                barrier.wait()
                with closing(SqliteStore(path)) as store:
                    store.put(f"{who}", b"")
                    return store._connection.execute("PRAGMA journal_mode").fetchone()

            assert set(pool.map(work, range(8))) == {("wal",)}


def test_a_log_that_is_truncated_as_it_grows_takes_no_more_room(tmp_path):
    path = tmp_path / "state.db"
    with closing(SqliteStore(path)) as store:
        sizes = []
        for seq in range(400):
            store.append("plan/1", seq, bytes(8192), fence=None)
            if seq % 20 == 19:
                store.truncate("plan/1", seq - 20, fence=None)
                sizes.append(sum(each.stat().st_size for each in tmp_path.iterdir()))
    assert max(sizes[15:]) == max(sizes[8:15])  # its journal included, which grows to its own limit first
    assert path.stat().st_size < 100 * 8192
