"""Predicted time of work, by phase. Only ratios matter: the unit is one thousandth of a layer's multiply-add.

**Language model.** A transformer layer of width h spends 24 h^2 floating-point operations a token on its
matrices and 4 h on each earlier token that it attends to (Narayanan et al. 2021, arXiv 2104.04473, section
on FLOPs; Chowdhery et al. 2022, arXiv 2204.02311, appendix B). Causal attention sees L / 2 earlier tokens on
average, so a document of L tokens costs

    24 h^2 * L  +  2 h * L^2        (times the number of layers, which no ratio feels)

Documents of a packed sequence do not see each other: the cost of a sequence is the sum over its documents,
not a function of its length. That is what makes equal token counts unequal work.

**Encoder.** Pictures are bounded in size by `max_pixels`, so patches times a constant serves.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

_UNIT = 1e-9

# Width of common decoder sizes (Llama 1 to 3, Qwen 2).
PRESETS: dict[str, int] = {
    "0.5b": 896,
    "1b": 2048,
    "3b": 3072,
    "7b": 4096,
    "8b": 4096,
    "13b": 5120,
    "32b": 5120,
    "70b": 8192,
    "405b": 16384,
}


@dataclass(frozen=True, slots=True)
class LlmCost:
    """`linear * L + quadratic * L^2` for a document of L tokens."""

    linear: float
    quadratic: float

    def __post_init__(self) -> None:
        for name in ("linear", "quadratic"):
            value = getattr(self, name)
            if not (np.isfinite(value) and value >= 0):
                raise ValueError(f"{name} is {value}; coefficients are finite and not negative")

    @classmethod
    def of_width(cls, hidden: int) -> LlmCost:
        """The formula above for a model of width `hidden`."""
        return cls(24.0 * hidden**2 * _UNIT, 2.0 * hidden * _UNIT)

    @classmethod
    def preset(cls, model: str) -> LlmCost:
        """By name of PRESETS; ValueError lists them."""
        if model not in PRESETS:
            raise ValueError(f"unknown model {model!r}; presets: {', '.join(PRESETS)}")
        return cls.of_width(PRESETS[model])

    def of_documents(self, lengths: ArrayLike) -> NDArray[np.float64]:
        """float64 (n,): cost of each document of `lengths` (n,) tokens."""
        tokens = np.asarray(lengths, np.float64)
        return self.linear * tokens + self.quadratic * tokens * tokens


@dataclass(frozen=True, slots=True)
class EncoderCost:
    """`per_patch` for each patch, in thousandths of the LLM cost's unit of a 7b token (about 0.4)."""

    per_patch: float = 1.0

    def __post_init__(self) -> None:
        if not (np.isfinite(self.per_patch) and self.per_patch >= 0):
            raise ValueError(f"per_patch is {self.per_patch}; it is finite and not negative")

    def of_patches(self, patches: ArrayLike) -> NDArray[np.float64]:
        """float64 (n,): cost of `patches` (n,)."""
        return self.per_patch * np.asarray(patches, np.float64)


def segment_sum(values: ArrayLike, offsets: ArrayLike) -> NDArray[np.float64]:
    """float64 (s,): sums of `values[offsets[i]:offsets[i+1]]`, 0 for an empty segment.

    `offsets` is int (s+1,), ascending. `np.add.reduceat` would give a neighbour's value for empty segments.
    """
    running = np.concatenate([[0.0], np.cumsum(np.asarray(values, np.float64))])
    bounds = np.asarray(offsets, np.int64)
    return np.asarray(running[bounds[1:]] - running[bounds[:-1]], np.float64)


def sequence_cost(lengths: ArrayLike, offsets: ArrayLike, cost: LlmCost) -> NDArray[np.float64]:
    """float64 (s,): cost of packed sequences, whose documents are `lengths[offsets[i]:offsets[i+1]]`."""
    return segment_sum(cost.of_documents(lengths), offsets)
