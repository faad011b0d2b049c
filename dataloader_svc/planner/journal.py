"""What the planner keeps in the store: leader lease, generations, plan log, session, quarantine, incidents,
requests for readmission.

Every write carries the fencing token of the lease; the calls block and run in threads. `session.py` says what
the entries mean, decision 0003 why recovery reads no more than the last record.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
from collections.abc import Mapping
from dataclasses import replace

from dataloader_client._pb.control_service_pb2 import LossesRequest
from dataloader_svc import faultpoint
from dataloader_svc.errors import NotLeader, Reason, StoreError
from dataloader_svc.planner.calibration import Factors, factors_log, read_factors
from dataloader_svc.planner.change import Change
from dataloader_svc.planner.history import branched_from, read_changes, read_losses
from dataloader_svc.planner.place import MeshSize
from dataloader_svc.planner.plan import Plan
from dataloader_svc.planner.requests import Requests, has_news, read_masked, read_requests
from dataloader_svc.planner.retention import Retention, past_changes, superseded_factors
from dataloader_svc.planner.session import GENERATION_POINTER, SESSION_KEY, Generation, Session
from dataloader_svc.planner.state import State
from dataloader_svc.sample import BlockId, ProbeColumns, RowRef, SampleId
from dataloader_svc.store.base import Lease, Store
from dataloader_svc.store.incident_log import add_incidents
from dataloader_svc.store.quarantine_log import Quarantined, add_quarantine, add_readmitted

log = logging.getLogger(__name__)


class Journal:
    """Belongs to one event loop. `sequence_length` is the cap that records are checked against."""

    def __init__(self, store: Store, sequence_length: int) -> None:
        self._store = store
        self._sequence_length = sequence_length
        self._lease: Lease | None = None
        self._sessions = 0  # numbers given so far
        self._session_value: bytes | None = None
        self._retention, self._truncating = Retention(store), asyncio.Lock()
        self._next_factors = self._next_change = 0  # numbers of their next records
        self.generation: Generation | None = None
        self.requests = Requests()
        self.factors: tuple[Factors, ...] = ()  # of the generation, in order of step
        self.changes: tuple[Change, ...] = ()  # of the mixture, in the generation, as they came
        self.masked: Mapping[int, frozenset[SampleId]] = {}
        self._losses: list[tuple[int, int]] = []  # rows of reports: number, and the last step in it
        self._losses_doubtful = False  # whether the last row was written

    # ---- leading

    @property
    def fence(self) -> int:
        """Token of the lease; 0 before `lead`."""
        return self._lease.token if self._lease is not None else 0

    async def lead(self, name: str, owner: str, ttl_s: float) -> None:
        """Wait until the lease is ours."""
        lease = await asyncio.to_thread(self._store.acquire, name, owner, ttl_s)
        if lease is None:
            log.warning("planner: another planner leads; waiting until its lease ends")
        while lease is None:
            await asyncio.sleep(ttl_s / 10)
            lease = await asyncio.to_thread(self._store.acquire, name, owner, ttl_s)
        self._lease = lease

    async def renew(self) -> None:
        """NotLeader: another planner leads."""
        self._lease = await asyncio.to_thread(self._store.renew, self._held())

    async def release(self) -> None:
        """Let another lead at once."""
        if self._lease is not None:
            await asyncio.to_thread(self._store.release, self._lease)
            self._lease = None

    def _held(self) -> Lease:
        if self._lease is None:
            raise NotLeader("this planner does not lead")
        return self._lease

    # ---- what is there

    async def load(self) -> tuple[Generation | None, Session | None]:
        """The current generation and the session in it."""
        pointer = await asyncio.to_thread(self._store.get, GENERATION_POINTER)
        self._session_value = await asyncio.to_thread(self._store.get, SESSION_KEY)
        session = Session.from_json(self._session_value) if self._session_value is not None else None
        self._sessions = session.number if session is not None else 0
        if pointer is None:
            return None, None
        value = await asyncio.to_thread(self._store.get, Generation.key(int(pointer)))
        if value is None:
            raise StoreError(f"the store names generation {int(pointer)}, which it does not have")
        self.generation = Generation.from_json(value)
        mine = session is not None and session.generation == self.generation.number
        return self.generation, session if mine else None

    async def resume(self, ahead: int) -> tuple[State, Mapping[BlockId, int]]:
        """The state after the last record; blocks that the last records name, with the last such step."""
        generation = self._current()
        last = await asyncio.to_thread(self._store.last, generation.log)
        if last is None:
            return generation.base, {}
        first = max(last[0] - 2 * ahead, generation.base.step)
        used: dict[BlockId, int] = {}
        state = generation.base
        for _, data in await asyncio.to_thread(self._store.read, generation.log, first, 2 * ahead + 1):
            plan = Plan.from_bytes(data, self._sequence_length)
            used.update(dict.fromkeys(plan.blocks(), plan.step))
            state = plan.state
        return state, used

    async def plan_at(self, step: int) -> Plan | None:
        """The record of a step, or None where the log does not have it."""
        if self.generation is None or step < self.generation.base.step:
            return None
        rows = await asyncio.to_thread(self._store.read, self.generation.log, step, 1)
        if not rows or rows[0][0] != step:
            return None
        return Plan.from_bytes(rows[0][1], self._sequence_length)

    async def state_at(self, step: int) -> State | None:
        """The state before `step`, from the log: that after the step before it."""
        plan = await self.plan_at(step - 1)
        return None if plan is None else plan.state

    async def load_requests(self) -> Requests:
        """Take up the requests for readmission that the current generation has."""
        self.requests = await asyncio.to_thread(read_requests, self._store)
        return self.requests

    async def load_masked(self) -> None:
        """Take up which steps were delivered with samples that could not be decoded."""
        self.masked = await asyncio.to_thread(read_masked, self._store)

    async def has_requests(self, done: int) -> bool:
        """Whether there are some that were not taken up; the state has done those below `done`."""
        return await asyncio.to_thread(has_news, self._store, self.requests.last, done)

    async def load_factors(self) -> None:
        """Take up the factors of the current generation."""
        number = self._current().number
        self.factors = await asyncio.to_thread(read_factors, self._store, number)
        self._next_factors = await asyncio.to_thread(_next_number, self._store, factors_log(number))

    async def append_factors(self, factors: Factors) -> None:
        """Let them hold, from a step that nobody has seen yet."""
        name, fence = factors_log(self._current().number), self._held().token
        number, value = self._next_factors, factors.to_json()
        await asyncio.to_thread(self._store.append, name, number, value, fence=fence)
        faultpoint.point("planner.factors_written")
        self._next_factors = number + 1
        self.factors = (*self.factors, factors)

    async def load_changes(self) -> None:
        """Take up the changes of the mixture in the current generation."""
        generation = self._current()
        self.changes = await asyncio.to_thread(read_changes, self._store, generation)
        self._next_change = await asyncio.to_thread(_next_number, self._store, generation.mixture_log)

    async def append_change(self, change: Change) -> None:
        """Let it count, from a step that nobody has seen yet."""
        generation, fence = self._current(), self._held().token
        number, value = self._next_change, json.dumps(change.to_json()).encode()
        await asyncio.to_thread(self._store.append, generation.mixture_log, number, value, fence=fence)
        self._next_change = number + 1
        self.changes = (*self.changes, change)

    async def load_losses(self) -> list[LossesRequest]:
        """Take up what ranks reported to have lost, in the order in which it came."""
        rows = await asyncio.to_thread(read_losses, self._store, self._current().losses_log)
        self._losses = [(number, _last_step(request)) for number, request in rows]
        self._losses_doubtful = False
        return [request for _, request in rows]

    async def append_losses(self, request: LossesRequest) -> None:
        """Keep reports. Only one at a time; after a StoreError, ask again with the same or others."""
        generation, fence = self._current(), self._held().token
        name = generation.losses_log
        if self._losses_doubtful:
            await self.load_losses()
        number = self._losses[-1][0] + 1 if self._losses else 0
        self._losses_doubtful = True
        await asyncio.to_thread(self._store.append, name, number, request.SerializeToString(), fence=fence)
        if self.generation is generation:
            self._losses_doubtful = False
            self._losses.append((number, _last_step(request)))

    async def truncate_losses(self, before: int) -> None:
        """Remove reports of steps before `before`, as far as no later one was told with them."""
        name, fence = self._current().losses_log, self._held().token
        kept = list(itertools.dropwhile(lambda row: row[1] < before, self._losses)) or self._losses[-1:]
        if len(kept) < len(self._losses):
            first = kept[0][0]
            await asyncio.to_thread(self._store.truncate, name, first, fence=fence)
            self._losses = [row for row in self._losses if row[0] >= first]  # more may have come meanwhile

    def _current(self) -> Generation:
        assert self.generation is not None, "a generation was loaded or begun"
        return self.generation

    # ---- writing

    async def append(self, plan: Plan) -> None:
        """List what the plan passes over and what it readmits, then write it. Safe to repeat."""
        generation, fence = self._current(), self._held().token
        rows = [
            Quarantined(
                SampleId(plan.sources[source], epoch, row.position),
                RowRef(row.shard, row.row),
                row.reason,
                row.detail,
                step=plan.step,
                generation=generation.number,
            )
            for source, epoch, row in plan.skipped
            if row.reason != Reason.FILTERED
        ]
        back = [SampleId(plan.sources[source], *place) for source, *place in plan.readmitted]

        def write() -> None:
            add_quarantine(self._store, rows)
            faultpoint.point("planner.quarantine_listed")
            add_readmitted(self._store, back, generation.number, plan.step)
            faultpoint.point("planner.plan_listed")
            self._store.append(generation.log, plan.step, plan.to_bytes(), fence=fence)

        await asyncio.to_thread(write)

    async def truncate(self, before: int) -> None:
        """Remove what no step from `before` on needs, of this generation and of those before it."""
        async with self._truncating:
            generation, fence = self._current(), self._held().token
            await asyncio.to_thread(self._retention.remove, generation, before, fence)
            await self._truncate_factors(generation, before, fence)
            await self._truncate_changes(generation, before, fence)

    async def _truncate_factors(self, generation: Generation, before: int, fence: int) -> None:
        spent = superseded_factors(self.factors, before)
        if spent and self.generation is generation:
            name, first = factors_log(generation.number), self._next_factors - len(self.factors) + spent
            await asyncio.to_thread(self._store.truncate, name, first, fence=fence)
            faultpoint.point("planner.factors_truncated")
            if self.generation is generation:
                self.factors = self.factors[spent:]

    async def _truncate_changes(self, generation: Generation, before: int, fence: int) -> None:
        told = len(generation.changes)  # when it began: in its entry
        own = self.changes[told:]
        past = past_changes(own, before)
        if past and self.generation is generation:
            first = self._next_change - len(own) + past
            await asyncio.to_thread(self._store.truncate, generation.mixture_log, first, fence=fence)
            faultpoint.point("planner.changes_truncated")
            if self.generation is generation:
                self.changes = (*generation.changes, *self.changes[told + past :])

    async def note(self, columns: ProbeColumns) -> None:
        """List the incidents of a block: it is used all the same. Safe to repeat."""
        if not columns.incidents:
            return
        source, epoch, _ = columns.block
        rows = [
            Quarantined(SampleId(source, epoch, row.position), row.row, row.kind, row.detail)
            for row in columns.incidents
        ]
        await asyncio.to_thread(add_incidents, self._store, rows)
        faultpoint.point("planner.incidents_listed")

    async def begin_generation(
        self, base: State, config_hash: str, reason: str, changes: tuple[Change, ...] = ()
    ) -> Generation:
        """The next generation, from `base`; the current one from now on."""
        before = self.generation
        number = before.number + 1 if before is not None else 1
        parent = before.number if before is not None else None
        generation = Generation(number, base, config_hash, parent, reason, changes)
        pointer = None if before is None else str(before.number).encode()
        fence = self._held().token

        def write() -> bool:
            origin = branched_from(self._store, generation)
            entry = replace(generation, origin=0 if origin is None else origin.number)
            # The entry first: until the pointer names it, it does not exist.
            self._store.put(Generation.key(number), entry.to_json())
            faultpoint.point("planner.generation_written")
            return self._store.compare_and_set(GENERATION_POINTER, pointer, str(number).encode(), fence=fence)

        if not await asyncio.to_thread(write):
            raise NotLeader("another planner has begun a generation")
        faultpoint.point("planner.generation_begun")
        self.generation, self.factors, self.changes = generation, (), changes
        self._next_factors = self._next_change = 0
        self._losses, self._losses_doubtful = [], False
        log.info("planner: generation %d from step %d: %s", number, base.step, reason)
        return generation

    async def begin_session(
        self, generation: int, start_step: int, state_hash: str, mesh: MeshSize, reopens: int = 0
    ) -> Session:
        """The next session; the current one from now on."""
        session = Session(self._sessions + 1, generation, start_step, state_hash, mesh, reopens)
        value, fence = session.to_json(), self._held().token
        done = await asyncio.to_thread(
            self._store.compare_and_set, SESSION_KEY, self._session_value, value, fence=fence
        )
        if not done:
            raise NotLeader("another planner has begun a session")
        faultpoint.point("planner.session_begun")
        self._sessions, self._session_value = session.number, value
        return session


def _last_step(request: LossesRequest) -> int:
    return max((int(report.step) for report in request.steps), default=-1)


def _next_number(store: Store, name: str) -> int:
    """Of the next record of a log that is numbered from 0, of which the first may be gone."""
    last = store.last(name)
    return 0 if last is None else last[0] + 1
