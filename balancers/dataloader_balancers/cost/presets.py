"""Shapes of known models, by name: from the `config.json` that each was published with.

A test compares each one's number of weights with what its authors say it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from dataloader_balancers.cost.shape import Experts, LatentAttention, ModelShape

_M = ModelShape
_DEEPSEEK = LatentAttention(kv_rank=512, q_rank=1536, nope_dim=128, rope_dim=64, value_dim=128)
_DEEPSEEK_LITE = LatentAttention(kv_rank=512, q_rank=None, nope_dim=128, rope_dim=64, value_dim=128)


def _gemma(
    hidden: int, layers: int, intermediate: int, heads: tuple[int, int, int], vocabulary: int, window: int
) -> ModelShape:
    """Gemma 3: every sixth layer sees all, the five before it a window (arXiv 2503.19786, section 2)."""
    query, key, width = heads
    return ModelShape(
        hidden,
        layers,
        intermediate,
        query,
        key,
        vocabulary,
        head_dim=width,
        window=window,
        windowed_layers=layers - layers // 6,
        tied=True,
    )


def _gpt_oss(layers: int, experts: int) -> ModelShape:
    """Every other layer sees 128 tokens (arXiv 2508.10925, section 2)."""
    mixture = Experts(experts, 4, 2880)
    return ModelShape(
        2880, layers, 2880, 64, 8, 201_088, 64, window=128, windowed_layers=layers // 2, experts=mixture
    )


_MODELS: dict[str, ModelShape] = {
    # Llama 2 (arXiv 2307.09288), Llama 3.1 (arXiv 2407.21783, table 3), Llama 3.2
    "llama-2-7b": _M(4096, 32, 11008, 32, 32, 32_000),
    "llama-2-13b": _M(5120, 40, 13824, 40, 40, 32_000),
    "llama-2-70b": _M(8192, 80, 28672, 64, 8, 32_000),
    "llama-3.1-8b": _M(4096, 32, 14336, 32, 8, 128_256),
    "llama-3.1-70b": _M(8192, 80, 28672, 64, 8, 128_256),
    "llama-3.1-405b": _M(16384, 126, 53248, 128, 8, 128_256),
    "llama-3.2-1b": _M(2048, 16, 8192, 32, 8, 128_256, tied=True),
    "llama-3.2-3b": _M(3072, 28, 8192, 24, 8, 128_256, tied=True),
    # Qwen2.5 (arXiv 2412.15115, table 1)
    "qwen2.5-0.5b": _M(896, 24, 4864, 14, 2, 151_936, tied=True),
    "qwen2.5-1.5b": _M(1536, 28, 8960, 12, 2, 151_936, tied=True),
    "qwen2.5-3b": _M(2048, 36, 11008, 16, 2, 151_936, tied=True),
    "qwen2.5-7b": _M(3584, 28, 18944, 28, 4, 152_064),
    "qwen2.5-14b": _M(5120, 48, 13824, 40, 8, 152_064),
    "qwen2.5-32b": _M(5120, 64, 27648, 40, 8, 152_064),
    "qwen2.5-72b": _M(8192, 80, 29568, 64, 8, 152_064),
    # Qwen3 (arXiv 2505.09388, tables 1 and 2)
    "qwen3-0.6b": _M(1024, 28, 3072, 16, 8, 151_936, 128, tied=True),
    "qwen3-1.7b": _M(2048, 28, 6144, 16, 8, 151_936, 128, tied=True),
    "qwen3-4b": _M(2560, 36, 9728, 32, 8, 151_936, 128, tied=True),
    "qwen3-8b": _M(4096, 36, 12288, 32, 8, 151_936, 128),
    "qwen3-14b": _M(5120, 40, 17408, 40, 8, 151_936, 128),
    "qwen3-32b": _M(5120, 64, 25600, 64, 8, 151_936, 128),
    "qwen3-30b-a3b": _M(2048, 48, 6144, 32, 4, 151_936, 128, experts=Experts(128, 8, 768)),
    "qwen3-235b-a22b": _M(4096, 94, 12288, 64, 4, 151_936, 128, experts=Experts(128, 8, 1536)),
    # Mistral 7B v0.3, Mixtral (arXiv 2401.04088, table 1)
    "mistral-7b": _M(4096, 32, 14336, 32, 8, 32_768),
    "mixtral-8x7b": _M(4096, 32, 14336, 32, 8, 32_000, experts=Experts(8, 2, 14336)),
    "mixtral-8x22b": _M(6144, 56, 16384, 48, 8, 32_000, experts=Experts(8, 2, 16384)),
    # DeepSeek-V2-Lite (arXiv 2405.04434, appendix B), DeepSeek-V3 (arXiv 2412.19437, section 4.2)
    "deepseek-v2-lite": _M(
        2048,
        27,
        10944,
        16,
        16,
        102_400,
        128,
        experts=Experts(64, 6, 1408, shared=2816, dense_layers=1),
        latent=_DEEPSEEK_LITE,
    ),
    "deepseek-v3": _M(
        7168,
        61,
        18432,
        128,
        128,
        129_280,
        128,
        experts=Experts(256, 8, 2048, shared=2048, dense_layers=3),
        latent=_DEEPSEEK,
    ),
    "gemma-3-1b": _gemma(1152, 26, 6912, (4, 1, 256), 262_144, 512),
    "gemma-3-4b": _gemma(2560, 34, 10240, (8, 4, 256), 262_208, 1024),
    "gemma-3-12b": _gemma(3840, 48, 15360, (16, 8, 256), 262_208, 1024),
    "gemma-3-27b": _gemma(5376, 62, 21504, (32, 16, 128), 262_208, 1024),
    "gpt-oss-20b": _gpt_oss(24, 32),
    "gpt-oss-120b": _gpt_oss(36, 128),
}

_SIZES = {
    "0.5b": "qwen2.5-0.5b",
    "1b": "llama-3.2-1b",
    "3b": "llama-3.2-3b",
    "7b": "llama-2-7b",
    "8b": "llama-3.1-8b",
    "13b": "llama-2-13b",
    "32b": "qwen2.5-32b",
    "70b": "llama-3.1-70b",
    "405b": "llama-3.1-405b",
}
"""Sizes alone, for those who care for no more: a model that has it."""

PRESETS: Mapping[str, ModelShape] = MappingProxyType(
    {size: _MODELS[name] for size, name in _SIZES.items()} | _MODELS
)
"""Name -> shape."""
