"""The exam of a format. Subclass `SourceContract` and name the format; `WRITERS` must know how to write it.

    class TestMine(SourceContract):
        @pytest.fixture
        def format_name(self) -> str:
            return "mine"

pytest then runs every test below against it, the nasty half included: empty, cut and damaged files, a row
that lacks its field, two readers at once, an extent that is not there.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dataloader_svc.config.schema import Source
from dataloader_svc.errors import BadSample, Reason, SourceError
from dataloader_svc.sample import BlockId, keyed_rng
from dataloader_svc.sources import SourceReader
from dataloader_svc.sources.base import Extent, Fields, Rows, SourceFormat
from dataloader_svc.sources.index import make_format
from dataloader_svc.storage import Storage
from dataloader_svc.testing.data import WRITERS, TinyRow, tiny_rows, write_source

_DAMAGED_COPIES = 60
_CHAT = ({"role": "user", "content": "how?"}, {"role": "assistant", "content": "so: 猫"})


class SourceContract:
    """What every format does. A fixture `format_name` gives the name under which it is registered."""

    def test_reads_what_was_written_in_order(self, format_name: str, tmp_path: Path) -> None:
        rows = tiny_rows(50, image_side=4)
        source = write_source(tmp_path, format_name, rows, extent=300)
        extents, got = _read_shard(source, _only(tmp_path, format_name))
        assert [values["text"] for values in got] == [row.text for row in rows]
        pictures = [_loaded(values["image"], tmp_path) for values in got]
        assert pictures == [[row.image] for row in rows]
        assert len(extents) > 1, "extents are what is read at once: fifty rows should not be one"

    def test_reads_chat_messages(self, format_name: str, tmp_path: Path) -> None:
        source = write_source(tmp_path, format_name, [TinyRow(messages=_CHAT)] * 3)
        _, got = _read_shard(source, _only(tmp_path, format_name))
        assert [values["messages"] for values in got] == [list(_CHAT)] * 3

    def test_extents_cover_the_rows_without_gaps(self, format_name: str, tmp_path: Path) -> None:
        source = write_source(tmp_path, format_name, tiny_rows(50), extent=300)
        index = make_format(source, Storage()).index_shard(_only(tmp_path, format_name))
        ends = list(itertools.accumulate(extent.num_rows for extent in index.extents))
        assert [extent.first_row for extent in index.extents] == [0, *ends[:-1]]
        assert index.num_rows == ends[-1] == 50
        assert all(extent.num_rows > 0 and extent.num_bytes > 0 for extent in index.extents)
        assert index.missing == {}

    def test_one_row(self, format_name: str, tmp_path: Path) -> None:
        source = write_source(tmp_path, format_name, [TinyRow(text="only")])
        _, got = _read_shard(source, _only(tmp_path, format_name))
        assert got == [{"text": "only"}]

    def test_empty_text_is_a_value_and_odd_text_is_kept(self, format_name: str, tmp_path: Path) -> None:
        texts = ["", "  ", "None", "<|endoftext|>", "a\r\nb\x00c\u2028d", "e" * 100_000, "ü" * 5000]
        source = write_source(tmp_path, format_name, [TinyRow(text=text) for text in texts], extent=1000)
        _, got = _read_shard(source, _only(tmp_path, format_name))
        assert [values["text"] for values in got] == texts

    def test_a_row_without_its_field_is_bad_and_shifts_nothing(
        self, format_name: str, tmp_path: Path
    ) -> None:
        rows = [TinyRow(text=None if i % 5 == 2 else f"row {i}", image=b"x" * (i + 1)) for i in range(25)]
        source = write_source(tmp_path, format_name, rows, extent=200)
        _, got = _read_shard(source, _only(tmp_path, format_name))
        for i, values in enumerate(got):
            if i % 5 == 2:
                assert isinstance(values, BadSample)
                assert values.reason is Reason.MISSING_FIELD
                assert WRITERS.get(format_name).fields["text"] in values.detail
            else:
                assert values["text"] == f"row {i}"
                assert _loaded(values["image"], tmp_path) == [b"x" * (i + 1)]

    def test_only_mapped_fields_come(self, format_name: str, tmp_path: Path) -> None:
        source = write_source(tmp_path, format_name, tiny_rows(3, image_side=4))
        source = source.model_copy(update={"image": None})
        _, got = _read_shard(source, _only(tmp_path, format_name))
        assert [set(values) for values in got] == [{"text"}] * 3

    def test_fields_can_be_found_without_a_mapping(self, format_name: str, tmp_path: Path) -> None:
        source = write_source(tmp_path, format_name, tiny_rows(20, image_side=4))
        mapped = make_format(source, Storage())
        path = _only(tmp_path, format_name)
        (extent, *_) = mapped.index_shard(path).extents
        names = mapped.columns(path, extent)
        if not names:
            pytest.skip("the format doesn't say which fields there are")
        context = replace(mapped.context, fields=Fields({}, names))
        rows = type(mapped)(context).read(path, extent)
        assert not rows.bad
        assert set(rows.raw) == set(names)
        texts = mapped.read(path, extent).columns["text"]
        assert list(texts) in [list(values) for values in rows.raw.values()]

    def test_two_readers_at_once_and_twice_give_the_same(self, format_name: str, tmp_path: Path) -> None:
        source = write_source(tmp_path, format_name, tiny_rows(50, image_side=4), extent=300)
        path, maker = _only(tmp_path, format_name), make_format(source, Storage())
        extents = maker.index_shard(path).extents
        once = [_plain(maker.read(path, extent)) for extent in extents]
        with ThreadPoolExecutor(4) as pool:
            again = list(pool.map(lambda extent: _plain(maker.read(path, extent)), extents * 4))
        assert again == once * 4

    def test_a_missing_file_is_named(self, format_name: str, tmp_path: Path) -> None:
        source = write_source(tmp_path, format_name, tiny_rows(1))
        path = str(tmp_path / "not-here")
        with pytest.raises(SourceError, match="not-here"):
            make_format(source, Storage()).index_shard(path)
        with pytest.raises(SourceError, match="not-here"):
            make_format(source, Storage()).read(path, Extent(0, 1, 0, 1, 1))

    @pytest.mark.parametrize("content", [b"", b"\0" * 4096, b"\xff\xfe<html>404</html>" * 100])
    def test_a_file_that_is_none_gives_no_good_row(
        self, format_name: str, tmp_path: Path, content: bytes
    ) -> None:
        source = write_source(tmp_path, format_name, tiny_rows(1))
        path = tmp_path / "other"
        path.write_bytes(content)
        assert _good_texts(make_format(source, Storage()), str(path)) == []

    def test_an_extent_that_is_not_there_is_an_error(self, format_name: str, tmp_path: Path) -> None:
        source = write_source(tmp_path, format_name, tiny_rows(10), extent=200)
        path, maker = _only(tmp_path, format_name), make_format(source, Storage())
        extent = maker.index_shard(path).extents[-1]
        for wrong in (extent._replace(offset=10**9), extent._replace(num_rows=extent.num_rows + 1)):
            with pytest.raises(SourceError, match="part-0000"):
                maker.read(path, wrong)

    def test_a_cut_file_gives_a_part_of_its_rows(self, format_name: str, tmp_path: Path) -> None:
        rows = tiny_rows(20)
        source = write_source(tmp_path, format_name, rows, extent=300)
        path, maker = Path(_only(tmp_path, format_name)), make_format(source, Storage())
        whole = path.read_bytes()
        for part in range(1, 20):
            path.write_bytes(whole[: len(whole) * part // 20])
            texts = _good_texts(maker, str(path))
            assert texts == [row.text for row in rows[: len(texts)]]

    def test_a_file_cut_after_indexing_never_gives_wrong_rows(self, format_name: str, tmp_path: Path) -> None:
        source = write_source(tmp_path, format_name, tiny_rows(20), extent=300)
        path, maker = Path(_only(tmp_path, format_name)), make_format(source, Storage())
        whole, extents = path.read_bytes(), maker.index_shard(str(path)).extents
        expected = [_plain(maker.read(str(path), extent)) for extent in extents]
        path.write_bytes(whole[: len(whole) // 2])
        for extent, before in zip(extents, expected, strict=True):
            try:
                assert _plain(maker.read(str(path), extent)) == before
            except SourceError:
                continue

    def test_damage_raises_nothing_but_source_errors(self, format_name: str, tmp_path: Path) -> None:
        source = write_source(tmp_path, format_name, tiny_rows(20), extent=300)
        path, maker = Path(_only(tmp_path, format_name)), make_format(source, Storage())
        whole = path.read_bytes()
        rng = keyed_rng(0, "damage", format_name)
        for _ in range(_DAMAGED_COPIES):
            damaged = bytearray(whole)
            for place in rng.integers(len(whole), size=rng.integers(1, 6)).tolist():
                damaged[place] ^= 1 << int(rng.integers(8))
            path.write_bytes(damaged)
            _good_texts(maker, str(path))  # would raise anything else

    def test_every_position_of_an_epoch_once(self, format_name: str, tmp_path: Path) -> None:
        rows = tiny_rows(120, image_side=2)
        source = write_source(tmp_path, format_name, rows, shards=3, extent=300, shuffle={"block": 2000})
        reader = SourceReader("tiny", source, tmp_path, tmp_path / "cache", 5)
        assert reader.order(0).num_blocks > 3
        first, second = (_epoch(reader, epoch) for epoch in (0, 1))
        assert sorted(first) == sorted(second) == sorted(str(row.text) for row in rows)
        assert first != second
        assert first == _epoch(SourceReader("tiny", source, tmp_path, None, 5), 0)

    def test_without_shuffle_in_file_order(self, format_name: str, tmp_path: Path) -> None:
        rows = tiny_rows(40)
        source = write_source(tmp_path, format_name, rows, shards=2, extent=300, shuffle=False)
        reader = SourceReader("tiny", source, tmp_path, None, 5)
        assert _epoch(reader, 0) == _epoch(reader, 1) == [row.text for row in rows]


def _only(folder: Path, format_name: str) -> str:
    writer = WRITERS.get(format_name)
    (path,) = folder.glob(getattr(writer, "shards", f"part-*{writer.suffix}"))
    return str(path)


def _read_shard(source: Source, path: str) -> tuple[Sequence[Extent], list[Any]]:
    """The extents, and for each row its values by role, or its BadSample."""
    maker = make_format(source, Storage())
    extents = maker.index_shard(path).extents
    rows: list[Any] = []
    for extent in extents:
        read = maker.read(path, extent)
        assert read.num_rows == extent.num_rows
        assert all(len(column) == read.num_rows for column in read.columns.values())
        rows += _by_row(read)
    return extents, rows


def _by_row(rows: Rows) -> Iterator[Any]:
    for row in range(rows.num_rows):
        yield rows.bad.get(row) or {role: column[row] for role, column in rows.columns.items()}


def _plain(rows: Rows) -> list[str]:
    return [str(values) for values in _by_row(rows)]


def _good_texts(maker: SourceFormat, path: str) -> list[Any]:
    """Texts of the rows that come out good; SourceError at either step means none."""
    texts: list[Any] = []
    try:
        for extent in maker.index_shard(path).extents:
            rows = maker.read(path, extent)
            texts += [values["text"] for values in _by_row(rows) if not isinstance(values, BadSample)]
    except SourceError:
        pass
    return texts


def _loaded(media: Sequence[bytes | str], folder: Path) -> list[bytes]:
    return [(folder / item).read_bytes() if isinstance(item, str) else item for item in media]


def _epoch(reader: SourceReader, epoch: int) -> list[str]:
    """Texts by position, and each sample's place checked against `locate_row`."""
    texts: list[str] = []
    for number in range(reader.order(epoch).num_blocks):
        block = reader.read_block(BlockId(reader.name, epoch, number))
        assert block.bad == {}
        assert block.start == len(texts)
        assert block.ref(len(block) - 1) == reader.locate_row(epoch, block.start + len(block) - 1)
        texts += block.columns["text"]
    assert len(texts) == reader.num_rows
    return texts
