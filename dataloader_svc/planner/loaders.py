"""The loaders as the planner reaches them: found in the store, shared out, replaced when they go.

A loader's address stands in the store under `endpoint/loader/<i>`. A block goes to the loader with the fewest
leases and, when that one fails, to another: all of them can serve every block. Calls are made again until one
succeeds, or says that the data is at fault, or all have failed by mistakes of their own, time and again.
Decides nothing about data.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from dataloader_client import methods
from dataloader_client._pb import common_pb2, loader_service_pb2
from dataloader_svc.clock import Clock
from dataloader_svc.errors import NotLeader, PeerError, RoleFailed
from dataloader_svc.planner import shadows
from dataloader_svc.planner.shadows import Shadows
from dataloader_svc.rpc.convert import listing_message, probe_from_frame
from dataloader_svc.rpc.stubs import Connect, Peer
from dataloader_svc.sample import BlockId, Listing, ProbeColumns
from dataloader_svc.store.base import Store

log = logging.getLogger(__name__)

PREFIX = "endpoint/loader/"

_DESCRIBE_TIMEOUT_S = 3600.0  # a first index of a large source reads all of it; a dead peer is noticed sooner
_PROBE_TIMEOUT_S = 600.0
_RELEASE_TIMEOUT_S = 10.0
_FIRST_DELAY_S, _LAST_DELAY_S = 0.05, 1.0
_MISTAKES = 3
_CALLS_A_LOADER = 4
_SAY_AGAIN_S = 10.0

Result = TypeVar("Result")


class LoaderPool:
    """Belongs to one event loop. `close` ends all channels."""

    def __init__(self, store: Store, clock: Clock, count: int, connect: Connect = Peer) -> None:
        self._store = store
        self._clock = clock
        self._connect = connect
        self._peers: dict[str, Peer] = {}
        self._names: Mapping[str, str] = {}
        self._addresses: list[str] = []
        self._holder: dict[BlockId, str] = {}
        self._drained: set[str] = set()
        self._flying: dict[str, set[asyncio.Task[Any]]] = {}  # calls by address
        self._calls = asyncio.Semaphore(_CALLS_A_LOADER * count)
        self._said = -_SAY_AGAIN_S
        self._shadows = Shadows(store, clock, connect)

    async def describe(
        self, source: str, epoch: int, listing: Listing, *, grown: bool
    ) -> tuple[NDArray[np.int64], Listing, int]:
        """int64 (num_blocks + 1,) positions where the blocks begin, the shards that the epoch is made of, and
        how many there are. StateError: `listing` is not what the files begin with.
        """
        request = loader_service_pb2.DescribeRequest(source=source, epoch=epoch, grown=grown)
        request.listing.CopyFrom(listing_message(listing))

        async def call(peer: Peer) -> loader_service_pb2.DescribeResponse:
            return await peer.call(methods.DESCRIBE, request, timeout_s=_DESCRIBE_TIMEOUT_S)

        response = await self._until_it_works(f"describe {source}", lambda: self._home(source), call)
        made_of = Listing(response.num_shards, response.digest)
        return np.array(response.block_starts, np.int64), made_of, response.listed_shards

    async def probe(self, block: BlockId, listing: Listing) -> ProbeColumns:
        """Lease the block, of an epoch made of `listing`, to a loader: its columns."""
        request = _request(block)
        request.listing.CopyFrom(listing_message(listing))

        async def call(peer: Peer) -> ProbeColumns:
            self._holder[block] = peer.address
            frame = await peer.fetch(methods.PROBE, request, timeout_s=_PROBE_TIMEOUT_S)
            return probe_from_frame(frame)

        def choose() -> str:
            # Leased from now on: of many probes at once, each must see those that wait for their turn.
            self._holder[block] = self._least_loaded()
            return self._holder[block]

        columns = await self._until_it_works(f"read block {block}", choose, call)
        self._shadows.read_ahead(block, request)
        return columns

    async def release(self, block: BlockId) -> None:
        """Tell the holder that the block is used up, and a shadow that has read it.

        Only a hint: a loader that does not hear it drops the block when it needs the room.
        """
        holder = self._holder.pop(block, None)
        holders = self._addresses if holder is None else [holder]
        for address in {*holders, *self._shadows.released(block)}:
            try:
                await self._peer(address).call(methods.RELEASE, _request(block), timeout_s=_RELEASE_TIMEOUT_S)
            except PeerError as error:
                log.debug("release of %s: %s", block, error)

    async def reopen(self, block: BlockId) -> None:
        """Files were repaired: all loaders and shadows forget the block, and its source's index."""
        request = _request(block)
        request.reopen = True
        self._holder.pop(block, None)

        async def call(peer: Peer) -> None:
            await peer.call(methods.RELEASE, request, timeout_s=_RELEASE_TIMEOUT_S)

        told: set[str] = set()
        while left := [address for address in await self._everybody() if address not in told]:
            # Another can't answer for one that is up; one that goes comes back with nothing in its memory.
            done = await asyncio.gather(*(self._told(address, call) for address in left))
            told.update(address for address, heard in zip(left, done, strict=True) if heard)
            if not all(done):
                await asyncio.sleep(_LAST_DELAY_S)

    async def _everybody(self) -> list[str]:
        """Loaders, and shadows that may take their places."""
        values = {**await self._items(PREFIX), **await self._items(shadows.PREFIX)}
        return [str(json.loads(value)["address"]) for value in values.values()]

    async def _items(self, prefix: str) -> Mapping[str, bytes]:
        return await asyncio.to_thread(self._store.items, prefix)

    async def _told(self, address: str, call: Callable[[Peer], Coroutine[Any, Any, None]]) -> bool:
        try:
            await call(self._peer(address))
        except (PeerError, RoleFailed) as error:
            self._say("can't have %s forget a block yet: %s", address, error)
            return False
        return True

    async def status(self, address: str, *, timeout_s: float) -> loader_service_pb2.LoaderStatus:
        """Of the loader at `address`. PeerError: it does not answer."""
        empty = common_pb2.Empty()
        return await self._peer(address).call(methods.LOADER_STATUS, empty, timeout_s=timeout_s)

    async def refresh(self) -> dict[str, str]:
        """Look who is up: address -> name of each loader, drained ones too. StoreError."""
        await self._refresh()
        return dict(self._names)

    def drain(self, address: str) -> None:
        """Give a loader nothing more while there are others; what it has, or is asked for, goes to them."""
        self._drained.add(address)
        self._take_up(self._names)
        for call in self._flying.get(address, ()):
            call.cancel()

    async def addresses(self) -> list[str]:
        """Of the loaders that are up; waits for the first."""
        if not self._addresses:
            await self._until_known("send plans")
        return list(self._addresses)

    def holders(self, blocks: Sequence[BlockId], addresses: Sequence[str]) -> list[int]:
        """For each block, which of `addresses` to ask for it first: its holder, else always the same one."""
        number = {address: index for index, address in enumerate(addresses)}
        return [number.get(self._holder.get(block, ""), block.block % len(addresses)) for block in blocks]

    async def close(self) -> None:
        """End all channels."""
        await self._shadows.close()
        peers, self._peers = list(self._peers.values()), {}
        await asyncio.gather(*(peer.close() for peer in peers))

    # ---- choosing

    def _home(self, source: str) -> str:
        """Spread over the loaders, the same for a source: one of them reads its index."""
        return self._addresses[sum(source.encode()) % len(self._addresses)]

    def _least_loaded(self) -> str:
        held = Counter(self._holder.values())
        return min(self._addresses, key=lambda address: (held[address], self._addresses.index(address)))

    def _peer(self, address: str) -> Peer:
        if address not in self._peers:
            self._peers[address] = self._connect(address, "loader")
        return self._peers[address]

    # ---- calling

    async def _until_it_works(
        self, what: str, choose: Callable[[], str], call: Callable[[Peer], Coroutine[Any, Any, Result]]
    ) -> Result:
        """Call the chosen loader, then others, then all of them again after a pause."""
        delay, mistakes = _FIRST_DELAY_S, 0
        while True:
            if not self._addresses:
                await self._until_known(what)
            first = choose()
            problem: PeerError | NotLeader | RoleFailed | None = None
            for address in [first, *(other for other in self._addresses if other != first)]:
                try:
                    async with self._calls:
                        return await self._unless_drained(address, call(self._peer(address)))
                except (PeerError, NotLeader, RoleFailed) as error:
                    problem = error
            if isinstance(problem, RoleFailed):
                mistakes += 1
                if mistakes == _MISTAKES:
                    raise problem
            self._say("can't %s yet: %s", what, problem)
            await asyncio.sleep(delay)
            delay = min(2 * delay, _LAST_DELAY_S)
            await self._refresh()

    async def _unless_drained(self, address: str, call: Coroutine[Any, Any, Result]) -> Result:
        """What the call gives; PeerError where its loader is drained meanwhile."""
        task = asyncio.ensure_future(call)
        flying = self._flying.setdefault(address, set())
        flying.add(task)
        try:
            await asyncio.wait([task])
            if task.cancelled():
                raise PeerError(f"loader at {address}: it is being replaced")
            return task.result()
        finally:
            flying.discard(task)
            task.cancel()

    async def _refresh(self) -> None:
        values = await self._items(PREFIX)
        self._take_up(
            {
                str(json.loads(value)["address"]): f"loader-{key.removeprefix(PREFIX)}"
                for key, value in values.items()
            }
        )

    def _take_up(self, names: Mapping[str, str]) -> None:
        """Go by these loaders: address -> name."""
        self._names = names
        self._drained &= names.keys()
        # Where all are drained, the last of them is better than none.
        found = [address for address in names if address not in self._drained] or list(names)
        # What a lost loader held, its shadow may have read; any other reads it again when it is asked.
        held = self._holder.items()
        self._holder = {block: holder for block, holder in held if holder in found}
        promoted = self._shadows.promoted(found)
        self._holder |= {
            block: promoted[block] for block, holder in held if holder not in found and block in promoted
        }
        self._addresses = found

    async def _until_known(self, what: str) -> None:
        delay = _FIRST_DELAY_S
        await self._refresh()
        while not self._addresses:
            self._say("waiting for a loader to come up, to %s", what)
            await asyncio.sleep(delay)
            delay = min(2 * delay, _LAST_DELAY_S)
            await self._refresh()

    def _say(self, message: str, *values: object) -> None:
        """Not once a block and retry: what is wrong is wrong for all of them."""
        now = self._clock.monotonic()
        if now - self._said >= _SAY_AGAIN_S:
            self._said = now
            log.warning(message, *values)


def _request(block: BlockId) -> loader_service_pb2.BlockRequest:
    return loader_service_pb2.BlockRequest(source=block.source, epoch=block.epoch, block=block.block)
