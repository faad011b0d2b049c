import csv
import io

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dataloader_svc.config.schema import Source
from dataloader_svc.errors import BadSample, Reason, SourceError
from dataloader_svc.sources import SourceReader
from dataloader_svc.sources.base import Fields, FormatContext
from dataloader_svc.sources.index import make_format
from dataloader_svc.sources.manifest import Manifest, ManifestOptions
from dataloader_svc.storage import Storage


def read(tmp_path, data, *, name="x.csv", extent=1, **settings):
    """The index, and one value or BadSample a row, of the mapped text (and image where mapped)."""
    path = tmp_path / name
    path.write_bytes(data)
    source = {"format": "manifest", "path": name, "text": "text", "extent": extent} | settings
    maker = make_format(Source.model_validate(source), Storage())
    index = maker.index_shard(str(path))
    rows = []
    for each in index.extents:
        part = maker.read(str(path), each)
        assert part.num_rows == each.num_rows
        values = [part.columns[role] for role in maker.context.fields]
        rows += [part.bad.get(row) or [column[row] for column in values] for row in range(part.num_rows)]
    return index, rows


def texts(rows):
    return [row if isinstance(row, BadSample) else row[0] for row in rows]


CELLS = ["plain", "a,b", 'say "so"', "two\nlines", "two\r\nlines\r\n", "", " x ", "猫🙂", "5' 3"]


@pytest.mark.parametrize("extent", [1, 40, 10_000])
@pytest.mark.parametrize("ends", ["\n", "\r\n"])
@pytest.mark.parametrize("bom", [b"", b"\xef\xbb\xbf"])
def test_what_the_csv_module_writes(tmp_path, bom, ends, extent):
    out = io.StringIO(newline="")
    csv.writer(out, lineterminator=ends).writerows([["id", "text"], *enumerate(CELLS)])
    _, rows = read(tmp_path, bom + out.getvalue().encode(), extent=extent)
    assert texts(rows) == CELLS


def test_the_last_line_without_an_end_and_blank_lines(tmp_path):
    _, rows = read(tmp_path, b"text,n\n\na,1\n\r\nb,2\n\nc,3")
    assert texts(rows) == ["a", "b", "c"]


def test_tabs_in_tsv_and_a_delimiter_of_ones_own(tmp_path):
    assert texts(read(tmp_path, b"n\ttext\n1\ta, b\n", name="x.tsv")[1]) == ["a, b"]
    assert texts(read(tmp_path, b"n;text\n1;a, b\n", options={"delimiter": ";"})[1]) == ["a, b"]


def test_a_quote_inside_a_cell_without_quotes_is_a_character(tmp_path):
    data = b'n,text\n1,a 5" screen\n2,an 8" one\n3,"c"\n'
    assert texts(read(tmp_path, data, extent=10_000)[1]) == ['a 5" screen', 'an 8" one', "c"]


@pytest.mark.parametrize("extent", [1, 10_000])
@pytest.mark.parametrize(
    ("line", "reason", "words"),
    [
        (b"1", Reason.MISSING_FIELD, "line 4: 1 cells for 2 columns: no 'text'"),
        (b"1,a,b", Reason.BAD_RECORD, "line 4: 3 cells for 2 columns"),
        (b"1,\xff\xfe", Reason.BAD_RECORD, "line 4: column 'text' is not UTF-8"),
        (b'1,"a"b', Reason.BAD_RECORD, "line 4: not CSV"),
        (b"1,a\rb", Reason.BAD_RECORD, "line 4: not CSV"),
        (b"1," + b"a" * 200_000, Reason.BAD_RECORD, "line 4: not CSV: field larger"),
    ],
)
def test_a_bad_record_is_named_by_its_line_and_shifts_nothing(tmp_path, line, reason, words, extent):
    data = b'n,text\n0,"two\nlines"\n' + line + b"\n2,good\n"
    _, rows = read(tmp_path, data, extent=extent)
    assert texts(rows)[::2] == ["two\nlines", "good"]
    assert rows[1].reason is reason
    assert words in rows[1].detail


@pytest.mark.parametrize("end", [b'2,"b', b"2,", b"2"])
def test_a_cut_record_is_a_bad_row(tmp_path, end):
    _, rows = read(tmp_path, b"n,text\n1,a\n" + end)
    assert rows[0] == ["a"]
    assert isinstance(rows[1], BadSample)


def test_a_quote_that_nobody_closed_costs_what_it_swallows_and_no_more(tmp_path):
    lines = [b'0,"open\n', *(b"%d,row %d\n" % (i, i) for i in range(1, 40_000))]
    index, rows = read(tmp_path, b"n,text\n" + b"".join(lines), extent=2**20)
    good = [row for row in rows if not isinstance(row, BadSample)]
    assert isinstance(rows[0], BadSample)
    assert len(rows) == index.num_rows
    assert good[-1] == ["row 39999"]
    assert len(good) > 25_000


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "is empty"),
        (b"\xef\xbb\xbf", "is empty"),
        ("text\na\n".encode("utf-16"), "UTF-16"),
        (b"text,text\na,b\n", "2 columns called 'text'"),
        (b"\xfftext\na\n", "header is not readable"),
    ],
)
def test_files_that_can_not_be_used(tmp_path, data, words):
    with pytest.raises(SourceError, match=words):
        read(tmp_path, data)


def test_a_line_without_an_end(tmp_path):
    with pytest.raises(SourceError, match="line 2 has no end in"):
        read(tmp_path, b"text\n" + b"\0" * (18 * 2**20))


def test_a_missing_column_and_no_rows(tmp_path):
    index, rows = read(tmp_path, b"n,txt\n1,a\n")
    assert index.missing == {"text": "column 'text'; found: n, txt; did you mean 'txt'?"}
    assert rows[0].reason is Reason.MISSING_FIELD
    index, rows = read(tmp_path, b"n,text\n")
    assert (rows, index.warnings[0].endswith("has no rows")) == ([], True)


def test_chat_is_json_in_a_cell(tmp_path):
    data = b'id,chat\n1,"[{""role"": ""user"", ""content"": ""hi""}]"\n2,[\n'
    _, rows = read(tmp_path, data, text=None, messages="chat")
    assert rows[0] == [[{"role": "user", "content": "hi"}]]
    assert "line 3: column 'chat' is not JSON" in rows[1].detail


def test_columns_for_filters(tmp_path):
    (tmp_path / "x.csv").write_text("n,text\n1,a\n2\n")
    fields = Fields({"text": ("text",)}, raw=("n", "no such"))
    maker = Manifest(FormatContext(fields, options=ManifestOptions()))
    (extent,) = maker.index_shard(str(tmp_path / "x.csv")).extents
    rows = maker.read(str(tmp_path / "x.csv"), extent)
    assert rows.raw == {"n": ["1", None], "no such": [None, None]}


def test_pictures_lie_below_media_root(tmp_path):
    (tmp_path / "pictures").mkdir()
    (tmp_path / "pictures" / "a.png").write_bytes(b"png")
    (tmp_path / "rows.csv").write_text("file,text\na.png,one\n")
    pq.write_table(pa.table({"file": ["a.png"], "text": ["two"]}), tmp_path / "rows.parquet")
    (tmp_path / "rows.jsonl").write_text('{"file": "a.png", "text": "three"}\n')
    for suffix, text in (("csv", "one"), ("parquet", "two"), ("jsonl", "three")):
        source = Source.model_validate(
            {
                "format": "manifest",
                "path": f"rows.{suffix}",
                "text": "text",
                "image": "file",
                "media_root": "pictures",
            }
        )
        reader = SourceReader("rows", source, tmp_path, None, 0)
        rows = reader.read_extent(0)
        assert rows.columns["text"] == [text]
        assert reader.read_media(rows.columns["image"][0][0], reader.index.paths[0]) == b"png"
