"""The window of steps: demand, order of builds, memory, drops; and that no order of events can block it."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dataloader_svc.constructor.core import (
    KEPT_PLANS,
    Asked,
    BuildFailed,
    Built,
    ClosePlans,
    Delivered,
    Drop,
    Ended,
    ExtendPlans,
    GaveUp,
    Left,
    OpenPlans,
    Phase,
    Planned,
    PlansFailed,
    PlansLost,
    Rank,
    Refuse,
    Released,
    Reserved,
    StartBuild,
    Window,
)

A, B = Rank(0, 0, 0, 0), Rank(1, 0, 0, 0)


class Driven:
    """A window, checked after every event."""

    def __init__(self, ranks=(A, B), limit=1000, ahead=2, skips=()):
        self.window = Window(ranks, limit_bytes=limit, ahead=ahead, skips=skips)

    def __call__(self, *events):
        actions = []
        for event in events:
            actions += self.window.apply(event)
            self.window.validate()
        return actions

    @property
    def building(self):
        return [n for n, step in self.window._steps.items() if step.phase is Phase.BUILDING]


def planned(*numbers, size=100):
    return [Planned(number, size // 2, size - size // 2) for number in numbers]


def test_first_read_opens_the_stream_and_later_ones_extend_it():
    window = Driven()
    assert window(Asked(7, A)) == [OpenPlans(7, 9)]
    assert window(Asked(7, B)) == []
    window(*planned(7, 8, 9))
    assert window(Asked(8, A)) == [ExtendPlans(10)]


def test_an_earlier_step_opens_the_stream_again():
    window = Driven()
    window(Asked(7, A), *planned(7, 8, 9))
    assert window(Asked(5, B)) == [OpenPlans(5, 9)]


def test_after_a_lost_stream_only_what_lacks_is_asked_for():
    window = Driven()
    window(Asked(7, A), *planned(7, 8))
    assert window(PlansLost()) == [OpenPlans(9, 9)]


def test_a_refusal_is_not_repeated_until_somebody_asks():
    window = Driven()
    window(Asked(7, A))
    assert window(PlansFailed(), GaveUp(7, A)) == []
    assert window(Asked(7, A)) == [OpenPlans(7, 9)]


def test_builds_what_is_waited_for_first_and_two_at_once():
    window = Driven(ahead=4)
    window(Asked(7, A))
    assert window(*planned(7, 8, 9)) == [StartBuild(7), StartBuild(8)]
    assert window(Asked(9, B), Built(8, 50)) == [ExtendPlans(13), StartBuild(9)]


def test_a_step_that_all_have_read_makes_room_but_the_newest_stays_for_retries():
    window = Driven()
    window(Asked(0, A), Asked(0, B), *planned(0, 1), Built(0, 50), Built(1, 50))
    assert window(Delivered(0, A), Delivered(0, B)) == []
    assert window.window.ready == [0, 1]
    actions = window(Asked(1, A), Asked(1, B), Delivered(1, A), Delivered(1, B))
    assert Drop(0, forget=True) in actions
    assert window.window.ready == [1]


def test_a_rank_that_has_gone_past_a_step_does_not_hold_it():
    window = Driven()
    window(Asked(0, A), Delivered(0, A), Asked(4, B), *planned(0, 1, 2, 3, 4))
    window(Built(4, 50), Delivered(4, B), Asked(5, A))
    assert 0 not in window.window._steps


def test_nothing_is_built_ahead_of_memory():
    window = Driven(limit=250)
    window(Asked(0, A), Asked(0, B))
    assert window(*planned(0, 1, 2)) == [StartBuild(0), StartBuild(1)]
    assert window(Built(0, 50), Built(1, 50)) == [StartBuild(2)]
    assert window.window.held_bytes == 200


def test_an_unread_step_ahead_yields_to_one_that_is_waited_for():
    window = Driven(limit=250, ahead=2)
    window(Asked(5, A), *planned(5, 6, 7), Built(5, 90), Built(6, 90))
    window(Delivered(5, A))
    actions = window(Asked(2, B), *planned(2))
    assert actions == [OpenPlans(2, 7), Drop(6, forget=False), StartBuild(2)]


def test_a_step_somebody_is_being_sent_is_not_dropped():
    window = Driven(limit=150)
    window(Asked(5, A), *planned(5), Built(5, 90))
    assert window(Asked(2, B), *planned(2)) == [OpenPlans(2, 7)]
    assert window(Delivered(5, A)) == [Drop(5, forget=False), StartBuild(2)]


def test_a_step_that_can_never_fit_is_refused():
    window = Driven(limit=80)
    window(Asked(0, A))
    assert window(*planned(0)) == [Refuse(0, 100)]
    assert window(GaveUp(0, A)) == []
    assert window(Asked(0, A)) == [Refuse(0, 100)]


def test_a_failed_build_is_tried_again_only_when_asked_for():
    window = Driven()
    window(Asked(0, A), *planned(0))
    assert window(BuildFailed(0), GaveUp(0, A)) == []
    assert window(Asked(0, A)) == [StartBuild(0)]


def test_nothing_is_planned_past_the_end():
    window = Driven(ahead=4)
    window(Asked(0, A))
    window(*planned(0, 1), Ended(2))
    assert window(Asked(1, A)) == []
    assert window(PlansLost()) == []
    window(Asked(2, A), Delivered(2, A))
    assert 2 not in window.window._steps


def test_all_is_dropped_when_all_have_left():
    window = Driven()
    window(Asked(0, A), *planned(0, 1), Built(0, 50), Built(1, 50), Delivered(0, A))
    assert ClosePlans() in window(Left(A))
    assert ClosePlans() not in window(Left(B))
    assert window.window.held_bytes == 0


def test_what_is_built_when_all_have_left_is_dropped_and_who_comes_back_gets_it():
    window = Driven()
    window(Asked(7, A), Asked(7, B), *planned(7, 8, 9), Built(7, 50), Delivered(7, A), Delivered(7, B))
    assert window.building == [8, 9]
    actions = window(Left(A), Left(B))
    assert actions == [Drop(7, forget=True), ClosePlans()]
    assert window(Built(8, 50), Built(9, 50)) == [Drop(8, forget=True), Drop(9, forget=True)]
    assert (window.window.held_bytes, window.window._steps) == (0, {})
    assert (window.window.frontier, window.window.latest) == (-1, 7)
    assert window(Asked(8, B)) == [OpenPlans(8, 10)]
    assert window(*planned(8), Built(8, 50), Delivered(8, B)) == [StartBuild(8)]


def test_a_rank_that_stands_still_keeps_memory_from_nobody():
    """B has stopped at step 0: what A has read is kept for it for a while, and A's next are always built."""
    window = Driven(limit=600, ahead=2)
    window(Asked(0, A), Asked(0, B), *planned(0, 1, 2), Built(0, 100), Delivered(0, A), GaveUp(0, B))
    for step in range(1, 100):
        window(Asked(step, A), *planned(step + 2))
        if step in window.building:
            window(Built(step, 100))
        window(Delivered(step, A))
        for ahead in sorted(window.building):
            window(Built(ahead, 100))
        assert window.window.ready == list(range(max(step - 2, 0), step + 3))
    assert len(window.window._steps) <= 2 + 1 + KEPT_PLANS * 2
    assert window(Asked(1, B)) == [OpenPlans(1, 101)]  # it comes after all
    assert StartBuild(1) in window(*planned(*range(1, 102)))


def test_what_the_job_skips_is_not_built_and_what_comes_after_it_is():
    window = Driven(skips=[(6, 9)])
    assert window(Asked(5, A), Asked(5, B)) == [OpenPlans(5, 10)]
    actions = window(*planned(5, 6, 7, 8, 9, 10))
    assert actions == [
        StartBuild(5),
        *(Drop(step, forget=True) for step in (6, 7, 8)),
        StartBuild(9),
    ]
    assert window(Built(5, 50), Built(9, 50), Built(10, 50)) == [StartBuild(10)]
    assert window.window.ready == [5, 9, 10]
    # The step before is as near to it as if there were nothing between.
    assert window(Delivered(5, A), Asked(9, A), Delivered(9, A)) == [ExtendPlans(11)]
    assert 5 in window.window.ready


def test_a_skipped_step_is_built_for_whoever_asks_for_it_all_the_same():
    window = Driven(skips=[(6, 9)])
    window(Asked(5, A), *planned(5, 6, 7))
    assert window(Asked(7, B)) == [OpenPlans(7, 10)]
    assert StartBuild(7) in window(*planned(7), Built(5, 50), Delivered(5, A))
    assert Drop(7, forget=True) in window(Built(7, 50), Delivered(7, B))


def test_a_stream_that_breaks_in_a_skip_goes_on_after_it():
    window = Driven(skips=[(6, 1_000_000)])
    assert window(Asked(5, A)) == [OpenPlans(5, 1_000_001)]
    window(*planned(5, 6, 7))
    assert window(PlansLost()) == [OpenPlans(1_000_000, 1_000_001)]


def test_copies_count_and_a_build_waits_for_their_end():
    window = Driven(limit=250)
    window(Asked(0, A), *planned(0), Built(0, 50))
    assert window.window.free_bytes == 200
    assert window(Reserved(200), *planned(1)) == []
    assert window.window.held_bytes == 250
    assert window(Released(150)) == [StartBuild(1)]
    window(Released(50))
    assert window.window.held_bytes == 150


class Simulation:
    """A service around a window, whose every step happens when the test says so."""

    def __init__(self, ranks, limit, ahead, num_steps, sizes, skips=()):
        self.window = Window(ranks, limit_bytes=limit, ahead=ahead, skips=skips)
        self.num_steps, self.sizes = num_steps, sizes
        self.stream = None  # [next step, up to]
        self.building, self.built, self.served = [], {}, []
        self.waiting = []
        self.copies = {}

    def apply(self, event):
        for action in self.window.apply(event):
            match action:
                case OpenPlans(first, up_to):
                    self.stream = [first, up_to]
                case ExtendPlans(up_to):
                    self.stream[1] = max(self.stream[1], up_to)
                case StartBuild(step):
                    self.building.append(step)
                case Drop(step, _):
                    self.built.pop(step, None)
                case Refuse():
                    raise AssertionError("all fit")
        self.window.validate()
        held = sum(self.built.values()) + sum(sum(self.sizes(step)) for step in self.building)
        assert held + sum(self.copies.values()) == self.window.held_bytes

    def choices(self):
        """What could happen next."""
        out = []
        last = self.stream[1] if self.stream else -1
        if self.window.end is not None:
            last = min(last, self.window.end - 1)
        if self.stream and self.stream[0] <= last:
            out.append(self._plan)
        out += [lambda step=step: self._build(step) for step in self.building]
        out += [
            lambda read=read: self._serve(*read)
            for read in self.waiting
            if read[0] in self.built or (self.window.end is not None and read[0] >= self.window.end)
        ]
        out += [
            lambda read=read: self._copy(read)
            for read in self.waiting
            if read not in self.copies and 0 < self.built.get(read[0], 0) <= self.window.free_bytes
        ]
        return out

    def _plan(self):
        step, self.stream[0] = self.stream[0], self.stream[0] + 1
        if step >= self.num_steps:
            self.apply(Ended(self.num_steps))
        else:
            self.apply(Planned(step, *self.sizes(step)))

    def _build(self, step):
        self.building.remove(step)
        self.built[step] = self.sizes(step)[1]
        self.apply(Built(step, self.built[step]))

    def _copy(self, read):
        self.copies[read] = self.built[read[0]]
        self.apply(Reserved(self.copies[read]))

    def _serve(self, step, rank):
        if copy := self.copies.pop((step, rank), 0):
            self.apply(Released(copy))
        self.waiting.remove((step, rank))
        self.served.append((step, rank))
        self.apply(Delivered(step, rank))


@settings(max_examples=150, deadline=None)
@given(
    data=st.data(),
    limit=st.integers(100, 400),
    ahead=st.integers(1, 4),
    num_steps=st.integers(1, 8),
    skips=st.sampled_from([[], [(0, 2)], [(2, 3), (3, 6)], [(1, 2), (5, 40)]]),
)
def test_every_read_is_served_whatever_the_order(data, limit, ahead, num_steps, skips):
    ranks = [Rank(dp, cp, 0, 0) for dp in range(2) for cp in range(2)]
    sizes = {}

    def size(step):
        return sizes.setdefault(step, (step * 37 % 30, 40 + step * 13 % 30))

    simulation = Simulation(ranks, limit, ahead, num_steps, size, skips)
    # Each rank reads its steps with at most two in flight; some start late, some read again, some leave.
    reads = {
        rank: [*sorted(data.draw(st.lists(st.integers(0, num_steps), max_size=6))), num_steps]
        for rank in ranks
    }
    total = sum(map(len, reads.values()))
    for _ in range(100 * total):
        open_reads = {rank: sum(r == rank for _, r in simulation.waiting) for rank in ranks}
        asks = [rank for rank in ranks if reads[rank] and open_reads[rank] < 2]
        choices = simulation.choices()
        if not asks and not choices:
            break
        pick = data.draw(st.integers(0, len(asks) + len(choices) - 1))
        if pick < len(asks):
            rank = asks[pick]
            step = reads[rank].pop(0)
            if (step, rank) in simulation.waiting:
                continue  # one read of a step at a time
            simulation.waiting.append((step, rank))
            simulation.apply(Asked(step, rank))
        else:
            choices[pick - len(asks)]()
    assert not simulation.waiting, "a read was never answered"
    assert not any(reads.values())


@pytest.mark.parametrize("ahead", [1, 3])
def test_memory_for_one_step_is_enough_for_ranks_that_are_apart(ahead):
    simulation = Simulation([A, B], 100, ahead, 6, lambda _: (40, 50))
    for step, rank in ((3, A), (1, B)):
        simulation.waiting.append((step, rank))
        simulation.apply(Asked(step, rank))
    while simulation.choices():
        simulation.choices()[0]()
    assert sorted(simulation.served) == [(1, B), (3, A)]
