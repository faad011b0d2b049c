"""What a constructor's window takes in and what it answers with: data only.

Events say what happened, actions what is to be done about it. `core.py` decides, `session.py` carries out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class Rank(NamedTuple):
    """A reader's place on the mesh."""

    dp: int
    cp: int
    tp: int
    pp: int

    def __str__(self) -> str:
        return ",".join(f"{axis}={place}" for axis, place in self._asdict().items() if place or axis == "dp")


# --- events: what happened ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Asked:
    """A rank wants a step, perhaps again."""

    step: int
    rank: Rank


@dataclass(frozen=True, slots=True)
class Delivered:
    """All of a step's bytes have gone to the rank."""

    step: int
    rank: Rank


@dataclass(frozen=True, slots=True)
class GaveUp:
    """The rank no longer waits: cancelled, cut off, or told an error."""

    step: int
    rank: Rank


@dataclass(frozen=True, slots=True)
class Left:
    """The rank will read no more, or seems to: one that reads after all is there again."""

    rank: Rank


@dataclass(frozen=True, slots=True)
class Planned:
    """The plan has come. A build takes at most `work_bytes` for its time, and `kept_bytes` after it."""

    step: int
    work_bytes: int
    kept_bytes: int


@dataclass(frozen=True, slots=True)
class Ended:
    """There is no step `step`, nor a later one."""

    step: int


@dataclass(frozen=True, slots=True)
class PlansLost:
    """The stream of plans broke and may be opened again."""


@dataclass(frozen=True, slots=True)
class PlansFailed:
    """The planner refuses; who waits for a plan was told. Ask again only when somebody else does."""


@dataclass(frozen=True, slots=True)
class Built:
    """A step is ready and takes `kept_bytes`."""

    step: int
    kept_bytes: int


@dataclass(frozen=True, slots=True)
class BuildFailed:
    """A step could not be built; who waited for it was told. Try again only when it is asked for."""

    step: int


@dataclass(frozen=True, slots=True)
class Reserved:
    """An encoded copy of what goes to a rank takes at most `num_bytes`: no more than was free."""

    num_bytes: int


@dataclass(frozen=True, slots=True)
class Released:
    """So many of the bytes that were reserved for copies are free again."""

    num_bytes: int


Event = (
    Asked
    | Delivered
    | GaveUp
    | Left
    | Planned
    | Ended
    | PlansLost
    | PlansFailed
    | Built
    | BuildFailed
    | Reserved
    | Released
)


# --- actions: what is to be done ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class OpenPlans:
    """Ask the planner for plans from `from_step` to `up_to`, in place of any stream before."""

    from_step: int
    up_to: int


@dataclass(frozen=True, slots=True)
class ExtendPlans:
    """Ask for more on the open stream."""

    up_to: int


@dataclass(frozen=True, slots=True)
class ClosePlans:
    """Nobody is there to read: end the open stream, so that nothing is held for it."""


@dataclass(frozen=True, slots=True)
class StartBuild:
    """Fetch the samples of a planned step and build it."""

    step: int


@dataclass(frozen=True, slots=True)
class Drop:
    """Free the batches of a step; with `forget`, its plan as well."""

    step: int
    forget: bool


@dataclass(frozen=True, slots=True)
class Refuse:
    """Tell who waits for the step that it can never fit."""

    step: int
    needed_bytes: int


Action = OpenPlans | ExtendPlans | ClosePlans | StartBuild | Drop | Refuse
