"""The planner role: leads, writes the plan log, answers Join, Plans and Status. Acts on the core's decisions.

One event loop holds all state. Every action of `core.py` is carried out here and reported back as an event; a
record is in the store before anybody sees it, fenced by the leader lease, so that a planner that was
overtaken can write nothing. What a restart needs is in the store: generation, last record, session.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from pathlib import Path

import dataloader_svc
from dataloader_client._pb import common_pb2, plan_pb2, planner_service_pb2
from dataloader_svc import faultpoint
from dataloader_svc.clock import Clock
from dataloader_svc.config.digest import config_hash, read_digest
from dataloader_svc.config.schema import Config
from dataloader_svc.errors import (
    DataloaderError,
    NotLeader,
    PeerError,
    StateError,
    StoreError,
    VersionError,
)
from dataloader_svc.planner import core
from dataloader_svc.planner.adaptive import AdaptiveMixture
from dataloader_svc.planner.background import Background
from dataloader_svc.planner.calibration import MOST_ENTRIES, Calibration, Factors
from dataloader_svc.planner.control import Control
from dataloader_svc.planner.journal import Journal
from dataloader_svc.planner.loaders import LoaderPool
from dataloader_svc.planner.messages import (
    asked_mesh,
    coords_of,
    join_response,
    mesh_message,
)
from dataloader_svc.planner.place import Strategy
from dataloader_svc.planner.plan import Plan
from dataloader_svc.planner.select import Rules
from dataloader_svc.planner.session import (
    check_protocol,
)
from dataloader_svc.planner.sessions import Sessions
from dataloader_svc.planner.skip import ahead, asked_skips
from dataloader_svc.planner.streams import PlanStreams
from dataloader_svc.planner.watch import LoaderWatch, replaced_messages
from dataloader_svc.rpc.stubs import Connect, Peer
from dataloader_svc.store.base import LEAVE_S, Store

log = logging.getLogger(__name__)

LEADER = "planner"
"""Name of the leader lease."""

_LEASE_TTL_S = 10.0
_RENEW_S = 3.0


class PlannerService:
    """Handler of PlannerService. `start` first, `stop` last; `failed` ends when it can't go on.

    owner      name of this role in the leader lease: a restarted planner with the same name leads at once
    base_dir   the folder of the YAML, which its relative paths start from
    connect    makes the channels to loaders
    """

    def __init__(
        self,
        config: Config,
        store: Store,
        clock: Clock,
        *,
        owner: str,
        base_dir: Path,
        connect: Connect = Peer,
    ) -> None:
        self._config, self._store, self._clock, self._owner = config, store, clock, owner
        self._rules = Rules.of(config, base_dir)
        self._base_dir = base_dir
        self._core = core.PlannerCore(self._rules, ahead=config.planner.ahead)
        self._loaders = LoaderPool(store, clock, config.loader.count, connect)
        self._watch = LoaderWatch(self._loaders, store, clock, self._next_step)
        self._journal = Journal(store, config.sequence_length)
        self._calibration = Calibration() if config.strategy.calibrate else None
        self._growing: set[str] = set()  # sources of which it was said
        self._adopting = False
        self._writing = asyncio.Lock()
        self._background = Background(lambda: self._background.start(self._streams.wake()))
        self.failed = self._background.failed
        self._streams = PlanStreams(
            config,
            clock,
            self._core,
            self._journal,
            self._loaders,
            Strategy.of(config, base_dir),
            self._calibration,
            self._background,
            apply=self._apply,
            session=lambda: self._sessions.now,
            check=self._check,
        )
        self._sessions: Sessions = Sessions(
            config,
            self._rules,
            self._core,
            self._journal,
            self._loaders,
            apply=self._apply,
            wake=self._streams.wake,
            forget=self._streams.clear,
            writing=self._writing,
        )
        self.control = Control(
            self._core,
            self._journal,
            self._rules.schedule,
            self._rules.unit,
            keep=config.planner.keep,
            session=lambda: self._sessions.now,
            apply=self._apply,
            writing=self._writing,
            background=self._background,
            adaptive=config.mixture.adaptive,
            rule=AdaptiveMixture.rule_of(config, base_dir),
        )

    # ---- life

    async def start(self) -> None:
        """Become leader (waits while another planner is), and take up what the store knows."""
        digests, own_hash = await asyncio.to_thread(self._hashes)
        self._sessions.under(digests, own_hash)
        await self._journal.lead(LEADER, self._owner, _LEASE_TTL_S)
        self._background.start(self._keep_leading())
        self._background.start(self._watch.run())
        generation, session = await self._journal.load()
        if generation is not None:
            await self._journal.load_changes()
        if generation is None or generation.config_hash != own_hash:
            return
        state, used = await self._journal.resume(self._config.planner.ahead)
        if state.names == self._rules.names:
            await self._journal.load_requests()
            await self._journal.load_factors()
            newest = self._newest_factors()
            if self._calibration is None and newest is not None and newest.parts:
                await self._journal.append_factors(Factors(state.step, (), 0.0))  # it has been turned off
            self._sessions.resume(core.Based(state, used), session)
            await self.control.take_up()
            log.info("planner: generation %d goes on at step %d", generation.number, state.step)

    def _next_step(self) -> int:
        return 0 if self._core.state is None else self._core.state.step

    def _hashes(self) -> tuple[dict[str, str], str]:
        return read_digest(self._config, self._base_dir), config_hash(self._config, self._base_dir)

    async def stop(self) -> None:
        """End what runs and give the lease back."""
        await self._background.stop()
        await self._loaders.close()
        with contextlib.suppress(StoreError, TimeoutError):
            await asyncio.wait_for(self._journal.release(), LEAVE_S)
        if not self.failed.done():
            self.failed.cancel()

    async def _keep_leading(self) -> None:
        while True:
            await asyncio.sleep(_RENEW_S)
            try:
                await self._journal.renew()
            except NotLeader:
                raise
            except StoreError as error:  # full, say: the fence still tells who leads
                log.warning("planner: can't renew its lease: %s", error)
                continue
            await self._sessions.take_requests()

    # ---- the core

    def _apply(self, event: core.Event) -> None:
        """Tell the core, and start what it decides.

        A mistake of ours on the way ends the role, whoever asked: what the core had decided would be lost,
        and readers would wait for ever.
        """
        try:
            self._carry_out(event)
        except Exception as error:
            self._background.fail(error)
            raise

    def _carry_out(self, event: core.Event) -> None:
        began = self._clock.monotonic()
        for action in self._core.apply(event):
            match action:
                case core.Describe():
                    self._background.start(self._describe(action, self._core.base))
                case core.Lease():
                    self._background.start(self._probe(action, self._core.base))
                case core.Reread():
                    self._background.start(self._reread(action, self._core.base))
                case core.Release(block):
                    self._background.start(self._loaders.release(block))
                case core.Append(plan):
                    self._streams.made(plan.step, began)
                    faultpoint.point("planner.plan_made")
                    self._background.start(self._append(plan))
                case core.Publish(plan):
                    self._streams.keep(plan)
                    self._background.start(self._streams.wake())
                case core.EndOfData():
                    self._say_end(action)
                    self._background.start(self._streams.wake())
                case core.Stop(error):
                    log.error("planner: %s", error)
                    self._background.start(self._streams.wake())

    def _say_end(self, end: core.EndOfData) -> None:
        left = f"{end.left_samples} samples, {end.left_tokens} tokens"
        if end.step == 0:
            log.warning(
                "planner: the sources hold less than one step (%s; global_batch is %d %s) and last_batch is "
                "drop: there is no data",
                left,
                getattr(self._config.global_batch, self._rules.batch_unit),
                self._rules.batch_unit,
            )
        else:
            log.info("planner: the data ends before step %d; left over: %s", end.step, left)

    async def _describe(self, wanted: core.Describe, base: int) -> None:
        source, epoch = wanted.source, wanted.epoch
        try:
            starts, listing, there = await self._loaders.describe(
                source, epoch, wanted.listing, grown=wanted.grown
            )
            if (more := there - listing.shards) and source not in self._growing:
                self._growing.add(source)
                once = self._rules.exhausted != "repeat"
                when = "are not read: each source is read once" if once else "come with its next epoch"
                log.warning("planner: source %s: %d appended shards %s", source, more, when)
            event: core.Event = core.Described(source, epoch, starts, listing.digest, listing.shards)
        except DataloaderError as error:
            event = core.Failed(error, wanted, base)
        self._apply(event)

    async def _probe(self, wanted: core.Lease | core.Reread, base: int) -> None:
        try:
            columns = await self._loaders.probe(wanted.block, wanted.listing)
            await self._journal.note(columns)
            event: core.Event = core.Probed(columns, wanted.listing)
        except DataloaderError as error:
            error.add_note(f"while block {wanted.block} was read")
            event = core.Failed(error, wanted, base)
        self._apply(event)

    async def _reread(self, wanted: core.Reread, base: int) -> None:
        await self._loaders.reopen(wanted.block)
        await self._probe(wanted, base)

    async def _append(self, plan: Plan) -> None:
        """Write, then tell: the quarantine first, so that what the record counts as skipped is listed."""
        async with self._writing:
            if self._core.appending is not plan:
                return  # a join has left this generation meanwhile
            await self._journal.append(plan)
            faultpoint.point("planner.plan_appended")
            self._apply(core.Appended(plan.step))
        faultpoint.point("planner.plan_published")

    # ---- Join

    async def join(self, request: plan_pb2.JoinRequest) -> plan_pb2.JoinResponse:
        """Take a rank in: VersionError, StateError, MeshError say why not, and what to do."""
        check_protocol(request.protocol, request.client_version, dataloader_svc.__version__)
        config = self._config
        if request.job and request.job != config.job:
            raise StateError(
                f"this service serves job {config.job!r}, not {request.job!r}: check the address"
            )
        if config.strategy.encoder_placement == "dispatch" and not request.knows_dispatch:
            named = request.client_version or "unnamed"
            raise VersionError(
                f"strategy.encoder_placement is dispatch; the client ({named}) is too old to know media of "
                "another rank's tokens: upgrade the client, or use own"
            )
        mesh, brought = asked_mesh(config, request), self._sessions.brought(request)
        if request.session:  # a rank of a session that is over must not begin one
            self._check(int(request.session))
        session, state = await self._sessions.agree(brought, mesh, coords_of(request), asked_skips(request))
        if ahead(state.skips, state.step) and not request.knows_skips:
            raise VersionError(
                f"{ahead(state.skips, state.step)[0]}; the client ({request.client_version or 'unnamed'}) is "
                "too old to pass over steps, and would train on them: upgrade the client"
            )
        faultpoint.point("planner.joined")
        return join_response(config, self._sessions.config_hash, self._rules.names, session, state)

    # ---- Plans

    def plans(
        self, demands: AsyncIterator[planner_service_pb2.PlanDemand]
    ) -> AsyncIterator[plan_pb2.PlacedPlan]:
        """Each plan of the session from `from_step` to the latest `up_to`, once and in order."""
        return self._streams.plans(demands)

    def _check(self, session: int) -> None:
        if self.failed.done():
            raise PeerError("the planner is stopping; it will be back")
        self._sessions.check(session)

    # ---- Report

    async def report(self, times: planner_service_pb2.StepTimes) -> common_pb2.Empty:
        """Learn what work costs; place by it from the next step on that is not in the log."""
        if self._calibration is not None:
            self._calibration.reported(times)
            wanted = self._calibration.proposal(self._newest_factors()) is not None
            if wanted and not self._adopting and len(self._journal.factors) < MOST_ENTRIES:
                self._adopting = True
                self._background.start(self._adopt(self._calibration))
        return common_pb2.Empty()

    def _newest_factors(self) -> Factors | None:
        return self._journal.factors[-1] if self._journal.factors else None

    async def _adopt(self, calibration: Calibration) -> None:
        """No step is written meanwhile, so none that anybody has seen is placed otherwise from now on."""
        try:
            async with self._writing:
                state, proposal = self._core.state, calibration.proposal(self._newest_factors())
                if state is not None and proposal is not None:
                    await self._journal.append_factors(Factors(state.step, *proposal))
                    log.info("planner: costs of parts times %s from step %d", proposal[0], state.step)
        finally:
            self._adopting = False

    # ---- Status

    async def status(self, _: common_pb2.Empty) -> planner_service_pb2.PlannerStatus:
        """Generation, session and position."""
        status = planner_service_pb2.PlannerStatus(job=self._config.job, fence=self._journal.fence)
        generation, session, state = self._journal.generation, self._sessions.now, self._core.state
        if generation is not None:
            status.generation = generation.number
        if session is not None:
            status.session = session.number
            status.mesh.CopyFrom(mesh_message(session.mesh))
        if state is not None:
            status.next_step, status.state_json = state.step, state.to_json()
        status.replaced.extend(replaced_messages(self._watch.replaced))
        if self._calibration is not None:
            status.calibration.CopyFrom(self._calibration.to_message(self._newest_factors()))
        return status
