"""One medium, decoded and thrown away."""

from __future__ import annotations

import io
import wave
from pathlib import Path
from typing import Any

import pytest

from dataloader_svc.cli.folder.media import examine
from dataloader_svc.errors import BadSample, Reason
from dataloader_svc.media.audio import AudioReader

CASES = Path(__file__).parents[3] / "cases" / "data"


def sound(seconds: float) -> bytes:
    """A WAV of mono silence at 8 kHz."""
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setparams((1, 2, 8000, 0, "NONE", ""))
        out.writeframes(bytes(2 * round(8000 * seconds)))
    return file.getvalue()


@pytest.mark.parametrize(
    ("kind", "name", "expected"),
    [
        ("image", "05-exif-orientation/ori6.jpg", [80, 48, 1]),
        ("video", "16-video-rotation/rot90.mp4", [32, 64, 6]),
        ("audio", "25-audio-channel-counts/stereo.wav", [0, 0, 52]),
        ("audio", "17-video-without-video-stream/sound_only.mp4", [0, 0, 52]),
    ],
)
def test_what_is_fine(kind: str, name: str, expected: list[int]) -> None:
    path = CASES / name
    assert examine({"kind": kind}, path.read_bytes()).value == expected
    assert examine({"kind": kind, "path": str(path)}, b"").value == expected


@pytest.mark.parametrize(
    ("kind", "name", "reason"),
    [
        ("image", "01-truncated-jpeg/cut.jpg", Reason.TRUNCATED),
        ("image", "11-tiny-and-thin-images/w1_h400.png", Reason.BAD_SHAPE),
        ("image", "nowhere.png", Reason.MISSING_FILE),
        ("image", "no\0where.png", Reason.MISSING_FILE),
        ("video", "no\0where.mp4", Reason.MISSING_FILE),
        ("video", "17-video-without-video-stream/sound_only.mp4", Reason.NO_STREAM),
        ("video", "nowhere.mp4", Reason.MISSING_FILE),
        ("audio", "26-audio-broken-headers/zero.wav", Reason.BAD_SHAPE),
        ("audio", "13-not-an-image/page.jpg", Reason.NOT_MEDIA),
        ("audio", "nowhere.wav", Reason.MISSING_FILE),
    ],
)
def test_what_is_not(kind: str, name: str, reason: Reason) -> None:
    with pytest.raises(BadSample) as bad:
        examine({"kind": kind, "path": str(CASES / name)}, b"")
    assert bad.value.reason is reason


def test_of_a_long_sound_only_the_end_becomes_features(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is decoded to its end all the same: a stretch there needs all before it."""
    asked: list[Any] = []
    features = AudioReader.features

    def spy(self: AudioReader, data: bytes | str, stretches: Any) -> Any:
        asked.extend(stretches)
        return features(self, data, stretches)

    monkeypatch.setattr(AudioReader, "features", spy)
    assert examine({"kind": "audio"}, sound(80.0)).value == [0, 0, 8000]
    assert asked == [(5000, 3000)]
