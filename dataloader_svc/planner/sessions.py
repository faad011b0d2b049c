"""Who reads by which plan: the session that ranks join, and the generation of the log that it goes on in.

`session.py` decides, `attendance.py` has ranks wait for each other; this carries it out, one join at a time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace

from dataloader_client._pb import plan_pb2
from dataloader_svc.config.schema import Config
from dataloader_svc.errors import MeshError, SessionSuperseded, StateError
from dataloader_svc.planner import core
from dataloader_svc.planner.attendance import AGREE_S, Agreement, Claim, Coords
from dataloader_svc.planner.change import Change, still_to_come
from dataloader_svc.planner.files import FilesCheck
from dataloader_svc.planner.history import same_place
from dataloader_svc.planner.journal import Journal
from dataloader_svc.planner.loaders import LoaderPool
from dataloader_svc.planner.place import MeshSize
from dataloader_svc.planner.rules import Rules
from dataloader_svc.planner.session import Branch, Session, check_state, decide, reason_of
from dataloader_svc.planner.skip import Skip, with_skips
from dataloader_svc.planner.state import State

log = logging.getLogger(__name__)


class Sessions:
    """`now` is the session that counts; None: the next join begins one.

    apply      tells the core an event
    wake       has who waits for plans look again
    forget     the plans of a generation that has been left
    writing    held while a record goes to the log
    """

    def __init__(
        self,
        config: Config,
        rules: Rules,
        planner: core.PlannerCore,
        journal: Journal,
        loaders: LoaderPool,
        *,
        apply: Callable[[core.Event], None],
        wake: Callable[[], Awaitable[None]],
        forget: Callable[[], None],
        writing: asyncio.Lock,
    ) -> None:
        self._config, self._rules, self._core, self._journal = config, rules, planner, journal
        self._apply, self._wake, self._forget, self._writing = apply, wake, forget, writing
        self._files = FilesCheck(loaders)
        self._agreement = Agreement(AGREE_S)
        self._one = asyncio.Lock()
        self._digests: Mapping[str, str] = {}
        self.config_hash = ""
        self.now: Session | None = None

    def under(self, digests: Mapping[str, str], config_hash: str) -> None:
        """Set what the configuration says of data (`digests`) and of plans."""
        self._digests, self.config_hash = digests, config_hash

    def resume(self, base: core.Based, session: Session | None) -> None:
        """Go on where the store says that the planner before was."""
        self.now = session
        self._rebase(base)
        if session is not None:
            self._apply(core.Opened(session.start_step, session.reopens))

    def check(self, session: int) -> None:
        """SessionSuperseded, or why ranks couldn't agree, for one that is not the present one."""
        now = 0 if self.now is None else self.now.number
        if session != now:
            self._agreement.check(session)
            raise SessionSuperseded.of(session, now)

    def brought(self, request: plan_pb2.JoinRequest) -> State | None:
        """The state that a rank brings. StateError: it is of other data."""
        if not request.state_json:
            return None
        state = State.from_json(request.state_json).renamed(self._digests)
        check_state(state, self._digests, force=request.force)
        return state

    async def agree(
        self, state: State | None, mesh: MeshSize, rank: Coords, skips: tuple[Skip, ...]
    ) -> tuple[Session, State]:
        """The session of a rank, and the state it starts from.

        Waits while another rank is there that wants something else. StateError, MeshError: it goes on to.
        """
        rules, agreement = self._rules, self._agreement
        if state is None:
            state = State.initial(rules.names, seed=self._config.seed, config=self._digests)
            state = replace(state, job=self._config.job)
        state = replace(state, skips=with_skips(state.skips, skips, state.step))
        adapted = state.adapted(rules.names, self._digests, rules.sequence_length, rules.whole)
        rules.check_waiting(adapted)
        adapted = replace(adapted.under(rules.schedule.digest), job=self._config.job)
        changed_in = await self._files_changed(adapted)
        claim, until = Claim(adapted.step, adapted.hash(), mesh), agreement.deadline()
        async with agreement.holding(claim, rank):
            while True:
                async with self._one:
                    if agreement.may_enter(claim, rank):
                        await self._take_requests()
                        entered = await self._enter(state, adapted, mesh, skips, changed_in)
                        await agreement.entered(entered[0].number, claim, rank)
                        return entered
                try:
                    await agreement.hold_back(claim, rank, until)
                except (StateError, MeshError) as dispute:
                    log.warning("planner: %s", dispute)
                    self.now = None
                    await self._wake()
                    raise

    async def _files_changed(self, start: State) -> int | None:
        """The core's base whose files are no more, for a job that starts from the beginning.

        Asked for, since a constructor can come upon it before the planner does.
        """
        known, base = self._core.state, self._core.base
        if known is None or start.step > 0:
            return None
        session = 0 if self.now is None else self.now.number
        return base if await self._files.changed(known, (base, session)) else None

    async def _enter(
        self,
        state: State,
        adapted: State,
        mesh: MeshSize,
        skips: tuple[Skip, ...],
        changed_in: int | None,
    ) -> tuple[Session, State]:
        """The session for this state and mesh, begun if there is none, and the state it starts from."""
        generation = self._journal.generation
        files_changed = isinstance(self._core.stopped, StateError) or changed_in == self._core.base
        mine = None if files_changed else self._of_session(state, adapted, mesh)
        if mine is not None:
            return await self._begin_session(mine, mesh), mine
        logged = await self._journal.state_at(state.step) if generation is not None else None
        choice = decide(state, adapted, generation, logged, self.config_hash, data_changed=files_changed)
        if isinstance(choice, Branch):
            known = generation.base if generation and generation.base.step == state.step else logged
            told = self._to_be_told(adapted) if known is not None and same_place(known, adapted) else ()
            reason = reason_of(choice, state, adapted, skips)
            await self._begin_generation(adapted, reason, told, files_changed=files_changed)
            return await self._begin_session(adapted, mesh), adapted
        return await self._begin_session(choice.state, mesh), choice.state

    def _of_session(self, state: State, adapted: State, mesh: MeshSize) -> State | None:
        """The state that the session began from, where a rank brings it: its record may be removed by now."""
        generation, session = self._journal.generation, self.now
        if generation is None or session is None:
            return None
        brought = (adapted, state)
        keys = ((generation.number, each.step, each.hash(), mesh) for each in brought)
        found = [each for each, key in zip(brought, keys, strict=True) if session.matches(*key)]
        return found[0] if found else None

    def _to_be_told(self, base: State) -> tuple[Change, ...]:
        """Changes of the mixture that a state of this history does not know yet: the next generation must."""
        return still_to_come(self._journal.changes, base.step, self._rules.schedule.digest)

    async def _begin_generation(
        self, base: State, reason: str, changes: tuple[Change, ...], *, files_changed: bool
    ) -> None:
        async with self._writing:  # no record of the generation before is on its way any more
            await self._journal.begin_generation(base, self.config_hash, reason, changes)
            self._forget()
            self.now = None
            await self._journal.load_requests()
            self._rebase(core.Based(base, files_changed=files_changed))

    def _rebase(self, event: core.Based) -> None:
        """Plan from a state, with what is asked for in its history."""
        self._apply(event)
        self._apply(core.Mixed(self._journal.changes))
        self._apply(core.Requested(self._journal.requests.asked))

    async def take_requests(self) -> None:
        """Tell the core of requests for readmission that are new in the store, between joins."""
        async with self._one:
            await self._take_requests()

    async def _take_requests(self) -> None:
        """Tell the core of requests for readmission that are new in the store."""
        state = self._core.state
        if state is not None and await self._journal.has_requests(state.readmitted[0]):
            requests = await self._journal.load_requests()
            log.info("planner: request %d for readmission", requests.last)
            self._apply(core.Requested(requests.asked))

    async def _begin_session(self, start: State, mesh: MeshSize) -> Session:
        generation = self._journal.generation
        assert generation is not None, "a session has a generation"
        key = (generation.number, start.step, start.hash(), mesh)
        if self.now is None or not self.now.matches(*key) or self._end_may_move(start):
            self.now = await self._journal.begin_session(*key, reopens=self._core.asked + 1)
            self._apply(core.Opened(start.step, self.now.reopens))
            log.info("planner: session %d: mesh %s from step %d", self.now.number, mesh, start.step)
            await self._wake()
        return self.now

    def _end_may_move(self, start: State) -> bool:
        """Whether ranks of the session were told that the data ends here, and more was asked for since.

        Who is told otherwise belongs to another session: the end is the same step for all ranks of one.
        """
        reopens = 0 if self.now is None else self.now.reopens
        return self._core.end == start.step and self._core.asked >= max(reopens, 1)
