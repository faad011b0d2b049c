"""Outliers that wait: how level steps become, at what delay, and what a queue keeps."""

import json

import numpy as np
import pytest

from dataloader_balancers import LlmCost, imbalance
from dataloader_balancers.pack import Queue, outliers, queued_step

CONTEXT = 131_072
COST = LlmCost.preset("7b")
LONGEST = CONTEXT * 5 // 4


def long_tail(count, seed=0):
    """A long-context corpus: median 1,000 tokens, a fifth of all tokens in documents of 32K to 128K."""
    drawn = np.random.default_rng(seed).lognormal(np.log(1000), 1.6, count)
    return np.clip(drawn, 16, CONTEXT).astype(np.int64)


def run(num_sequences, steps, seed=0, **rules):
    """All steps of a stream, each drawing as much as it lacks; and how many documents were drawn."""
    stream, drawn = long_tail(num_sequences * steps * 60, seed), 0
    queue, done = Queue(), []
    for _ in range(steps):
        new = 0
        while True:
            keys = np.arange(drawn, drawn + new)
            step = queued_step(
                queue, keys, stream[keys], COST.of_documents, num_sequences, CONTEXT, LONGEST, **rules
            )
            if not step.lacking:
                break
            new += 1 + int(np.searchsorted(np.cumsum(stream[drawn + new :]), step.lacking))
        drawn += new
        queue = Queue.from_json(json.loads(json.dumps(step.queue.to_json())))
        done.append(step)
    return stream[:drawn], done


def spread(stream, step, num_sequences):
    return imbalance(np.bincount(step.sequence, COST.of_documents(stream[step.keys]), num_sequences))


@pytest.mark.parametrize(("num_sequences", "most"), [(4, 1.02), (8, 1.03)])
def test_steps_of_a_long_tail_become_level_at_half_a_step_of_delay(num_sequences, most):
    stream, steps = run(num_sequences, 120)
    tokens = np.concatenate([stream[step.keys] for step in steps])
    delay = np.concatenate([step.age for step in steps])
    assert np.mean([spread(stream, step, num_sequences) for step in steps]) <= most
    assert (tokens * delay).sum() / tokens.sum() <= 0.5
    assert delay.max() <= 34  # 32, and what may not find room at once
    stream, steps = run(num_sequences, 120, max_age=0)  # nothing waits
    assert np.mean([spread(stream, step, num_sequences) for step in steps]) >= 1.15


def test_every_document_is_in_one_step_or_waits_and_no_sequence_is_too_long():
    stream, steps = run(4, 40)
    placed = np.concatenate([step.keys for step in steps])
    assert sorted([*placed.tolist(), *steps[-1].queue.keys]) == list(range(len(stream)))
    for step in steps:
        tokens = np.bincount(step.sequence, stream[step.keys], 4)
        assert tokens.max() <= LONGEST
        assert tokens.sum() >= 0.95 * 4 * CONTEXT
    assert stream[list(steps[-1].queue.keys)].tolist() == list(steps[-1].queue.lengths)


def test_nothing_waits_at_the_end():
    queue = Queue((7, 8), (CONTEXT, 90_000), (3, 1))
    step = queued_step(queue, [9], [50], COST.of_documents, 4, CONTEXT, LONGEST, more=False)
    assert sorted(step.keys.tolist()) == [7, 8, 9]
    assert sorted(step.age.tolist()) == [0, 1, 3]
    assert step.queue == Queue()
    assert step.lacking == 4 * CONTEXT - CONTEXT - 90_000 - 50


def test_one_outlier_waits_and_one_for_each_sequence_goes():
    ordinary = np.full(400, 1000)
    alone = np.append(ordinary, 100_000)
    assert np.flatnonzero(outliers(alone, np.zeros(401, int), alone**2.0, 4, 100_000)).tolist() == [400]
    like = np.append(ordinary, [100_000, 98_000, 99_000, 97_000])
    assert not outliers(like, np.zeros(404, int), like**2.0, 4, 100_000).any()


def test_like_goes_with_like_and_the_rest_waits():
    """Five outliers for four sequences: the dearest would leave the step uneven, and waits alone."""
    lengths = np.append(np.full(400, 1000), [100_000, 70_000, 69_000, 71_000, 70_500])
    held = outliers(lengths, np.zeros(405, int), lengths**2.0, 4, 100_000)
    assert np.flatnonzero(held).tolist() == [400]


def test_who_has_waited_longest_goes_first_and_nobody_waits_for_ever():
    lengths = np.append(np.full(400, 1000), [100_000] * 3 + [60_000] * 4 + [90_000])
    ages = np.zeros(len(lengths), np.int64)
    ages[403:407] = 20
    held = outliers(lengths, ages, lengths**2.0, 4, 100_000)
    assert np.flatnonzero(held).tolist() == [400, 401, 402, 407]
    ages[407] = 32
    assert not outliers(lengths, ages, lengths**2.0, 4, 100_000)[407]


def test_a_run_goes_when_it_has_waited_enough_for_what_it_costs_the_step():
    """One outlier on four sequences. Its step takes `dearest / mean` of a level one's time."""
    lengths = np.append(np.full(400, 1000), 100_000)
    costs = np.append(np.full(400, 1000.0), 150_000.0)
    # The step has it and 300,000 ordinary tokens: 450,000 in all, level at 112,500 each.
    late = 150_000 / 112_500 - 1
    for patience in (0.6, 3.1, 7.1):
        goes = []
        for age in range(20):
            ages = np.append(np.zeros(400, int), age)
            held = outliers(lengths, ages, costs, 4, 100_000, patience=patience)
            assert not held[:400].any()
            goes.append(not held[400])
        expected = [(age + 1) * 100_000 / 400_000 > patience * late for age in range(20)]
        assert goes == expected
        assert expected[-1]


def test_what_other_sequences_have_no_room_for_stands_beside_outliers():
    """Three of four sequences have outliers as dear as the mean; the fourth can't take all the rest."""
    lengths = np.append(np.full(400, 1000), [70_000] * 3)
    costs = np.append(np.full(400, 1000.0), [145_000.0] * 3)
    ages = np.zeros(403, int)
    # 210,000 tokens of them and 190,000 others, 625,000 in all: 156,250 each. The fourth takes as much.
    assert not outliers(lengths, ages, costs, 4, 100_000, longest=400_000)[400:].any()
    # With room for 130,000 the other 60,000 stand beside the three: 165,000 each.
    assert outliers(lengths, ages, costs, 4, 100_000, longest=130_000)[400:].all()


def test_alike_documents_are_no_outliers_however_long():
    lengths = np.full(1000, CONTEXT)
    assert not outliers(lengths, np.zeros(1000, int), COST.of_documents(lengths), 64, CONTEXT).any()
    assert outliers([], [], [], 4, 8).tolist() == []


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        ({"lengths": [1, 0]}, "piece 1 has 0 tokens"),
        ({"ages": [1]}, "ages .* 2 pieces"),
        ({"costs": [1.0, np.nan]}, "piece 1 costs nan"),
        ({"num_sequences": 0}, "got 0 of 8"),
        ({"tolerance": np.nan}, "got 2 of 8, nan"),
        ({"max_age": -1}, "0.02, 20.0, -1"),
        ({"patience": -1.0}, "0.02, -1.0, 32"),
        ({"patience": np.inf}, "0.02, inf, 32"),
        ({"longest": 7}, "sequences of 8 tokens on average hold 7 at most"),
    ],
)
def test_impossible_arguments_are_named(arguments, found):
    good = {"lengths": [1, 2], "ages": [0, 0], "costs": [1.0, 2.0], "num_sequences": 2, "mean_length": 8}
    with pytest.raises(ValueError, match=found):
        outliers(**good | arguments)


def test_a_queue_that_is_none_is_named():
    for data in ({}, {"keys": [1], "lengths": [2, 3], "ages": [0]}, {"keys": [], "lengths": []}):
        with pytest.raises(ValueError, match="three lists alike"):
            Queue.from_json(data)
    with pytest.raises(ValueError, match="1 keys of 2 lengths"):
        queued_step(Queue(), [1], [5, 6], COST.of_documents, 2, 8, 8)
    with pytest.raises(ValueError, match="piece 0 has 9 tokens; allowed are 1 to 8"):
        queued_step(Queue(), [1], [9], COST.of_documents, 2, 8, 8)
