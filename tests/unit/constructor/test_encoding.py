"""Arrays are encoded where that is faster by what was measured, never where it may not be; none is lost."""

from __future__ import annotations

from itertools import count
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataloader_client import wire
from dataloader_client.codecs import installed
from dataloader_client.wire import Frame
from dataloader_svc.constructor.encoding import LEAST_BYTES, LOOK_AGAIN, Encoder, Measured, choose

CODECS = ("zstd", "lz4")
MB, GB = 1e6, 1e9
ZSTD = Measured(0.2, 1 / (400 * MB), 1 / GB)
LZ4 = Measured(0.4, 1 / (2 * GB), 1 / (4 * GB))
RANDOM = np.random.default_rng(0)


class Clock:
    """Each look at it is `step_s` later."""

    def __init__(self, step_s: float) -> None:
        self._ticks = count()
        self._step_s = step_s

    def monotonic(self) -> float:
        return next(self._ticks) * self._step_s

    wall = monotonic


def batch() -> dict[str, Any]:
    return {
        "0/input_ids": RANDOM.integers(0, 30_000, 50_000),
        "0/labels": np.full(50_000, -100),
        "0/pixel_values": RANDOM.integers(0, 256, (200, 588), np.uint8),
        "0/cu_seqlens": np.arange(20, dtype=np.int32),
        "1/input_ids": RANDOM.integers(0, 30_000, 1),
    }


def sent(frame: Frame) -> tuple[Frame, int]:
    """The frame as it arrives, and the bytes that crossed."""
    messages = list(wire.encode(frame))
    return wire.decode(messages), sum(map(len, messages))


@pytest.mark.parametrize(
    ("link", "expected"),
    [
        (0, ""),
        (1 * MB, "zstd"),
        (50 * MB, "zstd"),
        (100 * MB, "lz4"),
        (400 * MB, "lz4"),
        (1 * GB, ""),
        (5 * GB, ""),
    ],
)
def test_the_soonest_way(link: float, expected: str) -> None:
    assert choose(1 << 20, link, {"zstd": ZSTD, "lz4": LZ4}) == expected


def test_small_arrays_stay_as_they_are() -> None:
    assert choose(LEAST_BYTES - 1, 1, {"zstd": ZSTD}) == ""
    assert choose(LEAST_BYTES, 1, {"zstd": ZSTD}) == "zstd"
    assert choose(LEAST_BYTES, 1, {}) == ""


positive = st.floats(1e-12, 1e-3)


@given(
    st.integers(0, 1 << 40),
    st.floats(0, 1e12),
    st.dictionaries(st.sampled_from(["a", "b"]), st.builds(Measured, st.floats(0, 2), positive, positive)),
)
def test_never_slower_than_plain_bytes(num_bytes: int, link: float, measured: dict[str, Measured]) -> None:
    """By the sum of what was measured, worked out here in another way: in seconds a byte."""
    chosen = choose(num_bytes, link, measured)
    if chosen:
        each = measured[chosen]
        assert link * (each.encode_s + each.decode_s) + each.ratio <= 0.9 * (1 + 1e-9)
        assert all(each.total_s(1, link) <= other.total_s(1, link) for other in measured.values())


@pytest.mark.parametrize("compression", CODECS)
def test_forced(compression: Any) -> None:
    encoder = Encoder(compression, Clock(0.0))
    frame = Frame(batch(), {"step": 3})
    assert encoder.usable(["lz4", "zstd"], 0.0) == [compression]
    assert encoder.usable([], 1e6) == []
    packed = encoder.encode(frame, [compression], 0.0)
    assert set(packed.packed) == {"0/input_ids", "0/labels"}, "pixels of noise don't shrink; small ones stay"
    arrived, num_bytes = sent(packed)
    assert arrived.meta == frame.meta
    for name, array in frame.arrays.items():
        assert np.array_equal(arrived.arrays[name], array)
        assert arrived.arrays[name].dtype == array.dtype
    arrived.arrays["0/labels"][0] = 7  # a trainer may write to its batch
    assert num_bytes < 0.6 * sent(frame)[1]


def test_by_the_link() -> None:
    """Each look at the clock is a millisecond: a piece of 256 KiB takes one at either end, 4 ns a byte."""
    for link, names in ((1 * MB, {"0/input_ids", "0/labels"}), (200 * MB, set())):
        encoder = Encoder("auto", Clock(0.001))
        assert set(encoder.usable(["lz4", "zstd", "other"], link)) == set(installed())
        frame = encoder.encode(Frame(batch()), CODECS, link)
        assert set(frame.packed) == names, link
        assert bool(encoder.saved_bytes) == bool(names)


def test_off_and_unknown() -> None:
    assert Encoder("off", Clock(0.0)).usable(CODECS, 1.0) == ()
    assert Encoder("auto", Clock(0.0)).usable(CODECS, 0.0) == ()


def test_a_field_that_changes_is_looked_at_again() -> None:
    encoder = Encoder("auto", Clock(0.0))
    noise, flat = RANDOM.integers(0, 256, 50_000, np.uint8), np.zeros(50_000, np.uint8)
    frames = [encoder.encode(Frame({"0/pixels": noise}), CODECS, 1.0)]
    frames += [encoder.encode(Frame({"0/pixels": flat}), CODECS, 1.0) for _ in range(LOOK_AGAIN)]
    assert [bool(frame.packed) for frame in frames] == [False] * LOOK_AGAIN + [True]
    frames = [encoder.encode(Frame({"0/pixels": noise}), CODECS, 1.0) for _ in range(LOOK_AGAIN)]
    assert not frames[-1].packed


def test_codecs_are_here() -> None:
    assert tuple(installed()) == CODECS
