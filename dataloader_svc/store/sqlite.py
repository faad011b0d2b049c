"""The embedded store: one SQLite file in WAL mode, shared by all processes of a job on one host.

Durability: a commit in WAL mode is synced to disk under `synchronous=FULL` and only handed to the kernel
under NORMAL. Both survive kill -9; FULL survives the loss of power too, and costs an fsync. So everything is
written under FULL but what expires anyway (endpoints, renewals). Each value carries a CRC-32 seeded with its
place, checked when read: SQLite itself does not notice a flipped bit inside a value.

WAL needs memory shared between processes: the file must lie on a local disk. A removed file is noticed
before a write, since SQLite would go on writing to the orphan.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
import threading
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path

from dataloader_svc import faultpoint
from dataloader_svc.clock import Clock, SystemClock
from dataloader_svc.errors import ConfigError, NotLeader, StoreConflict, StoreError
from dataloader_svc.store.base import STORES, Lease, Store, check_key
from dataloader_svc.store.checksum import checksum, entry_place, record_place

DEFAULT_NAME = "state.db"
SCHEMA_VERSION = 1
APPLICATION_ID = 0x444C5356  # "DLSV", in the file's header: tells our files from other SQLite files
BUSY_TIMEOUT_S = 10.0  # a writer holds the lock for one fsync, some ms; ten seconds mean that it hangs

SCHEMA = (
    """CREATE TABLE log (
        name TEXT NOT NULL, seq INTEGER NOT NULL, crc INTEGER NOT NULL, record BLOB NOT NULL,
        PRIMARY KEY (name, seq))""",
    """CREATE TABLE entry (
        key TEXT PRIMARY KEY, crc INTEGER NOT NULL, value BLOB NOT NULL, expires_at REAL) WITHOUT ROWID""",
    "CREATE INDEX entry_expiry ON entry (expires_at) WHERE expires_at IS NOT NULL",
    """CREATE TABLE lease (
        name TEXT PRIMARY KEY, owner TEXT NOT NULL,
        token INTEGER NOT NULL UNIQUE, expires_at REAL NOT NULL)""",
    "CREATE TABLE last_token (token INTEGER NOT NULL)",
    "INSERT INTO last_token VALUES (0)",
    f"PRAGMA application_id = {APPLICATION_ID}",
    f"PRAGMA user_version = {SCHEMA_VERSION}",
)
LOG_GET = "SELECT crc, record FROM log WHERE name = ? AND seq = ?"
LOG_LAST = "SELECT seq, crc, record FROM log WHERE name = ? ORDER BY seq DESC LIMIT 1"
LOG_LAST_SEQ = "SELECT max(seq) FROM log WHERE name = ?"
LOG_READ = "SELECT seq, crc, record FROM log WHERE name = ? AND seq >= ? ORDER BY seq LIMIT ?"
LOG_TRUNCATE = "DELETE FROM log WHERE name = ? AND seq < min(?, (SELECT max(seq) FROM log WHERE name = ?))"
LOG_REMOVE = "DELETE FROM log WHERE name = ?"
LOG_ADD = "INSERT INTO log (name, seq, crc, record) VALUES (?, ?, ?, ?)"
ENTRY_GET = "SELECT crc, value FROM entry WHERE key = ? AND (expires_at IS NULL OR expires_at > ?)"
ENTRY_RANGE = """SELECT key, crc, value FROM entry
    WHERE key >= ? AND key < ? AND (expires_at IS NULL OR expires_at > ?) ORDER BY key"""
ENTRY_PUT = "INSERT OR REPLACE INTO entry (key, crc, value, expires_at) VALUES (?, ?, ?, ?)"
ENTRY_DELETE = "DELETE FROM entry WHERE key = ?"
ENTRY_SWEEP = "DELETE FROM entry WHERE expires_at <= ?"
LEASE_GET = "SELECT owner, expires_at FROM lease WHERE name = ?"
LEASE_BY_TOKEN = "SELECT 1 FROM lease WHERE token = ?"  # noqa: S105 - a fencing token is no secret
LEASE_PUT = "INSERT OR REPLACE INTO lease (name, owner, token, expires_at) VALUES (?, ?, ?, ?)"
LEASE_EXTEND = "UPDATE lease SET expires_at = ? WHERE token = ?"
LEASE_SHORTEN = "UPDATE lease SET expires_at = ? WHERE name = ?"
LEASE_DELETE = "DELETE FROM lease WHERE token = ?"
TOKEN_NEXT = "UPDATE last_token SET token = token + 1 RETURNING token"  # noqa: S105

_REMEDIES = {
    sqlite3.SQLITE_BUSY: f"another process has held its lock for {BUSY_TIMEOUT_S:.0f} s; end that process",
    sqlite3.SQLITE_FULL: "the disk is full; free some space and start again, what was acknowledged is kept",
    sqlite3.SQLITE_READONLY: "it can't be written; check owner and permissions of the file and its folder",
    sqlite3.SQLITE_CANTOPEN: "it can't be opened; check that its folder exists and can be written",
    sqlite3.SQLITE_CORRUPT: "it is damaged; put a copy in its place, or move it away and resume from "
    "a trainer's checkpoint",
    sqlite3.SQLITE_NOTADB: "it is no state store or its header is damaged; move it away or name another file "
    "with 'store: sqlite:///path/to/file.db'",
    sqlite3.SQLITE_IOERR: "the disk refused a read or write; check disk, quota and file size limits",
}


class SqliteStore:
    """See `base.Store`. One connection behind a lock; any number of processes may open the same file."""

    def __init__(self, path: Path, clock: Clock | None = None) -> None:
        self.path = path
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._synchronous = ""
        with _translated(path):
            self._connection: sqlite3.Connection | None = _connect(path)
            self._identity = _identity(path)

    def append(self, log: str, seq: int, record: bytes, *, fence: int | None) -> None:
        check_key(log)
        if seq < 0:
            raise ValueError(f"seq {seq}: need >= 0")
        with self._write() as db:
            _check_fence(db, fence)
            found = db.execute(LOG_GET, (log, seq)).fetchone()
            if found is not None:
                if self._checked(record_place(log, seq), *found) != record:
                    raise StoreConflict(f"{self.path}: log {log}: record {seq} exists with another content")
                return
            (last,) = db.execute(LOG_LAST_SEQ, (log,)).fetchone()
            if last is not None and seq != last + 1:
                raise StoreConflict(f"{self.path}: log {log}: record {seq} does not follow the last, {last}")
            db.execute(LOG_ADD, (log, seq, checksum(record_place(log, seq), record), record))
            faultpoint.point("store.append_written")
        faultpoint.point("store.append_committed")

    def read(self, log: str, start: int, limit: int) -> list[tuple[int, bytes]]:
        with self._reading() as db:
            rows = db.execute(LOG_READ, (check_key(log), start, max(limit, 0))).fetchall()
        return [(seq, self._checked(record_place(log, seq), crc, record)) for seq, crc, record in rows]

    def last(self, log: str) -> tuple[int, bytes] | None:
        with self._reading() as db:
            row = db.execute(LOG_LAST, (check_key(log),)).fetchone()
        return None if row is None else (row[0], self._checked(record_place(log, row[0]), row[1], row[2]))

    def truncate(self, log: str, before: int, *, fence: int | None) -> None:
        check_key(log)
        with self._write() as db:
            _check_fence(db, fence)
            db.execute(LOG_TRUNCATE, (log, before, log))
            faultpoint.point("store.truncate_written")

    def remove(self, log: str, *, fence: int | None) -> None:
        check_key(log)
        with self._write() as db:
            _check_fence(db, fence)
            db.execute(LOG_REMOVE, (log,))
            faultpoint.point("store.remove_written")

    def get(self, key: str) -> bytes | None:
        check_key(key)
        with self._reading() as db:
            return self._value(db, key)

    def put(self, key: str, value: bytes, *, ttl_s: float | None = None) -> None:
        check_key(key)
        now = self._clock.wall()
        with self._write(durable=ttl_s is None) as db:
            if ttl_s is not None:
                db.execute(ENTRY_SWEEP, (now,))
            db.execute(ENTRY_PUT, _entry(key, value, None if ttl_s is None else now + ttl_s))

    def put_many(self, values: Mapping[str, bytes]) -> None:
        rows = [_entry(check_key(key), value, None) for key, value in values.items()]
        with self._write() as db:
            db.executemany(ENTRY_PUT, rows)

    def compare_and_set(
        self, key: str, expected: bytes | None, value: bytes, *, fence: int | None = None
    ) -> bool:
        check_key(key)
        with self._write() as db:
            _check_fence(db, fence)
            if self._value(db, key) != expected:
                return False
            db.execute(ENTRY_PUT, _entry(key, value, None))
            return True

    def delete(self, key: str) -> None:
        check_key(key)
        with self._write() as db:
            db.execute(ENTRY_DELETE, (key,))

    def items(self, prefix: str) -> dict[str, bytes]:
        # Keys are printable ASCII, so all that start with the prefix sort below prefix + DEL.
        with self._reading() as db:
            rows = db.execute(ENTRY_RANGE, (prefix, prefix + "\x7f", self._clock.wall())).fetchall()
        return {key: self._checked(entry_place(key), crc, value) for key, crc, value in rows}

    def acquire(self, name: str, owner: str, ttl_s: float) -> Lease | None:
        check_key(name)
        with self._write() as db:
            now = self._clock.wall()
            held = db.execute(LEASE_GET, (name,)).fetchone()
            if held is not None and held[0] != owner and held[1] > now:
                if held[1] > now + ttl_s:
                    db.execute(LEASE_SHORTEN, (now + ttl_s, name))
                return None
            (token,) = db.execute(TOKEN_NEXT).fetchone()
            db.execute(LEASE_PUT, (name, owner, token, now + ttl_s))
            return Lease(name, owner, token, ttl_s, now + ttl_s)

    def renew(self, lease: Lease) -> Lease:
        with self._write(durable=False) as db:
            _check_fence(db, lease.token)
            expires_at = self._clock.wall() + lease.ttl_s
            db.execute(LEASE_EXTEND, (expires_at, lease.token))
            return Lease(lease.name, lease.owner, lease.token, lease.ttl_s, expires_at)

    def release(self, lease: Lease) -> None:
        with self._write() as db:
            db.execute(LEASE_DELETE, (lease.token,))

    def close(self) -> None:
        with self._lock, _translated(self.path):
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        with self._lock, _translated(self.path):
            if self._connection is None:
                raise StoreError(f"{self.path}: the store is closed")
            yield self._connection

    @contextmanager
    def _write(self, *, durable: bool = True) -> Iterator[sqlite3.Connection]:
        """One transaction: committed when the block ends, rolled back when it raises."""
        with self._reading() as db:
            if _identity(self.path) != self._identity:
                raise StoreError(
                    f"{self.path}: the file was removed or replaced while in use; nothing was written. "
                    "Put it back, or restart the service: trainers resume from their checkpoints"
                )
            synchronous = "FULL" if durable else "NORMAL"
            if synchronous != self._synchronous:
                db.execute(f"PRAGMA synchronous = {synchronous}")
                self._synchronous = synchronous
            db.execute("BEGIN IMMEDIATE")
            try:
                yield db
                db.execute("COMMIT")
            except BaseException:
                db.rollback()
                raise

    def _value(self, db: sqlite3.Connection, key: str) -> bytes | None:
        row = db.execute(ENTRY_GET, (key, self._clock.wall())).fetchone()
        return None if row is None else self._checked(entry_place(key), *row)

    def _checked(self, place: str, crc: int, data: bytes) -> bytes:
        if checksum(place, data) != crc:
            raise StoreError(
                f"{self.path}: {place}: the checksum does not match, the file is damaged; put a copy in its "
                "place, or move it away and resume from a trainer's checkpoint"
            )
        return data


@STORES.register("sqlite")
def open_sqlite(rest: str, base_dir: Path, clock: Clock) -> Store:
    """`sqlite` or `sqlite:///path`; the folder of an explicit path must exist."""
    if rest and (not rest.startswith("///") or rest == "///"):
        raise ConfigError(
            f"store: 'sqlite:{rest}': write 'sqlite', 'sqlite:///relative.db' or 'sqlite:////absolute.db'"
        )
    path = base_dir / (rest[3:] or DEFAULT_NAME)
    if not rest:
        with _translated(path):
            base_dir.mkdir(parents=True, exist_ok=True)
    elif not path.parent.is_dir():
        raise StoreError(
            f"{path}: its folder does not exist; create it, or mind that 'sqlite:///' is relative to "
            f"{base_dir} and 'sqlite:////' absolute"
        )
    return SqliteStore(path, clock)


def _connect(path: Path) -> sqlite3.Connection:
    """Open `path`, creating the schema in an empty or absent file.

    Under a lock on the folder: the switch to WAL mode fails at once, without waiting, where another process
    is opening the file at the same time. Later opens find it in that mode.
    """
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        db = sqlite3.connect(path, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False)
        try:
            _prepare(db, path)
        except BaseException:
            db.close()
            raise
        return db
    finally:
        os.close(folder)


def _prepare(db: sqlite3.Connection, path: Path) -> None:
    (application,) = db.execute("PRAGMA application_id").fetchone()
    (version,) = db.execute("PRAGMA user_version").fetchone()
    (tables,) = db.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if not application and not version and not tables:
        db.execute("BEGIN IMMEDIATE")
        for statement in SCHEMA:
            db.execute(statement)
        db.execute("COMMIT")
    elif application != APPLICATION_ID:
        raise StoreError(f"{path}: a SQLite file of another program; {_REMEDIES[sqlite3.SQLITE_NOTADB]}")
    elif version != SCHEMA_VERSION:
        raise StoreError(
            f"{path}: written in format {version}, this version reads format {SCHEMA_VERSION}; "
            "use the version that wrote it, or move the file away and resume from a trainer's checkpoint"
        )
    with closing(db.execute("PRAGMA journal_mode = WAL")) as cursor:
        (mode,) = cursor.fetchone()
    if mode != "wal":
        raise StoreError(f"{path}: its file system does not support WAL mode; put the store on a local disk")


@contextmanager
def _translated(path: Path) -> Iterator[None]:
    """Errors of SQLite and the system as StoreErrors that name the file and what to do."""
    try:
        yield
    except sqlite3.DatabaseError as error:
        code = getattr(error, "sqlite_errorcode", None)
        if code is None:  # raised by Python's module, not by SQLite: our own mistake
            raise
        remedy = _REMEDIES.get(code & 0xFF, "see the SQLite documentation of this error")
        name = getattr(error, "sqlite_errorname", code)
        raise StoreError(f"{path}: {error} ({name}): {remedy}") from error
    except OSError as error:
        raise StoreError(
            f"{path}: {error.strerror}; the store needs a writable folder on a local disk"
        ) from error


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino


def _check_fence(db: sqlite3.Connection, fence: int | None) -> None:
    if fence is not None and db.execute(LEASE_BY_TOKEN, (fence,)).fetchone() is None:
        raise NotLeader(f"lease token {fence} was overtaken or released: another process leads")


def _entry(key: str, value: bytes, expires_at: float | None) -> tuple[str, int, bytes, float | None]:
    return key, checksum(entry_place(key), value), value, expires_at
