"""Step times by formula and by hand."""

import numpy as np
import pytest

from dataloader_balancers.simulate import evenly, pipeline, simulate_step


@pytest.mark.parametrize(("stages", "num"), [(1, 1), (2, 1), (2, 8), (4, 4), (4, 2), (8, 64)])
@pytest.mark.parametrize("backward", [1.0, 2.0])
def test_equal_microbatches_idle_as_the_formula_says(stages, num, backward):
    run = pipeline(evenly(np.full(num, 3.0), stages), stages, backward=backward)
    assert float(run.idle) == pytest.approx((stages - 1) / (num + stages - 1))
    assert float(run.time) == pytest.approx((num + stages - 1) * 3.0 / stages * (1 + backward))
    assert run.busy.tolist() == pytest.approx([num * 3.0 / stages * (1 + backward)] * stages)


@pytest.mark.parametrize(("stages", "num", "chunks"), [(2, 4, 2), (4, 4, 2), (4, 16, 3), (8, 32, 2)])
def test_interleaving_divides_the_bubble_by_its_chunks(stages, num, chunks):
    run = pipeline(evenly(np.ones(num), stages, chunks), stages, chunks=chunks)
    assert float(run.idle) == pytest.approx((stages - 1) / (chunks * num + stages - 1))


def test_unequal_microbatches_by_hand():
    """Two stages, backward as long as forward; microbatches of 2 and 4 a stage.

    stage 0: F0 0-2, F1 2-6, B0 waits until 6 (stage 1: F0 2-4, B0 4-6), B0 6-8, B1 from 14 (stage 1: F1 6-10,
    B1 10-14) to 18
    """
    run = pipeline([[2.0, 2.0], [4.0, 4.0]], 2, backward=1.0)
    assert float(run.time) == 18.0
    assert run.busy.tolist() == [12.0, 12.0]


def test_many_ranks_at_once_are_as_many_alone():
    costs = np.random.default_rng(0).uniform(1, 5, (3, 5, 8))
    together = pipeline(evenly(costs, 4), 4).time
    assert together.shape == (3, 5)
    for place in np.ndindex(3, 5):
        assert together[place] == pipeline(evenly(costs[place], 4), 4).time


def test_a_dear_microbatch_at_either_end_is_dearer_than_in_the_middle():
    costs = np.ones((3, 16))
    costs[0, 0] = costs[1, 8] = costs[2, 15] = 8.0
    first, middle, last = pipeline(evenly(costs, 4), 4).time
    assert middle <= min(first, last)


def test_ranks_wait_for_the_slowest_at_the_end_of_the_step():
    run = simulate_step([[3.0, 3.0], [1.0, 1.0]], backward=2.0)
    assert float(run.time) == 18.0
    assert run.rank_time.tolist() == [18.0, 6.0]
    assert float(run.bubble) == 0.0
    assert float(run.waiting) == pytest.approx(12 / 36)
    assert float(run.llm_imbalance) == 1.5
    assert float(run.encoder_imbalance) == 1.0


def test_where_ranks_meet_decides_what_imbalance_costs():
    """Rank 0 is dear in the first microbatch and its LLM, rank 1 in the second and its encoder."""
    llm, encoder = [[4.0, 1.0], [1.0, 2.0]], [[0.0, 1.0], [1.0, 2.0]]
    at = {
        meet: simulate_step(llm, encoder, backward=1.0, meet=meet) for meet in ("step", "phase", "microbatch")
    }
    assert float(at["step"].time) == 2 * 6
    assert float(at["phase"].time) == 2 * (5 + 3)
    assert float(at["microbatch"].time) == 2 * (4 + 2 + 1 + 2)
    for run in at.values():
        assert float(run.idle) == pytest.approx(1 - 24 / (2 * float(run.time)))


def test_the_encoder_lies_on_the_first_stage_or_on_all():
    llm, encoder = np.full((1, 1), 4.0), np.full((1, 1), 2.0)
    assert float(simulate_step(llm, encoder, stages=2, backward=1.0).time) == 2 * 4 + 2 * 2
    assert float(simulate_step(llm, encoder, stages=2, backward=1.0, meet="phase").time) == 2 * 4 + 2


def test_bubble_and_waiting_share_the_time_that_is_not_work():
    rng = np.random.default_rng(1)
    llm = rng.uniform(1, 4, (6, 8, 16))
    run = simulate_step(llm, rng.uniform(0, 1, llm.shape), stages=4)
    work = 3.0 * llm.sum(axis=(1, 2))
    assert np.all(run.bubble > 0)
    assert np.all(run.waiting > 0)
    assert np.all(1 - run.idle >= work / (run.time * 32))


def test_nothing_to_do_takes_no_time():
    run = simulate_step(np.zeros((2, 3)), stages=2)
    assert (float(run.time), float(run.idle), float(run.llm_imbalance)) == (0.0, 0.0, 1.0)


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        ({"stages": 0}, "stages is 0"),
        ({"forward": [[1.0, 1.0]], "stages": 3}, r"shape \(1, 2\); \(..., microbatches, 3\) is needed"),
        ({"forward": [[1.0, -1.0]]}, r"cost \(0, 1\) is -1"),
        ({"forward": [[1.0, np.nan]]}, r"cost \(0, 1\) is nan"),
        ({"backward": -1.0}, "backward is -1"),
        ({"backward": [[1.0, 1.0], [1.0, 1.0]]}, r"backward has shape \(2, 2\) and forward \(1, 2\)"),
        ({"backward": [[1.0, -2.0]]}, r"cost \(0, 1\) is -2"),
        ({"forward": np.ones((3, 4)), "chunks": 2}, "3 for 2 stages: add empty ones, or use chunks=1"),
    ],
)
def test_impossible_pipelines_are_named(arguments, found):
    with pytest.raises(ValueError, match=found):
        pipeline(**{"forward": [[1.0, 1.0]], "stages": 2} | arguments)


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        ({"llm": [1.0]}, r"llm has shape \(1,\)"),
        ({"encoder": [[1.0]]}, r"encoder \(1, 1\)"),
        ({"encoder": [[1.0, -1.0]]}, "is -1"),
        ({"meet": "never"}, "unknown meet 'never'; known: step, phase, microbatch"),
        ({"meet": "microbatch", "stages": 2}, "have no pipeline; stages is 2"),
    ],
)
def test_impossible_steps_are_named(arguments, found):
    with pytest.raises(ValueError, match=found):
        simulate_step(**{"llm": [[1.0, 1.0]]} | arguments)
