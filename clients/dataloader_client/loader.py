"""`DataServiceLoader`: an iterable of microbatches that a trainer uses in place of a DataLoader.

    loader = DataServiceLoader("localhost:7077")
    for batch in loader:
        loss = model(**batch.inputs).loss / batch.loss_weight_sum
        ...
        if batch.is_last_microbatch:
            optimizer.step()
    state = loader.state_dict()

Holds no data but a few steps read ahead (`prefetch.py`). Where this rank sits: `mesh.py`. How bytes come, and
what happens while the service restarts: `transport.py`. What a batch is: `batch.py`.
"""

from __future__ import annotations

import json
import os
import time
import weakref
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self

from dataloader_client import methods
from dataloader_client._pb import common_pb2, plan_pb2
from dataloader_client.batch import Batch, split
from dataloader_client.checkpoint import Checkpoint
from dataloader_client.control import Controls, Skip, following
from dataloader_client.credentials import TLS, Credentials
from dataloader_client.errors import DataServiceError, MeshMismatchError, VersionMismatchError
from dataloader_client.failures import Closed
from dataloader_client.feedback import Feedback
from dataloader_client.forks import warn_of_fork_support
from dataloader_client.habits import Habits, refuse
from dataloader_client.local import LocalService
from dataloader_client.mesh import AXES, Coords, DeviceMesh, Mesh, resolve
from dataloader_client.prefetch import Prefetch, start_read
from dataloader_client.running import Running
from dataloader_client.transport import Transport, coords_message
from dataloader_client.wire import Frame

if TYPE_CHECKING:
    import torch
    from numpy.typing import ArrayLike


@dataclass(frozen=True, slots=True)
class LoaderStats:
    """What a loader did so far: steps taken, seconds the trainer waited for them, bytes received for them."""

    steps: int = 0
    wait_s: float = 0.0
    num_bytes: int = 0


class DataServiceLoader(Controls, Habits):
    """Microbatches of this rank, step after step, from a dataloader-svc at `address`.

    Which rank this is: `mesh` with `rank` or `coords`; a DeviceMesh by itself; `dp_rank` and `dp_size`; else
    torch.distributed where it is initialised (all ranks data-parallel); else the only rank. All ranks of a
    job give the same mesh and state.

    state              what `state_dict` returned, to go on from there; on any mesh
    prefetch           steps read ahead, and so what this process holds at most
    prefetch_bytes     the same in bytes, where steps may be large: fewer are then read ahead, at least one
    timeout_s          how long the service may be away, or one step take, before an error is raised
    connect_timeout_s  the same for the first contact
    job                name of the job, checked by the service; None: whatever it serves. Reads are of the job
                       that was joined, whatever is served at the address later
    token              the service's, where it asks for one; default: $DATALOADER_TOKEN, or the file named by
                       $DATALOADER_TOKEN_FILE
    tls                a TLS; the path of the authority that signed the service's certificate; True where
                       everybody knows it; default: the DATALOADER_TLS_... variables; see docs/security.md
    force              accept a state although the configuration reads other data now
    split              "eval": what the configuration's `evaluation` names, each sample once, the same on
                       every mesh. Each `iter` begins it anew, beside training and without a trace in that

    Iterating again goes on where the last iteration stopped: a `break` loses nothing. The end of the data
    ends the loop, on all ranks after the same step; a loader at its end stays there.
    Not for use from several threads at once. In a forked child it says so, and another can be made there.
    Arguments of torch's DataLoader are refused with where they are decided now. Raises the errors of
    `errors.py`.
    """

    def __init__(
        self,
        address: str,
        *,
        mesh: Mesh | DeviceMesh | Mapping[str, int] | None = None,
        rank: int | None = None,
        coords: Coords | None = None,
        dp_rank: int | None = None,
        dp_size: int | None = None,
        state: Mapping[str, Any] | None = None,
        prefetch: int = 2,
        prefetch_bytes: int | None = None,
        timeout_s: float = 300.0,
        connect_timeout_s: float = 60.0,
        job: str | None = None,
        token: str | None = None,
        tls: TLS | str | os.PathLike[str] | bool | None = None,
        force: bool = False,
        split: Literal["train", "eval"] = "train",
        **others: Any,
    ) -> None:
        refuse(others, DataServiceLoader)
        warn_of_fork_support()
        if prefetch < 1:
            raise ValueError(f"prefetch is {prefetch}; at least 1 step must be on its way")
        self._mesh, place = resolve(mesh, rank=rank, coords=coords, dp_rank=dp_rank, dp_size=dp_size)
        self._coords = place or Coords()
        self._prefetch = partial(Prefetch, depth=prefetch, most_bytes=prefetch_bytes)
        self._connect_timeout_s = connect_timeout_s
        self._job, self._force = job, force
        self._split = "" if split == "train" else split  # on the wire
        self._pid = os.getpid()
        self._stats = LoaderStats()
        # Set by each join. `_state` belongs to the boundary before `_step`, `_state_after` to the next.
        self.mesh: Mesh
        self.info: plan_pb2.JoinResponse
        self._session: int
        self._step: int
        self._microbatch: int  # of `_step`, the next to hand out
        self._num_microbatches: int
        self._state: dict[str, Any]
        self._state_after: dict[str, Any]
        self._batches: list[Batch]  # of `_step`, while it is handed out
        self._ended: bool
        credentials = Credentials.of(token, tls)
        self._running = Running(Transport(address, timeout_s=timeout_s, credentials=credentials), self._pid)
        self._feedback = Feedback(self._running.transport)
        # Runs when the loader is dropped and at exit, so that no thread and no call outlives it.
        self._finalizer = weakref.finalize(self, self._running.close)
        try:
            self._join(Checkpoint.from_dict(state) if state is not None else None)
        except BaseException:
            self.close()
            raise

    @classmethod
    def local(
        cls,
        config: str | os.PathLike[str],
        *,
        store: str | None = None,
        start_timeout_s: float = 300.0,
        **options: Any,
    ) -> Self:
        """A loader with an embedded service of its own, for notebooks and scripts; see `local.LocalService`.

        options   as of `DataServiceLoader`. The service stops with the loader: at `close`, when it is
                  dropped, and with this process, however that ends. Needs dataloader-svc[server]
        """
        service = LocalService(config, store=store, start_timeout_s=start_timeout_s)
        try:
            loader = cls(service.address, **{"token": service.token, "tls": False, **options})
        except BaseException:
            service.close()
            raise
        loader._running.embed(service)
        return loader

    # ---- iteration

    def __iter__(self) -> Self:
        if self._split and (self._ended or self._feedback.step is not None):
            self._leave()
            self._join(None)
        return self

    def __next__(self) -> Batch:
        self._check_usable()
        if not self._batches:
            self._take_step()
        if self._ended:
            raise StopIteration
        batch = self._batches[self._microbatch]
        self._feedback.handed_out(batch)
        self._microbatch += 1
        if batch.is_last_microbatch:
            self._state, self._step = self._state_after, batch.step + 1
            self._batches, self._microbatch = [], 0
        return batch

    def _take_step(self) -> None:
        if self._ended:
            return
        running = self._running
        if running.prefetch is None:
            # Not a bound method: the thread must not keep this loader alive.
            start = partial(start_read, running.transport, self._session, self._coords)
            follow = partial(following, self.info.skip)
            running.prefetch = self._prefetch(running.transport, start, self._step, follow=follow)
        began = time.perf_counter()
        try:
            frame = running.prefetch.take()
            waited = time.perf_counter() - began
            batches = split(frame)
            if self._microbatch:  # where steps are of so many samples, only now it shows how this one divides
                self._checkpoint().check(self.mesh, len(batches))
        except Closed:  # by another thread, such as the one that watches an embedded service
            self._check_usable()
            raise
        except Exception:  # whatever it is, it is raised on
            running.stop_prefetch()  # the next call starts afresh, at the same step
            raise
        self._batches = batches
        self._ended = not self._batches
        if self._ended:
            if self._split:
                self._leave()  # the service need keep nothing for this rank
            return
        self._state_after = frame.meta["state"]
        self._count(frame, waited)
        self._num_microbatches = len(self._batches)

    def _count(self, frame: Frame, waited: float) -> None:
        stats = self._stats
        self._stats = replace(
            stats,
            steps=stats.steps + 1,
            wait_s=stats.wait_s + waited,
            num_bytes=stats.num_bytes + frame.num_bytes,
        )

    def read(self, step: int) -> list[Batch]:
        """All microbatches of any step of this session; empty when the data ends before it.

        Does not touch the iteration. May be repeated: the same batches come each time.
        """
        self._check_usable()
        transport = self._running.transport
        return split(transport.finish_read(start_read(transport, self._session, self._coords, step)))

    def report(
        self,
        *,
        losses: ArrayLike | torch.Tensor | Mapping[str, float | tuple[float, float]] | None = None,
        step_time: float | None = None,
        compute_time: float | None = None,
        step: int | None = None,
    ) -> None:
        """Tell the service what this rank measured, so that the mixture follows losses, and costs times.

        losses         what its targets lost, by source: the sum of `losses_by_source` over the step's
                       microbatches, or by name (sum, weight), or by name a mean, which weighs as much as the
                       source has tokens here
        step_time      seconds of a whole step, from one optimiser step to the next: ranks wait in it
        compute_time   seconds of this rank's own work of the step: its forward and backward passes, without
                       waiting for others or for data. Tells more, and tells which rank is slow
        step           `batch.step` that it is of; that of the last batch handed out by default

        Sends without waiting and never fails a training step. Of use with `mixture.adaptive`
        (docs/adaptive.md) and `strategy.calibrate`; where the service wants none, none is sent, nor what a
        closed loader is told. Losses are sent until they are answered, in order, those of a step once: a
        loss that is no number is left out there, and named. A time that does not arrive, or is none, is
        lost. ValueError: losses of another shape, or of an unknown source.
        """
        if not self._finalizer.alive or os.getpid() != self._pid:
            return
        self._feedback.times(step_time, compute_time, step)
        if losses is not None:
            self._feedback.losses(losses, step)

    # ---- state

    def state_dict(self) -> dict[str, Any]:
        """Where the iteration stands, as JSON-able values: a few kilobytes, equal on all ranks. Read only.

        After the last microbatch of a step (`batch.is_last_microbatch`) it fits any mesh; in the middle of a
        step, only one with the same dp and cp.
        """
        return self._checkpoint().to_dict()

    def _checkpoint(self) -> Checkpoint:
        return Checkpoint(
            service=self._state,
            step=self._step,
            microbatch=self._microbatch,
            num_microbatches=self._num_microbatches,
            dp=self.mesh.dp,
            cp=self.mesh.cp,
        )

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a `state_dict`; all ranks must. Steps read ahead are thrown away."""
        self._check_usable()
        self._join(Checkpoint.from_dict(state))

    def _join(self, checkpoint: Checkpoint | None, skip: Skip | None = None) -> None:
        if checkpoint is not None and self._mesh is not None:
            checkpoint.check(self._mesh)  # before the service starts a session for it
        self._running.stop_prefetch()
        response = self._running.transport.join(
            self._join_request(checkpoint, skip), timeout_s=self._connect_timeout_s
        )
        if response.split != self._split:
            raise VersionMismatchError(
                f"the service ({response.service_version}) knows no splits and would deliver what it trains "
                f"on, not {self._split!r}: upgrade it"
            )
        mesh = Mesh(**{axis: max(getattr(response.mesh, axis), 1) for axis in AXES})
        if self._mesh is None and mesh.world_size > 1:
            raise MeshMismatchError(
                f"the service is configured for {mesh}: say which of its {mesh.world_size} ranks this is, "
                "with mesh= and rank=; or mesh=Mesh(dp=1), for all data in one process"
            )
        if checkpoint is not None:
            checkpoint.check(mesh, response.num_microbatches or None)
        self.mesh, self.info = mesh, response
        self._session, self._step = response.session, response.start_step
        self._num_microbatches = response.num_microbatches
        if checkpoint is not None and checkpoint.microbatch:
            self._num_microbatches = checkpoint.num_microbatches
        self._state = self._state_after = json.loads(response.state_json or "{}")
        self._microbatch = checkpoint.microbatch if checkpoint is not None else 0
        self._batches, self._ended = [], False
        self._feedback.joined(self._coords, response)

    def _join_request(self, checkpoint: Checkpoint | None, skip: Skip | None) -> plan_pb2.JoinRequest:
        request = plan_pb2.JoinRequest(
            protocol=methods.PROTOCOL,
            client_version=_client_version(),
            job=self._job or "",
            force=self._force,
            coords=coords_message(self._coords),
            state_json="" if checkpoint is None else checkpoint.service_json,
            knows_skips=True,
            knows_dispatch=True,
            split=self._split,
            skip=[] if skip is None else [skip],
        )
        if self._mesh is not None:
            request.mesh.CopyFrom(common_pb2.Mesh(**{axis: getattr(self._mesh, axis) for axis in AXES}))
        return request

    # ---- the rest

    def _transport(self) -> Transport:
        self._check_usable()
        if self._split:
            raise DataServiceError("a loader of evaluation changes nothing: ask this of the training's")
        return self._running.transport

    def _skip(self, skip: Skip) -> None:
        self._join(self._checkpoint(), skip)

    def _place(self) -> tuple[int, Coords, int]:
        return self._session, self._coords, self._step

    @property
    def stats(self) -> LoaderStats:
        """Steps, waiting time and bytes so far."""
        return self._stats

    @property
    def coords(self) -> Coords:
        """This rank's place on `mesh`."""
        return self._coords

    def close(self) -> None:
        """End the thread and the connection; tells the service that this rank has left. Idempotent."""
        if self._finalizer.alive and hasattr(self, "_session") and os.getpid() == self._pid:
            self._leave()
        self._finalizer()

    def _leave(self) -> None:
        self._running.stop_prefetch()
        self._running.transport.leave(self._session, self._coords)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _check_usable(self) -> None:
        if not self._finalizer.alive:
            raise DataServiceError("this loader is closed: make another, with state=loader.state_dict()")
        if os.getpid() != self._pid:
            raise DataServiceError(
                "this loader was made in the parent of this process, and its connection does not survive a "
                "fork: make it in the process that uses it, with state=loader.state_dict() where it is to go "
                "on from here. It needs no DataLoader workers around it"
            )
        if self._running.service is not None:
            self._running.service.check()


def _client_version() -> str:
    try:
        return version("dataloader-svc")
    except PackageNotFoundError:
        return "source tree"
