"""Random streams, spans and rows, beside slow and obvious models of cutting, padding and waiting."""

import itertools

import numpy as np
from hypothesis import assume, given
from hypothesis import strategies as st

from dataloader_balancers.pack import (
    LAYOUTS,
    PACKERS,
    Limit,
    Queue,
    Spans,
    concatenate,
    level,
    outliers,
    queued_step,
)
from dataloader_balancers.pack.leveling import _allowance
from dataloader_balancers.pack.pieces import Task
from dataloader_balancers.pack.search import searched

lengths_ = st.lists(st.integers(1, 30), max_size=20)


@st.composite
def streams(draw):
    """(lengths, capacity, protected tokens as (document, start, length), ascending and apart)."""
    lengths, capacity = draw(lengths_), draw(st.integers(1, 12))
    spans = []
    for document, length in enumerate(lengths):
        at = draw(st.integers(0, 6))
        while at < length and draw(st.booleans()):
            size = draw(st.integers(1, min(capacity, length - at)))
            spans.append((document, at, size))
            at += size + draw(st.integers(0, 6))
    return lengths, capacity, spans


def naive_concatenation(lengths, capacity, spans):
    """Token by token: (document, token) of each sequence; the first of a span needs room for all."""
    begins = {(document, start): size for document, start, size in spans}
    sequences = [[]]
    for document, length in enumerate(lengths):
        for token in range(length):
            if len(sequences[-1]) + begins.get((document, token), 1) > capacity:
                sequences.append([])
            sequences[-1].append((document, token))
    return [tokens for tokens in sequences if tokens]


@given(streams())
def test_concatenation_is_token_after_token(stream):
    lengths, capacity, spans = stream
    protected = Spans(*(np.array(column, int) for column in zip(*spans, strict=True))) if spans else None
    made = concatenate(np.array(lengths, int), capacity, protected=protected)
    sequences = [[] for _ in range(int(made.sequence.max(initial=-1)) + 1)]
    for document, start, length, sequence in zip(
        made.document.tolist(), made.start.tolist(), made.length.tolist(), made.sequence.tolist(), strict=True
    ):
        sequences[sequence] += [(document, token) for token in range(start, start + length)]
    expected = naive_concatenation(lengths, capacity, spans)
    # A span is only moved where the cut would run through it: earlier sequences may be a little fuller.
    assert list(itertools.chain(*sequences)) == list(itertools.chain(*expected))
    assert all(len(tokens) <= capacity for tokens in sequences)
    where = {token: number for number, tokens in enumerate(sequences) for token in tokens}
    for document, start, size in spans:
        assert len({where[document, start + i] for i in range(size)}) == 1
    if not spans:
        assert sequences == expected


@given(lengths_, st.integers(30, 90), st.integers(1, 5))
def test_rows_are_cut_as_late_as_can_be(lengths, capacity, most_rows):
    for name, layout in LAYOUTS.items():
        order = range(len(lengths))
        if name == "bucketed":
            order = sorted(order, key=lambda i: (-lengths[i], i))
        batches = []
        for i in order:
            grown = [*(batches[-1] if batches else []), i]
            if (
                not batches
                or len(grown) > most_rows
                or len(grown) * max(lengths[j] for j in grown) > capacity
            ):
                batches.append([i])
            else:
                batches[-1] = grown
        made = layout(lengths, capacity, most_rows=most_rows)
        assert [np.flatnonzero(made.batch == b).tolist() for b in range(len(batches))] == [
            sorted(batch) for batch in batches
        ]
        assert made.width.tolist() == [max(lengths[i] for i in batch) for batch in batches]


@st.composite
def waits(draw):
    """(lengths, ages, costs, sequences, mean length), whole numbers."""
    lengths = draw(st.lists(st.integers(1, 40), min_size=1, max_size=12))
    count = len(lengths)
    ages = draw(st.lists(st.integers(0, 4), min_size=count, max_size=count))
    costs = [n + draw(st.integers(0, 2)) * n * n for n in lengths]
    return lengths, ages, costs, draw(st.integers(1, 4)), draw(st.integers(5, 40))


@given(
    waits(),
    st.sampled_from([0.0, 0.1, 0.5]),
    st.sampled_from([0.5, 3.0, 20.0]),
    st.sampled_from([0, 3, None]),
)
def test_what_goes_is_the_run_of_neighbours_that_gains_most(task, tolerance, patience, spare):
    lengths, ages, costs, count, mean_length = task
    longest = None if spare is None else mean_length + spare
    rules = {"longest": longest, "tolerance": tolerance, "patience": patience, "max_age": 3}
    held = outliers(lengths, ages, costs, count, mean_length, **rules).tolist()
    assert not any(wait and age >= 3 for wait, age in zip(held, ages, strict=True))
    line = sorted((i for i, age in enumerate(ages) if age < 3), key=lambda i: (-costs[i], -lengths[i], i))
    first = len(line)
    for at in reversed(range(len(line))):
        part = line[at:]
        rate = sum(costs[i] for i in part) / sum(lengths[i] for i in part)
        edge = (1 + tolerance) * rate * mean_length
        assume(abs(costs[line[at]] - edge) > 1e-6 * edge)  # a tie that rounding decides is no case
        if costs[line[at]] < edge:
            first = at
    assert not any(held[i] for i in line[first:])
    if first == len(line):
        return
    rate = sum(costs[i] for i in line[first:]) / sum(lengths[i] for i in line[first:])
    must = [i for i, age in enumerate(ages) if age >= 3]
    room = count * mean_length - sum(lengths[i] for i in must)

    def gain(run):
        """Steps that a token of a step has waited, less the steps that the step's lost time is worth."""
        taken, cost = sum(lengths[i] for i in run), sum(costs[i] for i in run)
        total = cost + rate * (max(room, 0) - taken) + sum(costs[i] for i in must)
        dearest = costs[run[0]]
        if longest is not None:
            beside = max(0, room - taken - (count - len(run)) * longest)
            dearest = max(dearest, (cost + rate * beside) / len(run))
        late = max(0.0, dearest * count / total - 1)
        return sum(lengths[i] * (ages[i] + 1) for i in run) / (count * mean_length) - patience * late

    runs = [line[low:high] for low, high in itertools.combinations(range(first + 1), 2)]
    allowed = [run for run in runs if len(run) <= count and sum(lengths[i] for i in run) <= room]
    gone = [i for i in line[:first] if not held[i]]
    assert not gone or gone in allowed
    best = max(map(gain, allowed), default=0.0)
    assert (gain(gone) if gone else 0.0) >= max(best, 0.0) - 1e-9


@given(st.lists(st.lists(st.integers(1, 40), max_size=8), min_size=1, max_size=6), st.integers(1, 4))
def test_a_queue_loses_and_doubles_nothing(arrivals, count):
    queue, placed, drawn = Queue(), [], []
    for number, lengths in enumerate(arrivals):
        keys = range(len(drawn), len(drawn) + len(lengths))
        step = queued_step(
            queue,
            np.array(keys, int),
            np.array(lengths, int),
            lambda tokens: tokens**2.0,
            count,
            40,
            50,
            more=number + 1 < len(arrivals),
        )
        again = queued_step(
            Queue.from_json(queue.to_json()),
            np.array(keys, int),
            np.array(lengths, int),
            lambda tokens: tokens**2.0,
            count,
            40,
            50,
            more=number + 1 < len(arrivals),
        )
        assert again.keys.tolist() == step.keys.tolist()
        assert again.queue == step.queue
        drawn += lengths
        placed += step.keys.tolist()
        assert sorted([*placed, *step.queue.keys]) == list(range(len(drawn)))
        assert [drawn[key] for key in step.queue.keys] == list(step.queue.lengths)
        held = np.bincount(step.sequence, [drawn[key] for key in step.keys], count)
        assert held.max(initial=0) <= 50
        queue = step.queue


@given(
    st.lists(st.tuples(st.integers(0, 30), st.integers(0, 50)), min_size=1, max_size=8), st.integers(0, 200)
)
def test_water_rises_to_one_level(grounds, tokens):
    room, load = (np.array(column) for column in zip(*grounds, strict=True))
    given_ = _allowance(room, load.astype(float), tokens)
    assert np.all(given_ <= room)
    assert int(given_.sum()) <= tokens
    levels, most = range(301), int(room.sum())
    rise = [[min(max(surface - ground, 0), r) for r, ground in grounds] for surface in levels]
    full = [taken for taken in rise if sum(taken) <= tokens]
    assert given_.tolist() == (room.tolist() if tokens >= most else full[-1])


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(0, 3)), min_size=2, max_size=6), st.integers(1, 3))
def test_a_handful_is_packed_as_well_as_can_be(pieces, count):
    sizes, weights = ([pair[i] for pair in pieces] for i in (0, 1))
    costs = [float(size * size) for size in sizes]
    task = Task.checked(sizes, count, 10, None, costs, [Limit("patches", weights, 4)])
    result = searched(task, np.full(len(sizes), -1, np.int32)).tolist()

    def value(placement):
        loads = [[0, 0, 0.0] for _ in range(count)]
        for place, size, weight, cost in zip(placement, sizes, weights, costs, strict=True):
            if place >= 0:
                loads[place] = [a + b for a, b in zip(loads[place], (size, weight, cost), strict=True)]
        if any(tokens > 10 or patches > 4 for tokens, patches, _ in loads):
            return None
        return -sum(tokens for tokens, _, _ in loads), max(cost for _, _, cost in loads)

    best = min(filter(None, map(value, itertools.product(range(-1, count), repeat=len(sizes)))))
    found = value(result)
    assert found[0] == best[0] or -found[0] >= 0.998 * min(sum(sizes), 10 * count)
    assert found[0] != best[0] or found[1] <= 1.002 * best[1]


@given(st.lists(st.integers(1, 30), min_size=1, max_size=12), st.integers(1, 4))
def test_no_packing_is_more_level_than_its_floor(lengths, count):
    costs = [float(n * n) for n in lengths]
    for packer in PACKERS.values():
        result = packer(lengths, count, 30, None, costs)
        made = level(lengths, result, count, 30, costs)
        assert made.gap >= -1e-12
        assert made.range >= made.range_floor * (1 - 1e-12)
        placed = sum(n for n, s in zip(lengths, result, strict=True) if s >= 0)
        assert made.fill == placed / (count * 30)
