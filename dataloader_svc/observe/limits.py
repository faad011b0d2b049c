"""Proof that no sequence holds more media than `strategy.limits` allows, from what ranks got or from the log.
Shares no code with the planner, the packers or the constructor.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping

import numpy as np

from dataloader_svc.observe.audit import Finding, RankBatch, StepDelivery
from dataloader_svc.observe.audit_log import Entry

_UNITS = {"image": "patches", "video": "patches", "audio": "frames"}


def check_limits(step: StepDelivery, mesh: str, limits: Mapping[str, int]) -> list[Finding]:
    """Of a step as all ranks got it: each medium once, whichever cp ranks have a token of it.

    limits   most in a sequence, of `patches`, `frames` and `media`
    """
    groups: dict[tuple[int, int], list[RankBatch]] = defaultdict(list)
    for batch in step.batches:
        groups[batch.dp, batch.microbatch].append(batch)
    findings = []
    for (dp, microbatch), slices in sorted(groups.items()):
        held: dict[int, Counter[str]] = defaultdict(Counter)
        media = {place: medium for batch in slices for place, medium in _media(batch)}
        for (_, place), (unit, amount) in media.items():
            held[_sequence(slices[0], place)].update({unit: amount, "media": 1})
        findings += [
            Finding("limits", mesh, step.step, f"dp={dp} microbatch={microbatch} sequence={number}", said)
            for number, counted in sorted(held.items())
            for said in _above(counted, limits)
        ]
    return findings


def log_findings(entries: Iterable[Entry], limits: Mapping[str, int]) -> list[Finding]:
    """The first sequence of each step of a log that is above one of `limits`, `tokens` among them.

    What an earlier version of the service did not count is not there to be found.
    """
    findings = []
    for entry in entries:
        ends = entry.sequence_offsets
        sums = {name: np.concatenate([[0], np.cumsum(entry.held[name])])[ends] for name in limits}
        for number in range(len(ends) - 1):
            said = _above({name: int(np.diff(sums[name])[number]) for name in limits}, limits)
            if said:
                findings.append(Finding("limits", "log", entry.step, f"sequence={number}", said[0]))
                break
    return findings


def _above(counted: Mapping[str, int], limits: Mapping[str, int]) -> list[str]:
    return [
        f"{counted[name]} {name}, cap {most}" for name, most in limits.items() if counted.get(name, 0) > most
    ]


def _media(batch: RankBatch) -> Iterator[tuple[tuple[str, int], tuple[str, int]]]:
    """(kind, place of its first token in the microbatch), and of what each medium has how much: of those with
    a token in the slice.
    """
    index = batch.arrays.get("cp_index")
    for kind, unit in _UNITS.items():
        rows = batch.arrays.get(f"{kind}_index", ())
        if not len(rows):
            continue
        if kind == "audio":
            amount, of_token = batch.arrays["audio_lengths"], batch.frames_per_token
        else:
            amount, of_token = batch.arrays[f"{kind}_grid_thw"].prod(axis=1), batch.merge_rows
        ends = np.cumsum(amount)
        place = batch.arrays[f"{kind}_position"]
        place = place if index is None else index.reshape(-1)[place]
        for token, row in zip(np.asarray(place).tolist(), np.asarray(rows).tolist(), strict=True):
            medium = int(np.searchsorted(ends, row * of_token, "right"))
            first = int(ends[medium] - amount[medium]) // of_token
            yield (kind, token - (row - first)), (unit, int(amount[medium]))


def _sequence(batch: RankBatch, place: int) -> int:
    """The sequence that a token of the microbatch is in."""
    for span, sequence, offset in batch.spans():
        if offset <= place < offset + span[4]:
            return sequence
    raise ValueError(f"dp={batch.dp} microbatch={batch.microbatch}: token {place} of a medium is in no piece")
