import io
import json
import tarfile
from pathlib import Path

import pytest
import yaml

from dataloader_svc.config.schema import Source
from dataloader_svc.errors import BadSample, Reason, SourceError
from dataloader_svc.sources import SourceReader
from dataloader_svc.sources.index import make_format
from dataloader_svc.storage import Storage


def prepared(
    folder: Path, shards, *, splits=None, exclude=(), field_map=None, counts=None, info=".info.json"
):
    """A folder as `energon prepare` leaves it. `shards`: name -> {member: bytes}."""
    for name, members in shards.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with tarfile.open(path, "w") as tar:
            for member, data in members.items():
                entry = tarfile.TarInfo(member)
                entry.size = len(data)
                tar.addfile(entry, io.BytesIO(data))
    meta = folder / ".nv-meta"
    meta.mkdir()
    splits = {"train": list(shards)} if splits is None else splits
    (meta / "split.yaml").write_text(yaml.safe_dump({"split_parts": splits, "exclude": list(exclude)}))
    (meta / "dataset.yaml").write_text(
        yaml.safe_dump(
            {
                "sample_type": {"__module__": "megatron.energon", "__class__": "CaptioningSample"},
                "field_map": field_map or {"image": "jpg", "caption": "txt"},
            }
        )
    )
    found = {"energon_version": "7.1.0", "shard_counts": counts or {}}
    (meta / info).write_text(json.dumps(found) if info.endswith("json") else yaml.safe_dump(found))


def samples(*names):
    return {f"{name}.{kind}": name.encode() for name in names for kind in ("txt", "jpg")}


def reader(tmp_path, *, cache=False, **settings):
    source = {"format": "energon", "path": "d", "text": "caption", "shuffle": False} | settings
    return SourceReader(
        "s", Source.model_validate(source), tmp_path, tmp_path / "cache" if cache else None, 0
    )


def rows_of(found, role="text"):
    rows = []
    for number in range(len(found.index.extents)):
        extent = found.read_extent(number)
        rows += [extent.bad.get(row) or value for row, value in enumerate(extent.columns[role])]
    return rows


SHARDS = {"shards/shard_000.tar": samples("a", "b"), "shards/shard_001.tar": samples("c")}


def test_fields_of_energon_are_members(tmp_path):
    prepared(tmp_path / "d", SHARDS)
    found = reader(tmp_path, image="image")
    assert rows_of(found) == ["a", "b", "c"]
    assert rows_of(found, "image") == [[b"a"], [b"b"], [b"c"]]
    assert found.index.names == tuple(SHARDS)
    assert found.index.warnings == ()


def test_members_can_be_named_themselves(tmp_path):
    prepared(tmp_path / "d", SHARDS)
    assert rows_of(reader(tmp_path, text="txt", image="jpg"), "image") == [[b"a"], [b"b"], [b"c"]]


def test_alternatives_and_values_inside_of_json(tmp_path):
    members = {"a.png": b"1", "a.json": b'{"info": {"caption": "a cat"}}', "b.jpg": b"2", "b.json": b"{}"}
    field_map = {"image": "jpg,png", "caption": "json[info][caption]"}
    prepared(tmp_path / "d", {"x.tar": members}, field_map=field_map)
    found = reader(tmp_path, image="image")
    first, second = rows_of(found)
    assert first == "a cat"
    assert second.reason is Reason.MISSING_FIELD
    assert rows_of(found, "image")[0] == [b"1"]


def test_splits_by_name_with_braces(tmp_path):
    shards = {f"{number:02d}.tar": samples(f"k{number}") for number in range(4)}
    splits = {"train": ["{00..01}.tar", "03.tar"], "val": ["02.tar"], "test": []}
    prepared(tmp_path / "d", shards, splits=splits)
    assert rows_of(reader(tmp_path)) == ["k0", "k1", "k3"]
    assert rows_of(reader(tmp_path, options={"split": "val"})) == ["k2"]
    with pytest.raises(SourceError, match="no split 'vla'; found: .*did you mean 'val'"):
        reader(tmp_path, options={"split": "vla"})
    with pytest.raises(SourceError, match="split 'test' has no shards"):
        reader(tmp_path, options={"split": "test"})
    found = make_format(Source(format="energon", path="d", text="txt"), Storage())
    assert found.splits(str(tmp_path / "d")) == ({"split": "train"}, {"split": "val"})


def test_excluded_shards_and_samples_are_passed_over(tmp_path):
    exclude = ["shards/shard_001.tar", "shards/shard_000.tar/a"]
    prepared(tmp_path / "d", SHARDS, exclude=exclude)
    found = reader(tmp_path)
    first, second = rows_of(found)
    assert isinstance(first, BadSample)
    assert first.reason is Reason.FILTERED, "left out on purpose, and no bad data"
    assert second == "b"
    assert len(found.index.paths) == 1


@pytest.mark.parametrize("info", [".info.json", ".info.yaml"])
def test_counts_are_compared(tmp_path, info):
    prepared(tmp_path / "d", SHARDS, counts={"shards/shard_000.tar": 2, "shards/shard_001.tar": 7}, info=info)
    (warning,) = reader(tmp_path).index.warnings
    assert "shard_001.tar: holds 1 samples, .nv-meta/.info counts 7" in warning


def test_a_cached_index_does_not_outlive_what_the_folder_says(tmp_path):
    prepared(tmp_path / "d", {"x.tar": samples("a")}, field_map={"caption": "text"})
    with pytest.raises(SourceError, match="no shard has 'text'; found: txt, jpg; did you mean 'txt'"):
        reader(tmp_path, cache=True)
    (tmp_path / "d/.nv-meta/dataset.yaml").write_text("field_map: {caption: txt}")
    assert rows_of(reader(tmp_path, cache=True)) == ["a"]


def test_several_folders(tmp_path):
    prepared(tmp_path / "d", {"x.tar": samples("a")})
    prepared(tmp_path / "e", {"x.tar": {"b.text": b"b"}}, field_map={"caption": "text"})
    assert rows_of(reader(tmp_path, path=["e", "d/"])) == ["b", "a"]


def test_a_missing_shard_leaves_the_others(tmp_path):
    prepared(tmp_path / "d", SHARDS)
    (tmp_path / "d/shards/shard_000.tar").unlink()
    found = reader(tmp_path)
    assert rows_of(found) == ["c"]
    assert "shard_000.tar: no such file" in found.index.bad_shards[0].reason


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("split_parts: [", r"split\.yaml: can't be read: while parsing"),
        ("- a", r"split\.yaml: must hold fields"),
        ("{}", "no split 'train'; found: none"),
        ("split_parts: {train: [../other.tar]}", r"\.\./other\.tar leads out of the folder"),
        ("split_parts: {train: [/etc/x.tar]}", r"/etc/x\.tar leads out of the folder"),
    ],
)
def test_a_split_file_that_is_none(tmp_path, text, words):
    prepared(tmp_path / "d", SHARDS)
    (tmp_path / "d/.nv-meta/split.yaml").write_text(text)
    with pytest.raises(SourceError, match=words):
        reader(tmp_path)


def test_a_folder_that_is_not_prepared(tmp_path):
    (tmp_path / "d").mkdir()
    with pytest.raises(
        SourceError, match="has no .nv-meta/split.yaml; run `energon prepare`, or .*webdataset"
    ):
        reader(tmp_path)
