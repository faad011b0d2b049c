"""What makes a clip plain, on packets written by hand; on real ones see test_video."""

import numpy as np
import pytest

from dataloader_svc.media.plain import has_closed_groups, has_constant_rate, holds_picture, starts_afresh


@pytest.mark.parametrize(
    ("stamps", "keys", "closed"),
    [
        ([0, 3, 1, 2], [0], True),
        ([0, 3, 1, 2, 4, 7, 5, 6], [0, 4], True),
        ([0, 3, 1, 2, 7, 4, 5, 6], [0, 4], False),  # 4, 5, 6 come after key frame 7, are shown before
        ([1, 0, 2], [0], False),
    ],
)
def test_closed_groups(stamps, keys, closed):
    is_key = np.isin(np.arange(len(stamps)), keys)
    assert has_closed_groups(np.array(stamps), is_key) is closed


def test_constant_rate():
    assert has_constant_rate(np.array([5]))
    assert has_constant_rate(np.array([5, 7, 9]))
    assert not has_constant_rate(np.array([5, 7, 10]))


def units(*bodies):
    return b"".join(len(body).to_bytes(4) + body for body in bodies)


def test_fresh_starts():
    assert starts_afresh("h264", units(b"\x06sei", b"\x65slice"))
    assert not starts_afresh("h264", units(b"\x06sei", b"\x61slice"))
    assert starts_afresh("hevc", units(b"\x4e\x01sei", b"\x26\x01slice"))
    assert not starts_afresh("hevc", units(b"\x2a\x01slice"))  # clean random access: others may lead it
    assert starts_afresh("mpeg4", b"anything")
    assert not starts_afresh("av1", b"anything")
    assert not starts_afresh("h264", b"")
    assert not starts_afresh("h264", b"\xff\xff\xff\xff\x01")


def test_pictures():
    assert holds_picture("h264", units(b"\x06sei", b"\x41slice"))
    assert not holds_picture("h264", units(b"\x06sei", b"\x0aend of sequence"))
    assert holds_picture("hevc", units(b"\x02\x01slice"))
    assert not holds_picture("hevc", units(b"\x4e\x01sei"))
    assert holds_picture("mpeg4", b"anything")
    assert not holds_picture("h264", b"")
    assert not holds_picture("h264", bytes(8))
