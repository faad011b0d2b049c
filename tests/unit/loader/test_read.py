"""A block's columns against what its rows say, one by one."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dataloader_svc.config.schema import Config
from dataloader_svc.errors import Reason
from dataloader_svc.loader.decode import PieceRange, take
from dataloader_svc.loader.read import HeldBlock, probe_columns, read_block
from dataloader_svc.loader.rules import SampleRule, sample_rule
from dataloader_svc.rpc.convert import probe_from_frame, probe_to_frame
from dataloader_svc.sample import BlockId
from dataloader_svc.sources.reader import SourceReader
from dataloader_svc.testing import tokenizer as tiny
from dataloader_svc.transforms.tokenizers import Tokenizer
from dataloader_svc.transforms.tokenizers.base import Encoders, Flat

from .conftest import TEXTS, configured


def read(
    name: str,
    block: int,
    config: Config,
    folder: Path,
    rules: dict[str, SampleRule],
    pool: ThreadPoolExecutor,
) -> HeldBlock:
    reader = SourceReader(name, config.sources[name], folder, None, config.seed)
    return read_block(reader, BlockId(name, 0, block), rules[name], pool)


def test_text_blocks_hold_every_row_once(
    config: Config,
    folder: Path,
    rules: dict[str, SampleRule],
    tokenizer: Tokenizer,
    pool: ThreadPoolExecutor,
) -> None:
    reader = SourceReader("web", config.sources["web"], folder, None, config.seed)
    num_blocks = reader.order(0).num_blocks
    assert num_blocks > 2, "the test needs several blocks"
    seen: list[str] = []
    position = 0
    for block in range(num_blocks):
        held = read("web", block, config, folder, rules, pool)
        probe = probe_columns(held)
        assert probe.start == position
        position = probe.stop
        assert not probe.bad
        assert not probe.patches.any()
        for i in range(len(probe)):
            ids = held.ids[held.id_offsets[i] : held.id_offsets[i + 1]]
            assert probe.tokens[i] == len(ids)
            assert probe.num_bytes[i] == 5 * len(ids)
            assert ids[-1] == tokenizer.control[tiny.EOS]
            text = tokenizer.decode(ids[:-1])
            seen.append(text)
            assert TEXTS[held.ref(i).row] == text
    assert sorted(seen) == sorted(TEXTS)


def test_media(
    config: Config, folder: Path, rules: dict[str, SampleRule], tokenizer: Tokenizer, pool: ThreadPoolExecutor
) -> None:
    held = read("captions", 0, config, folder, rules, pool)
    probe = probe_columns(held)
    assert {row.position: row.reason for row in probe.bad} == {
        2: Reason.TRUNCATED,
        4: Reason.MISSING_FILE,
        5: Reason.MARKER_MISMATCH,
        6: Reason.EMPTY_TEXT,
    }
    assert all(row.row.row == row.position for row in probe.bad), "file order: rows are positions"
    assert (probe.tokens == 0).nonzero()[0].tolist() == [2, 4, 5, 6]
    assert probe.media_offsets.tolist() == [0, 1, 3, 3, 4, 4, 4, 4]
    image = tokenizer.control[tiny.IMAGE]
    for i in range(len(probe)):
        ids = held.ids[held.id_offsets[i] : held.id_offsets[i + 1]]
        first, last = probe.media_offsets[i : i + 2]
        assert (ids == image).sum() == probe.media_tokens[first:last].sum()
        assert probe.patches[i] == probe.media_patches[first:last].sum() == 4 * (ids == image).sum()
        for k in range(first, last):
            start = probe.media_start[k]
            assert (ids[start : start + probe.media_tokens[k]] == image).all()
    # By Qwen2-VL's rule: 60x90 pixels, sides to the nearest multiple of 28.
    assert held.media.grid[0].tolist() == [1, 6, 4]
    assert held.media.start[3] == 0, "without a marker the picture comes first"
    assert held.media.data == tuple(f"pictures/{i}.png" for i in range(4)), "paths stay paths"


def test_rows_read_alone_are_what_they_are_in_their_block(
    config: Config, folder: Path, rules: dict[str, SampleRule], pool: ThreadPoolExecutor
) -> None:
    for name in ("web", "captions"):
        reader = SourceReader(name, config.sources[name], folder, None, config.seed)
        whole = read_block(reader, BlockId(name, 0, 0), rules[name], pool)
        good = np.flatnonzero(np.diff(whole.id_offsets))
        for index in good.tolist():
            position = whole.start + index
            part = read_block(reader, BlockId(name, 0, 0), rules[name], pool, only={position})
            assert np.flatnonzero(np.diff(part.id_offsets)).tolist() == [index]
            piece = PieceRange(position, 0, int(np.diff(whole.id_offsets)[index]))
            expected, found = (take(held, piece, reader, rules[name]) for held in (whole, part))
            assert found.ids.tolist() == expected.ids.tolist()
            assert found.targets.tolist() == expected.targets.tolist()
            assert [(m.start, m.grid, m.data) for m in found.media] == [
                (m.start, m.grid, m.data) for m in expected.media
            ]
            assert found.row == expected.row
        assert len(good) > 1, "there is something to leave out"


def test_encoded_media_count_as_held(
    config: Config, folder: Path, rules: dict[str, SampleRule], pool: ThreadPoolExecutor
) -> None:
    from dataloader_svc.sources.reader import BlockSamples

    data = [(folder / "pictures" / f"{i}.png").read_bytes() for i in range(2)]
    samples = BlockSamples(
        BlockId("captions", 0, 0),
        10,
        {"text": ["a <image>", "b"], "image": [[data[0]], [data[1]]]},
        {},
        np.zeros(2, np.int32),
        np.arange(2),
        ("shard",),
    )

    class Reader:
        def read_block(self, _: BlockId, only: Collection[int] | None = None) -> BlockSamples:
            assert only is None
            return samples

        def read_media(self, path: str, shard: str) -> bytes:
            raise AssertionError("the bytes are in the row")

    held = read_block(Reader(), BlockId("captions", 0, 0), rules["captions"], pool)
    probe = probe_columns(held)
    for i in range(2):
        assert probe.num_bytes[i] == len(data[i]) + 5 * probe.tokens[i]
    assert held.num_bytes >= probe.num_bytes.sum()
    assert probe.start == 10


def test_a_picture_that_is_too_large_is_refused_unread(
    folder: Path, tokenizer: Tokenizer, pool: ThreadPoolExecutor
) -> None:
    Image.new("RGB", (300, 200)).save(folder / "pictures" / "0.png")
    config = configured(images={"max_source_pixels": 50_000})
    rules = {"captions": sample_rule(config, "captions", folder, tokenizer)}
    held = read("captions", 0, config, folder, rules, pool)
    assert held.bad[0].reason == Reason.TOO_MANY_PIXELS


def test_probe_columns_survive_the_wire(
    config: Config, folder: Path, rules: dict[str, SampleRule], pool: ThreadPoolExecutor
) -> None:
    probe = probe_columns(read("captions", 0, config, folder, rules, pool))
    again = probe_from_frame(probe_to_frame(probe))
    assert again.bad == probe.bad
    for name in ("tokens", "patches", "num_bytes", "media_offsets", "media_start", "media_tokens"):
        assert getattr(again, name).dtype == getattr(probe, name).dtype
        assert np.array_equal(getattr(again, name), getattr(probe, name))


class TestComparedWithTheReference:
    @pytest.fixture
    def wrong(self, tokenizer: Tokenizer) -> Tokenizer:
        class Wrong:
            def encode(self, texts: Sequence[str]) -> Flat:
                ids, offsets = tokenizer.reference.first.encode(texts)
                return ids + 1, offsets

        return replace(tokenizer, _encoders=Encoders(Wrong(), Wrong()))

    def test_a_difference_is_an_incident_of_the_sample(
        self, folder: Path, wrong: Tokenizer, pool: ThreadPoolExecutor
    ) -> None:
        config = configured(tokenizer_verify=1.0)
        rules = {name: sample_rule(config, name, folder, wrong) for name in config.sources}
        held = read("web", 1, config, folder, rules, pool)
        probe = probe_columns(held)
        assert held.compared == len(probe) == len(probe.incidents)
        for i, incident in enumerate(probe.incidents):
            assert (incident.position, incident.row) == (probe.start + i, held.ref(i))
            assert incident.kind == "tokenizer_differs"
            assert "fastokens gives" in incident.detail
        assert not probe.bad, "it is delivered"
        assert probe_from_frame(probe_to_frame(probe)).incidents == probe.incidents

    def test_the_same_samples_wherever_they_are_read(
        self, folder: Path, wrong: Tokenizer, pool: ThreadPoolExecutor
    ) -> None:
        found = []
        for block_bytes in (1000, 100_000):
            source = {
                "format": "jsonl",
                "path": "web.jsonl",
                "text": "text",
                "extent": 10,
                "shuffle": False,
            }
            config = configured(
                tokenizer_verify=0.3,
                sources={"web": source},
                mixture={"schedule": [{"step": 0, "web": 1}]},
                loader={"threads": block_bytes % 7 + 1},
            )
            rules = {"web": sample_rule(config, "web", folder, wrong)}
            reader = SourceReader("web", config.sources["web"], folder, None, config.seed)
            blocks = range(reader.order(0).num_blocks)
            held = [read_block(reader, BlockId("web", 0, b), rules["web"], pool) for b in blocks]
            found.append([incident.position for one in held for incident in one.incidents])
        assert found[0] == found[1]
        assert 4 <= len(found[0]) <= 20

    def test_a_reference_is_not_compared(
        self, config: Config, folder: Path, pool: ThreadPoolExecutor
    ) -> None:
        tokenizer = Tokenizer.load(folder / "tokenizer", "tokenizers")
        rules = {"web": sample_rule(config, "web", folder, tokenizer)}
        assert rules["web"].verify == 0
        assert read("web", 0, config, folder, rules, pool).compared == 0
