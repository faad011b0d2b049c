"""One session of a constructor: does what `core.py` decides for its window of steps.

A session is a mesh and a start step that all ranks agreed on; a new one starts afresh. Every event goes
through `apply`, and the actions that come back are carried out here: follow the planner's stream, fetch and
build steps (in a thread), wake or fail who waits. All its state can be lost: a step is built again from its
plan and the loaders. Runs on one event loop; knows no RPC that it answers (`service.py`).
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from dataloader_balancers.context_parallel import CUTS
from dataloader_client import methods
from dataloader_client._pb import common_pb2, plan_pb2, planner_service_pb2
from dataloader_client.wire import members
from dataloader_svc import faultpoint
from dataloader_svc.clock import Clock
from dataloader_svc.config.schema import Config
from dataloader_svc.constructor import core
from dataloader_svc.constructor.build import BuiltStep, build_step, step_bytes
from dataloader_svc.constructor.collate import Form
from dataloader_svc.constructor.core import Rank, Window
from dataloader_svc.constructor.peers import Peers
from dataloader_svc.constructor.readers import Readers, Silent, described
from dataloader_svc.constructor.segments import Segments
from dataloader_svc.constructor.sizes import bytes_needed
from dataloader_svc.constructor.step import Bad, StepPlan, from_placed, with_masked
from dataloader_svc.errors import (
    ConfigError,
    DataloaderError,
    NotLeader,
    PeerError,
    RoleFailed,
)
from dataloader_svc.rpc.status import RoleName
from dataloader_svc.sample import RowRef, SampleId
from dataloader_svc.skips import Run
from dataloader_svc.store.base import Store
from dataloader_svc.store.quarantine_log import Quarantined, add_quarantine

log = logging.getLogger(__name__)

_RECONNECT_DELAYS_S = (0.05, 0.1, 0.2, 0.5, 1.0)
_TRACED_STEPS = 32


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What sessions of a constructor share: who it is and whom it talks to."""

    role: RoleName
    index: int
    config: Config
    store: Store
    clock: Clock
    peers: Peers
    segments: Segments | None = None  # where batches are built for readers on this host


@dataclass(frozen=True, slots=True)
class _Planned:
    plan: StepPlan
    meta: dict[str, Any]
    state_json: str  # after the step; for ranks, and not read here
    need: tuple[int, int]  # (work, kept) bytes
    generation: int


class Session:
    """`number`, `mesh` and `skips`, (first, stop) of the steps that nobody reads, are the planner's; this
    constructor serves the dp ranks that are congruent to its index modulo `constructor.count`.
    """

    def __init__(
        self, surroundings: Surroundings, number: int, mesh: common_pb2.Mesh, skips: Sequence[Run] = ()
    ) -> None:
        config, images = surroundings.config, surroundings.config.images
        self.number, self.mesh = number, mesh
        self.sizes = Rank(*(max(size, 1) for size in (mesh.dp, mesh.cp, mesh.tp, mesh.pp)))
        self.dp_ranks = frozenset(range(surroundings.index, self.sizes.dp, config.constructor.count))
        places = product(self.dp_ranks, range(self.sizes.cp), range(self.sizes.tp), range(self.sizes.pp))
        ranks = [Rank(*place) for place in places]
        self.window = Window(
            ranks,
            limit_bytes=config.constructor.window_bytes,
            ahead=config.planner.ahead,
            skips=skips,
        )
        self.traces: deque[Mapping[str, float]] = deque(maxlen=_TRACED_STEPS)
        self._is = surroundings
        width = 3 * images.patch**2
        pairs = any(source.preference is not None for source in config.sources.values())
        self._form = Form(
            *(config.layout, config.sequence_length, self.sizes.cp, width, images.merge, pairs),
            mel_bins=config.mel.bins,
            frames_per_token=config.mel.frames_per_token,
            to_longest=config.pad_to == "longest",
            ensure_modality=config.ensure_modality,
            encoder_ranks=(
                self.sizes.dp * self.sizes.cp if config.strategy.encoder_placement == "dispatch" else 0
            ),
        )
        self._cut = CUTS[config.strategy.context_parallel]
        self._plans: dict[int, _Planned] = {}
        self._built: dict[int, BuiltStep] = {}
        self._waiters: dict[int, asyncio.Future[None]] = {}
        self._demand: asyncio.Queue[int] = asyncio.Queue()
        self._following: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._failures = 0  # of the stream of plans, one after the other
        self._over: DataloaderError | None = None
        self.failure: RoleFailed | None = None  # a mistake of ours that has ended it
        limit_s, now = config.constructor.idle_timeout, surroundings.clock.monotonic()
        self.readers = Readers(ranks, limit_s=limit_s, now=now)
        self._start(self._watch_readers(), "to watch who reads")

    async def end(self, reason: DataloaderError) -> None:
        """Stop all work; `reason` is what readers of this session get from now on."""
        self._stop(reason)
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._plans.clear()
        self._built.clear()

    def _stop(self, reason: DataloaderError) -> None:
        self._over = reason
        for task in self._tasks:
            task.cancel()
        for step in list(self._waiters):
            self._fail(step, reason)

    def _mistaken(self, doing: str, error: BaseException) -> None:
        """A mistake of ours must reach all readers, who would wait; nothing here can be trusted any more."""
        log.error("%s: session %d failed %s", self._is.role.name, self.number, doing, exc_info=error)
        self.failure = self._is.role.mistake(doing, error)
        self._stop(self.failure)

    async def wait_for(self, step: int) -> BuiltStep | None:
        """The step when it is built; None when the data ends before it. Raises what building it raised.

        The caller has told the core (`Asked`), which keeps the step until `Delivered` or `GaveUp`.
        """
        while self._over is None:
            if self.window.end is not None and step >= self.window.end:
                return None
            if step in self._built:
                return self._built[step]
            if step not in self._waiters:
                self._waiters[step] = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._waiters[step])
        raise self._over

    def _wake(self, step: int) -> None:
        waiter = self._waiters.pop(step, None)
        if waiter is not None:
            waiter.set_result(None)

    def _fail(self, step: int, error: DataloaderError) -> None:
        waiter = self._waiters.pop(step, None)
        if waiter is not None:
            waiter.set_exception(error)
            waiter.exception()  # mark it as seen: all who waited may be gone

    def apply(self, event: core.Event) -> None:
        """Tell the core, and do what it decides."""
        if self._over is not None:
            return
        self.readers.note(event, self._is.clock.monotonic())
        try:
            self._carry_out(self.window.apply(event))
        except Exception as error:
            self._mistaken(f"after {event}", error)
            raise

    def _carry_out(self, actions: list[core.Action]) -> None:
        for action in actions:
            match action:
                case core.OpenPlans(from_step, up_to):
                    self._open_plans(from_step, up_to)
                case core.ExtendPlans(up_to):
                    self._demand.put_nowait(up_to)
                case core.ClosePlans():
                    self._close_plans()
                case core.StartBuild(step):
                    self._start(self._build(self._plans[step]), f"to build step {step}")
                case core.Drop(step, forget):
                    self._built.pop(step, None)
                    if forget:
                        self._plans.pop(step, None)
                case core.Refuse(step, needed):
                    self._fail(step, self._too_large(step, needed))

    def _start(self, work: Coroutine[Any, Any, None], doing: str) -> asyncio.Task[None]:
        task = asyncio.create_task(work, name=doing)
        self._tasks.add(task)
        task.add_done_callback(self._finished)
        return task

    def _finished(self, task: asyncio.Task[None]) -> None:
        """Nobody awaits these tasks."""
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and self._over is None:
            self._mistaken(task.get_name(), error)

    def _too_large(self, step: int, needed: int) -> ConfigError:
        settings = self._is.config.constructor
        shared = settings.shared_bytes / 2**20
        less = f" less its shared_memory ({shared:.1f} MiB)" if shared else ""
        return ConfigError(
            f"step {step} may take {needed / 2**20:.1f} MiB to build, above constructor.memory "
            f"({settings.memory / 2**20:.1f} MiB){less}: raise it, lower global_batch, or raise "
            "constructor.count"
        )

    async def _watch_readers(self) -> None:
        """Let go what is kept for ranks that have been silent for too long; warm memory, when all have."""
        readers = self.readers
        while True:
            await asyncio.sleep(readers.limit_s / 10)
            silent = readers.silent(self._is.clock.monotonic())
            if silent:
                self._let_go(silent)
            if readers.are_gone and self._is.segments is not None:
                self._is.segments.cool()

    def _let_go(self, silent: list[Silent]) -> None:
        held = self.window.held_bytes
        for each in silent:
            self.apply(core.Left(each.rank))
        text = described(
            *(silent, held - self.window.held_bytes, self.readers.limit_s),
            all_of_them=self.readers.are_gone,
        )
        end = self.window.end
        at_rest = all(each.step is None or (end is not None and each.step >= end) for each in silent)
        # Who has read all there is, or never reads since another rank of its host does, is not missed.
        log.log(logging.INFO if at_rest else logging.WARNING, "%s: %s", self._is.role.name, text)

    # ---- plans

    def _open_plans(self, from_step: int, up_to: int) -> None:
        self._close_plans()
        self._demand = asyncio.Queue()
        self._demand.put_nowait(up_to)
        self._following = self._start(self._follow(from_step, self._demand), "to follow the plans")

    def _close_plans(self) -> None:
        if self._following is not None:
            self._following.cancel()
            self._following = None

    async def _follow(self, from_step: int, demand: asyncio.Queue[int]) -> None:
        """Take in plans from `from_step` on until the stream ends; then say so to the core."""
        if self._failures:
            await asyncio.sleep(_RECONNECT_DELAYS_S[min(self._failures, len(_RECONNECT_DELAYS_S)) - 1])
        try:
            planner = await self._is.peers.planner()
            async with aclosing(planner.stream(methods.PLANS, self._demands(from_step, demand))) as plans:
                async for placed in plans:
                    self._failures = 0
                    self._take(placed)
            if self.window.end is not None:
                return
            problem: DataloaderError = PeerError("the planner ended the stream of plans")
        except (PeerError, NotLeader) as error:
            problem = error
        except DataloaderError as error:
            for step in [step for step in self._waiters if step not in self._plans]:
                self._fail(step, error)
            self._following = None
            self.apply(core.PlansFailed())
            return
        if not self._failures:
            name = self._is.role.name
            log.warning("%s: no plans of session %d: %s; trying again", name, self.number, problem)
        self._failures += 1
        self._following = None
        self.apply(core.PlansLost())

    async def _demands(
        self, from_step: int, demand: asyncio.Queue[int]
    ) -> AsyncIterator[planner_service_pb2.PlanDemand]:
        while True:
            yield planner_service_pb2.PlanDemand(
                session=self.number,
                from_step=from_step,
                up_to=await demand.get(),
                constructor=self._is.role.name,
            )

    def _take(self, placed: plan_pb2.PlacedPlan) -> None:
        if placed.end_of_data:
            self._end_data(placed.step)
            return
        plan = from_placed(placed)
        bound = bytes_needed if self._is.segments is None else step_bytes
        need = bound(plan, self.dp_ranks, self._form)
        state_json = placed.record.state_json or "{}"
        self._plans[plan.step] = _Planned(plan, _meta(placed), state_json, need, placed.generation)
        self.apply(core.Planned(plan.step, *need))
        if placed.record.last:
            self._end_data(plan.step + 1)

    def _end_data(self, end: int) -> None:
        self.apply(core.Ended(end))
        for step in [step for step in self._waiters if step >= end]:
            self._wake(step)

    # ---- building

    async def _build(self, planned: _Planned) -> None:
        """Fetch and build one step, then say to the core how it went."""
        step = planned.plan.step
        try:
            built = await self._make(planned)
        except DataloaderError as error:
            error.add_note(f"while {self._is.role.name} built step {step}")
            self._fail(step, error)
            self.apply(core.BuildFailed(step))
            return
        faultpoint.point("constructor.built")
        if self._over is None:
            self._built[step] = built
            if built.bad and step in self._plans:  # built again, it must be what it was
                again = with_masked(planned.plan, [bad.piece for bad in built.bad])
                self._plans[step] = replace(planned, plan=again)
            self.apply(core.Built(step, built.num_bytes))
            self._wake(step)

    async def _make(self, planned: _Planned) -> BuiltStep:
        clock, plan = self._is.clock, planned.plan
        began = clock.monotonic()
        fetched = await self._is.peers.fetch(plan, sum(planned.need))
        came = clock.monotonic()
        built = await asyncio.to_thread(
            build_step, plan, fetched, self.dp_ranks, self._form, self._cut, self._is.segments
        )
        trace = {
            **planned.meta["trace"],
            "fetch": came - began,
            "read": max((float(frame.meta.get("read_s", 0)) for _, frame in fetched), default=0.0),
            "decode": max((float(frame.meta.get("decode_s", 0)) for _, frame in fetched), default=0.0),
            "build": clock.monotonic() - came,
        }
        self.traces.append(trace)
        told = members({**built.meta, **planned.meta, "trace": trace})
        built = replace(built, written=f'"state":{planned.state_json},{told}')
        if built.bad:
            rows = [_quarantined(bad, plan.step, planned.generation) for bad in built.bad]
            await asyncio.to_thread(add_quarantine, self._is.store, rows)
            faultpoint.point("constructor.quarantined")
        return built


def _quarantined(bad: Bad, step: int, generation: int) -> Quarantined:
    return Quarantined(
        SampleId(bad.source, bad.epoch, bad.position),
        RowRef(bad.shard, bad.row),
        bad.reason,
        bad.detail,
        delivered=True,
        step=step,
        generation=generation,
    )


def _meta(placed: plan_pb2.PlacedPlan) -> dict[str, Any]:
    """What of a plan goes to the ranks, beside the state."""
    return {
        "digest": placed.record.digest.hex(),
        "metrics": {**placed.record.metrics, **placed.metrics},
        "trace": {"probe_wait": placed.probe_wait_seconds, "plan": placed.plan_seconds},
    }
