"""The strategy of a job as the value that `dataloader_balancers.strategy` makes of it, and what each of its
primitives did for a plan. Pure but for the files and functions that costs come from.

The fields of `strategy:` are a short form: of this graph, whatever they are. `select.py` is its `mix` and
`pack`, over a stream of blocks and many steps; `place.py` its `distribute` and `balance`; constructors do its
`split` and `broadcast_at`. Nothing here decides anything: the trace is worked out from what they did.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from dataloader_balancers import BALANCERS, PACKERS, EncoderCost, FunctionCost, segment_sum
from dataloader_balancers.strategy import (
    Applied,
    Balance,
    Cost,
    Distribute,
    Items,
    Mix,
    Pack,
    Split,
    Strategy,
    trace,
)
from dataloader_balancers.strategy.nodes import AXES
from dataloader_svc.config.methods import NONE, known_balancer, known_packer
from dataloader_svc.config.schema import Config
from dataloader_svc.planner import place
from dataloader_svc.planner.costs import encoder_cost, llm_cost
from dataloader_svc.planner.mixture import Schedule
from dataloader_svc.planner.plan import Plan


def strategy_graph(config: Config, step: int = 0, base_dir: Path = Path()) -> Strategy:
    """Of a job, with the weights of the mixture at `step`. ConfigError: no such method, or no such cost."""
    fields, names = config.strategy, tuple(sorted(config.sources))
    pack, balance = known_packer(fields.pack, base_dir), known_balancer(fields.balance, base_dir)
    weights = Schedule.of(config.mixture.schedule, names).weights(step)
    costed = (
        Strategy()
        .mix(dict(zip(names, weights.tolist(), strict=True)), config.mixture.unit, overdraw=fields.overdraw)
        .cost(fields.cost.llm.model or llm_cost(config, base_dir), _plain(encoder_cost(config, base_dir)))
    )
    if pack != NONE:
        costed = costed.pack(
            PACKERS[pack] if ":" in pack else pack,
            sequences=config.num_sequences,
            capacity=config.sequence_length,
            limits=fields.limits.given,
        )
    return (
        costed.distribute("dp", fields.group_size)
        .balance(BALANCERS[balance] if ":" in balance else balance, counts=fields.counts)
        .split("cp", fields.context_parallel)
        .broadcast_at("tp", "pp")
    )


def _plain(encoder: EncoderCost | FunctionCost) -> EncoderCost | FunctionCost | float:
    """The cost of a patch, where that is all there is to it."""
    plain = isinstance(encoder, EncoderCost) and encoder == EncoderCost(encoder.per_patch)
    return encoder.per_patch if plain and isinstance(encoder, EncoderCost) else encoder


def plan_trace(
    graph: Strategy, plan: Plan, placement: place.Placement, mesh: place.MeshSize, strategy: place.Strategy
) -> tuple[Applied, ...]:
    """What each primitive of `graph` did for the plan on the mesh, by the configured costs. What was drawn
    counts with what had waited; of shares those that were packed.
    """
    return tuple(_applied(graph, plan, placement, mesh, strategy))


def _applied(
    graph: Strategy, plan: Plan, placement: place.Placement, mesh: place.MeshSize, strategy: place.Strategy
) -> Iterator[Applied]:
    pieces, waiting = plan.pieces, len(plan.state.waiting)
    count = len(pieces)
    llm, encoder = strategy.llm.of_documents(pieces.length), strategy.encoder.of_pieces(pieces)
    sequence = np.repeat(np.arange(plan.num_sequences), np.diff(plan.sequence_offsets))
    made = trace.Sequences(pieces.length, llm, encoder, sequence, plan.num_sequences)
    batches = np.ones((mesh.dp, mesh.cp, mesh.tp, mesh.pp), np.bool_)
    for node in graph.nodes:
        if isinstance(node, Mix):
            zeros = np.zeros(count, np.int64)
            items = Items(pieces.length, pieces.patches, zeros, pieces.source, plan.sources, {})
            drawn = trace.mix(node, items, np.ones(count, np.bool_))
            yield replace(drawn, inputs=count + waiting, outputs=count + waiting)
        elif isinstance(node, Cost):
            yield trace.cost(node, llm, encoder)
        elif isinstance(node, Pack):
            yield trace.pack(node, count + waiting, made, plan.sequence_length)
        elif isinstance(node, Distribute):
            yield trace.distribute(node, plan.num_sequences, mesh.dp)
        elif isinstance(node, Balance):
            work = np.zeros((2, len(placement.dp_rank)))
            for row, costs in enumerate((llm, encoder)):
                work[row, : plan.num_sequences] = segment_sum(costs, plan.sequence_offsets)
            rank, method = placement.dp_rank, placement.method
            done = trace.balance(node, plan.num_sequences, work[0], work[1], rank, mesh.dp, method)
            yield done if strategy.ranks is None else replace(done, figures=_of_unlike(placement.metrics))
        elif isinstance(node, Split):
            yield trace.split(node, made, mesh.cp)
        else:
            before = batches.copy()
            np.moveaxis(batches, AXES["world"].index(node.axis), 0)[1:] = False
            yield trace.broadcast(node, before, batches)


def _of_unlike(metrics: Mapping[str, float]) -> dict[str, float]:
    """Figures of `balance` where ranks are not alike: of times, not of work."""
    names = {"before": "imbalance_arrival", "after": "imbalance", "floor": "floor"}
    figures = {
        f"{phase} {name}": metrics[f"{phase}_{metric}"]
        for phase in ("llm", "encoder")
        for name, metric in names.items()
    }
    return {**figures, "llm gap": metrics["llm_gap"]}
