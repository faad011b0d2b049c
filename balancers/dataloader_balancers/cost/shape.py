"""A language model's shape, and the operations that a document takes in it.

A matrix of m weights takes 2 m operations a token. With h the hidden width, n query heads and k key heads of
width d, a layer's attention has h d (2 n + 2 k) weights; its gated feed-forward layer 3 h f (2 h f where
it is not gated); a layer of experts, the router and those that a token goes through (Narayanan et al. 2021,
arXiv 2104.04473, section 5.1, whose 24 B s h^2 is f = 4 h, not gated, n = k; the LM head is its last term).

A token that attends to p others takes 2 n (d_qk + d_v) p operations: scores, and the weighted sum of values
(Chowdhery et al. 2022, PaLM, arXiv 2204.02311, appendix B: 12 L H Q T with the backward pass, for d_qk = d_v
and all pairs). A causal kernel computes half of the pairs, L^2 / 2 of a document of L tokens; with a window
w, those of a band: L^2 / 2 up to w tokens, w L - w^2 / 2 beyond.

Latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1) is counted as it is trained: keys and values are
expanded from the latent vector, heads are nope + rope wide for scores and `value_dim` for values.

Left out: normalisation, rotary embedding, softmax, biases, which are linear in tokens and under a percent.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dataloader_balancers.cost.document import LlmCost

_UNIT = 1e-9


@dataclass(frozen=True, slots=True)
class Experts:
    """A mixture of experts in all layers but the first `dense_layers`.

    count          experts of a layer, of which a token goes through `active`
    intermediate   width of one; `shared` is the width of what every token goes through beside them
    """

    count: int
    active: int
    intermediate: int
    shared: int = 0
    dense_layers: int = 0

    def __post_init__(self) -> None:
        if not (0 < self.active <= self.count and self.intermediate > 0):
            raise ValueError(f"{self}: needs 0 < active <= count, and a positive intermediate")
        if self.shared < 0 or self.dense_layers < 0:
            raise ValueError(f"{self}: shared and dense_layers are not negative")


@dataclass(frozen=True, slots=True)
class LatentAttention:
    """Ranks of the compressed keys and values and queries (None: queries are not compressed), and the
    width of a head: `nope_dim` + `rope_dim` for scores, `value_dim` for values.
    """

    kv_rank: int
    q_rank: int | None
    nope_dim: int
    rope_dim: int
    value_dim: int


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Of a decoder. ValueError for sizes that no model has.

    head_dim         0: hidden / heads
    window           tokens that a token sees in `windowed_layers` of the layers; in the others, all before it
    gated            the feed-forward layer has three matrices (SwiGLU, GeGLU), not two
    tied             the LM head is the embedding: no matter for work, only for `num_weights`
    """

    hidden: int
    layers: int
    intermediate: int
    heads: int
    kv_heads: int
    vocabulary: int
    head_dim: int = 0
    window: int = 0
    windowed_layers: int = 0
    gated: bool = True
    tied: bool = False
    experts: Experts | None = None
    latent: LatentAttention | None = None

    def __post_init__(self) -> None:
        for name in ("hidden", "layers", "intermediate", "heads", "kv_heads", "vocabulary"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it is at least 1")
        if not self.head_dim:
            if self.hidden % self.heads:
                raise ValueError(f"hidden {self.hidden} is no multiple of {self.heads} heads: give head_dim")
            object.__setattr__(self, "head_dim", self.hidden // self.heads)
        if self.head_dim < 0:
            raise ValueError(f"head_dim is {self.head_dim}; it is at least 1")
        if not 0 <= self.windowed_layers <= self.layers or (self.windowed_layers and self.window < 1):
            raise ValueError(
                f"{self.windowed_layers} of {self.layers} layers with a window of {self.window} tokens"
            )
        if self.experts is not None and self.experts.dense_layers > self.layers:
            raise ValueError(f"{self.experts.dense_layers} of {self.layers} layers are dense")

    # ---- weights

    @property
    def attention_weights(self) -> int:
        """Of the matrices of one layer's attention."""
        latent = self.latent
        if latent is None:
            return self.hidden * self.head_dim * 2 * (self.heads + self.kv_heads)
        width = self.heads * (latent.nope_dim + latent.rope_dim)
        query = self.hidden * width if latent.q_rank is None else latent.q_rank * (self.hidden + width)
        down = self.hidden * (latent.kv_rank + latent.rope_dim)
        up = latent.kv_rank * self.heads * (latent.nope_dim + latent.value_dim)
        return query + down + up + self.heads * latent.value_dim * self.hidden

    def _feed_forward(self, active: bool) -> int:
        """Weights of the feed-forward layers together: those that a token goes through, or all."""
        matrices = 3 if self.gated else 2
        experts = self.experts
        if experts is None:
            return self.layers * matrices * self.hidden * self.intermediate
        width = (experts.active if active else experts.count) * experts.intermediate + experts.shared
        mixed = self.hidden * experts.count + matrices * self.hidden * width
        dense = matrices * self.hidden * self.intermediate
        return experts.dense_layers * dense + (self.layers - experts.dense_layers) * mixed

    @property
    def active_weights(self) -> int:
        """Weights of the matrices that a token is multiplied by, with the LM head."""
        return self.layers * self.attention_weights + self._feed_forward(True) + self.vocabulary * self.hidden

    @property
    def num_weights(self) -> int:
        """All weights of all matrices, with embedding and LM head. Its use is to check a shape: it should be
        the size in the model's name.
        """
        tables = (1 if self.tied else 2) * self.vocabulary * self.hidden
        return self.layers * self.attention_weights + self._feed_forward(False) + tables

    # ---- operations

    @property
    def cost(self) -> LlmCost:
        """Of a forward pass, in 10^9 operations, as the module says."""
        key_dim = value_dim = self.head_dim
        if self.latent is not None:
            key_dim, value_dim = self.latent.nope_dim + self.latent.rope_dim, self.latent.value_dim
        layer = self.heads * (key_dim + value_dim) * _UNIT  # 2 n (d_qk + d_v) on each of L^2 / 2 pairs
        windowed = ((self.window, self.windowed_layers * layer),) if self.windowed_layers else ()
        full = self.layers - self.windowed_layers
        return LlmCost(2.0 * self.active_weights * _UNIT, full * layer, windowed)

    def training_flops(self, lengths: ArrayLike, *, recompute: bool = False) -> NDArray[np.float64]:
        """float64 (n,): operations, not 10^9 of them, of forward and backward pass of documents of `lengths`.

        The backward pass is twice the forward; with `recompute` (all activations are computed again) the
        forward counts twice: 4/3 of it (Narayanan et al. 2021: 96 instead of 72 B s l h^2). PaLM's 6 N is 3
        times the 2 N here.
        """
        return self.cost.of_documents(lengths) * ((4.0 if recompute else 3.0) / _UNIT)
