"""The cost of pictures by their patches and of sound by its frames, from an encoder's shape.

Encoders are transformers too: a matrix of m weights takes 2 m operations a token, and a token that sees p
tokens 4 h p (scores and values; `shape.py` has the sources). Their attention is not causal: a picture of P
patches has all P^2 pairs, and pictures do not see each other. With windows of w patches (Qwen2.5-VL, arXiv
2502.13923, section 2.1.1) it has P w.

Unit: 10^9 operations of a forward pass, as for text. An encoder that is frozen has no backward pass: its cost
is then a third of this against a language model's that is trained; say so with `scaled`.
Left out: patch embedding, merger and projector, a few percent and linear in patches.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dataloader_balancers.cost.document import check_coefficient, check_windows

_UNIT = 1e-9


@dataclass(frozen=True, slots=True)
class EncoderCost:
    """Of a picture of P patches: `per_patch * P + quadratic * P^2`, and `q * P * min(P, w)` for each (w, q)
    of `windowed`. The default, 1 for each patch alone, is that of an encoder of 0.5 billion weights (2
    operations a weight and patch), about Qwen2-VL's.
    """

    per_patch: float = 1.0
    quadratic: float = 0.0
    windowed: tuple[tuple[int, float], ...] = ()

    def __post_init__(self) -> None:
        check_coefficient("per_patch", self.per_patch)
        check_coefficient("quadratic", self.quadratic)
        check_windows(self.windowed, "patches")

    def of_images(self, patches: ArrayLike) -> NDArray[np.float64]:
        """float64 (n,): cost of single pictures, or frames, of `patches` int (n,) each."""
        count = np.asarray(patches, np.float64)
        total = self.per_patch * count + self.quadratic * count * count
        for window, quadratic in self.windowed:
            total = total + quadratic * count * np.minimum(count, window)
        return total

    def of_patches(self, patches: ArrayLike) -> NDArray[np.float64]:
        """float64 (n,): cost of `patches` int (n,) of each item, in however many pictures.

        ValueError where that matters: `linearised` says how large they are, or use `of_images`.
        """
        if self.quadratic or self.windowed:
            raise ValueError(
                "this encoder's attention makes the cost of patches depend on the pictures that they are of: "
                "give pictures to of_images, or use linearised(patches of a usual picture)"
            )
        return self.per_patch * np.asarray(patches, np.float64)

    def linearised(self, patches: int) -> Self:
        """Each patch at what it costs in a picture of so many patches. Windowed layers lose nothing by it."""
        if patches < 1:
            raise ValueError(f"a picture of {patches} patches; it has at least one")
        return type(self)(float(self.of_images([patches])[0]) / patches)

    def scaled(self, factors: ArrayLike) -> Self:
        """All of it times `factors` (1,)."""
        (factor,) = np.asarray(factors, np.float64).tolist()
        windowed = tuple((window, factor * quadratic) for window, quadratic in self.windowed)
        return type(self)(factor * self.per_patch, factor * self.quadratic, windowed)


@dataclass(frozen=True, slots=True)
class VisionShape:
    """Of a vision transformer.

    window           patches in a window of all layers but `full_layers`; 0: all layers see whole pictures
    gated            the feed-forward layer has three matrices
    """

    hidden: int
    layers: int
    intermediate: int
    window: int = 0
    full_layers: int = 0
    gated: bool = False

    def __post_init__(self) -> None:
        for name in ("hidden", "layers", "intermediate"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it is at least 1")
        if not 0 <= self.full_layers <= self.layers or self.window < 0:
            raise ValueError(f"{self.full_layers} of {self.layers} layers full, window {self.window}")

    @property
    def num_weights(self) -> int:
        """Of the layers' matrices."""
        return _layer_weights(self.hidden, self.intermediate, gated=self.gated) * self.layers

    @property
    def cost(self) -> EncoderCost:
        """Of a forward pass, in 10^9 operations."""
        pair = 4.0 * self.hidden * _UNIT
        full = self.full_layers if self.window else self.layers
        windowed = ((self.window, (self.layers - full) * pair),) if self.layers > full else ()
        return EncoderCost(2.0 * self.num_weights * _UNIT, full * pair, windowed)


@dataclass(frozen=True, slots=True)
class AudioCost:
    """Of F frames, cut into chunks of `chunk` frames: for each chunk of f frames,
    `per_frame * f + quadratic * f^2`; with `padded`, the last chunk is filled up with silence first.
    """

    per_frame: float
    quadratic: float
    chunk: int
    padded: bool

    def __post_init__(self) -> None:
        check_coefficient("per_frame", self.per_frame)
        check_coefficient("quadratic", self.quadratic)
        if self.chunk < 1:
            raise ValueError(f"chunks of {self.chunk} frames; they have at least one")

    def of_frames(self, frames: ArrayLike) -> NDArray[np.float64]:
        """float64 (n,): cost of sounds of `frames` int (n,)."""
        count = np.asarray(frames, np.int64)
        whole, rest = (-(-count // self.chunk), 0 * count) if self.padded else np.divmod(count, self.chunk)
        return whole * self._of(np.float64(self.chunk)) + self._of(rest.astype(np.float64))

    def _of(self, frames: NDArray[np.float64] | np.float64) -> NDArray[np.float64]:
        return np.asarray(self.per_frame * frames + self.quadratic * frames * frames)


@dataclass(frozen=True, slots=True)
class AudioShape:
    """Of Whisper's encoder (Radford et al. 2022, arXiv 2212.04356, section 2.2): two convolutions of width 3
    over `mel_bins` frames, of which the second halves their number, then transformer layers over at most
    `positions` positions, which is 2 * `positions` frames: 30 s. Sounds are cut into such chunks; `padded`:
    the last is filled up, as Whisper and most that use its encoder do.
    """

    hidden: int
    layers: int
    intermediate: int
    mel_bins: int = 80
    positions: int = 1500
    padded: bool = True

    def __post_init__(self) -> None:
        for name in ("hidden", "layers", "intermediate", "mel_bins", "positions"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it is at least 1")

    @property
    def num_weights(self) -> int:
        """Of the matrices of convolutions and layers."""
        convolutions = 3 * self.hidden * (self.mel_bins + self.hidden)
        return convolutions + self.layers * _layer_weights(self.hidden, self.intermediate, gated=False)

    @property
    def cost(self) -> AudioCost:
        """Of a forward pass, in 10^9 operations. A frame is half a position."""
        first = 3 * self.hidden * self.mel_bins
        per_frame = 2.0 * first + 1.0 * (self.num_weights - first)
        quadratic = self.layers * 4.0 * self.hidden / 4
        return AudioCost(per_frame * _UNIT, quadratic * _UNIT, 2 * self.positions, self.padded)


def _layer_weights(hidden: int, intermediate: int, *, gated: bool) -> int:
    return 4 * hidden**2 + (3 if gated else 2) * hidden * intermediate
