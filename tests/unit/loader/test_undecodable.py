"""Decoding on trial: which samples fail, whatever the size of the groups they are decoded in."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from dataloader_svc.config.schema import Config
from dataloader_svc.loader import undecodable as module
from dataloader_svc.loader.decode import TakenPiece, decode
from dataloader_svc.loader.read import HeldBlock, read_block
from dataloader_svc.loader.rules import SampleRule
from dataloader_svc.loader.undecodable import undecodable
from dataloader_svc.sample import BlockId
from dataloader_svc.sources.reader import SourceReader


@pytest.fixture
def reader(config: Config, folder: Path) -> SourceReader:
    """Pictures 0 and 3 lose bytes in their middles: their headers stay good."""
    for name in ("0", "3"):
        path = folder / "pictures" / f"{name}.png"
        data = path.read_bytes()
        path.write_bytes(data[:200] + bytes(300) + data[500:])
    return SourceReader("captions", config.sources["captions"], folder, None, config.seed)


@pytest.fixture
def held(reader: SourceReader, rules: dict[str, SampleRule], pool: ThreadPoolExecutor) -> HeldBlock:
    return read_block(reader, BlockId("captions", 0, 0), rules["captions"], pool)


@pytest.mark.parametrize("pixel_bytes", [1, 100_000, module.PIXEL_BYTES])
def test_those_that_fail(
    pixel_bytes: int,
    held: HeldBlock,
    reader: SourceReader,
    rules: dict[str, SampleRule],
    pool: ThreadPoolExecutor,
) -> None:
    found = list(undecodable(held, reader, rules["captions"], pool, pixel_bytes=pixel_bytes))
    assert [(bad.position, bad.row.row, bad.reason) for bad in found] == [
        (0, 0, "decode_failed"),
        (3, 3, "decode_failed"),
    ]
    assert all("captions.jsonl" in bad.row.shard and bad.detail for bad in found)


def test_only_those_asked_for(
    held: HeldBlock, reader: SourceReader, rules: dict[str, SampleRule], pool: ThreadPoolExecutor
) -> None:
    found = undecodable(held, reader, rules["captions"], pool, positions={1, 3})
    assert [bad.position for bad in found] == [3]


def test_pixels_in_memory_are_bounded(
    held: HeldBlock,
    reader: SourceReader,
    rules: dict[str, SampleRule],
    pool: ThreadPoolExecutor,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sizes: list[int] = []

    def watched(pieces: list[TakenPiece], *args: object) -> object:
        frame = decode(pieces, *args)  # type: ignore[arg-type]
        sizes.append(frame.arrays["pixels"].nbytes)
        return frame

    monkeypatch.setattr(module, "decode", watched)
    list(undecodable(held, reader, rules["captions"], pool))
    (whole,) = sizes
    sizes.clear()
    list(undecodable(held, reader, rules["captions"], pool, pixel_bytes=whole - 1))
    assert len(sizes) > 1
    assert sum(sizes) == whole
