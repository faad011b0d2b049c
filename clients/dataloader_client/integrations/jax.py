"""JAX: batches as dictionaries of numpy arrays, which `jax.device_put` and `jax.jit` take. Needs no torch.

Imports no JAX either: it also fits whatever else takes numpy arrays.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dataloader_client.batch import Batch


def iter_numpy(
    loader: Iterable[Batch], *, narrow: bool = True
) -> Iterator[tuple[Batch, dict[str, NDArray[Any]]]]:
    """Each microbatch, and its arrays by name (`batch.FIELDS`), views of the received buffer.

    narrow   int64 as int32, which JAX does anyway unless x64 is enabled, without asking whether the values
             fit; here OverflowError names an array that does not

    Use `layout: padded`, whose arrays of text have the same shape in every microbatch, or `jax.jit` compiles
    anew for each; what belongs to media and `cu_seqlens` differ in length all the same: pad them, or keep
    them out of the jitted function. `loader.state_dict()` is as exact between two of them as anywhere.
    """
    for batch in loader:
        yield (
            batch,
            {name: _narrowed(name, array) if narrow else array for name, array in batch.numpy.items()},
        )


def _narrowed(name: str, array: NDArray[Any]) -> NDArray[Any]:
    if array.dtype != np.int64:
        return array
    limit = np.iinfo(np.int32)
    if array.size and not (limit.min <= array.min() and array.max() <= limit.max):
        raise OverflowError(f"{name} has values beyond int32: enable jax_enable_x64 and pass narrow=False")
    return array.astype(np.int32)
