"""What a trainer, or a person, asks of the job as a whole: `set_mixture`, `commit`, `skip`.

Each request may be made again at any time: it carries an id, by which the service knows one that comes again.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from google.protobuf.message import Message

from dataloader_client import methods
from dataloader_client._pb import common_pb2, control_service_pb2, plan_pb2
from dataloader_client.errors import (
    MixtureError,
    ServiceUnavailableError,
    VersionMismatchError,
    WireError,
)
from dataloader_client.mesh import Coords
from dataloader_client.transport import Transport, coords_message

Request = TypeVar("Request", bound=Message)
Response = TypeVar("Response", bound=Message)

TIMEOUT_S = 60.0
Skip = plan_pb2.SkippedSteps
_COMMIT_S = 10.0
_MOST_REASON = 200


@dataclass(frozen=True, slots=True)
class MixtureChange:
    """A change that was made: `weights`, summing to 1, from `at_step` on, or reached over `over` steps."""

    at_step: int
    weights: Mapping[str, float]
    over: int = 0


def set_mixture(
    transport: Transport,
    weights: Mapping[str, float],
    *,
    at_step: int | None = None,
    over: int = 0,
    timeout_s: float = TIMEOUT_S,
) -> MixtureChange:
    """Ask for a change of the mixture. Raises MixtureError where it can't be made; then nothing was changed.

    at_step   first step with these weights; None: the first that is not planned yet
    over      steps in which the weights move there evenly
    """
    request = control_service_pb2.MixtureChange(id=uuid.uuid4().hex[:16])
    for name, value in (("at_step", at_step), ("over", over)):
        try:
            if value is not None:
                setattr(request, name, value)
        except (TypeError, ValueError):
            raise MixtureError(f"{name} is {value!r}; a number of a step is needed, 0 or more") from None
    for name, weight in weights.items():
        try:
            request.weights[name] = weight
        except (TypeError, ValueError):
            raise MixtureError(f"the weight of {name!r} is {weight!r}; a number is needed") from None
    made = ask(transport, methods.SET_MIXTURE, request, timeout_s)
    return MixtureChange(int(made.at_step), dict(made.weights), int(made.over))


def show_mixture(transport: Transport, *, timeout_s: float = TIMEOUT_S) -> control_service_pb2.MixtureStatus:
    """The schedule that holds, and what was changed."""
    return ask(transport, methods.SHOW_MIXTURE, common_pb2.Empty(), timeout_s)


def ask(
    transport: Transport, method: methods.Unary[Request, Response], request: Request, timeout_s: float
) -> Response:
    """The answer. VersionMismatchError: the service is of a time before there was such a question."""
    try:
        return transport.ask(method, request, timeout_s=timeout_s)
    except WireError:
        raise VersionMismatchError(
            f"the service at {transport.address} does not know {method.name}: it is older than this client, "
            "or no dataloader-svc. Upgrade the service"
        ) from None


def commit(transport: Transport, session: int, coords: Coords, step: int) -> int | None:
    """Say that a rank's checkpoint of `step` is safe; see `Controls.commit`."""
    request = control_service_pb2.CommitRequest(session=session, coords=coords_message(coords), step=step)
    try:
        return int(ask(transport, methods.COMMIT, request, _COMMIT_S).committed)
    except (ServiceUnavailableError, VersionMismatchError):
        return None


def following(skips: Iterable[Skip], step: int) -> int:
    """`step`, or the first after it that is in none of `skips`, which ascend."""
    for skip in skips:
        if skip.first <= step < skip.stop:
            step = skip.stop
    return step


class Controls:
    """What `DataServiceLoader` can ask of the job beside its batches; it provides what stands here."""

    def _transport(self) -> Transport:
        """Of a loader that is usable; raises DataServiceError where it isn't."""
        raise TypeError("a loader has a transport")

    def _place(self) -> tuple[int, Coords, int]:
        """Session, this rank's place, and the step at which its `state_dict` stands now."""
        raise TypeError("a loader has a place")

    def commit(self, step: int | None = None) -> int | None:
        """Say that this rank will not come back with a state of before `step`: its checkpoint is safe.

        step   `state_dict()["step"]` of what was saved; by default of the state now

        Every rank says it, after each checkpoint. Once all ranks have, plans of steps before are removed from
        the service's store, but for the last `planner.keep`. Returns the step that all ranks have committed,
        0 while one has not; None where the service is away or too old, which costs nothing: the next commit
        says it again. An older state can be loaded even so: its steps are planned again, the same. Raises
        SessionSupersededError, and StateMismatchError for a step that is not planned yet.
        """
        transport = self._transport()
        session, coords, now = self._place()
        return commit(transport, session, coords, now if step is None else step)

    def _skip(self, skip: Skip) -> None:
        """Join again where this loader stands, with steps to be passed over."""
        raise TypeError(f"a loader joins, to skip {skip}")

    def skip(self, step_from: int, step_to: int, reason: str = "") -> None:
        """Pass over steps `step_from` to `step_to` - 1, after a loss spike say; all ranks must.

        They are planned as ever and stand in the log with `reason`, and nobody gets them: the batch after
        step `step_from` - 1 is that of `step_to`, and the samples of all other steps stay where they are.
        Load a state of `step_from` or before first. It begins a new generation of the plan log, whose states
        all know it. Steps read ahead are thrown away. Raises StateMismatchError for steps that the state has
        read, or that are skipped already; ValueError where they are no run of steps.
        """
        self._transport()
        if not 0 <= step_from < step_to:
            raise ValueError(
                f"can't skip steps {step_from} to {step_to}: give the first, and the first after"
            )
        if len(reason) > _MOST_REASON:
            raise ValueError(f"the reason has {len(reason)} letters; at most {_MOST_REASON}")
        self._skip(Skip(first=step_from, stop=step_to, reason=reason))

    def set_mixture(
        self, weights: Mapping[str, float], *, at_step: int | None = None, over: int = 0
    ) -> MixtureChange:
        """Let the sources be drawn by other `weights` from a step on, for the whole job; say which it is.

        at_step   first step with these weights; by default the first that is not planned yet, some
                  `planner.ahead` steps from here
        over      steps in which the weights move there evenly; 0: at once

        One rank says it. It is in the service's store when this returns, and in every `state_dict` from the
        step on that was planned next: no restart loses it. A source that is not named has weight 0. Later
        entries of `mixture.schedule` stand. Raises MixtureError where the step is planned already, a source
        is unknown, or the weights make no sense: then nothing was changed.
        """
        return set_mixture(self._transport(), weights, at_step=at_step, over=over)
