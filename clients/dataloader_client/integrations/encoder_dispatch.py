"""Pictures encoded on other ranks than have their tokens, so that no rank waits for another's encoder.

    embeddings = encode(vision, batch.pixel_values, batch.image_grid_thw, width=4096)

For a service that places no encoder work (`strategy.encoder_placement: own`): pictures come as sequences
happen to have them. One that does sends no pixel twice; `encoder_placement.py` is for that. Here the ranks
of a group say what they have, come to the same table by the same rule, send patches there and get embeddings
back, as in DistTrain (arXiv 2408.04275) and OrchMLLM (arXiv 2503.23830). Loss and gradients are those of
encoding at home. Needs torch, and a process group that knows all-to-all (NCCL, Gloo).
"""

from __future__ import annotations

import heapq
from collections.abc import Callable

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from dataloader_client.integrations.row_exchange import exchange

Ints = NDArray[np.int64]
Encoder = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""(patches (P, F), grids int64 (I, 3)) -> embeddings (P / merge^2, width)."""

Place = Callable[[NDArray[np.float64], Ints, int], Ints]
"""(cost (n,) of each picture, rank (n,) that has its tokens, ranks) -> rank (n,) that encodes it. The same on
every rank for the same arguments, such as `near_home`, or of the package dataloader-balancers
`lambda costs, home, ranks: two_placements(np.zeros(len(costs)), costs, ranks, llm_rank=home).encoder`.
"""


def near_home(
    costs: NDArray[np.float64],
    home: Ints,
    num_ranks: int,
    *,
    ranks_per_node: int | None = None,
    tolerance: float = 0.05,
) -> Ints:
    """int64 (n,): the rank that encodes each picture: where its tokens are, as long as that rank has no more
    than an equal share and `tolerance` of it; else, dearest first, the rank of its node that has least, if it
    stays within that; else of all ranks.

    costs           float (n,), finite and from 0; home int (n,), 0 to num_ranks - 1
    ranks_per_node  neighbours on one host; None: all are

    The dearest rank is at most the allowed share, or an equal share and the dearest picture.
    """
    size = ranks_per_node or num_ranks
    if size < 1 or num_ranks % size:
        raise ValueError(f"nodes of {size} ranks do not divide {num_ranks} ranks")
    share = (1 + tolerance) * float(np.cumsum(np.append(0.0, costs))[-1]) / num_ranks
    rank, load, leaves = home.astype(np.int64), [0.0] * num_ranks, []
    order = np.lexsort((np.arange(len(costs)), -costs)).tolist()
    for item in order:
        at, cost = int(home[item]), float(costs[item])
        if load[at] + cost <= share:
            load[at] += cost
        else:
            leaves.append(item)
    heaps = [[(load[r], r) for r in range(first, first + size)] for first in range(0, num_ranks, size)]
    for heap in heaps:
        heapq.heapify(heap)
    for item in leaves:
        cost, heap = float(costs[item]), heaps[int(home[item]) // size]
        if heap[0][0] + cost > share:
            heap = min(heaps, key=lambda each: each[0])
        has, at = heap[0]
        heapq.heapreplace(heap, (has + cost, at))
        rank[item] = at
    return rank


def encode(
    encoder: Encoder,
    pixels: torch.Tensor,
    grids: torch.Tensor,
    *,
    width: int,
    merge: int = 2,
    place: Place = near_home,
    cost: Callable[[Ints], NDArray[np.float64]] | None = None,
    group: dist.ProcessGroup | None = None,
) -> torch.Tensor:
    """Embeddings (P / merge^2, width) of this rank's pictures, in their order, wherever they were encoded.

    pixels   (P, F), patches as in the batch; (0, F) where the rank has no picture
    grids    int64 (I, 3), frames, height and width of each picture in patches
    width    of an embedding
    cost     of pictures with int64 (n,) patches, float (n,); None: their patches
    group    ranks that share the work, such as those along dp; None: all

    Every rank of the group has to call it as often as the others, and its loss has to depend on the result,
    also on one of no rows (scattering it into the embeddings of the text is enough): gradients go back the
    same way. A rank that nothing is sent to runs its encoder on one blank picture, so that an encoder that is
    sharded, or whose gradients are reduced, does so everywhere.

    ValueError: pixels and grids, or what the encoder makes, don't match; `place` gives no rank of the group.
    """
    if (expected := int(grids.prod(dim=1).sum())) != len(pixels):
        raise ValueError(
            f"grids are of {expected} patches, and pixels has {len(pixels)}: give those of one microbatch"
        )
    ranks, me = dist.get_world_size(group), dist.get_rank(group)
    all_grids = _gathered(grids, group)
    counts = [len(each) for each in all_grids]
    home = np.repeat(np.arange(ranks), counts)
    patches = torch.cat(all_grids).prod(dim=1).cpu().numpy()
    where = place(patches.astype(np.float64) if cost is None else cost(patches), home, ranks)
    _check(where, home, ranks)
    first = int(np.cumsum([0, *counts])[me])
    mine = slice(first, first + counts[me])
    order = np.argsort(where[mine], kind="stable")  # of my pictures, as they are sent
    sent = np.bincount(where[mine], patches[mine], ranks).astype(np.int64)
    here = np.flatnonzero(where == me)  # by home, then in order: as they come
    received = np.bincount(home[here], patches[here], ranks).astype(np.int64)
    rows = _rows(patches[mine], order)
    there = exchange(pixels[torch.from_numpy(rows).to(pixels.device)], sent, received, group)
    if len(here):
        made = encoder(there, torch.cat(all_grids)[torch.from_numpy(here).to(grids.device)])
    else:
        blank = there.new_zeros((merge**2, *pixels.shape[1:]))
        made = encoder(blank, grids.new_tensor([[1, merge, merge]]))[:0]
    if made.shape != (int(received.sum()) // merge**2, width):
        raise ValueError(
            f"the encoder made {tuple(made.shape)} of {int(received.sum())} patches; expected one row of "
            f"width {width} for {merge**2} patches"
        )
    back = exchange(made, received // merge**2, sent // merge**2, group)
    rows = _rows(patches[mine] // merge**2, order)
    result: torch.Tensor = back[torch.from_numpy(np.argsort(rows)).to(back.device)]
    return result


def _check(where: Ints, home: Ints, ranks: int) -> None:
    """ValueError where a rule's table is none."""
    if where.shape != home.shape or (len(where) and not 0 <= where.min() <= where.max() < ranks):
        raise ValueError(f"place gave ranks of shape {where.shape}; need {len(home)} from 0 to {ranks - 1}")


def _gathered(grids: torch.Tensor, group: dist.ProcessGroup | None) -> list[torch.Tensor]:
    """The grids of every rank, (I, 3) each."""
    ranks = dist.get_world_size(group)
    count = torch.tensor([len(grids)], dtype=torch.int64, device=grids.device)
    counts = [torch.zeros_like(count) for _ in range(ranks)]
    dist.all_gather(counts, count, group=group)
    most = max(int(each) for each in counts)
    padded = grids.new_zeros((most, 3))
    padded[: len(grids)] = grids
    gathered = [torch.zeros_like(padded) for _ in range(ranks)]
    if most:
        dist.all_gather(gathered, padded, group=group)
    return [each[: int(count)] for each, count in zip(gathered, counts, strict=True)]


def _rows(lengths: Ints, order: NDArray[np.intp]) -> Ints:
    """int64 (sum of lengths,): rows of pictures of so many each, one picture after the other in `order`."""
    starts = np.cumsum(lengths) - lengths
    parts = [np.arange(starts[item], starts[item] + lengths[item]) for item in order.tolist()]
    return np.concatenate([np.empty(0, np.int64), *parts])
