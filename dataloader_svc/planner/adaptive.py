"""The mixture follows losses: what ranks report is kept, and each period of it decides once.

A report is in the store before it is answered, and who reports keeps it until then; what was decided is a
change of the mixture like any other (`change.py`), with what the rule remembers in it. So a planner that
starts again knows what the one before knew, and decides the same. `feedback.py` collects, the client's
`adaptive` package has the rules; decision 0013 says why it is so.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from dataloader_client._pb import control_service_pb2
from dataloader_client.adaptive import Rule, Told, updated, within
from dataloader_svc import faultpoint
from dataloader_svc.config.adaptive_rule import known_rule
from dataloader_svc.config.code_import import described
from dataloader_svc.config.schema import Adaptive, Config
from dataloader_svc.errors import MixtureError, NotLeader, StoreError
from dataloader_svc.planner.background import Background
from dataloader_svc.planner.change import Change, Learned, in_force, newest_learned
from dataloader_svc.planner.core import PlannerCore
from dataloader_svc.planner.feedback import Feedback, is_well_formed
from dataloader_svc.planner.journal import Journal
from dataloader_svc.planner.mixture import Schedule
from dataloader_svc.planner.session import Generation, Session
from dataloader_svc.planner.state import State

log = logging.getLogger(__name__)

_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class _Case:
    """What a period is decided by, and the first step that can be drawn so."""

    told: Told
    memory: Any
    at_step: int


class AdaptiveMixture:
    """Belongs to the planner's event loop.

    schedule   the configured one, which bounds refer to
    session    the one that is served now
    make       writes the change that it is given for a state, while none is planned meanwhile; None: there
               is none for that one
    """

    def __init__(
        self,
        settings: Adaptive,
        rule: Rule,
        schedule: Schedule,
        core: PlannerCore,
        journal: Journal,
        *,
        session: Callable[[], Session | None],
        make: Callable[[Callable[[State], Change | None]], Awaitable[Change | None]],
        background: Background,
    ) -> None:
        self._settings, self._rule, self._schedule = settings, rule, schedule
        self._core, self._journal, self._session = core, journal, session
        self._make, self._background = make, background
        self._appending = asyncio.Lock()
        self._at_work: set[asyncio.Task[None]] = set()
        self._deciding = False
        self._refused = 0
        self._problem = ""
        self._feedback = self._empty()
        self._generation: Generation | None = None  # that it is of

    @staticmethod
    def rule_of(config: Config, base_dir: Path) -> Rule | None:
        """The rule that a job names; None: its mixture follows nothing. ConfigError: it is no use."""
        adaptive = config.mixture.adaptive
        return None if adaptive is None else known_rule(adaptive, config.sources, base_dir)

    def _empty(self) -> Feedback:
        settings = self._settings
        return Feedback(
            self._schedule.names,
            begin=settings.begin,
            every=settings.every,
            patience=settings.lead // 2,
            refuse=self._refuse,
        )

    async def take_up(self) -> None:
        """Know what the store knows of the generation that is planned in now; a new one has no reports."""
        async with self._appending:
            await self._take_up()

    async def _take_up(self) -> None:
        generation = self._journal.generation
        if self._session() is None or generation is None or generation is self._generation:
            return  # without a session, planning may still be in the generation before
        requests, feedback = await self._journal.load_losses(), self._empty()
        learned = self._learned()
        if learned is not None:
            feedback.forget(learned.before)
        self._generation, self._feedback, self._problem = generation, feedback, ""
        for request in requests:
            self._add(request)
        self._consider()

    # ---- what ranks report

    async def report(self, request: control_service_pb2.LossesRequest) -> control_service_pb2.LossesResponse:
        """Keep what is new in it. In the store when this returns; what is of no use is left aside."""
        # A caller that goes away must not leave reports in the store that are not known here.
        task = asyncio.create_task(self._keep(request))
        self._at_work.add(task)
        task.add_done_callback(self._at_work.discard)
        await asyncio.shield(task)
        return control_service_pb2.LossesResponse(decided=self._feedback.decided)

    async def _keep(self, request: control_service_pb2.LossesRequest) -> None:
        async with self._appending:
            await self._take_up()
            useful = [report for report in request.steps if self._is_useful(report)]
            new = control_service_pb2.LossesRequest(steps=useful)
            if not new.steps:
                return
            await self._journal.append_losses(new)
            faultpoint.point("planner.losses_written")
            if self._journal.generation is self._generation:
                self._add(new)
                self._consider()

    def _is_useful(self, report: control_service_pb2.StepLosses) -> bool:
        session, state = self._session(), self._core.state
        if session is None or state is None or report.session != session.number:
            return False
        there = report.dp_rank < session.mesh.dp and report.cp_rank < session.mesh.cp
        planned = report.step < state.step
        return (
            there
            and planned
            and is_well_formed(report, len(self._schedule.names))
            and self._feedback.is_new(report)
        )

    def _add(self, request: control_service_pb2.LossesRequest) -> None:
        for report in request.steps:
            if self._feedback.is_new(report):
                self._feedback.add(report)

    def _refuse(self, what: str) -> None:
        if not self._refused:
            log.warning("planner: what is no loss is left out: %s", what)
        self._refused += 1

    # ---- deciding

    def _expected(self) -> int:
        session = self._session()
        return 1 if session is None else session.mesh.dp * session.mesh.cp

    def _consider(self) -> None:
        if not self._deciding and self._feedback.due(self._expected()) is not None:
            self._deciding = True
            self._background.start(self._decide())

    async def _decide(self) -> None:
        try:
            while (before := self._feedback.due(self._expected())) is not None:
                feedback = self._feedback
                problem = await self._update(before)
                if self._feedback is not feedback:
                    continue  # another generation has begun meanwhile
                if problem and problem != self._problem:
                    log.warning("planner: weights stay as they are at step %d: %s", before, problem)
                self._problem = problem
                feedback.forget(before)
                await self._forget_in_store(before)
        finally:
            self._deciding = False

    async def _update(self, before: int) -> str:
        """Decide by the losses of steps before `before`; why weights stay as they are, or ""."""
        settings, state = self._settings, self._core.state
        assert state is not None, "what is reported was planned"
        try:
            while True:
                case = self._case(before, state)
                try:  # in a thread, since it may be the user's code: planning goes on
                    weights, memory = await asyncio.to_thread(
                        updated, self._rule, case.told, case.memory, settings.options
                    )
                except Exception as error:  # whatever it is, it is the rule's, and told
                    return f"{settings.rule}: {described(error)}"
                learned = Learned(settings.rule, before, memory, case.told.losses)
                if await self._make(partial(self._change, case, weights, learned)) is not None:
                    return ""
                state = self._core.state  # the mixture was changed meanwhile
                assert state is not None, "there is no way back before a join"
        except MixtureError as error:
            return str(error)

    def _change(
        self, case: _Case, weights: Mapping[str, float], learned: Learned, state: State
    ) -> Change | None:
        """For the state as it is when it is written; None where what it was decided by holds no more."""
        now = self._case(learned.before, state)
        if (now.told, now.memory) != (case.told, case.memory):
            return None
        name = f"adaptive/{learned.before}"
        return Change(name, now.at_step, weights, 0, state.step, self._schedule.digest, learned)

    def _case(self, before: int, state: State) -> _Case:
        """MixtureError: no loss is known, or what holds then is beyond the bounds: somebody's will."""
        known = self._journal.changes
        carried = {change.id for change in state.mixture}
        to_come = [each for each in known if each.known_from >= state.step and each.id not in carried]
        at_step = max(before + self._settings.lead, state.step)
        row = self._schedule.weights(at_step)
        names = self._schedule.names
        declared = {name: weight for name, weight in zip(names, row.tolist(), strict=True) if weight > 0}
        now = self._schedule.changed((*state.mixture, *to_come)).weights(at_step)
        weights = dict(zip(names, now.tolist(), strict=True))
        if others := [name for name in names if name not in declared and weights[name] > _ROUNDING]:
            raise MixtureError(
                f"{others[0]!r} is drawn with weight {weights[others[0]]:.4g}, and mixture.schedule gives it "
                "none at that step"
            )
        sums = self._feedback.sums(before)
        losses = {name: loss for name, loss in sums.losses.items() if name in declared}
        if not losses:
            raise MixtureError("nobody has reported a loss that can be used")
        told = Told(
            weights={name: weights[name] for name in declared},
            declared=declared,
            losses=losses,
            targets={name: sums.targets[name] for name in losses},
            bounds=self._settings.bounds,
        )
        try:
            within(told.weights, told)
        except ValueError as error:
            raise MixtureError(str(error)) from None
        learned = self._learned()
        same = learned is not None and learned.rule == self._settings.rule
        return _Case(told, learned.memory if learned is not None and same else None, at_step)

    def _learned(self) -> Learned | None:
        """The last decision that counts, of whichever rule."""
        state = self._core.state
        carried = () if state is None else state.mixture
        return newest_learned(in_force((*self._journal.changes, *carried), self._schedule.digest))

    async def _forget_in_store(self, before: int) -> None:
        try:
            await self._journal.truncate_losses(before)
        except NotLeader:
            raise
        except StoreError as error:  # the next decision removes what this one didn't
            log.warning("planner: can't remove reports of steps before %d: %s", before, error)

    # ---- status

    def to_message(self) -> control_service_pb2.AdaptiveStatus:
        """For people."""
        feedback, learned, state = self._feedback, self._learned(), self._core.state
        return control_service_pb2.AdaptiveStatus(
            rule=self._settings.rule,
            decided=feedback.decided,
            next=feedback.next(0 if state is None else state.step),
            reported=feedback.num_steps,
            ranks=feedback.num_ranks,
            expected=self._expected(),
            losses=None if learned is None else learned.losses,
            refused=self._refused,
            problem=self._problem,
        )
