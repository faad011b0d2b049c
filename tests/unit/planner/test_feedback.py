"""What ranks report: sums are of the set of reports alone, and rubbish harms nobody."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dataloader_client._pb.control_service_pb2 import StepLosses
from dataloader_svc.planner.feedback import Feedback, is_well_formed

NAMES = ("a", "b", "c")


def report(step: int, losses: dict[int, tuple[float, float]], *, dp: int = 0, cp: int = 0, session: int = 1):
    return StepLosses(
        session=session,
        dp_rank=dp,
        cp_rank=cp,
        step=step,
        source=losses.keys(),
        loss=[loss for loss, _ in losses.values()],
        targets=[targets for _, targets in losses.values()],
    )


def feedback(**changes) -> Feedback:
    return Feedback(NAMES, **{"begin": 0, "every": 10, "patience": 4, **changes})


def take(into: Feedback, *reports: StepLosses) -> None:
    for each in reports:
        if into.is_new(each):
            into.add(each)


def test_a_mean_weighs_targets_wherever_they_were():
    found = feedback()
    take(found, report(0, {0: (6.0, 2)}), report(0, {0: (3.0, 1), 1: (8.0, 4)}, dp=1), report(9, {1: (1, 1)}))
    take(found, report(10, {0: (1000.0, 1)}))  # of the next period
    sums = found.sums(10)
    assert sums.losses == {"a": 3.0, "b": 9 / 5}
    assert sums.targets == {"a": 3.0, "b": 5.0}


def test_a_period_is_due_when_all_ranks_are_beyond_it():
    found = feedback()
    assert found.due(2) is None
    take(found, report(3, {0: (1, 1)}), report(3, {0: (1, 1)}, dp=1), report(10, {0: (1, 1)}))
    assert found.due(2) is None, "dp rank 1 may have more to say of it"
    take(found, report(12, {0: (1, 1)}, dp=1))
    assert found.due(2) == 10


def test_a_rank_that_says_nothing_is_waited_for_so_many_steps():
    found = feedback()
    for step in range(14):
        take(found, report(step, {0: (1, 1)}))
        assert found.due(4) is None
    take(found, report(14, {0: (1, 1)}))
    assert found.due(4) == 10


def test_periods_are_counted_from_the_beginning_and_decided_once():
    found = feedback(begin=7)
    take(found, report(6, {0: (1, 1)}))
    assert found.num_steps == 0, "a warm-up counts nowhere"
    take(found, report(8, {0: (5, 1)}), report(40, {0: (2, 1)}))
    assert found.due(1) == 17
    found.forget(17)
    take(found, report(16, {0: (5, 1)}))  # late
    assert found.sums(100).losses == {"a": 2.0}
    assert found.due(1) is None
    take(found, report(47, {0: (2, 1)}))
    assert found.due(1) == 47, "a period of which nobody said anything is passed over"
    assert (found.next(60), feedback(begin=7).next(60), feedback(begin=90).next(60)) == (47, 67, 100)


def test_a_trainer_that_goes_back_says_it_again():
    found = feedback()
    for step in range(8):
        take(found, report(step, {0: (1, 1)}), report(step, {0: (1, 1)}, dp=1))
    take(found, report(5, {0: (7, 1)}, session=2))
    assert found.num_ranks == 1
    assert found.sums(10).losses == {"a": (5 * 2 + 7) / 11}, "steps 6 and 7 come again"
    assert not found.is_new(report(6, {0: (1, 1)}, dp=1)), "of the session before"


@pytest.mark.parametrize(
    ("loss", "targets", "text"),
    [
        (math.nan, 1.0, "a loss of nan"),
        (math.inf, 1.0, "a loss of inf"),
        (1e300, 1.0, "a loss of 1e+300"),
        (1.0, math.nan, "nan targets"),
        (1.0, -1.0, "-1 targets"),
        (1.0, 1e300, "1e+300 targets"),
    ],
)
def test_what_is_no_loss_is_left_out_and_named(loss, targets, text):
    said = []
    found = feedback(refuse=said.append)
    take(found, report(3, {0: (loss, targets), 1: (4.0, 2)}, dp=5))
    assert found.sums(10).losses == {"b": 2.0}
    (line,) = said
    assert line.startswith("step 3, dp rank 5, cp rank 0: 'a' has ")
    assert line.endswith(text)


def test_columns_that_can_not_be_read():
    good = report(0, {0: (1, 1), 2: (1, 1)})
    assert is_well_formed(good, 3)
    assert not is_well_formed(good, 2)
    assert not is_well_formed(StepLosses(source=[1, 1], loss=[1, 1], targets=[1, 1]), 3)
    good.loss.append(1.0)
    assert not is_well_formed(good, 3)


value = st.floats(-1e6, 1e6)
rows = st.dictionaries(st.integers(0, 2), st.tuples(value, st.integers(0, 10_000)), max_size=3)
said = st.lists(st.tuples(st.integers(0, 19), st.integers(0, 3), st.integers(0, 1), rows), max_size=30)


@settings(max_examples=150, deadline=None)
@given(said, st.randoms(use_true_random=False))
def test_order_and_repetition_make_no_difference(said, random):
    """Against exact fractions, over any order in which each rank's first word on a step comes first."""
    first = {(step, dp, cp): losses for step, dp, cp, losses in reversed(said)}
    reports = [report(step, losses, dp=dp, cp=cp) for (step, dp, cp), losses in first.items()]
    shuffled = reports * 2
    random.shuffle(shuffled)
    found = feedback()
    take(found, *shuffled)
    sums = found.sums(20)
    again = feedback()
    take(again, *reports)
    assert again.sums(20) == sums
    for row, name in enumerate(NAMES):
        given_ = [losses[row] for losses in first.values() if row in losses and losses[row][1] > 0]
        if not given_:
            assert name not in sums.losses
            continue
        targets = sum(Fraction(count) for _, count in given_)
        mean = sum(Fraction(loss) for loss, _ in given_) / targets
        assert sums.targets[name] == targets
        assert sums.losses[name] == pytest.approx(float(mean), rel=1e-12, abs=1e-8)
