"""Cuts over cp ranks beside models of them that go token by token."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dataloader_balancers import Kernel, LlmCost, choose_cut, cut_load
from dataloader_balancers.context_parallel import per_document

documents = st.lists(st.one_of(st.integers(0, 6), st.integers(0, 300)), max_size=8)


def bounds_of(lengths):
    return np.cumsum([0, *lengths])


def naive_load(lengths, part, tile):
    """(tokens, pairs, pairs in whole tiles, runs), token by token."""
    place = [(document, k) for document, length in enumerate(lengths) for k in range(length)]
    runs = []
    for token in part:
        document, k = place[token]
        if runs and runs[-1][0] == document and runs[-1][1][-1] == k - 1:
            runs[-1][1].append(k)
        else:
            runs.append((document, [k]))
    pairs = sum(k + 1 for _, run in runs for k in run)
    tiles = 0
    for _, run in runs:
        for at in range(0, len(run), tile):
            keys = run[at : at + tile][-1] + 1
            tiles += tile * len(range(0, keys, tile)) * tile
    return len(part), pairs, tiles, len(runs)


@given(documents, st.integers(1, 5), st.sampled_from([1, 2, 16, 64]), st.sampled_from([1, 3, 16, 128]))
def test_loads_are_those_counted_token_by_token(lengths, cp, multiple, tile):
    cost = LlmCost(3.0, 0.25)
    parts = per_document(bounds_of(lengths), cp, multiple)
    load = cut_load(bounds_of(lengths), parts, cost, Kernel(tile=tile, per_run=7.0))
    for rank, part in enumerate(parts):
        tokens, pairs, tiles, runs = naive_load(lengths, part.tolist(), tile)
        assert (load.tokens[rank], load.pairs[rank], load.tiles[rank], load.runs[rank]) == (
            tokens,
            pairs,
            tiles,
            runs,
        )
        assert load.time[rank] == 3.0 * tokens + 0.5 * tiles + 7.0 * runs


@given(documents, st.integers(1, 4), st.sampled_from([1, 3, 16]), st.integers(1, 200))
def test_a_window_bounds_the_keys_that_are_computed(lengths, cp, tile, window):
    """Tile by tile: those of the keys that any of its queries sees."""
    cost = LlmCost(0.0, 0.0, ((window, 0.5),))
    parts = per_document(bounds_of(lengths), cp)
    place = [k for length in lengths for k in range(length)]
    for rank, time in enumerate(cut_load(bounds_of(lengths), parts, cost, Kernel(tile=tile)).time):
        computed = 0
        run = []
        for at, token in enumerate(parts[rank].tolist()):
            run.append(place[token])
            after = parts[rank][at + 1] if at + 1 < len(parts[rank]) else -1
            if after != token + 1 or place[after] == 0 or len(run) == tile:
                seen = {key // tile for k in run for key in range(max(0, k + 1 - window), k + 1)}
                computed += len(seen) * tile * tile
                run = [] if len(run) == tile or after != token + 1 or place[after] == 0 else run
        assert time == computed


@given(documents, st.integers(1, 5), st.sampled_from([2, 3, 16, 64]))
def test_multiples_keep_every_token_and_equal_counts(lengths, cp, multiple):
    bounds = bounds_of(lengths)
    parts = per_document(bounds, cp, multiple)
    assert sorted(np.concatenate(parts).tolist()) == list(range(sum(lengths)))
    sizes = [len(part) for part in parts]
    assert max(sizes) - min(sizes) <= 1
    odd = 0
    for part in parts:
        assert np.all(np.diff(part) > 0)
        begins = part[np.flatnonzero(np.diff(part, prepend=-2) != 1)]
        document = np.searchsorted(bounds, begins, side="right") - 1
        odd += np.count_nonzero((begins - bounds[document]) % multiple)
    assert odd < cp


@given(documents.filter(any), st.integers(1, 4), st.sampled_from([1, 16]), st.sampled_from([0.0, 1e3, 1e6]))
def test_the_choice_is_the_faster_one(lengths, cp, multiple, per_run):
    lengths[-1] += -sum(lengths) % (2 * cp * multiple)
    chosen = choose_cut(bounds_of(lengths), cp, LlmCost(1.0, 1.0), Kernel(16, per_run, multiple))
    assert set(chosen.loads) == {"per_document", "per_sequence"}
    assert chosen.load.dearest == min(load.time.max() for load in chosen.loads.values())
    assert sorted(np.concatenate(chosen.parts).tolist()) == list(range(sum(lengths)))
