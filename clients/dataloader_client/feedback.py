"""What a trainer measured, on its way to the service: it never waits for it, and fails no training step.

Times are forgotten where they do not arrive: new ones say the same. Losses decide the mixture of a job whose
`mixture.adaptive` wants them, and are kept until they are answered: of one rank in order, one call at a time.
"""

from __future__ import annotations

import math
import threading
from collections import OrderedDict, deque
from collections.abc import Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeGuard

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dataloader_client import methods
from dataloader_client._pb import constructor_service_pb2, plan_pb2
from dataloader_client._pb.control_service_pb2 import LossesRequest, LossesResponse, StepLosses
from dataloader_client.batch import Batch
from dataloader_client.losses import array_of
from dataloader_client.mesh import Coords
from dataloader_client.transport import Transport, coords_message

if TYPE_CHECKING:
    import torch

FloatArray = NDArray[np.float64]

MOST_TIMES = 4
"""Unanswered: the service is away, and what this rank measured meanwhile is lost."""

MOST_LOSSES = 1024
"""Steps whose losses may be unanswered: a trainer stands still long before."""

_AT_ONCE = 64
_COUNTED = 16  # steps whose tokens by source are known, for means
_TIMES_TIMEOUT_S = 10.0
_LOSSES_TIMEOUT_S = 20.0


class TimeSender:
    """`add` a report of times: it is sent now, or not at all: none is where the service wants none, nor while
    earlier ones are unanswered.
    """

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._lock = threading.Lock()  # of the two below: answers come in a thread of gRPC
        self._wanted = True  # until the service says otherwise
        self.flying = 0

    def add(self, report: constructor_service_pb2.ReportRequest) -> None:
        """Have it sent."""
        with self._lock:
            if not self._wanted or self.flying >= MOST_TIMES:
                return
            self.flying += 1
        self._transport.post(methods.REPORT, report, _TIMES_TIMEOUT_S, self._answered)

    def _answered(self, answer: constructor_service_pb2.ReportResponse | None) -> None:
        """What failed is forgotten: a service of before has no such call."""
        with self._lock:
            self.flying -= 1
            self._wanted = self._wanted and (answer is None or answer.wanted)


class LossSender:
    """`add` a report: it is sent when those before it are answered. `send` sends what failed again."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._lock = threading.Lock()  # of the two below: answers come in a thread of gRPC
        self._waiting: deque[StepLosses] = deque()
        self._flying = 0
        self.dropped = 0

    def add(self, report: StepLosses) -> None:
        """Have it sent. One more than there may be is dropped."""
        with self._lock:
            if len(self._waiting) >= MOST_LOSSES:
                self.dropped += 1
                return
            self._waiting.append(report)
        self.send()

    def send(self) -> None:
        """Send what waits, unless something is on its way."""
        with self._lock:
            if self._flying or not self._waiting:
                return
            self._flying = min(len(self._waiting), _AT_ONCE)
            request = LossesRequest(steps=islice(self._waiting, self._flying))
        self._transport.post(methods.REPORT_LOSSES, request, _LOSSES_TIMEOUT_S, self._answered)

    def _answered(self, answer: LossesResponse | None) -> None:
        with self._lock:
            if answer is not None:
                for _ in range(self._flying):
                    self._waiting.popleft()
            self._flying = 0
        if answer is not None:
            self.send()


class Feedback:
    """Of one loader. `joined` at each join, `handed_out` with each batch."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._session, self._split, self._coords = 0, "", Coords()
        self._sources: tuple[str, ...] = ()
        self.times_sender = TimeSender(transport)
        self.sender: LossSender | None = None  # None: no losses are wanted
        self.step: int | None = None  # of the last batch
        self._tokens: OrderedDict[int, FloatArray] = OrderedDict()  # by step, of this rank by source

    def joined(self, coords: Coords, info: plan_pb2.JoinResponse) -> None:
        """Another session: what is still on its way was of the one before, and of no use."""
        self._session, self._split, self._coords = info.session, info.split, coords
        self._sources = tuple(info.sources)
        self.sender = LossSender(self._transport) if info.wants_losses else None
        self.step = None
        self._tokens.clear()

    def handed_out(self, batch: Batch) -> None:
        """Reports are of its step from now on."""
        self.step = batch.step
        if self.sender is None:
            return
        self.sender.send()
        spans = batch.manifest.columns
        counts = np.bincount(spans["span_source"], spans["span_length"], len(self._sources)).astype(
            np.float64
        )
        before = self._tokens.get(batch.step)
        self._tokens[batch.step] = counts if before is None else before + counts
        while len(self._tokens) > _COUNTED:
            self._tokens.popitem(last=False)

    def times(self, step_time: float | None, compute_time: float | None, step: int | None) -> None:
        """Send what of them is a time."""
        given = {"step_time": step_time, "compute_time": compute_time}
        measured: dict[str, Any] = {name: float(value) for name, value in given.items() if _is_time(value)}
        step = self.step if step is None else step
        if measured and step is not None:
            request = constructor_service_pb2.ReportRequest(
                session=self._session,
                step=step,
                coords=coords_message(self._coords),
                split=self._split,
                **measured,
            )
            self.times_sender.add(request)

    def losses(
        self,
        losses: ArrayLike | torch.Tensor | Mapping[str, float | tuple[float, float]],
        step: int | None,
    ) -> None:
        """Have them sent, where they are wanted. ValueError for what has another form."""
        step = self.step if step is None else step
        if self.sender is None or step is None:
            return
        sums = self._sums(losses, step)
        rows = np.flatnonzero((sums != 0).any(axis=1))  # nan is not 0: the service says what it is of
        self.sender.add(
            StepLosses(
                session=self._session,
                dp_rank=self._coords.dp,
                cp_rank=self._coords.cp,
                step=step,
                source=rows.tolist(),
                loss=sums[rows, 0].tolist(),
                targets=sums[rows, 1].tolist(),
            )
        )

    def _sums(
        self,
        losses: ArrayLike | torch.Tensor | Mapping[str, float | tuple[float, float]],
        step: int,
    ) -> FloatArray:
        """(sources, 2): sums of losses and of targets."""
        shape = (len(self._sources), 2)
        if not isinstance(losses, Mapping):
            sums = array_of(losses)
            if sums.shape != shape:
                raise ValueError(
                    f"losses have shape {sums.shape}; {shape} is needed, as losses_by_source gives: a sum of "
                    "losses and a sum of weights for each source"
                )
            return sums
        sums = np.zeros(shape)
        for name, value in losses.items():
            if name not in self._sources:
                known = ", ".join(self._sources)
                raise ValueError(f"losses has {name!r}, which is no source; there are {known}")
            row = self._sources.index(name)
            sums[row] = value if isinstance(value, tuple) else self._of_mean(row, value, step)
        return sums

    def _of_mean(self, row: int, mean: float, step: int) -> tuple[float, float]:
        """A mean weighs as much as the source has tokens in what this rank got of the step."""
        if step not in self._tokens:
            raise ValueError(
                f"step {step} was not handed out lately, so a mean of it can't be weighed: give (sum, weight)"
            )
        tokens = float(self._tokens[step][row])
        return mean * tokens, tokens


def _is_time(value: float | None) -> TypeGuard[float]:
    """Whether it is one that can be reported."""
    return value is not None and math.isfinite(value) and value > 0
