"""Which source gives the next sample, so that every share stays within one sample of its target. Pure.

The target of a source is a *fluid*: while `n` tokens (or samples) are drawn over all sources, source i is due
`T_i(n)`, growing by its weight. Its next sample has a start, the `n` at which it is due nothing more, and a
deadline, the `n` at which it is due that whole sample. **The rule: among the sources whose next sample has
started, take the earliest deadline.** For samples of one size this is the chairman assignment (Tijdeman 1980,
Discrete Math. 32; Baruah et al. 1996, Algorithmica 15: one resource, windows, earliest deadline), for other
sizes WF2Q (Bennett and Zhang 1996, INFOCOM).

Why it holds. Say p's sample is drawn late, at `f` past its deadline `d`. Let `t` be when a sample with a
later deadline was last taken before. It was taken because no started sample had a deadline up to `d`, so all
that was taken since lies in [t, d] of the fluid, and is no more than `d - t`. So `f <= d + (size of that one
sample)`: behind by at most the largest sample drawn. A source is never taken before its start, so it is ahead
by less than the sample it gave. A sample larger than all before counts with the largest size so far in its
deadline, or its size would be the bound before it is drawn. `tests/property/test_planner.py` tries to break
it.

The fluid must be known ahead where weights change, because sources that will be owed more must be served
before. Weights of coming steps are known; how much a step draws is known for the one at hand where mixture
and step count in one unit, and estimated for later ones. With weights that stay, the estimate does not
matter; where they change, `select.py` draws again with the total that came out, and `run` may draw a few
samples more, unless a step is so many samples by definition.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush

import numpy as np
from numpy.typing import NDArray

from dataloader_svc.planner.mixture import Ahead, Schedule
from dataloader_svc.planner.supply import Cursor, Lack

_MIN_WINDOW_TOKENS = 1


class Fluid:
    """When each source is due how much: the inverse of the targets T_i.

    first   what the step at hand still draws, in the mixture's unit
    rest    what each later step draws
    """

    def __init__(self, ahead: Ahead, first: float, rest: float) -> None:
        self._slope = ahead.slope.tolist()
        self._total: NDArray[np.float64] | None = None
        if len(ahead.steps) > 1:
            later = ahead.integral - ahead.integral[1]
            self._due = ahead.integral[1] * first + later * rest
            self._due[0] = 0.0
            self._total = np.concatenate([[0.0], first + (ahead.steps[1:] - 1) * rest])

    def starts(self, due: NDArray[np.float64]) -> list[float]:
        """`when` of one amount a source, (k,)."""
        if self._total is None:
            with np.errstate(divide="ignore", invalid="ignore"):
                start = due / np.array(self._slope)
            return [float(at) for at in _rounded(np.where(np.isnan(start), np.inf, start))]
        return [float(self.when(source, due[source : source + 1])[0]) for source in range(len(due))]

    def when(self, source: int, due: NDArray[np.float64]) -> NDArray[np.float64]:
        """The largest n with T(n) <= due, of each of `due`; inf where it never grows above it."""
        slope = self._slope[source]
        if self._total is None:
            return _rounded(due / slope) if slope > 0 else np.where(due < 0, -np.inf, np.inf)
        knots = self._due[:, source]
        at = np.searchsorted(knots, due, "right")
        low = np.clip(at - 1, 0, len(knots) - 2)
        rise, run = knots[low + 1] - knots[low], self._total[low + 1] - self._total[low]
        with np.errstate(divide="ignore", invalid="ignore"):
            inside = self._total[low] + (due - knots[low]) / rise * run
            beyond = self._total[-1] + (due - knots[-1]) / slope if slope > 0 else np.full(len(due), np.inf)
        past = np.where(np.isfinite(inside), inside, -np.inf)  # owed from before, and no weight now
        return _rounded(np.where(at == len(knots), beyond, np.where(at == 0, past, inside)))


def _rounded(total: NDArray[np.float64]) -> NDArray[np.float64]:
    """Ties of exact arithmetic are ties here, and what starts at a whole number starts there."""
    return np.asarray(np.round(total, 6))


@dataclass(slots=True)
class Draw:
    """Draws the samples of one step. `cursors`, `credits` and the rest stand by source, in one order.

    by_samples   the mixture counts samples, not tokens
    credits      float64 (k,) what each source is owed; changed by `run`, sums to 0
    largest      largest sample drawn so far, in the mixture's unit; raised by `run`
    in_samples   the size of a step is given in samples, not in tokens
    mean         tokens of a mean sample, as far as known: turns one into the other
    drop         a source that has nothing left is left out; else the data ends with it
    gone         bool (k,) sources left out
    gathered     tokens, or samples, of the step so far, waiting ones included
    expected     what the step will draw in all, in the mixture's unit; 0 = to be estimated
    total        what it has drawn
    foreseen     `expected` does not matter, for no weight changes soon
    """

    cursors: Sequence[Cursor]
    schedule: Schedule
    step: int
    credits: NDArray[np.float64]
    largest: int
    by_samples: bool
    in_samples: bool
    mean: float
    drop: bool
    gone: NDArray[np.bool_]
    gathered: int = 0
    expected: float = 0.0
    total: int = 0
    ended: bool = False
    foreseen: bool = field(init=False, default=True)
    _fluid: Fluid = field(init=False)
    _weights: NDArray[np.float64] = field(init=False)
    _lacking: list[Lack] = field(init=False, default_factory=list)

    def run(self, wanted: int, later: int) -> list[Lack]:
        """Draw until `gathered` reaches `wanted` or the data ends; a later step is taken to draw `later`.

        Of a step in tokens, draws a few samples more where that is what brings every source within one
        sample of its target. Returns what must be at hand before the step can be drawn; then nothing else of
        this object counts.
        """
        extra = 0
        while not self.ended and not self._lacking:
            if self.gathered < wanted:
                self._advance(wanted, later)
            elif extra < self._most_extra() and self.credits.max() > self.largest:
                extra += 1
                self._advance(self.gathered + 1, later)
            else:
                break
        return self._lacking

    def _most_extra(self) -> int:
        """Samples beyond the step's end that may be drawn to restore the balance: one a source and some."""
        return 0 if self.in_samples else 2 * len(self.cursors)

    def _advance(self, wanted: int, later: int) -> None:
        """Draw up to `wanted` with the fluid as it looks from here, or until a source gives out."""
        if self.gone.all():
            self.ended = True
            return
        self._weights = self.schedule.weights(self.step, self.gone)
        ahead = self.schedule.ahead(self.step, self.gone)
        self.foreseen = self.foreseen and len(ahead.steps) == 1
        same = self.by_samples == self.in_samples
        scale = 1.0 if same else self.mean if self.in_samples else 1 / self.mean
        left = (wanted - self.gathered) * scale
        first = max(self.expected - self.total, left if not self.expected else 0, 1.0)
        self._fluid = Fluid(ahead, first, max(later * scale, 1.0))
        # In one unit the step ends just where `wanted` is; in the other an estimate, to be made again.
        end = np.inf if len(ahead.steps) == 1 or same else first
        drawn, exhausted = self._segment(wanted, end)
        if not self._lacking:
            self._settle(drawn, exhausted)

    def _segment(self, wanted: int, end: float) -> tuple[int, int | None]:
        """Draw while weights and fluid stay as they are: what was drawn, and the source that gave out."""
        cursors, total, gathered, largest = self.cursors, 0, self.gathered, self.largest
        pending = self._starts()  # (start, source): not yet due anything
        ready: list[tuple[float, int]] = []  # (deadline, source)
        room = int((wanted - gathered) * (self.mean if self.in_samples else 1))  # tokens
        while gathered < wanted and total < end:
            while pending and (pending[0][0] <= total or not (ready or self._lacking)):
                source = heappop(pending)[1]
                cursor = cursors[source]
                if cursor.at == len(cursor.sizes):
                    lack = self._fill(source, room)
                    if cursor.exhausted:
                        self.gathered, self.largest = gathered, largest
                        return total, source
                    if lack is not None:
                        self._lacking.append(lack)
                        continue
                heappush(ready, (self._deadline(source, largest), source))
            if self._lacking:
                break
            source = heappop(ready)[1]
            cursor = cursors[source]
            at = cursor.at
            size = cursor.sizes[at]
            cursor.at = at + 1
            total += size
            gathered += 1 if self.in_samples else cursor.tokens[at]
            heappush(pending, (cursor.finish[at], source))
            if size > largest:
                largest = size
                ready = [(self._deadline(other, largest), other) for _, other in ready]
                heapify(ready)
        self.gathered, self.largest = gathered, largest
        return total, None

    def _starts(self) -> list[tuple[float, int]]:
        due = -self.credits
        for cursor, amount in zip(self.cursors, due.tolist(), strict=True):
            cursor.begin(amount)
        gone = self.gone.tolist()
        starts = [(at, source) for source, at in enumerate(self._fluid.starts(due)) if not gone[source]]
        heapify(starts)
        return starts

    def _fill(self, source: int, room: int) -> Lack | None:
        """Let the cursor look at about as many samples as the step may take of it."""
        cursor = self.cursors[source]
        lack = cursor.fill(int(self._weights[source] * room * 1.2) + _MIN_WINDOW_TOKENS, self.by_samples)
        if lack is None and not cursor.exhausted:
            cursor.finish = self._fluid.when(source, cursor.due + np.cumsum(cursor.sizes)).tolist()
        return lack

    def _deadline(self, source: int, largest: int) -> float:
        cursor = self.cursors[source]
        if cursor.sizes[cursor.at] <= largest or largest == 0:
            return cursor.finish[cursor.at]
        due = cursor.due + sum(cursor.sizes[: cursor.at]) + largest
        return float(self._fluid.when(source, np.array([due]))[0])

    def _settle(self, drawn: int, exhausted: int | None) -> None:
        """Book what was drawn; a source that gave out ends the data, or hands on what it is owed."""
        self.total += drawn
        self.credits += self._weights * drawn
        for source, cursor in enumerate(self.cursors):
            self.credits[source] -= cursor.drawn()
        if exhausted is None:
            return
        if not self.drop:
            self.ended = True
            return
        self.gone[exhausted] = True
        owed, self.credits[exhausted] = self.credits[exhausted], 0.0
        self.credits += owed * self.schedule.weights(self.step, self.gone)
