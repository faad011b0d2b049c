"""Steps that a trainer passes over, after a loss spike say: planned and logged like others, read by nobody.

A step names its data for ever, so what is skipped are steps: the samples of all others stay where they are.
Skips stand in the state, hence in every record after it and in every `state_dict`. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Self

from dataloader_client._pb import plan_pb2
from dataloader_svc.errors import StateError

MOST = 256
"""Of a job: each is in every state."""

MOST_REASON = 200


@dataclass(frozen=True, slots=True, order=True)
class Skip:
    """Steps `first` to `stop` - 1, and why."""

    first: int
    stop: int
    reason: str

    def to_json(self) -> list[Any]:
        return [self.first, self.stop, self.reason]

    @classmethod
    def from_json(cls, values: list[Any]) -> Self:
        """The inverse. ValueError, TypeError: it is none."""
        first, stop, reason = values
        return cls(int(first), int(stop), str(reason))

    def __str__(self) -> str:
        last = self.stop - 1
        what = f"step {last} is" if last == self.first else f"steps {self.first} to {last} are"
        return f"{what} skipped: {self.reason}"


def asked_skips(request: plan_pb2.JoinRequest) -> tuple[Skip, ...]:
    """What a rank that joins wants passed over. StateError: it is no run of steps."""
    found = []
    for asked in request.skip:
        reason = asked.reason or "no reason was given"
        if asked.stop <= asked.first or len(reason) > MOST_REASON:
            raise StateError(
                f"can't skip steps {asked.first} to {asked.stop}: name the first, and the first after "
                f"them, with a reason of at most {MOST_REASON} letters"
            )
        found.append(Skip(int(asked.first), int(asked.stop), reason))
    return tuple(found)


def with_skips(skips: tuple[Skip, ...], more: Iterable[Skip], step: int) -> tuple[Skip, ...]:
    """Both, in order of step. StateError: what comes before `step` has been read; or there are too many."""
    new = [skip for skip in more if skip not in skips]
    for skip in new:
        if skip.first < step:
            raise StateError(
                f"step {skip.first} can't be skipped: the state is at step {step}, and has read it. Load a "
                f"state of step {skip.first} or before"
            )
        other = next((each for each in skips if skip.first < each.stop and each.first < skip.stop), None)
        if other is not None:
            raise StateError(f"{other}: it can't be skipped twice; name the steps that are left")
    if len(skips) + len(new) > MOST:
        raise StateError(f"a job skips at most {MOST} runs of steps")
    return tuple(sorted((*skips, *new)))


def ahead(skips: Iterable[Skip], step: int) -> list[Skip]:
    """Those that a reader from `step` on still meets."""
    return [skip for skip in skips if skip.stop > step]
