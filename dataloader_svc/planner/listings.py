"""Which shards the epochs of a source are made of, where some were appended while the job lived. Pure.

An epoch that the state has begun keeps its list for ever; the state says which that is. A later epoch takes
all shards that there are when the first such epoch is described, and so do all after it while this planner
lives: new shards come with an epoch, and a planner that is restarted looks again (docs/decisions/0009).
"""

from __future__ import annotations

from collections.abc import Iterable

from dataloader_svc.planner.events import Describe, Described
from dataloader_svc.planner.state import SourceState
from dataloader_svc.planner.supply import Epoch, Supply
from dataloader_svc.sample import ALL_SHARDS, Listing


def describe(supply: Supply, source: SourceState, epoch: int, under_way: Iterable[Epoch]) -> Describe | None:
    """How to ask for the layout of an epoch; None while the first answer for a coming epoch is awaited.

    source      its state, as far as steps are selected
    under_way   epochs, of any source, that are being described
    """
    name = supply.source
    listing = source.listing(epoch)
    if listing.digest:
        return Describe(name, epoch, listing)
    if supply.newest.digest:
        return Describe(name, epoch, supply.newest)
    if any(other.source == name and not source.listing(other.epoch).digest for other in under_way):
        return None
    return Describe(name, epoch, Listing(source.shards, source.index), grown=True)


def described(supply: Supply, source: SourceState, event: Described) -> bool:
    """Take up an answer. False: it is of other files than the state's."""
    listing, begun = Listing(event.shards, event.digest), source.listing(event.epoch)
    if begun.digest not in ("", listing.digest):
        return False
    if not begun.digest and not supply.newest.digest:
        supply.newest = listing
    supply.layouts[event.epoch], supply.listings[event.epoch] = event.block_starts, listing
    return True


def forget_others(supply: Supply, source: SourceState) -> None:
    """Planning goes on from another state, `source`: forget what of the supply is not of its lists."""
    if supply.newest.shards < source.shards:
        supply.newest = ALL_SHARDS
    for epoch, listing in list(supply.listings.items()):
        begun = source.listing(epoch)
        other = begun.digest != listing.digest if begun.digest else listing.shards < source.shards
        if other:
            forget(supply, epoch)


def forget(supply: Supply, epoch: int) -> None:
    """As if nothing of the epoch had been described or read."""
    supply.layouts.pop(epoch, None)
    supply.listings.pop(epoch, None)
    for key in [key for key in supply.blocks if key[0] == epoch]:
        del supply.blocks[key]
