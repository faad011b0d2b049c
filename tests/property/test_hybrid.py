"""Hybrid plans, run event by event by ranks that know nothing but their own list."""

import math
from itertools import count

from hypothesis import given
from hypothesis import strategies as st

from dataloader_balancers import LlmCost, hybrid


@st.composite
def tasks(draw):
    per_node = draw(st.integers(1, 4))
    ranks = per_node * draw(st.integers(1, 4))
    capacity = draw(st.sampled_from([1, 4, 16]))
    length = st.one_of(st.integers(1, capacity), st.integers(1, ranks * capacity))
    return {
        "lengths": draw(st.lists(length, max_size=14)),
        "num_ranks": ranks,
        "capacity": capacity,
        "cost": LlmCost(draw(st.sampled_from([0.0, 1.0, 64.0])), draw(st.sampled_from([0.0, 1.0]))),
        "ranks_per_node": per_node,
        "ring": draw(st.sampled_from([0.0, 2.0])),
        "mode": draw(st.sampled_from(["equal_time", "equal_tokens"])),
    }


def run(plan, ranks, seconds):
    """When each rank ends. A microbatch begins when it is next on all ranks that have it."""
    lists = [[tuple(items.tolist()) for items in plan.of_rank(rank)] for rank in range(ranks)]
    now, busy = [0.0] * ranks, [0.0] * ranks
    for _ in count():
        heads = {queue[0] for queue in lists if queue}
        if not heads:
            return now, busy
        ready = [
            item
            for item in heads
            if all(queue[0] == item for queue in lists if any(item == other for other in queue))
        ]
        assert ready, f"nobody can go on: {lists}"
        item = min(ready)
        group = [rank for rank, queue in enumerate(lists) if queue and queue[0] == item]
        start = max(now[rank] for rank in group)
        for rank in group:
            now[rank] = start + seconds(item)
            busy[rank] += seconds(item)
            lists[rank].pop(0)
    raise AssertionError


@given(tasks())
def test_ranks_that_follow_their_lists_end_when_the_plan_says(task):
    plan, lengths = hybrid(**task), task["lengths"]

    def seconds(items):
        total = 0.0
        for item in items:
            width, length = int(plan.num_ranks[item]), lengths[item]
            work = task["cost"].linear * length + task["cost"].quadratic * length**2
            total += work / width + task["ring"] * length * (width - 1) / width
        return total

    end, busy = run(plan, task["num_ranks"], seconds)
    assert all(math.isclose(a, b, abs_tol=1e-9) for a, b in zip(end, plan.end, strict=True))
    assert all(math.isclose(a, b, abs_tol=1e-9) for a, b in zip(busy, plan.busy, strict=True))
    assert plan.floor <= max(end) * (1 + 1e-9)


@given(tasks())
def test_groups_hold_their_sequences_and_keep_to_nodes(task):
    plan, per_node = hybrid(**task), task["ranks_per_node"]
    most = [0] * task["num_ranks"]
    for rank in range(task["num_ranks"]):
        for items in plan.of_rank(rank):
            tokens = [-(-task["lengths"][item] // int(plan.num_ranks[item])) for item in items.tolist()]
            assert sum(tokens) <= task["capacity"]
            assert len(tokens) == 1 or all(plan.num_ranks[item] == 1 for item in items.tolist())
            most[rank] += sum(tokens)
    assert plan.tokens.tolist() == most
    assert plan.num_microbatches.tolist() == [len(plan.of_rank(rank)) for rank in range(task["num_ranks"])]
    for item, length in enumerate(task["lengths"]):
        first, width = int(plan.first_rank[item]), int(plan.num_ranks[item])
        assert first >= 0
        assert first + width <= task["num_ranks"]
        assert width * task["capacity"] >= length
        if width <= per_node:
            assert first // per_node == (first + width - 1) // per_node
        else:
            assert first % per_node == 0
        if task["mode"] == "equal_tokens":
            assert (width - 1) * task["capacity"] < length
