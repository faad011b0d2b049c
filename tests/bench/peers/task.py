"""What a process of a peer is told. Read in every peer's environment: the standard library alone."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Task:
    """One process's part of one run.

    `style` is "same" (the tokenizer library and picture decoder that all use) or "own" (what users of the
    peer write by habit: `tokenizers` on each row, Pillow on each picture). `data` holds the material,
    `converted` what the peer made of it, `address` is where the peer's service listens, if it has one, and
    `port` is one that is free for peers whose ranks need to meet. `sources` says how many the workload
    `sources` mixes.
    """

    peer: str
    workload: str
    style: str
    data: str
    converted: str
    scratch: str
    rank: int = 0
    ranks: int = 1
    workers: int = 1
    seed: int = 17
    address: str = ""
    port: int = 0
    sources: int = 0

    def to_json(self) -> str:
        """As one word of a command line."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Task:
        """What `to_json` gave."""
        return cls(**json.loads(text))

    @property
    def folder(self) -> Path:
        """The workload's data in the peer's own format."""
        return Path(self.converted)


SEQUENCE_LENGTH = 8192
PICTURES_A_BATCH = 16
