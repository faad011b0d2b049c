"""One service a job: the right to serve it, who has it, and its passing on from one that is dead.

A lease in the job's store says that somebody serves it, and an entry beside it who. A service that was
killed can't give its lease back; where the process table shows that it is gone, the successor does so in its
name and does not wait. Plans are safe without this (the planner's own lease fences them): it keeps two
services from fighting over trainers, and tells a person what runs where.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
from dataclasses import asdict, dataclass
from typing import Self

import psutil

from dataloader_svc import faultpoint
from dataloader_svc.errors import NotLeader, StoreError
from dataloader_svc.store.base import Lease, Store

LEASE = "serving"
HOLDER_KEY = "serving/holder"
TTL_S = 10.0
RENEW_S = 3.0


@dataclass(frozen=True, slots=True)
class Holder:
    """A process that serves, or did. `machine`: where `pid` means it; `started`: its start, seconds of wall
    clock, by which a number that was given out again is told.
    """

    machine: str
    pid: int
    started: float
    address: str
    token: int = -1

    @classmethod
    def this_process(cls, address: str) -> Self:
        """Of us, serving at `address`."""
        return cls(_machine(), os.getpid(), psutil.Process().create_time(), address)

    @classmethod
    def from_json(cls, text: bytes | None) -> Self | None:
        """None for what is no holder of this version."""
        try:
            return None if text is None else cls(**json.loads(text))
        except (ValueError, TypeError):
            return None

    @property
    def owner(self) -> str:
        """For the lease."""
        return f"{self.machine}:{self.pid}:{self.started}"

    def is_gone(self) -> bool:
        """Whether it surely has ended. Of another machine nothing is known."""
        if self.machine != _machine():
            return False
        try:
            process = psutil.Process(self.pid)
            return process.create_time() != self.started or process.status() == psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return True

    def __str__(self) -> str:
        return f"process {self.pid} on {self.machine.partition('/')[0]} at {self.address}"


class Serving:
    """The right to serve a job, as long as it is renewed. Made by `begin`."""

    def __init__(self, store: Store, lease: Lease) -> None:
        self._store = store
        self._lease = lease

    @classmethod
    async def begin(cls, store: Store, job: str, address: str) -> Self:
        """Take the right, from a service that is gone too. StoreError: another one serves; says who.

        Waits TTL_S where a service on another machine may have been killed.
        """
        us = Holder.this_process(address)
        serving = await cls.take(store, us)
        if serving is None:
            holder = await current_holder(store)
            if holder is None or holder.machine != us.machine:
                await asyncio.sleep(TTL_S)
                serving = await cls.take(store, us)
        if serving is None:
            raise StoreError(
                f"job {job!r} is being served already by {await _who(store)}; use that service, stop it, or "
                "give this one another job name or --store"
            )
        return serving

    @classmethod
    async def take(cls, store: Store, us: Holder) -> Self | None:
        """The right, where it is free or its holder is surely gone; None where another serves."""
        lease = await asyncio.to_thread(_take, store, us)
        if lease is None:
            holder = await current_holder(store)
            if holder is None or not holder.is_gone():
                return None
            former = Lease(LEASE, holder.owner, holder.token, TTL_S, 0.0)
            await asyncio.to_thread(store.release, former)
            lease = await asyncio.to_thread(_take, store, us)
        return None if lease is None else cls(store, lease)

    async def renew(self) -> None:
        """To be called every RENEW_S. NotLeader: another service has taken over."""
        try:
            self._lease = await asyncio.to_thread(self._store.renew, self._lease)
        except NotLeader:
            raise NotLeader(f"the job was taken over by {await _who(self._store)}") from None

    async def end(self) -> None:
        """Give it back, so that a successor need not wait."""
        await asyncio.to_thread(self._store.release, self._lease)


def _take(store: Store, us: Holder) -> Lease | None:
    """In one go, so that whoever is interrupted here leaves word of who it was."""
    lease = store.acquire(LEASE, us.owner, TTL_S)
    if lease is not None:
        faultpoint.point("serving.taken")
        store.put(HOLDER_KEY, json.dumps({**asdict(us), "token": lease.token}).encode())
    return lease


async def current_holder(store: Store) -> Holder | None:
    """Who wrote last that it serves; it may have ended since."""
    return Holder.from_json(await asyncio.to_thread(store.get, HOLDER_KEY))


async def _who(store: Store) -> str:
    """The lease's holder in words; its entry follows the lease a moment later."""
    holder = await current_holder(store)
    return "a service that is just starting" if holder is None or holder.is_gone() else str(holder)


def _machine() -> str:
    """This host and, since containers share a host's name at times, its process number space."""
    return f"{socket.gethostname()}/{os.stat('/proc/self/ns/pid').st_ino}"  # noqa: PTH116 - a link to no file
