import pytest

from dataloader_svc.errors import BadSample, Reason, SourceError
from dataloader_svc.sample import BlockId
from dataloader_svc.sources import SOURCES, SourceReader
from dataloader_svc.testing.data import TinyRow, tiny_rows, write_source


def reader_of(tmp_path, rows, *, shards=1, format_name="jsonl", **settings):
    settings.setdefault("extent", 200)
    source = write_source(tmp_path / "data", format_name, rows, shards=shards, **settings)
    return SourceReader("s", source, tmp_path, None, 7)


def blocks(reader, epoch=0):
    for number in range(reader.order(epoch).num_blocks):
        yield reader.read_block(BlockId("s", epoch, number))


def test_bad_rows_keep_their_position(tmp_path):
    rows = [TinyRow(text=None if i % 7 == 3 else f"row {i}") for i in range(60)]
    reader = reader_of(tmp_path, rows, shards=2, shuffle={"block": 1500})
    seen = []
    for block in blocks(reader):
        assert list(block.bad) == sorted(block.bad)
        for index in range(len(block)):
            ref = block.ref(index)
            number = ref.row + 30 * ref.shard.endswith("1.jsonl")
            seen.append(number)
            assert (index in block.bad) == (number % 7 == 3)
            if index in block.bad:
                assert block.bad[index].reason is Reason.MISSING_FIELD
                assert f"line {ref.row + 1}:" in block.bad[index].detail
            else:
                assert block.columns["text"][index] == f"row {number}"
    assert sorted(seen) == list(range(60))
    assert seen != sorted(seen)


def test_every_position_is_located(tmp_path):
    reader = reader_of(tmp_path, tiny_rows(60), shards=2, shuffle={"block": 1500})
    for epoch in (0, 3):
        for block in blocks(reader, epoch):
            for index in range(len(block)):
                assert reader.locate_row(epoch, block.start + index) == block.ref(index)


def test_an_unreadable_extent_gives_bad_rows_and_the_rest_goes_on(tmp_path, monkeypatch):
    real = SOURCES.get("jsonl")

    class Failing(real):
        def read(self, path, extent):
            if extent.first_row == 0:
                raise SourceError(f"{path}: disk on fire")
            return super().read(path, extent)

    monkeypatch.setitem(SOURCES._items, "jsonl", Failing)
    reader = reader_of(tmp_path, tiny_rows(60), shuffle={"block": 10**6})
    lost = reader.index.extents.num_rows[0]
    (block,) = blocks(reader)
    assert len(block) == 60
    assert len(block.bad) == lost
    assert {block.ref(index).row for index in block.bad} == set(range(lost))
    assert {error.reason for error in block.bad.values()} == {Reason.UNREADABLE_SHARD}
    assert "disk on fire" in block.bad[min(block.bad)].detail


@pytest.mark.parametrize("change", ["grow", "remove"])
def test_a_shard_that_changes_after_indexing_is_not_read(tmp_path, change):
    reader = reader_of(tmp_path, tiny_rows(20), shards=2, shuffle={"block": 10**6})
    victim = tmp_path / "data" / "part-0001.jsonl"
    if change == "grow":
        victim.write_bytes(victim.read_bytes() + b'{"text": "new"}\n')
    else:
        victim.unlink()
    (block,) = blocks(reader)
    assert {block.ref(index).row for index in block.bad} == set(range(10))
    assert {block.ref(index).shard for index in block.bad} == {str(victim)}
    assert "part-0001" in block.bad[min(block.bad)].detail


def test_a_block_reads_its_own_extents_only(tmp_path, monkeypatch):
    real = SOURCES.get("jsonl")
    read = []

    class Counted(real):
        def read(self, path, extent):
            read.append(extent)
            return super().read(path, extent)

    monkeypatch.setitem(SOURCES._items, "jsonl", Counted)
    reader = reader_of(tmp_path, tiny_rows(200), shuffle={"block": 1000})
    reader.locate_row(0, 100)
    assert read == []
    block = reader.read_block(BlockId("s", 0, 2))
    assert sum(extent.num_rows for extent in read) == len(block)
    assert len(read) < len(reader.index.extents) / 4


def test_rows_of_a_block_read_only_the_extents_that_hold_them(tmp_path, monkeypatch):
    real = SOURCES.get("jsonl")
    read = []

    class Counted(real):
        def read(self, path, extent):
            read.append(extent.first_row)
            return super().read(path, extent)

    rows = [TinyRow(text=None if i % 7 == 3 else f"row {i}") for i in range(60)]
    monkeypatch.setitem(SOURCES._items, "jsonl", Counted)
    reader = reader_of(tmp_path, rows, shuffle={"block": 1500})
    name = BlockId("s", 2, 0)
    whole = reader.read_block(name)
    assert len(set(read)) == len(read) > 2
    firsts = sorted(read)
    for index in range(len(whole)):
        read.clear()
        part = reader.read_block(name, {whole.start + index})
        assert read == [max(first for first in firsts if first <= whole.row[index])]
        assert (part.start, len(part)) == (whole.start, len(whole))
        assert part.row.tolist() == whole.row.tolist()
        assert set(part.bad) == set(range(len(whole))) - {index} | ({index} & set(whole.bad))
        if index in whole.bad:
            assert str(part.bad[index]) == str(whole.bad[index])
        else:
            assert part.columns["text"][index] == whole.columns["text"][index]
    read.clear()
    reader.read_block(name, {whole.start, whole.start + 1, whole.start + len(whole) - 1})
    assert len(read) <= 3
    reader.read_block(name, set())
    assert len(read) <= 3


def test_orders_are_kept_for_a_few_epochs_only(tmp_path):
    reader = reader_of(tmp_path, tiny_rows(5))
    first = reader.order(0)
    assert reader.order(0) is first
    for epoch in range(1, 6):
        reader.order(epoch)
    assert reader.order(0) is not first


def test_media_lie_beside_the_shard_or_below_media_root(tmp_path):
    reader = reader_of(tmp_path, tiny_rows(3, image_side=2))
    (block,) = blocks(reader)
    (name,) = block.columns["image"][0]
    shard = block.ref(0).shard
    assert reader.read_media(name, shard) == (tmp_path / "data" / name).read_bytes()
    assert reader.read_media(f"file://{tmp_path}/data/{name}", shard).startswith(b"\x89PNG")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "x.png").write_bytes(b"pixels")
    moved = SourceReader("s", reader.source.model_copy(update={"media_root": "elsewhere"}), tmp_path, None, 7)
    assert moved.read_media("x.png", shard) == b"pixels"


@pytest.mark.parametrize("path", ["none.png", "", ".", "no/such/folder.png", "nul\0.png"])
def test_missing_media_are_bad_samples(tmp_path, path):
    reader = reader_of(tmp_path, tiny_rows(1))
    with pytest.raises(BadSample) as caught:
        reader.read_media(path, reader.index.paths[0])
    assert caught.value.reason is Reason.MISSING_FILE
