"""First bytes, as libraries write them, and things that are none."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from PIL import Image

from dataloader_svc.media.sniff import HEAD_BYTES, kind_of_suffix, sniff, suffix_of

CASES = Path(__file__).parents[2] / "cases" / "data"


@pytest.mark.parametrize(
    ("form", "suffix"),
    [
        ("JPEG", ".jpg"),
        ("PNG", ".png"),
        ("GIF", ".gif"),
        ("WEBP", ".webp"),
        ("TIFF", ".tiff"),
        ("BMP", ".bmp"),
    ],
)
def test_pictures_that_pillow_writes(form: str, suffix: str) -> None:
    file = io.BytesIO()
    Image.new("RGB", (9, 7), (1, 2, 3)).save(file, form)
    found = sniff(file.getvalue())
    assert found is not None
    assert (found.kind, found.suffix) == ("image", suffix)
    assert sniff(memoryview(file.getvalue())[:HEAD_BYTES]) == found


@pytest.mark.parametrize(
    "path", sorted(CASES.rglob("*.mp4")) + sorted(CASES.rglob("*.mkv")), ids=lambda p: p.name
)
def test_clips(path: Path) -> None:
    found = sniff(path.read_bytes())
    assert found == ("video", path.suffix)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"BM",
        b"BMW is a car, and this is a text",
        b"<html>404</html>",
        b"RIFF",
        b"\xff",
        b"{}",
        bytes(600),
    ],
)
def test_what_is_none(data: bytes) -> None:
    assert sniff(data) is None
    assert suffix_of(data) == ".bin"


def test_kinds_by_suffix() -> None:
    kinds = [
        kind_of_suffix(suffix) for suffix in (".jpg", ".JPEG", ".mkv", ".flac", ".txt", "", ".ts", "jpg")
    ]
    assert kinds == ["image", "image", "video", "audio", None, None, None, None]
