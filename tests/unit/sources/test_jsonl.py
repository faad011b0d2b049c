"""Extents against a line-by-line count that shares no code; and what a line may be."""

import gzip
import tracemalloc

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dataloader_svc.errors import Reason, SourceError
from dataloader_svc.sources import jsonl
from dataloader_svc.sources.base import Extent, Fields, FormatContext
from dataloader_svc.sources.jsonl import JsonLines

FIELDS = Fields({"text": ("text",)})


def read_all(path, extent_bytes=2**20):
    maker = JsonLines(FormatContext(FIELDS, extent_bytes=extent_bytes))
    index = maker.index_shard(str(path))
    return index, [maker.read(str(path), extent) for extent in index.extents]


lines = st.sampled_from(
    [b"", b" ", b"\t\r", b"\r", b" x", b"\0", b"{}", b"abc", b"q" * 30, b"\x0b", b'"\xc3\xa9"']
)


@settings(max_examples=300, deadline=None)
@given(st.lists(lines, max_size=40), st.booleans(), st.integers(1, 80), st.sampled_from([1, 2, 3, 7, 1000]))
def test_extents_against_a_naive_count(tmp_path_factory, parts, last_line_ends, extent_bytes, chunk):
    data = b"\n".join(parts) + (b"\n" if last_line_ends else b"")
    path = tmp_path_factory.mktemp("jsonl") / "x.jsonl"
    path.write_bytes(data)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jsonl, "_CHUNK", chunk)
        extents = JsonLines(FormatContext(FIELDS, extent_bytes=extent_bytes)).index_shard(str(path)).extents

    rows, at = [], 0  # (offset, end, line number) of each line that is not blank
    for number, line in enumerate(_split(data), 1):
        if line.strip(b" \t\r\n"):
            rows.append((at, at + len(line), number))
        at += len(line)
    assert sum(extent.num_rows for extent in extents) == len(rows)
    for extent in extents:
        mine = rows[extent.first_row : extent.first_row + extent.num_rows]
        stop = extent.offset + extent.length
        assert [row for row in rows if extent.offset <= row[0] < stop] == mine
        assert all(end <= stop for _, end, _ in mine)
        assert extent.extra == 1 + data[: extent.offset].count(b"\n")
        without_last = data[extent.offset : stop].removesuffix(b"\n").rpartition(b"\n")[0]
        assert len(without_last) < extent_bytes, "cut at the first line end at or after the limit"


def _split(data):
    """Lines with their line ends, at \\n alone."""
    parts = data.split(b"\n")
    return [part + b"\n" for part in parts[:-1]] + ([parts[-1]] if parts[-1] else [])


def test_line_numbers_count_blank_lines_and_survive_extents(tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_bytes(b'\n{"text": "a"}\n\n  \n{"text": 1}\n' + b"\n" * 50 + b"[]\n")
    index, read = read_all(path, extent_bytes=10)
    details = [error.detail for rows in read for error in rows.bad.values()]
    assert [detail.split(":")[0] for detail in details] == ["line 5", "line 56"]
    assert index.num_rows == 3


@pytest.mark.parametrize(
    ("line", "reason", "words"),
    [
        (b'{"text": "a"} {"text": "b"}', Reason.BAD_RECORD, "Extra data at column 15"),
        (b'{"text": "a', Reason.BAD_RECORD, "Unterminated string"),
        (b'{"text": "a\x01"}', Reason.BAD_RECORD, "control character"),
        (b'{"text": "\xff"}', Reason.BAD_RECORD, "not UTF-8 at byte 10"),
        (b'{"text": "\xed\xa0\x80"}', Reason.BAD_RECORD, "not UTF-8"),
        (b'{"text": "\\ud800"}', Reason.BAD_RECORD, "half a character"),
        (b'{"text": "a", "other": ["\\udc00x"]}', Reason.BAD_RECORD, "half a character"),
        (b"\0\0\0\0", Reason.BAD_RECORD, "not JSON"),
        (b"[" * 100_000, Reason.BAD_RECORD, "not JSON"),
        (b'{"text": "a", "n": ' + b"9" * 5000 + b"}", Reason.BAD_RECORD, "not JSON"),
        (b"NaN", Reason.WRONG_TYPE, "must be an object, is a number"),
        (b"null", Reason.WRONG_TYPE, "must be an object, is null"),
    ],
)
def test_bad_lines(tmp_path, line, reason, words):
    path = tmp_path / "x.jsonl"
    path.write_bytes(b'{"text": "before"}\n' + line + b'\n{"text": "after"}\n')
    _, (rows,) = read_all(path)
    assert list(rows.bad) == [1]
    assert rows.bad[1].reason is reason
    assert rows.bad[1].detail.startswith("line 2: ")
    assert words in rows.bad[1].detail
    assert rows.columns["text"][::2] == ["before", "after"]


@pytest.mark.parametrize("text", ['"\\ud83d\\ude42"', '"\\\\ud800"', '"\\u00e9"'])
def test_escapes_that_are_whole(tmp_path, text):
    path = tmp_path / "x.jsonl"
    path.write_text(f'{{"text": {text}}}')
    _, (rows,) = read_all(path)
    assert rows.bad == {}


@pytest.mark.parametrize(
    ("head", "word"),
    [
        ('{"text": "a"}'.encode("utf-16-le"), "UTF-16"),
        ('{"text": "a"}'.encode("utf-16-be"), "UTF-16"),
        ('{"text": "a"}'.encode("utf-16"), "UTF-16"),
        ('{"text": "a"}'.encode("utf-32"), "UTF-32"),
        (b"BZh9", "bunzip2"),
        (b"\xfd7zXZ", "unxz"),
        (gzip.compress(gzip.compress(b"{}", mtime=0), mtime=0), "gzip twice"),
        (b"PAR1", "format: parquet"),
    ],
)
def test_files_that_are_something_else(tmp_path, head, word):
    path = tmp_path / "x.jsonl"
    path.write_bytes(head)
    with pytest.raises(SourceError, match=word):
        read_all(path)


def test_a_file_that_changed_between(tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_bytes(b'{"text": "a"}\n{"text": "b"}\n')
    maker = JsonLines(FormatContext(FIELDS, extent_bytes=100))
    with pytest.raises(SourceError, match="1 rows when indexed, 2 now"):
        maker.read(str(path), Extent(0, 1, 0, 28, 28, 1))


def compressed(data, how):
    return gzip.compress(data) if how == "gzip" else pa.Codec("zstd").compress(data, asbytes=True)


@pytest.mark.parametrize("how", ["gzip", "zstd"])
def test_compressed_files_give_the_rows_and_extents_of_plain_ones(tmp_path, how):
    data = b"".join(b'{"text": "row %d"}\n' % number for number in range(1000))
    plain, other = tmp_path / "plain.jsonl", tmp_path / "named.jsonl"
    plain.write_bytes(data)
    other.write_bytes(compressed(data[:7000], how) + compressed(data[7000:], how))  # in the middle of a row
    expected, rows = read_all(plain, 1000)
    index, read = read_all(other, 1000)
    assert index == expected
    assert read == rows


@pytest.mark.parametrize("how", ["gzip", "zstd"])
def test_a_compressed_file_that_is_cut_gives_its_whole_rows(tmp_path, how):
    lines = [b'{"text": "%064x"}\n' % pow(3, number, 2**256) for number in range(60_000)]
    path = tmp_path / "x.jsonl.gz"
    path.write_bytes(compressed(b"".join(lines), how)[:-300_000])
    index, read = read_all(path)
    assert index.warnings == (f"{path}: its compressed data is cut short; what follows is lost",)
    texts = [text for rows in read for text in rows.columns["text"]]
    assert 10_000 < len(texts) < 60_000
    assert texts[:-1] == [f"{pow(3, number, 2**256):064x}" for number in range(len(texts) - 1)]
    last = read[-1].num_rows - 1
    assert list(read[-1].bad) == [last]
    assert all(rows.bad == {} for rows in read[:-1])


def test_a_line_longer_than_memory_should_hold_is_indexed_in_pieces(tmp_path):
    """30 MB in one line: the index holds a MiB of it at once."""
    path = tmp_path / "x.jsonl"
    with path.open("wb") as file:
        file.write(b'{"text": "before"}\n{"text": "')
        for _ in range(30):
            file.write(b"x" * 10**6)
        file.write(b'"}\n{"text": "after"}\n')
    maker = JsonLines(FormatContext(FIELDS, extent_bytes=1000))
    tracemalloc.start()
    try:
        index = maker.index_shard(str(path))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 10 * 2**20
    assert [extent.num_rows for extent in index.extents] == [2, 1]
    assert index.extents[0].num_bytes > 30 * 10**6, "what it costs to read is said beforehand"
    texts = [text for extent in index.extents for text in maker.read(str(path), extent).columns["text"]]
    assert [len(text) for text in texts] == [6, 30 * 10**6, 5]
