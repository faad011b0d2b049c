"""Random work for packers, balancers and cuts, beside slow and obvious models of each."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dataloader_balancers import (
    BALANCERS,
    CUTS,
    PACKERS,
    Limit,
    LlmCost,
    floor,
    gap,
    imbalance,
    loads,
    sequence_cost,
    two_phase_lpt,
)
from dataloader_balancers.assign import ORDERED
from dataloader_balancers.assign.items import smallest
from dataloader_balancers.assign.lpt import _exchange, _lpt_rounds

packers = pytest.mark.parametrize("packer", PACKERS.values(), ids=PACKERS)
balancers = pytest.mark.parametrize("balancer", BALANCERS.values(), ids=BALANCERS)

# Whole numbers, so that sums are exact in any order.
work = st.lists(st.integers(0, 50), max_size=40)


@st.composite
def packing(draw):
    """(lengths, number of sequences, capacity, priorities); often tight, often with many alike."""
    capacity = draw(st.sampled_from([1, 2, 8, 30, 1000]))
    length = st.one_of(
        st.integers(1, capacity),
        st.sampled_from([1, capacity, capacity // 2 + 1]).map(lambda n: min(n, capacity)),
    )
    lengths = draw(st.lists(length, max_size=60))
    ages = draw(st.lists(st.integers(0, 3), min_size=len(lengths), max_size=len(lengths)))
    return lengths, draw(st.integers(1, 12)), capacity, ages


def naive_packing(task, choose):
    """Oldest first, then longest: into the one of the sequences with room that `choose` names."""
    lengths, count, capacity, ages = task
    rooms = [capacity] * count
    result = [-1] * len(lengths)
    for piece in sorted(range(len(lengths)), key=lambda i: (-ages[i], -lengths[i], i)):
        open_ = [place for place in range(count) if rooms[place] >= lengths[piece]]
        if open_:
            result[piece] = choose(open_, rooms)
            rooms[result[piece]] -= lengths[piece]
    return result


def naive_loads(result, values, count):
    total = [0] * count
    for place, value in zip(result, values, strict=True):
        if place >= 0:
            total[place] += value
    return total


@given(packing())
def test_first_fit_is_first_fit(task):
    assert PACKERS["first_fit"](*task).tolist() == naive_packing(task, lambda open_, _: open_[0])


@given(packing())
def test_best_fit_is_best_fit(task):
    expected = naive_packing(task, lambda open_, rooms: min(open_, key=lambda place: (rooms[place], place)))
    assert PACKERS["best_fit"](*task).tolist() == expected


@packers
@given(task=packing(), data=st.data())
def test_caps_hold_and_nobody_waits_behind_a_younger(packer, task, data):
    lengths, count, capacity, ages = task
    weight = st.lists(st.integers(0, 5), min_size=len(lengths), max_size=len(lengths))
    patches = data.draw(weight)
    costs = data.draw(weight)
    result = packer(lengths, count, capacity, ages, costs, limits=[Limit("patches", patches, 5)]).tolist()
    assert len(result) == len(lengths)
    assert all(-1 <= place < count for place in result)
    assert max(naive_loads(result, lengths, count)) <= capacity
    assert max(naive_loads(result, patches, count)) <= 5
    for piece in [i for i, place in enumerate(result) if place < 0]:
        older = [i for i, age in enumerate(ages) if age >= ages[piece]]
        tokens, seen = [[0] * count, [0] * count]
        for i in older:
            if result[i] >= 0:
                tokens[result[i]] += lengths[i]
                seen[result[i]] += patches[i]
        assert all(
            t + lengths[piece] > capacity or p + patches[piece] > 5 for t, p in zip(tokens, seen, strict=True)
        )


@given(packing(), st.data())
def test_balanced_packing_costs_neither_fill_nor_time(task, data):
    lengths, count, capacity, ages = task
    costs = [length + data.draw(st.integers(0, 3)) * length * length for length in lengths]
    ours = PACKERS["balanced"](lengths, count, capacity, ages, costs).tolist()
    theirs = PACKERS["best_fit"](lengths, count, capacity, ages).tolist()
    assert sum(naive_loads(ours, lengths, count)) >= 0.995 * sum(naive_loads(theirs, lengths, count))
    more = sum(naive_loads(ours, lengths, count)) > sum(naive_loads(theirs, lengths, count))
    assert more or max(naive_loads(ours, costs, count)) <= max(naive_loads(theirs, costs, count))


@packers
@given(task=packing(), data=st.data())
def test_packing_does_not_see_the_order_of_arrival(packer, task, data):
    lengths, count, capacity, ages = task
    order = data.draw(st.permutations(range(len(lengths))))

    def contents(indices):
        pieces, old = [lengths[i] for i in indices], [ages[i] for i in indices]
        result = packer(pieces, count, capacity, old)
        where = zip(result.tolist(), pieces, old, strict=True)
        return sorted(where)

    assert contents(order) == contents(range(len(lengths)))


def naive_lpt(costs, ranks, limit):
    held, counts = [0] * ranks, [0] * ranks
    result = [-1] * len(costs)
    for item in sorted(range(len(costs)), key=lambda i: (-costs[i], i)):
        rank = min((r for r in range(ranks) if counts[r] < limit), key=lambda r: (held[r], counts[r], r))
        held[rank] += costs[item]
        counts[rank] += 1
        result[item] = rank
    return result


@given(work, st.integers(1, 6))
def test_lpt_is_lpt(costs, ranks):
    assert BALANCERS["lpt"](costs, ranks).tolist() == naive_lpt(costs, ranks, len(costs))


@given(work, st.integers(1, 6), st.integers(0, 3))
def test_swaps_only_lower_the_dearest_rank(costs, ranks, slack):
    limit = -(-len(costs) // ranks) + slack
    ours = BALANCERS["lpt"](costs, ranks, limit).tolist()
    greedy = naive_lpt(costs, ranks, limit)
    assert max(naive_loads(ours, costs, ranks)) <= max(naive_loads(greedy, costs, ranks))
    assert max(ours.count(rank) for rank in range(ranks)) <= limit


@given(
    st.lists(st.integers(0, 50), min_size=1, max_size=9), st.lists(st.integers(0, 50), min_size=1, max_size=9)
)
def test_a_swap_is_the_best_of_all_pairs(dear, cheap):
    values = np.array([*dear, *cheap], float)
    mine, theirs = np.arange(len(dear)), np.arange(len(dear), len(values))
    dear_load, cheap_load = max(sum(dear), sum(cheap)), min(sum(dear), sum(cheap))

    def after(one, two):
        return max(dear_load - values[one] + values[two], cheap_load + values[one] - values[two])

    found, one, two = _exchange(values, mine, theirs, dear_load, cheap_load)
    assert found == after(one, two) == min(after(*pair) for pair in itertools.product(mine, theirs))


@given(work, st.integers(1, 6))
def test_arrival_and_snake_deal(costs, ranks):
    assert BALANCERS["arrival"](costs, ranks).tolist() == [i % ranks for i in range(len(costs))]
    there_and_back = itertools.cycle([*range(ranks), *reversed(range(ranks))])
    expected = {
        item: next(there_and_back) for item in sorted(range(len(costs)), key=lambda i: (-costs[i], i))
    }
    result = BALANCERS["snake"](costs, ranks)
    assert dict(enumerate(result.tolist())) == expected
    held = naive_loads(result.tolist(), costs, ranks)
    assert max(held) - min(held) <= max(costs, default=0)


@balancers
@given(costs=work, ranks=st.integers(1, 6), equal=st.booleans())
def test_items_are_kept_counts_hold_and_no_rank_is_idle(balancer, costs, ranks, equal):
    limit = -(-len(costs) // ranks) if equal else None
    result = balancer(costs, ranks, limit).tolist()
    counts = [result.count(rank) for rank in range(ranks)]
    assert sum(counts) == len(costs)
    assert sum(count > 0 for count in counts) == min(ranks, len(costs))
    if equal:
        assert max(counts) <= limit


@pytest.mark.parametrize("name", sorted(set(BALANCERS) - ORDERED))
@given(costs=work, ranks=st.integers(1, 6), equal=st.booleans(), data=st.data())
def test_loads_do_not_see_the_order_of_arrival(name, costs, ranks, equal, data):
    limit = -(-len(costs) // ranks) if equal else None
    shuffled = data.draw(st.permutations(costs))
    ours, theirs = (
        naive_loads(BALANCERS[name](items, ranks, limit).tolist(), items, ranks)
        for items in (costs, shuffled)
    )
    assert ours == theirs


@settings(max_examples=60)
@given(st.lists(st.integers(0, 30), min_size=1, max_size=7), st.integers(1, 3))
def test_against_the_best_of_all_placements(costs, ranks):
    best = min(
        max(naive_loads(placement, costs, ranks))
        for placement in itertools.product(range(ranks), repeat=len(costs))
    )
    bound = floor(costs, ranks)
    assert bound.value <= best * (1 + 1e-12)
    assert bound.value >= max(sum(costs) / ranks, max(costs)) * (1 - 1e-12)
    for name, balancer in BALANCERS.items():
        held = loads(costs, balancer(costs, ranks), ranks)
        assert held.tolist() == naive_loads(balancer(costs, ranks).tolist(), costs, ranks)
        assert held.max() >= best
        assert gap(held, bound) >= -1e-12
        if name == "lpt":
            assert held.max() <= (4 / 3 - 1 / (3 * ranks)) * best + 1e-9


@given(st.lists(st.integers(0, 9), min_size=8, max_size=80), st.integers(8, 40))
def test_rounds_keep_their_bound(costs, ranks):
    values = np.sort(np.array(costs, float))[::-1]
    held = naive_loads(_lpt_rounds(values, ranks, len(values)).tolist(), values.tolist(), ranks)
    assert max(held) <= 8 / 7 * sum(costs) / ranks + max(costs) + 1e-6
    limit = -(-len(costs) // ranks)
    assert np.bincount(_lpt_rounds(values, ranks, limit)).max() <= limit


@given(st.lists(st.integers(0, 5), min_size=1, max_size=60), st.data())
def test_the_smallest_are_chosen_by_index_among_ties(values, data):
    size = data.draw(st.integers(1, len(values)))
    expected = sorted(range(len(values)), key=lambda i: (values[i], i))[:size]
    assert smallest(np.array(values, float), size).tolist() == expected


@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), max_size=30), st.integers(1, 6), st.booleans()
)
def test_two_phases_keep_items_and_counts(pairs, ranks, equal):
    llm, encoder = [a for a, _ in pairs], [b for _, b in pairs]
    limit = -(-len(pairs) // ranks) if equal else None
    result = two_phase_lpt(llm, encoder, ranks, limit).tolist()
    counts = [result.count(rank) for rank in range(ranks)]
    assert sum(counts) == len(pairs)
    assert not equal or max(counts) <= limit


def naive_zigzag(start, length, cp):
    """Tokens of one document by rank, and those left over in its middle."""
    chunk = length // (2 * cp)
    tokens = list(range(start, start + length))
    ranks = [
        tokens[r * chunk : (r + 1) * chunk] + tokens[length - (r + 1) * chunk : length - r * chunk]
        for r in range(cp)
    ]
    return ranks, tokens[cp * chunk : length - cp * chunk]


@given(st.lists(st.integers(0, 40), max_size=12), st.integers(1, 6))
def test_per_document_is_a_zigzag_with_the_rest_dealt(lengths, cp):
    bounds = [0, *itertools.accumulate(lengths)]
    expected = [[] for _ in range(cp)]
    turns = itertools.cycle(range(cp))
    for start, length in zip(bounds, lengths, strict=False):
        ranks, rest = naive_zigzag(start, length, cp)
        for part, tokens in zip(expected, ranks, strict=True):
            part += tokens
        for token in rest:
            expected[next(turns)].append(token)
    parts = CUTS["per_document"](np.array(bounds, np.int32), cp)
    assert [part.tolist() for part in parts] == [sorted(part) for part in expected]
    sizes = [len(part) for part in parts]
    assert sum(sizes) == bounds[-1]
    assert max(sizes) - min(sizes) <= (1 if bounds[-1] % cp else 0)


@given(st.integers(1, 6), st.integers(0, 9), st.data())
def test_per_sequence_is_one_zigzag(cp, chunk, data):
    total = 2 * cp * chunk
    inner = data.draw(st.lists(st.integers(0, total), max_size=4).map(sorted))
    parts = CUTS["per_sequence"](np.array([0, *inner, total], np.int32), cp)
    expected, rest = naive_zigzag(0, total, cp)
    assert rest == []
    assert [part.tolist() for part in parts] == expected


@given(st.lists(st.lists(st.integers(0, 100), max_size=5), max_size=8), st.integers(0, 3), st.integers(0, 3))
def test_cost_of_a_sequence_is_the_sum_over_its_documents(sequences, linear, quadratic):
    lengths = [length for documents in sequences for length in documents]
    offsets = [0, *itertools.accumulate(len(documents) for documents in sequences)]
    expected = [sum(linear * n + quadratic * n * n for n in documents) for documents in sequences]
    assert sequence_cost(lengths, offsets, LlmCost(linear, quadratic)).tolist() == expected


@given(work)
def test_imbalance_is_max_over_mean(load):
    expected = max(load) * len(load) / sum(load) if sum(load) else 1.0
    assert imbalance(load) == pytest.approx(expected)
