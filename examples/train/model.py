"""A small decoder-only transformer that reads packed, variable-length batches. Plain torch, nothing of ours.

What a real model does with `cu_seqlens` through a kernel (flash attention's varlen functions) this one does
with one `scaled_dot_product_attention` a document: documents of a packed sequence do not see each other.
Media patches are projected, merged by 2 x 2 and put where their placeholder tokens stand.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F


@dataclass(frozen=True)
class ModelConfig:
    vocab_size: int
    image_token: int
    video_token: int
    hidden: int = 96
    layers: int = 2
    heads: int = 4
    patch_values: int = 3 * 14 * 14
    merge: int = 2


def rotary(x: Tensor, position_ids: Tensor) -> Tensor:
    """Rotary position embedding of `x` (T, heads, head_dim) at `position_ids` (T,)."""
    half = x.shape[-1] // 2
    frequency = 10_000.0 ** (-torch.arange(half, dtype=torch.float32, device=x.device) / half)
    angle = position_ids.to(torch.float32)[:, None] * frequency  # (T, half)
    cos, sin = angle.cos()[:, None], angle.sin()[:, None]
    first, second = x[..., :half], x[..., half:]
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


class Attention(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.qkv = nn.Linear(config.hidden, 3 * config.hidden, bias=False)
        self.out = nn.Linear(config.hidden, config.hidden, bias=False)

    def forward(self, x: Tensor, position_ids: Tensor, bounds: list[int]) -> Tensor:
        tokens, hidden = x.shape
        q, k, v = self.qkv(x).view(tokens, 3, self.heads, hidden // self.heads).unbind(1)
        q, k = rotary(q, position_ids), rotary(k, position_ids)
        # (T, heads, dim) -> (heads, T, dim): attention wants tokens second to last.
        q, k, v = (part.transpose(0, 1) for part in (q, k, v))
        documents = [
            F.scaled_dot_product_attention(q[:, a:b], k[:, a:b], v[:, a:b], is_causal=True)
            for a, b in zip(bounds, bounds[1:], strict=False)
        ]
        return self.out(torch.cat(documents, dim=1).transpose(0, 1).reshape(tokens, hidden))


class Block(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(config.hidden)
        self.attention = Attention(config)
        self.norm2 = nn.LayerNorm(config.hidden)
        self.mlp = nn.Sequential(
            nn.Linear(config.hidden, 4 * config.hidden),
            nn.GELU(),
            nn.Linear(4 * config.hidden, config.hidden),
        )

    def forward(self, x: Tensor, position_ids: Tensor, bounds: list[int]) -> Tensor:
        x = x + self.attention(self.norm1(x), position_ids, bounds)
        return x + self.mlp(self.norm2(x))


class Vision(nn.Module):
    """Patches (P, 3 * 14 * 14) uint8 -> one embedding a token (P / merge^2, hidden)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.merge = config.merge**2
        self.patch = nn.Linear(config.patch_values, config.hidden)
        self.merger = nn.Linear(self.merge * config.hidden, config.hidden)

    def forward(self, patches: Tensor) -> Tensor:
        features = F.gelu(self.patch(patches.to(torch.float32) / 127.5 - 1.0))
        return self.merger(features.view(-1, self.merge * features.shape[-1]))


def idle(module: nn.Module) -> Tensor:
    """0, which gives every parameter of `module` a gradient, also one that took no part in a forward."""
    return 0.0 * torch.stack([parameter.sum() for parameter in module.parameters()]).sum()


class TinyVlm(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.embed = nn.Embedding(config.vocab_size, config.hidden)
        self.vision = Vision(config)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.hidden)
        # Merges of a byte-pair vocabulary stand in order of frequency, which is what the clusters want;
        # a full softmax over 129,280 entries would take nine tenths of this model's time.
        clusters = [config.vocab_size // 64, config.vocab_size // 6]
        self.head = nn.AdaptiveLogSoftmaxWithLoss(config.hidden, config.vocab_size, clusters)

    def forward(self, inputs: dict[str, Tensor]) -> Tensor:
        """Sum over tokens of loss_weight times the negative log likelihood of the label."""
        ids = inputs["input_ids"]
        x = self.embed(ids)
        x = self._place(x, ids == self.config.image_token, inputs, "pixel_values", "image_index")
        x = self._place(x, ids == self.config.video_token, inputs, "pixel_values_videos", "video_index")
        bounds = inputs["cu_seqlens"].tolist()
        for block in self.blocks:
            x = block(x, inputs["position_ids"], bounds)
        wanted = inputs["labels"] >= 0
        logp = self.head(self.norm(x)[wanted], inputs["labels"][wanted]).output
        # A microbatch may have no token of a cluster, and its weights a part in what ranks reduce together.
        return -(logp * inputs["loss_weight"][wanted]).sum() + idle(self.head)

    def _place(self, x: Tensor, where: Tensor, inputs: dict[str, Tensor], pixels: str, index: str) -> Tensor:
        if pixels not in inputs or not len(inputs[pixels]):
            return x
        embeddings = self.vision(inputs[pixels])
        return x.masked_scatter(where[:, None], embeddings[inputs[index]])
