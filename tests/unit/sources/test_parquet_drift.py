"""Parquet shards of one source that don't agree: columns in another order, of other types, or not there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dataloader_svc.config.schema import Source
from dataloader_svc.errors import BadSample, Reason, SourceError
from dataloader_svc.sample import BlockId
from dataloader_svc.sources import SourceReader

IMAGE = pa.struct({"bytes": pa.binary(), "path": pa.string()})


def reader(folder: Path, *tables: pa.Table, **fields: Any) -> SourceReader:
    """Of a source with a shard a table, in order: 0.parquet, 1.parquet, ..."""
    for number, table in enumerate(tables):
        pq.write_table(table, folder / f"{number}.parquet")
    values = {"format": "parquet", "path": "*.parquet", "shuffle": False, **fields}
    return SourceReader("s", Source.model_validate(values), folder, folder / "index", 0)


def rows(of: SourceReader, role: str) -> list[Any]:
    """Of each row its value, or why it has none."""
    found: list[Any] = []
    for number in range(of.order(0).num_blocks):
        block = of.read_block(BlockId("s", 0, number))
        found += [block.bad.get(row, value) for row, value in enumerate(block.columns[role])]
    return found


def test_columns_in_another_order_and_of_another_kind_of_string(tmp_path: Path) -> None:
    kinds = [
        *(pa.string(), pa.large_string(), pa.string_view(), pa.binary()),
        pa.dictionary(pa.int16(), pa.string()),
    ]
    tables = []
    for number, kind in enumerate(kinds):
        text = pa.array([f"{number}a", f"{number}b"]).cast(kind)
        columns = [("n", pa.array([1, 2])), ("t", text), (f"only{number}", pa.array([None, 1.5]))]
        tables.append(pa.table(dict(columns[number % 3 :] + columns[: number % 3])))
    found = rows(reader(tmp_path, *tables, text="t"), "text")
    assert found == [f"{number}{letter}" for number in range(len(kinds)) for letter in "ab"]


def test_a_shard_without_the_column_has_bad_rows_and_says_so(tmp_path: Path) -> None:
    whole, without = pa.table({"t": ["a", "b"]}), pa.table({"T": ["c", "d"], "id": [1, 2]})
    of = reader(tmp_path, whole, without, whole, text="t")
    found = rows(of, "text")
    assert [found[row] for row in (0, 1, 4, 5)] == ["a", "b", "a", "b"]
    for problem in found[2:4]:
        assert isinstance(problem, BadSample)
        assert (problem.reason, problem.detail) == (Reason.MISSING_FIELD, "this shard has no column t")
    (warning,) = of.index.warnings
    assert warning.startswith(f"{tmp_path}/1.parquet: text: no column 't'; found: T, id")


def test_a_column_that_is_null_in_one_shard_only(tmp_path: Path) -> None:
    """As writers leave it that guess the type from the rows: null, where a shard has no value."""
    found = rows(reader(tmp_path, pa.table({"t": ["a"]}), pa.table({"t": pa.nulls(2)}), text="t"), "text")
    assert found[0] == "a"
    assert [problem.reason for problem in found[1:]] == [Reason.MISSING_FIELD] * 2


def test_a_shard_whose_column_can_not_serve_is_left_out_by_name(tmp_path: Path) -> None:
    of = reader(tmp_path, pa.table({"t": ["a"]}), pa.table({"t": [1, 2]}), pa.table({"t": ["b"]}), text="t")
    assert rows(of, "text") == ["a", "b"]
    (bad,) = of.index.bad_shards
    assert bad.path == f"{tmp_path}/1.parquet"
    assert bad.reason == f"{tmp_path}/1.parquet: text: column 't' is int64; it must be a string"
    with pytest.raises(SourceError, match=r"none of 3 shards(.|\n)*0\.parquet: text: column 't' is int64"):
        reader(tmp_path, *[pa.table({"t": [1]})] * 3, text="t")


def test_pictures_in_every_way_and_none(tmp_path: Path) -> None:
    cells: list[tuple[pa.DataType, Any, list[bytes | str]]] = [
        (IMAGE, {"bytes": b"1", "path": "a.png"}, [b"1"]),
        (IMAGE, {"bytes": None, "path": "a.png"}, ["a.png"]),
        (
            pa.struct({"path": pa.large_string(), "bytes": pa.large_binary()}),
            {"bytes": b"2", "path": None},
            [b"2"],
        ),
        (pa.binary(), b"3", [b"3"]),
        (pa.list_(IMAGE), [{"bytes": b"4", "path": None}, {"bytes": b"5", "path": None}], [b"4", b"5"]),
        (pa.list_(pa.binary()), [b"6"], [b"6"]),
        (pa.string(), "b.png", ["b.png"]),
    ]
    tables = [pa.table({"t": ["x"], "i": pa.array([cell], kind)}) for kind, cell, _ in cells]
    assert rows(reader(tmp_path, *tables, text="t", image="i"), "image") == [media for _, _, media in cells]
    of = reader(tmp_path, *tables, pa.table({"t": ["x"]}), text="t", image="i")
    assert rows(of, "image")[-1].reason is Reason.MISSING_FIELD


def test_a_chat_does_without_a_picture_column(tmp_path: Path) -> None:
    chat = [[{"role": "user", "content": "hi"}]]
    kind = pa.list_(pa.struct({"role": pa.string(), "content": pa.string()}))
    other = pa.large_list(pa.struct({"extra": pa.int64(), "content": pa.large_string(), "role": pa.string()}))
    tables = [
        pa.table({"m": pa.array(chat, kind), "i": [b"1"]}),
        pa.table({"m": pa.array(chat, other)}),
    ]
    of = reader(tmp_path, *tables, messages="m", image="i")
    assert rows(of, "messages") == chat * 2
    assert rows(of, "image") == [[b"1"], []]


def test_what_transforms_look_at_is_null_where_a_shard_lacks_it(tmp_path: Path) -> None:
    tables = [
        pa.table({"t": ["a"], "score": [0.9]}),
        pa.table({"t": ["b"]}),
        pa.table({"score": [2], "t": ["c"]}),
    ]
    of = reader(tmp_path, *tables, text="t", transforms=[{"filter": "score > 0.5"}])
    block = of.read_block(BlockId("s", 0, 0))
    assert block.raw["score"] == [0.9, None, 2]


def test_files_and_row_groups_without_rows_between_others(tmp_path: Path) -> None:
    table = pa.table({"t": ["a", "b"]})
    with pq.ParquetWriter(tmp_path / "groups", table.schema) as writer:
        for part in (table.slice(0, 0), table, table.slice(0, 0), table.slice(1)):
            writer.write_table(part)
    assert pq.ParquetFile(tmp_path / "groups").num_row_groups == 4
    nothing = [pa.table({"t": pa.array([], pa.string())}), pa.table({"other": pa.array([], pa.int64())})]
    reader(tmp_path, nothing[0], table, nothing[1], table.slice(0, 1), text="t")
    (tmp_path / "groups").rename(tmp_path / "4.parquet")
    of = SourceReader(
        "s",
        Source.model_validate({"format": "parquet", "path": "*.parquet", "text": "t", "shuffle": False}),
        tmp_path,
        None,
        0,
    )
    assert rows(of, "text") == ["a", "b", "a", "a", "b", "b"]
    assert [str(of.locate_row(0, at)).rpartition("/")[2] for at in range(6)] == [
        *("1.parquet:0", "1.parquet:1", "3.parquet:0"),
        *("4.parquet:0", "4.parquet:1", "4.parquet:2"),
    ]
    assert sum("has no rows" in warning for warning in of.index.warnings) == 2
