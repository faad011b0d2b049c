"""How roles are started, kept running and stopped: the interface of an engine, and its words.

An engine knows nothing of what a role does: it makes one run from a `RoleSpec`, hears from it that it is
ready and where, makes it anew when it dies, and stops it. `local.py` starts processes of this machine;
`child.py` is the other end, inside the role. `dataloader_svc.testing.engine.EngineContract` is its exam.

States of a role:

    start ──> STARTING ──ready──> READY
                 ^  │ dies          │ dies
       after a   │  v               v
       delay     └─ WAITING <───────┘          WAITING ──five deaths in a row that never were ready──> FAILED
                                               exit code 2, 3 or 4, whenever ────────────────────────> FAILED
    stop: any ──> STOPPING ──> STOPPED

A *shadow* is a role that stands by, warm: READY means that it could begin at once. Where one of its kind is
READY, a role that died lives on in it, without a delay, and the shadow is made anew.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal, Protocol

from dataloader_svc.errors import ConfigError, DataError, StateError

Role = Literal["planner", "loader", "constructor"]

STOP_ORDER: tuple[Role, ...] = ("constructor", "planner", "loader")
"""From the trainers backwards: who is stopped first needs nobody who was stopped before."""

FINAL_EXIT_CODES = frozenset({ConfigError.exit_code, DataError.exit_code, StateError.exit_code})
"""A role that ends itself with one of these says that another try would end alike: it is not restarted."""

STOP_GRACE_S = 10.0
"""Time to finish after being asked to stop, before being killed: a planner's commit takes milliseconds, a
constructor's last batch in flight to a slow trainer seconds."""

LAST_GRACE_S = 2.0
"""What is left of it at least for a kind of role that is stopped after one that used it up."""

REPLACE_GRACE_S = 2.0
"""For one that is slow to give its last answers: its work has gone to others."""


def role_name(role: str, index: int, *, shadow: bool = False, split: str = "") -> str:
    """See `RoleSpec.name`."""
    return "-".join([*filter(None, [split]), role, *(["shadow"] if shadow else []), str(index)])


class RoleState(StrEnum):
    STARTING = "starting"  # runs, not yet ready
    READY = "ready"
    WAITING = "waiting"  # dead, and will be started again after a delay
    STOPPING = "stopping"
    STOPPED = "stopped"
    FAILED = "failed"  # for good: the engine has given up


@dataclass(frozen=True, slots=True)
class RoleSpec:
    """What to run. `args` are further command-line arguments of the role, passed on as they are.

    split   the part of the job that it serves, where that is not training: `eval`
    """

    role: Role
    index: int
    args: tuple[str, ...] = ()
    shadow: bool = False
    split: str = ""

    @property
    def name(self) -> str:
        """`loader-0`, `loader-shadow-0`, `eval-planner-0`: unique in an engine."""
        return role_name(self.role, self.index, shadow=self.shadow, split=self.split)


@dataclass(frozen=True, slots=True)
class RoleStatus:
    """A role as the engine sees it now.

    pid and address are None unless a process runs, and it is ready. `restarts` counts lives after the first.
    `last_exit` is the last life's exit code, -signal where one killed it, None before the first death.
    """

    name: str
    state: RoleState
    pid: int | None = None
    address: str | None = None
    restarts: int = 0
    last_exit: int | None = None


Roles = Mapping[str, RoleStatus]


class Engine(Protocol):
    """Supervises roles. All methods belong to one asyncio loop."""

    async def start(self, spec: RoleSpec) -> str:
        """Start a role and return its address once it is ready, restarting it meanwhile where it dies.

        EngineError: it never becomes ready (its last words are in the text), or was stopped before.
        ValueError: a role of that name runs.
        """
        ...

    async def stop(self, name: str, *, grace_s: float = STOP_GRACE_S) -> None:
        """Ask a role to end, kill it after `grace_s`, and return when it is gone with all it started.

        Fine when repeated, also at the same time with a shorter grace. KeyError: no such role.
        """
        ...

    async def replace(self, name: str, address: str, *, grace_s: float = REPLACE_GRACE_S) -> bool:
        """End the life of a role that serves at `address`, as if it had died; tell whether there was one.

        A shadow takes its place, or a new process. KeyError: no such role.
        """
        ...

    def roles(self) -> dict[str, RoleStatus]:
        """All roles ever started, by name."""
        ...

    def logs(self, name: str, lines: int = 20) -> list[str]:
        """The last lines that a role has written, over its lives. KeyError: no such role."""
        ...

    async def wait_for(self, condition: Callable[[Roles], bool]) -> dict[str, RoleStatus]:
        """Return the roles as they were when `condition` first held: now, or at a change of any role.

        EngineError: a role is FAILED, or the engine was closed. A supervisor waits for a condition that
        never holds, to hear of a failure.
        """
        ...

    async def close(self, *, grace_s: float = STOP_GRACE_S) -> None:
        """Stop all roles in STOP_ORDER, each kind together. Nothing can be started afterwards.

        `grace_s` is for all of them together: where the first hang, the others have LAST_GRACE_S each.
        """
        ...
