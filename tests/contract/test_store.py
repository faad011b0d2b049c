"""Every store through the exam that any store must pass, and a random walk beside a plain model."""

from collections.abc import Callable, Iterator
from contextlib import closing, nullcontext
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from dataloader_svc.errors import NotLeader, StoreConflict
from dataloader_svc.store import MemoryStore, Store, open_store
from dataloader_svc.store.sqlite import SqliteStore
from dataloader_svc.testing.fakes import FakeClock
from dataloader_svc.testing.store import SharedStoreContract, StoreContract
from redis_proxy import FATES, RedisProxy, redis_proxy
from redis_server import RedisServer, needs_redis, redis_server


class TestMemoryStore(StoreContract):
    def url(self, place: Path) -> str:
        return "memory:"


class TestSqliteStore(SharedStoreContract):
    def url(self, place: Path) -> str:
        return "sqlite:///store with space.db"


class TestDefaultStore(SharedStoreContract):
    def url(self, place: Path) -> str:
        return "sqlite"


@needs_redis
class TestRedisStore(SharedStoreContract):
    running: RedisServer

    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def server(cls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
        with redis_server(tmp_path_factory.mktemp("redis")) as cls.running:
            yield

    def url(self, place: Path) -> str:
        return self.running.url(place.name)


@needs_redis
class TestRedisBehindABadNetwork(SharedStoreContract):
    """Of ten calls one is lost, one unanswered, one arrives twice and one again when nobody waits for it."""

    proxy: RedisProxy

    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def server(cls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
        chances = dict.fromkeys(FATES[1:], 0.1)
        with (
            redis_server(tmp_path_factory.mktemp("redis")) as running,
            redis_proxy(running.port, chances) as cls.proxy,
        ):
            yield
        assert all(cls.proxy.fates[fate] > 10 for fate in FATES), cls.proxy.fates

    def url(self, place: Path) -> str:
        return f"redis://{self.proxy.address}/0?job={place.name}"


class StoreWalk(RuleBasedStateMachine):
    """Random calls on a store and on the simplest model of one: lists and a dict of (value, end)."""

    make: Callable[[FakeClock], Store]

    @initialize()
    def begin(self):
        self.clock = FakeClock(wall=1000.0)
        self.store = self.make(self.clock)
        self.first, self.log = None, []
        self.entries = {}
        self.tokens, self.owner, self.until = [], None, 0.0

    keys = st.sampled_from(["a", "a/b", "b", "~"])
    values = st.binary(max_size=4)

    def alive(self):
        return {key: value for key, (value, end) in self.entries.items() if end > self.clock.wall()}

    @rule(jump=st.integers(-2, 3), record=values, fence=st.integers(-1, 3))
    def append(self, jump, record, fence):
        seq = max(0, (self.first or 0) + len(self.log) + jump)
        token = None if fence == -1 else self.tokens[-fence - 1] if fence < len(self.tokens) else 10**9
        stale = token is not None and not (self.owner and token == self.tokens[-1])
        at = seq - (self.first if self.log else seq)
        ok = not stale and ((0 <= at < len(self.log) and self.log[at] == record) or at == len(self.log))
        with nullcontext() if ok else pytest.raises(NotLeader if stale else StoreConflict):
            self.store.append("log", seq, record, fence=token)
        if ok and at == len(self.log):
            self.first = seq if not self.log else self.first
            self.log.append(record)

    @rule(key=keys, value=values, ttl=st.sampled_from([None, 3, 10]))
    def put(self, key, value, ttl):
        self.store.put(key, value, ttl_s=ttl)
        self.entries[key] = (value, float("inf") if ttl is None else self.clock.wall() + ttl)

    @rule(key=keys, expected=st.none() | values, value=values, same=st.booleans())
    def compare_and_set(self, key, expected, value, same):
        now = self.alive().get(key)
        expected = now if same else expected
        assert self.store.compare_and_set(key, expected, value) == (now == expected)
        if now == expected:
            self.entries[key] = (value, float("inf"))

    @rule(key=keys)
    def delete(self, key):
        self.store.delete(key)
        self.entries.pop(key, None)

    @rule(owner=st.sampled_from("xy"), ttl=st.sampled_from([2, 8]))
    def acquire(self, owner, ttl):
        lease = self.store.acquire("leader", owner, ttl)
        free = self.owner in (None, owner) or self.until <= self.clock.wall()
        assert (lease is not None) == free
        if lease is not None:
            assert not self.tokens or lease.token > self.tokens[-1]
            self.lease, self.owner, self.until = lease, owner, self.clock.wall() + ttl
            self.tokens.append(lease.token)
        else:  # who asks waits for one time to live at most, whatever the clock says
            self.until = min(self.until, self.clock.wall() + ttl)

    @rule()
    def release(self):
        if self.tokens:
            self.store.release(self.lease)
            self.owner = None

    @rule(seconds=st.sampled_from([1, 5]))
    def time_passes(self, seconds):
        self.clock.advance(seconds)

    @invariant()
    def same(self):
        if hasattr(self, "store"):
            records = list(enumerate(self.log, self.first or 0))
            assert self.store.read("log", 0, 1000) == records
            assert self.store.last("log") == (records[-1] if records else None)
            assert self.store.items("") == self.alive()
            assert self.store.items("a") == {k: v for k, v in self.alive().items() if k.startswith("a")}

    def teardown(self):
        if hasattr(self, "store"):
            self.store.close()


class MemoryWalk(StoreWalk):
    def make(self, clock):
        return MemoryStore(clock)


TestMemoryWalk = MemoryWalk.TestCase
TestMemoryWalk.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


def test_sqlite_walk(tmp_path):
    names = iter(range(10**6))

    class SqliteWalk(StoreWalk):
        def make(self, clock):
            path = tmp_path / f"{next(names)}.db"
            with closing(SqliteStore(path, clock)):
                pass  # so that the walk begins on a file that was closed and opened again
            return SqliteStore(path, clock)

    run_state_machine_as_test(
        SqliteWalk, settings=settings(max_examples=30, stateful_step_count=25, deadline=None)
    )


@needs_redis
def test_redis_walk(tmp_path):
    names = iter(range(10**6))

    with redis_server(tmp_path, "appendfsync no") as server:

        class RedisWalk(StoreWalk):
            def make(self, clock):
                return open_store(server.url(f"walk-{next(names)}"), tmp_path, clock=clock)

        run_state_machine_as_test(
            RedisWalk, settings=settings(max_examples=30, stateful_step_count=25, deadline=None)
        )
