import struct

import pyarrow as pa
import pyarrow.feather as feather
import pytest

from dataloader_svc.errors import Reason, SourceError
from dataloader_svc.sources.arrow import ArrowIpc
from dataloader_svc.sources.base import Fields, FormatContext

TABLE = pa.table({"id": range(10), "t": [f"text {i}" for i in range(10)]})


def write(path, batches, schema=None, *, make=pa.ipc.new_stream, **options):
    schema = schema or batches[0].schema
    with (
        pa.OSFile(str(path), "wb") as sink,
        make(sink, schema, options=pa.ipc.IpcWriteOptions(**options)) as writer,
    ):
        for batch in batches:
            writer.write_batch(batch)
    return str(path)


def format_of(**names):
    return ArrowIpc(FormatContext(Fields({role: (name,) for role, name in names.items()})))


def read_all(path, **names):
    maker = format_of(**names)
    index = maker.index_shard(path)
    return index, [maker.read(path, extent) for extent in index.extents]


def texts(read):
    return [text for rows in read for text in rows.columns["text"]]


@pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
@pytest.mark.parametrize("make", [pa.ipc.new_stream, pa.ipc.new_file])
def test_streams_and_files_compressed_or_not(tmp_path, make, compression):
    path = write(tmp_path / "x", TABLE.to_batches(4), make=make, compression=compression)
    index, read = read_all(path, text="t")
    assert [extent.num_rows for extent in index.extents] == [4, 4, 2]
    assert index.warnings == ()
    assert texts(read) == TABLE["t"].to_pylist()


@pytest.mark.parametrize("compression", ["uncompressed", "lz4", "zstd"])
def test_feather(tmp_path, compression):
    path = str(tmp_path / "x.feather")
    feather.write_feather(TABLE, path, compression=compression, chunksize=3)
    index, read = read_all(path, text="t")
    assert [extent.num_rows for extent in index.extents] == [3, 3, 3, 1]
    assert texts(read) == TABLE["t"].to_pylist()


def test_a_stream_of_before_arrow_0_15_without_the_mark_of_continuation(tmp_path):
    path = write(tmp_path / "x", TABLE.to_batches(5), use_legacy_format=True)
    assert not (tmp_path / "x").read_bytes().startswith(b"\xff\xff\xff\xff")
    assert texts(read_all(path, text="t")[1]) == TABLE["t"].to_pylist()


def dictionary_batches(*vocabularies):
    return [
        pa.record_batch({"t": pa.DictionaryArray.from_arrays(pa.array([0, 1], pa.int8()), words)})
        for words in vocabularies
    ]


@pytest.mark.parametrize("deltas", [False, True])
def test_dictionaries_that_grow_or_change_between_batches(tmp_path, deltas):
    batches = dictionary_batches(["a", "b"], ["a", "b", "c"], ["x", "y"])
    path = write(tmp_path / "x", batches, emit_dictionary_deltas=deltas)
    index, read = read_all(path, text="t")
    assert [extent.extra for extent in index.extents] == [1, 2, 3]
    assert texts(read) == ["a", "b", "a", "b", "x", "y"]


def test_dictionaries_in_a_file(tmp_path):
    batches = dictionary_batches(["a", "b"], ["a", "b"])
    path = write(tmp_path / "x", batches, make=pa.ipc.new_file)
    assert texts(read_all(path, text="t")[1]) == ["a", "b"] * 2


def test_batches_without_rows_are_no_extents(tmp_path):
    empty, whole = TABLE.to_batches()[0].slice(0, 0), TABLE.to_batches()[0]
    path = write(tmp_path / "x", [empty, whole, empty, whole])
    index, read = read_all(path, text="t")
    assert [(extent.first_row, extent.num_rows) for extent in index.extents] == [(0, 10), (10, 10)]
    assert texts(read) == TABLE["t"].to_pylist() * 2


@pytest.mark.parametrize("make", [pa.ipc.new_stream, pa.ipc.new_file])
def test_no_rows_at_all(tmp_path, make):
    index, _ = read_all(write(tmp_path / "x", [], TABLE.schema, make=make), text="t")
    assert index.extents == ()
    assert "has no rows" in index.warnings[0]


@pytest.mark.parametrize("make", [pa.ipc.new_stream, pa.ipc.new_file])
def test_a_cut_file_gives_its_whole_batches_and_says_so(tmp_path, make):
    path = write(tmp_path / "x", TABLE.to_batches(4), make=make)
    whole = (tmp_path / "x").read_bytes()
    second = format_of(text="t").index_shard(path).extents[1]
    (tmp_path / "x").write_bytes(whole[: second.offset + second.length - 1])
    index, read = read_all(path, text="t")
    assert texts(read) == TABLE["t"].to_pylist()[:4]
    (warning,) = index.warnings
    assert f"ends inside the message at byte {second.offset}; 4 rows of whole batches are read" in warning


def test_a_stream_without_the_mark_of_its_end_is_whole(tmp_path):
    path = write(tmp_path / "x", TABLE.to_batches(4))
    whole = (tmp_path / "x").read_bytes()
    (tmp_path / "x").write_bytes(whole.removesuffix(struct.pack("<II", 0xFFFFFFFF, 0)))
    index, read = read_all(path, text="t")
    assert texts(read) == TABLE["t"].to_pylist()
    assert index.warnings == ()


def test_a_file_that_ends_between_batches_has_lost_its_footer(tmp_path):
    path = write(tmp_path / "x", TABLE.to_batches(4), make=pa.ipc.new_file)
    last = format_of(text="t").index_shard(path).extents[-1]
    (tmp_path / "x").write_bytes((tmp_path / "x").read_bytes()[: last.offset + last.length])
    index, read = read_all(path, text="t")
    assert len(texts(read)) == 10
    assert "ends without its footer" in index.warnings[0]


def test_only_mapped_columns_are_read(tmp_path):
    path = write(tmp_path / "x", TABLE.to_batches())
    _, (rows,) = read_all(path, text="t")
    assert set(rows.columns) == {"text"}


def test_a_missing_column_and_one_of_a_type_that_can_not_serve(tmp_path):
    path = write(tmp_path / "x", TABLE.to_batches())
    index, (rows,) = read_all(path, text="text")
    assert index.missing["text"].startswith("column 'text'; found: id, t")
    assert {error.reason for error in rows.bad.values()} == {Reason.MISSING_FIELD}
    with pytest.raises(SourceError, match="'id' is int64; it must be a string"):
        read_all(path, text="id")


def test_text_that_is_not_utf8_costs_its_row_only(tmp_path):
    raw = pa.array([b"good", b"\xff bad", "é".encode()], pa.binary())
    strings = pa.StringArray.from_buffers(3, raw.buffers()[1], raw.buffers()[2])
    path = write(tmp_path / "x", [pa.record_batch({"t": strings})])
    _, (rows,) = read_all(path, text="t")
    assert rows.columns["text"][::2] == ["good", "é"]
    assert rows.bad[1].reason is Reason.BAD_RECORD


def test_offsets_that_lead_outside_are_an_error_and_no_crash(tmp_path):
    path = write(tmp_path / "x", [pa.record_batch({"t": ["aaaa", "bbbb", "cccc"]})])
    data = (tmp_path / "x").read_bytes()
    offsets = struct.pack("<4i", 0, 4, 8, 12)
    assert data.count(offsets) == 1
    (tmp_path / "x").write_bytes(data.replace(offsets, struct.pack("<4i", 0, 2**30, 8, 12)))
    with pytest.raises(SourceError, match="not readable as Arrow IPC"):
        read_all(path, text="t")


def test_a_batch_that_claims_more_rows_than_bits(tmp_path):
    path = write(tmp_path / "x", [pa.record_batch({"t": ["aaaa"] * 12345})])
    data = (tmp_path / "x").read_bytes()
    (tmp_path / "x").write_bytes(data.replace(struct.pack("<q", 12345), struct.pack("<q", 2**40)))
    index, read = read_all(path, text="t")
    assert read == []
    assert "claims 1099511627776 rows" in index.warnings[0]


def test_other_files(tmp_path):
    path = tmp_path / "x"
    for content in (b"PAR1" + b"\0" * 60, b'{"text": "a"}\n' * 9, b"\xff" * 64):
        path.write_bytes(content)
        with pytest.raises(SourceError, match="not readable as Arrow IPC"):
            read_all(str(path), text="t")


@pytest.mark.parametrize("name", [b"content", b"bytes", b"other"])
def test_a_name_that_is_not_utf8_makes_the_file_unreadable(tmp_path, name):
    """Found by the fuzzer: also that of a column, or of a field inside of one, that nobody maps."""
    table = pa.table({"content": ["a"], "other": [{"bytes": b"x"}]})
    path = tmp_path / "x.arrow"
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    whole = path.read_bytes()
    maker = ArrowIpc(FormatContext(Fields({"text": ("content",)})))
    (extent,) = maker.index_shard(str(path)).extents
    path.write_bytes(whole.replace(name, b"\xf4" + name[1:]))
    with pytest.raises(SourceError, match=r"x\.arrow: is not readable as Arrow IPC: .*'utf-8' codec"):
        maker.index_shard(str(path))
    with pytest.raises(SourceError, match=r"x\.arrow: is not readable as Arrow IPC: .*'utf-8' codec"):
        maker.read(str(path), extent)
