"""Preference pairs through the planner, whatever their lengths, however often a job stops: never torn."""

from __future__ import annotations

from collections import Counter
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from dataloader_svc.config.schema import Config, Source
from dataloader_svc.errors import StateError
from dataloader_svc.planner.select import Rules
from dataloader_svc.planner.state import State
from dataloader_svc.testing.planning import PlanDriver, plan_config
from dataloader_svc.testing.scripted_loader import Sample, ScriptedSources

LENGTH = 32
TOKENS = st.lists(st.sampled_from([2, 3, 8, 15, 16, 17, 31, 32, 33, 100]), min_size=3, max_size=20)
BATCHES = st.sampled_from([{"sequences": 1}, {"sequences": 3}, {"samples": 5}])


def job(batch: dict[str, int], too_long: str, length: int, exhausted: str = "repeat") -> Config:
    """Pairs beside long texts, which are split."""
    config = plan_config(
        {"pairs": 1, "texts": 1},
        **batch,
        sequence_length=length,
        mixture={"exhausted": exhausted},
        source={"max_bad_fraction": 1.0},
    )
    values: dict[str, Any] = {"format": "jsonl", "path": "p.jsonl", "preference": {"style": "text"}}
    pairs = Source.model_validate({**values, "too_long": too_long, "max_bad_fraction": 1.0})
    return config.model_copy(update={"sources": {**config.sources, "pairs": pairs}})


@settings(deadline=None, max_examples=60)
@given(
    lengths=TOKENS,
    texts=TOKENS,
    runs=st.lists(st.tuples(BATCHES, st.integers(1, 4)), min_size=1, max_size=4),
    too_long=st.sampled_from(["drop", "truncate"]),
)
def test_a_pair_is_one_piece_of_one_sequence(
    lengths: list[int], texts: list[int], runs: list[tuple[dict[str, int], int]], too_long: str
) -> None:
    """Over runs that each go on from the JSON of the one before, with another batch."""
    if too_long == "truncate":  # by the loader: none comes here that is longer
        lengths = [min(tokens, LENGTH) for tokens in lengths]
    lengths = [*lengths, 4]
    samples = {name: [Sample(n) for n in values] for name, values in (("pairs", lengths), ("texts", texts))}
    state: State | None = None
    seen: Counter[tuple[int, int]] = Counter()
    for batch, steps in runs:
        config = job(batch, too_long, LENGTH)
        rules = Rules.of(config)
        if state is not None:
            state = State.from_json(state.to_json()).adapted(rules.names, {}, LENGTH, rules.whole)
        first = 0 if state is None else state.step
        plans = PlanDriver(config, ScriptedSources(samples, block=4), state=state).run(first + steps - 1)
        for plan in plans:
            pieces = plan.pieces
            for at in (pieces.source == plan.sources.index("pairs")).nonzero()[0].tolist():
                place = int(pieces.epoch[at]), int(pieces.position[at])
                assert (pieces.start[at], pieces.length[at]) == (0, lengths[place[1]]), "whole"
                seen[place] += 1
            for source, epoch, row in plan.skipped:
                if plan.sources[source] == "pairs":
                    assert lengths[row.position] > LENGTH
                    seen[epoch, row.position] += 1
        state = plans[-1].state
        mine = state.waiting.source == state.names.index("pairs")
        waits = state.waiting.take(mine)
        assert not waits.start.any()
        assert waits.length.tolist() == [lengths[position] for position in waits.position.tolist()]
    assert state is not None
    seen.update(zip(waits.epoch.tolist(), waits.position.tolist(), strict=True))
    reached = state.sources["pairs"]
    assert seen == Counter(
        (epoch, position)
        for epoch in range(reached.epoch + 1)
        for position in range(reached.position if epoch == reached.epoch else len(lengths))
    )


@settings(deadline=None, max_examples=30)
@given(lengths=TOKENS, shorter=st.sampled_from([8, 16, 24]))
def test_shorter_sequences_refuse_to_tear_what_waits(lengths: list[int], shorter: int) -> None:
    config = job({"sequences": 1}, "drop", LENGTH)
    samples = {"pairs": [Sample(n) for n in [*lengths, 4]], "texts": [Sample(100)]}
    state = PlanDriver(config, ScriptedSources(samples, block=4)).run(3)[-1].state
    rules = Rules.of(job({"sequences": 1}, "drop", shorter))
    waits = state.waiting.take(state.waiting.source == state.names.index("pairs"))
    try:
        after = state.adapted(rules.names, {}, shorter, rules.whole)
    except StateError:
        assert waits.length.max() > shorter
        return
    assert waits.length.max(initial=0) <= shorter
    left = after.waiting.take(after.waiting.source == after.names.index("pairs"))
    assert left.length.tolist() == waits.length.tolist()
