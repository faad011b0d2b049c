"""What fields hold, and which values of them a job could not take."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dataloader_svc.cli.folder.profile import FieldProfile, Judge, Profile, profile_of
from dataloader_svc.errors import BadSample, Reason
from dataloader_svc.sources.base import Rows
from dataloader_svc.testing.data import png

PICTURE = png(4, 4, (1, 2, 3))


def rows(name: str, *values: Any) -> Rows:
    return Rows(len(values), {}, {}, {name: list(values)})


def profile(folder: Path, name: str, *values: Any) -> FieldProfile:
    found = profile_of([rows(name, *values)], folder)
    assert Profile.of(found.as_json()) == found
    return found.fields[name]


def judged(folder: Path, name: str, *values: Any) -> Judge:
    """By the profile of the values themselves."""
    judge = Judge(profile_of([rows(name, *values)], folder), folder)
    judge.look_at(rows(name, *values))
    return judge


def bad(judge: Judge) -> dict[int, Reason]:
    return {row: error.reason for row, (_, error) in judge.bad.items()}


@pytest.mark.parametrize(
    ("name", "values", "expected"),
    [
        ("x", ("a", "b", None), FieldProfile("text", expected=True)),
        ("x", ("a", None, None), FieldProfile("text", expected=False)),
        ("x", ("a", " ", ""), FieldProfile("text", expected=False)),
        ("x", (b"abc", b"d\xc3\xa4"), FieldProfile("text", expected=True)),
        ("x", (1, 2, "a"), FieldProfile("any", expected=False)),
        ("x", (np.zeros(3), np.ones(2)), FieldProfile("any", expected=False)),
        ("x", (["a"], ["b"]), FieldProfile("any", expected=False)),
        ("x", (PICTURE, PICTURE, b"\xff\x00"), FieldProfile("media", expected=True, kind="image")),
        ("x", ({"bytes": PICTURE, "path": None},), FieldProfile("media", expected=True, kind="image")),
        ("x", ({"bytes": None, "path": "a.mp4"},), FieldProfile("media", expected=True, kind="video")),
        ("jpg", ("<html>", "<html>"), FieldProfile("media", expected=True, kind="image")),
        ("a.mp4", ("<html>", None, None), FieldProfile("media", expected=False, kind="video")),
        ("x", ("there.png", "b.png", None), FieldProfile("paths", expected=True, kind="image")),
        ("x", ("a.png", "b.png"), FieldProfile("text", expected=True, kind="image")),
        ("x", ("https://host/there.png",), FieldProfile("text", expected=True)),
        ("x", ("a" * 300 + ".png",), FieldProfile("text", expected=True, kind="image")),
    ],
)
def test_what_a_field_holds(
    tmp_path: Path, name: str, values: tuple[Any, ...], expected: FieldProfile
) -> None:
    (tmp_path / "there.png").write_bytes(PICTURE)
    assert profile(tmp_path, name, *values) == expected


def test_bad_rows_are_not_counted(tmp_path: Path) -> None:
    part = rows("x", "a", "b", None, None)
    part.bad |= {2: BadSample(Reason.BAD_RECORD), 3: BadSample(Reason.BAD_RECORD)}
    assert profile_of([part], tmp_path).fields["x"].expected
    judge = Judge(profile_of([part], tmp_path), tmp_path)
    judge.look_at(part)
    assert bad(judge) == {2: Reason.BAD_RECORD, 3: Reason.BAD_RECORD}


def test_texts(tmp_path: Path) -> None:
    judge = judged(tmp_path, "x", "a", "b", "c", "d", "e", "f", None, "", "\n ", 7, ["g"], b"\xff", "\ud800")
    assert bad(judge) == {
        6: Reason.MISSING_FIELD,
        7: Reason.EMPTY_TEXT,
        8: Reason.EMPTY_TEXT,
        9: Reason.WRONG_TYPE,
        10: Reason.WRONG_TYPE,
        11: Reason.BAD_RECORD,
        12: Reason.BAD_RECORD,
    }
    assert judge.bad[9][1].detail == "field 'x' must be a string, as in most rows, is a number"
    assert judge.media == []


def test_a_field_that_few_rows_have_must_be_valid_and_no_more(tmp_path: Path) -> None:
    judge = judged(tmp_path, "x", "a", "\udfff", None, "", " ", 7)
    assert bad(judge) == {1: Reason.BAD_RECORD}


def test_media_by_content_and_by_name(tmp_path: Path) -> None:
    judge = judged(tmp_path, "jpg", PICTURE, "<html>", None, b"\0\1", b"")
    assert judge.media == [
        (0, "jpg", "image", PICTURE),
        (1, "jpg", "image", b"<html>"),
        (3, "jpg", "image", b"\0\1"),
    ]
    assert bad(judge) == {2: Reason.MISSING_FIELD, 4: Reason.MISSING_FIELD}


def test_media_beside_the_shard(tmp_path: Path) -> None:
    (tmp_path / "there.png").write_bytes(PICTURE)
    judge = judged(tmp_path, "x", "there.png", "gone.png", "gone.mp4", "")
    assert judge.media == [
        (0, "x", "image", f"{tmp_path}/there.png"),
        (1, "x", "image", f"{tmp_path}/gone.png"),
        (2, "x", "video", f"{tmp_path}/gone.mp4"),
    ]
    assert bad(judge) == {3: Reason.MISSING_FIELD}


def test_addresses_are_counted_and_data_urls_are_media(tmp_path: Path) -> None:
    address = {"bytes": None, "path": "https://host/a.png"}
    judge = judged(tmp_path, "x", address, {"bytes": PICTURE, "path": "a.png"})
    assert judge.remote == 1
    assert judge.media == [(1, "x", "image", PICTURE)]
    url = "data:image/png;base64," + base64.b64encode(PICTURE).decode()
    judge = judged(tmp_path, "x", url, "data:image/png;base64,***")
    assert judge.media == [(0, "x", "image", PICTURE)]
    assert bad(judge) == {1: Reason.BAD_RECORD}


def test_lists_and_structs_are_looked_into(tmp_path: Path) -> None:
    (tmp_path / "there.png").write_bytes(PICTURE)
    parts = [
        {"type": "text", "text": "a"},
        {"type": "image", "image": {"bytes": PICTURE, "path": None}},
        [PICTURE, "there.png", "gone.png", 7, None],
    ]
    judge = judged(tmp_path, "x", parts, None, [{"deep": ["\ud800"]}], [{"bytes": None, "path": None}])
    assert judge.media == [
        (0, "x", "image", PICTURE),
        (0, "x", "image", PICTURE),
        (0, "x", "image", f"{tmp_path}/there.png"),
    ]
    assert bad(judge) == {2: Reason.BAD_RECORD, 3: Reason.MISSING_FIELD}


def test_nested_deeper_than_python_recurses(tmp_path: Path) -> None:
    value: Any = PICTURE
    for _ in range(5000):
        value = [value]
    assert judged(tmp_path, "x", value).media == [(0, "x", "image", PICTURE)]


def test_a_field_that_an_extent_lacks_altogether(tmp_path: Path) -> None:
    judge = Judge(profile_of([rows("x", "a", "b")], tmp_path), tmp_path)
    judge.look_at(rows("y", "c"))
    assert bad(judge) == {0: Reason.MISSING_FIELD}
