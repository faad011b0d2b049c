"""Files that were repaired in place are read in the order that they had: the same positions, the new rows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dataloader_svc.config.schema import Source
from dataloader_svc.errors import SourceError, StateError
from dataloader_svc.sample import BlockId, Listing
from dataloader_svc.sources import SourceReader
from dataloader_svc.sources.repaired import Layout
from dataloader_svc.testing.data import TinyRow, write_source

ROWS, SHARDS = 60, 3
BAD = (3, 4, 31, 59)
FORMATS = ("jsonl", "parquet", "webdataset", "arrow")


def rows(*, mended: bool, count: int = ROWS) -> list[TinyRow]:
    """Row i tells its number; repaired ones are long, so that all extents behind them move."""
    text = {number: f"row {number} " + "mended " * 40 * mended for number in range(count)}
    return [
        TinyRow(text=text[number] if number in BAD and mended else None if number in BAD else f"row {number}")
        for number in range(count)
    ]


def write(folder: Path, name: str, content: list[TinyRow], *, shards: int = SHARDS, **settings) -> Source:
    for old in (folder / "data").glob("*"):
        old.unlink()
    settings.setdefault("shuffle", {"block": 1500})
    return write_source(folder / "data", name, content, shards=shards, extent=300, **settings)


def opened(folder: Path, source: Source) -> SourceReader:
    return SourceReader("s", source, folder, folder / "index", 7)


def by_position(reader: SourceReader, epoch: int) -> list[tuple[int, str | None]]:
    """(row number in the source, text or None where it is bad), position by position."""
    found = []
    per_shard = ROWS // SHARDS
    for number in range(reader.order(epoch).num_blocks):
        block = reader.read_block(BlockId("s", epoch, number))
        assert block.start == len(found)
        for index in range(len(block)):
            ref = block.ref(index)
            assert reader.locate_row(epoch, block.start + index) == ref
            row = per_shard * reader.index.paths.index(ref.shard) + ref.row
            found.append((row, None if index in block.bad else block.columns["text"][index]))
    return found


@pytest.mark.parametrize("name", FORMATS)
def test_every_position_keeps_its_row(tmp_path: Path, name: str) -> None:
    before = opened(tmp_path, write(tmp_path, name, rows(mended=False)))
    planned = {epoch: by_position(before, epoch) for epoch in (0, 2)}
    assert {row for row, text in planned[0] if text is None} == set(BAD)

    source = write(tmp_path, name, rows(mended=True))
    changed = opened(tmp_path, source)
    assert changed.index.digest != before.index.digest
    changed.accept_repair(before.listing)
    for reader in (changed, opened(tmp_path, source)):
        assert reader.index.digest == before.index.digest
        assert np.array_equal(reader.order(2).block_starts, before.order(2).block_starts)
        for epoch, expected in planned.items():
            found = by_position(reader, epoch)
            assert [row for row, _ in found] == [row for row, _ in expected]
            assert all(text is not None and text.startswith(f"row {row}") for row, text in found)
            assert sum("mended" in text for _, text in found) == len(BAD)


def test_repaired_twice(tmp_path: Path) -> None:
    before = opened(tmp_path, write(tmp_path, "jsonl", rows(mended=False)))
    planned = [row for row, _ in by_position(before, 0)]
    half = rows(mended=True)
    half[31] = TinyRow(text=None)
    for content in (half, rows(mended=True)):
        reader = opened(tmp_path, write(tmp_path, "jsonl", content))
        reader.accept_repair(before.listing)
        reader.accept_repair(before.listing)  # again: nothing new
        assert [row for row, _ in by_position(reader, 0)] == planned
    assert None not in [text for _, text in by_position(reader, 0)]


def test_with_rows_left_out_by_the_source(tmp_path: Path) -> None:
    settings = {"transforms": [{"max_samples": 41}]}
    before = opened(tmp_path, write(tmp_path, "jsonl", rows(mended=False), **settings))
    planned = [row for row, _ in by_position(before, 0)]
    assert len(planned) == 41
    source = write(tmp_path, "jsonl", rows(mended=True), **settings)
    opened(tmp_path, source).accept_repair(before.listing)
    assert [row for row, _ in by_position(opened(tmp_path, source), 0)] == planned


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (
            lambda folder: append(folder, "part-0001", ["row 60"]),
            r"part-0001\S*: had 20 rows and has 21 now: rows were added",
        ),
        (
            lambda folder: cut(folder, "part-0002"),
            r"part-0002\S*: had 20 rows and has 19 now: rows are missing",
        ),
        (lambda folder: shard(folder, "part-0000").unlink(), r"part-0000\S*: is gone; put it back"),
        (lambda folder: (folder / "data" / "aa.jsonl").write_text('{"text": "x"}\n'), r"aa.jsonl: is new"),
        (lambda folder: shard(folder, "part-0000").write_bytes(b""), r"had 20 rows and has 0 now"),
    ],
)
def test_what_is_no_repair_is_refused_by_name(tmp_path: Path, change, told: str) -> None:
    before = opened(tmp_path, write(tmp_path, "jsonl", rows(mended=False)))
    source = write(tmp_path, "jsonl", rows(mended=True))
    change(tmp_path)
    reader = opened(tmp_path, source)
    with pytest.raises(SourceError, match=told):
        reader.accept_repair(before.listing)
    assert opened(tmp_path, source).index.files is None


def shard(folder: Path, number: str) -> Path:
    (path,) = [path for path in (folder / "data").glob("*.jsonl") if number in path.name]
    return path


def append(folder: Path, number: str, texts: list[str]) -> None:
    with shard(folder, number).open("a") as file:
        file.writelines(f'{{"text": "{text}"}}\n' for text in texts)


def cut(folder: Path, number: str) -> None:
    path = shard(folder, number)
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))


def test_without_the_layout_the_files_are_refused(tmp_path: Path) -> None:
    before = opened(tmp_path, write(tmp_path, "jsonl", rows(mended=False)))
    for path in (tmp_path / "index").glob("*.layout"):
        path.unlink()
    source = write(tmp_path, "jsonl", rows(mended=True))
    reader = opened(tmp_path, source)
    with pytest.raises(SourceError, match="has no layout of those"):
        reader.accept_repair(before.listing)


def test_a_layout_that_is_lost_after_the_repair_is_an_error(tmp_path: Path) -> None:
    """Never another order in silence."""
    before = opened(tmp_path, write(tmp_path, "jsonl", rows(mended=False)))
    source = write(tmp_path, "jsonl", rows(mended=True))
    opened(tmp_path, source).accept_repair(before.listing)
    for path in (tmp_path / "index").glob("*.layout"):
        path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(
        SourceError, match="source 's': its files are a repair, and the layout they had is lost"
    ):
        opened(tmp_path, source)


def test_a_layout_survives_the_way_there_and_back(tmp_path: Path) -> None:
    index = opened(tmp_path, write(tmp_path, "parquet", rows(mended=False))).index
    layout = Layout.of(index)
    again = Layout.from_bytes(layout.to_bytes())
    assert (again.digest, again.names) == (index.digest, index.names)
    assert np.array_equal(again.extents, layout.extents)
    for damaged in (b"", layout.to_bytes()[:-1], b"x" + layout.to_bytes(), layout.to_bytes()[:-1] + b"x"):
        with pytest.raises(ValueError, match="damaged"):
            Layout.from_bytes(damaged)


# ---- shards that were appended


def add_shard(folder: Path, name: str, numbers: range) -> None:
    lines = "".join(f'{{"text": "row {number}"}}\n' for number in numbers)
    (folder / "data" / f"{name}.jsonl").write_text(lines)


def test_the_first_shards_are_read_as_before_others_came(tmp_path: Path) -> None:
    source = write(tmp_path, "jsonl", rows(mended=True))
    before = opened(tmp_path, source)
    planned = by_position(before, 1)
    add_shard(tmp_path, "zz-0", range(60, 75))
    grown = opened(tmp_path, source)
    assert grown.num_rows == ROWS + 15
    part = grown.listed(before.listing)
    assert part is grown.listed(before.listing)
    assert part.listing == before.listing
    assert by_position(part, 1) == planned
    assert grown.listed(grown.listing) is grown
    assert grown.listed(Listing()) is grown
    assert by_position(grown.listed(Listing(0, before.index.digest)), 1) == planned  # no count was kept
    assert len(by_position(grown, 1)) == ROWS + 15


def test_after_a_repair_of_a_source_that_has_grown_each_epoch_keeps_its_order(tmp_path: Path) -> None:
    source = write(tmp_path, "jsonl", rows(mended=False))
    first = opened(tmp_path, source)
    add_shard(tmp_path, "zz-0", range(60, 75))
    second = opened(tmp_path, source)
    orders = [[row for row, _ in by_position(reader, 0)] for reader in (first, second)]
    write(tmp_path, "jsonl", rows(mended=True))
    add_shard(tmp_path, "zz-0", range(60, 75))
    add_shard(tmp_path, "zz-1", range(75, 80))
    repaired = opened(tmp_path, source)
    with pytest.raises(StateError, match="source 's': its files are not those of the state"):
        repaired.listed(first.listing)
    repaired.accept_repair(first.listing, second.listing)
    for reader in (repaired, opened(tmp_path, source)):
        for listing, order in zip((first.listing, second.listing), orders, strict=True):
            found = by_position(reader.listed(listing), 0)
            assert [row for row, _ in found] == order
            assert None not in [text for _, text in found]


def test_shards_that_changed_are_named_although_others_were_appended(tmp_path: Path) -> None:
    source = write(tmp_path, "jsonl", rows(mended=True))
    before = opened(tmp_path, source)
    add_shard(tmp_path, "zz-0", range(60, 75))
    shard(tmp_path, "part-0001").unlink()
    add_shard(tmp_path, "aa", range(80, 85))
    append(tmp_path, "part-0002", ["row 90"])
    with pytest.raises(StateError) as refused:
        opened(tmp_path, source).listed(before.listing)
    text = str(refused.value)
    assert "(3 shards with index " in text
    assert "part-0001.jsonl: is gone; put it back" in text
    assert "aa.jsonl: is new, and not listed after the others" in text
    assert "part-0002.jsonl: holds other rows" in text
    assert "zz-0" not in text
    assert "part-0000" not in text
