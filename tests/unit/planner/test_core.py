"""The planner's core, driven event by event: what it may do before what, and what it never does."""

from __future__ import annotations

import numpy as np
import pytest

from dataloader_svc.config.schema import Config
from dataloader_svc.errors import SourceError, StateError
from dataloader_svc.planner import core
from dataloader_svc.planner.core import (
    Append,
    Appended,
    Based,
    Demanded,
    Describe,
    Described,
    Failed,
    Lease,
    PlannerCore,
    Probed,
    Publish,
    Stop,
)
from dataloader_svc.planner.select import Rules
from dataloader_svc.planner.state import State
from dataloader_svc.sample import BlockId, Listing
from dataloader_svc.testing.planning import PlanDriver, plan_config
from dataloader_svc.testing.scripted_loader import ScriptedSources

SOURCES = ScriptedSources.of_lengths({"a": [8] * 100, "b": [8] * 60}, block=5)


def config(**fields) -> Config:
    return plan_config({"a": 1, "b": 1}, planner={"ahead": 2}, **fields)


class Bench:
    """A core whose actions are carried out by hand; checked after each event."""

    def __init__(self, settings: Config, sources: ScriptedSources = SOURCES) -> None:
        self.rules = Rules.of(settings)
        self.core = PlannerCore(self.rules, ahead=settings.planner.ahead)
        self.sources = sources
        self.initial = State.initial(self.rules.names, seed=0, config={})

    def apply(self, event: core.Event) -> list[core.Action]:
        actions = self.core.apply(event)
        self.core.validate()
        return actions

    def described(self, source: str, epoch: int = 0, digest: str | None = None) -> list[core.Action]:
        starts = self.sources.block_starts(source)
        return self.apply(Described(source, epoch, starts, digest or self.sources.digest))

    def probed(self, block: BlockId) -> list[core.Action]:
        return self.apply(Probed(self.sources.probe(block)))

    def serve(self, actions: list[core.Action]) -> list[core.Action]:
        """Answer describes and leases until only other actions are left."""
        left, todo = [], list(actions)
        while todo:
            match todo.pop(0):
                case Describe(source, epoch):
                    todo += self.described(source, epoch)
                case Lease(block):
                    todo += self.probed(block)
                case other:
                    left.append(other)
        return left


@pytest.fixture
def bench():
    bench = Bench(config())
    yield bench
    bench.core.validate()


def of_kind(actions, kind):
    return [action for action in actions if isinstance(action, kind)]


def test_nothing_is_read_before_somebody_joins(bench):
    assert bench.apply(Based(bench.initial)) == []


def test_every_source_is_described_first(bench):
    bench.apply(Based(bench.initial))
    actions = bench.apply(Demanded(0, 0))
    assert actions == [Describe("a", 0), Describe("b", 0)]
    assert of_kind(bench.described("a"), Append) == []
    assert bench.apply(Demanded(1, 0)) == []  # asked for already


def test_a_plan_is_published_only_when_it_is_in_the_log(bench):
    bench.apply(Based(bench.initial))
    actions = bench.serve(bench.apply(Demanded(1, 0)))
    assert [type(action) for action in actions] == [Append]
    plan = actions[0].plan
    assert plan.step == 0
    assert bench.core.state.step == 0
    after = bench.apply(Appended(0))
    assert isinstance(after[0], Publish)
    assert after[0].plan is plan
    assert bench.core.state.step == 1
    assert [action.plan.step for action in of_kind(after, Append)] == [1]
    # Nothing beyond what is demanded.
    assert of_kind(bench.serve(bench.apply(Appended(1))), Append) == []
    assert [action.plan.step for action in of_kind(bench.apply(Demanded(2, 0)), Append)] == [2]


def test_one_record_at_a_time(bench):
    bench.apply(Based(bench.initial))
    actions = bench.serve(bench.apply(Demanded(9, 0)))
    actions += bench.serve(bench.apply(Demanded(20, 0)))
    assert len(of_kind(actions, Append)) == 1


def test_a_record_of_a_generation_that_was_left_counts_for_nothing(bench):
    bench.apply(Based(bench.initial))
    bench.serve(bench.apply(Demanded(3, 0)))
    bench.apply(Based(bench.initial))
    assert bench.apply(Appended(0)) == []
    assert bench.core.state.step == 0


def test_blocks_are_leased_before_they_are_needed(bench):
    bench.apply(Based(bench.initial))
    bench.apply(Demanded(0, 0))
    leased = of_kind(bench.described("a") + bench.described("b"), Lease)
    assert leased == [Lease(BlockId("a", 0, 0)), Lease(BlockId("b", 0, 0))]
    # A block tells how many tokens a row has: two steps beyond the first take 3 * 32 * 1.25 tokens of a.
    more = of_kind(bench.probed(BlockId("a", 0, 0)), Lease)
    assert more == [Lease(BlockId("a", 0, 1)), Lease(BlockId("a", 0, 2))]


def test_a_tiny_source_needs_several_epochs_at_once():
    sources = ScriptedSources.of_lengths({"a": [8] * 100, "b": [2] * 4})
    driver = PlanDriver(config(), sources)
    driver.run(0)
    asked = [line for line in driver.trace if line.strip().startswith("describe b/")]
    assert len(asked) > 10
    assert driver.plans[0].state.sources["b"].epoch >= 3


def test_blocks_are_released_when_drawn_and_no_longer_in_use():
    driver = PlanDriver(config(), SOURCES)
    plans = driver.run(7)
    assert driver.released == []  # nobody has said that a plan was used
    last_use = {str(block): plan.step for plan in plans for block in plan.blocks()}
    state = plans[-1].state
    drawn = {
        f"{name}/0#{number}"
        for name, source in state.sources.items()
        for number in range(source.position // SOURCES.block)
    }
    waiting = {
        f"{state.names[s]}/0#{b}" for s, b in zip(state.waiting.source, state.waiting.block, strict=True)
    }
    for done_below in range(9):
        driver.run(7, done_below=done_below)
        expected = {block for block in drawn - waiting if last_use[block] < done_below}
        assert set(driver.released) == expected
    assert len(driver.released) == len(set(driver.released)) > 5


def test_a_block_of_which_a_piece_waits_is_kept():
    sources = ScriptedSources.of_lengths({"a": [300, 8, 8, 8] * 10}, block=1)
    driver = PlanDriver(plan_config({"a": 1}), sources)
    for step in range(8):
        plan = driver.run(step, done_below=step)[-1]
        waiting = {f"a/0#{block}" for block in plan.state.waiting.block.tolist()}
        assert not waiting & set(driver.released)
    assert "a/0#0" in driver.released


def test_a_restart_releases_what_plans_before_it_have_used_up():
    bench = Bench(config())
    bench.apply(Based(bench.initial))
    bench.serve(bench.apply(Demanded(0, 0)))
    bench.serve(bench.apply(Appended(0)))
    again = Bench(config())
    again.apply(Based(bench.core.state, {BlockId("a", 0, 0): 0}))
    actions = again.serve(again.apply(Demanded(2, 0)))
    assert [action.plan.step for action in of_kind(actions, Append)] == [1]


def test_another_index_than_the_state_s_stops_by_name(bench):
    bench.apply(Based(bench.initial))
    bench.serve(bench.apply(Demanded(0, 0)))
    bench.apply(Appended(0))
    again = Bench(config())
    again.apply(Based(bench.core.state))
    again.apply(Demanded(2, 0))
    (stop,) = again.described("b", digest="other")
    assert isinstance(stop, Stop)
    assert isinstance(stop.error, StateError)
    assert str(stop.error).startswith("source 'b': its files are not those of the state (index other, then ")
    assert again.described("a") == []  # stopped
    assert again.core.stopped is stop.error


def test_a_new_base_ends_a_stop(bench):
    bench.apply(Based(bench.initial))
    bench.apply(Demanded(0, 0))
    error = SourceError("source 'a': no such file")
    assert bench.apply(Failed(error, Describe("a", 0), bench.core.base)) == [Stop(error)]
    assert bench.apply(Demanded(5, 0)) == []
    bench.apply(Based(bench.initial))
    assert bench.core.stopped is None


def test_what_an_earlier_base_asked_for_in_vain_is_asked_again(bench):
    bench.apply(Based(bench.initial))
    bench.apply(Demanded(0, 0))
    (first, _) = of_kind(bench.described("a") + bench.described("b"), Lease)[:2]
    earlier = bench.core.base
    bench.apply(Based(bench.initial))
    assert bench.apply(Demanded(0, 0)) == []  # all of it is under way
    gone = StateError("its files are not those of the state")
    assert bench.apply(Failed(gone, first, earlier)) == [first]
    assert bench.core.stopped is None
    assert bench.apply(Failed(gone, Describe("a", 0), earlier)) == []  # and is known already
    assert bench.core.stopped is None


def test_what_was_read_of_other_files_is_asked_again(bench):
    bench.apply(Based(bench.initial))
    bench.apply(Demanded(0, 0))
    (lease, *_) = of_kind(bench.described("a") + bench.described("b"), Lease)
    others = Probed(SOURCES.probe(lease.block), Listing(1, "other"))
    assert bench.apply(others) == [lease]


def test_files_that_changed_are_described_anew(bench):
    bench.apply(Based(bench.initial))
    bench.apply(Demanded(0, 0))
    bench.described("a")
    bench.described("b")
    bench.apply(Based(bench.initial, files_changed=True))
    assert bench.apply(Demanded(0, 0)) == [Describe("a", 0), Describe("b", 0)]


def test_an_empty_source_stops_by_name(bench):
    bench.apply(Based(bench.initial))
    bench.apply(Demanded(0, 0))
    (stop,) = bench.apply(Described("b", 0, np.array([0]), "x"))
    assert isinstance(stop, Stop)
    assert str(stop.error).startswith("source 'b' is empty: its shards hold no rows")


def test_going_back_uses_blocks_that_are_still_at_hand(bench):
    bench.apply(Based(bench.initial))
    first = of_kind(bench.serve(bench.apply(Demanded(2, 0))), Append)[0].plan
    bench.serve(bench.apply(Appended(0)))
    bench.serve(bench.apply(Appended(1)))
    bench.apply(Based(bench.initial))
    actions = bench.apply(Demanded(0, 0))
    again = of_kind(actions, Append)[0].plan
    assert of_kind(actions, Lease) == []
    assert again.to_bytes() == first.to_bytes()


def test_the_step_before_the_end_waits_until_the_end_is_known():
    bench = Bench(
        config(mixture={"exhausted": "stop"}), ScriptedSources.of_lengths({"a": [8] * 5, "b": [8] * 5})
    )
    bench.apply(Based(bench.initial))
    actions = bench.serve(bench.apply(Demanded(0, 0)))
    assert [type(action) for action in actions] == [Append]
    assert not actions[0].plan.last
    actions = bench.serve(bench.apply(Demanded(9, 0)) + bench.apply(Appended(0)))
    assert [action.plan.last for action in of_kind(actions, Append)] == [True]
    assert bench.core.end == 2
