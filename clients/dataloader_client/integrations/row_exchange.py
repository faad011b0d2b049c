"""An all-to-all of rows that gradients go back through. Needs torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

Ints = NDArray[np.int64]


class _Exchange(torch.autograd.Function):
    """All-to-all of rows: `sent` (ranks,) of them go to each rank, `received` come. Gradients go back."""

    @staticmethod
    def forward(
        ctx: Any, rows: torch.Tensor, sent: Ints, received: Ints, group: dist.ProcessGroup | None
    ) -> torch.Tensor:
        ctx.way = (received, sent, group)
        return _exchanged(rows, sent, received, group)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        return _exchanged(grad, *ctx.way), None, None, None


def exchange(rows: torch.Tensor, sent: Ints, received: Ints, group: dist.ProcessGroup | None) -> torch.Tensor:
    """Rows (sum of received, ...) from all ranks of the group in their order, for rows (sum of sent, ...)
    that go to them in theirs.
    """
    came: torch.Tensor = _Exchange.apply(rows, sent, received, group)  # type: ignore[no-untyped-call]
    return came


def _exchanged(
    rows: torch.Tensor,
    sent: Sequence[int] | Ints,
    received: Sequence[int] | Ints,
    group: dist.ProcessGroup | None,
) -> torch.Tensor:
    came = rows.new_empty((int(np.sum(received)), *rows.shape[1:]))
    coming, going = ([int(count) for count in counts] for counts in (received, sent))
    dist.all_to_all_single(came, rows.contiguous(), coming, going, group)
    return came
