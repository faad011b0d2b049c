"""Whether an array is sent as it is or encoded: by measured milliseconds of the link and of both ends.

`choose` decides, and is pure. `Encoder` knows what codecs made of the fields of earlier batches: how much
smaller, and how long it took. It takes no time into account that might overlap: encoding, sending and
decoding are added up, so that what it chooses is not slower than plain bytes where they do not overlap
either. Arrays are encoded without loss; each field by itself, since token ids shrink and pixels don't.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from dataloader_client.codecs import Codec, Packed, installed
from dataloader_client.wire import Frame
from dataloader_svc.clock import Clock
from dataloader_svc.config.schema import WireCompression

WORTH = 0.9
"""What is not faster by a tenth is within noise, and stays plain."""

LEAST_BYTES = 4096
"""Of an array; smaller ones cost more calls than bytes."""

SAMPLE_BYTES = 1 << 18
"""Of an array that is encoded to see what would come of it."""

LOOK_AGAIN = 64
"""Arrays of a field, after which one that stayed plain is looked at again: data changes."""

_WEIGHT = 0.3  # of the newest measurement


@dataclass(frozen=True, slots=True)
class Measured:
    """What a codec makes of a field: its share of the bytes, and seconds a byte at either end."""

    ratio: float
    encode_s: float
    decode_s: float

    def total_s(self, num_bytes: int, link_bytes_per_s: float) -> float:
        """From the array here to the array there, one after the other."""
        return num_bytes * (self.encode_s + self.ratio / link_bytes_per_s + self.decode_s)


def choose(num_bytes: int, link_bytes_per_s: float, measured: Mapping[str, Measured]) -> str:
    """The codec by which an array is there soonest; "" for plain bytes: also while the link isn't known.

    Below a byte a second nothing was measured, and seconds overflow.
    """
    if num_bytes < LEAST_BYTES or link_bytes_per_s < 1:
        return ""
    took = {name: each.total_s(num_bytes, link_bytes_per_s) for name, each in measured.items()}
    best = min(took, key=lambda name: took[name], default="")
    return best if best and took[best] <= WORTH * num_bytes / link_bytes_per_s else ""


@dataclass(slots=True)
class _Field:
    measured: dict[str, Measured]
    seen: int = 0


class Encoder:
    """Encodes frames for readers; `encode` blocks, and may run in several threads."""

    def __init__(self, compression: WireCompression, clock: Clock) -> None:
        self._compression, self._clock = compression, clock
        self._fields: dict[str, _Field] = {}
        self.saved_bytes = 0

    def usable(self, codecs: Collection[str], link_bytes_per_s: float) -> Sequence[str]:
        """Codecs that may be used for a reader who knows `codecs`; none: no need to ask further."""
        if self._compression == "off" or (self._compression == "auto" and link_bytes_per_s <= 0):
            return ()
        wanted = installed() if self._compression == "auto" else (self._compression,)
        return [name for name in wanted if name in codecs and name in installed()]

    def encode(self, frame: Frame, codecs: Sequence[str], link_bytes_per_s: float) -> Frame:
        """The frame with what of its arrays is sent encoded."""
        packed = {}
        for name, array in frame.arrays.items():
            made = self._encoded(name.partition("/")[2], array, codecs, link_bytes_per_s)
            if made is not None and len(made.data) < array.nbytes:
                packed[name] = made
                self.saved_bytes += array.nbytes - len(made.data)
        return replace(frame, packed=packed) if packed else frame

    def _encoded(
        self, field: str, array: NDArray[np.generic], codecs: Sequence[str], link_bytes_per_s: float
    ) -> Packed | None:
        if array.nbytes < LEAST_BYTES:
            return None
        data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        if self._compression != "auto":
            return Packed(codecs[0], installed()[codecs[0]].compress(data.data))
        known = self._fields.setdefault(field, _Field({}))
        if known.seen % LOOK_AGAIN == 0:
            known.measured = {name: self._try(codec, data) for name, codec in installed().items()}
        known.seen += 1
        usable = {name: each for name, each in known.measured.items() if name in codecs}
        chosen = choose(len(data), link_bytes_per_s, usable)
        if not chosen:
            return None
        began = self._clock.monotonic()
        made = installed()[chosen].compress(data.data)
        self._note(known, chosen, len(made) / len(data), (self._clock.monotonic() - began) / len(data))
        return Packed(chosen, made)

    def _try(self, codec: Codec, data: NDArray[np.uint8]) -> Measured:
        """On a piece from the middle; the reader's machine is taken to be like this one."""
        size = min(len(data), SAMPLE_BYTES)
        start = (len(data) - size) // 2
        piece = data[start : start + size].data
        began = self._clock.monotonic()
        made = codec.compress(piece)
        encoded = self._clock.monotonic()
        codec.decompress(memoryview(made), size)
        decoded = self._clock.monotonic()
        return Measured(len(made) / size, (encoded - began) / size, (decoded - encoded) / size)

    def _note(self, field: _Field, codec: str, ratio: float, encode_s: float) -> None:
        was = field.measured[codec]
        field.measured[codec] = replace(
            was,
            ratio=was.ratio + _WEIGHT * (ratio - was.ratio),
            encode_s=was.encode_s + _WEIGHT * (encode_s - was.encode_s),
        )
