"""The loader role: serves Describe, Probe, Fetch, Release and Status, and keeps blocks within its memory.

asyncio on one thread holds all state; reading and decoding run in threads. A block is read once at a time
however many ask for it. Any loader serves any block: one that isn't held (never was, dropped, or lost with
another loader) is read again by name. `core.py` decides what is dropped; `read.py` and `decode.py` do the
work.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from dataloader_client._pb import common_pb2, loader_service_pb2, plan_pb2
from dataloader_client.wire import Frame
from dataloader_svc import allocator, faultpoint
from dataloader_svc.clock import Clock, SystemClock
from dataloader_svc.config.schema import Config
from dataloader_svc.errors import ConfigError, DataloaderError, SourceError, StateError
from dataloader_svc.loader import core
from dataloader_svc.loader.decode import PieceRange, TakenPiece, check_size, decode, take, take_silent
from dataloader_svc.loader.meter import Meter
from dataloader_svc.loader.once import shared
from dataloader_svc.loader.read import HeldBlock, probe_columns, read_block
from dataloader_svc.loader.requests import block_id, listings_of, pieces_asked
from dataloader_svc.loader.rules import SampleRule, decode_workers, sample_rule
from dataloader_svc.registry import nearest
from dataloader_svc.rpc.convert import listing_of, probe_to_frame
from dataloader_svc.sample import BlockId, SampleId
from dataloader_svc.sources.reader import SourceReader
from dataloader_svc.storage import Storage
from dataloader_svc.transforms.tokenizers import Tokenizer

log = logging.getLogger(__name__)

Result = TypeVar("Result")

READ_THREADS = 2  # one reads while the other tokenizes; a block's rows stand in memory twice meanwhile

_HELD_PER_SOURCE_BYTE = 1.5
"""Estimate of a held block's bytes from the index's. Text: 4 + 1 bytes a token of about 4 bytes."""

_SAY_AGAIN_S = 60.0
"""Between two warnings that memory is short."""

_GIVE_BACK = 2**25
"""Bytes of dropped blocks after which free memory goes back to the system: reading them freed as much."""

_ALL_SHARDS = plan_pb2.Listing()


class LoaderService:
    """Handler of LoaderService. `start` first; `stop` last. All methods belong to one event loop.

    base_dir   the folder of the YAML, which its relative paths start from
    index      number of this loader among `loader.count`; only for words
    """

    def __init__(self, config: Config, base_dir: Path, *, index: int = 0, clock: Clock | None = None) -> None:
        self.name = f"loader-{index}"
        self._config = config
        self._base_dir = base_dir
        self._clock = clock or SystemClock()
        self._table = core.BlockTable(config.loader.memory)
        self._blocks: dict[BlockId, HeldBlock] = {}
        self._reading: dict[BlockId, asyncio.Task[HeldBlock]] = {}
        self._storage = Storage.of(config, base_dir)
        self._sources: dict[str, SourceReader] = {}
        self._opening: dict[str, asyncio.Task[SourceReader]] = {}
        self._rules: dict[str, SampleRule] = {}
        self._backend = ""  # the library that encodes
        self._compared = 0  # documents encoded a second time
        self._differing: set[SampleId] = set()
        self._meter = Meter(self._clock)
        self._said_short = -math.inf
        self._freed = 0  # bytes of blocks dropped since memory was given back
        self._room = asyncio.Condition()
        self._readers = ThreadPoolExecutor(READ_THREADS, f"{self.name}-read")
        self._builders = ThreadPoolExecutor(READ_THREADS, f"{self.name}-fetch")
        # Apart: a block with a thousand headers must not stand in front of pixels that a step waits for.
        self._probes = ThreadPoolExecutor(config.loader.threads, f"{self.name}-probe")
        self._media = ThreadPoolExecutor(config.loader.threads, f"{self.name}-media")
        self._workers = decode_workers(config)
        waiting = self._workers.limits.workers
        self._waiting_probes = ThreadPoolExecutor(waiting, f"{self.name}-probe-worker")
        self._waiting_media = ThreadPoolExecutor(waiting, f"{self.name}-media-worker")

    async def start(self) -> None:
        """Load the tokenizer and resolve every source's rules. Raises ConfigError."""
        self._rules = await self._in(self._readers, self._load_rules)

    def _load_rules(self) -> dict[str, SampleRule]:
        config = self._config
        tokenizer = Tokenizer.of(config, self._base_dir)
        rules = {}
        for name in config.sources:
            try:
                rules[name] = sample_rule(config, name, self._base_dir, tokenizer, self._workers)
            except DataloaderError as error:
                error.add_note(f"in source {name!r}")
                raise
        self._backend = tokenizer.backend_used
        log.info("%s: tokenizer %s by %s", self.name, tokenizer.name, tokenizer.backend_used)
        return rules

    async def warm(self) -> None:
        """Open all sources, so that the first request for any of them finds it open."""
        await asyncio.gather(*(self._reader(name) for name in self._config.sources))

    async def stop(self) -> None:
        """End reads, workers and threads. What threads decode is finished, what is queued is not begun."""
        tasks = [*self._reading.values(), *self._opening.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.to_thread(self._workers.close)  # whoever waits for one would hold up its thread
        media = (self._probes, self._media, self._waiting_probes, self._waiting_media)
        for pool in (self._readers, self._builders, *media):
            await asyncio.to_thread(pool.shutdown, cancel_futures=True)
        self._blocks.clear()

    # ---- the RPCs

    async def describe(
        self, request: loader_service_pb2.DescribeRequest
    ) -> loader_service_pb2.DescribeResponse:
        """Size, digest and blocks of a source's epoch. Indexes the source where that hasn't been done."""
        reader = await self._listed(request.source, request.listing)
        if request.grown:
            reader = await self._reader(request.source)
        order = reader.order(request.epoch)
        return loader_service_pb2.DescribeResponse(
            source=request.source,
            epoch=request.epoch,
            num_rows=reader.num_rows,
            digest=reader.index.digest,
            block_starts=order.block_starts.tolist(),
            num_shards=reader.listing.shards,
            listed_shards=(await self._reader(request.source)).listing.shards,
        )

    async def probe(self, request: loader_service_pb2.BlockRequest) -> Frame:
        """Probe columns of a block, which stays until it is released, or room is needed."""
        reader = await self._listed(request.source, request.listing)
        held = await self._block(block_id(request), reader)
        return probe_to_frame(probe_columns(held))

    async def fetch(self, request: loader_service_pb2.FetchRequest) -> Frame:
        """The pieces named, decoded."""
        began = self._clock.monotonic()
        pieces = await self._take(pieces_asked(request), frozenset(request.masked), listings_of(request))
        check_size(pieces, request.max_bytes)
        taken = self._clock.monotonic()
        patch = self._config.images.patch
        frame = await self._in(
            self._builders, lambda: decode(pieces, patch, self._media, self._waiting_media, self._meter)
        )
        frame.meta["read_s"] = taken - began
        frame.meta["decode_s"] = self._clock.monotonic() - taken
        faultpoint.point("loader.fetched")
        return frame

    async def release(self, request: loader_service_pb2.BlockRequest) -> common_pb2.Empty:
        """The planner has done with a block: it goes.

        With `reopen` its source's files were repaired: what is held of the block is stale, and so may be what
        is known of where its rows lie.
        """
        block = block_id(request)
        if not request.reopen:
            self._drop(self._table.apply(core.Released(block)))
            return common_pb2.Empty()
        # What is under way may have begun before the repair.
        while begun := [task for task in (self._reading.get(block), self._opening.get(block.source)) if task]:
            await asyncio.wait(begun)
        self._sources.pop(block.source, None)
        self._drop(self._table.apply(core.Forgotten(block)))
        return common_pb2.Empty()

    async def status(self, request: common_pb2.Empty) -> loader_service_pb2.LoaderStatus:  # noqa: ARG002
        """Memory, reads, and what work of late took. Asked once a second: the loader's heartbeat."""
        table = self._table
        status = loader_service_pb2.LoaderStatus(
            held_bytes=table.held_bytes,
            limit_bytes=table.limit_bytes,
            held_blocks=table.held_blocks,
            reads=table.reads,
            rereads=table.rereads,
            tokenizer_backend=self._backend,
            compared_documents=self._compared,
            differing_documents=len(self._differing),
        )
        self._meter.tell(status)
        return status

    # ---- sources and blocks

    async def _reader(self, name: str) -> SourceReader:
        """The reader of a source, opened once; a failure goes to all that wait; the next call tries anew."""
        if name not in self._config.sources:
            known = sorted(self._config.sources)
            raise ConfigError(
                f"no source is called {name!r}; sources: {', '.join(known)}{nearest(name, known)}"
            )
        if name in self._sources:
            return self._sources[name]
        return await shared(self._opening, name, lambda: self._open(name))

    async def _open(self, name: str) -> SourceReader:
        config = self._config
        cache = self._base_dir / config.index_cache
        reader = await self._in(
            self._readers,
            lambda: SourceReader(
                name, config.sources[name], self._base_dir, cache, config.seed, storage=self._storage
            ),
        )
        self._sources[name] = reader
        index = reader.index
        log.info("%s: source %s: %d rows in %d shards", self.name, name, index.num_rows, len(index.paths))
        for warning in index.warnings:
            log.warning("%s: source %s: %s", self.name, name, warning)
        return reader

    async def _listed(self, name: str, listing: plan_pb2.Listing) -> SourceReader:
        """A source as made of these shards, opened anew where they are not those that it had. StateError."""
        wanted = listing_of(listing)
        reader = await self._reader(name)
        try:
            return reader.listed(wanted)
        except StateError:
            if self._sources.get(name) is reader:
                del self._sources[name]
        return (await self._reader(name)).listed(wanted)

    async def _rows(self, block: BlockId, reader: SourceReader, positions: frozenset[int]) -> HeldBlock:
        """A block; where it is not held, and not worth its room, these rows of it alone."""
        _check_block(block, reader)
        estimate = _estimate(reader, block)
        at_hand = block in self._blocks or block in self._reading
        if at_hand or self._table.worth_its_room(block, estimate):
            return await self._block(block, reader)
        self._table.apply(core.ReadInPart(block, estimate))
        self._say_short(block)
        return await self._in(self._readers, lambda: self._read_rows(block, reader, positions))

    async def _block(self, block: BlockId, reader: SourceReader) -> HeldBlock:
        """A block, held or read now."""
        _check_block(block, reader)
        while True:
            held = self._blocks.get(block)
            if held is None:
                held = await shared(self._reading, block, lambda: self._read(block, reader))
            if held.index == reader.index.digest:
                break
            self._drop(self._table.apply(core.Forgotten(block)))  # read for another list of shards
        if block in self._table:  # it may have been dropped at once, being larger than the memory
            self._drop(self._table.apply(core.Used(block)))
        return held

    async def _read(self, block: BlockId, reader: SourceReader) -> HeldBlock:
        estimate = _estimate(reader, block)
        if estimate > self._table.limit_bytes:
            raise SourceError(
                f"block {block} may take {estimate} bytes, above loader.memory {self._table.limit_bytes}: "
                "raise it, or write the source with smaller row groups"
            )
        async with self._room:
            await self._room.wait_for(lambda: self._table.fits(estimate))
            rereads = self._table.rereads
            self._drop(self._table.apply(core.Wanted(block, estimate)))
            if self._table.rereads > rereads:
                self._say_short(block)
        try:
            held = await self._in(self._readers, lambda: self._read_now(block, reader, estimate))
        except BaseException:
            await self._end_read(core.Failed(block))
            raise
        self._blocks[block] = held
        self._note(held)
        await self._end_read(core.Read(block, held.num_bytes))
        faultpoint.point("loader.block_read")
        return held

    def _say_short(self, block: BlockId) -> None:
        """That the blocks in use do not fit: nothing is wrong, but where each step does it, it is slow."""
        table, now = self._table, self._clock.monotonic()
        if now < self._said_short + _SAY_AGAIN_S:
            return
        self._said_short = now
        read, use = f"{table.rereads} of {table.reads} reads", f"{table.leased_blocks} blocks in use"
        log.warning(
            "%s: block %s is read again (%s): %s take %d bytes and loader.memory is %d; raise it, or "
            "loader.count, or lower shuffle.block of the sources",
            *(self.name, block, read, use, table.leased_bytes, table.limit_bytes),
        )

    def _read_now(self, block: BlockId, reader: SourceReader, num_bytes: int) -> HeldBlock:
        """In a thread. Measured by the bytes in the files: they are known before."""
        with self._meter.work(f"read {block.source}", num_bytes):
            rule = self._rules[block.source]
            return read_block(reader, block, rule, self._probes, self._waiting_probes)

    def _read_rows(self, block: BlockId, reader: SourceReader, positions: frozenset[int]) -> HeldBlock:
        """In a thread."""
        with self._meter.work(f"read rows of {block.source}", len(positions)):
            rule = self._rules[block.source]
            return read_block(reader, block, rule, self._probes, self._waiting_probes, positions)

    def _note(self, held: HeldBlock) -> None:
        """Count what was compared, and say of each document once that its ids differ."""
        self._compared += held.compared
        block = held.block
        for incident in held.incidents:
            sample = SampleId(block.source, block.epoch, incident.position)
            if sample not in self._differing:
                self._differing.add(sample)
                log.warning(
                    "%s: document %s (%s): %s: %s",
                    self.name,
                    sample,
                    incident.row,
                    incident.kind,
                    incident.detail,
                )

    async def _end_read(self, event: core.Read | core.Failed) -> None:
        self._drop(self._table.apply(event))
        async with self._room:
            self._room.notify_all()

    def _drop(self, blocks: Iterable[BlockId]) -> None:
        for block in blocks:
            self._freed += self._blocks.pop(block).num_bytes
        if self._freed >= _GIVE_BACK:
            self._freed = 0
            self._readers.submit(allocator.give_back)

    async def _take(
        self,
        asked: dict[BlockId, list[tuple[int, PieceRange]]],
        masked: frozenset[int],
        listings: Mapping[tuple[str, int], plan_pb2.Listing],
    ) -> list[TakenPiece]:
        """Pieces in the order asked for. Each block's are taken when it is there: none waits for another."""
        taken: dict[int, TakenPiece] = {}

        async def take_from(block: BlockId, pieces: list[tuple[int, PieceRange]]) -> None:
            listing = listings.get((block.source, block.epoch), _ALL_SHARDS)
            reader = await self._listed(block.source, listing)
            held = await self._rows(block, reader, frozenset(piece.position for _, piece in pieces))
            rule = self._rules[block.source]
            for number, piece in pieces:
                taking = take_silent if number in masked else take
                taken[number] = taking(held, piece, reader, rule)

        await asyncio.gather(*(take_from(block, pieces) for block, pieces in asked.items()))
        return [taken[number] for number in range(len(taken))]

    async def _in(self, pool: ThreadPoolExecutor, work: Callable[[], Result]) -> Result:
        return await asyncio.get_running_loop().run_in_executor(pool, work)


def _check_block(block: BlockId, reader: SourceReader) -> None:
    num_blocks = reader.order(block.epoch).num_blocks
    if block.block >= num_blocks:
        raise StateError(f"block {block}: the source has {num_blocks} blocks now; its files have changed")


def _estimate(reader: SourceReader, block: BlockId) -> int:
    extents = reader.order(block.epoch).extents(block.block)
    return int(reader.index.extents.num_bytes[extents].sum() * _HELD_PER_SOURCE_BYTE)
