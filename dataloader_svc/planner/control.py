"""What people and trainers ask of a running job as a whole: handler of ControlService in the planner.

Each request is written to the store before it is answered, under the lock under which records are written:
so it counts from a step that nobody has seen. What the store may or may not have taken ends the role, which
starts again from what is there; whoever asked asks again, with the same id. `change.py` says what can be
asked.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Literal

from dataloader_client._pb import common_pb2, control_service_pb2
from dataloader_client.adaptive import Rule
from dataloader_svc import faultpoint
from dataloader_svc.config.schema import Adaptive
from dataloader_svc.errors import MixtureError, NotLeader, SessionSuperseded, StateError, StoreError
from dataloader_svc.planner.adaptive import AdaptiveMixture
from dataloader_svc.planner.background import Background
from dataloader_svc.planner.change import Change, accepted
from dataloader_svc.planner.commits import Commits
from dataloader_svc.planner.core import Event, Mixed, PlannerCore
from dataloader_svc.planner.journal import Journal
from dataloader_svc.planner.mixture import Schedule, Weights
from dataloader_svc.planner.session import Session
from dataloader_svc.planner.state import State

log = logging.getLogger(__name__)


class Control:
    """Belongs to the planner's event loop.

    keep      steps that stay in the log before those that are committed
    session   the one that is served now
    apply     how the core is told of an event
    writing   held while a record is on its way to the log
    """

    def __init__(
        self,
        core: PlannerCore,
        journal: Journal,
        schedule: Schedule,
        unit: Literal["tokens", "samples"],
        *,
        keep: Literal["all"] | int,
        session: Callable[[], Session | None],
        apply: Callable[[Event], None],
        writing: asyncio.Lock,
        background: Background,
        adaptive: Adaptive | None,
        rule: Rule | None,
    ) -> None:
        self._core, self._journal, self._schedule, self._unit = core, journal, schedule, unit
        self._apply, self._writing, self._background = apply, writing, background
        self._at_work: set[asyncio.Task[Change | None]] = set()
        self._keep, self._session = keep, session
        self._commits = Commits()
        self._first = 0  # records before it were removed
        self._adaptive = None
        if adaptive is not None and rule is not None:
            self._adaptive = AdaptiveMixture(
                adaptive,
                rule,
                schedule,
                core,
                journal,
                session=session,
                make=self._change,
                background=background,
            )

    async def take_up(self) -> None:
        """Know what the store has of the generation that is gone on with, or has begun."""
        if self._adaptive is not None:
            await self._adaptive.take_up()

    async def set_mixture(
        self, request: control_service_pb2.MixtureChange
    ) -> control_service_pb2.MixtureChange:
        """Let other weights hold from a step on. MixtureError: why they can't; nothing is changed then."""
        if not request.id:
            raise MixtureError("a change needs an id, so that it is made once however often it is asked for")
        at_step = int(request.at_step) if request.HasField("at_step") else -1
        asked = Change(
            request.id, at_step, dict(request.weights), int(request.over), 0, self._schedule.digest
        )
        # A caller that goes away must not leave a change in the store that the core does not know.
        task = asyncio.create_task(self._change(lambda _: asked))
        self._at_work.add(task)
        task.add_done_callback(self._at_work.discard)
        made = await asyncio.shield(task)
        assert made is not None, "it was asked for"
        return _message(made)

    async def _change(self, build: Callable[[State], Change | None]) -> Change | None:
        """Make the change that is wanted for the state as it is; None: none is."""
        async with self._writing:
            state = self._state()
            asked = build(state)
            if asked is None:
                return None
            for made in self._journal.changes:
                if made.id == asked.id:
                    return made
            change = accepted(asked, state.mixture, state.names, state.step, self._core.end)
            faultpoint.point("planner.mixture_asked")
            try:
                await self._journal.append_change(change)
            except StoreError as error:  # it may be there
                self._background.fail(error)
                raise
            faultpoint.point("planner.mixture_written")
            self._apply(Mixed(self._journal.changes))
        log.info("planner: mixture %s from step %d, over %d", change.weights, change.at_step, change.over)
        return change

    async def show_mixture(self, _: common_pb2.Empty) -> control_service_pb2.MixtureStatus:
        """The schedule that holds, what was drawn, and the changes that were made."""
        await self.take_up()
        state = self._state()
        schedule = self._schedule.changed((*state.mixture, *self._to_come(state)))
        status = control_service_pb2.MixtureStatus(
            next_step=state.step,
            unit=self._unit,
            weights=_weights(schedule, schedule.weights(state.step)),
            changes=map(_message, self._journal.changes),
            adaptive=None if self._adaptive is None else self._adaptive.to_message(),
        )
        drawn = {name: getattr(source, self._unit) for name, source in state.sources.items()}
        total = max(sum(drawn.values()), 1)
        for name, amount in drawn.items():
            status.drawn[name] = amount / total
        for step, ramp, row in zip(schedule.steps, schedule.ramps, schedule.table, strict=True):
            status.schedule.add(step=int(step), ramp=bool(ramp), weights=_weights(schedule, row))
        return status

    async def report_losses(
        self, request: control_service_pb2.LossesRequest
    ) -> control_service_pb2.LossesResponse:
        """Take in what ranks lost. Where the mixture follows nothing, it is left aside."""
        if self._adaptive is None:
            return control_service_pb2.LossesResponse()
        self._state()
        return await self._adaptive.report(request)

    async def commit(self, request: control_service_pb2.CommitRequest) -> control_service_pb2.CommitResponse:
        """Take in that a rank's checkpoint is safe; remove what no rank of the session needs any more."""
        session, state = self._session(), self._state()
        now = 0 if session is None else session.number
        if session is None or request.session != now:
            raise SessionSuperseded.of(int(request.session), now)
        if request.step > state.step:
            raise StateError(
                f"step {request.step} is committed, and the plan log ends before step {state.step}: a commit "
                "names the step of a state_dict that was saved, state['step']"
            )
        committed = self._commits.add(session, request.coords, int(request.step))
        before = 0 if self._keep == "all" else max(committed - 1 - self._keep, 0)
        if before > self._first:
            try:
                await self._journal.truncate(before)
                self._first = before
            except NotLeader:
                raise
            except StoreError as error:  # the next commit removes what this one didn't
                log.warning("planner: can't remove records before step %d: %s", before, error)
        return control_service_pb2.CommitResponse(committed=committed, first=self._first)

    def _to_come(self, state: State) -> list[Change]:
        """Known, but not in the state yet: it was planned before they were made."""
        ids = {change.id for change in state.mixture}
        new = (change for change in self._journal.changes if change.known_from >= state.step)
        return [change for change in new if change.id not in ids]

    def _state(self) -> State:
        if self._background.failed.done():
            raise NotLeader("the planner is stopping; it will be back")
        state = self._core.state
        if state is None:
            raise MixtureError(
                "no trainer has joined yet, so there is no job to change: write the weights into "
                "mixture.schedule, or wait until one has"
            )
        return state


def _message(change: Change) -> control_service_pb2.MixtureChange:
    return control_service_pb2.MixtureChange(
        id=change.id,
        at_step=change.at_step,
        weights=change.weights,
        over=change.over,
        known_from=change.known_from,
        rule="" if change.learned is None else change.learned.rule,
    )


def _weights(schedule: Schedule, row: Weights) -> dict[str, float]:
    """Without sources that have none."""
    return {name: weight for name, weight in zip(schedule.names, row.tolist(), strict=True) if weight}
