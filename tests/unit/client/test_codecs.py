"""What is encoded arrives as it was or not at all; how fast it came is measured where that tells."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from dataloader_client import wire
from dataloader_client._pb import common_pb2
from dataloader_client.codecs import Packed, installed, unpack
from dataloader_client.errors import WireError
from dataloader_client.link import LEAST_S, Link
from dataloader_client.wire import Frame

IDS = np.arange(10_000).reshape(100, 100)


@pytest.fixture(params=["zstd", "lz4"])
def packed(request: pytest.FixtureRequest) -> Packed:
    return Packed(request.param, installed()[request.param].compress(IDS.reshape(-1).view(np.uint8).data))


def test_there_and_back(packed: Packed) -> None:
    array = unpack(memoryview(packed.data), packed.codec, IDS.dtype, IDS.shape)
    assert np.array_equal(array, IDS)
    assert array.flags.writeable


@pytest.mark.parametrize("shape", [(99, 100), (101, 100), (0,), (), (1 << 40,), (1 << 62, 1 << 62)])
def test_another_size_than_announced_is_refused(packed: Packed, shape: tuple[int, ...]) -> None:
    """Before anything of that size is allocated: no machine has so much."""
    with pytest.raises(WireError, match=f"encoded by {packed.codec}"):
        unpack(memoryview(packed.data), packed.codec, IDS.dtype, shape)


def test_damage_is_refused(packed: Packed) -> None:
    rng = np.random.default_rng(0)
    for _ in range(300):
        data = bytearray(packed.data)
        data[int(rng.integers(len(data)))] ^= 1 << int(rng.integers(8))
        data = data[: int(rng.integers(1, len(data) + 1))]
        try:
            array = unpack(memoryview(data), packed.codec, IDS.dtype, IDS.shape)
        except WireError:
            continue
        assert array.shape == IDS.shape  # neither has a checksum: a flipped value may come through


def header(**changes: object) -> bytes:
    tensor = {"name": "x", "dtype": "int64", "shape": [10], "offset": 0, "codec": "zstd", "packed_bytes": 8}
    return common_pb2.FrameHeader(tensors=[tensor | changes], payload_bytes=8).SerializeToString()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"codec": "brotli"}, "encoded by 'brotli', which this client has not asked for"),
        ({"packed_bytes": 9}, "outside the payload"),
        ({"offset": 64}, "outside the payload"),
        ({"shape": [1 << 40]}, "above the limit"),
        ({}, "encoded by zstd is damaged"),
    ],
)
def test_headers_that_lie(changes: dict[str, object], said: str) -> None:
    with pytest.raises(WireError, match=said):
        wire.decode([header(**changes), bytes(8)])


def test_many_that_are_each_within_the_limit() -> None:
    zeros = np.zeros(60_000, np.uint8)
    packed = Packed("zstd", installed()["zstd"].compress(zeros.data))
    frame = Frame({"a": zeros, "b": zeros}, packed={"a": packed, "b": packed})
    with pytest.raises(WireError, match="above the limit"):
        wire.decode(wire.encode(frame), max_payload=100_000)


class Times:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def arriving(times: Times, *messages: tuple[float, int]) -> Iterator[bytes]:
    for at, size in messages:
        times.now = at
        yield bytes(size)


def test_a_link_is_measured_from_the_header_on() -> None:
    times = Times()
    link = Link(times)
    assert link.bytes_per_s == 0
    got = list(link.watch(arriving(times, (50, 100), (50.5, 1000), (51, 1000))))
    assert [len(message) for message in got] == [100, 1000, 1000]
    assert link.bytes_per_s == 2000


def test_what_lay_in_buffers_tells_nothing() -> None:
    times = Times()
    link = Link(times)
    for messages in ([], [(1.0, 50)], [(1.0, 50), (1.0 + LEAST_S / 2, 10**6)]):
        list(link.watch(arriving(times, *messages)))
    assert link.bytes_per_s == 0


def test_a_link_that_changes_is_known_after_some_frames() -> None:
    times = Times()
    link = Link(times)
    list(link.watch(arriving(times, (0, 1), (1, 10**6))))
    for _ in range(8):
        list(link.watch(arriving(times, (0, 1), (1, 10**4))))
    assert 10**4 < link.bytes_per_s < 10**5
