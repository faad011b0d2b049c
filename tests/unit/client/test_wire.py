"""Frames survive the wire bit for bit, and rubbish is named instead of believed."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from dataloader_client._pb import common_pb2
from dataloader_client.errors import WireError
from dataloader_client.wire import ALIGN, CHUNK, DTYPES, Decoder, Frame, decode, encode

ARRAYS = hnp.arrays(
    dtype=st.sampled_from(sorted(DTYPES)),
    shape=hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=7),
)


@given(st.dictionaries(st.text(max_size=5), ARRAYS, max_size=5))
def test_round_trip(arrays: dict[str, np.ndarray]) -> None:
    back = decode(encode(Frame(arrays, {"step": 3, "name": "é"})))
    assert back.meta == {"step": 3, "name": "é"}
    assert back.arrays.keys() == arrays.keys()
    for name, array in arrays.items():
        assert back.arrays[name].dtype == array.dtype
        assert back.arrays[name].shape == array.shape
        assert back.arrays[name].tobytes() == array.tobytes()


@pytest.mark.parametrize(
    ("written", "meta"), [("", {}), ('"state":{"a":[1,"é"]}', {}), ('"state":{}', {"step": 3})]
)
def test_members_that_were_written_before_stand_beside_meta(written: str, meta: dict[str, int]) -> None:
    assert decode(encode(Frame({}, meta, written=written))).meta == {**json.loads(f"{{{written}}}"), **meta}


def test_messages_are_at_most_a_chunk_and_arrays_aligned() -> None:
    frame = Frame({"small": np.arange(3, dtype=np.uint8), "large": np.arange(CHUNK + 5, dtype=np.int32)})
    header, *payload = list(encode(frame))
    assert all(len(message) == CHUNK for message in payload[:-1])
    assert 0 < len(payload[-1]) <= CHUNK
    back = decode([header, *payload])
    assert back.arrays["large"].ctypes.data % ALIGN == 0
    assert np.array_equal(back.arrays["large"], frame.arrays["large"])


def test_a_strided_array_arrives_as_it_looked() -> None:
    array = np.arange(24).reshape(4, 6)[::2, ::3]
    assert np.array_equal(decode(encode(Frame({"a": array}))).arrays["a"], array)


def test_an_object_array_is_refused_before_anything_is_sent() -> None:
    with pytest.raises(TypeError, match="'a' has dtype object"):
        next(encode(Frame({"a": np.array([None])})))


def header(**tensor: object) -> bytes:
    message = common_pb2.FrameHeader(payload_bytes=64)
    message.tensors.add(**{"name": "a", "dtype": "uint8", "shape": [64], "offset": 0, **tensor})
    return message.SerializeToString()


@pytest.mark.parametrize(
    ("messages", "text"),
    [
        ([], "ended before its header"),
        ([b"\xff\xff\xff"], "no frame header"),
        ([header(), bytes(63)], "after 63 of 64 payload bytes"),
        ([header(), bytes(65)], "longer than the 64 bytes"),
        ([header(offset=1), bytes(64)], "'a' lies outside"),
        ([header(shape=[65]), bytes(64)], "'a' lies outside"),
        ([header(shape=[1 << 40, 1 << 40]), bytes(64)], "'a' lies outside"),
        ([header(dtype="object"), bytes(64)], "unknown dtype 'object'"),
        ([common_pb2.FrameHeader(payload_bytes=1 << 60).SerializeToString()], "above the limit"),
        ([common_pb2.FrameHeader(meta_json="[1]").SerializeToString()], "not an object"),
        ([common_pb2.FrameHeader(meta_json="{").SerializeToString()], "not JSON"),
    ],
)
def test_rubbish(messages: list[bytes], text: str) -> None:
    with pytest.raises(WireError, match=text):
        decode(messages)


@given(st.lists(st.binary(max_size=80), max_size=4))
def test_any_bytes_end_in_a_frame_or_a_wire_error(messages: list[bytes]) -> None:
    decoder = Decoder(max_payload=1 << 16)
    try:
        for message in messages:
            decoder.feed(message)
        decoder.finish()
    except WireError:
        pass
