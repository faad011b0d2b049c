"""Losses by source: against a loop over tokens, in every layout that a rank can have."""

from __future__ import annotations

import numpy as np
import pytest

from dataloader_client.batch import SPAN_FIELDS, Batch, Manifest
from dataloader_client.losses import losses_by_source

SOURCES = ("books", "captions", "web")


def batch(spans, weights, cp_index=None) -> Batch:
    """`spans`: (source, first token, tokens) of the whole microbatch; the rest of a batch does not matter."""
    columns = {spec.name: np.zeros(len(spans), spec.dtype) for spec in SPAN_FIELDS}
    for row, (source, offset, length) in enumerate(spans):
        columns["span_source"][row] = source
        columns["span_offset"][row] = offset
        columns["span_length"][row] = length
    arrays = {"loss_weight": np.asarray(weights, np.float32)}
    if cp_index is not None:
        arrays["cp_index"] = np.asarray(cp_index, np.int32)
    return Batch(
        step=3,
        microbatch=0,
        num_microbatches=1,
        numpy=arrays,
        manifest=Manifest(SOURCES, columns),
        presence={},
        max_seqlen=1,
        num_tokens=1,
        loss_weight_sum=1.0,
        digest="",
        metrics={},
        trace={},
    )


def test_each_token_counts_for_its_source_and_padding_for_none():
    made = batch([(2, 0, 2), (0, 2, 1), (2, 4, 2)], [1, 0, 0.5, 1, 1, 2])
    found = losses_by_source(made, [10.0, 99.0, 4.0, 77.0, 1.0, 3.0])
    assert found.dtype == np.float64
    assert found.tolist() == [[2.0, 0.5], [0.0, 0.0], [17.0, 4.0]]


@pytest.mark.parametrize("cp", [1, 2, 4])
@pytest.mark.parametrize("rows", [None, 4])
def test_slices_of_a_microbatch_add_up_to_what_a_loop_finds(cp, rows):
    rng = np.random.default_rng(cp)
    tokens, spans, place = 240, [], 0
    while place < tokens:
        length = int(min(rng.integers(1, 30), tokens - place))
        if rng.random() < 0.8:  # else a gap of padding
            spans.append((int(rng.integers(3)), place, length))
        place += length
    weights = rng.choice([0.0, 0.5, 1.0], tokens).astype(np.float32)
    losses = rng.normal(size=tokens)
    expected = np.zeros((3, 2))
    for source, first, length in spans:
        for token in range(first, first + length):
            expected[source] += weights[token] * losses[token], weights[token]
    total = np.zeros((3, 2))
    for part in rng.permutation(tokens).reshape(cp, -1):
        shape = part.shape if rows is None else (rows, -1)
        places = None if cp == 1 else part.reshape(shape)
        taken = np.arange(tokens) if cp == 1 else part
        made = batch(spans, weights[taken].reshape(shape), places)
        total += losses_by_source(made, losses[taken].reshape(shape))
    assert expected.min(axis=0)[1] > 0
    np.testing.assert_allclose(total, expected, rtol=1e-12)


def test_what_has_no_weight_is_not_looked_at():
    made = batch([(1, 0, 3)], [1, 0, 1])
    assert losses_by_source(made, [1.0, np.nan, 2.0]).tolist() == [[0, 0], [3, 2], [0, 0]]
    assert np.isnan(losses_by_source(made, [np.nan, 0.0, 2.0])[1, 0])  # a loss that is none is not hidden


def test_tensors_of_a_model_are_taken_as_they_are():
    torch = pytest.importorskip("torch")
    made = batch([(1, 0, 2), (0, 2, 1)], [1, 1, 1])
    for dtype in (torch.float32, torch.bfloat16):
        losses = torch.tensor([0.5, 1.5, 4.0], dtype=dtype, requires_grad=True)
        assert losses_by_source(made, losses).tolist() == [[4, 1], [2, 2], [0, 0]]


def test_a_microbatch_without_documents_has_zeros():
    assert losses_by_source(batch([], [0.0]), [5.0]).tolist() == [[0, 0]] * 3


def test_what_does_not_fit_says_so():
    made = batch([(0, 0, 3)], [1, 1, 1])
    with pytest.raises(ValueError, match=r"shape \(\), the labels of step 3 \(3,\).*reduction=\"none\""):
        losses_by_source(made, 2.0)
    with pytest.raises(ValueError, match=r"shape \(1, 3\)"):
        losses_by_source(made, [[1.0, 2.0, 3.0]])
    del made.numpy["loss_weight"]
    with pytest.raises(KeyError, match="the last pipeline stage knows"):
        losses_by_source(made, [1.0, 2.0, 3.0])
