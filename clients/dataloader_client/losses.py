"""What the documents of each source lose: the losses of tokens, summed by the source that they come from.

For watching sources apart, and for whoever lets the mixture follow what it sees (`loader.set_mixture`). Which
token is of which source says the batch's manifest, so this asks nobody.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dataloader_client.batch import Batch

if TYPE_CHECKING:
    import torch

FloatArray = NDArray[np.float64]
_OF_NONE = -1


def losses_by_source(batch: Batch, losses: ArrayLike | torch.Tensor) -> FloatArray:
    """Sums over the tokens that this rank has of a microbatch: (sources, 2) float64.

    losses   of each token, unreduced, of the shape of `batch.labels`: a torch tensor on any device (which it
             waits for), or an array. Any float dtype; summed in float64. What stands where `loss_weight` is
             0 does not matter

    Row i is of `batch.manifest.sources[i]`, the same sources in the same order on every rank and in every
    step of a job: column 0 the sum of loss times `loss_weight`, column 1 the sum of `loss_weight`. So add the
    arrays of microbatches, all-reduce them over dp and cp, and divide: the mean of each source, where every
    target weighs the same wherever it was. A source without targets has 0 in both.

    ValueError for another shape; KeyError on a pipeline stage that has no labels.
    """
    values = array_of(losses)
    weights = _labelled(batch, "loss_weight")
    if values.shape != weights.shape:
        raise ValueError(
            f"losses have shape {values.shape}, the labels of step {batch.step} {weights.shape}: "
            'one for each token is needed, as cross_entropy(..., reduction="none") gives'
        )
    owners = _owners(batch)
    counted = (weights > 0) & (owners != _OF_NONE)
    owner, weight = owners[counted], weights[counted].astype(np.float64)
    num_sources = len(batch.manifest.sources)
    sums = np.bincount(owner, weight * values[counted], num_sources)
    return np.stack((sums, np.bincount(owner, weight, num_sources)), axis=1)


def array_of(losses: ArrayLike | torch.Tensor) -> FloatArray:
    """The same numbers in memory, as float64; waits for a device."""
    # numpy refuses tensors that need a gradient, are elsewhere, or are bfloat16; only torch has `detach`.
    tensor: Any = losses
    if hasattr(tensor, "detach"):
        return np.asarray(tensor.detach().float().cpu().numpy(), np.float64)
    return np.asarray(losses, np.float64)


def _labelled(batch: Batch, name: str) -> NDArray[np.float32]:
    if name not in batch.numpy:
        raise KeyError(f"step {batch.step} has no {name!r} here: the last pipeline stage knows what was lost")
    found: NDArray[np.float32] = batch.numpy[name]
    return found


def _owners(batch: Batch) -> NDArray[np.int64]:
    """For each token that this rank has, in the shape of its labels, the index of its source; -1: padding."""
    weights = batch.numpy["loss_weight"]
    # Spans are of the whole microbatch, before the cp cut; so are the places in cp_index.
    places = batch.numpy["cp_index"] if "cp_index" in batch.numpy else np.arange(weights.size)
    places = places.reshape(-1).astype(np.int64)
    spans = batch.manifest.columns
    begins = spans["span_offset"].astype(np.int64)
    if not len(begins):
        return np.full(weights.shape, _OF_NONE, np.int64)
    order = np.argsort(begins, kind="stable")
    begins, ends = begins[order], (begins + spans["span_length"])[order]
    sources = spans["span_source"].astype(np.int64)[order]
    nearest = np.searchsorted(begins, places, side="right") - 1
    inside = (nearest >= 0) & (places < ends[nearest])
    return np.where(inside, sources[nearest], _OF_NONE).reshape(weights.shape)
