"""Changes of the mixture while a job runs: what one is, and which of them a state carries. Pure.

A change is an entry that comes into the schedule of the configuration (`mixture.Schedule.changed`). It is in
the store before anybody is told of it, and in the job's state from the step on that was planned next when it
was made, so that every later state knows it: docs/decisions/0008.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

from dataloader_svc.errors import MixtureError
from dataloader_svc.registry import nearest

MOST_AHEAD = 8
"""Changes that may lie ahead or be on their way at once: each is in every state, by source."""

MOST_STEP = 2**53 - 1
"""Steps are numbers of JSON."""


@dataclass(frozen=True, slots=True)
class Learned:
    """What a change of `mixture.adaptive` was made of.

    rule     that made it, as the configuration names it
    before   losses of steps before this one were decided on
    memory   what the rule remembers: JSON
    losses   mean loss of a target, by source, that it decided by; a state does without them
    """

    rule: str
    before: int
    memory: Any = None
    losses: Mapping[str, float] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        values = {"rule": self.rule, "before": self.before, "memory": self.memory}
        return {**values, "losses": dict(self.losses)} if self.losses else values

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """The inverse. ValueError, KeyError, TypeError: it is none."""
        losses = {str(name): float(loss) for name, loss in values.get("losses", {}).items()}
        return cls(str(values["rule"]), int(values["before"]), values["memory"], losses)


@dataclass(frozen=True, slots=True)
class Change:
    """Draw by `weights` from `at_step` on, or move there evenly over `over` steps.

    id           who asked gave it: one that comes again is the same
    weights      by name of source, above 0, summing to 1
    known_from   the step that was planned next when it was accepted: its state is the first to have it
    schedule     digest of the configured schedule that it changed; another one makes it void
    learned      of one that `mixture.adaptive` made
    """

    id: str
    at_step: int
    weights: Mapping[str, float]
    over: int
    known_from: int
    schedule: str
    learned: Learned | None = None

    @property
    def stop(self) -> int:
        """The first step at which its weights hold wholly."""
        return self.at_step + self.over

    def to_json(self) -> dict[str, Any]:
        values = {
            "id": self.id,
            "at_step": self.at_step,
            "weights": dict(self.weights),
            "over": self.over,
            "known_from": self.known_from,
            "schedule": self.schedule,
        }
        return values if self.learned is None else {**values, "learned": self.learned.to_json()}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """The inverse. ValueError, KeyError, TypeError: it is none."""
        weights = {str(name): float(weight) for name, weight in values["weights"].items()}
        steps = (int(values[name]) for name in ("at_step", "over", "known_from"))
        at_step, over, known_from = steps
        learned = Learned.from_json(values["learned"]) if "learned" in values else None
        return cls(str(values["id"]), at_step, weights, over, known_from, str(values["schedule"]), learned)


def checked_weights(weights: Mapping[str, float], names: Sequence[str]) -> dict[str, float]:
    """The same, summing to 1, sorted, without zeros. MixtureError: a source that is none, or no weights."""
    for name, weight in weights.items():
        if name not in names:
            known = ", ".join(names)
            raise MixtureError(f"there is no source {name!r}; there are {known}{nearest(name, list(names))}")
        if not math.isfinite(weight) or weight < 0:
            raise MixtureError(f"the weight of {name!r} is {weight}: give a number that is 0 or more")
    total = sum(weights.values())
    if not 0 < total < math.inf:
        raise MixtureError(f"the weights sum to {total:g}: at least one must be above 0, and none enormous")
    return {name: weights[name] / total for name in sorted(weights) if weights[name] / total > 0}


def with_new(carried: tuple[Change, ...], known: Iterable[Change], step: int) -> tuple[Change, ...]:
    """What the state before `step` carries, and the changes that it is the first to have.

    What a rule remembers is needed of the last alone.
    """
    ids = {change.id for change in carried}
    new = tuple(change for change in known if change.known_from == step and change.id not in ids)
    both = (*carried, *new)
    newest = newest_learned(both)
    return tuple(
        change if change.learned is None else replace(change, learned=_carried(change.learned, newest))
        for change in both
    )


def _carried(learned: Learned, newest: Learned | None) -> Learned:
    """As a state has it."""
    return replace(learned, losses={}, memory=learned.memory if learned is newest else None)


def newest_learned(changes: Iterable[Change]) -> Learned | None:
    """The last decision of `mixture.adaptive` in them."""
    found = [change.learned for change in changes if change.learned is not None]
    return max(found, key=lambda learned: learned.before, default=None)


def without_past(carried: tuple[Change, ...], step: int) -> tuple[Change, ...]:
    """Without those of which the weights of step `step` - 1, and later ones, show nothing any more.

    A later change overrides all that ends before it does, once its own weights hold.
    """
    return tuple(
        change
        for number, change in enumerate(carried)
        if not any(later.stop < step and change.stop <= later.stop for later in carried[number + 1 :])
    )


def in_force(carried: tuple[Change, ...], schedule: str) -> tuple[Change, ...]:
    """Those that were made under the configured schedule with this digest; else the file is newer."""
    return tuple(change for change in carried if change.schedule == schedule)


def still_to_come(known: Iterable[Change], step: int, schedule: str) -> tuple[Change, ...]:
    """Of a history's changes, those that a generation which branches off before `step` must be told.

    Not those that were made of losses of steps which come again: they are reported again.
    """
    to_come = (change for change in known if change.known_from >= step)
    stands = (change for change in to_come if change.learned is None or change.learned.before <= step)
    return in_force(tuple(stands), schedule)


def accepted(
    asked: Change, carried: Iterable[Change], names: Sequence[str], free: int, end: int | None
) -> Change:
    """`asked`, checked. MixtureError where it can't be made.

    free   the first step that is not planned yet, at which it is known; at_step -1 asks for that one
    end    the step that does not exist for want of data, where that is known
    """
    if end is not None:
        raise MixtureError(f"the data ends before step {end}, and all steps before it are planned")
    at_step = free if asked.at_step < 0 else asked.at_step
    if at_step < free:
        raise MixtureError(
            f"step {at_step} is already planned: the first step that is not is {free}. Name that or a later "
            "one, or none, for the first that can be had"
        )
    if asked.over < 0 or at_step + asked.over > MOST_STEP:
        raise MixtureError(
            f"steps go to {MOST_STEP}; asked for {at_step} and {asked.over} steps to get there"
        )
    ahead = [change for change in carried if change.stop > free]
    if len(ahead) >= MOST_AHEAD:
        last = ", ".join(str(change.at_step) for change in ahead)
        raise MixtureError(
            f"{len(ahead)} changes are still to come, at steps {last}: no more than {MOST_AHEAD} are kept. "
            "Write long plans into mixture.schedule"
        )
    weights = checked_weights(asked.weights, names)
    return replace(asked, at_step=at_step, weights=weights, known_from=free)
