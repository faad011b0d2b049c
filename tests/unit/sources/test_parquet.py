import subprocess
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dataloader_svc.errors import Reason, SourceError
from dataloader_svc.sources.base import Fields, FormatContext
from dataloader_svc.sources.parquet import Parquet
from dataloader_svc.storage import Storage

TEXTS = ["a", "", None, "猫" * 50]


def write(tmp_path, columns, **options):
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table(columns), path, **options)
    return str(path)


def read_all(path, **names):
    fields = Fields({role: (name,) if isinstance(name, str) else name for role, name in names.items()})
    maker = Parquet(FormatContext(fields, extent_bytes=1))
    index = maker.index_shard(path)
    return index, [maker.read(path, extent) for extent in index.extents]


@pytest.mark.parametrize(
    "kind",
    [
        pa.string(),
        pa.large_string(),
        pa.binary(),
        pa.large_binary(),
        pa.dictionary(pa.int8(), pa.string()),
        pa.dictionary(pa.int32(), pa.large_string()),
        pa.string_view(),
    ],
    ids=str,
)
def test_text_types(tmp_path, kind):
    values = pa.array(TEXTS, pa.string()).cast(kind)
    _, (rows,) = read_all(write(tmp_path, {"t": values}), text="t")
    assert [rows.columns["text"][row] for row in (0, 1, 3)] == ["a", "", TEXTS[3]]
    assert {row: error.reason for row, error in rows.bad.items()} == {2: Reason.MISSING_FIELD}
    assert "'t' is null" in rows.bad[2].detail


@pytest.mark.parametrize("kind", [pa.string(), pa.binary()], ids=str)
def test_text_that_is_not_utf8_costs_its_row_only(tmp_path, kind):
    raw = pa.array([b"good", b"\xff bad", None, "é".encode()], pa.binary())
    values = (
        raw
        if kind == pa.binary()
        else pa.StringArray.from_buffers(4, raw.buffers()[1], raw.buffers()[2], raw.buffers()[0])
    )
    _, (rows,) = read_all(write(tmp_path, {"t": values}), text="t")
    assert [rows.columns["text"][row] for row in (0, 3)] == ["good", "é"]
    assert [rows.bad[row].reason for row in (1, 2)] == [Reason.BAD_RECORD, Reason.MISSING_FIELD]


@pytest.mark.parametrize(
    ("role", "kind"),
    [
        ("text", pa.int64()),
        ("text", pa.float64()),
        ("text", pa.list_(pa.string())),
        ("text", pa.struct({"bytes": pa.binary()})),
        ("image", pa.int64()),
        ("image", pa.struct({"url": pa.string()})),
        ("image", pa.list_(pa.list_(pa.binary()))),
        ("messages", pa.string()),
        ("messages", pa.list_(pa.string())),
        ("messages", pa.map_(pa.string(), pa.string())),
        ("messages", pa.list_(pa.map_(pa.string(), pa.string()))),
        ("image", pa.list_(pa.uint8())),
        ("image", pa.binary(4)),
        ("text", pa.uuid()),
        ("input_ids", pa.list_(pa.float32())),
        ("input_ids", pa.list_(pa.decimal128(5))),
        ("input_ids", pa.string()),
        ("chosen", pa.int64()),
        ("chosen", pa.list_(pa.string())),
    ],
    ids=str,
)
def test_types_that_can_not_serve(tmp_path, role, kind):
    path = write(tmp_path, {"t": pa.array([None], kind)})
    with pytest.raises(SourceError, match=r"x\.parquet: .*column 't' is .*must be"):
        read_all(path, **{role: "t"})


def test_an_all_null_column_is_bad_rows(tmp_path):
    _, (rows,) = read_all(write(tmp_path, {"t": pa.nulls(2)}), text="t")
    assert [error.reason for error in rows.bad.values()] == [Reason.MISSING_FIELD] * 2


@pytest.mark.parametrize(
    ("kind", "cells", "expected"),
    [
        (pa.binary(), [b"1", None], [[b"1"], None]),
        (pa.string(), ["p.png", ""], [["p.png"], None]),
        (pa.list_(pa.binary()), [[b"1", b"2"], [], None], [[b"1", b"2"], [], []]),
        (pa.large_list(pa.string()), [["a", "b"], None, [None]], [["a", "b"], [], None]),
        (pa.list_(pa.string(), 2), [["a", "b"], None], [["a", "b"], []]),
        (pa.list_view(pa.string()), [["a", "b"], [], None], [["a", "b"], [], []]),
        (pa.list_(pa.dictionary(pa.int32(), pa.string())), [["a", "b"], ["a"]], [["a", "b"], ["a"]]),
        (pa.dictionary(pa.int32(), pa.string()), ["a", None, "a"], [["a"], None, ["a"]]),
        (pa.string_view(), ["a", None], [["a"], None]),
        (pa.binary_view(), [b"1", None], [[b"1"], None]),
        (pa.large_binary(), [b"1", None], [[b"1"], None]),
        (
            pa.list_(pa.struct({"bytes": pa.binary(), "path": pa.string()})),
            [[{"bytes": b"1", "path": "x"}, {"bytes": None, "path": "y"}], None],
            [[b"1", "y"], []],
        ),
        (pa.struct({"path": pa.string()}), [{"path": "x"}, {"path": None}, None], [["x"], None, None]),
        (
            pa.struct({"bytes": pa.large_binary(), "path": pa.large_string(), "size": pa.int64()}),
            [{"bytes": b"1", "path": None, "size": 1}, {"bytes": b"", "path": "x", "size": 0}],
            [[b"1"], ["x"]],
        ),
        (pa.struct({"bytes": pa.binary(), "path": pa.int64()}), [{"bytes": b"1", "path": 7}], [[b"1"]]),
        (pa.struct({"bytes": pa.int64(), "path": pa.string()}), [{"bytes": 7, "path": "x"}], [None]),
    ],
    ids=str,
)
def test_media_types(tmp_path, kind, cells, expected):
    path = write(tmp_path, {"i": pa.array(cells, kind)})
    _, (rows,) = read_all(path, image="i")
    assert [rows.columns["image"][row] for row in range(len(cells)) if row not in rows.bad] == [
        value for value in expected if value is not None
    ]
    assert list(rows.bad) == [row for row, value in enumerate(expected) if value is None]


CHAT = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yo"}]
STRINGS = {
    "string": pa.string(),
    "large_string": pa.large_string(),
    "dictionary": pa.dictionary(pa.int32(), pa.string()),
}


@pytest.mark.parametrize("content", STRINGS)
@pytest.mark.parametrize("role", STRINGS)
@pytest.mark.parametrize("lists", [pa.list_, pa.large_list, pa.list_view, lambda kind: pa.list_(kind, 2)])
def test_nested_chat_messages(tmp_path, content, role, lists):
    kind = pa.struct({"content": STRINGS[content], "role": STRINGS[role], "name": pa.string()})
    path = write(tmp_path, {"m": pa.array([CHAT, None, CHAT[::-1]], lists(kind))}, row_group_size=2)
    _, (first, second) = read_all(path, messages="m")
    assert first.columns["messages"][0] == CHAT, "a null name is no key of the message"
    assert {row: problem.reason for row, problem in first.bad.items()} == {1: Reason.MISSING_FIELD}
    assert second.columns["messages"] == [CHAT[::-1]]


def test_chat_messages_with_parts_and_tools(tmp_path):
    part = pa.struct(
        {"type": pa.string(), "text": pa.large_string(), "image": pa.struct({"bytes": pa.binary()})}
    )
    call = pa.struct({"name": pa.string(), "n": pa.int64()})
    kind = pa.struct({"role": pa.string(), "content": pa.list_(part), "calls": pa.list_(call)})
    parts = [
        {"type": "image", "text": None, "image": {"bytes": b"1"}},
        {"type": "text", "text": "a", "image": None},
    ]
    rows = [[{"role": "user", "content": parts, "calls": [{"name": "f", "n": 1}]}]]
    _, (read,) = read_all(write(tmp_path, {"m": pa.array(rows, pa.list_(kind))}), messages="m")
    (message,) = read.columns["messages"][0]
    assert message["content"] == [{"type": "image", "medium": b"1"}, {"type": "text", "text": "a"}]
    assert message["calls"] == [{"name": "f", "n": 1}]


@pytest.mark.parametrize(
    "kind",
    [
        *(pa.list_(pa.int32()), pa.large_list(pa.uint16()), pa.list_(pa.int64(), 2)),
        *(pa.list_view(pa.int32()), pa.large_list_view(pa.int8())),
        pa.list_(pa.dictionary(pa.int8(), pa.int32())),
    ],
    ids=str,
)
def test_lists_of_token_ids(tmp_path, kind):
    path = write(tmp_path, {"x": pa.array([[1, 2], None, [3, 4]], kind)}, row_group_size=2)
    _, (first, second) = read_all(path, input_ids="x")
    assert first.columns["input_ids"][0].tolist() == [1, 2]
    assert {row: problem.reason for row, problem in first.bad.items()} == {1: Reason.MISSING_FIELD}
    assert [ids.tolist() for ids in second.columns["input_ids"]] == [[3, 4]]


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary(), pa.binary_view()], ids=str)
def test_token_ids_as_bytes(tmp_path, kind):
    path = write(tmp_path, {"x": pa.array([b"\1\0\2\0", b"\1"], kind)})
    maker = Parquet(FormatContext(Fields({"input_ids": ("x",)}, id_type="uint16")))
    rows = maker.read(path, maker.index_shard(path).extents[0])
    assert rows.columns["input_ids"][0].tolist() == [1, 2]
    assert rows.bad[1].reason is Reason.TRUNCATED


def test_the_first_column_that_a_row_has(tmp_path):
    columns = {"jpg": pa.array([b"j", None, None]), "png": pa.array([b"p", b"p", None])}
    _, (rows,) = read_all(write(tmp_path, columns), image=("jpg", "png", "webp"))
    assert rows.columns["image"][:2] == [[b"j"], [b"p"]]
    assert list(rows.bad) == [2]


def test_paths_that_are_not_utf8_cost_their_row_only(tmp_path):
    raw = pa.array([b"a.png", b"\xff", b"c.png"], pa.binary())
    names = pa.StringArray.from_buffers(3, raw.buffers()[1], raw.buffers()[2])
    _, (rows,) = read_all(write(tmp_path, {"i": names}), image="i")
    assert rows.columns["image"][::2] == [["a.png"], ["c.png"]]
    assert rows.bad[1].reason is Reason.BAD_RECORD


def test_a_missing_column_is_told_with_what_there_is(tmp_path):
    index, (rows,) = read_all(write(tmp_path, {"contents": ["a"], "id": [1]}), text="content")
    assert dict(index.missing) == {"text": "column 'content'; found: contents, id; did you mean 'contents'?"}
    assert rows.bad[0].reason is Reason.MISSING_FIELD


def test_only_mapped_columns_count_and_are_read(tmp_path):
    columns = {
        "t": ["x" * 100] * 50,
        "blob": [bytes([i]) * 10_000 for i in range(50)],
        "t.2": ["y" * 50] * 50,
    }
    path = write(tmp_path, columns, row_group_size=25, use_dictionary=False)
    index, read = read_all(path, text="t")
    assert [extent.num_rows for extent in index.extents] == [25, 25]
    assert all(25 * 100 <= extent.num_bytes < 25 * 120 for extent in index.extents)
    assert set(read[0].columns) == {"text"}
    index, read = read_all(path, text="t.2")
    assert read[0].columns["text"] == ["y" * 50] * 25
    assert all(25 * 50 <= extent.num_bytes < 25 * 70 for extent in index.extents)


def test_two_columns_of_one_name(tmp_path):
    path = tmp_path / "x.parquet"
    table = pa.Table.from_arrays([pa.array(["a"]), pa.array(["b"])], names=["t", "t"])
    pq.write_table(table, path)
    with pytest.raises(SourceError, match="2 columns called 't'"):
        read_all(str(path), text="t")


def test_a_rewritten_file_is_not_read_with_the_old_footer(tmp_path):
    path = write(tmp_path, {"t": ["old"] * 4}, row_group_size=2)
    maker = Parquet(FormatContext(Fields({"text": ("t",)}), extent_bytes=1))
    first, second = maker.index_shard(path).extents
    assert maker.read(path, first).columns["text"] == ["old", "old"]
    write(tmp_path, {"t": ["new, and longer"] * 4}, row_group_size=2)
    assert maker.read(path, second).columns["text"] == ["new, and longer"] * 2


def test_footers_of_all_sources_are_kept_within_one_limit(tmp_path):
    storage = Storage(kept_bytes=5000)  # of two files: 840 a column chunk and 1,024 besides
    fields = Fields({"text": ("t",)})
    paths = [str(tmp_path / f"{number}.parquet") for number in range(6)]
    for path in paths:
        pq.write_table(pa.table({"t": ["x"]}), path)
        maker = Parquet(FormatContext(fields, storage))  # another source each
        (extent,) = maker.index_shard(path).extents
        maker.read(path, extent)
    assert [path for path in paths if path in storage.kept] == paths[-2:]
    assert storage.kept.held == 2 * (840 + 1024)


def test_no_byte_of_a_footer_ends_the_process(tmp_path):
    """pyarrow ends it where size statistics don't fit; each byte is changed, in a process that may end."""
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({"text": ["a", None], "other": [[1], []]}), path)
    script = """if True:
        import sys
        from pathlib import Path
        from dataloader_svc.errors import SourceError
        from dataloader_svc.sources.base import Fields, FormatContext
        from dataloader_svc.sources.parquet import Parquet
        path = Path(sys.argv[1])
        whole = path.read_bytes()
        footer = int.from_bytes(whole[-8:-4], "little")
        maker = Parquet(FormatContext(Fields({"text": ("text",)}, raw=("other",))))
        for place in range(len(whole) - 8 - footer, len(whole)):
            for change in (1, 2, 8, 128):
                damaged = bytearray(whole)
                damaged[place] ^= change
                path.write_bytes(damaged)
                try:
                    maker.index_shard(str(path))
                except SourceError as error:
                    print(error)
    """
    done = subprocess.run([sys.executable, "-c", script, str(path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "histogram size mismatch" in done.stdout, "none was of the kind that pyarrow would die of"
