"""Trouble case 50: MDS folders that are not what their index says."""

import io

import pytest
from PIL import Image

from dataloader_svc.errors import Reason, SourceError
from tests.cases.read import colour, read

FIELDS = {"text": "text", "image": "image"}
SALVAGE = {"on_damage": "salvage"}


def case(name, **options):
    return read("mds", f"50-mds-broken/{name}", options=options, **FIELDS)


def numbers(outcome):
    """Which k each row is, from the colour of its picture, checked against its text."""
    found = []
    for values, (_, row) in zip(outcome.good, outcome.samples, strict=True):
        (data,) = values["image"]
        picture = Image.open(io.BytesIO(data))
        assert picture.size == (16, 16)
        assert picture.getcolors() == [(256, colour(row))]
        assert values["text"] == ("" if row == 1 else f"caption {row}")
        found.append(row)
    return found


def test_50_good():
    outcome = case("good")
    assert numbers(outcome) == [0, 1, 2, 3]
    assert outcome.bad == {}
    assert outcome.warnings == ()


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("index_says_6", r"shard\.00000\.mds: holds 4 samples, index\.json says 6"),
        ("cut", r"shard\.00000\.mds: has 459 bytes, index\.json says 650"),
        ("bad_hash", r"shard\.00000\.mds: is not what was written: sha1 .*, index\.json says 339c7220"),
        ("empty_shards", r"empty_shards/index\.json: lists no shards"),
        ("broken_index", r"broken_index/index\.json: is not JSON"),
        ("missing_shard", r"missing_shard/shard\.00000\.mds: no such file"),
    ],
)
def test_50_found_at_open_with_the_name_of_the_file(name, words):
    with pytest.raises(SourceError, match=words):
        case(name)


@pytest.mark.parametrize(
    ("name", "rows", "words"),
    [
        ("index_says_6", [0, 1, 2, 3], ["holds 4 samples"]),
        ("cut", [0, 1], ["has 459 bytes", "is cut or damaged behind sample 2 of 4"]),
        ("bad_hash", [0, 1, 2], ["is not what was written"]),  # the changed byte makes text 3 no UTF-8
    ],
)
def test_50_good_rows_by_choice(name, rows, words):
    outcome = case(name, **SALVAGE)
    assert numbers(outcome) == rows
    assert len(outcome.warnings) == len(words)
    for warning, word in zip(outcome.warnings, words, strict=True):
        assert word in warning


def test_50_without_a_look_at_hashes():
    outcome = case("bad_hash", validate_hash=False)
    assert numbers(outcome) == [0, 1, 2]
    assert outcome.warnings == ()
    ((place, error),) = outcome.bad.items()
    assert place == ("shard.00000.mds", 3)
    assert error.reason is Reason.BAD_RECORD
    assert "sample 3: column 'text' is no str" in error.detail


@pytest.mark.parametrize("name", ["empty_shards", "broken_index", "missing_shard"])
def test_50_nothing_to_salvage(name):
    with pytest.raises(SourceError):
        case(name, **SALVAGE)
