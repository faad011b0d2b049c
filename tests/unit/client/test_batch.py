"""A batch as a trainer sees it: tensors over the received memory, and words for what is not there."""

from __future__ import annotations

import numpy as np
import pytest

from dataloader_client.batch import FIELDS, Batch, Span, check_fields, split
from dataloader_client.errors import WireError
from dataloader_client.wire import Frame, decode, encode


def frame(**meta) -> Frame:
    arrays = {}
    for number in range(2):
        spans = {
            "source": 1,
            "epoch": 0,
            "position": 7 + number,
            "start": 2,
            "length": 3,
            "sequence": 0,
            "offset": 0,
        }
        dtypes = {field.name: field.dtype for field in FIELDS}
        arrays |= {
            f"{number}/input_ids": np.arange(4, dtype=np.int64) + number,
            f"{number}/cu_seqlens": np.array([0, 3, 4], np.int32),
            f"{number}/pixel_values": np.zeros((0, 12), np.uint8),
            **{
                f"{number}/span_{name}": np.array([value], dtypes[f"span_{name}"])
                for name, value in spans.items()
            },
        }
    values = {
        "step": 5,
        "microbatches": 2,
        "sources": ["web", "captions"],
        "presence": {"image": True, "video": False},
        "max_seqlen": [3, 2],
        "num_tokens": [3, 3],
        "loss_weight_sum": 12.0,
        "digest": "ab",
        "metrics": {},
        "trace": {},
        "end": False,
    }
    return decode(encode(Frame(arrays, {**values, **meta})))


def batches() -> list[Batch]:
    return split(frame())


def test_a_step_is_split_into_its_microbatches():
    first, second = batches()
    assert (first.step, first.microbatch, first.num_microbatches, first.is_last_microbatch) == (
        5,
        0,
        2,
        False,
    )
    assert second.is_last_microbatch
    assert second.numpy["input_ids"].tolist() == [1, 2, 3, 4]
    assert (first.max_seqlen, first.num_tokens, first.loss_weight_sum) == (3, 3, 12.0)
    assert list(second.manifest.spans()) == [Span("captions", 0, 8, 2, 3, 0, 0)]
    assert len(second.manifest) == 1
    assert "span_source" not in second


def test_tensors_are_the_received_memory():
    torch = pytest.importorskip("torch")
    batch = batches()[0]
    inputs = batch.inputs
    assert inputs["input_ids"].dtype == torch.int64
    assert inputs["input_ids"].data_ptr() == batch.numpy["input_ids"].ctypes.data
    assert inputs["max_seqlen"] == 3
    assert inputs["pixel_values"].shape == (0, 12)
    assert batch["input_ids"] is batch.input_ids is inputs["input_ids"]
    assert set(dict(batch)) == set(inputs)
    batch.input_ids[0] = 99
    assert batch.numpy["input_ids"][0] == 99


def test_to_moves_tensors_only():
    torch = pytest.importorskip("torch")
    batch = batches()[0]
    moved = batch.to("meta")
    assert moved.input_ids.device == torch.device("meta")
    assert batch.input_ids.device == torch.device("cpu")
    assert moved.step == 5
    assert moved.numpy is batch.numpy


def test_what_is_absent_says_why():
    batch = batches()[0]
    with pytest.raises(KeyError, match="has no field 'pixels'; this one has cu_seqlens, input_ids"):
        batch["pixels"]
    with pytest.raises(AttributeError, match="step 5 has no video on any rank"):
        batch.pixel_values_videos  # noqa: B018
    with pytest.raises(AttributeError, match="this mesh has cp = 1"):
        batch.cp_index  # noqa: B018
    with pytest.raises(AttributeError, match="only the last pipeline stage"):
        batch.labels  # noqa: B018
    with pytest.raises(AttributeError, match="another layout"):
        batch.attention_mask  # noqa: B018
    assert not hasattr(batch, "__array__")


def test_an_end_frame_has_no_microbatches():
    assert split(Frame({}, {"step": 3, "end": True})) == []


@pytest.mark.parametrize("lacking", ["microbatches", "step", "presence", "loss_weight_sum"])
def test_a_frame_that_is_no_step_is_a_wire_error(lacking):
    whole = frame()
    del whole.meta[lacking]
    with pytest.raises(WireError, match=lacking):
        split(whole)
    with pytest.raises(WireError):
        split(frame(microbatches=1))


def test_check_fields_names_the_first_that_differs():
    good = {"input_ids": np.zeros(3, np.int64), "cu_seqlens": np.zeros(2, np.int32)}
    check_fields(good, "packed")
    for name, array, text in (
        ("input_ids", np.zeros(3, np.int32), "input_ids is .*int32"),
        ("input_ids", np.zeros((3, 1), np.int64), r"input_ids is .*, 2\)"),
        ("attention_mask", np.zeros(3, np.int64), "does not belong to layout packed"),
        ("labels", np.zeros(6, np.int64)[::2], "labels is not contiguous"),
    ):
        with pytest.raises(AssertionError, match=text):
            check_fields({**good, name: array}, "packed")
