"""The store across hosts: a Redis server (6.2 or newer), or what speaks its protocol.

    redis://[user:password@]host:6379/0              rediss:// for TLS
    redis+sentinel://host:26379,host:26379/service   the master that the sentinels name
    redis+cluster://host:6379,host:6379              a cluster; a job lives in one slot of it

with redis-py's own options behind `?` (`ssl_ca_certs=...`), and ours: `job`, by which jobs share a server,
and `replicas=N`, which has every lasting write wait for N replicas.

Each call is one script (`redis.lua`), which Redis runs alone. A lost connection is tried again, for
`FIRST_PATIENCE_S` when the store is opened and for `PATIENCE_S` from then on: every call carries its client's
name and a number, and one that had arrived before is answered a second time, not done a second time (as in
RIFL, Lee et al., SOSP 2015). One that arrives late, after a newer call of the same client, does nothing.

What survives is up to the server: docs/store.md says which settings keep what the plan log promises, and
`open_redis` says so in the log where they don't. Wall clock: the server's own, one for all hosts.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import logging
import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from importlib import resources
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import SplitResult, parse_qsl, urlencode, urlsplit, urlunsplit

import tenacity

from dataloader_svc.clock import Clock, SystemClock
from dataloader_svc.errors import ConfigError, NotLeader, StoreConflict, StoreError, StoreUnreachable
from dataloader_svc.store.base import STORES, Lease, Store, check_key, shown
from dataloader_svc.store.checksum import checksum, entry_place, record_place

log = logging.getLogger(__name__)

FIRST_PATIENCE_S = 15.0  # who mistyped the address is told soon; a failover by sentinels takes ten
PATIENCE_S = 600.0  # for a person to start it again, or a machine; until then the job stands still
_SAY_AGAIN_S = 30.0
_REQUEST_S = 5.0
_REPLICAS_S = 2.0  # how long a write waits for them
_OLDEST = (6, 2)
_PARTS = ("calls", "entries", "names", "expiry", "leases", "tokens", "last_token")
_SCRIPT = resources.files("dataloader_svc.store").joinpath("redis.lua").read_text(encoding="utf-8")
_RISK = (
    "Nothing that was acknowledged is lost by this; batches that are built are still delivered, and what was "
    "asked is asked again when it is back"
)


class RedisStore:
    """See `base.Store`. One call at a time, over one connection; safe from several threads.

    server     a client of redis-py: `redis.Redis` or `redis.RedisCluster`
    job        names of the job's keys begin with `{job}`, so that all of them lie in one slot of a cluster
    clock      None: the server's
    replicas   lasting writes wait until so many replicas have them
    where      how errors call the server
    """

    def __init__(
        self, server: Any, job: str, *, clock: Clock | None = None, replicas: int = 0, where: str = "redis"
    ) -> None:
        self._server = server
        self._base = f"{{dataloader-svc/{job}}}:"
        self._clock = clock
        self._replicas = replicas
        self.where = where
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._retrying = _retrying(_library(where), where, PATIENCE_S, self._closing)
        self._client = uuid.uuid4().hex[:16]
        self._number = 0
        self._closed = False

    def append(self, log: str, seq: int, record: bytes, *, fence: int | None) -> None:
        check_key(log)
        if seq < 0:
            raise ValueError(f"seq {seq}: need >= 0")
        sealed = _sealed(record_place(log, seq), record)
        answer, *rest = self._write("append", _token(fence), seq, sealed, log=log)
        if answer == b"stale":
            raise _not_leader(fence)
        if answer == b"differs":
            # With the same content its checksum were the same, unless what is there is damaged.
            self.read(log, seq, 1)
            raise StoreConflict(f"{self.where}: log {log}: record {seq} exists with another content")
        if answer == b"gap":
            raise StoreConflict(
                f"{self.where}: log {log}: record {seq} does not follow the last, {int(rest[0])}"
            )

    def read(self, log: str, start: int, limit: int) -> list[tuple[int, bytes]]:
        found = self._read("read", max(start, 0), max(limit, 0), log=check_key(log))
        return [self._record(log, entry) for entry in found]

    def last(self, log: str) -> tuple[int, bytes] | None:
        found = self._read("last", log=check_key(log))
        return self._record(log, found) if found else None

    def truncate(self, log: str, before: int, *, fence: int | None) -> None:
        answer, *_ = self._write("truncate", _token(fence), max(before, 0), log=check_key(log))
        if answer == b"stale":
            raise _not_leader(fence)

    def remove(self, log: str, *, fence: int | None) -> None:
        answer, *_ = self._write("remove", _token(fence), log=check_key(log))
        if answer == b"stale":
            raise _not_leader(fence)

    def get(self, key: str) -> bytes | None:
        found = self._read("get", check_key(key))
        return None if found is None else self._opened(entry_place(key), found)

    def put(self, key: str, value: bytes, *, ttl_s: float | None = None) -> None:
        sealed = _sealed(entry_place(check_key(key)), value)
        self._write("put", key, sealed, "" if ttl_s is None else ttl_s, lasting=ttl_s is None)

    def put_many(self, values: Mapping[str, bytes]) -> None:
        sealed = {check_key(key): _sealed(entry_place(key), value) for key, value in values.items()}
        if sealed:
            self._write("put_many", *(part for pair in sealed.items() for part in pair))

    def compare_and_set(
        self, key: str, expected: bytes | None, value: bytes, *, fence: int | None = None
    ) -> bool:
        place = entry_place(check_key(key))
        was = b"" if expected is None else _sealed(place, expected)
        answer, *_ = self._write(
            "compare_and_set", _token(fence), key, int(expected is not None), was, _sealed(place, value)
        )
        if answer == b"stale":
            raise _not_leader(fence)
        return bool(answer == b"ok")

    def delete(self, key: str) -> None:
        self._write("delete", check_key(key))

    def items(self, prefix: str) -> dict[str, bytes]:
        # Keys are printable ASCII, so all that start with the prefix sort below prefix + DEL.
        found = self._read("items", f"[{prefix}", f"({prefix}\x7f")
        names = [name.decode() for name in found[::2]]
        return {
            name: self._opened(entry_place(name), value)
            for name, value in zip(names, found[1::2], strict=True)
        }

    def acquire(self, name: str, owner: str, ttl_s: float) -> Lease | None:
        answer, *rest = self._write("acquire", check_key(name), owner, ttl_s)
        if answer != b"ok":
            return None
        token, expires_at = rest
        return Lease(name, owner, int(token), ttl_s, float(expires_at))

    def renew(self, lease: Lease) -> Lease:
        answer, *rest = self._write("renew", lease.name, lease.token, lease.ttl_s, lasting=False)
        if answer != b"ok":
            raise _not_leader(lease.token)
        return Lease(lease.name, lease.owner, lease.token, lease.ttl_s, float(rest[0]))

    def release(self, lease: Lease) -> None:
        self._write("release", lease.name, lease.token)

    def close(self) -> None:
        self._closing.set()  # who waits for a server that is away holds the lock
        with self._lock:
            if self._closed:
                return
            self._closed = True
            with contextlib.suppress(StoreUnreachable), translated(self.where):  # it forgets us by itself
                try:
                    self._run("goodbye", self._client, self._number + 1, (), "")
                finally:
                    self._server.close()

    def _read(self, action: str, *arguments: Any, log: str = "") -> Any:
        with self._lock, translated(self.where, PATIENCE_S):
            return self._run(action, "", "", arguments, log)

    def _write(self, action: str, *arguments: Any, log: str = "", lasting: bool = True) -> Any:
        with self._lock, translated(self.where, PATIENCE_S):
            self._number += 1
            answer = self._run(action, self._client, self._number, arguments, log)
            if answer[0] == b"late":
                raise StoreError(f"{self.where}: a newer call of this client was answered before this one")
            if lasting and self._replicas:
                self._wait_for_replicas()
            return answer

    def _run(self, action: str, client: str, number: int | str, arguments: tuple[Any, ...], log: str) -> Any:
        if self._closed and action != "goodbye":
            raise StoreError(f"{self.where}: the store is closed")
        keys = [*(self._base + part for part in _PARTS), f"{self._base}log:{log}"]
        now = "" if self._clock is None else self._clock.wall()
        call = (_SCRIPT, len(keys), *keys, action, client, number, now, *arguments)
        return self._retrying(self._server.eval, *call)

    def _wait_for_replicas(self) -> None:
        have = self._server.execute_command("WAIT", self._replicas, int(_REPLICAS_S * 1000))
        if have < self._replicas:
            raise StoreError(
                f"{self.where}: only {have} of {self._replicas} replicas confirmed a write in "
                f"{_REPLICAS_S:g} s; it is on the master, and may be lost with it. Look after the replicas, "
                "or set replicas= lower"
            )

    def _record(self, log: str, entry: tuple[bytes, list[bytes]] | list[Any]) -> tuple[int, bytes]:
        number, fields = entry
        seq = int(number.split(b"-")[0]) - 1
        return seq, self._opened(record_place(log, seq), fields[1])

    def _opened(self, place: str, sealed: bytes) -> bytes:
        data = sealed[4:]
        if int.from_bytes(sealed[:4], "little") != checksum(place, data):
            raise StoreError(
                f"{self.where}: {place}: the checksum does not match, the value is damaged; restore a copy "
                "of Redis' files, or start with another `job=` in the store's URL and resume from a "
                "trainer's checkpoint"
            )
        return data


@contextlib.contextmanager
def translated(where: str, patience_s: float = 0.0) -> Iterator[None]:
    """Errors of Redis as StoreErrors that name the server, what is at risk, and what to do."""
    redis: Any = _library(where)
    try:
        yield
    except redis.AuthenticationError as error:
        raise StoreError(f"{where}: {error}: give user and password in the store's URL") from error
    except (redis.ConnectionError, redis.TimeoutError) as error:
        raise StoreUnreachable(
            f"{where}: can't be reached for {patience_s:g} s ({error}). {_RISK}. Start it again, or correct "
            "`store:`"
        ) from error
    except redis.OutOfMemoryError as error:
        raise StoreError(
            f"{where}: it is full ({error}); nothing was written. Raise its maxmemory; a job's log takes "
            "some kilobytes a step"
        ) from error
    except redis.RedisError as error:
        remedy = "see its log"
        if "MISCONF" in str(error):
            remedy = "its disk is full or can't be written: nothing was written here. Mend that"
        elif "NOPERM" in str(error):
            remedy = "its user must be allowed +eval and the commands of streams, hashes and sorted sets"
        raise StoreError(f"{where}: {error}: {remedy}") from error


def open_redis(scheme: str, rest: str, base_dir: Path, clock: Clock) -> Store:  # noqa: ARG001
    """What the URL `scheme:rest` names. ConfigError: it is malformed. StoreError: it can't serve, and why."""
    url = f"{scheme}:{rest}"
    where = shown(url)
    parts = urlsplit(url)
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    job, replicas = options.pop("job", "job"), options.pop("replicas", "0")
    if not parts.netloc:
        raise ConfigError(f"store: {where!r}: write '{scheme}://HOST:PORT', as docs/store.md says")
    if not replicas.isdecimal() or (int(replicas) and scheme.endswith("+cluster")):
        raise ConfigError(f"store: {where!r}: replicas must be a number, and 0 with a cluster")
    redis = _library(where)
    with translated(where, FIRST_PATIENCE_S):
        try:
            server = _client(redis, parts._replace(query=urlencode(options)))
        except (ValueError, TypeError) as error:
            raise ConfigError(f"store: {where!r}: {error}") from None
        for info in _retrying(redis, where, FIRST_PATIENCE_S, threading.Event())(_infos, server):
            _look_at(info, where)
    wall = None if isinstance(clock, SystemClock) else clock
    return RedisStore(server, job, clock=wall, replicas=int(replicas), where=where)


for _scheme in ("redis", "rediss", "redis+sentinel", "rediss+sentinel", "redis+cluster", "rediss+cluster"):
    STORES.register(_scheme)(functools.partial(open_redis, _scheme))


def _library(where: str) -> ModuleType:
    try:
        return importlib.import_module("redis")
    except ImportError:
        raise ConfigError(
            f"store: {where!r}: needs the redis package: pip install 'dataloader-svc[redis]'"
        ) from None


def _client(redis: Any, parts: SplitResult) -> Any:
    """A client that doesn't repeat by itself: `_retrying` does."""
    transport, _, kind = parts.scheme.partition("+")
    user, _, hosts = parts.netloc.rpartition("@")
    nodes = [_host_port(host, 26379 if kind == "sentinel" else 6379) for host in hosts.split(",")]
    service, _, db = parts.path.strip("/").partition("/") if kind == "sentinel" else ("", "", "")
    options = {
        "socket_timeout": _REQUEST_S,
        "socket_connect_timeout": _REQUEST_S,
        "socket_keepalive": True,
        "health_check_interval": 15,
        "retry": redis.retry.Retry(redis.backoff.NoBackoff(), 0),
    }
    if not kind:
        return redis.Redis.from_url(urlunsplit(parts), single_connection_client=True, **options)
    path = f"/{db}" if kind == "sentinel" and db else ""
    single = SplitResult(transport, f"{user}@{nodes[0][0]}" if user else nodes[0][0], path, parts.query, "")
    options |= redis.connection.parse_url(urlunsplit(single))
    for name in ("host", "port", "connection_class"):
        options.pop(name, None)
    if transport == "rediss":
        options["ssl"] = True
    if kind == "sentinel":
        if not service:
            raise ValueError("write the name of the service that the sentinels watch behind the hosts, /NAME")
        return redis.sentinel.Sentinel(nodes, **options).master_for(service)
    return redis.cluster.RedisCluster(
        startup_nodes=[redis.cluster.ClusterNode(host, port) for host, port in nodes], **options
    )


def _host_port(text: str, default: int) -> tuple[str, int]:
    parts = urlsplit(f"//{text}")
    return parts.hostname or "localhost", parts.port or default


def _infos(server: Any) -> list[dict[str, Any]]:
    """INFO of the server, or of each primary of a cluster."""
    found = server.info(target_nodes="primaries") if hasattr(server, "get_primaries") else server.info()
    return [found] if "redis_version" in found else list(found.values())  # of several: node -> INFO


def _look_at(info: Mapping[str, Any], where: str) -> None:
    """Whether the server's settings keep what the plan log promises; INFO says most of them."""
    version = str(info.get("redis_version", "0"))
    if tuple(int(part) for part in version.split(".")[:2]) < _OLDEST:
        raise StoreError(f"{where}: Redis {version}; needs {'.'.join(map(str, _OLDEST))} or newer")
    policy = str(info.get("maxmemory_policy", "noeviction"))
    if info.get("maxmemory") and policy.startswith("allkeys"):
        raise StoreError(
            f"{where}: maxmemory-policy {policy} would throw the plan log away when memory is short: "
            "set it to noeviction"
        )
    if not info.get("aof_enabled"):
        log.warning(
            "%s: appendonly is off: when Redis dies, the steps since its last snapshot are lost from the "
            "plan log. Trainers resume from their checkpoints; mixture changes made since are gone. See "
            "docs/store.md",
            where,
        )


def _retrying(redis: Any, where: str, patience_s: float, closing: threading.Event) -> tenacity.Retrying:
    """Repeats what a restart, a failover, a lost connection or want of room explains, until `closing`."""
    said = -_SAY_AGAIN_S

    def say(state: tenacity.RetryCallState) -> None:
        nonlocal said
        now = time.monotonic()
        if (state.seconds_since_start or 0.0) > 1.0 and now - said > _SAY_AGAIN_S:
            said = now
            problem = None if state.outcome is None else state.outcome.exception()
            log.warning("%s: waiting for it, %g s at most (%s)", where, patience_s, problem)

    passing = (
        redis.ConnectionError,
        redis.TimeoutError,
        redis.ReadOnlyError,
        redis.OutOfMemoryError,  # a script that finds no room has written nothing: Redis looks first
        redis.exceptions.ClusterDownError,
        redis.exceptions.MasterDownError,
        redis.exceptions.TryAgainError,
    )
    lasting = (redis.AuthenticationError, redis.exceptions.AuthorizationError)
    return tenacity.Retrying(
        retry=tenacity.retry_if_exception(
            lambda error: isinstance(error, passing) and not isinstance(error, lasting)
        ),
        wait=tenacity.wait_random_exponential(multiplier=0.02, max=1.0),
        stop=tenacity.stop_any(tenacity.stop_after_delay(patience_s), tenacity.stop_when_event_set(closing)),
        sleep=tenacity.sleep_using_event(closing),
        before_sleep=say,
        reraise=True,
    )


def _sealed(place: str, data: bytes) -> bytes:
    return checksum(place, data).to_bytes(4, "little") + data


def _token(fence: int | None) -> int | str:
    return "" if fence is None else fence


def _not_leader(token: int | None) -> NotLeader:
    return NotLeader(f"lease token {token} was overtaken or released: another process leads")
