"""The constructor role: answers Join, Read, Leave, Report and Status.

Holds one session at a time (`session.py`), which follows plans and builds steps; opens the next when a read
names one that the planner confirms. A restarted constructor knows nothing and needs nothing: the next read
opens its session again.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncGenerator
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import dataloader_svc
from dataloader_client import methods
from dataloader_client._pb import common_pb2, constructor_service_pb2, plan_pb2
from dataloader_client.wire import Frame
from dataloader_svc import faultpoint
from dataloader_svc.clock import Clock
from dataloader_svc.config.schema import Config
from dataloader_svc.constructor import core
from dataloader_svc.constructor.control import Control
from dataloader_svc.constructor.core import Rank
from dataloader_svc.constructor.encoding import Encoder
from dataloader_svc.constructor.lending import Lender
from dataloader_svc.constructor.peers import Peers
from dataloader_svc.constructor.reports import Reports
from dataloader_svc.constructor.segments import Segments
from dataloader_svc.constructor.session import Session, Surroundings
from dataloader_svc.errors import MeshError, PeerError, SessionSuperseded, StateError, VersionError
from dataloader_svc.rpc.status import RoleName
from dataloader_svc.rpc.stubs import Connect, Peer
from dataloader_svc.skips import Run, after
from dataloader_svc.store.base import Store

log = logging.getLogger(__name__)

CALL_TIMEOUT_S = 30.0
"""Of a question to the planner, which it answers from memory or with one write to the store."""

MOST_AHEAD = 100_000
"""Steps that a read may be ahead of all others, beside skipped ones: each before it is planned and logged,
for whoever asks.
"""


class ConstructorService:
    """Handler of ConstructorService. Belongs to one event loop; `stop` ends what it started.

    index   number of this constructor among `constructor.count`: it serves the dp ranks whose number leaves
            this remainder, and tells the others' ranks at join where to go
    log_file   where its log is, for errors
    connect    makes the channels to other roles
    """

    def __init__(
        self,
        config: Config,
        store: Store,
        clock: Clock,
        *,
        index: int = 0,
        log_file: Path | None = None,
        connect: Connect = Peer,
    ) -> None:
        self.name = f"constructor-{index}"
        self._config, self._index = config, index
        self._peers = Peers(store, clock, connect)
        role = RoleName(self.name, log_file)
        self._segments = _segments(config.constructor.shared_bytes, self.name)
        self._lender: Lender | None = None
        self._surroundings = Surroundings(role, index, config, store, clock, self._peers, self._segments)
        self._encoder = Encoder(config.wire.compression, clock)
        self._reports = Reports(self._peers)
        self._session: Session | None = None
        self._planned_at_opening = 0  # steps: of the session
        self._opening = asyncio.Lock()
        self.control = Control(self._peers)

    async def start(self) -> None:
        """Listen for readers on this host. The first join or read opens a session."""
        if self._segments is not None:
            try:
                self._lender = Lender.open(self._segments)
            except OSError as error:
                log.warning("%s: batches go over gRPC to this host too: no Unix socket: %s", self.name, error)

    async def stop(self) -> None:
        """End all work; readers that wait are told that this constructor is gone."""
        if self._session is not None:
            await self._session.end(PeerError(f"{self.name} is stopping"))
        if self._segments is not None:
            self._segments.close()
        if self._lender is not None:
            self._lender.close()
        await self._reports.stop()
        await self.control.stop()
        await self._peers.close()

    async def join(self, request: plan_pb2.JoinRequest) -> plan_pb2.JoinResponse:
        """The planner's answer, and which constructor serves this rank."""
        if request.protocol != methods.PROTOCOL:
            older = "client" if request.protocol < methods.PROTOCOL else "service"
            raise VersionError(
                f"the client ({request.client_version or 'unnamed'}) speaks protocol {request.protocol}, the "
                f"service ({dataloader_svc.__version__}) {methods.PROTOCOL}: upgrade the {older}"
            )
        planner = await self._peers.planner()
        response = await planner.call(methods.PLANNER_JOIN, request, timeout_s=CALL_TIMEOUT_S)
        home = request.coords.dp % self._config.constructor.count
        if home != self._index:
            address = await self._peers.constructor_address(home)
            if address is None:
                raise PeerError(f"constructor-{home}, which serves dp rank {request.coords.dp}, is not up")
            response.address = address
        return response

    async def read(self, request: constructor_service_pb2.ReadRequest) -> AsyncGenerator[Frame]:
        """This rank's part of a step, as soon as it is there; an end frame past the data's end."""
        session = await self._enter(request.session)
        rank = _rank(request.coords)
        self._check_place(session, rank)
        self._check_step(session, request.step)
        step, sent, copied = request.step, False, 0
        session.apply(core.Asked(step, rank))
        try:
            built = await session.wait_for(step)
            if built is None:
                yield Frame({}, {"step": step, "microbatches": 0, "end": True})
            else:
                frame = self._offered(request, built.frame(rank, session.sizes.pp), built.shared(rank.dp))
                frame = await self._encoded(session, request, frame)
                copied = frame.packed_bytes
                yield frame
            sent = True
        finally:
            session.apply(core.Released(copied))
            session.apply(core.Delivered(step, rank) if sent else core.GaveUp(step, rank))
        faultpoint.point("constructor.sent")

    def _offered(
        self, request: constructor_service_pb2.ReadRequest, frame: Frame, shared: NDArray[np.uint8] | None
    ) -> Frame:
        """The frame, without its payload where the reader can be lent the memory that it lies in."""
        if self._lender is None or shared is None:
            return frame
        lent = bool(request.attachment) and self._lender.lend(request.attachment, request.lease, shared)
        return replace(frame, shared=shared if lent else None, socket=self._lender.name)

    async def _encoded(
        self, session: Session, request: constructor_service_pb2.ReadRequest, frame: Frame
    ) -> Frame:
        """The frame, encoded where the reader's link is so slow that it pays and memory has room for a copy.

        What is encoded stays reserved: the caller releases it.
        """
        link, most = request.link_bytes_per_s, frame.num_bytes
        codecs = () if frame.shared is not None else self._encoder.usable(request.codecs, link)
        if not codecs or most > session.window.free_bytes:
            return frame
        session.apply(core.Reserved(most))
        try:
            frame = await asyncio.to_thread(self._encoder.encode, frame, codecs, link)
        finally:
            session.apply(core.Released(most - frame.packed_bytes))
        return frame

    async def leave(self, request: constructor_service_pb2.LeaveRequest) -> common_pb2.Empty:
        """A rank reads no more: it does not hold steps back any longer."""
        session = self._session
        if session is not None and session.number == request.session:
            session.apply(core.Left(_rank(request.coords)))
        return common_pb2.Empty()

    async def report(
        self, request: constructor_service_pb2.ReportRequest
    ) -> constructor_service_pb2.ReportResponse:
        """Pass on what a rank measured; the answer does not wait for the planner."""
        wanted = self._config.strategy.calibrate
        if wanted:
            self._reports.add(request)
        return constructor_service_pb2.ReportResponse(wanted=wanted)

    async def status(self, _: common_pb2.Empty) -> constructor_service_pb2.ConstructorStatus:
        """Memory, window of finished steps, and mean trace."""
        session = self._session
        status = constructor_service_pb2.ConstructorStatus(
            job=self._config.job,
            service_version=dataloader_svc.__version__,
            protocol=methods.PROTOCOL,
            limit_bytes=self._config.constructor.memory,
            shared_limit_bytes=0 if self._segments is None else self._segments.limit_bytes,
        )
        if self._segments is not None:
            status.lent_bytes, status.leases = self._segments.lent
            status.lent_total = self._segments.lent_total
        if session is None:
            return status
        status.session = session.number
        status.mesh.CopyFrom(session.mesh)
        status.held_bytes = session.window.held_bytes
        status.silent_ranks = len(session.readers.let_go)
        if ready := session.window.ready:
            status.first_step, status.last_step = ready[0], ready[-1]
        for name in {name for trace in session.traces for name in trace}:
            status.trace[name] = sum(trace[name] for trace in session.traces) / len(session.traces)
        return status

    async def _enter(self, number: int) -> Session:
        """The session of that number, opened if the planner says that it is the one served now.

        One that a mistake of ours has ended is opened afresh: who reads again may be luckier.
        """
        async with self._opening:
            former = self._session
            if former is not None and former.number == number and former.failure is None:
                return former
            planner = await self._peers.planner()
            found = await planner.call(methods.PLANNER_STATUS, common_pb2.Empty(), timeout_s=CALL_TIMEOUT_S)
            if found.session != number:
                raise SessionSuperseded.of(number, found.session)
            self._session = Session(self._surroundings, number, found.mesh, _skips(found.state_json))
            self._planned_at_opening = found.next_step
            if former is not None:
                await former.end(former.failure or SessionSuperseded.of(former.number, number))
            return self._session

    def _check_place(self, session: Session, rank: Rank) -> None:
        for axis, place in rank._asdict().items():
            size = getattr(session.sizes, axis)
            if place >= size:
                raise MeshError(f"{axis} rank {place} is not in 0 to {size - 1} of session {session.number}")
        if rank.dp not in session.dp_ranks:
            raise PeerError(f"{self.name} does not serve dp rank {rank.dp}: join again to learn who does")

    def _check_step(self, session: Session, step: int) -> None:
        latest = max(self._planned_at_opening, session.window.latest)
        if step > after(session.window.skips, latest, MOST_AHEAD):
            raise StateError(
                f"step {step} is far beyond step {latest}, where the job is: at most {MOST_AHEAD} ahead "
                "of it can be read"
            )


def _segments(limit_bytes: int, name: str) -> Segments | None:
    """Shared memory to build in; None where it is switched off or this system has none."""
    try:
        return Segments(limit_bytes) if limit_bytes else None
    except OSError as error:
        log.warning("%s: batches go over gRPC to this host too: no shared memory: %s", name, error)
        return None


def _skips(state_json: str) -> tuple[Run, ...]:
    """Of the planner's state: every state of a generation has the same."""
    found = json.loads(state_json).get("skips", ()) if state_json else ()
    return tuple((int(first), int(stop)) for first, stop, _ in found)


def _rank(coords: common_pb2.Coords) -> Rank:
    return Rank(coords.dp, coords.cp, coords.tp, coords.pp)
