"""The requests for readmission that the history at hand has, out of the store's: for the planner's service.

A request names samples of the history in which it was made. Another generation has that history where it
branched off later than the sample was passed, and with it the request, done or not; else the sample comes in
its turn there, or is not known at all. `readmit.py` says what is done about those that are left.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from dataloader_svc.config.digest import renamings
from dataloader_svc.planner.history import Part, lineage
from dataloader_svc.planner.plan import Plan
from dataloader_svc.planner.readmit import Asked, Request
from dataloader_svc.sample import SampleId
from dataloader_svc.store.base import Store
from dataloader_svc.store.quarantine_log import quarantine
from dataloader_svc.store.readmission_log import Readmission, Repaired, readmissions


@dataclass(frozen=True, slots=True)
class Requests:
    """asked: by number. last: the highest number in the store, of whichever history; 0 without one."""

    asked: tuple[Request, ...] = ()
    last: int = 0


def read_requests(store: Store) -> Requests:
    """The requests of the current generation. Blocks."""
    found = readmissions(store)
    return in_history(found, lineage(store) if found else ())


def has_news(store: Store, last: int, done: int) -> bool:
    """Whether there is a request beyond `last`, in a job that has done those below `done`. One look-up."""
    return store.get(Readmission.key(next_number(last, done))) is not None


def next_number(last: int, done: int) -> int:
    """Of the next request: `last` in the store, and a state that may come from another one is at `done`."""
    return max(last, done) + 1


def in_history(found: Iterable[Readmission], parts: Sequence[Part]) -> Requests:
    """Those of `found` that belong to the history `parts`, newest first, without the samples that don't."""
    asked: list[Request] = []
    last = 0
    for request in found:
        last = max(last, request.number)
        rows = [(place, row) for place, row in enumerate(request.samples) if _belongs(request, row, parts)]
        if rows:
            now = renamings(request.config, parts[0].generation.base.config)
            samples = tuple(Asked(place, _called(row.sample, now), row.block) for place, row in rows)
            asked.append(Request(request.number, request.at_step, samples))
    return Requests(tuple(asked), last)


def read_masked(store: Store) -> dict[int, frozenset[SampleId]]:
    """Step of the current history -> its samples that could not be decoded when it was delivered. Blocks.

    Whatever their files hold now, these slots stay as they were whenever the step is replayed: else a
    repaired sample that is readmitted would come twice.
    """
    rows = [row for row in quarantine(store) if row.delivered]
    steps = {part.generation.number: range(part.first, part.stop) for part in lineage(store)} if rows else {}
    found: dict[int, set[SampleId]] = defaultdict(set)
    for row in rows:
        if row.step is not None and row.generation is not None and row.step in steps.get(row.generation, ()):
            found[row.step].add(row.sample)
    return {step: frozenset(samples) for step, samples in found.items()}


def masked_pieces(masked: Mapping[int, frozenset[SampleId]], plan: Plan) -> list[int]:
    """Numbers of the pieces of `plan` that `masked` names in its step."""
    again = masked.get(plan.step)
    if not again:
        return []
    pieces = plan.pieces
    rows = zip(pieces.source.tolist(), pieces.epoch.tolist(), pieces.position.tolist(), strict=True)
    return [
        number
        for number, (source, epoch, position) in enumerate(rows)
        if SampleId(plan.sources[source], epoch, position) in again
    ]


def _called(sample: SampleId, names: Mapping[str, str]) -> SampleId:
    return sample._replace(source=names.get(sample.source, sample.source))


def _belongs(request: Readmission, row: Repaired, parts: Sequence[Part]) -> bool:
    """Whether all generations since have passed the sample as the request says, and read it alike."""
    source, epoch, position = row.sample
    for part in parts:
        generation = part.generation
        if generation.number == request.generation:
            return True
        now = renamings(request.config, generation.base.config).get(source, source)
        base = generation.base.sources.get(now)
        if base is None or (epoch, position) >= (base.epoch, base.position) or row.step >= part.first:
            return False
        known = [listing.digest for listing in base.listings]
        if base.index and request.index.get(source) not in known:
            return False
        config = generation.base.config
        entries = {"job": "job", f"source/{source}": f"source/{now}"}
        if any(request.config.get(then) != config.get(today) for then, today in entries.items()):
            return False
    return False
