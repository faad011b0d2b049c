"""What constructors read: each plan of a session, placed on its mesh, once it is wanted and written.

One stream a constructor, which says how far it wants to read. The plans that were written last are kept in
memory; older ones are read from the log. Who may read which session is the service's to say.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable

from dataloader_client._pb import plan_pb2, planner_service_pb2
from dataloader_svc.clock import Clock
from dataloader_svc.config.schema import Config
from dataloader_svc.errors import StateError
from dataloader_svc.planner import core
from dataloader_svc.planner.background import Background
from dataloader_svc.planner.calibration import Calibration, factors_at
from dataloader_svc.planner.journal import Journal
from dataloader_svc.planner.loaders import LoaderPool
from dataloader_svc.planner.messages import blocks_by_piece, placed_plan
from dataloader_svc.planner.place import Strategy, place
from dataloader_svc.planner.plan import Plan
from dataloader_svc.planner.requests import masked_pieces
from dataloader_svc.planner.session import Session
from dataloader_svc.skips import before as steps_before

_KEPT_PLANS = 64
"""Plans kept in memory for readers; older ones are read from the log."""


class PlanStreams:
    """The streams of plans, and the newest plans for them.

    apply     tells the core what is wanted
    session   the one that is read now
    check     raises what a reader of a session that is over is told
    """

    def __init__(
        self,
        config: Config,
        clock: Clock,
        planner: core.PlannerCore,
        journal: Journal,
        loaders: LoaderPool,
        strategy: Strategy,
        calibration: Calibration | None,
        background: Background,
        *,
        apply: Callable[[core.Event], None],
        session: Callable[[], Session | None],
        check: Callable[[int], None],
    ) -> None:
        self._ahead, self._keep, self._clock = config.planner.ahead, config.planner.keep, clock
        self._core, self._journal, self._loaders = planner, journal, loaders
        self._strategy, self._calibration, self._background = strategy, calibration, background
        self._apply, self._session, self._check = apply, session, check
        self._plans: OrderedDict[int, Plan] = OrderedDict()
        self._seconds: dict[int, tuple[float, float]] = {}
        self._waiting_since: float | None = None  # for probes, with a step wanted
        self._wanted: dict[object, int] = {}  # by stream: last step it wants
        self._changed = asyncio.Condition()

    # ---- what the service tells

    def made(self, step: int, began: float) -> None:
        """A plan was made, by a decision that began then: keep the seconds it took and waited, for traces."""
        now = self._clock.monotonic()
        waited = began - self._waiting_since if self._waiting_since is not None else 0.0
        self._seconds[step] = (now - began, max(waited, 0.0))
        self._waiting_since = now

    def keep(self, plan: Plan) -> None:
        """Have a written plan at hand for readers."""
        self._plans[plan.step] = plan
        while len(self._plans) > _KEPT_PLANS:
            step, _ = self._plans.popitem(last=False)
            self._seconds.pop(step, None)

    def clear(self) -> None:
        """Forget the plans: another generation begins."""
        self._plans.clear()
        self._seconds.clear()

    async def wake(self) -> None:
        """Let all streams look again."""
        async with self._changed:
            self._changed.notify_all()

    # ---- what constructors ask

    async def plans(
        self, demands: AsyncIterator[planner_service_pb2.PlanDemand]
    ) -> AsyncIterator[plan_pb2.PlacedPlan]:
        """Each plan of the session from `from_step` to the latest `up_to`, once and in order."""
        first = await anext(demands, None)
        if first is None:
            return
        await self._journal.load_masked()
        stream, step = object(), int(first.from_step)
        listener = asyncio.create_task(self._listen(stream, first, demands))
        try:
            while True:
                placed = await self._wait_for(stream, first.session, step, listener)
                if placed is None:
                    return
                yield placed
                if placed.end_of_data or placed.record.last:
                    return
                step += 1
        finally:
            listener.cancel()
            self._wanted.pop(stream, None)

    async def _listen(
        self,
        stream: object,
        first: planner_service_pb2.PlanDemand,
        demands: AsyncIterator[planner_service_pb2.PlanDemand],
    ) -> None:
        """Take in what the reader of a stream wants, until it says no more."""
        demand: planner_service_pb2.PlanDemand | None = first
        try:
            while demand is not None:
                if self._is_current(demand.session):
                    self._demand(stream, int(demand.up_to))
                await self.wake()
                demand = await anext(demands, None)
        finally:
            self._background.start(self.wake())

    def _demand(self, stream: object, up_to: int) -> None:
        state, before = self._core.state, max(self._wanted.values(), default=-1)
        if state is not None and state.step > before:
            self._waiting_since = self._clock.monotonic()  # there was nothing to do
        self._wanted[stream] = up_to
        # A constructor asks for `ahead` steps beyond the one that its ranks read, but for those nobody reads.
        skips = () if state is None else tuple((skip.first, skip.stop) for skip in state.skips)
        done_below = steps_before(skips, min(self._wanted.values()), self._ahead)
        self._apply(core.Demanded(max(self._wanted.values()), done_below))

    async def _wait_for(
        self, stream: object, session: int, step: int, listener: asyncio.Task[None]
    ) -> plan_pb2.PlacedPlan | None:
        """The placed plan of a step when it is wanted and there; None when the reader has gone."""
        while True:
            self._check(session)
            if self._core.end is not None and step >= self._core.end:
                return plan_pb2.PlacedPlan(session=session, step=step, end_of_data=True)
            if step <= self._wanted.get(stream, -1):
                written = self._core.state is not None and step < self._core.state.step
                plan = self._plans.get(step) or await self._journal.plan_at(step)
                if plan is not None:
                    return await self._place(plan, session)
                self._check(session)
                if written:
                    raise StateError(
                        f"step {step} was committed by all ranks, and its plan is not kept any more "
                        f"(planner.keep is {self._keep}): it can't be read again"
                    )
                if self._core.stopped is not None:
                    raise self._core.stopped
            elif listener.done():
                return None
            async with self._changed:
                if not self._ready(stream, session, step, listener):
                    await self._changed.wait()

    def _ready(self, stream: object, session: int, step: int, listener: asyncio.Task[None]) -> bool:
        """Whether anything has come meanwhile that `_wait_for` waits for."""
        wanted = step <= self._wanted.get(stream, -1)
        there = wanted and self._core.state is not None and step < self._core.state.step
        ended = self._core.end is not None and step >= self._core.end
        stopped = wanted and self._core.stopped is not None
        left = not wanted and listener.done()
        over = not self._is_current(session) or self._background.failed.done()
        return there or ended or stopped or left or over

    def _is_current(self, number: int) -> bool:
        session = self._session()
        return session is not None and session.number == number

    async def _place(self, plan: Plan, number: int) -> plan_pb2.PlacedPlan:
        addresses = await self._loaders.addresses()
        self._check(number)
        session = self._session()
        assert session is not None, "_check found it"
        factors = factors_at(self._journal.factors, plan.step)
        placement = place(plan, session.mesh, self._strategy, () if factors is None else factors.parts)
        if self._calibration is not None:
            self._calibration.placed(number, plan.step, session.mesh, placement.work)
        return placed_plan(
            plan,
            session,
            placement,
            loaders=addresses,
            piece_loader=self._loaders.holders(blocks_by_piece(plan), addresses),
            masked=masked_pieces(self._journal.masked, plan),
            seconds=self._seconds.get(plan.step, (0.0, 0.0)),
        )
