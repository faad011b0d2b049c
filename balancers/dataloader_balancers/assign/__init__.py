"""Work onto ranks: which of `num_ranks` gets each item, so that the dearest rank is as cheap as can be.

An item is whatever can't be divided among ranks: a packed sequence, a microbatch, a picture. Knows nothing
of tokens: a cap on tokens or patches is kept by the packer, a sequence at a time, and `per_rank` sequences
of it are then a cap on the rank.

Every balancer, one a file, has one signature and one contract
(`dataloader_svc.testing.balancers.BalancerContract`):

    assign(costs, num_ranks, per_rank=None) -> int32 (n,)

    costs     float (n,), predicted time of each item, 0 to 1e300
    per_rank  most items of a rank; when n = per_rank * num_ranks each gets exactly as many

No rank stays empty while there are at least as many items as ranks. Ties go to the lower index, and no sum
depends on how a processor adds: equal arguments give an equal result on any machine. All but those in ORDERED
give ranks the same loads whatever the order of the items. Bounds and gaps are in `bounds.py`.

What does not fit that signature has functions of its own: `place` (phases, hard caps, ranks of unlike speed,
memory and counts), `two_placements` and `near_home` (encoder work on other ranks than its tokens),
`by_groups` (a balancer within groups of ranks), and for the microbatches of a rank `order_microbatches` and
`loss_weights`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dataloader_balancers.assign.arrival import arrival
from dataloader_balancers.assign.groups import by_groups
from dataloader_balancers.assign.items import Balancer
from dataloader_balancers.assign.karmarkar_karp import karmarkar_karp
from dataloader_balancers.assign.lpt import lpt
from dataloader_balancers.assign.microbatches import loss_weights, order_microbatches, turns
from dataloader_balancers.assign.near_home import near_home
from dataloader_balancers.assign.place import local_search, place
from dataloader_balancers.assign.ranks import Cap, Ranks
from dataloader_balancers.assign.snake import snake
from dataloader_balancers.assign.two_phase import two_phase_lpt
from dataloader_balancers.assign.two_placements import Dispatch, TwoPlacements, two_placements

BALANCERS: dict[str, Balancer] = {
    "lpt": lpt,
    "local_search": local_search,
    "karmarkar_karp": karmarkar_karp,
    "snake": snake,
    "arrival": arrival,
}
ORDERED = frozenset({"arrival"})  # whose loads depend on the order of the items, by design


def assign(name: str, costs: ArrayLike, num_ranks: int, *, per_rank: int | None = None) -> NDArray[np.int32]:
    """`BALANCERS[name]`, or a ValueError that lists the names."""
    if name not in BALANCERS:
        raise ValueError(f"unknown balancer {name!r}; known: {', '.join(BALANCERS)}")
    return BALANCERS[name](costs, num_ranks, per_rank)


__all__ = [
    "BALANCERS",
    "ORDERED",
    "Balancer",
    "Cap",
    "Dispatch",
    "Ranks",
    "TwoPlacements",
    "assign",
    "by_groups",
    "loss_weights",
    "near_home",
    "order_microbatches",
    "place",
    "turns",
    "two_phase_lpt",
    "two_placements",
]
