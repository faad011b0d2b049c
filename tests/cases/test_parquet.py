"""Trouble cases 37 to 41: parquet as people have it. What is right stands beside each in data/."""

import io

import pyarrow.parquet as pq
import pytest
from PIL import Image

from dataloader_svc.errors import BadSample, Reason
from dataloader_svc.sources.base import Fields, FormatContext
from dataloader_svc.sources.parquet import Parquet
from tests.cases.read import DATA, colour, read


def colours(media):
    found = []
    for data in media:
        picture = Image.open(io.BytesIO(data))
        ((_, colour),) = picture.convert("RGB").getcolors()
        found.append(colour)
    return found


def test_37_nested_images():
    outcome = read("parquet", "37-parquet-nested-images/nested.parquet", text="text", image="images")
    assert outcome.bad == {}
    assert [len(media) for media in outcome.column("image")] == [0, 1, 2, 0]
    assert colours(outcome.column("image")[2]) == [(80, 100, 175), (120, 100, 135)]


def test_37_many_images():
    path = str(DATA / "37-parquet-nested-images/many.parquet")
    maker = Parquet(FormatContext(Fields({"image": ("images",)}), extent_bytes=1))
    rows = [maker.read(path, extent) for extent in maker.index_shard(path).extents]
    assert all(part.bad == {} for part in rows)
    media = [cell for part in rows for cell in part.columns["image"]]
    assert [colours(cell) for cell in media] == [[colour(k % 5)] * (k % 3) for k in range(300)]


def test_38_dictionary():
    outcome = read("parquet", "38-parquet-dictionary/*.parquet", text="text")
    assert outcome.column("text") == ["red", "blue", "red", "blue", "green", "blue"]
    assert outcome.reasons() == ["missing_field"] * 2
    assert list(outcome.bad) == [("d0.parquet", 3), ("d1.parquet", 3)]


def test_40_null_rows_with_pictures():
    outcome = read("parquet", "40-parquet-null-rows/nulls.parquet", text="text", image="image")
    assert {row: str(error.reason) for (_, row), error in outcome.bad.items()} == {
        1: "missing_field",
        3: "missing_field",
    }
    # Row 2 is an empty text, which the document rules skip; row 4 names a file that is not there.
    assert [row for _, row in outcome.samples] == [0, 2, 4, 5]
    assert outcome.column("text")[1] == ""
    (path,) = outcome.column("image")[2]
    with pytest.raises(BadSample) as caught:
        outcome.reader.read_media(path, outcome.reader.index.paths[0])
    assert caught.value.reason is Reason.MISSING_FILE
    assert "None" not in outcome.column("text")


def test_40_null_rows_text_only():
    outcome = read("parquet", "40-parquet-null-rows/nulls.parquet", text="text")
    assert [row for _, row in outcome.samples] == [0, 2, 3, 4, 5]
    assert "None" not in outcome.column("text")


def test_41_empty_row_groups():
    outcome = read("parquet", "41-parquet-empty-row-groups/*.parquet", text="text")
    folder = DATA / "41-parquet-empty-row-groups"
    expected = [
        text
        for name in ("b_zero_groups", "c_uneven")
        for text in pq.read_table(folder / f"{name}.parquet").column("text").to_pylist()
    ]
    assert len(expected) == 56
    assert outcome.column("text") == expected
    assert outcome.bad == {}
    assert [warning.rpartition("/")[2] for warning in outcome.warnings] == ["a_none.parquet: has no rows"]
    assert outcome.reader.index.extents.num_rows.tolist() == [1, 1, 1, 1, 50, 2]
