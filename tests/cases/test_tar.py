"""Trouble cases 28 to 35: tar shards as people have them. What is right stands beside each in data/."""

import io

import pytest
from PIL import Image

from dataloader_svc.config.schema import Source
from dataloader_svc.errors import Reason, SourceError
from dataloader_svc.sources import build_index
from dataloader_svc.sources.tar import members
from tests.cases.read import DATA, colour, read

PAIR = {"text": "txt", "image": "png"}


def numbers(outcome):
    """Which k each sample is, from its text, checked against the colour of its picture."""
    found = []
    for values in outcome.good:
        number = int(values["text"].removeprefix("caption "))
        (data,) = values["image"]
        picture = Image.open(io.BytesIO(data))
        assert picture.size == (16, 16)
        assert picture.getcolors() == [(256, colour(number))]
        found.append(number)
    return found


def test_28_truncated():
    outcome = read("webdataset", "28-tar-truncated/*.tar", **PAIR)
    assert numbers(outcome) == [0, 1, 2, 7, 8]
    assert outcome.bad == {}
    (warning,) = outcome.warnings
    assert "cut.tar" in warning
    assert "0003.png" in warning


@pytest.mark.parametrize("name", ["gnu", "pax", "pax_global"])
def test_29_long_names(name):
    outcome = read("webdataset", f"29-tar-long-names/{name}.tar", **PAIR)
    assert numbers(outcome) == [1, 2]
    assert outcome.bad == {}
    assert outcome.warnings == ()


@pytest.mark.parametrize("name", ["gnu", "pax", "pax_global"])
def test_29_full_names(name):
    data = (DATA / f"29-tar-long-names/{name}.tar").read_bytes()
    found = [member.name for member in members(lambda at, n: data[at : at + n], 0, len(data))]
    keys = ["x" * 140 + "1", "déjà/猫2"]
    assert found == [f"{key}.{extension}" for key in keys for extension in ("png", "txt")]


def test_31_member_twice():
    outcome = read("webdataset", "31-tar-duplicate-names/twice.tar", **PAIR)
    assert numbers(outcome) == [1]
    ((place, error),) = outcome.bad.items()
    assert place == ("twice.tar", 0)
    assert error.reason is Reason.BAD_RECORD
    assert "0000.txt" in error.detail


def test_31_same_key_in_two_shards():
    paths = ["31-tar-duplicate-names/a/0.tar", "31-tar-duplicate-names/b/0.tar"]
    outcome = read("webdataset", paths, **PAIR)
    assert numbers(outcome) == [2, 3]
    refs = {outcome.reader.locate_row(0, position) for position in range(2)}
    assert len(refs) == 2


def test_31_caches_of_two_shards_of_one_name_stay_apart(tmp_path):
    source = Source(format="webdataset", path="31-tar-duplicate-names/{a,b}/0.tar", **PAIR)
    first = build_index("s", source, DATA, tmp_path)
    assert len(list(tmp_path.iterdir())) == 2
    assert build_index("s", source, DATA, tmp_path).digest == first.digest
    assert first.names == ("a/0.tar", "b/0.tar")


def test_32_parts_not_adjacent():
    with pytest.raises(SourceError) as caught:
        read("webdataset", "32-tar-parts-not-adjacent/interleaved.tar", **PAIR)
    assert "interleaved.tar" in str(caught.value)
    assert "'0000'" in str(caught.value)


def test_34_empty_member_and_missing_part():
    outcome = read("webdataset", "34-tar-empty-member-missing-part/holes.tar", **PAIR)
    assert numbers(outcome) == [0, 3]
    assert [row for _, row in outcome.bad] == [1, 2, 4]
    assert outcome.reasons() == ["missing_field"] * 3
    details = [error.detail for error in outcome.bad.values()]
    assert "0001.png' is empty" in details[0]
    assert "'txt'" in details[1]
    assert "'png'" in details[2]


def test_34_text_only():
    outcome = read("webdataset", "34-tar-empty-member-missing-part/holes.tar", text="txt")
    assert outcome.column("text") == ["caption 0", "caption 1", "caption 3", "caption 4"]
    assert [row for _, row in outcome.bad] == [2]


def test_35_no_members_or_gzip():
    outcome = read("webdataset", "35-tar-no-members-or-gzip/*.tar", **PAIR)
    assert len(numbers(outcome)) == 4
    assert [name for name, _ in outcome.samples] == ["good.tar"] * 2 + ["really_gzip.tar"] * 2
    assert outcome.bad == {}
    text = "\n".join(outcome.warnings)
    assert len(outcome.warnings) == 2
    assert "empty.tar: has no samples" in text
    assert "zero_bytes.tar: is an empty file" in text


def test_35_nothing_but_empty_shards_is_an_error():
    with pytest.raises(SourceError, match=r"no rows in 2 shards\n.*empty.tar.*\n.*zero_bytes.tar"):
        read("webdataset", "35-tar-no-members-or-gzip/{empty,zero_bytes}.tar", **PAIR)
