"""Where the pieces of a planned step go on a mesh, and why there. Pure: (plan, mesh) -> values and tables.

`explain.py` reads the plan from the log and finds the rows; nothing here asks a running job.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from dataloader_balancers import CUTS, Remedy
from dataloader_balancers.strategy import Applied
from dataloader_client.mesh import Coords, Mesh
from dataloader_svc.cli.contents import PieceKey
from dataloader_svc.cli.output import table
from dataloader_svc.cli.simulate_view import REMEDIES
from dataloader_svc.cli.step_view import SequenceView, piece_json, sequence_json
from dataloader_svc.errors import Reason
from dataloader_svc.planner.place import Placement
from dataloader_svc.planner.plan import Plan
from dataloader_svc.sample import RowRef, SampleId

_APPLIED = {
    "unequal": "ranks have unlike numbers of sequences",
    "ungroup": "sequences leave the group of ranks that they came to",
}

Ranges = tuple[tuple[int, int], ...]
"""(first, stop) of runs of tokens, counted in the document."""


@dataclass(frozen=True, slots=True)
class SkippedView:
    """A sample that was passed over since the step before. `row`: None where it can't be told."""

    sample: SampleId
    reason: str
    detail: str
    row: RowRef | None


@dataclass(frozen=True, slots=True)
class Explanation:
    """A step on a mesh.

    rank        global rank that is asked about and its place, or None for all ranks
    sequences   those that the rank gets, or all
    slices      with cp > 1 and a rank: which tokens of each piece are in its slice
    notes       sentences on what can't be told, and why
    trace       what each primitive of the strategy did, for all ranks
    remedies    what would make the step shorter than any placement of its sequences; the best first
    """

    job: str
    generation: int
    plan: Plan
    mesh: Mesh
    rank: tuple[int, Coords] | None
    balance: str
    placement: Placement
    sequences: tuple[SequenceView, ...]
    slices: Mapping[PieceKey, Ranges]
    skipped: tuple[SkippedView, ...]
    notes: tuple[str, ...]
    trace: tuple[Applied, ...] = ()
    remedies: tuple[Remedy, ...] = ()


def of_rank(
    sequences: tuple[SequenceView, ...], placement: Placement, coords: Coords | None
) -> tuple[SequenceView, ...]:
    """What a rank gets, microbatch after microbatch; all of the step where `coords` is None."""
    chosen = [s for s in sequences if coords is None or placement.dp_rank[s.number] == coords.dp]
    return tuple(
        sorted(chosen, key=lambda s: (placement.dp_rank[s.number], placement.microbatch[s.number], s.number))
    )


def cp_slices(sequences: tuple[SequenceView, ...], cp: int, cp_rank: int, cut: str) -> dict[PieceKey, Ranges]:
    """Which tokens of each piece a cp rank holds, by the cut `cut` of dataloader_balancers.CUTS.

    A sequence's end is padded to a multiple of 2 cp first, by a document of its own.
    """
    found: dict[PieceKey, Ranges] = {}
    for sequence in sequences:
        bounds = np.cumsum([0, *(piece.key.length for piece in sequence.pieces)])
        padding = -int(bounds[-1]) % (2 * cp)
        padded = np.append(bounds, bounds[-1] + padding) if padding else bounds
        index = np.asarray(CUTS[cut](padded, cp)[cp_rank], np.int64)
        for piece, low, high in zip(sequence.pieces, bounds[:-1], bounds[1:], strict=True):
            first, stop = np.searchsorted(index, (low, high))
            found[piece.key] = _ranges(index[first:stop] - int(low) + piece.key.start)
    return found


def _ranges(index: np.ndarray[Any, np.dtype[np.int64]]) -> Ranges:
    """Runs of consecutive numbers."""
    if not len(index):
        return ()
    breaks = np.flatnonzero(np.diff(index) != 1)
    firsts = index[np.concatenate([[0], breaks + 1])]
    stops = index[np.concatenate([breaks, [len(index) - 1]])] + 1
    return tuple(zip(firsts.tolist(), stops.tolist(), strict=True))


def explanation_json(explained: Explanation) -> dict[str, Any]:
    """For `--json`."""
    plan, placement = explained.plan, explained.placement
    return {
        "job": explained.job,
        "generation": explained.generation,
        "step": plan.step,
        "digest": plan.digest.hex(),
        "mesh": {axis: getattr(explained.mesh, axis) for axis in ("dp", "cp", "tp", "pp")},
        "rank": _rank_json(explained),
        "sequences": [
            {
                "dp_rank": int(placement.dp_rank[sequence.number]),
                "microbatch": int(placement.microbatch[sequence.number]),
                **sequence_json(sequence, plan.sequence_length),
                "documents": [
                    {**piece_json(piece), **_slice_json(explained, piece.key)} for piece in sequence.pieces
                ],
            }
            for sequence in explained.sequences
        ],
        "imbalance": {
            phase: {
                "placed": placement.metrics[f"{phase}_imbalance"],
                "arrival": placement.metrics[f"{phase}_imbalance_arrival"],
                "floor": placement.metrics[f"{phase}_floor"],
            }
            for phase in ("llm", "encoder")
        },
        "strategy": [asdict(each) for each in explained.trace],
        "remedy": _applied_json(placement),
        "remedies": [
            {"name": each.name, "gain": each.gain, "keeps_samples": each.keeps_set}
            for each in explained.remedies
        ],
        "skipped": [_skipped_json(each) for each in explained.skipped],
        "metrics": dict(plan.metrics),
        "last": plan.last,
        "notes": list(explained.notes),
    }


def _applied_json(placement: Placement) -> dict[str, Any] | None:
    """The remedy that the step was placed with, and the share of its time that it spares."""
    name = placement.remedy
    return None if name is None else {"name": name, "spares": placement.metrics[f"remedy_{name}"]}


def _skipped_json(each: SkippedView) -> dict[str, Any]:
    place = {} if each.row is None else {"shard": each.row.shard, "row": each.row.row}
    return {**each.sample._asdict(), **place, "reason": each.reason, "detail": each.detail}


def _rank_json(explained: Explanation) -> dict[str, int] | None:
    if explained.rank is None:
        return None
    rank, coords = explained.rank
    return {"rank": rank, "pp": coords.pp, "dp": coords.dp, "cp": coords.cp, "tp": coords.tp}


def _slice_json(explained: Explanation, key: PieceKey) -> dict[str, Any]:
    found = explained.slices.get(key)
    return {} if found is None else {"slice": [list(run) for run in found]}


def explanation_lines(explained: Explanation) -> Iterator[RenderableType]:
    """The output, part by part."""
    plan, mesh = explained.plan, explained.mesh
    capacity = plan.num_sequences * plan.sequence_length
    yield Text(
        f"{explained.job} step {plan.step}, generation {explained.generation}: "
        f"{plan.num_sequences} sequences, {len(plan.pieces):,} documents, {plan.pieces.tokens:,} of "
        f"{capacity:,} tokens, digest {plan.digest.hex()[:12]}" + (", the last" if plan.last else "")
    )
    yield Text(_place_line(explained) + "\n")
    yield _summary(explained)
    yield Text("")
    yield _imbalance(explained)
    applied = explained.placement.remedy
    if applied is not None:
        spared = explained.placement.metrics[f"remedy_{applied}"]
        yield Text(f"\napplied: {applied}, {_APPLIED[applied]}; spares {spared:.0%} of the step's time")
    for each in explained.remedies[:1]:
        yield Text(f"\nwhat helps most: {REMEDIES[each.name]}; spares {each.gain:.0%} of the LLM's time")
    if plan.metrics.get("delay_steps") or len(plan.state.waiting):
        yield Text("\n" + _waiting_line(plan))
    if explained.trace:
        yield Text("\nstrategy", "bold")
        yield from (Text(str(step)) for step in explained.trace)
    for sequence in explained.sequences:
        dp, microbatch = _where(explained, sequence)
        yield Text(f"\nsequence {sequence.number}: dp {dp}, microbatch {microbatch}", "bold")
        yield _pieces(explained, sequence)
    quarantined = [each for each in explained.skipped if each.reason != Reason.FILTERED]
    if quarantined:
        yield Text("\npassed over since the step before", "bold")
        yield _skipped(quarantined)
    filtered = Counter(each.sample.source for each in explained.skipped if each.reason == Reason.FILTERED)
    if filtered:
        counts = ", ".join(f"{count:,} of {name}" for name, count in sorted(filtered.items()))
        yield Text(f"\nfiltered by transforms since the step before: {counts}")
    for note in explained.notes:
        yield Text(f"\nnote: {note}")
    if mesh.cp > 1 and explained.rank is None:
        yield Text("\neach of the cp ranks holds a slice of every sequence; --rank says which tokens")


def _waiting_line(plan: Plan) -> str:
    """What waits after the step, and what waiting has cost; an older log does not tell the latter."""
    state, metrics = plan.state, plan.metrics
    oldest = f", the oldest for {int(state.age.max())} steps" if len(state.age) else ""
    line = f"waiting: {len(state.waiting):,} documents, {state.waiting.tokens:,} tokens{oldest}"
    if "delay_steps" in metrics:
        line += f"; a token of this step had waited {metrics['delay_steps']:.2f} steps"
    if "mixture_error" in metrics:
        line += f"; all that was placed is {metrics['mixture_error']:.2%} from the mixture"
    return line


def _place_line(explained: Explanation) -> str:
    mesh = explained.mesh
    if explained.rank is None:
        return f"{mesh}, all ranks, placed by {explained.balance}"
    rank, coords = explained.rank
    axes = [f"{axis} {getattr(coords, axis)}" for axis in ("pp", "dp", "cp", "tp") if getattr(mesh, axis) > 1]
    return f"{mesh}, rank {rank}: {', '.join(axes) or 'the only one'}, placed by {explained.balance}"


def _where(explained: Explanation, sequence: SequenceView) -> tuple[int, int]:
    placement = explained.placement
    return int(placement.dp_rank[sequence.number]), int(placement.microbatch[sequence.number])


def _summary(explained: Explanation) -> Table:
    length = explained.plan.sequence_length
    rows = (
        (
            *_where(explained, sequence),
            sequence.number,
            f"{len(sequence.pieces):,}",
            f"{sequence.tokens:,}",
            f"{sequence.tokens / length:.2%}",
            f"{sequence.llm_cost:,.0f}",
            f"{sequence.encoder_cost:,.0f}",
        )
        for sequence in explained.sequences
    )
    columns = (">dp", ">microbatch", ">sequence", ">documents", ">tokens", ">fill", ">llm cost", ">encoder")
    return table("", columns, rows)


def _imbalance(explained: Explanation) -> Table:
    metrics = explained.placement.metrics
    names = ("imbalance", "imbalance_arrival", "floor")
    rows = ((phase, *(f"{metrics[f'{phase}_{name}']:.3f}" for name in names)) for phase in ("llm", "encoder"))
    title = f"max / mean over {explained.mesh.dp} dp"
    return table("", (title, ">placed", ">in order of arrival", ">floor"), rows)


def _pieces(explained: Explanation, sequence: SequenceView) -> Table:
    sliced, heard = bool(explained.slices), any(piece.frames for piece in sequence.pieces)
    rows = []
    for piece in sequence.pieces:
        key = piece.key
        here = [_words(explained.slices[key])] if sliced else []
        row = piece.row if piece.row is not None else "unknown"
        whole = _words(((key.start, key.start + key.length),))
        sound = [f"{piece.frames:,}"] if heard else []
        rows.append((piece.sample, whole, *here, f"{piece.patches:,}", *sound, row))
    columns = ["sample", "tokens", *(["of them here"] if sliced else []), ">patches"]
    return table("", (*columns, *([">mel frames"] if heard else []), "shard:row"), rows)


def _skipped(skipped: Sequence[SkippedView]) -> Table:
    rows = ((str(each.sample), each.reason, each.row or "unknown", each.detail) for each in skipped)
    return table("", ("sample", "reason", "shard:row", "detail"), rows)


def _words(runs: Ranges) -> str:
    """`0-511 1,536-2,047`, ends included; `none`."""
    return " ".join(f"{first:,}-{stop - 1:,}" for first, stop in runs) or "none"
