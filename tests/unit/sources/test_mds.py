import gzip
import hashlib
import io
import json
import struct
import sys
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
import xxhash
from PIL import Image

from dataloader_svc.config.schema import Source
from dataloader_svc.errors import BadSample, Reason, SourceError
from dataloader_svc.sources import SourceReader
from dataloader_svc.sources.mds_values import decoded
from dataloader_svc.testing.writers.mds import write_mds

TEXT = {"text": ("str", None)}


def reader(folder, *, path="d", **settings):
    source = {"format": "mds", "path": path, "shuffle": False} | settings
    return SourceReader("s", Source.model_validate(source), folder, None, 0)


def rows_of(found, role="text"):
    """Value or BadSample a row, in file order."""
    rows = []
    for number in range(len(found.index.extents)):
        extent = found.read_extent(number)
        rows += [extent.bad.get(row) or value for row, value in enumerate(extent.columns[role])]
    return rows


def folder_with(tmp_path, *shards, columns=TEXT):
    """Shards of rows of cells, in tmp_path/d."""
    (tmp_path / "d").mkdir(exist_ok=True)
    for number, rows in enumerate(shards):
        write_mds(tmp_path / "d" / f"shard.{number:05d}.mds", columns, rows)
    return tmp_path / "d"


def texts(*names):
    return [[name.encode()] for name in names]


def edit_index(folder, change):
    """Change the entry of each shard in index.json."""
    index = json.loads((folder / "index.json").read_text())
    for entry in index["shards"]:
        change(entry)
    (folder / "index.json").write_text(json.dumps(index))


def compress(folder, how):
    """As the writer with `compression=` leaves it: the raw files are gone."""

    def change(entry):
        raw = folder / entry["raw_data"]["basename"]
        data = raw.read_bytes()
        data = gzip.compress(data) if how == "gz" else pa.Codec("zstd").compress(data, asbytes=True)
        raw.unlink()
        (folder / f"{raw.name}.{how}").write_bytes(data)
        entry["zip_data"] = {"basename": f"{raw.name}.{how}", "bytes": len(data), "hashes": {}}
        entry["compression"] = how

    edit_index(folder, change)


# Bytes on the left were written by mosaicml-streaming 0.13.
@pytest.mark.parametrize(
    ("encoding", "data", "value"),
    [
        ("ndarray", "110403000001000200", np.arange(3, dtype=np.int16)),
        ("ndarray", "080802010707", np.array([[7], [7]], np.uint8)),
        ("ndarray:uint32", "04020000000001000000", np.arange(2, dtype=np.uint32)),
        ("ndarray:int8:1,2", "01ff", np.array([[1, -1]], np.int8)),
    ],
)
def test_arrays(encoding, data, value):
    got = decoded(encoding, bytes.fromhex(data), "x")
    assert got.dtype == value.dtype
    assert got.tolist() == value.tolist()


@pytest.mark.parametrize(
    ("encoding", "data", "value"),
    [
        ("str", "猫".encode(), "猫"),
        ("bytes", b"\x00\xff", b"\x00\xff"),
        ("jpeg:90", b"\xff\xd8", b"\xff\xd8"),
        ("int", struct.pack("<q", -5), -5),
        ("uint8", b"\xff", 255),
        ("int16", b"\xfe\xff", -2),
        ("uint64", b"\xff" * 8, 2**64 - 1),
        ("float16", b"\x00\x3c", 1.0),
        ("float64", struct.pack("<d", 0.1), 0.1),
        ("str_int", b"-1000000000000000000000", -(10**21)),
        ("str_float", b"1.5", 1.5),
        ("str_decimal", b"1.10", Decimal("1.10")),
        ("json", b'{"a": [1, null]}', {"a": [1, None]}),
        ("jpeg_array", bytes.fromhex("020000000200000001000000616263"), [b"ab", b"c"]),
    ],
)
def test_values(encoding, data, value):
    assert decoded(encoding, data, "x") == value


def test_raw_pictures_become_png():
    data = decoded("pil", bytes.fromhex("020000000100000003000000524742010203010203"), "x")
    picture = Image.open(io.BytesIO(data))
    assert (picture.format, picture.mode, picture.size) == ("PNG", "RGB", (2, 1))
    assert picture.getpixel((0, 0)) == (1, 2, 3)
    two = "00000000020000000e0000000e0000000100000001000000010000004c090100000001000000010000004c09"
    first, second = decoded("list[pil]", bytes.fromhex(two), "x")
    assert first == second
    assert Image.open(io.BytesIO(first)).getpixel((0, 0)) == 9


@pytest.mark.parametrize(
    ("encoding", "data"),
    [
        ("str", b"\xff"),
        ("int", b"1234567"),
        ("str_int", b"1" * 5000),
        ("str_decimal", b"x"),
        ("json", b"{"),
        ("json", b"[" * 100_000),
        ("json", b'"\\ud800"'),
        ("ndarray", b""),
        ("ndarray", b"\x07\x04\x01\x00"),
        ("ndarray:uint8", b"\x0b\xff\xff\xff\xff\xff\xff\xff\xff" * 3),
        ("ndarray:object:1", b"12345678"),
        ("ndarray:uint8:x", b"1"),
        ("pil", b"123"),
        ("pil", struct.pack("<III", 2**31, 2**31, 3) + b"RGB"),
        ("pil", struct.pack("<III", 1, 1, 4) + b"CMYK1234"),
        ("jpeg_array", struct.pack("<I", 2**32 - 1)),
        ("list[png]", struct.pack("<IIII", 0, 2, 1, 2**31) + b"1"),
    ],
)
def test_bytes_that_are_none_of_their_encoding_make_one_bad_row(encoding, data):
    with pytest.raises(BadSample, match="column 'x' is no") as caught:
        decoded(encoding, data, "x")
    assert caught.value.reason is Reason.BAD_RECORD


@pytest.mark.parametrize("how", ["zstd", "gz"])
def test_compressed_shards_give_what_raw_ones_do(tmp_path, how):
    folder = folder_with(
        tmp_path, *([[b"%d" % row * 50] for row in range(start, start + 30)] for start in (0, 30))
    )
    raw = reader(tmp_path, text="text", extent=1000)
    expected = rows_of(raw)
    compress(folder, how)
    packed = reader(tmp_path, text="text", extent=1000)
    assert packed.index.names == (f"shard.00000.mds.{how}", f"shard.00001.mds.{how}")
    assert rows_of(packed) == expected
    assert (packed.index.extents.length == raw.index.extents.length).all()
    assert packed.index.extents.num_bytes.max() < 2000, "what is read at once, not the shard"


def test_a_raw_shard_is_read_where_both_are_there(tmp_path):
    folder = folder_with(tmp_path, texts("a"))
    data = (folder / "shard.00000.mds").read_bytes()
    compress(folder, "zstd")
    (folder / "shard.00000.mds").write_bytes(data)
    assert reader(tmp_path, text="text").index.names == ("shard.00000.mds",)


def test_damage_of_a_compressed_shard(tmp_path):
    folder = folder_with(tmp_path, texts("a", "b"), texts("c"))
    compress(folder, "gz")
    edit_index(folder, lambda entry: entry["raw_data"].update(bytes=entry["raw_data"]["bytes"] + 1))
    with pytest.raises(SourceError, match=r"expands to 195 bytes, index\.json says 196"):
        reader(tmp_path, text="text")
    path = folder / "shard.00000.mds.gz"
    path.write_bytes(path.read_bytes()[:-9])
    salvaged = reader(tmp_path, text="text", options={"on_damage": "salvage"})
    assert rows_of(salvaged)[-1] == "c"
    assert "cut short" in "".join(salvaged.index.warnings)


def test_a_shard_that_can_not_be_used_leaves_the_others(tmp_path):
    folder = folder_with(tmp_path, texts("a"), texts("b"), texts("c"))
    (folder / "shard.00001.mds").unlink()
    found = reader(tmp_path, text="text")
    assert rows_of(found) == ["a", "c"]
    ((path, reason),) = found.index.bad_shards
    assert path.endswith("shard.00001.mds")
    assert "no such file" in reason


def test_several_folders_are_one_source_in_their_order(tmp_path):
    for name in ("b", "a"):
        (tmp_path / name).mkdir()
        write_mds(tmp_path / name / "shard.00000.mds", TEXT, texts(f"{name} 0"))
        write_mds(tmp_path / name / "shard.00001.mds", TEXT, texts(f"{name} 1"))
    assert rows_of(reader(tmp_path, path=["b", "a/"], text="text")) == ["b 0", "b 1", "a 0", "a 1"]
    globbed = reader(tmp_path, path="*", text="text")
    assert rows_of(globbed) == ["a 0", "a 1", "b 0", "b 1"]
    assert globbed.index.names[0] == "a/shard.00000.mds"


def test_an_index_of_merged_folders_names_shards_below_it(tmp_path):
    folder = folder_with(tmp_path, texts("a"))
    (folder / "0").mkdir()
    (folder / "shard.00000.mds").rename(folder / "0" / "shard.00000.mds")
    edit_index(folder, lambda entry: entry["raw_data"].update(basename="0/shard.00000.mds"))
    assert rows_of(reader(tmp_path, text="text")) == ["a"]


@pytest.mark.parametrize("name", ["../other.mds", "/etc/passwd", "", "a\0b"])
def test_names_that_lead_out_of_the_folder_are_refused(tmp_path, name):
    edit_index(folder_with(tmp_path, texts("a")), lambda entry: entry["raw_data"].update(basename=name))
    with pytest.raises(SourceError, match=r"d/index\.json: shard 0: basename .* is no name below the folder"):
        reader(tmp_path, text="text")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[]", 'must be an object with a list "shards"'),
        ('{"shards": [{}]}', "shard 0: lacks 'format'"),
        ('{"shards": [7]}', "shard 0: "),
        ('{"shards": [{"format": "json"}]}', "is 'json', not 'mds'"),
        ('{"shards": [{"format": "mds", "samples": -1}]}', "samples: -1 is no count"),
        ('{"shards": [{"format": "mds", "samples": 1, "raw_data": {"basename": "x"}}]}', "lacks 'bytes'"),
    ],
)
def test_an_index_that_is_none(tmp_path, text, words):
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "index.json").write_text(text)
    with pytest.raises(SourceError, match=words):
        reader(tmp_path, text="text")


def test_a_folder_without_an_index_is_told(tmp_path):
    (tmp_path / "d").mkdir()
    with pytest.raises(SourceError, match=r"nothing called 'index\.json' in .*d"):
        reader(tmp_path, text="text")


@pytest.mark.parametrize(("name", "make"), [("sha1", hashlib.sha1), ("xxh64", xxhash.xxh64)])
def test_hashes(tmp_path, name, make):
    folder = folder_with(tmp_path, texts("a"))
    data = (folder / "shard.00000.mds").read_bytes()
    edit_index(folder, lambda entry: entry["raw_data"].update(hashes={name: make(data).hexdigest()}))
    assert reader(tmp_path, text="text").index.warnings == ()
    (folder / "shard.00000.mds").write_bytes(data[:-1] + b"b")
    with pytest.raises(SourceError, match=f"is not what was written: {name}"):
        reader(tmp_path, text="text")


def test_a_hash_whose_package_is_not_here_is_a_warning(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "xxhash", None)
    folder = folder_with(tmp_path, texts("a"))
    edit_index(folder, lambda entry: entry["raw_data"].update(hashes={"xxh64": "00"}))
    (warning,) = reader(tmp_path, text="text").index.warnings
    assert warning.endswith("not compared with its hash: xxh64 is not installed")


def test_pickles_are_refused_where_they_would_be_read(tmp_path):
    columns = {"text": ("str", None), "meta": ("pkl", None)}
    folder_with(tmp_path, [[b"a", b"cos\nsystem\n(S'false'\ntR."]], columns=columns)
    assert rows_of(reader(tmp_path, text="text")) == ["a"]
    with pytest.raises(SourceError, match=r"shard.00000.mds: column 'meta' is pickled.*write it as str"):
        reader(tmp_path, text="meta")
    with pytest.raises(SourceError, match="column 'meta' is pickled"):
        reader(tmp_path, text="text", transforms=[{"filter": "meta == 1"}])


@pytest.mark.parametrize(
    ("encoding", "mapping", "words"),
    [
        ("int", {"text": "x"}, "text: column 'x' is int; must be str or json"),
        ("bytes", {"text": "x"}, "text: column 'x' is bytes; must be str or json"),
        ("str", {"input_ids": "x"}, "input_ids: column 'x' is str; must be ndarray or bytes or json"),
        (
            "ndarray",
            {"text": "text", "image": "x"},
            "image: column 'x' is ndarray; must be bytes or jpeg or png",
        ),
        ("zip", {"text": "x"}, "column 'x' has an unknown encoding, 'zip'"),
        ("str", {"text": "y"}, "text: no shard has 'y'; found: text, x"),
    ],
)
def test_a_column_that_can_not_serve(tmp_path, encoding, mapping, words):
    folder_with(tmp_path, [[b"a", b"b"]], columns={"text": ("str", None), "x": (encoding, None)})
    with pytest.raises(SourceError, match=words):
        reader(tmp_path, **mapping)


def test_token_ids_and_filters(tmp_path):
    columns = {"tokens": ("ndarray:uint16", None), "n": ("int", 8), "meta": ("json", None)}
    cells = [
        [b"\x04" + bytes([3]) + np.arange(3, dtype=np.uint16).tobytes(), struct.pack("<q", 3), b'{"q": 1}'],
        [b"\x08" + bytes([1, 1]) + b"\x07\x00", struct.pack("<q", 4), b'{"q": 2}'],
    ]
    folder_with(tmp_path, cells, columns=columns)
    found = reader(tmp_path, input_ids="tokens", transforms=[{"filter": "n > 3 and meta.q == 2"}])
    first, second = rows_of(found, "input_ids")
    assert first.tolist() == [0, 1, 2]
    assert second.reason is Reason.WRONG_TYPE, "two axes are no list of ids"
    assert found.read_extent(0).raw == {"n": [3, 4], "meta.q": [1, 2]}


def test_a_sample_whose_sizes_do_not_fill_it_is_one_bad_row(tmp_path):
    folder = folder_with(tmp_path, texts("first", "second", "third"))
    path = folder / "shard.00000.mds"
    path.write_bytes(
        path.read_bytes().replace(struct.pack("<I", 6) + b"second", struct.pack("<I", 7) + b"second")
    )
    rows = rows_of(reader(tmp_path, text="text"))
    assert rows[::2] == ["first", "third"]
    assert rows[1].detail == "sample 1: columns of 11 bytes in a sample of 10"


@pytest.mark.parametrize("word", [0, 1, 2**32 - 1])
@pytest.mark.parametrize("at", [0, 4, 8])
def test_wrong_counts_and_offsets_are_errors_or_fewer_rows(tmp_path, word, at):
    folder = folder_with(tmp_path, texts("first", "second", "third"))
    path = folder / "shard.00000.mds"
    data = bytearray(path.read_bytes())
    data[at : at + 4] = struct.pack("<I", word)
    path.write_bytes(data)
    with pytest.raises(SourceError, match="shard.00000.mds"):
        reader(tmp_path, text="text")
    try:
        rows = rows_of(reader(tmp_path, text="text", options={"on_damage": "salvage"}))
    except SourceError:
        return
    assert {row for row in rows if not isinstance(row, BadSample)} <= {"first", "second", "third"}
