"""The exam of a store. Subclass `StoreContract`, or `SharedStoreContract` where the data outlives the object.

    class TestMyStore(SharedStoreContract):
        def url(self, place: Path) -> str:
            return f"mine://{place}/store"

pytest then runs every test below against it. `place` is a folder of the test's own.
"""

from __future__ import annotations

import multiprocessing
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from dataloader_svc.errors import NotLeader, StoreConflict, StoreError
from dataloader_svc.sample import RowRef, SampleId
from dataloader_svc.store import Quarantined, Store, add_quarantine, open_store, quarantine
from dataloader_svc.testing.fakes import FakeClock

LOG = "plan/0"


class StoreContract(ABC):
    """What every store does."""

    @abstractmethod
    def url(self, place: Path) -> str:
        """What a user writes after `store:` to get it, inside the folder `place`."""

    @pytest.fixture
    def clock(self) -> FakeClock:
        return FakeClock()

    @pytest.fixture
    def store(self, tmp_path: Path, clock: FakeClock) -> Iterator[Store]:
        with closing(open_store(self.url(tmp_path), tmp_path, clock=clock)) as store:
            yield store

    # --- logs

    def test_a_new_log_is_empty(self, store: Store) -> None:
        assert store.last(LOG) is None
        assert store.read(LOG, 0, 10) == []

    def test_records_come_back_in_order_and_from_anywhere(self, store: Store) -> None:
        records = [(seq, b"record %d \x00\xff" % seq) for seq in range(12)]
        for seq, record in records:
            store.append(LOG, seq, record, fence=None)
        assert store.read(LOG, 0, 100) == records
        assert store.read(LOG, 9, 2) == records[9:11]
        assert store.read(LOG, 11, 5) == records[11:]
        assert store.read(LOG, 12, 5) == []
        assert store.read(LOG, 0, 0) == []
        assert store.last(LOG) == records[-1]

    def test_a_log_may_begin_anywhere_and_be_empty_of_content(self, store: Store) -> None:
        store.append(LOG, 4000, b"", fence=None)
        store.append(LOG, 4001, b"next", fence=None)
        assert store.read(LOG, 0, 10) == [(4000, b""), (4001, b"next")]

    def test_logs_do_not_touch_each_other(self, store: Store) -> None:
        store.append("plan/1", 0, b"one", fence=None)
        store.append("plan/10", 7, b"ten", fence=None)
        assert store.last("plan/1") == (0, b"one")
        assert store.read("plan/10", 0, 10) == [(7, b"ten")]

    def test_a_retry_of_any_record_is_a_success_that_adds_nothing(self, store: Store) -> None:
        for seq in range(3):
            store.append(LOG, seq, b"r%d" % seq, fence=None)
        store.append(LOG, 2, b"r2", fence=None)
        store.append(LOG, 0, b"r0", fence=None)
        assert store.read(LOG, 0, 10) == [(0, b"r0"), (1, b"r1"), (2, b"r2")]

    @pytest.mark.parametrize("seq", [0, 1, 3, 100])
    def test_another_content_or_a_gap_is_a_conflict_and_writes_nothing(self, store: Store, seq: int) -> None:
        store.append(LOG, 0, b"r0", fence=None)
        store.append(LOG, 1, b"r1", fence=None)
        with pytest.raises(StoreConflict, match=rf"{LOG}.*{seq}"):
            store.append(LOG, seq, b"other", fence=None)
        assert store.read(LOG, 0, 10) == [(0, b"r0"), (1, b"r1")]

    def test_a_record_before_the_first_is_a_conflict(self, store: Store) -> None:
        store.append(LOG, 5, b"r5", fence=None)
        with pytest.raises(StoreConflict, match="4"):
            store.append(LOG, 4, b"r4", fence=None)

    def test_a_large_record(self, store: Store) -> None:
        record = bytes(range(256)) * 8192
        store.append(LOG, 0, record, fence=None)
        assert store.last(LOG) == (0, record)

    def test_truncating_removes_what_lies_before_and_nothing_else(self, store: Store) -> None:
        records = [(seq, b"r%d" % seq) for seq in range(5, 15)]
        for log in (LOG, "plan/1"):
            for seq, record in records:
                store.append(log, seq, record, fence=None)
        store.truncate(LOG, 9, fence=None)
        store.truncate(LOG, 9, fence=None)
        store.truncate(LOG, 3, fence=None)
        assert store.read(LOG, 0, 20) == records[4:]
        assert store.read(LOG, 11, 2) == records[6:8]
        assert store.last(LOG) == records[-1]
        assert store.read("plan/1", 0, 20) == records
        store.append(LOG, 12, b"r12", fence=None)  # a retry
        store.append(LOG, 15, b"r15", fence=None)
        with pytest.raises(StoreConflict):
            store.append(LOG, 8, b"r8", fence=None)
        assert store.read(LOG, 0, 20) == [*records[4:], (15, b"r15")]

    def test_the_last_record_is_never_removed(self, store: Store) -> None:
        store.truncate(LOG, 100, fence=None)
        assert store.last(LOG) is None
        for seq in range(4):
            store.append(LOG, seq, b"r%d" % seq, fence=None)
        store.truncate(LOG, 100, fence=None)
        assert store.read(LOG, 0, 20) == [(3, b"r3")]
        with pytest.raises(StoreConflict, match="5"):
            store.append(LOG, 5, b"r5", fence=None)
        store.append(LOG, 4, b"r4", fence=None)
        assert [seq for seq, _ in store.read(LOG, 0, 20)] == [3, 4]

    def test_a_log_that_is_removed_begins_anew(self, store: Store) -> None:
        store.remove(LOG, fence=None)
        for log in (LOG, f"{LOG}0"):
            for seq in range(4, 7):
                store.append(log, seq, b"r%d" % seq, fence=None)
        for _ in range(2):
            store.remove(LOG, fence=None)
        assert (store.read(LOG, 0, 20), store.last(LOG)) == ([], None)
        assert len(store.read(f"{LOG}0", 0, 20)) == 3
        store.append(LOG, 2, b"other", fence=None)
        assert store.read(LOG, 0, 20) == [(2, b"other")]

    def test_a_stale_token_removes_nothing(self, store: Store, clock: FakeClock) -> None:
        old = store.acquire("leader", "a", 10)
        assert old is not None
        for seq in range(4):
            store.append(LOG, seq, b"r", fence=old.token)
        clock.advance(11)
        new = store.acquire("leader", "b", 10)
        assert new is not None
        with pytest.raises(NotLeader):
            store.truncate(LOG, 3, fence=old.token)
        with pytest.raises(NotLeader):
            store.remove(LOG, fence=old.token)
        assert len(store.read(LOG, 0, 20)) == 4
        store.truncate(LOG, 3, fence=new.token)
        assert store.read(LOG, 0, 20) == [(3, b"r")]
        store.remove(LOG, fence=new.token)
        assert store.read(LOG, 0, 20) == []

    # --- entries

    def test_put_get_replace_delete(self, store: Store) -> None:
        assert store.get("a") is None
        store.put("a", b"1")
        store.put("a", b"\x002")
        assert store.get("a") == b"\x002"
        store.delete("a")
        store.delete("a")
        assert store.get("a") is None

    def test_an_empty_value_is_a_value(self, store: Store) -> None:
        store.put("a", b"")
        assert store.get("a") == b""
        assert store.items("") == {"a": b""}

    def test_items_are_those_under_the_prefix_by_key(self, store: Store) -> None:
        store.put_many({key: key.encode() for key in ["b/2", "b/1", "b", "b0", "a/1", "b/~", "b/%_*?[x]"]})
        assert list(store.items("b/")) == sorted(["b/%_*?[x]", "b/1", "b/2", "b/~"])
        assert len(store.items("")) == 7
        assert store.items("b/%") == {"b/%_*?[x]": b"b/%_*?[x]"}
        assert store.items("c") == {}

    def test_a_value_vanishes_after_its_time_to_live(self, store: Store, clock: FakeClock) -> None:
        store.put("endpoint/a", b"1", ttl_s=10)
        store.put("endpoint/b", b"2", ttl_s=20)
        store.put("endpoint/c", b"3")
        clock.advance(9.5)
        assert list(store.items("endpoint/")) == ["endpoint/a", "endpoint/b", "endpoint/c"]
        clock.advance(1)
        assert store.get("endpoint/a") is None
        assert list(store.items("endpoint/")) == ["endpoint/b", "endpoint/c"]
        clock.advance(1e6)
        assert list(store.items("endpoint/")) == ["endpoint/c"]

    def test_writing_again_starts_the_time_to_live_again_or_ends_it(
        self, store: Store, clock: FakeClock
    ) -> None:
        store.put("a", b"1", ttl_s=10)
        store.put("b", b"1", ttl_s=10)
        clock.advance(8)
        store.put("a", b"2", ttl_s=10)
        store.put("b", b"2")
        clock.advance(8)
        assert store.items("") == {"a": b"2", "b": b"2"}
        clock.advance(8)
        assert store.items("") == {"b": b"2"}

    def test_compare_and_set_writes_only_over_what_was_expected(self, store: Store) -> None:
        assert not store.compare_and_set("a", b"0", b"1")
        assert store.compare_and_set("a", None, b"1")
        assert not store.compare_and_set("a", None, b"2")
        assert not store.compare_and_set("a", b"2", b"3")
        assert store.get("a") == b"1"
        assert store.compare_and_set("a", b"1", b"2")
        assert store.get("a") == b"2"

    def test_compare_and_set_takes_an_expired_value_as_absent(self, store: Store, clock: FakeClock) -> None:
        store.put("a", b"1", ttl_s=5)
        clock.advance(6)
        assert not store.compare_and_set("a", b"1", b"2")
        assert store.compare_and_set("a", None, b"2")
        clock.advance(1e6)
        assert store.get("a") == b"2"

    @pytest.mark.parametrize("key", ["", "é", "a\n", "x" * 513])
    def test_keys_are_short_printable_ascii(self, store: Store, key: str) -> None:
        with pytest.raises(ValueError, match="key"):
            store.put(key, b"")
        with pytest.raises(ValueError, match="key"):
            store.append(key, 0, b"", fence=None)
        with pytest.raises(ValueError, match="key"):
            store.put_many({"good": b"", key: b""})
        with pytest.raises(ValueError, match="seq"):
            store.append(LOG, -1, b"", fence=None)
        assert store.items("") == {}

    # --- leases

    def test_one_owner_at_a_time(self, store: Store, clock: FakeClock) -> None:
        lease = store.acquire("leader", "a", 10)
        assert lease is not None
        assert (lease.name, lease.owner, lease.expires_at) == ("leader", "a", clock.wall() + 10)
        assert store.acquire("leader", "b", 10) is None
        assert store.acquire("another", "b", 10) is not None

    def test_an_expired_lease_can_be_taken(self, store: Store, clock: FakeClock) -> None:
        first = store.acquire("leader", "a", 10)
        clock.advance(9)
        assert store.acquire("leader", "b", 10) is None
        clock.advance(1.5)
        second = store.acquire("leader", "b", 10)
        assert first is not None
        assert second is not None
        assert second.token > first.token
        with pytest.raises(NotLeader):
            store.renew(first)

    def test_renewing_keeps_token_and_lease(self, store: Store, clock: FakeClock) -> None:
        lease = store.acquire("leader", "a", 10)
        assert lease is not None
        for _ in range(5):
            clock.advance(8)
            lease = store.renew(lease)
            assert lease.expires_at == clock.wall() + 10
            assert store.acquire("leader", "b", 10) is None

    def test_an_expired_lease_that_nobody_took_can_be_renewed(self, store: Store, clock: FakeClock) -> None:
        lease = store.acquire("leader", "a", 10)
        assert lease is not None
        clock.advance(60)
        store.append(LOG, 0, b"late", fence=lease.token)
        store.renew(lease)
        assert store.acquire("leader", "b", 10) is None

    def test_the_same_owner_gets_it_at_once_and_fences_off_its_former_life(self, store: Store) -> None:
        old = store.acquire("leader", "a", 10)
        new = store.acquire("leader", "a", 10)
        assert old is not None
        assert new is not None
        assert new.token > old.token
        with pytest.raises(NotLeader):
            store.append(LOG, 0, b"old", fence=old.token)
        store.append(LOG, 0, b"new", fence=new.token)

    def test_release_lets_another_in_and_may_be_repeated(self, store: Store) -> None:
        lease = store.acquire("leader", "a", 10)
        assert lease is not None
        store.release(lease)
        store.release(lease)
        other = store.acquire("leader", "b", 10)
        assert other is not None
        assert other.token > lease.token
        store.release(lease)  # late, and not theirs any more
        assert store.acquire("leader", "c", 10) is None

    def test_tokens_grow_over_all_names_and_releases(self, store: Store) -> None:
        tokens = []
        for name in ["x", "y", "x", "y", "z"]:
            lease = store.acquire(name, "a", 10)
            assert lease is not None
            tokens.append(lease.token)
            store.release(lease)
        assert tokens == sorted(set(tokens))

    # --- fencing

    def test_a_stale_token_writes_nothing(self, store: Store, clock: FakeClock) -> None:
        old = store.acquire("leader", "a", 10)
        assert old is not None
        store.append(LOG, 0, b"r0", fence=old.token)
        assert store.compare_and_set("head", None, b"0", fence=old.token)
        clock.advance(11)
        new = store.acquire("leader", "b", 10)
        assert new is not None
        with pytest.raises(NotLeader):
            store.append(LOG, 1, b"r1", fence=old.token)
        with pytest.raises(NotLeader):
            store.append(LOG, 0, b"r0", fence=old.token)  # not even a retry: it must learn that it is stale
        with pytest.raises(NotLeader):
            store.compare_and_set("head", b"0", b"1", fence=old.token)
        assert store.last(LOG) == (0, b"r0")
        assert store.get("head") == b"0"
        store.append(LOG, 1, b"new", fence=new.token)

    def test_a_released_or_invented_token_is_stale(self, store: Store) -> None:
        lease = store.acquire("leader", "a", 10)
        assert lease is not None
        with pytest.raises(NotLeader):
            store.append(LOG, 0, b"", fence=lease.token + 1)
        store.release(lease)
        with pytest.raises(NotLeader):
            store.append(LOG, 0, b"", fence=lease.token)
        assert store.last(LOG) is None

    def test_a_wall_clock_that_jumps_never_lets_two_write(self, store: Store, clock: FakeClock) -> None:
        first = store.acquire("leader", "a", 10)
        clock.jump(3600)
        second = store.acquire("leader", "b", 10)
        clock.jump(-3600)
        assert first is not None
        assert second is not None
        with pytest.raises(NotLeader):
            store.append(LOG, 0, b"first", fence=first.token)
        store.append(LOG, 0, b"second", fence=second.token)

    def test_a_wall_clock_that_is_set_back_lets_nobody_wait_for_longer(
        self, store: Store, clock: FakeClock
    ) -> None:
        first = store.acquire("leader", "a", 10)
        clock.jump(-3600)
        assert store.acquire("leader", "b", 10) is None
        clock.advance(9)
        assert store.acquire("leader", "b", 10) is None
        clock.advance(2)
        second = store.acquire("leader", "b", 10)
        assert first is not None
        assert second is not None
        assert second.token > first.token

    # --- quarantine (entries under a prefix)

    def test_quarantine_is_kept_once_a_sample_and_listed_in_order(self, store: Store) -> None:
        rows = [
            Quarantined(SampleId(source, epoch, position), RowRef("a b/é.tar", 7), "truncated", 'x "y"\n')
            for source in ["web", "web/2", "web é"]
            for epoch in [0, 1]
            for position in [9, 10, 123_456_789_012]
        ]
        add_quarantine(store, reversed(rows))
        add_quarantine(store, rows[:3])
        add_quarantine(store, [])
        assert quarantine(store, "web") == rows[:6]
        assert quarantine(store, "web/2") == rows[6:12]
        assert sorted(quarantine(store), key=lambda row: row.sample) == sorted(
            rows, key=lambda row: row.sample
        )
        assert quarantine(store, "none") == []

    # --- threads, end

    def test_threads_that_append_at_once_never_lose_or_overwrite_a_record(self, store: Store) -> None:
        barrier = threading.Barrier(4)

        def work(who: int) -> list[bytes]:
            barrier.wait()
            return _append_many(store, who, 20)

        with ThreadPoolExecutor(4) as pool:
            written = [record for part in pool.map(work, range(4)) for record in part]
        _assert_holds_exactly(store, written)

    def test_only_one_of_many_threads_gets_a_lease(self, store: Store) -> None:
        barrier = threading.Barrier(8)

        def work(who: int) -> bool:
            barrier.wait()
            return store.acquire("leader", f"owner-{who}", 10) is not None

        with ThreadPoolExecutor(8) as pool:
            assert sum(pool.map(work, range(8))) == 1

    def test_a_closed_store_says_so(self, store: Store) -> None:
        store.close()
        store.close()
        with pytest.raises(StoreError, match="closed"):
            store.get("a")
        with pytest.raises(StoreError, match="closed"):
            store.append(LOG, 0, b"", fence=None)


class SharedStoreContract(StoreContract):
    """What every store does that several processes can open, and that outlives them."""

    @pytest.fixture
    def twin(self, tmp_path: Path, clock: FakeClock, store: Store) -> Iterator[Store]:
        """A second connection to the same store."""
        assert store is not None
        with closing(open_store(self.url(tmp_path), tmp_path, clock=clock)) as twin:
            yield twin

    def test_everything_is_there_after_closing_and_opening(self, tmp_path: Path, clock: FakeClock) -> None:
        with closing(open_store(self.url(tmp_path), tmp_path, clock=clock)) as store:
            lease = store.acquire("leader", "a", 100)
            assert lease is not None
            store.append(LOG, 3, b"r3", fence=lease.token)
            store.put("stays", b"1")
            store.put("goes", b"2", ttl_s=5)
        clock.advance(6)
        with closing(open_store(self.url(tmp_path), tmp_path, clock=clock)) as store:
            assert store.last(LOG) == (3, b"r3")
            assert store.items("") == {"stays": b"1"}
            assert store.acquire("leader", "b", 100) is None
            again = store.acquire("leader", "a", 100)
            assert again is not None
            assert again.token > lease.token

    def test_two_connections_see_and_fence_each_other(
        self, store: Store, twin: Store, clock: FakeClock
    ) -> None:
        old = store.acquire("leader", "a", 10)
        assert old is not None
        store.append(LOG, 0, b"r0", fence=old.token)
        assert twin.last(LOG) == (0, b"r0")
        clock.advance(11)
        new = twin.acquire("leader", "b", 10)
        assert new is not None
        with pytest.raises(NotLeader):
            store.append(LOG, 1, b"old", fence=old.token)
        twin.append(LOG, 1, b"new", fence=new.token)
        assert store.last(LOG) == (1, b"new")
        with pytest.raises(StoreConflict):
            store.append(LOG, 1, b"old", fence=None)

    def test_processes_that_open_and_append_at_once_never_lose_a_record(self, tmp_path: Path) -> None:
        context = multiprocessing.get_context("spawn")
        barrier = context.Barrier(3)
        workers = [
            context.Process(target=_append_process, args=(self.url(tmp_path), tmp_path, who, barrier))
            for who in range(3)
        ]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        assert [worker.exitcode for worker in workers] == [0, 0, 0]
        with closing(open_store(self.url(tmp_path), tmp_path)) as store:
            _assert_holds_exactly(store, [b"%d/%d" % (who, n) for who in range(3) for n in range(20)])


def _append_process(url: str, place: Path, who: int, barrier: threading.Barrier) -> None:
    barrier.wait()  # so that all of them create the store at once
    with closing(open_store(url, place)) as store:
        _append_many(store, who, 20)


def _append_many(store: Store, who: int, count: int) -> list[bytes]:
    """Append `count` records of one's own to a log that others append to as well."""
    records = [b"%d/%d" % (who, n) for n in range(count)]
    for record in records:
        while True:
            last = store.last(LOG)
            try:
                store.append(LOG, 0 if last is None else last[0] + 1, record, fence=None)
                break
            except StoreConflict:
                continue  # another was first: look again
    return records


def _assert_holds_exactly(store: Store, written: list[bytes]) -> None:
    found = store.read(LOG, 0, len(written) + 1)
    assert [seq for seq, _ in found] == list(range(len(written)))
    assert sorted(record for _, record in found) == sorted(written)
