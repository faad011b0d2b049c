"""Requests to readmit repaired samples: numbered entries under a prefix of any store.

An entry is written once, whole, and never changed: how far it is done stands in the job's state. What a
request means to a planner is in `planner/requests.py`, why it looks so in docs/decisions/0006.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, Self

from dataloader_svc.errors import StoreError
from dataloader_svc.sample import SampleId
from dataloader_svc.store.base import Store

PREFIX = "readmission/"


class Repaired(NamedTuple):
    """A sample to readmit.

    block    of the sample's epoch, that holds it
    step     of the record that skipped it; where a step delivered it without loss, that one
    masked   it was delivered without loss; for people
    """

    sample: SampleId
    block: int
    step: int
    masked: bool


@dataclass(frozen=True, slots=True)
class Readmission:
    """One request, not to be taken up before step `at_step`.

    generation   of the plan log, whose history the steps of the samples belong to
    config       hashes of the settings under which the names mean what they mean (`State.config`)
    index        digest of each source's index
    """

    number: int
    generation: int
    at_step: int
    config: Mapping[str, str]
    index: Mapping[str, str]
    samples: tuple[Repaired, ...]

    @staticmethod
    def key(number: int) -> str:
        """Of its entry in the store."""
        return f"{PREFIX}{number:08d}"

    def to_json(self) -> bytes:
        values = {
            "number": self.number,
            "generation": self.generation,
            "at_step": self.at_step,
            "config": dict(self.config),
            "index": dict(self.index),
            "samples": [[*row.sample, row.block, row.step, row.masked] for row in self.samples],
        }
        return json.dumps(values, separators=(",", ":")).encode()

    @classmethod
    def from_json(cls, data: bytes) -> Self:
        """The inverse. Raises StoreError for what is no request."""
        try:
            values = json.loads(data)
            rows = tuple(
                Repaired(SampleId(source, epoch, position), block, step, masked)
                for source, epoch, position, block, step, masked in values.pop("samples")
            )
            return cls(**values, samples=rows)
        except (ValueError, KeyError, TypeError) as error:
            raise StoreError(f"an entry {PREFIX}... is no request for readmission: {error}") from None


def add_readmission(store: Store, readmission: Readmission) -> bool:
    """Write a request, wholly or not at all; False where its number is taken, by another or by a retry."""
    return store.compare_and_set(Readmission.key(readmission.number), None, readmission.to_json())


def readmissions(store: Store) -> list[Readmission]:
    """All requests, by number."""
    return [Readmission.from_json(value) for value in store.items(PREFIX).values()]
