"""What the plan log says of a sample in the quarantine: only what is proven may be asked for again."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from dataloader_svc.cli.plan_log import PlanLog
from dataloader_svc.cli.quarantine_past import Fate, Past, Verdict
from dataloader_svc.planner import core
from dataloader_svc.planner.plan import Plan
from dataloader_svc.planner.readmit import Asked, Request
from dataloader_svc.planner.requests import read_requests
from dataloader_svc.planner.session import GENERATION_POINTER, Generation
from dataloader_svc.planner.state import State
from dataloader_svc.sample import RowRef, SampleId
from dataloader_svc.store import MemoryStore
from dataloader_svc.store.quarantine_log import Quarantined
from dataloader_svc.store.readmission_log import Readmission, Repaired, add_readmission
from dataloader_svc.testing.planning import PlanDriver, plan_config
from dataloader_svc.testing.scripted_loader import ScriptedSources

LENGTHS = [5] * 60
LENGTHS[9] = 40  # longer than a sequence: it comes in pieces
BAD = 3
CONFIG = plan_config({"a": 1}, sequences=2, sequence_length=24)


def sources(*, mended: bool = False, bad: int = BAD) -> ScriptedSources:
    lengths = [0 if i == bad and not mended else n for i, n in enumerate(LENGTHS)]
    return ScriptedSources.of_lengths({"a": lengths}, block=5)


def history(plans: Sequence[Plan], base: State, *requests: Readmission) -> Past:
    store = MemoryStore()
    store.put(GENERATION_POINTER, b"1")
    store.put(Generation.key(1), Generation(1, base, "hash", None, "test").to_json())
    for plan in plans:
        store.append("plan/1", plan.step, plan.to_bytes(), fence=None)
    for request in requests:
        assert add_readmission(store, request)
    return Past(PlanLog.of(store), read_requests(store))


def driver(steps: int = 4, **sample: int) -> tuple[PlanDriver, State]:
    made = PlanDriver(CONFIG, sources(**sample))
    base = made.core.state
    assert base is not None
    made.run(steps - 1)
    return made, base


def row(position: int, **fields: object) -> Quarantined:
    return Quarantined(SampleId("a", 0, position), RowRef("a.jsonl", position), "truncated", **fields)


def step_of(plans: Sequence[Plan], position: int) -> int:
    return next(p.step for p in plans if ((p.pieces.position == position) & (p.pieces.epoch == 0)).any())


def test_a_skipped_sample_by_the_record_that_passed_it() -> None:
    made, base = driver()
    past = history(made.plans, base)
    (step,) = [plan.step for plan in made.plans if any(r.position == BAD for _, _, r in plan.skipped)]
    assert past.of(row(BAD)) == Verdict(Fate.SKIPPED, step)
    assert past.stop == 4


@pytest.mark.parametrize("steps", [1, 2, 3, 7, 12])
def test_the_record_is_found_in_logs_of_any_length(steps: int) -> None:
    made, base = driver(steps)
    past = history(made.plans, base)
    passed = past.state.sources["a"]
    verdict = past.of(row(BAD))
    if (passed.epoch, passed.position) > (0, BAD):
        assert verdict.fate == Fate.SKIPPED
        assert any(r.position == BAD for _, _, r in made.plans[verdict.step].skipped)
    else:
        assert verdict.fate == Fate.REFUSED


def test_a_masked_sample_by_the_step_that_delivered_it() -> None:
    made, base = driver()
    step = step_of(made.plans, 6)
    past = history(made.plans, base)
    assert past.of(row(6, delivered=True, step=step, generation=1)) == Verdict(Fate.MASKED, step)
    # Written by an earlier version, which said no step; and of another life of the job.
    assert past.of(row(6, delivered=True)).fate == Fate.MASKED
    for other in ({"step": step + 1, "generation": 1}, {"step": step, "generation": 2}):
        assert past.of(row(6, delivered=True, **other)).fate == Fate.REFUSED


def test_what_nobody_may_ask_for() -> None:
    made, base = driver()
    past = history(made.plans, base)
    good = past.of(row(5))
    assert (good.fate, good.why) == (
        Fate.REFUSED,
        f"is in this history as a good sample, in step {step_of(made.plans, 5)}: nothing is missing",
    )
    ahead = past.of(row(55))
    assert ahead.fate == Fate.REFUSED
    assert "it comes in its turn" in ahead.why
    pieces = past.of(row(9, delivered=True))
    assert pieces.fate == Fate.REFUSED
    assert "was delivered in 2 pieces" in pieces.why
    unknown = past.of(Quarantined(SampleId("gone", 0, 1), RowRef("x", 0), "truncated"))
    assert unknown.fate == Fate.REFUSED
    late = history(made.plans[2:], made.plans[1].state).of(row(BAD))
    assert late.fate == Fate.REFUSED
    assert "before the plan log of this store begins, at step 2" in late.why


def readmission(position: int, step: int, number: int = 1) -> Readmission:
    samples = (Repaired(SampleId("a", 0, position), position // 5, step, masked=False),)
    return Readmission(number, 1, 0, {}, {"a": "index-0"}, samples)


def resumed(plans: list[Plan], *requests: Readmission, mended: bool) -> list[Plan]:
    again = PlanDriver(CONFIG, sources(mended=mended), state=State.from_json(plans[-1].state_json))
    asked = tuple(
        Request(r.number, r.at_step, tuple(Asked(i, s.sample, s.block) for i, s in enumerate(r.samples)))
        for r in requests
    )
    again.apply(core.Requested(asked))
    again.run(plans[-1].step + 3)
    return plans + again.plans


def test_asked_for_and_come_back() -> None:
    made, base = driver()
    first = readmission(BAD, 0)
    asked = history(made.plans, base, first).of(row(BAD))
    assert (asked.fate, asked.why) == (Fate.ASKED, "is asked for already, by request 1")
    plans = resumed(made.plans, first, mended=True)
    back = history(plans, base, first).of(row(BAD))
    assert (back.fate, back.step) == (Fate.READMITTED, 4)


def test_bad_again_it_may_be_asked_for_again() -> None:
    made, base = driver()
    first = readmission(BAD, 0)
    plans = resumed(made.plans, first, mended=False)
    assert history(plans, base, first).of(row(BAD)) == Verdict(Fate.SKIPPED, 4)
    second = readmission(BAD, 4, number=2)
    plans = resumed(plans, first, second, mended=True)
    back = history(plans, base, first, second).of(row(BAD))
    assert (back.fate, back.step) == (Fate.READMITTED, 7)
    # Once it was back it could not be decoded.
    masked = row(BAD, delivered=True, step=step_of(plans, BAD), generation=1)
    assert history(plans, base, first, second).of(masked).fate == Fate.MASKED
