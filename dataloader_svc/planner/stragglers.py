"""Which loader is slow against its peers, or says nothing any more. Pure: times come in as numbers.

Loaders tell what pieces of work took them (`loader/meter.py`). What a piece took for a unit is compared with
what the peers took for the same kind of work (reading `web`, decoding `photos`): the logarithm of the ratio
is its *residual*. Costs have long tails, and a film among pictures is no sign of anything; so it counts how
rare a residual is among those of the peers, and not how large: of N, with k at least as large,
p = (k + 1) / (N + 1). A loader that is as fast as its peers has -ln p of mean 1, whatever the distribution of
costs. The excess over `DRIFT` is summed up and held above zero (CUSUM: E. S. Page, Biometrika 41, 1954); for
exponential excesses the sum passes h with a probability of about exp(-0.8 h) a run.

To be named, a loader must also be slow by medians, cost time that matters, and be alone with it: what slows
all of them at once, a loaded machine or a store that is far, is not one's fault. A piece that ran beside
others took longer than alone, by a factor between 1 and their number: a loader that has more at once than its
peers gets the benefit of it, one that has less gets none.

A loader that does not answer is told from one that works by its heartbeats. One is named at a time, and its
successor not soon again: a mistake here costs a restart and no more.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

TOLERATED = 2.0
"""Times slower than peers that is nobody's fault: another mix of samples, another neighbour on a machine."""

SLOW = 3.0
"""Times slower by medians, of its last pieces. To restart one that is half as fast costs more."""

DRIFT, ALARM = 2.0, 16.0
"""Of the sum: four pieces as dear as none of 500 raise it to the alarm; chance does in 360,000 runs."""

EXCESS_S, WINDOW_S = 0.8, 8.0
"""Seconds that it took too long in such a time: what is slow and hardly used holds nobody up."""

FEWEST = 5
"""Pieces that a median needs: of a kind to compare with, and of a loader to be compared."""

LAST = 10
"""Pieces that are a loader's present."""

MEMORY_S = 600.0
"""Older pieces are nothing to compare with."""

ALONE = 4.0
"""Sum of a peer that is slower than before itself: others will be, what slows one may slow all."""

IN_A_ROW = 3
"""Judgements, or questions without an answer, that are no accident."""

SILENT_S = 6.0
"""Without an answer. A loader answers beside its work, in milliseconds; on a loaded machine in a second."""

BLIND_S = 3.0
"""After a gap between judgements longer than this it was the judge who stood still: it begins anew."""

SETTLING_S = 5.0
"""After its first answer a loader opens files and fills caches."""

ANOTHER_S = 20.0
"""Between two that are named."""

AGAIN_S, LONGEST_AGAIN_S = 60.0, 3600.0
"""Before the successor of one that was named is named; doubled each time: it may be the place."""

_KEPT_PIECES, _KEPT_RESIDUALS = 32, 512

Life = str
"""A loader from its start to its end: its address."""

Kind = str
"""What pieces are compared within: an activity, a space, and what it is done to."""


@dataclass(frozen=True, slots=True)
class Work:
    """A piece of work, done or under way, that took `seconds`; `share_s`: each instant divided by the number
    of pieces that the loader had under way then.
    """

    kind: Kind
    units: int
    seconds: float
    share_s: float


@dataclass(frozen=True, slots=True)
class Known:
    """The loaders that are registered: address -> name, such as `loader-1`."""

    names: Mapping[Life, str]


@dataclass(frozen=True, slots=True)
class Answered:
    """A loader tells what it has done since it was last asked, and what is under way."""

    loader: Life
    done: Sequence[Work]
    under_way: Sequence[Work] = ()


@dataclass(frozen=True, slots=True)
class Unanswered:
    """A loader was asked and has not answered in time."""

    loader: Life


Event = Known | Answered | Unanswered


@dataclass(frozen=True, slots=True)
class Verdict:
    """`why`: in words, after the loader's name."""

    loader: Life
    name: str
    kind: Literal["slow", "silent"]
    why: str


class _Cost(NamedTuple):
    """Logarithms of the seconds a unit, and of the pieces that were under way at once."""

    at: float
    cost: float
    crowd: float


@dataclass(frozen=True, slots=True)
class _Piece:
    at: float
    residual: float  # against its peers
    fair: float  # the same, less what may come from having more under way than they
    excess_s: float


@dataclass(slots=True)
class _Loader:
    """`costs`: its last pieces by kind; `recent`: those that were compared. `total`: the sum that alarms."""

    name: str
    heard: float  # when it answered last
    since: float | None = None  # when it answered first
    missed: int = 0
    total: float = 0.0
    in_a_row: int = 0  # judgements that found it slow, each by something new
    news: bool = False  # a piece that took too long, since the last judgement
    costs: dict[Kind, deque[_Cost]] = field(default_factory=dict)
    recent: deque[_Piece] = field(default_factory=lambda: deque(maxlen=_KEPT_RESIDUALS))
    under_way: tuple[Work, ...] = ()


@dataclass(slots=True)
class _Named:
    at: float
    times: int


class Stragglers:
    """`apply` takes in what is heard, `judge` is called about once a second; both with a monotonic time."""

    def __init__(self) -> None:
        self._loaders: dict[Life, _Loader] = {}
        self._residuals: dict[Kind, deque[tuple[Life, float]]] = {}
        self._accused: set[Life] = set()  # until they are gone
        self._named: dict[str, _Named] = {}
        self._judged: float | None = None
        self._last_named = -math.inf
        # Of peers, by loader and kind, for as long as it takes to hear all of them once.
        self._typical_now: dict[tuple[Life, Kind], _Cost | None] = {}
        self._peers_now: dict[tuple[Life, Kind], NDArray[np.float64]] = {}

    def apply(self, event: Event, at: float) -> None:
        """Take an event in. What is heard of a loader that isn't known is passed over."""
        match event:
            case Known(names):
                before = self._loaders
                self._loaders = {life: before.get(life) or _Loader(name, at) for life, name in names.items()}
                self._accused &= names.keys()
            case Answered(life, done, under_way):
                loader = self._loaders.get(life)
                if loader is not None:
                    loader.heard, loader.missed = at, 0
                    loader.since = at if loader.since is None else loader.since
                    loader.under_way = tuple(under_way)
                    for work in done:
                        self._take(life, loader, work, at)
            case Unanswered(life):
                loader = self._loaders.get(life)
                if loader is not None:
                    loader.missed += 1

    def judge(self, at: float) -> Verdict | None:
        """The loader to be replaced now, if there is one."""
        self._typical_now.clear()
        self._peers_now.clear()
        blind = self._judged is not None and at - self._judged > BLIND_S
        self._judged = at
        if blind:
            for loader in self._loaders.values():
                loader.heard, loader.missed, loader.total = at, 0, 0.0
            return None
        if at - self._last_named < ANOTHER_S:
            return None
        for verdict in (*self._silent(at), *self._slow(at)):
            if self._may_name(verdict, at):
                self._accused.add(verdict.loader)
                self._last_named = at
                before = self._named.get(verdict.name)
                self._named[verdict.name] = _Named(at, 1 if before is None else before.times + 1)
                return verdict
        return None

    def _may_name(self, verdict: Verdict, at: float) -> bool:
        if verdict.loader in self._accused:
            return False
        before = self._named.get(verdict.name)
        return before is None or at - before.at >= min(AGAIN_S * 2 ** (before.times - 1), LONGEST_AGAIN_S)

    # ---- silent

    def _silent(self, at: float) -> Iterator[Verdict]:
        """Where most say nothing, it is the network, the machine or the judge."""
        silent = {
            life: loader
            for life, loader in self._loaders.items()
            if loader.missed >= IN_A_ROW and at - loader.heard >= SILENT_S
        }
        if len(silent) > max(1, len(self._loaders) // 2):
            return
        for life, loader in silent.items():
            yield Verdict(life, loader.name, "silent", f"has not answered for {at - loader.heard:.0f} s")

    # ---- slow

    def _take(self, life: Life, loader: _Loader, work: Work, at: float) -> None:
        """Compare a piece of work with those of peers, and keep it to compare theirs with."""
        cost = _cost(work, at)
        if cost is None:
            return
        typical = self._typical(life, work.kind, at)
        loader.costs.setdefault(work.kind, deque(maxlen=_KEPT_PIECES)).append(cost)
        if typical is None:
            return
        piece = _piece(work, cost, typical)
        if loader.since is not None and at - loader.since >= SETTLING_S:
            surprise = self._surprise(life, work.kind, piece.fair)
            loader.total = min(max(loader.total + surprise - DRIFT, 0.0), 2 * ALARM)
            loader.recent.append(piece)
            loader.news = loader.news or piece.fair >= math.log(TOLERATED)
        residuals = self._residuals.setdefault(work.kind, deque(maxlen=_KEPT_RESIDUALS))
        residuals.append((life, piece.residual))

    def _typical(self, life: Life, kind: Kind, at: float) -> _Cost | None:
        """What a kind takes the peers of `life`: medians of medians, so that a busy one weighs no more."""
        if (life, kind) not in self._typical_now:
            self._typical_now[life, kind] = self._typical_of_peers(life, kind, at)
        return self._typical_now[life, kind]

    def _typical_of_peers(self, life: Life, kind: Kind, at: float) -> _Cost | None:
        medians = []
        for other, loader in self._loaders.items():
            if other == life or other in self._accused:
                continue
            costs = [cost for cost in loader.costs.get(kind, ()) if at - cost.at <= MEMORY_S]
            if len(costs) >= FEWEST:
                medians.append((median(cost.cost for cost in costs), median(cost.crowd for cost in costs)))
        return _Cost(at, *(median(column) for column in zip(*medians, strict=True))) if medians else None

    def _surprise(self, life: Life, kind: Kind, residual: float) -> float:
        """-ln p of a residual, less what is tolerated, among the peers'.

        Beyond the largest, their tail is taken to be Pareto's of index 1, which has no mean: costs have one.
        """
        if (life, kind) not in self._peers_now:
            found = [value for other, value in self._residuals.get(kind, ()) if other != life]
            self._peers_now[life, kind] = np.array(found, np.float64)
        peers = self._peers_now[life, kind]
        value = residual - math.log(TOLERATED)
        surprise = math.log((len(peers) + 1) / (np.count_nonzero(peers >= value) + 1))
        return surprise + max(value - float(peers.max(initial=0.0)), 0.0)

    def _slow(self, at: float) -> Iterator[Verdict]:
        """Those that are, the worst first."""
        found = []
        slow: set[Life] = set()
        totals = {life: self._total_now(life, loader, at) for life, loader in self._loaders.items()}
        for life, loader in self._loaders.items():
            pieces, total = totals[life]
            peers = [other for other in self._loaders if other != life and other not in self._accused]
            if total < ALARM or not peers:
                continue
            levels = [_level(totals[other][0]) for other in peers if len(totals[other][0]) >= FEWEST]
            last = pieces[-LAST:]
            if len(last) < FEWEST or not levels:
                continue
            level = median(piece.fair for piece in last) - median(levels)
            excess_s = sum(piece.excess_s for piece in pieces if at - piece.at <= WINDOW_S)
            alone = median(totals[other][1] for other in peers) < ALONE
            if level >= math.log(SLOW) and excess_s >= EXCESS_S and alone:
                slow.add(life)
                # A pause of the whole process makes all pieces late that were under way, once.
                loader.in_a_row += loader.news or len(pieces) > len(loader.recent)
            if life in slow and loader.in_a_row >= IN_A_ROW:
                why = (
                    f"takes {math.exp(level):.1f} times as long as its peers for like work; in the last "
                    f"{WINDOW_S:.0f} s {excess_s:.1f} s too long"
                )
                found.append((total, Verdict(life, loader.name, "slow", why)))
        for life, loader in self._loaders.items():
            loader.in_a_row = loader.in_a_row if life in slow else 0
            loader.news = False
        yield from (verdict for _, verdict in sorted(found, key=lambda entry: -entry[0]))

    def _total_now(self, life: Life, loader: _Loader, at: float) -> tuple[list[_Piece], float]:
        """Recent pieces and the sum, with pieces under way that are overdue already: they only get dearer."""
        pieces, total = list(loader.recent), loader.total
        if loader.since is None or at - loader.since < SETTLING_S:
            return pieces, total
        for work in loader.under_way:
            cost, typical = _cost(work, at), self._typical(life, work.kind, at)
            if cost is not None and typical is not None:
                piece = _piece(work, cost, typical)
                more = self._surprise(life, work.kind, piece.fair) - DRIFT
                if more > 0:
                    total += more
                    pieces.append(piece)
        return pieces, total


def _level(pieces: Sequence[_Piece]) -> float:
    """How slow a peer is, at its worst: what slows all of them begins at one."""
    return max(median(piece.residual for piece in pieces[-number:]) for number in (FEWEST, LAST))


def _cost(work: Work, at: float) -> _Cost | None:
    if work.units <= 0 or work.seconds <= 0 or work.share_s <= 0:
        return None
    return _Cost(at, math.log(work.seconds / work.units), math.log(work.seconds / work.share_s))


def _piece(work: Work, cost: _Cost, typical: _Cost) -> _Piece:
    residual = cost.cost - typical.cost
    fair = residual - max(cost.crowd - typical.crowd, 0.0)
    # Pieces side by side are late together: by their shares the seconds count once.
    return _Piece(cost.at, residual, fair, work.share_s * (1 - math.exp(-fair)))
