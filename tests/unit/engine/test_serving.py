"""Who serves a job: told to others, refused to a second, passed on from the dead."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from dataclasses import asdict, replace
from json import dumps, loads

import psutil
import pytest

from dataloader_svc.engine import serving
from dataloader_svc.engine.serving import HOLDER_KEY, LEASE, TTL_S, Holder, Serving
from dataloader_svc.errors import StoreError
from dataloader_svc.store.memory import MemoryStore


def begin(store, address="127.0.0.1:1"):
    return asyncio.run(Serving.begin(store, "j", address))


def held_by(store, holder):
    """Let `holder` serve, as another process would."""
    lease = store.acquire(LEASE, holder.owner, TTL_S)
    store.put(HOLDER_KEY, dumps({**asdict(holder), "token": lease.token}).encode())
    return lease


@pytest.fixture
def other():
    """A live process that is not this one."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        started = psutil.Process(process.pid).create_time()
        yield replace(Holder.this_process("127.0.0.1:7077"), pid=process.pid, started=started), process


def test_it_is_written_down_and_given_back():
    store = MemoryStore()
    mine = begin(store)
    assert loads(store.get(HOLDER_KEY))["pid"] == os.getpid()
    asyncio.run(mine.renew())
    asyncio.run(mine.end())
    assert store.acquire(LEASE, "somebody", 1.0) is not None


def test_one_that_lives_is_named(other):
    holder, _ = other
    store = MemoryStore()
    held_by(store, holder)
    with pytest.raises(StoreError, match=rf"'j' is being served already by process {holder.pid} on "):
        begin(store)


def test_one_that_is_dead_is_followed_at_once(other):
    holder, process = other
    store = MemoryStore()
    lease = held_by(store, holder)
    process.kill()
    process.wait()
    begin(store)
    assert loads(store.get(HOLDER_KEY))["token"] > lease.token


def test_a_number_that_was_given_out_again_is_another_process(other):
    holder, _ = other
    store = MemoryStore()
    held_by(store, replace(holder, started=holder.started - 60))
    begin(store)


def test_an_old_entry_beside_a_new_lease_releases_nothing(other):
    """The process of the entry is dead, but the lease is somebody else's who has not written yet."""
    holder, _ = other
    store = MemoryStore()
    held_by(store, replace(holder, started=0.0))
    store.release(store.acquire(LEASE, replace(holder, started=0.0).owner, TTL_S))
    assert store.acquire(LEASE, "new", TTL_S) is not None
    with pytest.raises(StoreError, match="a service that is just starting"):
        begin(store)


def test_one_on_another_machine_has_its_time(other, monkeypatch):
    holder, process = other
    process.kill()
    process.wait()
    store = MemoryStore()
    held_by(store, replace(holder, machine="elsewhere/1"))
    waited = []

    async def pause(seconds):
        waited.append(seconds)

    monkeypatch.setattr(serving.asyncio, "sleep", pause)
    with pytest.raises(StoreError, match="on elsewhere at"):
        begin(store)
    assert waited == [TTL_S]


def test_who_was_overtaken_is_told_by_whom(other):
    holder, _ = other
    store = MemoryStore()
    mine = begin(store)
    asyncio.run(mine.end())
    held_by(store, holder)
    with pytest.raises(StoreError, match=f"taken over by process {holder.pid}"):
        asyncio.run(mine.renew())


def test_an_entry_of_another_version_is_no_holder():
    assert Holder.from_json(b"{}") is None
    assert Holder.from_json(b"\xff") is None
    assert Holder.from_json(None) is None
