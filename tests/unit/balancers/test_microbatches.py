"""Order and weights of microbatches, beside a pipeline and a gradient worked out slowly."""

import numpy as np
import pytest

from dataloader_balancers.assign import assign
from dataloader_balancers.assign.microbatches import loss_weights, order_microbatches


def one_forward_one_backward(times, stages):
    """Seconds of a 1F1B pipeline (Narayanan et al. 2019): each stage runs stages - s forwards ahead, then
    alternates; a microbatch takes times[m] in a forward, twice that in a backward, on every stage.
    """
    count = len(times)
    queues = []
    for stage in range(stages):
        ahead = min(stages - stage, count)
        queue = [("f", m) for m in range(ahead)]
        for m in range(count):
            queue.append(("b", m))
            if ahead + m < count:
                queue.append(("f", ahead + m))
        queues.append(queue)
    ends, clock, at = {}, [0.0] * stages, [0] * stages
    while any(at[s] < len(queues[s]) for s in range(stages)):
        moved = False
        for stage in range(stages):
            if at[stage] == len(queues[stage]):
                continue
            kind, m = queues[stage][at[stage]]
            before = (kind, m, stage - 1) if kind == "f" else (kind, m, stage + 1)
            if kind == "b" and stage == stages - 1:
                before = ("f", m, stage)
            if 0 <= before[2] < stages and before not in ends:
                continue
            start = max(clock[stage], ends.get(before, 0.0))
            ends[kind, m, stage] = clock[stage] = start + times[m] * (1 if kind == "f" else 2)
            at[stage] += 1
            moved = True
        assert moved
    return max(clock)


class TestOrder:
    def test_dear_ones_stand_in_the_middle_on_every_rank(self):
        costs = np.array([5, 1, 4, 2, 3, 50, 10, 40, 20, 30])
        turn = order_microbatches(costs, np.repeat([0, 1], 5), 2)
        for rank in (0, 1):
            mine = costs[rank * 5 : rank * 5 + 5]
            in_turn = mine[np.argsort(turn[rank * 5 : rank * 5 + 5])]
            assert (in_turn // (9 * rank + 1)).tolist() == [2, 4, 5, 3, 1]

    def test_falling(self):
        turn = order_microbatches([1, 3, 2, 7], [0, 0, 0, 1], 2, "falling")
        assert turn.tolist() == [2, 0, 1, 0]

    def test_same_turn_same_standing(self):
        costs = np.random.default_rng(0).lognormal(0, 1, 256)
        rank = assign("local_search", costs, 32, per_rank=8)
        turn = order_microbatches(costs, rank, 32)
        for r in range(32):
            assert sorted(turn[rank == r]) == list(range(8))
        grid = np.zeros((32, 8))
        grid[rank, turn] = costs
        arrival = np.zeros((32, 8))
        arrival[rank[np.argsort(rank, kind="stable")], np.tile(np.arange(8), 32)] = costs[
            np.argsort(rank, kind="stable")
        ]
        assert grid.max(axis=0).sum() < 0.8 * arrival.max(axis=0).sum()

    def test_free_turns_are_the_outermost(self):
        turn = order_microbatches([9, 8, 7, 6, 5, 9, 8], [0, 0, 0, 0, 0, 1, 1], 2)
        assert sorted(turn[:5]) == [0, 1, 2, 3, 4]
        assert turn[5:].tolist() == [2, 1]

    def test_what_waits_has_no_turn(self):
        assert order_microbatches([2, 1, 3], [0, -1, 0], 1, "falling").tolist() == [1, -1, 0]
        assert order_microbatches([], [], 3).tolist() == []

    def test_a_pipeline_is_faster_with_dear_ones_in_the_middle(self):
        ends, middle, falling = [], [], []
        for seed in range(40):
            costs = np.random.default_rng(seed).lognormal(0, 0.8, 12)
            turn = order_microbatches(costs, np.zeros(12, int), 1)
            for times, shape in ((middle, costs[np.argsort(turn)]), (falling, np.sort(costs)[::-1])):
                times.append(one_forward_one_backward(shape.tolist(), 4))
            rising = np.sort(costs)
            valley = [*rising[::-1][::2], *rising[::2]]  # dear ones at both ends
            ends.append(one_forward_one_backward(valley, 4))
        assert np.mean(middle) < 0.97 * np.mean(falling)
        assert np.mean(middle) < 0.97 * np.mean(ends)

    @pytest.mark.parametrize(
        ("arguments", "found"),
        [
            (([1.0], [0, 1], 2), r"\(1,\) costs for \(2,\) ranks"),
            (([1.0, 1.0], [0, 2], 2), "item 1 is on rank 2; ranks are -1 to 1"),
            (([1.0], [0], 1, "rising"), "'rising'; known: middle, falling"),
        ],
    )
    def test_what_is_impossible_is_named(self, arguments, found):
        with pytest.raises(ValueError, match=found):
            order_microbatches(*arguments)


class TestLossWeights:
    def test_the_gradient_is_that_of_all_tokens(self):
        """A loss of w * x for a token of value x has gradient x: its mean over all tokens is to come out."""
        rng = np.random.default_rng(0)
        tokens = rng.integers(1, 50, 11)
        rank = np.array([0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2])
        values = [rng.normal(size=count) for count in tokens]
        weights = loss_weights(tokens, rank, 3)
        on_rank = [
            sum(w * v.mean() for w, v, r in zip(weights, values, rank, strict=True) if r == k)
            for k in range(3)
        ]
        assert np.mean(on_rank) == pytest.approx(np.concatenate(values).mean())

    def test_equal_work_has_weight_one_over_the_microbatches(self):
        assert loss_weights([5] * 6, [0, 0, 0, 1, 1, 1], 2) == pytest.approx(1 / 3)

    def test_empty_microbatches_and_those_that_wait_weigh_nothing(self):
        assert loss_weights([0, 4, 9], [0, 1, -1], 2).tolist() == [0, 2, 0]
        assert loss_weights([0, 0], [0, 1], 2).tolist() == [0, 0]
        assert loss_weights([], [], 2).tolist() == []

    @pytest.mark.parametrize(
        ("arguments", "found"),
        [
            (([1.0], [0, 1], 2), r"\(1,\) token counts for \(2,\) ranks"),
            (([1.0, -1.0], [0, 1], 2), "microbatch 1 has -1.0"),
            (([1.0, np.nan], [0, 1], 2), "microbatch 1 has nan"),
            (([1.0, 1.0], [0, 5], 2), "microbatch 1 is on rank 5"),
        ],
    )
    def test_what_is_impossible_is_named(self, arguments, found):
        with pytest.raises(ValueError, match=found):
            loss_weights(*arguments)
