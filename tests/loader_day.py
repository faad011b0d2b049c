"""Loaders on a simulated clock: threads that take pieces of work of uneven cost, and what they tell of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from dataloader_svc.planner.stragglers import Answered, Known, Stragglers, Unanswered, Verdict, Work

Slowness = Callable[[int, float], float]
"""Of a loader at a time: what it makes of a second's work; `inf` is a stopped process."""

TICK_S = 1.0


@dataclass
class Day:
    """Of `loaders` with `threads` each, none of them idle for long.

    kinds   name -> (seconds a unit, spread of the logarithm)
    tail    share of the pieces that take 20 times as long
    busy    share of its time that a thread works
    """

    loaders: int
    threads: int
    kinds: dict[str, tuple[float, float]]
    seed: int
    units: int = 1000
    tail: float = 0.02
    busy: float = 0.8
    slowness: Slowness = lambda loader, at: 1.0
    verdicts: list[tuple[float, Verdict]] = field(default_factory=list)

    def run(self, until_s: float, *, stop_at_first: bool = False) -> list[tuple[float, Verdict]]:
        """Who was named, and when."""
        rng = np.random.default_rng(self.seed)
        core = Stragglers()
        hands = [[_Thread(self, loader, rng) for _ in range(self.threads)] for loader in range(self.loaders)]
        for tick in range(1, int(until_s / TICK_S) + 1):
            at = tick * TICK_S
            core.apply(Known({f"host:{number}": f"loader-{number}" for number in range(self.loaders)}), at)
            for number, threads in enumerate(hands):
                life = f"host:{number}"
                if np.isinf(self.slowness(number, at)):
                    core.apply(Unanswered(life), at)
                    continue
                done = [work for thread in threads for work in thread.until(at)]
                under_way = [work for thread in threads if (work := thread.under_way(at)) is not None]
                core.apply(Answered(life, done, under_way), at)
            verdict = core.judge(at)
            if verdict is not None:
                self.verdicts.append((at, verdict))
                if stop_at_first:
                    break
        return self.verdicts


class _Thread:
    """Takes a piece, now and then rests. Its share is that of a loader whose other threads work as much."""

    def __init__(self, day: Day, loader: int, rng: np.random.Generator) -> None:
        self._day, self._loader, self._rng = day, loader, rng
        self._free = float(rng.uniform(0, 1))
        self._began, self._ends, self._kind, self._units = 0.0, 0.0, "", 0
        self._at_once = max(day.threads * day.busy, 1.0)
        self._next()

    def _next(self) -> None:
        day, rng = self._day, self._rng
        self._kind = str(rng.choice(list(day.kinds)))
        mean, spread = day.kinds[self._kind]
        self._units = int(day.units * rng.uniform(0.3, 1.0))
        cost = self._units * mean * np.exp(rng.normal(0, spread)) * (20 if rng.random() < day.tail else 1)
        self._began = self._free
        slow = min(day.slowness(self._loader, self._began), 1e6)
        self._ends = self._began + float(cost) * slow
        self._free = self._ends + float(cost) * rng.exponential(1 / day.busy - 1)

    def until(self, at: float) -> list[Work]:
        """What is finished since."""
        done = []
        while self._ends <= at:
            seconds = self._ends - self._began
            done.append(Work(self._kind, self._units, seconds, seconds / self._at_once))
            self._next()
        return done

    def under_way(self, at: float) -> Work | None:
        seconds = at - self._began
        return (
            Work(self._kind, self._units, seconds, seconds / self._at_once) if 0 < seconds < np.inf else None
        )
