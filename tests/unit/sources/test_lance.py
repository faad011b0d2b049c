"""Lance: one version of a data set for ever, whatever becomes of it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from dataloader_svc.config.schema import Source
from dataloader_svc.errors import Reason, SourceError
from dataloader_svc.sample import BlockId
from dataloader_svc.sources import SourceReader
from dataloader_svc.sources.base import FormatContext
from dataloader_svc.sources.fields import fields_of
from dataloader_svc.sources.index import make_format
from dataloader_svc.sources.lance import Lance, LanceOptions
from dataloader_svc.storage import Storage

lance = pytest.importorskip("lance", reason="needs the extra lance")


def source(path: str = "a.lance", version: int | None = 1, **fields: Any) -> Source:
    options = {} if version is None else {"version": version}
    values = {"format": "lance", "path": path, "text": "text", "options": options, "shuffle": False, **fields}
    return Source.model_validate(values)


def write(folder: Path, first: int, count: int, mode: str = "create", **columns: Any) -> None:
    table = pa.table({"text": [f"row {first + n}" for n in range(count)], **columns})
    lance.write_dataset(table, str(folder), mode=mode, max_rows_per_file=10)


def texts(folder: Path, settings: Source, cache: Path | None = None) -> list[str]:
    reader = SourceReader("s", settings, folder, cache, 0)
    blocks = (reader.read_block(BlockId("s", 0, n)) for n in range(reader.order(0).num_blocks))
    return [text for block in blocks for text in block.columns["text"]]


def test_later_versions_change_nothing(tmp_path: Path) -> None:
    write(tmp_path / "a.lance", 0, 25)
    cache = tmp_path / "index"
    before = SourceReader("s", source(), tmp_path, cache, 0)
    assert len(before.index.paths) == 3, "a fragment is a shard"
    write(tmp_path / "a.lance", 25, 10, "append")
    lance.dataset(str(tmp_path / "a.lance")).delete("text = 'row 3'")
    assert texts(tmp_path, source()) == [f"row {n}" for n in range(25)]
    after = SourceReader("s", source(), tmp_path, None, 0)
    assert after.index.digest == before.index.digest
    assert after.index.paths == before.index.paths
    second = SourceReader("s", source(version=2), tmp_path, cache, 0)
    assert second.num_rows == 35
    assert second.index.digest != before.index.digest


def test_deleted_rows_are_no_rows(tmp_path: Path) -> None:
    write(tmp_path / "a.lance", 0, 30)
    lance.dataset(str(tmp_path / "a.lance")).delete("text in ('row 3', 'row 4', 'row 9', 'row 29')")
    settings = source(version=2, extent=100)
    left = [f"row {n}" for n in range(30) if n not in (3, 4, 9, 29)]
    assert texts(tmp_path, settings) == left
    assert len(SourceReader("s", settings, tmp_path, None, 0).index.extents) > 3


def test_a_fragment_of_which_nothing_is_left_gives_no_rows(tmp_path: Path) -> None:
    write(tmp_path / "a.lance", 0, 20)
    lance.dataset(str(tmp_path / "a.lance")).delete("text < 'row 10' or text like 'row 1_'")
    lance.write_dataset(pa.table({"text": ["new"]}), str(tmp_path / "a.lance"), mode="append")
    left = texts(tmp_path, source(version=3))
    assert left[-1] == "new"
    assert len(left) == lance.dataset(str(tmp_path / "a.lance"), version=3).count_rows()


def test_columns_that_came_later(tmp_path: Path) -> None:
    """They are a second file of each fragment, which is named by its first."""
    write(tmp_path / "a.lance", 0, 20)
    lance.dataset(str(tmp_path / "a.lance")).add_columns({"more": "concat(text, '!')"})
    assert texts(tmp_path, source(version=2, text="more")) == [f"row {n}!" for n in range(20)]
    with pytest.raises(SourceError, match="text: no shard has column 'more'; found: text"):
        texts(tmp_path, source(version=1, text="more"))


def test_several_data_sets_in_the_order_of_the_pattern(tmp_path: Path) -> None:
    for number, name in enumerate("ba"):
        write(tmp_path / f"{name}.lance", 100 * number, 2)
    assert texts(tmp_path, source("*.lance")) == ["row 100", "row 101", "row 0", "row 1"]
    assert texts(tmp_path, source(["b.lance", "a.lance/"])) == ["row 0", "row 1", "row 100", "row 101"]  # type: ignore[arg-type]


def test_the_version_must_be_named(tmp_path: Path) -> None:
    write(tmp_path / "a.lance", 0, 2)
    write(tmp_path / "a.lance", 2, 2, "append")
    with pytest.raises(
        SourceError, match=r"a\.lance: say which version.*`options: {version: 2}` for the newest"
    ):
        texts(tmp_path, source(version=None))
    with pytest.raises(SourceError, match=r"a\.lance: version 99 can't be opened, the newest is 2: "):
        texts(tmp_path, source(version=99))
    format_ = Lance(FormatContext(fields_of(source()), Storage(), options=LanceOptions()))
    assert format_.splits(str(tmp_path / "a.lance")) == ({"version": 2},)


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("s3://bucket/a.lance", "is read from this machine's disks only"),
        ("none.lance", "none.lance"),
        ("folder", "nothing called|does not exist"),
    ],
)
def test_what_is_no_data_set(path: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(SourceError, match=words):
        texts(tmp_path, source(path))


def test_a_file_of_another_version_is_named(tmp_path: Path) -> None:
    write(tmp_path / "a.lance", 0, 2)
    write(tmp_path / "a.lance", 2, 2, "append")
    names = {path.name for path in (tmp_path / "a.lance" / "data").iterdir()}
    reader = SourceReader("s", source(), tmp_path, None, 0)
    (other,) = names - {Path(path).name for path in reader.index.paths}
    maker = make_format(source(), Storage())
    with pytest.raises(SourceError, match=rf"{other}: is no data file of version 1 of a Lance data set"):
        maker.index_shard(str(tmp_path / "a.lance" / "data" / other))


def test_a_shallow_clone_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "a.lance", 0, 2)
    lance.dataset(str(tmp_path / "a.lance")).shallow_clone(str(tmp_path / "b.lance"), 1)
    with pytest.raises(
        SourceError, match=r"b\.lance: is a shallow clone, whose data lies in another data set"
    ):
        texts(tmp_path, source("b.lance"))


def test_blobs_are_binary_and_a_type_that_can_not_serve_is_named(tmp_path: Path) -> None:
    blobs = pa.array([b"one", b"two"], pa.large_binary())
    kind = pa.field("blob", pa.large_binary(), metadata={"lance-encoding:blob": "true"})
    schema = pa.schema([("text", pa.string()), kind, ("n", pa.int64())])
    table = pa.table([pa.array(["a", "b"]), blobs, pa.array([1, 2])], schema=schema)
    lance.write_dataset(table, str(tmp_path / "a.lance"))
    reader = SourceReader("s", source(image="blob"), tmp_path, None, 0)
    assert reader.read_block(BlockId("s", 0, 0)).columns["image"] == [[b"one"], [b"two"]]
    with pytest.raises(SourceError, match="text: column 'n' is int64; it must be a string"):
        texts(tmp_path, source(text="n"))
    maker = make_format(source(), Storage())
    (path,) = reader.index.paths
    (extent,) = maker.index_shard(path).extents
    assert maker.columns(path, extent) == ("text", "blob")


def test_a_file_lost_under_the_job_costs_its_rows(tmp_path: Path) -> None:
    write(tmp_path / "a.lance", 0, 20)
    reader = SourceReader("s", source(), tmp_path, None, 0)
    Path(reader.index.paths[1]).unlink()
    block = reader.read_block(BlockId("s", 0, 0))
    assert {index: problem.reason for index, problem in block.bad.items()} == dict.fromkeys(
        range(10, 20), Reason.UNREADABLE_SHARD
    )


def test_without_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "a.lance", 0, 2)
    monkeypatch.setitem(sys.modules, "lance", None)
    with pytest.raises(
        SourceError, match=r"needs the package pylance: pip install 'dataloader-svc\[lance\]'"
    ):
        texts(tmp_path, source())


def test_a_panic_is_an_error_and_ctrl_c_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lance's own mistakes come as PanicException, which is no Exception."""
    write(tmp_path / "a.lance", 0, 2)
    panic = type("PanicException", (BaseException,), {})
    for raised, seen in (
        (panic("out of bounds, /a/b.rs:3:4"), SourceError),
        (KeyboardInterrupt(), KeyboardInterrupt),
    ):

        def fail(*_: Any, error: BaseException = raised, **__: Any) -> None:
            raise error

        monkeypatch.setattr(lance, "dataset", fail)
        with pytest.raises(seen) as found:
            texts(tmp_path, source())
        assert seen is KeyboardInterrupt or str(found.value).endswith(
            "is not readable as Lance: out of bounds"
        )
