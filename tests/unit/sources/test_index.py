import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from dataloader_svc.config.schema import Source
from dataloader_svc.errors import ConfigError, SourceError
from dataloader_svc.sources import build_index
from dataloader_svc.sources.base import SOURCES, Extent, ShardIndex, SourceFormat
from dataloader_svc.testing.data import tiny_rows, write_source


@pytest.fixture
def counted(monkeypatch):
    """The jsonl format with a list of the shards that it was asked to index."""
    real = SOURCES.get("jsonl")
    asked = []

    class Counted(real):
        def index_shard(self, path):
            asked.append(Path(path).name)
            return super().index_shard(path)

    monkeypatch.setitem(SOURCES._items, "jsonl", Counted)
    return asked


@pytest.fixture
def source(tmp_path):
    return write_source(tmp_path / "data", "jsonl", tiny_rows(30), shards=3, extent=200)


def build(source, tmp_path, cache="cache", **kwargs):
    return build_index("s", source, tmp_path, None if cache is None else tmp_path / cache, **kwargs)


def test_columns(source, tmp_path):
    index = build(source, tmp_path)
    assert index.num_rows == 30
    assert index.names == ("part-0000.jsonl", "part-0001.jsonl", "part-0002.jsonl")
    assert index.sizes.tolist() == [Path(path).stat().st_size for path in index.paths]
    shard, extent = index.extent(len(index.extents) - 1)
    assert (shard, extent.first_row + extent.num_rows) == (2, 10)
    assert extent.offset + extent.length == index.sizes[2]
    assert (index.warnings, index.bad_shards) == ((), ())


def test_cached_once_and_only_the_changed_shard_again(source, tmp_path, counted):
    first = build(source, tmp_path)
    assert sorted(counted) == list(first.names)
    counted.clear()
    again = build(source, tmp_path)
    assert counted == []
    assert again.digest == first.digest
    assert [again.extent(i) for i in range(len(again.extents))] == [
        first.extent(i) for i in range(len(first.extents))
    ]
    with Path(first.paths[1]).open("a") as file:
        file.write('{"text": "one more"}\n')
    changed = build(source, tmp_path)
    assert counted == ["part-0001.jsonl"]
    assert changed.num_rows == 31
    assert changed.digest != first.digest
    assert len(list((tmp_path / "cache").iterdir())) == 3, "a changed shard replaces its own file"


def test_mtime_alone_makes_a_new_index_but_no_new_digest(source, tmp_path, counted):
    first = build(source, tmp_path)
    counted.clear()
    os.utime(first.paths[0], ns=(1, 1))
    assert build(source, tmp_path).digest == first.digest
    assert counted == ["part-0000.jsonl"]


@pytest.mark.parametrize("change", [{"extent": 100}, {"text": "id"}])
def test_other_options_are_other_indexes(source, tmp_path, counted, change):
    build(source, tmp_path)
    counted.clear()
    build(source.model_copy(update=change), tmp_path)
    assert len(counted) == 3
    build(source, tmp_path)
    assert len(counted) == 3


def test_moved_data_keep_their_digest(source, tmp_path):
    before = build(source, tmp_path)
    shutil.copytree(tmp_path / "data", tmp_path / "elsewhere" / "data2")
    moved = source.model_copy(update={"path": "elsewhere/data2/*.jsonl"})
    assert build(moved, tmp_path).digest == before.digest
    fewer = source.model_copy(update={"path": "data/part-000[01].jsonl"})
    assert build(fewer, tmp_path).digest != before.digest


@pytest.mark.parametrize("damage", ["flip", "cut", "empty", "foreign"])
def test_a_corrupt_cache_file_is_made_anew_with_one_warning(source, tmp_path, counted, damage):
    first = build(source, tmp_path)
    victim = sorted((tmp_path / "cache").iterdir())[0]
    data = bytearray(victim.read_bytes())
    data[-9] ^= 4
    victim.write_bytes({"flip": data, "cut": data[:40], "empty": b"", "foreign": b"PK\3\4 zip"}[damage])
    counted.clear()
    again = build(source, tmp_path)
    assert len(counted) == 1
    assert again.digest == first.digest
    assert len(again.warnings) == 1
    assert victim.name in again.warnings[0]
    assert build(source, tmp_path).warnings == ()


def test_no_temporary_file_stays(source, tmp_path):
    build(source, tmp_path)
    assert {path.suffix for path in (tmp_path / "cache").iterdir()} == {".index"}


def test_a_cache_that_can_not_be_written_is_only_slow(source, tmp_path, counted):
    (tmp_path / "cache").write_text("a file in the way")
    index = build(source, tmp_path)
    assert index.num_rows == 30
    assert len(index.warnings) == 3 * 2  # neither read nor written
    assert build(source, tmp_path, cache=None).warnings == ()


_BUILD = """
import sys
from pathlib import Path
from dataloader_svc.config.schema import Source
from dataloader_svc.sources.index import build_index
base = Path(sys.argv[2])
print(build_index("s", Source.model_validate_json(sys.argv[1]), base, base / "cache").digest)
"""


def test_several_processes_at_once(source, tmp_path):
    command = [sys.executable, "-c", _BUILD, source.model_dump_json(), str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    processes = [
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) for _ in range(3)
    ]
    digests = {process.communicate(timeout=120)[0].strip() for process in processes}
    assert digests == {build(source, tmp_path).digest}
    assert build(source, tmp_path).warnings == ()


def test_progress(source, tmp_path):
    seen = []
    build(source, tmp_path, progress=lambda done, total: seen.append((done, total)))
    assert seen == [(1, 3), (2, 3), (3, 3)]


def test_a_bad_shard_among_good_ones(source, tmp_path):
    path = tmp_path / "data" / "part-0001.jsonl"
    good = path.read_bytes()
    path.write_bytes(b"\x1f\x8b" + good)
    index = build(source, tmp_path)
    assert index.num_rows == 20
    (bad,) = index.bad_shards
    assert bad.path == str(path)
    assert "gzip" in bad.reason
    assert index.warnings == (f"unusable shard: {bad.reason}",)
    path.write_bytes(good)
    assert build(source, tmp_path).num_rows == 30


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"part-0.jsonl": b"\x1f\x8b", "part-1.jsonl": b"\xff\xfe{"}, ["none of 2 shards", "gzip", "UTF-16"]),
        ({"part-0.jsonl": b"", "part-1.jsonl": b" \n\n"}, ["no rows in 2 shards", "part-0.jsonl"]),
        ({"other.jsonl": b"{}"}, ["part-*.jsonl", "nothing called"]),
    ],
)
def test_a_source_without_rows_is_an_error(tmp_path, files, words):
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    source = Source(format="jsonl", path="part-*.jsonl", text="text")
    with pytest.raises(SourceError) as caught:
        build(source, tmp_path)
    assert [word for word in ["'s'", *words] if word not in str(caught.value)] == []


def test_a_field_that_only_some_shards_lack_is_a_warning(tmp_path, monkeypatch):
    class Format(SourceFormat):
        def read(self, path, extent):
            raise AssertionError("only indexed here")

        def index_shard(self, path):
            missing = json.loads(Path(path).read_text())
            return ShardIndex((Extent(0, 5, 0, 1, 1),), missing=missing)

    monkeypatch.setitem(SOURCES._items, "partial", Format)
    source = Source(format="partial", path="*.p", text="content")
    (tmp_path / "a.p").write_text('{"text": "column \'content\'; found: id"}')
    with pytest.raises(SourceError, match="text: no shard has column 'content'; found: id"):
        build(source, tmp_path)
    (tmp_path / "b.p").write_text("{}")
    index = build(source, tmp_path)
    assert index.num_rows == 10
    assert index.warnings == (f"{tmp_path}/a.p: text: no column 'content'; found: id",)
    assert build(source, tmp_path).warnings == index.warnings, "from the cache too"


def test_a_shard_that_grows_while_it_is_indexed_is_refused(source, tmp_path, monkeypatch):
    real = SOURCES.get("jsonl")

    class Grown(real):
        def index_shard(self, path):
            index = super().index_shard(path)
            if path.endswith("2.jsonl"):
                with Path(path).open("a") as file:
                    file.write("{}\n")
            return index

    monkeypatch.setitem(SOURCES._items, "jsonl", Grown)
    (bad,) = build(source, tmp_path).bad_shards
    assert "changed while" in bad.reason


def test_unknown_format(tmp_path):
    (tmp_path / "x").touch()
    with pytest.raises(ConfigError, match="did you mean 'parquet'"):
        build(Source(format="parket", path="x", text="text"), tmp_path)
