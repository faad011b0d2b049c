"""Transforms through the reader and the loader: what is read, delivered, passed over and cut."""

from __future__ import annotations

import io
import itertools
import tarfile
from collections.abc import Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dataloader_svc.config.schema import Config, Source
from dataloader_svc.errors import ConfigError, Reason
from dataloader_svc.loader.decode import PieceRange, decode, take
from dataloader_svc.loader.read import HeldBlock, read_block
from dataloader_svc.loader.rules import sample_rule
from dataloader_svc.media.cropped import CroppedReader, covering
from dataloader_svc.media.image import ImageReader
from dataloader_svc.sample import BlockId
from dataloader_svc.sources.reader import SourceReader
from dataloader_svc.transforms.tokenizers import Tokenizer
from dataloader_svc.transforms.vision import from_patches

from .conftest import configured, picture, write_jsonl

ROWS = [{"text": f"row {n}", "n": n, "meta": {"lang": "en" if n % 2 else "de"}} for n in range(60)]


def source_of(folder: Path, transforms: list[dict[str, Any]], **changes: Any) -> Config:
    source = {"format": "jsonl", "path": "rows.jsonl", "text": "text", "extent": 200, **changes}
    source.setdefault("shuffle", {"block": 700})
    return configured(
        sources={"s": {**source, "transforms": transforms}},
        mixture={"schedule": [{"step": 0, "s": 1}]},
    )


def blocks(
    config: Config, folder: Path, tokenizer: Tokenizer, pool: Executor, epoch: int = 0
) -> Iterator[HeldBlock]:
    reader = SourceReader("s", config.sources["s"], folder, None, config.seed)
    rule = sample_rule(config, "s", folder, tokenizer)
    for block in range(reader.order(epoch).num_blocks):
        yield read_block(reader, BlockId("s", epoch, block), rule, pool)


def delivered(held: HeldBlock, tokenizer: Tokenizer) -> list[str]:
    """Texts of the documents that are there, in order of position."""
    return [
        tokenizer.decode(held.ids[first : last - 1].tolist())
        for first, last in itertools.pairwise(held.id_offsets.tolist())
        if last > first
    ]


@pytest.fixture
def rows(folder: Path) -> Path:
    write_jsonl(folder / "rows.jsonl", ROWS)
    return folder


def test_filtered_rows_have_no_tokens_and_a_reason(
    rows: Path, tokenizer: Tokenizer, pool: ThreadPoolExecutor
) -> None:
    config = source_of(rows, [{"filter": "n >= 10 and meta.lang == 'en'"}])
    texts, reasons = [], []
    for held in blocks(config, rows, tokenizer, pool):
        texts += delivered(held, tokenizer)
        reasons += [row.reason for row in held.bad]
    assert sorted(texts) == sorted(f"row {n}" for n in range(11, 60, 2))
    assert reasons == [Reason.FILTERED] * 35


def test_two_filters_and_a_map_work_in_order(
    rows: Path, tokenizer: Tokenizer, pool: ThreadPoolExecutor
) -> None:
    (rows / "shout_of_test.py").write_text(
        "def shout(row):\n    return {'text': row['text'].upper(), 'n': row['n'] + 1}\n"
    )
    transforms = [
        {"filter": "n < 3"},
        {"map": {"function": "shout_of_test:shout", "columns": ["n"]}},
        {"filter": "n > 1"},
    ]
    config = source_of(rows, transforms)
    texts = [text for held in blocks(config, rows, tokenizer, pool) for text in delivered(held, tokenizer)]
    assert sorted(texts) == ["ROW 1", "ROW 2"]


@settings(max_examples=25, deadline=None)
@given(
    least=st.integers(0, 60),
    fraction=st.floats(0.02, 1),
    limit=st.integers(1, 80),
    shuffle=st.sampled_from([False, {"block": 300}, {"block": 5000}]),
    seed=st.integers(0, 3),
)
def test_every_kept_position_once_in_every_epoch(
    tmp_path_factory: pytest.TempPathFactory,
    least: int,
    fraction: float,
    limit: int,
    shuffle: Any,
    seed: int,
) -> None:
    folder = tmp_path_factory.mktemp("property")
    write_jsonl(folder / "rows.jsonl", ROWS)
    transforms = [
        {"filter": f"n >= {least}"},
        {"subset": {"fraction": fraction, "seed": seed}},
        {"max_samples": limit},
    ]
    source = Source(
        format="jsonl", path="rows.jsonl", text="text", extent=200, shuffle=shuffle, transforms=transforms
    )
    reader = SourceReader("s", source, folder, None, 7)
    assert reader.num_rows == min(limit, max(1, round(fraction * 60)))
    seen = []
    for epoch in (0, 1):
        found = [
            reader.read_block(BlockId("s", epoch, block)) for block in range(reader.order(epoch).num_blocks)
        ]
        assert [block.start for block in found] == reader.order(epoch).block_starts[:-1].tolist()
        refs = [block.ref(index) for block in found for index in range(len(block))]
        assert refs == [reader.locate_row(epoch, position) for position in range(reader.num_rows)]
        numbers = [n for block in found for n in block.raw["n"]]
        assert [ref.row for ref in refs] == numbers  # the row that is named is the row that is read
        assert len(set(numbers)) == len(numbers)
        seen.append(sorted(numbers))
    assert seen[0] == seen[1]


def test_what_is_left_out_is_not_read(rows: Path) -> None:
    config = source_of(rows, [{"max_samples": 8}], shuffle=False)
    reader = SourceReader("s", config.sources["s"], rows, None, 7)
    whole = rows / "rows.jsonl"
    data = bytearray(whole.read_bytes())
    behind = data.index(b'"row 20"')
    data[behind:] = b"\xff" * (len(data) - behind)  # the size stays: only who reads it can find out
    whole.write_bytes(data)
    found = reader.read_block(BlockId("s", 0, 0))
    assert (found.columns["text"], found.bad) == ([f"row {n}" for n in range(8)], {})


def test_the_digest_of_a_part_is_another(rows: Path) -> None:
    digests = {
        SourceReader("s", source_of(rows, transforms).sources["s"], rows, rows / "cache", 7).index.digest
        for transforms in ([], [{"max_samples": 8}], [{"max_samples": 9}], [{"subset": 0.5}])
    }
    assert len(digests) == 4
    assert (
        len(
            {
                SourceReader("s", source_of(rows, t).sources["s"], rows, None, 7).index.digest
                for t in ([], [{"max_samples": 60}], [{"filter": "n > 1"}])
            }
        )
        == 1
    )


def test_columns_of_parquet_and_tar(tmp_path: Path) -> None:
    structs = [{"lang": "en", "deep": {"x": n}} for n in range(3)]
    pq.write_table(pa.table({"text": ["a", "b", "c"], "meta": structs}), tmp_path / "t.parquet")
    source = Source(
        format="parquet",
        path="t.parquet",
        text="text",
        shuffle=False,
        transforms=[{"filter": "meta.deep.x == 1 and text == 'b' and meta.lang == 'en' and gone is None"}],
    )
    found = SourceReader("p", source, tmp_path, None, 0).read_block(BlockId("p", 0, 0))
    assert found.raw == {
        "meta.deep.x": [0, 1, 2],
        "text": ["a", "b", "c"],
        "meta.lang": ["en"] * 3,
        "gone": [None] * 3,
    }
    with tarfile.open(tmp_path / "t.tar", "w") as tar:
        for n in range(2):
            for extension, content in (("txt", b"words"), ("json", b'{"width": %d}' % n), ("cls", b"\xff")):
                info = tarfile.TarInfo(f"{n}.{extension}")
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
    names = "json.width > 0 and txt == 'words' and cls == cls and json is not None"
    source = Source(
        format="webdataset", path="t.tar", text="txt", shuffle=False, transforms=[{"filter": names}]
    )
    found = SourceReader("t", source, tmp_path, None, 0).read_block(BlockId("t", 0, 0))
    assert found.raw == {
        "json.width": [0, 1],
        "txt": ["words"] * 2,
        "cls": [b"\xff"] * 2,
        "json": [{"width": 0}, {"width": 1}],
    }


def test_a_broken_json_member_is_no_null(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "t.tar", "w") as tar:
        for name, content in (("0.txt", b"words"), ("0.json", b"{")):
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    source = Source(
        format="webdataset", path="t.tar", text="txt", shuffle=False, transforms=[{"filter": "json.w > 1"}]
    )
    found = SourceReader("t", source, tmp_path, None, 0).read_block(BlockId("t", 0, 0))
    assert found.bad[0].reason == Reason.BAD_RECORD
    assert "member '0.json' is not JSON" in found.bad[0].detail


class TestPictures:
    SIZES = ((60, 90), (300, 100), (28, 400), (140, 140))

    def config(self, folder: Path, transforms: list[dict[str, Any]], **changes: Any) -> Config:
        for number, (height, width) in enumerate(self.SIZES):
            (folder / f"{number}.png").write_bytes(picture(width, height, number))
        write_jsonl(
            folder / "rows.jsonl", [{"text": f"{n}", "image": f"{n}.png"} for n in range(len(self.SIZES))]
        )
        return source_of(folder, transforms, image="image", shuffle=False, **changes)

    def grids_and_pixels(
        self, config: Config, folder: Path, tokenizer: Tokenizer, pool: Executor, epoch: int = 0
    ) -> tuple[list[list[int]], list[np.ndarray]]:
        reader = SourceReader("s", config.sources["s"], folder, None, config.seed)
        rule = sample_rule(config, "s", folder, tokenizer)
        held = read_block(reader, BlockId("s", epoch, 0), rule, pool)
        assert held.bad == ()
        pieces = [
            take(held, PieceRange(n, 0, int(held.id_offsets[n + 1] - held.id_offsets[n])), reader, rule)
            for n in range(len(self.SIZES))
        ]
        frame = decode(pieces, 14, pool)
        assert frame.arrays["ok"].all()
        grids = frame.arrays["grid_thw"].tolist()
        ends = np.cumsum([0, *(t * h * w for t, h, w in grids)])
        images = [
            from_patches(frame.arrays["pixels"][a:b], tuple(grid), rule.vision)[0]
            for a, b, grid in zip(ends, ends[1:], grids, strict=False)
        ]
        return grids, images

    def test_resize_bounds_the_source_alone(
        self, folder: Path, tokenizer: Tokenizer, pool: ThreadPoolExecutor
    ) -> None:
        config = self.config(folder, [{"resize": {"max_pixels": 784 * 2}}])
        grids, _ = self.grids_and_pixels(config, folder, tokenizer, pool)
        assert max(t * h * w for t, h, w in grids) == 8  # two tokens of four patches

    def test_a_centred_crop(self, folder: Path, tokenizer: Tokenizer, pool: ThreadPoolExecutor) -> None:
        config = self.config(folder, [{"crop": {"height": 56, "width": 84}}])
        grids, images = self.grids_and_pixels(config, folder, tokenizer, pool)
        assert grids == [[1, 4, 6]] * 4
        for number, (height, width) in enumerate(self.SIZES):
            scale = max(56 / height, 84 / width)
            size = (round(height * scale), round(width * scale))
            scaled = ImageReader(10**9).decode((folder / f"{number}.png").read_bytes(), size)[0]
            top, left = round((size[0] - 56) / 2), round((size[1] - 84) / 2)
            np.testing.assert_array_equal(images[number], scaled[top : top + 56, left : left + 84])

    def test_a_random_crop_is_a_function_of_the_sample(
        self, folder: Path, tokenizer: Tokenizer, pool: ThreadPoolExecutor
    ) -> None:
        config = self.config(folder, [{"crop": {"height": 28, "width": 28, "at": "random"}}])
        runs = [self.grids_and_pixels(config, folder, tokenizer, pool, epoch)[1] for epoch in (0, 0, 1)]
        for first, again in zip(runs[0], runs[1], strict=True):
            np.testing.assert_array_equal(first, again)
        assert any((a != b).any() for a, b in zip(runs[0], runs[2], strict=True))

    def test_crop_without_pictures(self, rows: Path, tokenizer: Tokenizer) -> None:
        config = source_of(rows, [{"crop": {"height": 28, "width": 28}}])
        with pytest.raises(ConfigError, match=r"transforms.0.crop: the source maps no pictures"):
            sample_rule(config, "s", rows, tokenizer)

    @given(*[st.integers(1, 5000)] * 2, *[st.integers(1, 30).map(lambda n: 28 * n)] * 2)
    def test_covering(self, height: int, width: int, least_height: int, least_width: int) -> None:
        found = covering(height, width, least_height, least_width)
        assert found[0] >= least_height
        assert found[1] >= least_width
        assert found[0] == least_height or found[1] == least_width
        scale = max(least_height / height, least_width / width)
        assert abs(found[0] - height * scale) <= 0.5 + 1e-6
        assert abs(found[1] - width * scale) <= 0.5 + 1e-6

    def test_a_line_is_no_picture(self) -> None:
        reader = CroppedReader(ImageReader(10**9), 28, 28)
        with pytest.raises(Exception, match="aspect ratio above 200"):
            reader.probe(picture(1005, 5, 0))
