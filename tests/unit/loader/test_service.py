"""The loader behind real gRPC on loopback: what it answers, what it reads how often, and how it refuses."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dataloader_client import methods
from dataloader_client._pb import common_pb2
from dataloader_client._pb import loader_service_pb2 as pb
from dataloader_client.wire import Frame
from dataloader_svc import allocator
from dataloader_svc.config.schema import Config
from dataloader_svc.errors import (
    ConfigError,
    DataloaderError,
    Overloaded,
    RoleFailed,
    SourceError,
    StateError,
)
from dataloader_svc.loader import service as service_module
from dataloader_svc.loader.service import LoaderService
from dataloader_svc.rpc.convert import probe_from_frame
from dataloader_svc.rpc.servicers import start_server
from dataloader_svc.rpc.stubs import Peer
from dataloader_svc.sample import ProbeColumns
from dataloader_svc.transforms.tokenizers.base import Flat
from dataloader_svc.transforms.tokenizers.hf_json import FastokensEncoder

from .conftest import configured, write_jsonl


@asynccontextmanager
async def serving(config: Config, folder: Path) -> AsyncIterator[tuple[LoaderService, Peer]]:
    service = LoaderService(config, folder, index=0)
    await service.start()
    server, address = await start_server({methods.LOADER: service}, "127.0.0.1:0")
    try:
        async with Peer(address, "loader-0") as peer:
            yield service, peer
    finally:
        await server.stop(None)
        await service.stop()


def run(config: Config, folder: Path, scenario: Callable[[LoaderService, Peer], Awaitable[None]]) -> None:
    async def main() -> None:
        async with serving(config, folder) as (service, peer):
            await scenario(service, peer)

    asyncio.run(main())


async def probe(peer: Peer, source: str, block: int) -> ProbeColumns:
    request = pb.BlockRequest(source=source, block=block)
    return probe_from_frame(await peer.fetch(methods.PROBE, request, timeout_s=30))


def fetch_request(*pieces: tuple[str, int, int, int], **fields: Any) -> pb.FetchRequest:
    """Of (source, block, position, length)."""
    sources = sorted({piece[0] for piece in pieces})
    return pb.FetchRequest(
        sources=sources,
        source=[sources.index(piece[0]) for piece in pieces],
        epoch=[0] * len(pieces),
        block=[piece[1] for piece in pieces],
        position=[piece[2] for piece in pieces],
        start=[0] * len(pieces),
        length=[piece[3] for piece in pieces],
        **fields,
    )


async def fetch(peer: Peer, *pieces: tuple[str, int, int, int], **fields: Any) -> Frame:
    return await peer.fetch(methods.FETCH, fetch_request(*pieces, **fields), timeout_s=30)


async def status(peer: Peer) -> pb.LoaderStatus:
    return await peer.call(methods.LOADER_STATUS, common_pb2.Empty(), timeout_s=30)


class Gate:
    """Stands in for `read_block`: counts the calls and holds each until `open` is set."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls = 0
        self.begun = threading.Semaphore(0)
        self.open = threading.Event()
        self._read = service_module.read_block
        monkeypatch.setattr(service_module, "read_block", self)

    def __call__(self, *args: Any) -> Any:
        self.calls += 1
        self.begun.release()
        assert self.open.wait(30)
        return self._read(*args)


def test_describe(config: Config, folder: Path) -> None:
    async def scenario(_: LoaderService, peer: Peer) -> None:
        answer = await peer.call(methods.DESCRIBE, pb.DescribeRequest(source="web", epoch=1), timeout_s=30)
        assert (answer.source, answer.epoch, answer.num_rows, answer.num_shards) == ("web", 1, 40, 1)
        assert answer.digest
        starts = list(answer.block_starts)
        assert starts == sorted(set(starts))
        assert (starts[0], starts[-1]) == (0, 40)

    run(config, folder, scenario)
    assert (folder / ".dataloader-svc" / "index").is_dir()


def test_probe_then_fetch(config: Config, folder: Path) -> None:
    async def scenario(_: LoaderService, peer: Peer) -> None:
        web, captions = await probe(peer, "web", 1), await probe(peer, "captions", 0)
        pieces = [
            ("captions", 0, 1, int(captions.tokens[1])),
            ("web", 1, web.start + 2, int(web.tokens[2])),
            ("captions", 0, 0, int(captions.tokens[0])),
            ("web", 1, web.start, int(web.tokens[0])),
        ]
        frame = await fetch(peer, *pieces)
        assert np.diff(frame.arrays["id_offsets"]).tolist() == [piece[3] for piece in pieces]
        assert np.diff(frame.arrays["media_offsets"]).tolist() == [2, 0, 1, 0]
        assert len(frame.arrays["pixels"]) == captions.patches[:2].sum()
        assert frame.meta["bad"] == []
        assert frame.meta["read_s"] >= 0
        assert frame.meta["decode_s"] > 0
        # Each alone gives the same as all together.
        for i, piece in enumerate(pieces):
            alone = await fetch(peer, piece)
            a, b = frame.arrays["id_offsets"][i : i + 2]
            assert np.array_equal(alone.arrays["ids"], frame.arrays["ids"][a:b])
        assert (await status(peer)).reads == 2
        assert len((await fetch(peer)).arrays["ids"]) == 0, "no pieces is no error"

    run(config, folder, scenario)


def test_any_loader_serves_any_block(config: Config, folder: Path) -> None:
    """One that never probed it answers a fetch like the one that did."""

    async def scenario(_: LoaderService, first: Peer) -> None:
        columns = await probe(first, "web", 1)
        piece = ("web", 1, columns.start, int(columns.tokens[0]))
        expected = await fetch(first, piece)
        async with serving(config, folder) as (_, second):
            found = await fetch(second, piece)
            assert np.array_equal(found.arrays["ids"], expected.arrays["ids"])
            assert (await status(second)).reads == 1

    run(config, folder, scenario)


def test_a_block_asked_for_twice_is_read_once(
    config: Config, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(monkeypatch)

    async def scenario(service: LoaderService, peer: Peer) -> None:
        probes = [asyncio.create_task(probe(peer, "web", 0)) for _ in range(3)]
        await asyncio.to_thread(gate.begun.acquire)
        # A fourth that stops waiting does not stop the read of the others.
        gone = asyncio.create_task(service.probe(pb.BlockRequest(source="web")))
        await asyncio.sleep(0)
        gone.cancel()
        gate.open.set()
        columns = await asyncio.gather(*probes)
        assert all(np.array_equal(columns[0].tokens, other.tokens) for other in columns)
        await probe(peer, "web", 0)
        assert gate.calls == 1
        assert (await status(peer)).reads == 1

    run(config, folder, scenario)


def test_a_failed_read_is_told_to_all_and_tried_again(
    config: Config, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = service_module.read_block
    failing = [True]

    def read(*args: Any) -> Any:
        if failing:
            failing.pop()
            raise SourceError("disk on fire")
        return real(*args)

    monkeypatch.setattr(service_module, "read_block", read)

    async def scenario(_: LoaderService, peer: Peer) -> None:
        with pytest.raises(SourceError, match="disk on fire"):
            await probe(peer, "web", 0)
        assert len(await probe(peer, "web", 0))
        assert (await status(peer)).held_blocks == 1

    run(config, folder, scenario)


def test_memory_is_bounded_and_what_was_dropped_is_read_again(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = configured(loader={"memory": 4000})

    async def scenario(service: LoaderService, peer: Peer) -> None:
        columns = [await probe(peer, "web", block) for block in range(4)]
        state = await status(peer)
        assert state.held_bytes <= state.limit_bytes == 4000
        assert 0 < state.held_blocks < 4
        assert state.rereads == 0
        pieces = [("web", i, c.start, int(c.tokens[0])) for i, c in enumerate(columns)]
        together = await fetch(peer, *pieces)
        state = await status(peer)
        assert state.rereads > 0
        assert state.held_bytes <= 4000
        service._table.validate()
        for i, piece in enumerate(pieces):
            alone = await fetch(peer, piece)
            a, b = together.arrays["id_offsets"][i : i + 2]
            assert np.array_equal(alone.arrays["ids"], together.arrays["ids"][a:b])

    run(config, folder, scenario)
    said = [record.getMessage() for record in caplog.records if "is read again" in record.getMessage()]
    assert len(said) == 1, "once, not for each"
    assert "loader.memory is 4000; raise it, or loader.count, or lower shuffle.block" in said[0]


def test_blocks_that_do_not_fit_are_read_in_part_and_those_held_stay(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[int, Any]] = []
    real = service_module.read_block

    def read(reader: Any, block: Any, rule: Any, *others: Any) -> Any:
        asked.append((block.block, others[2] if len(others) > 2 else None))
        return real(reader, block, rule, *others)

    monkeypatch.setattr(service_module, "read_block", read)

    async def scenario(service: LoaderService, peer: Peer) -> None:
        columns = [await probe(peer, "web", block) for block in range(4)]
        held = set(service._blocks)
        assert 0 < len(held) < 4
        asked.clear()
        for turn in range(3):
            pieces = [("web", i, c.start + turn, int(c.tokens[turn])) for i, c in enumerate(columns)]
            frame = await fetch(peer, *pieces)
            assert np.diff(frame.arrays["id_offsets"]).tolist() == [piece[3] for piece in pieces]
            assert set(service._blocks) == held
        lost = sorted(set(range(4)) - {block.block for block in held})
        assert sorted(asked) == sorted(
            (block, frozenset({columns[block].start + turn})) for block in lost for turn in range(3)
        )
        assert (await status(peer)).rereads == len(asked)
        service._table.validate()

    run(configured(loader={"memory": 4000}), folder, scenario)


def test_reads_wait_for_room(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two blocks that do not fit side by side are read one after the other; neither is refused."""
    gate = Gate(monkeypatch)

    async def scenario(service: LoaderService, peer: Peer) -> None:
        probes = [asyncio.create_task(service.probe(pb.BlockRequest(source="web", block=i))) for i in (0, 1)]
        await asyncio.to_thread(gate.begun.acquire)
        assert gate.calls == 1
        gate.open.set()
        await asyncio.gather(*probes)
        assert gate.calls == 2
        assert (await status(peer)).held_blocks == 1

    run(configured(loader={"memory": 2000}), folder, scenario)


def test_a_block_above_the_memory_is_named(folder: Path) -> None:
    async def scenario(_: LoaderService, peer: Peer) -> None:
        with pytest.raises(SourceError, match=r"block web/0#0 may take \d+ bytes, above loader.memory 500"):
            await probe(peer, "web", 0)

    run(configured(loader={"memory": 500}), folder, scenario)


def test_released_blocks_go_at_once(folder: Path) -> None:
    async def scenario(service: LoaderService, peer: Peer) -> None:
        for block in (0, 1):
            await probe(peer, "web", block)
        await peer.call(methods.RELEASE, pb.BlockRequest(source="web", block=1), timeout_s=30)
        await peer.call(methods.RELEASE, pb.BlockRequest(source="web", block=77), timeout_s=30)
        assert (await status(peer)).held_blocks == 1
        await probe(peer, "web", 2)
        await probe(peer, "web", 3)
        await probe(peer, "web", 0)
        assert (await status(peer)).rereads == 0
        assert (await status(peer)).reads == 4, "block 0 was still there"

    sizes = configured(loader={"memory": 100_000})
    held: list[int] = []

    async def measure(_: LoaderService, peer: Peer) -> None:
        for block in range(4):
            await probe(peer, "web", block)
            held.append((await status(peer)).held_bytes)

    run(sizes, folder, measure)
    block_bytes = np.diff([0, *held])
    limit = int(block_bytes[0] + block_bytes[2] + 1600)
    run(configured(loader={"memory": limit}), folder, scenario)


def test_memory_goes_back_to_the_system_once_blocks_worth_it_were_dropped(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = threading.Semaphore(0)
    monkeypatch.setattr(allocator, "give_back", given.release)

    async def scenario(_: LoaderService, peer: Peer) -> None:
        sizes = []
        for block in range(3):
            await probe(peer, "web", block)
            sizes.append((await status(peer)).held_bytes - sum(sizes))
        monkeypatch.setattr(service_module, "_GIVE_BACK", sum(sizes[:2]))
        for block in range(2):
            assert not given.acquire(blocking=False)
            await peer.call(methods.RELEASE, pb.BlockRequest(source="web", block=block), timeout_s=30)
        assert await asyncio.to_thread(given.acquire)
        await peer.call(methods.RELEASE, pb.BlockRequest(source="web", block=2), timeout_s=30)
        assert not given.acquire(blocking=False), "counted from the last time"

    run(configured(), folder, scenario)


def test_an_answer_above_max_bytes_is_refused(config: Config, folder: Path) -> None:
    async def scenario(_: LoaderService, peer: Peer) -> None:
        columns = await probe(peer, "captions", 0)
        piece = ("captions", 0, 0, int(columns.tokens[0]))
        size = 5 * piece[3] + int(columns.patches[0]) * 588
        assert (await fetch(peer, piece, max_bytes=size)).arrays["ok"].tolist() == [1]
        with pytest.raises(Overloaded, match="ask for fewer pieces"):
            await fetch(peer, piece, max_bytes=size - 1)

    run(config, folder, scenario)


@pytest.mark.parametrize(
    ("request_", "error", "match"),
    [
        (fetch_request(("wbe", 0, 0, 1)), ConfigError, "no source is called 'wbe'; .* did you mean 'web'"),
        (fetch_request(("web", 99, 0, 1)), StateError, r"block web/0#99: the source has \d+ blocks now"),
        (fetch_request(("web", 0, 0, 9999)), StateError, r"web/0/0 .*web.jsonl:\d+.* the file has changed"),
        (pb.FetchRequest(sources=["web"], source=[0, 0], epoch=[0]), ConfigError, "columns of different"),
        (pb.FetchRequest(sources=[], source=[3]), ConfigError, "columns of different"),
    ],
)
def test_requests_that_make_no_sense(
    config: Config, folder: Path, request_: pb.FetchRequest, error: type[DataloaderError], match: str
) -> None:
    async def scenario(_: LoaderService, peer: Peer) -> None:
        with pytest.raises(error, match=match):
            await peer.fetch(methods.FETCH, request_, timeout_s=30)

    run(config, folder, scenario)


def test_a_source_that_can_not_be_opened(folder: Path) -> None:
    async def scenario(_: LoaderService, peer: Peer) -> None:
        (folder / "web.jsonl").rename(folder / "away")
        with pytest.raises(SourceError, match=r"web.*web.jsonl"):
            await peer.call(methods.DESCRIBE, pb.DescribeRequest(source="web"), timeout_s=30)
        # It is tried anew: a mount that was late is no reason to restart a loader.
        (folder / "away").rename(folder / "web.jsonl")
        assert await peer.call(methods.DESCRIBE, pb.DescribeRequest(source="web"), timeout_s=30)

    run(configured(), folder, scenario)


def test_a_shard_that_changed_is_quarantined_whole(config: Config, folder: Path) -> None:
    async def scenario(_: LoaderService, peer: Peer) -> None:
        await peer.call(methods.DESCRIBE, pb.DescribeRequest(source="web"), timeout_s=30)
        write_jsonl(folder / "web.jsonl", [{"text": "something else"}])
        columns = await probe(peer, "web", 0)
        assert not columns.tokens.any()
        assert {row.reason for row in columns.bad} == {"unreadable_shard"}

    run(config, folder, scenario)


def test_a_wrong_token_is_told_at_the_start(folder: Path) -> None:
    service = LoaderService(configured(media_tokens={"image": "<|imagepad|>"}), folder, index=0)

    async def main() -> None:
        try:
            with pytest.raises(ConfigError, match=r"<\|image_pad\|>") as caught:
                await service.start()
            assert caught.value.__notes__ == ["in source 'web'"]
        finally:
            await service.stop()

    asyncio.run(main())


def test_stop_while_reading(config: Config, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate(monkeypatch)

    async def main() -> None:
        service = LoaderService(config, folder, index=0)
        await service.start()
        asked = asyncio.create_task(service.probe(pb.BlockRequest(source="web")))
        await asyncio.to_thread(gate.begun.acquire)
        stopping = asyncio.create_task(service.stop())
        gate.open.set()
        await stopping
        with pytest.raises(asyncio.CancelledError):
            await asked

    before = threading.active_count()
    asyncio.run(main())
    assert threading.active_count() == before, "no thread is left"


@pytest.mark.parametrize("where", ["loader.block_read", "loader.fetched"])
def test_fault_points(
    config: Config, folder: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: Any, where: str
) -> None:
    fired = tmp_path_factory.mktemp("fired")
    monkeypatch.setenv("DATALOADER_FAULT", f"{where}:raise:1")
    monkeypatch.setenv("DATALOADER_FAULT_DIR", str(fired))
    monkeypatch.setattr("dataloader_svc.faultpoint._counts", {})

    async def scenario(_: LoaderService, peer: Peer) -> None:
        piece = ("web", 0, 0, 1)
        with pytest.raises(RoleFailed, match=f"fault injected at {where}"):
            await fetch(peer, piece)
        assert len((await fetch(peer, piece)).arrays["ids"]) == 1

    run(config, folder, scenario)
    assert len(list(fired.iterdir())) == 1


def test_differing_documents_are_counted_and_told_once(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    encode = FastokensEncoder.encode

    def wrong(self: FastokensEncoder, texts: Sequence[str]) -> Flat:
        ids, offsets = encode(self, texts)
        changed = ids.copy()
        for i, text in enumerate(texts):
            if text.startswith("document 3 "):
                changed[offsets[i]] += 1
        return changed, offsets

    monkeypatch.setattr(FastokensEncoder, "encode", wrong)

    async def scenario(_: LoaderService, peer: Peer) -> None:
        num_blocks = (
            len(
                (
                    await peer.call(methods.DESCRIBE, pb.DescribeRequest(source="web"), timeout_s=30)
                ).block_starts
            )
            - 1
        )
        for _again in range(2):
            for block in range(num_blocks):
                await probe(peer, "web", block)
                await peer.call(methods.RELEASE, pb.BlockRequest(source="web", block=block), timeout_s=30)
        found = await status(peer)
        assert found.tokenizer_backend == "fastokens"
        assert found.reads == 2 * num_blocks, "each block is read twice"
        assert found.compared_documents == 80
        assert found.differing_documents == 1

    with caplog.at_level(logging.WARNING):
        run(configured(tokenizer_verify=1.0, loader={"memory": 2600}), folder, scenario)
    (record,) = caplog.records
    assert "document web/0/" in record.getMessage()
    assert "web.jsonl:3): tokenizer_differs: fastokens gives" in record.getMessage()
