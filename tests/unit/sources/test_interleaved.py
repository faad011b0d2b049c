"""Interleaved documents in their three styles: the order of their parts, and every nasty row."""

import base64

import pytest

from dataloader_svc.config.schema import Interleaved
from dataloader_svc.errors import BadSample, Reason
from dataloader_svc.sources.base import Rows
from dataloader_svc.sources.interleaved import parts_of_document, with_documents

OBELICS = Interleaved(style="obelics")
MMC4 = Interleaved(style="mmc4")


def documents(rule, texts, images):
    return with_documents(Rows(1, {"texts": [texts], "images": [images]}), rule)


def plain(parts):
    """Texts as they are, pictures in brackets, dead ones as their reason."""
    shown = []
    for part in parts:
        medium = part.get("medium")
        dead = isinstance(medium, BadSample)
        shown.append(part["text"] if part["type"] == "text" else (medium.reason if dead else [medium]))
    return shown


def test_obelics():
    rows = documents(OBELICS, ["a", None, "b", "", "c"], [None, "1.png", None, b"2", None])
    assert not rows.bad
    assert list(rows.columns) == ["interleaved"]
    assert plain(rows.columns["interleaved"][0]) == ["a", ["1.png"], "b", [b"2"], "c"]


def test_mmc4_puts_pictures_in_front_of_their_sentence_in_the_order_listed():
    picture = base64.b64encode(b"pixels").decode()
    images = [
        {"matched_text_index": 1, "image_name": "x.png", "raw_url": "http://dead", "matched_sim": 0.3},
        {"matched_text_index": 0, "image_base64": picture},
        {"matched_text_index": 1, "image": {"bytes": b"y", "path": None}},
    ]
    rows = documents(MMC4, ["one", "two"], images)
    assert plain(rows.columns["interleaved"][0]) == [[b"pixels"], "one", ["x.png"], [b"y"], "two"]


def test_documents_without_pictures_are_documents():
    assert plain(documents(OBELICS, ["a", "b"], [None, None]).columns["interleaved"][0]) == ["a", "b"]
    assert plain(documents(MMC4, ["a", "b"], []).columns["interleaved"][0]) == ["a", "b"]


def test_dead_pictures_stand_in_their_place():
    rows = documents(OBELICS, ["a", None, None], [None, None, "data:image/png;base64,?"])
    assert plain(rows.columns["interleaved"][0]) == ["a", Reason.MISSING_FIELD, Reason.BAD_RECORD]
    images = [
        {"matched_text_index": 0, "raw_url": "http://dead"},
        {"matched_text_index": 0, "image_base64": "?"},
    ]
    dead = documents(MMC4, ["a"], images).columns["interleaved"][0]
    assert plain(dead) == [Reason.MISSING_FIELD, Reason.BAD_RECORD, "a"]
    assert "image_info[0] names no picture" in dead[0]["medium"].detail


@pytest.mark.parametrize(
    ("rule", "texts", "images", "reason", "words"),
    [
        (OBELICS, ["a", "b"], [None], Reason.BAD_RECORD, "2 texts for 1 images"),
        (OBELICS, [], [], Reason.EMPTY_TEXT, "'texts' is an empty list"),
        (OBELICS, ["a"], ["1.png"], Reason.BAD_RECORD, "index 0 has both"),
        (OBELICS, [5], [None], Reason.WRONG_TYPE, "'texts[0]' must be a string, is a number"),
        (MMC4, [], [], Reason.EMPTY_TEXT, "'text_list' is an empty list"),
        (MMC4, ["a", None], [], Reason.WRONG_TYPE, "'text_list[1]' must be a string, is null"),
        (MMC4, ["a"], ["1.png"], Reason.WRONG_TYPE, "'image_info[0]' must be an object"),
        (MMC4, ["a"], [{"image_name": "x"}], Reason.WRONG_TYPE, "matched_text_index' must be a whole number"),
        (MMC4, ["a"], [{"matched_text_index": True}], Reason.WRONG_TYPE, "is a boolean"),
        (MMC4, ["a"], [{"matched_text_index": 1}], Reason.BAD_RECORD, "is 1; there are 1 sentences"),
        (MMC4, ["a"], [{"matched_text_index": -1}], Reason.BAD_RECORD, "is -1; there are 1 sentences"),
    ],
)
def test_what_is_no_document(rule, texts, images, reason, words):
    problem = documents(rule, texts, images).bad[0]
    assert problem.reason is reason
    assert words in problem.detail


def test_bad_rows_stay_bad_and_raw_columns_stay():
    known = BadSample(Reason.BAD_RECORD, "cut")
    rows = Rows(2, {"texts": [None, ["a"]], "images": [None, [None]]}, {0: known}, {"lang": ["en", "de"]})
    made = with_documents(rows, OBELICS)
    assert made.bad == {0: known}
    assert made.raw == {"lang": ["en", "de"]}
    assert plain(made.columns["interleaved"][1]) == ["a"]


def test_parts():
    value = [
        {"type": "text", "text": "a"},
        {"type": "image", "image": "1.png"},
        {"type": "image", "image": 5},
    ]
    parts = parts_of_document(value, "p")
    assert plain(parts) == ["a", ["1.png"], Reason.WRONG_TYPE]
    assert parts_of_document(parts, "p") == parts
    rows = Rows(1, {"interleaved": [parts]})
    assert with_documents(rows, Interleaved(style="parts")) is rows


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (None, Reason.MISSING_FIELD),
        ([], Reason.EMPTY_TEXT),
        ("a", Reason.WRONG_TYPE),
        (["a"], Reason.WRONG_TYPE),
        ([{"type": "text", "text": None}], Reason.WRONG_TYPE),
    ],
)
def test_what_are_no_parts(value, reason):
    with pytest.raises(BadSample) as caught:
        parts_of_document(value, "p")
    assert caught.value.reason is reason
