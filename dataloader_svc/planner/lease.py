"""Which blocks will be needed soon: how far ahead of need a source is leased. Pure.

A source is covered while what is at hand, probed or on its way, is what the mixture will draw of it in the
steps ahead, with a margin. A source with a small share so holds one block; a tiny one, several epochs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet

import numpy as np

from dataloader_svc.planner.select import Rules
from dataloader_svc.planner.state import State
from dataloader_svc.planner.supply import Epoch, Lack, Supply
from dataloader_svc.sample import BlockId

_MARGIN = 1.25
"""A block is asked for while this many times what is expected to be needed is not at hand."""

_MOST_EPOCHS = 64
"""Layouts asked for at once, for a source that is smaller than what a step draws of it."""


class Lookahead:
    """Looks `ahead` steps beyond the next one."""

    def __init__(self, rules: Rules, ahead: int) -> None:
        self._rules = rules
        self._ahead = ahead

    def wanted(
        self,
        state: State,
        names: Iterable[str],
        supplies: Mapping[str, Supply],
        leased: AbstractSet[BlockId],
    ) -> list[Lack]:
        """Blocks to lease and epochs to describe of sources `names`; no block that is leased already."""
        steps = range(state.step, state.step + self._ahead + 1)
        shares = np.sum([self._rules.schedule.weights(step) for step in steps], axis=0)
        share_of = dict(zip(self._rules.names, shares.tolist(), strict=True))
        a_step = self._a_step(state, supplies)
        wanted: list[Lack] = []
        for name in names:
            need = share_of[name] * a_step * _MARGIN + max(state.sources[name].credit, 0)
            wanted += self._of_source(state, supplies[name], leased, need)
        return wanted

    def _a_step(self, state: State, supplies: Mapping[str, Supply]) -> float:
        """What a step draws over all sources, in the mixture's unit."""
        rules = self._rules
        in_samples = rules.num_samples is not None
        if in_samples == (rules.unit == "samples"):
            return rules.size
        samples = sum(source.samples for source in state.sources.values())
        tokens = sum(source.tokens for source in state.sources.values())
        if not samples:  # what was read ahead tells more than nothing
            read = [block for supply in supplies.values() for block in supply.blocks.values()]
            samples = sum(len(block.position) for block in read)
            tokens = sum(int(block.ends[-1]) for block in read)
        mean = tokens / samples if samples else rules.sequence_length
        return rules.size * mean if in_samples else rules.size / mean

    def _of_source(
        self, state: State, supply: Supply, leased: AbstractSet[BlockId], need: float
    ) -> list[Lack]:
        source = state.sources[supply.source]
        epoch, position, covered = source.epoch, source.position, 0.0
        mean = self._per_row(state, supply)
        wanted: list[Lack] = []
        if supply.layouts.get(epoch) is None:
            return [Epoch(supply.source, epoch)]
        while covered < need:
            layout = supply.layouts.get(epoch)
            if layout is None:
                rows = int(supply.layouts[source.epoch][-1])
                missing = (need - covered) / max(rows * mean, 1e-9) if mean else 1
                more = min(math.ceil(missing), _MOST_EPOCHS)
                return wanted + [Epoch(supply.source, epoch + number) for number in range(more)]
            if position >= int(layout[-1]):
                if self._rules.exhausted != "repeat":
                    break
                epoch, position = epoch + 1, 0
                continue
            number = int(np.searchsorted(layout, position, "right")) - 1
            stop = int(layout[number + 1])
            block = supply.blocks.get((epoch, number))
            if block is not None:
                first = int(np.searchsorted(block.position, position))
                if self._rules.unit == "samples":
                    covered += len(block.position) - first
                else:
                    covered += int(block.ends[-1] - block.ends[first])
            else:
                name = BlockId(supply.source, epoch, number)
                if name not in leased:
                    wanted.append(name)
                if not mean:
                    break  # nothing is known of this source: one block tells
                covered += (stop - position) * mean
            position = stop
        return wanted

    def _per_row(self, state: State, supply: Supply) -> float:
        """What a row counts on the mean, in the mixture's unit; 0 where nothing is known yet."""
        if self._rules.unit == "samples":
            return 1.0
        source = state.sources[supply.source]
        if source.samples:
            return source.tokens / source.samples
        rows = sum(block.stop - block.start for block in supply.blocks.values())
        return sum(int(block.ends[-1]) for block in supply.blocks.values()) / rows if rows else 0.0
