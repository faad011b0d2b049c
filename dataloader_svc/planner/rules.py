"""What of a configuration decides which pieces make up a step. Reads the files and functions that costs and
packers come from; `select.py` plans by it, and knows no configuration.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self

import numpy as np
from numpy.typing import NDArray

from dataloader_balancers import CostModel, Limit
from dataloader_balancers.strategy.nodes import CONCATENATE
from dataloader_svc.config.methods import known_packer
from dataloader_svc.config.schema import BatchUnit, Config, Source
from dataloader_svc.errors import StateError
from dataloader_svc.planner.costs import llm_cost
from dataloader_svc.planner.mixture import Schedule
from dataloader_svc.planner.pieces import Pieces, Room, TooLong
from dataloader_svc.planner.state import State
from dataloader_svc.planner.supply import BadLimit
from dataloader_svc.planner.waiting import Wait


@dataclass(frozen=True, slots=True)
class Rules:
    """What of the configuration decides which pieces make up a step. `names` are sorted.

    batch_unit   what the size of a step was given in. In samples it is `num_samples`, and `num_sequences` is
                 None: as many as they need; else it is `num_sequences`, and `num_samples` is None
    whole        sources whose samples are never cut: preference pairs
    fill         share of the sequences' room that the tokens of a step take
    wait         how outliers wait for their like; None: they don't
    """

    names: tuple[str, ...]
    schedule: Schedule
    unit: Literal["tokens", "samples"]
    exhausted: Literal["repeat", "stop", "drop"]
    room: Room
    batch_unit: BatchUnit
    num_sequences: int | None
    num_samples: int | None
    overdraw: float
    pack: str
    llm_cost: CostModel
    last_batch: Literal["pad", "drop"]
    too_long: Mapping[str, TooLong]
    bad_limit: Mapping[str, BadLimit]
    whole: frozenset[str] = frozenset()
    fill: float = 1.0
    wait: Wait | None = None

    @classmethod
    def of(cls, config: Config, base_dir: Path = Path()) -> Self:
        """`base_dir`: where relative paths start from. ConfigError: no such packer, or no such cost."""
        names = tuple(sorted(config.sources))
        pack = known_packer(config.strategy.pack, base_dir)
        return cls(
            names=names,
            schedule=Schedule.of(config.mixture.schedule, names),
            unit=config.mixture.unit,
            exhausted=config.mixture.exhausted,
            room=room(config),
            batch_unit=config.global_batch.unit,
            num_sequences=config.num_sequences,
            num_samples=config.global_batch.samples,
            overdraw=config.strategy.overdraw,
            pack=pack,
            llm_cost=llm_cost(config, base_dir),
            last_batch=config.last_batch,
            too_long={name: too_long(source) for name, source in config.sources.items()},
            bad_limit={
                name: BadLimit(source.max_bad_fraction, source.max_bad_minimum)
                for name, source in config.sources.items()
            },
            whole=frozenset(name for name, source in config.sources.items() if source.preference is not None),
            fill=config.strategy.fill,
            wait=Wait.of(config.strategy),
        )

    @property
    def sequence_length(self) -> int:
        """Most tokens of a sequence."""
        return self.room.tokens

    def limits(self, pieces: Pieces) -> tuple[Limit, ...]:
        """What a packer keeps of a sequence's pieces beside tokens."""
        caps = (
            ("patches", pieces.patches, self.room.patches),
            ("frames", pieces.frames, self.room.frames),
            ("media", pieces.media, self.room.media),
        )
        return tuple(Limit(name, values, cap) for name, values, cap in caps if cap is not None)

    def check_waiting(self, state: State) -> None:
        """StateError: a piece that waits is too much for the media of a sequence now, or may be, as its media
        were not counted. Where they stand is in no state, so it can't be cut again.
        """
        waiting = state.waiting
        held = (waiting.patches, waiting.frames, waiting.media)
        over = self.room.lacks(np.zeros_like(waiting.length), *held)
        if self.room.media is not None:
            over |= waiting.has_media & (waiting.media == 0)
        if over.any():
            first = int(over.argmax())
            found = self.room.told(0, *(int(column[first]) for column in held))
            found = found or f"media that were never counted, strategy.limits.media {self.room.media}"
            name = state.names[int(waiting.source[first])]
            raise StateError(
                f"a waiting document of {name!r} (epoch {waiting.epoch[first]} position "
                f"{waiting.position[first]}) has {found} now: resume once with the old strategy.limits"
            )

    @property
    def size(self) -> int:
        """Of a full step: its samples, where it is given in samples, else its tokens."""
        if self.num_samples is not None:
            return self.num_samples
        assert self.num_sequences is not None, "a step has its size in one unit"
        return max(1, int(self.num_sequences * self.sequence_length * self.fill))

    @property
    def wanted(self) -> int:
        """What is gathered for a step, in the same unit. Where documents are cut no gaps are to be filled."""
        spare = 0.0 if self.num_samples is not None or self.pack == CONCATENATE else self.overdraw
        return int(self.size * (1 + spare))

    def cuts(self, source: str) -> bool:
        """Whether documents of the source are cut wherever a sequence is full."""
        return self.pack == CONCATENATE and source not in self.whole

    def uncut(self, pieces: Pieces) -> NDArray[np.bool_]:
        """(n,) which pieces stay whole where documents are cut: media, and preference pairs."""
        pairs = [number for number, name in enumerate(self.names) if name in self.whole]
        return pieces.has_media | np.isin(pieces.source, pairs)


def room(config: Config) -> Room:
    """The most that a sequence of the job holds."""
    limits = config.strategy.limits
    return Room(config.sequence_length, limits.patches, limits.frames, limits.media)


def too_long(source: Source) -> TooLong:
    """What becomes of its documents that are too much for a sequence. Of preference pairs the loader shortens
    texts, and what has too many media goes: nothing parts a pair.
    """
    return "drop" if source.preference is not None and source.too_long == "truncate" else source.too_long
