"""Proofs of the contracts from what was delivered: pure functions on batches as ranks received them.

A *delivery* is all that the ranks of one mesh got in some steps. `reassemble` undoes placement and the
context-parallel cut, so that deliveries on different meshes can be compared sequence by sequence and field
by field; `check_once` counts positions; `check_mixture` recomputes targets from the schedule alone. None of
it shares code with the planner or the constructor: it would otherwise repeat their mistakes.
The command that runs the processes and collects deliveries is `cli/audit.py`.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Span = tuple[str, int, int, int, int]
"""(source, epoch, position, start, length): a piece of a document."""

TOKEN_FIELDS = ("input_ids", "labels", "position_ids", "loss_weight")
MEDIA = {"image": "pixel_values", "video": "pixel_values_videos", "audio": "audio_features"}


@dataclass(frozen=True, slots=True)
class RankBatch:
    """One microbatch as one rank received it: `arrays` by field name, `span_*` columns among them.

    `merge_rows` is the number of patches of one token, `frames_per_token` that of mel frames.
    """

    dp: int
    cp: int
    microbatch: int
    arrays: Mapping[str, NDArray[Any]]
    sources: Sequence[str]
    merge_rows: int
    frames_per_token: int = 4

    def spans(self) -> list[tuple[Span, int, int]]:
        """(span, sequence number, token offset before the cp cut) of each piece."""
        a = self.arrays
        rows = zip(
            a["span_source"].tolist(),
            a["span_epoch"].tolist(),
            a["span_position"].tolist(),
            a["span_start"].tolist(),
            a["span_length"].tolist(),
            a["span_sequence"].tolist(),
            a["span_offset"].tolist(),
            strict=True,
        )
        return [
            ((self.sources[source], epoch, position, start, length), sequence, offset)
            for source, epoch, position, start, length, sequence, offset in rows
        ]


@dataclass(frozen=True, slots=True)
class StepDelivery:
    """What all ranks got in one step, and what the service said of it."""

    step: int
    digest: str
    batches: Sequence[RankBatch]
    state: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Finding:
    """A contract that does not hold, at the first place where it does not."""

    contract: str
    mesh: str
    step: int | None
    where: str
    detail: str

    def __str__(self) -> str:
        step = "" if self.step is None else f" step {self.step}"
        where = f" {self.where}:" if self.where else ""
        return f"{self.contract}: mesh {self.mesh}{step}:{where} {self.detail}"


@dataclass(slots=True)
class Content:
    """Topology-free content of one piece: tokens before the cut, and what stands behind each placeholder."""

    fields: dict[str, NDArray[Any]] = field(default_factory=dict)
    ranks: set[str] = field(default_factory=set)


def reassemble(step: StepDelivery) -> dict[Span, Content]:
    """Piece -> content, put together from all ranks' slices.

    Raises ValueError, naming rank and field, where slices overlap with different content or leave a hole.
    """
    groups: dict[tuple[int, int], list[RankBatch]] = defaultdict(list)
    for batch in step.batches:
        groups[batch.dp, batch.microbatch].append(batch)
    result: dict[Span, Content] = {}
    for (dp, microbatch), slices in sorted(groups.items()):
        buffer = _join(slices, f"dp={dp} microbatch={microbatch}")
        for span, _, offset in slices[0].spans():
            if span in result:
                raise ValueError(f"dp={dp} microbatch={microbatch}: piece {span} is there twice")
            cut = slice(offset, offset + span[4])
            content = Content({name: values[cut] for name, values in buffer.items()}, {f"dp={dp}"})
            result[span] = content
    return result


def _join(slices: Sequence[RankBatch], where: str) -> dict[str, NDArray[Any]]:
    """Fields of the whole microbatch, every token filled exactly once (twice only with equal content)."""
    total = max(_total(batch) for batch in slices)
    filled = np.zeros(total, bool)
    buffer: dict[str, NDArray[Any]] = {}
    for batch in slices:
        rank = f"{where} cp={batch.cp}"
        index = batch.arrays.get("cp_index")
        index = np.arange(total) if index is None else index.reshape(-1)
        values = {name: batch.arrays[name].reshape(-1) for name in TOKEN_FIELDS}
        values |= _pixels_by_token(batch, rank)
        for name, local in values.items():
            if len(local) != len(index):
                raise ValueError(f"{rank}: {name} has {len(local)} tokens, its slice {len(index)}")
            whole = buffer.setdefault(name, np.zeros((total, *local.shape[1:]), local.dtype))
            again = filled[index]
            if not np.array_equal(whole[index[again]], local[again]):
                raise ValueError(f"{rank}: {name} differs from another cp rank's copy")
            whole[index] = local
        filled[index] = True
    if not filled.all():
        raise ValueError(f"{where}: token {int(np.argmin(filled))} is on no cp rank")
    return buffer


def _total(batch: RankBatch) -> int:
    """Tokens of the microbatch, of all rows with their padding, as far as this slice can tell."""
    index = batch.arrays.get("cp_index")
    return batch.arrays["input_ids"].size if index is None else int(index.max()) + 1


def _pixels_by_token(batch: RankBatch, rank: str) -> dict[str, NDArray[np.uint64]]:
    """A checksum of the patches or mel frames behind each placeholder, 0 where none is: (T_local,) a kind."""
    checksums = {}
    tokens = batch.arrays["input_ids"].reshape(-1)
    for kind, pixels_name in MEDIA.items():
        sums = np.zeros(len(tokens), np.uint64)
        index = batch.arrays.get(f"{kind}_index", ())
        if len(index):
            where = batch.arrays[f"{kind}_position"]
            if len(where) != len(index):
                raise ValueError(f"{rank}: {len(where)} {kind} placeholders but {len(index)} embeddings")
            pixels = batch.arrays[pixels_name]
            rows = batch.frames_per_token if kind == "audio" else batch.merge_rows
            grouped = pixels.view(np.uint8).reshape(len(pixels) // rows, -1)
            sums[where] = _checksum(grouped)[index]
        checksums[pixels_name] = sums
    return checksums


def _checksum(rows: NDArray[np.uint8]) -> NDArray[np.uint64]:
    """A position-sensitive 64-bit sum of each row: (n, bytes) -> (n,). Wraps; weights are odd."""
    weights = np.arange(rows.shape[1], dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15) | np.uint64(1)
    sums: NDArray[np.uint64] = (rows.astype(np.uint64) * weights).sum(axis=1, dtype=np.uint64)
    return sums


def compare(reference: StepDelivery, other: StepDelivery, mesh: str) -> list[Finding]:
    """Where `other` differs from `reference`: digest, set of pieces, or a field of a piece (the first)."""
    step = other.step
    if reference.digest != other.digest:
        return [Finding("digest", mesh, step, "", f"{other.digest} instead of {reference.digest}")]
    try:
        left, right = reassemble(reference), reassemble(other)
    except ValueError as error:
        return [Finding("bytes", mesh, step, "", str(error))]
    if left.keys() != right.keys():
        odd = sorted(left.keys() ^ right.keys())[0]
        side = "missing" if odd in left else "extra"
        return [Finding("pieces", mesh, step, "", f"{side} piece {odd}")]
    for span, content in left.items():
        for name, values in content.fields.items():
            if not np.array_equal(values, right[span].fields[name]):
                token = int(
                    np.argmax(np.any((values != right[span].fields[name]).reshape(len(values), -1), 1))
                )
                where = f"{', '.join(sorted(right[span].ranks))} piece {span} field {name} token {token}"
                return [Finding("bytes", mesh, step, where, "differs from the reference")]
    return []


def check_caps(step: StepDelivery, mesh: str, sequence_length: int) -> list[Finding]:
    """No sequence above the cap, and the same number of microbatches on every rank."""
    findings = []
    counts = Counter((batch.dp, batch.cp) for batch in step.batches)
    if len(set(counts.values())) > 1:
        findings.append(Finding("caps", mesh, step.step, "", f"unequal microbatch counts {dict(counts)}"))
    for batch in step.batches:
        lengths: Counter[int] = Counter()
        for span, sequence, _ in batch.spans():
            lengths[sequence] += span[4]
        over = [(number, length) for number, length in lengths.items() if length > sequence_length]
        if over:
            where = f"dp={batch.dp} microbatch={batch.microbatch} sequence={over[0][0]}"
            detail = f"{over[0][1]} tokens, cap {sequence_length}"
            findings.append(Finding("caps", mesh, step.step, where, detail))
    return findings


def check_size(step: StepDelivery, mesh: str, samples: int) -> list[Finding]:
    """Of steps of so many `samples`: pieces of exactly so many, or of fewer where the data ended."""
    found = {span[:3] for batch in step.batches for span, _, _ in batch.spans()}
    if len(found) == samples or (step.state.get("ended") and 0 < len(found) < samples):
        return []
    return [Finding("size", mesh, step.step, "", f"{len(found)} samples; global_batch is {samples}")]


Position = tuple[str, int, int]


def check_once(
    steps: Iterable[StepDelivery],
    skipped: Iterable[Position],
    waiting: Iterable[Span],
    state: Mapping[str, Any],
    rows: Mapping[str, int],
    mesh: str,
    readmitted: Iterable[Position] = (),
) -> list[Finding]:
    """Every position up to the state is delivered, quarantined or waiting, and none twice.

    `state["sources"][name]` gives epoch and position reached; `rows[name]` the rows of an epoch. A position
    that was `readmitted` n times is delivered or skipped n times more, each time whole.
    """
    pieces: Counter[Span] = Counter()
    for step in steps:
        seen = {
            (batch.dp, batch.microbatch): batch for batch in step.batches
        }  # cp ranks hold the same pieces
        for batch in seen.values():
            pieces.update(span for span, _, _ in batch.spans())
    pieces.update(waiting)
    passed_over, back = Counter(skipped), Counter(readmitted)
    findings = [
        Finding("once", mesh, None, "", f"piece {span} comes {count} times")
        for span, count in pieces.items()
        if count > 1 and span[:3] not in back
    ][:1]
    findings += _check_back(pieces, passed_over, back, mesh)
    ends: dict[Position, list[tuple[int, int]]] = defaultdict(list)
    for source, epoch, position, start, length in pieces:
        ends[source, epoch, position].append((start, start + length))
    for place, ranges in ends.items():
        if place in back:
            continue
        ranges.sort()
        gap = ranges[0][0] != 0 or any(a[1] != b[0] for a, b in itertools.pairwise(ranges))
        if gap:
            findings.append(Finding("once", mesh, None, "", f"sample {place} is in pieces {ranges}"))
            break
    have = set(ends) | set(passed_over)
    for name, reached in state["sources"].items():
        expected = {
            (name, epoch, position)
            for epoch in range(reached["epoch"] + 1)
            for position in range(reached["position"] if epoch == reached["epoch"] else rows[name])
        }
        mine = {place for place in have if place[0] == name}
        if mine != expected:
            odd = min(mine ^ expected)
            what = "lost" if odd in expected else "delivered beyond the state"
            findings.append(Finding("once", mesh, None, "", f"sample {odd} is {what}"))
    return findings


def _check_back(
    pieces: Mapping[Span, int], skipped: Mapping[Position, int], back: Mapping[Position, int], mesh: str
) -> list[Finding]:
    """The first position where deliveries and skips are not one more than it was readmitted."""
    for place, times in back.items():
        mine = {span[3:]: count for span, count in pieces.items() if span[:3] == place}
        whole = sum(count for (start, _), count in mine.items() if start == 0)
        ends: Counter[int] = Counter()
        for (start, length), count in mine.items():
            ends[start + length] += count
        if any(start and ends[start] < count for (start, _), count in mine.items()):
            return [Finding("once", mesh, None, "", f"readmitted sample {place} is in pieces {sorted(mine)}")]
        skips = skipped.get(place, 0)
        if whole + skips != 1 + times:
            text = f"sample {place} was readmitted {times} times, skipped {skips}, delivered {whole}"
            return [Finding("once", mesh, None, "", text)]
    return []


def weights_at(
    schedule: Sequence[Mapping[str, Any]], step: int, changes: Sequence[Mapping[str, Any]] = ()
) -> dict[str, float]:
    """Normalised weights of a step, from the schedule as written: {"step", "ramp", "weights"} entries.

    `changes` are those that a state names as `mixture`: made while the job ran, in the order in which they
    came. Each is an entry of the schedule from then on.
    """
    for change in changes:
        schedule = _changed(schedule, change)
    current = [entry for entry in schedule if entry["step"] <= step][-1]
    later = [entry for entry in schedule if entry["step"] > step]
    weights = _normalised(current["weights"])
    if later and later[0]["ramp"] == "linear":
        target = _normalised(later[0]["weights"])
        share = (step - current["step"]) / (later[0]["step"] - current["step"])
        names = weights.keys() | target.keys()
        weights = {n: (1 - share) * weights.get(n, 0.0) + share * target.get(n, 0.0) for n in names}
    return weights


def _changed(schedule: Sequence[Mapping[str, Any]], change: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Nothing before the change's step is other than it was; what lies inside of its ramp is left out."""
    first, stop = change["at_step"], change["at_step"] + change["over"]
    inside = [entry for entry in schedule if first <= entry["step"]]
    cut = bool(inside) and inside[0]["ramp"] == "linear"  # it ends early
    held = {"step": first, "ramp": "linear" if cut else "none", "weights": weights_at(schedule, first)}
    reached = {"step": stop, "ramp": "linear" if stop > first else "none", "weights": change["weights"]}
    return [
        *(entry for entry in schedule if entry["step"] < first),
        *([held] if cut or stop > first else []),
        reached,
        *(entry for entry in inside if entry["step"] > stop),
    ]


def _normalised(weights: Mapping[str, float]) -> dict[str, float]:
    total = sum(weights.values())
    return {name: weight / total for name, weight in weights.items()}


def check_mixture(
    steps: Sequence[StepDelivery],
    schedule: Sequence[Mapping[str, Any]],
    unit: str,
    largest: float,
    mesh: str,
) -> tuple[list[Finding], float]:
    """After each step every source has drawn its target within one sample (`largest`, in `unit`).

    Targets are those of the schedule with the changes that the steps' own states name. Returns the findings
    and the largest deviation seen, in units of `largest`.
    """
    target: dict[str, float] = defaultdict(float)
    before: Mapping[str, Mapping[str, float]] = {}
    worst = 0.0
    for step in steps:
        now = step.state["sources"]
        drawn = {name: now[name][unit] - before.get(name, {}).get(unit, 0) for name in now}
        total = sum(drawn.values())
        for name, weight in weights_at(schedule, step.step, step.state.get("mixture", ())).items():
            target[name] += weight * total
        for name in now:
            deviation = abs(now[name][unit] - target[name]) / largest
            worst = max(worst, deviation)
            if deviation > 1 + 1e-9:
                detail = (
                    f"{name} has {now[name][unit]} {unit}, target {target[name]:.1f}, one sample {largest}"
                )
                return [Finding("mixture", mesh, step.step, "", detail)], worst
        before = now
    return [], worst
