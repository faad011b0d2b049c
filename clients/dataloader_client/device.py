"""`DeviceLoader`: batches on the trainer's device before it asks for them; `normalize_patches`: their pixels.

On CUDA a batch is copied to pinned memory and from there on a stream of its own, `ahead` batches in front of
the trainer, so that the copy runs beside its compute. On other devices it is a plain copy. Imports torch in
functions only; knows of the loader that it can be iterated and has a `state_dict`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, Self

from dataloader_client.batch import Batch
from dataloader_client.mesh import Mesh

if TYPE_CHECKING:
    import torch

_CLIP = ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711))
STATISTICS: Mapping[str, tuple[Sequence[float], Sequence[float]]] = {
    "clip": _CLIP,
    "qwen2_vl": _CLIP,  # its image processor takes those of CLIP
    "siglip": ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
    "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
}
"""Mean and standard deviation of red, green and blue in 0 to 1, by the name of who uses them."""


class Loader(Protocol):
    """What is needed of a `DataServiceLoader`."""

    def __next__(self) -> Batch: ...
    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


class RankLoader(Loader, Protocol):
    """What adapters of other libraries need of a `DataServiceLoader`, or of a `DeviceLoader` around one."""

    mesh: Mesh

    def __iter__(self) -> Iterator[Batch]: ...


class Copies(Protocol):
    """How a batch gets to the device: `start` without waiting, `finish` before the trainer's next kernel."""

    def start(self, batch: Batch) -> Batch: ...
    def finish(self, batch: Batch) -> Batch: ...


class DeviceLoader:
    """`loader`, with its batches on `device`.

    ahead   microbatches whose copy has begun before they are asked for: so much memory of the device, and as
            much pinned
    copies  how they are copied; by default what fits `device`

    `state_dict` is of the batches that were handed out: those on their way come again. What else the loader
    has (`report`, `stats`, `close`, ...) is reached through it.
    """

    def __init__(
        self, loader: Loader, device: str | torch.device, *, ahead: int = 2, copies: Copies | None = None
    ) -> None:
        if ahead < 1:
            raise ValueError(f"ahead is {ahead}; at least 1 batch must be on its way")
        self._loader, self._ahead = loader, ahead
        self._copies = copies_to(device) if copies is None else copies
        self._under_way: deque[tuple[Batch, dict[str, Any]]] = deque()  # and the state after each
        self._state = loader.state_dict()
        self._error: Exception | None = None  # of reading ahead: raised when its turn comes

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Batch:
        while self._error is None and len(self._under_way) < self._ahead:
            self._begin_next()
        if not self._under_way:
            error, self._error = self._error, None
            assert error is not None
            raise error
        batch, self._state = self._under_way.popleft()
        ready = self._copies.finish(batch)
        if self._error is None:
            self._begin_next()  # so that `ahead` are under way while the trainer computes
        return ready

    def _begin_next(self) -> None:
        try:
            batch = next(self._loader)
        except Exception as error:  # the end too; what was read before it is handed out first
            self._error = error
            return
        self._under_way.append((self._copies.start(batch), self._loader.state_dict()))

    def state_dict(self) -> dict[str, Any]:
        """Of the loader after the last batch that was handed out."""
        return self._state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there; batches on their way are thrown away."""
        self._under_way.clear()
        self._error = None
        self._loader.load_state_dict(state)
        self._state = self._loader.state_dict()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._loader, name)


def copies_to(device: str | torch.device) -> Copies:
    """The way to copy to `device`."""
    import torch

    place = torch.device(device)
    if place.type != "cuda":
        return _Plain(place)
    new_stream: Any = torch.cuda.Stream  # has no types
    return _SideStream(place, new_stream(place))


@dataclass(frozen=True, slots=True)
class _Plain:
    """At once, in the trainer's own order."""

    device: torch.device

    def start(self, batch: Batch) -> Batch:
        return batch.to(self.device)

    def finish(self, batch: Batch) -> Batch:
        return batch


class _SideStream:
    """Through pinned memory, on a stream of its own.

    Two rules of CUDA streams hold it together. The trainer's stream waits for the event behind the copy, so
    no kernel reads half a tensor. And each tensor, whose memory belongs to the side stream, is recorded on
    the trainer's, so that it is not given out again while a kernel of that one still reads it. The pinned
    memory is torch's to keep until its copy is done.
    """

    def __init__(self, device: torch.device, stream: torch.cuda.Stream) -> None:
        self._device, self._stream = device, stream
        self._events: dict[int, torch.cuda.Event] = {}

    def start(self, batch: Batch) -> Batch:
        import torch

        pinned = batch.pin_memory()
        with torch.cuda.stream(self._stream):
            copied = pinned.to(self._device, non_blocking=True)
            self._events[id(copied)] = self._stream.record_event()
        return copied

    def finish(self, batch: Batch) -> Batch:
        import torch

        current = torch.cuda.current_stream(self._device)
        current.wait_event(self._events.pop(id(batch)))
        for tensor in batch.tensors().values():
            tensor.record_stream(current)
        return batch


def normalize_patches(
    patches: torch.Tensor,
    statistics: str | tuple[Sequence[float], Sequence[float]] = "qwen2_vl",
    *,
    dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """`(patches / 255 - mean) / std` a channel, where `patches` are: on the device they crossed as bytes.

    patches     uint8 (P, 3 * patch * patch), channel first in a patch, as `pixel_values` of a batch
    statistics  a name of STATISTICS, or (mean, std) of red, green and blue in 0 to 1
    dtype       of the result, (P, 3 * patch * patch); default float32. The arithmetic is of float32
    """
    import torch

    if isinstance(statistics, str):
        if statistics not in STATISTICS:
            raise ValueError(
                f"statistics {statistics!r} are none of {', '.join(STATISTICS)}; give (mean, std) of "
                "red, green and blue"
            )
        statistics = STATISTICS[statistics]
    means, deviations = statistics
    if len(means) != 3 or len(deviations) != 3 or min(deviations) <= 0:
        raise ValueError(f"statistics {statistics!r}: need 3 means and 3 positive deviations")
    if patches.dtype != torch.uint8 or patches.ndim != 2 or patches.shape[1] % 3:
        raise ValueError(
            f"patches are {patches.dtype} {tuple(patches.shape)}: need uint8 (P, 3 * patch * patch), the "
            "`pixel_values` of a batch"
        )
    # (P, 3 * patch * patch) -> (P, 3, patch * patch): a channel's values lie together.
    mean, std = (
        torch.tensor(values, dtype=torch.float32, device=patches.device) for values in (means, deviations)
    )
    channels = patches.view(len(patches), 3, patches.shape[1] // 3).to(torch.float32)
    scaled = channels.mul_((1 / (255 * std))[:, None]).sub_((mean / std)[:, None])
    return scaled.reshape(patches.shape).to(dtype or torch.float32)
