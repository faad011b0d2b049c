"""Who may join, and where the log goes on: decided from what a client brings and what the store holds. Pure.

A *generation* is one life of the plan log: it begins from a base state under one configuration. A *session*
is what ranks have agreed on by joining: mesh, first step and state. Equal joins are one session; any other
starts the next, and readers of the one before are told so. Both are kept in the store, so that a planner that
was restarted knows them and readers notice nothing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Self

from dataloader_client import methods
from dataloader_svc.config.digest import compare
from dataloader_svc.errors import StateError, VersionError
from dataloader_svc.planner.change import Change
from dataloader_svc.planner.place import MeshSize
from dataloader_svc.planner.skip import Skip
from dataloader_svc.planner.state import State

GENERATION_PREFIX = "generation/"
GENERATION_POINTER = f"{GENERATION_PREFIX}current"
SESSION_KEY = "session"


@dataclass(frozen=True, slots=True, eq=False)
class Generation:
    """`config_hash` covers all that changes plans; `parent` is the generation before it.

    changes   of the mixture that this history knows beside those that its base carries, and that come later
    origin    the generation whose history the base is a state of; 0: none in this store, None: not written
              down, by an earlier version of the service
    """

    number: int
    base: State
    config_hash: str
    parent: int | None
    reason: str
    changes: tuple[Change, ...] = ()
    origin: int | None = None

    @property
    def log(self) -> str:
        """Name of its plan log."""
        return self.log_of(self.number)

    @staticmethod
    def log_of(number: int) -> str:
        """Name of the plan log of a generation."""
        return f"plan/{number}"

    @property
    def mixture_log(self) -> str:
        """Name of the log of the changes of the mixture that were made in it, numbered from 0."""
        return f"mixture/{self.number}"

    @property
    def losses_log(self) -> str:
        """Name of the log of what ranks reported to have lost in it, numbered from 0."""
        return f"losses/{self.number}"

    @staticmethod
    def key(number: int) -> str:
        """Of its entry in the store."""
        return f"{GENERATION_PREFIX}{number:08d}"

    def to_json(self) -> bytes:
        values = {
            "number": self.number,
            "config_hash": self.config_hash,
            "parent": self.parent,
            "reason": self.reason,
            "base": self.base.to_json(),
        }
        if self.origin is not None:
            values["origin"] = self.origin
        if self.changes:
            values["changes"] = [change.to_json() for change in self.changes]
        return json.dumps(values).encode()

    @classmethod
    def from_json(cls, data: bytes) -> Self:
        values = json.loads(data)
        return cls(
            number=values["number"],
            base=State.from_json(values["base"]),
            config_hash=values["config_hash"],
            parent=values["parent"],
            reason=values["reason"],
            changes=tuple(map(Change.from_json, values.get("changes", ()))),
            origin=values.get("origin"),
        )


@dataclass(frozen=True, slots=True)
class Session:
    """Number counts from 1 over the life of the store.

    reopens   requests for readmission below this number come even where the data has ended at its start
    """

    number: int
    generation: int
    start_step: int
    state_hash: str
    mesh: MeshSize
    reopens: int = 0

    def to_json(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @classmethod
    def from_json(cls, data: bytes) -> Self:
        values = json.loads(data)
        return cls(**{**values, "mesh": MeshSize(**values["mesh"])})

    def matches(self, generation: int, start_step: int, state_hash: str, mesh: MeshSize) -> bool:
        """Whether a join with these belongs to this session."""
        mine = (self.generation, self.start_step, self.state_hash, self.mesh)
        return mine == (generation, start_step, state_hash, mesh)


@dataclass(frozen=True, slots=True)
class Continue:
    """Go on in the current generation from `state`; its log holds every step from its base to there."""

    state: State


@dataclass(frozen=True, slots=True)
class Branch:
    """Begin a new generation, for this reason."""

    reason: str


def decide(
    state: State,
    adapted: State,
    generation: Generation | None,
    logged: State | None,
    config_hash: str,
    *,
    data_changed: bool = False,
) -> Continue | Branch:
    """Where a client goes on that brings `state`: the initial one where it brings none.

    `adapted` is that state under today's configuration, from which a new generation would begin: ranks that
    join one after the other bring the same state, and only the first may find that it needs one.
    `logged` is the state that the current generation's log has at the same step, if it has that step.
    `data_changed`: files were found to be others than the log was made with.
    """
    if generation is None:
        return Branch("first start" if state.step == 0 else "a state, and a store that knows no plans")
    if generation.config_hash != config_hash:
        return Branch("the configuration has changed")
    if state.step == 0 and data_changed:
        return Branch("the files have changed")
    known = generation.base if state.step == generation.base.step else logged
    if known is not None and known.hash() in (state.hash(), adapted.hash()):
        return Continue(known)
    if state.step == 0:
        return Branch("from the start again")
    return Branch(f"the state of step {state.step} is not one of generation {generation.number}")


def reason_of(choice: Branch, state: State, base: State, skips: tuple[Skip, ...]) -> str:
    """Why a generation begins at `base`, for people: from a client's `state`, who asked for `skips`."""
    if skips:
        return "; ".join(map(str, skips))
    if state.job and state.job != base.job:
        return f"forked from job {state.job!r} at step {state.step}"
    return choice.reason


def check_protocol(protocol: int, client_version: str, service_version: str) -> None:
    """VersionError that says who is older."""
    if protocol == methods.PROTOCOL:
        return
    older = "client" if protocol < methods.PROTOCOL else "service"
    raise VersionError(
        f"the client ({client_version or 'unnamed'}) speaks protocol {protocol}, the service "
        f"({service_version}) {methods.PROTOCOL}: upgrade the {older}"
    )


def check_state(state: State, digests: Mapping[str, str], *, force: bool) -> None:
    """StateError naming the settings that would make the same positions name other data."""
    changed = compare(state.config, digests)
    if changed and not force:
        verb = "differs" if len(changed) == 1 else "differ"
        raise StateError(
            f"{', '.join(changed)} {verb} from what the state was made with: samples that it counts as read "
            "would be others. Restore the setting, start without the state, or join with force to go on "
            "anyway"
        )
