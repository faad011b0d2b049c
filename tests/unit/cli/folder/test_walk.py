"""Which files of a folder belong together."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from dataloader_svc.cli.folder.walk import MediaFiles, Shard, Unusable, size_below, walk
from dataloader_svc.storage import Storage
from dataloader_svc.testing.data import png, tiny_rows, write_source


def found(root: Path) -> dict[str, tuple[object, ...]]:
    """Path below -> what it is."""
    entries: dict[str, tuple[object, ...]] = {}
    for each in walk(str(root), Storage()):
        if isinstance(each, MediaFiles):
            names = [f"{each.folder}/{name}" for name in each.names]
            entries |= {os.path.relpath(name, root): ("media", each.kind) for name in names}
            continue
        key = os.path.relpath(each.path, root)
        assert key not in entries
        if isinstance(each, Shard):
            entries[key] = ("shard", each.format, *each.options.values())
        else:
            entries[key] = ("unusable" if isinstance(each, Unusable) else "not read", each.why)
    return entries


def write(path: Path, data: bytes = b"") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def test_by_suffix(tmp_path: Path) -> None:
    for name in (
        "a.JSONL",
        "b.jsonl.gz",
        "c/d.tar.zst",
        "c/e.csv",
        "f.parquet",
        "g.feather",
        "h.JPG",
        "i.mkv",
    ):
        write(tmp_path / name)
    assert found(tmp_path) == {
        "a.JSONL": ("shard", "jsonl"),
        "b.jsonl.gz": ("shard", "jsonl"),
        "c/d.tar.zst": ("shard", "webdataset"),
        "c/e.csv": ("shard", "manifest"),
        "f.parquet": ("shard", "parquet"),
        "g.feather": ("shard", "arrow"),
        "h.JPG": ("media", "image"),
        "i.mkv": ("media", "video"),
    }


def test_by_content_without_a_suffix(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": ["a"]}), tmp_path / "table")
    with pa.OSFile(str(tmp_path / "stream"), "wb") as file, pa.ipc.new_stream(file, pa.schema({})):
        pass
    write_source(tmp_path / "tar", "webdataset", tiny_rows(2))
    write(tmp_path / "packed", gzip.compress(next((tmp_path / "tar").iterdir()).read_bytes()))
    write(tmp_path / "lines", b'{"text": "a"}\n')
    write(tmp_path / "picture", png(4, 4, (1, 2, 3)))
    write(tmp_path / "LICENSE", b"Anybody may")
    write(tmp_path / "nothing")
    write(tmp_path / "damaged", b"\x1f\x8b\x08\0no gzip")
    os.mkfifo(tmp_path / "pipe.png")
    assert found(tmp_path) == {
        "table": ("shard", "parquet"),
        "stream": ("shard", "arrow"),
        "tar/part-0000.tar": ("shard", "webdataset"),
        "packed": ("shard", "webdataset"),
        "lines": ("shard", "jsonl"),
        "picture": ("media", "image"),
        "LICENSE": ("not read", "has no suffix, and begins as nothing that is known"),
        "nothing": ("not read", "is empty"),
        "damaged": ("not read", "begins as gzip, and can't be expanded: cut short"),
        "pipe.png": ("not read", "is no regular file"),
    }


def test_data_sets_by_their_marks_and_what_lies_beside(tmp_path: Path) -> None:
    write_source(tmp_path / "mds", "mds", tiny_rows(4), shards=2)
    write(tmp_path / "mds/notes.jsonl", b"{}")
    write_source(tmp_path / "energon", "energon", tiny_rows(4), shards=2)
    write(tmp_path / "energon/other.tar")
    assert found(tmp_path) == {
        "mds/part-0000.mds": ("shard", "mds"),
        "mds/part-0001.mds": ("shard", "mds"),
        "mds/notes.jsonl": ("shard", "jsonl"),
        "energon/part-0000.tar": ("shard", "energon", "train"),
        "energon/part-0001.tar": ("shard", "energon", "train"),
        "energon/other.tar": ("shard", "webdataset"),
    }


def test_all_splits_of_a_saved_dataset_once(tmp_path: Path) -> None:
    for split in ("train", "odd"):
        state = {"_split": split, "_data_files": [{"filename": "data-0.arrow"}]}
        write(tmp_path / split / "state.json", json.dumps(state).encode())
        write(tmp_path / split / "dataset_info.json", b"{}")
        write(tmp_path / split / "data-0.arrow")
    write(tmp_path / "dataset_dict.json", b'{"splits": ["train", "odd"]}')
    assert found(tmp_path) == {
        "train/data-0.arrow": ("shard", "huggingface", None, "train"),
        "odd/data-0.arrow": ("shard", "huggingface", None, "odd"),
        "train/state.json": ("not read", "no format has files called *.json"),
        "odd/state.json": ("not read", "no format has files called *.json"),
    }


def test_a_broken_data_set_is_told_and_its_files_are_read_one_by_one(tmp_path: Path) -> None:
    write(tmp_path / "index.json", b"[1, 2]")
    write(tmp_path / "a.jsonl", b"{}")
    entries = found(tmp_path)
    assert entries.keys() == {"index.json", "a.jsonl"}
    assert entries["index.json"][0] == "unusable"
    assert entries["a.jsonl"] == ("shard", "jsonl")


def test_hidden_files_links_and_order(tmp_path: Path) -> None:
    for name in (".hidden.jsonl", ".git/x.jsonl", "b/2.jsonl", "b/10.jsonl", "a.jsonl"):
        write(tmp_path / name, b"12")
    (tmp_path / "c").symlink_to(tmp_path / "b")
    (tmp_path / "gone.jsonl").symlink_to(tmp_path / "nowhere")
    # A dangling link is read, and then told to be missing.
    assert list(found(tmp_path)) == ["a.jsonl", "gone.jsonl", "b/10.jsonl", "b/2.jsonl"]
    assert size_below(str(tmp_path)) == 3 * 2


def test_a_folder_that_went_away(tmp_path: Path) -> None:
    (entry,) = walk(str(tmp_path / "gone"), Storage())
    assert isinstance(entry, Unusable)
    assert entry.why == "no such file or directory"


def test_nothing(tmp_path: Path) -> None:
    assert list(walk(str(tmp_path), Storage())) == []
