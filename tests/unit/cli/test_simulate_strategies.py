"""Strategies on steps whose best placement is plain, and on drawn ones."""

import itertools

import numpy as np
import pytest

from dataloader_balancers import BALANCERS
from dataloader_balancers.simulate import evenly, pipeline
from dataloader_svc.cli.simulate_files import TEXT, Lengths, draw_steps, mixture_of
from dataloader_svc.cli.simulate_strategies import Layout, Work, compare, in_groups, strategies
from dataloader_svc.errors import ConfigError


def work(llm, encoder=None):
    costs = np.array(llm, float)
    vision = np.zeros(len(costs)) if encoder is None else np.array(encoder, float)
    return Work(costs, vision, costs.astype(np.int64))


def ticking():
    """A clock that goes on a second with each look."""
    seconds = itertools.count()
    return lambda: float(next(seconds))


def test_every_balancer_stands_beside_arrival_and_tokens():
    names = list(strategies())
    assert names[:2] == ["arrival", "tokens"]
    assert set(BALANCERS) < set(names)


def test_a_step_by_hand():
    """Two ranks: 6 and 2 arrive on the first, 1 and 1 on the second."""
    outcome = compare([work([6, 1, 2, 1])], Layout(2), ticking())
    arrival, lpt = outcome.rows["arrival"], outcome.rows["lpt"]
    assert arrival.llm == 8 / 5
    assert arrival.slowdown == pytest.approx(8 / 5)
    assert arrival.gap_to_floor == pytest.approx(8 / 6 - 1)
    assert arrival.idle == pytest.approx(1 - 10 / 16)
    assert arrival.encoder == 1.0
    assert arrival.seconds == 1.0
    assert lpt.llm == outcome.floor["llm"] == 6 / 5
    assert lpt.gap_to_floor == 0.0
    assert outcome.rows["cut"].llm == pytest.approx(1.0)
    assert outcome.rows["hybrid"].llm == pytest.approx(1.0)
    assert outcome.bindings == {"item": 1}
    assert list(outcome.remedies) == ["cut"]
    assert outcome.remedies["cut"][1] == pytest.approx(1 / 6)


def test_two_placements_balance_what_one_can_only_trade():
    """The dear text has the only picture that matters."""
    outcome = compare([work([8, 4, 4, 1, 1, 1], [4, 0, 0, 4, 4, 4])], Layout(2), ticking())
    assert outcome.rows["two_placements"].encoder == 1.0
    assert outcome.rows["two_placements"].llm <= outcome.rows["two_phase"].llm


def test_counts_may_be_equal_or_free():
    steps = [work([6, 1, 1, 1, 1, 1])]
    free, equal = (
        compare(steps, Layout(2, equal_counts=each), ticking()).rows["lpt"] for each in (False, True)
    )
    assert free.llm == 6 / 5.5
    assert equal.llm == 8 / 5.5


def test_groups_balance_among_themselves():
    layout = Layout(4, group_size=2)
    step = work([9, 1, 1, 1, 9, 1, 1, 1])
    placed = in_groups(strategies()["lpt"], step, layout, None)
    assert sorted(placed.llm.tolist()) == sorted(step.llm.tolist())
    # items arrive on ranks 0 1 2 3 0 1 2 3: both dear ones in the first group
    assert set(placed.llm_rank[placed.llm == 9].tolist()) == {0, 1}
    assert np.bincount(placed.llm_rank, minlength=4).tolist() == [2, 2, 2, 2]
    assert compare([step], layout, ticking()).rows["lpt"].llm == 10 / 6


def test_groups_that_do_not_divide_are_refused():
    with pytest.raises(ConfigError, match="--group-size 3 does not divide --dp 4"):
        Layout(4, group_size=3)


def test_a_pipeline_has_a_bubble_that_equal_work_has_too():
    outcome = compare([work([1] * 16)], Layout(4, pp=4), ticking())
    row = outcome.rows["lpt"]
    assert row.slowdown == pytest.approx(1.0)
    assert row.bubble == row.idle == pytest.approx(3 / 7)
    chunked = compare([work([1] * 16)], Layout(4, pp=4, chunks=2), ticking()).rows["lpt"]
    assert chunked.bubble == pytest.approx(3 / 11)


def test_dear_microbatches_are_in_the_middle_unless_they_come_as_they_come():
    """At the ends they fill and drain the pipeline while all other stages wait."""
    ends, middle = [9, 1, 1, 1, 1, 1, 1, 9], [1, 1, 1, 9, 9, 1, 1, 1]
    rows = compare([work(ends)], Layout(1, pp=4), ticking()).rows
    as_come, arranged, equal = (
        float(pipeline(evenly(np.array(costs, float), 4), 4).time) for costs in (ends, middle, [3] * 8)
    )
    assert arranged < as_come
    assert rows["arrival"].slowdown == pytest.approx(as_come / equal)
    assert rows["lpt"].slowdown == pytest.approx(arranged / equal)


def test_nothing_that_costs_is_even():
    outcome = compare([work([0, 0, 0, 0])], Layout(2), ticking())
    assert {row.llm for row in outcome.rows.values()} == {1.0}
    assert {row.slowdown for row in outcome.rows.values()} == {1.0}


LENGTHS = Lengths(
    {"charts": np.array([100, 200, 300]), "pages": np.array([5000])},
    {"charts": np.array([1, 2, 3]), "pages": np.array([0])},
)


def test_draws_keep_a_row_together_and_depend_on_seed_and_step_alone():
    steps = list(draw_steps(LENGTHS, {"charts": 0.5, TEXT: 0.5}, 400, 3, tile_cost=1.0))
    again = list(draw_steps(LENGTHS, {"charts": 0.5, TEXT: 0.5}, 400, 1, tile_cost=1.0))
    assert again[0].tokens.tolist() == steps[0].tokens.tolist() != steps[1].tokens.tolist()
    charts = steps[0].encoder > 0
    assert 150 < charts.sum() < 250
    assert np.array_equal(steps[0].tokens[charts], 100 * steps[0].encoder[charts])
    other = next(iter(draw_steps(LENGTHS, {"charts": 0.5, TEXT: 0.5}, 400, 1, seed=1)))
    assert other.tokens.tolist() != steps[0].tokens.tolist()


def test_the_longest_sequence_and_context_parallel_ranks_share_what_is_drawn():
    whole = next(iter(draw_steps(LENGTHS, {"pages": 1.0}, 4, 1)))
    short = next(iter(draw_steps(LENGTHS, {"pages": 1.0}, 4, 1, sequence_length=1000, cp=2)))
    assert whole.tokens.tolist() == [5000] * 4
    assert short.tokens.tolist() == [1000] * 4
    assert short.llm.tolist() == [(24_576 * 1000 + 1000**2) / 2] * 4


def test_a_file_is_mixed_by_rows_and_names_what_it_lacks():
    assert mixture_of(LENGTHS, None) == {"charts": 0.75, "pages": 0.25}
    assert mixture_of(LENGTHS, {"charts": 1.0, TEXT: 3.0}) == {"charts": 0.25, TEXT: 0.75}
    with pytest.raises(ConfigError, match="no dataset 'chart'; the file has charts, pages, text"):
        mixture_of(LENGTHS, {"chart": 1.0})
    with pytest.raises(ConfigError, match="all weights are 0"):
        mixture_of(LENGTHS, {"charts": 0.0})
