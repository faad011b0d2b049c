"""Predicted time of work, by phase. Placement feels only ratios; the unit is 10^9 floating-point operations
of a forward pass.

**Language model.** A transformer layer of width h spends 24 h^2 operations a token on its matrices and 4 h on
each earlier token that it attends to (Narayanan et al. 2021, arXiv 2104.04473, "24 B s h^2 + 4 B s^2 h";
Chowdhery et al. 2022, PaLM, arXiv 2204.02311, appendix B, counts the same attention as 12 L H Q T with the
backward pass). Those count every pair of tokens; a causal kernel computes half of them, so a document of L
tokens in a model of l layers costs

    l * (24 h^2 * L  +  2 h * L^2)

The backward pass is twice as much of both, which no ratio feels. Documents of a packed sequence do not see
each other: the cost of a sequence is the sum over its documents, not a function of its length. That is what
makes equal token counts unequal work.

Left out, some 10 to 20 % of `linear`: grouped queries, gated and wider feed-forward layers, the vocabulary.
Give `linear` and `quadratic` of your own where that matters; only their ratio does within one phase.

**Encoder.** Pictures are bounded in size by `max_pixels`, so a constant for each patch serves.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

_UNIT = 1e-9

PRESETS: dict[str, tuple[int, int]] = {
    "0.5b": (896, 24),  # Qwen2 0.5B
    "1b": (2048, 16),  # Llama 3.2 1B
    "3b": (3072, 28),  # Llama 3.2 3B
    "7b": (4096, 32),  # Llama 2 7B
    "8b": (4096, 32),  # Llama 3.1 8B
    "13b": (5120, 40),  # Llama 2 13B
    "32b": (5120, 64),  # Qwen2.5 32B
    "70b": (8192, 80),  # Llama 2 and 3.1 70B
    "405b": (16384, 126),  # Llama 3.1 405B
}
"""Name -> (width, layers), from the models' published configurations."""


@dataclass(frozen=True, slots=True)
class LlmCost:
    """`linear * L + quadratic * L^2` for a document of L tokens."""

    linear: float
    quadratic: float

    def __post_init__(self) -> None:
        _check_coefficient("linear", self.linear)
        _check_coefficient("quadratic", self.quadratic)

    @classmethod
    def of_model(cls, hidden: int, layers: int) -> LlmCost:
        """The module's formula for `layers` of width `hidden`."""
        return cls(24.0 * hidden**2 * layers * _UNIT, 2.0 * hidden * layers * _UNIT)

    @classmethod
    def preset(cls, model: str) -> LlmCost:
        """By name of PRESETS; ValueError lists them."""
        if model not in PRESETS:
            raise ValueError(f"unknown model {model!r}; presets: {', '.join(PRESETS)}")
        return cls.of_model(*PRESETS[model])

    def of_documents(self, lengths: ArrayLike) -> NDArray[np.float64]:
        """float64 (n,): cost of each document of `lengths` int (n,) tokens."""
        tokens = np.asarray(lengths, np.float64)
        return self.linear * tokens + self.quadratic * tokens * tokens


@dataclass(frozen=True, slots=True)
class EncoderCost:
    """`per_patch` for each patch. The default, 1, is that of an encoder of 0.5 billion weights (2 operations
    a weight and patch), about Qwen2-VL's.
    """

    per_patch: float = 1.0

    def __post_init__(self) -> None:
        _check_coefficient("per_patch", self.per_patch)

    def of_patches(self, patches: ArrayLike) -> NDArray[np.float64]:
        """float64 (n,): cost of `patches` int (n,) of each item."""
        return self.per_patch * np.asarray(patches, np.float64)


def sequence_cost(lengths: ArrayLike, offsets: ArrayLike, cost: LlmCost) -> NDArray[np.float64]:
    """float64 (s,): cost of packed sequences, whose documents are `lengths[offsets[i]:offsets[i+1]]`."""
    return segment_sum(cost.of_documents(lengths), offsets)


def segment_sum(values: ArrayLike, offsets: ArrayLike) -> NDArray[np.float64]:
    """float64 (s,): sums of `values[offsets[i]:offsets[i+1]]`, 0 for an empty segment.

    `offsets` is int (s+1,), ascending, within `values`. Not `np.add.reduceat`, which gives an empty segment
    its neighbour's value, nor differences of a running sum, which make equal segments unequal by rounding.
    """
    bounds = np.asarray(offsets, np.int64)
    numbers = np.asarray(values, np.float64)
    counts = np.diff(bounds)
    if len(bounds) < 1 or bounds[0] < 0 or bounds[-1] > len(numbers) or np.any(counts < 0):
        raise ValueError(f"offsets must ascend within 0 to {len(numbers)}; got {bounds[:8].tolist()} ...")
    segment = np.repeat(np.arange(len(counts)), counts)
    return np.bincount(segment, numbers[bounds[0] : bounds[-1]], len(counts)).astype(np.float64)


def _check_coefficient(name: str, value: float) -> None:
    if not (math.isfinite(value) and value >= 0):
        raise ValueError(f"{name} is {value}; coefficients are finite and not negative")
