"""Which shards an epoch is made of: fixed once it is begun, all that there are for the first that is not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from dataloader_svc.planner import listings
from dataloader_svc.planner.events import Describe, Described
from dataloader_svc.planner.state import SourceState, State
from dataloader_svc.planner.supply import Epoch, Supply
from dataloader_svc.sample import Listing

TWO, THREE = Listing(2, "two"), Listing(3, "three")
STARTS = np.array([0, 7], np.int64)
AT_ONE = SourceState(epoch=1, position=3, index="two", shards=2)


def asked(event: Describe | None) -> tuple[int, Listing, bool] | None:
    return None if event is None else (event.epoch, event.listing, event.grown)


def answer(epoch: int, listing: Listing) -> Described:
    return Described("web", epoch, STARTS, listing.digest, listing.shards)


def test_the_first_of_the_coming_epochs_decides_for_all():
    supply = Supply("web")
    assert asked(listings.describe(supply, AT_ONE, 1, ())) == (1, TWO, False)
    assert asked(listings.describe(supply, AT_ONE, 2, [Epoch("web", 1)])) == (2, TWO, True)
    under_way = [Epoch("web", 1), Epoch("web", 2)]
    assert listings.describe(supply, AT_ONE, 3, under_way) is None
    assert asked(listings.describe(Supply("other"), AT_ONE, 3, under_way)) == (3, TWO, True)
    assert listings.described(supply, AT_ONE, answer(1, TWO))
    assert supply.newest == Listing()  # what was begun says nothing of what comes
    assert listings.described(supply, AT_ONE, answer(2, THREE))
    assert asked(listings.describe(supply, AT_ONE, 3, ())) == (3, THREE, False)
    assert asked(listings.describe(supply, AT_ONE, 0, ())) == (0, TWO, False)


def test_a_job_that_begins_takes_what_there_is():
    supply, fresh = Supply("web"), SourceState()
    assert asked(listings.describe(supply, fresh, 0, ())) == (0, Listing(), True)
    assert listings.describe(supply, fresh, 1, [Epoch("web", 0)]) is None
    assert listings.described(supply, fresh, answer(0, TWO))
    assert asked(listings.describe(supply, fresh, 1, ())) == (1, TWO, False)


def test_other_files_than_the_state_s():
    assert not listings.described(Supply("web"), AT_ONE, answer(1, THREE))


def test_the_state_remembers_what_earlier_epochs_were_made_of():
    after = AT_ONE.reached(4, {2: TWO, 3: THREE, 4: THREE})
    assert (after.epoch, after.shards, after.index) == (4, 3, "three")
    assert after.before == ((2, 2, "two"),)
    assert [after.listing(epoch) for epoch in range(6)] == [TWO, TWO, TWO, THREE, THREE, Listing()]
    assert after.listings == (TWO, THREE)
    more = after.reached(5, {5: Listing(4, "four")})
    assert more.before == ((2, 2, "two"), (4, 3, "three"))
    assert AT_ONE.reached(3, {}) == replace(AT_ONE, epoch=3)
    state = State(1, 9, {"web": more}, {})
    assert State.from_json(state.to_json()).sources["web"] == more


def test_from_an_older_state_what_is_of_later_lists_is_forgotten():
    supply = Supply("web", newest=TWO)
    for epoch, listing in {0: TWO, 1: TWO, 2: TWO}.items():
        supply.layouts[epoch], supply.listings[epoch] = STARTS, listing
    listings.forget_others(supply, AT_ONE)
    assert set(supply.layouts) == {0, 1, 2}
    # Another branch had begun epoch 1 with three shards.
    grown = SourceState(epoch=1, index="three", shards=3, before=((0, 2, "two"),))
    listings.forget_others(supply, grown)
    assert set(supply.layouts) == set(supply.listings) == {0}
    assert supply.newest == Listing()
