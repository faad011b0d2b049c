"""Shapes out of a Hugging Face `config.json`: a mapping in, a shape out. Reads no file.

The families below are known; of any other, a field may mean something else, so it is refused. To add one, add
its `model_type` and where it differs from the rest.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dataloader_balancers.cost.media import AudioShape, VisionShape
from dataloader_balancers.cost.shape import Experts, LatentAttention, ModelShape

_DENSE = frozenset(
    (
        *("llama", "mistral", "gemma2", "gemma3_text", "qwen2", "qwen3"),
        *("qwen2_vl", "qwen2_vl_text", "qwen2_5_vl", "qwen2_5_vl_text", "qwen3_vl_text"),
    )
)
_LATENT = frozenset(("deepseek_v2", "deepseek_v3"))
_MIXED = _LATENT | frozenset(("mixtral", "qwen2_moe", "qwen3_moe", "qwen3_vl_moe_text", "gpt_oss"))
_LLMS = _DENSE | _MIXED
_VISION = frozenset(
    ("siglip_vision_model", "clip_vision_model", "qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe")
)
_AUDIO = frozenset(("whisper", "qwen2_audio_encoder", "qwen2_audio"))

_DEFAULTS: dict[str, Mapping[str, Any]] = {
    # What transformers' own classes say where a published file is silent.
    "gemma3_text": {
        "hidden_size": 2304,
        "intermediate_size": 9216,
        "num_hidden_layers": 26,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "vocab_size": 262_208,
        "sliding_window": 4096,
    },
    "gemma2": {"sliding_window": 4096},
    "siglip_vision_model": {"hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12},
    "clip_vision_model": {"hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12},
    "qwen2_vl": {"depth": 32, "embed_dim": 1280, "mlp_ratio": 4},
    "qwen2_5_vl": {
        "depth": 32,
        "hidden_size": 1280,
        "intermediate_size": 3420,
        "window_size": 112,
        "patch_size": 14,
        "fullatt_block_indexes": [7, 15, 23, 31],
    },
}

_TIED = frozenset(("gemma2", "gemma3_text"))  # families whose files leave it out and tie


class ConfigError(ValueError):
    """A `config.json` from which no shape can be read: names the field, what was found and what is known."""


class _Fields:
    """A config of one model, with what its family leaves out."""

    def __init__(self, config: Mapping[str, Any], known: frozenset[str], where: str) -> None:
        kind = config.get("model_type")
        if kind not in known:
            raise ConfigError(
                f"{where}model_type is {kind!r}; known: {', '.join(sorted(known))}. Give coefficients instead"
            )
        self.kind: str = kind
        self.where = where
        self.values = {**_DEFAULTS.get(kind, {}), **config}

    def number(self, *names: str, default: int | None = None) -> int:
        """The first of `names` that is there and not null."""
        for name in names:
            value = self.values.get(name)
            if value is not None:
                if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                    raise ConfigError(f"{self.where}{name} is {value!r}; expected a whole number from 0 up")
                return value
        if default is None:
            raise ConfigError(f"{self.where}no {' or '.join(names)}, which {self.kind} needs")
        return default


def read_llm(config: Mapping[str, Any]) -> ModelShape:
    """The language model of a `config.json`, of a text model or, in `text_config`, of a multimodal one.

    Raises ConfigError.
    """
    text = config.get("text_config")
    if isinstance(text, Mapping):
        # Some wrappers leave out of it what they are themselves.
        inner = {"model_type": f"{config.get('model_type')}_text", **text}
        return _llm(_Fields(inner, _LLMS, "text_config: "))
    return _llm(_Fields(config, _LLMS, ""))


def _llm(fields: _Fields) -> ModelShape:
    heads, layers = fields.number("num_attention_heads"), fields.number("num_hidden_layers")
    experts = _experts(fields, layers) if fields.kind in _MIXED else None
    window, windowed = _windows(fields, layers)
    latent = None
    if fields.kind in _LATENT:
        latent = LatentAttention(
            kv_rank=fields.number("kv_lora_rank"),
            q_rank=fields.number("q_lora_rank", default=0) or None,
            nope_dim=fields.number("qk_nope_head_dim"),
            rope_dim=fields.number("qk_rope_head_dim"),
            value_dim=fields.number("v_head_dim"),
        )
    try:
        return ModelShape(
            hidden=fields.number("hidden_size"),
            layers=layers,
            intermediate=fields.number("intermediate_size"),
            heads=heads,
            kv_heads=fields.number("num_key_value_heads", default=heads),
            vocabulary=fields.number("vocab_size"),
            head_dim=fields.number("v_head_dim" if latent else "head_dim", default=0),
            window=window if windowed else 0,
            windowed_layers=windowed,
            tied=bool(fields.values.get("tie_word_embeddings", fields.kind in _TIED)),
            experts=experts,
            latent=latent,
        )
    except ConfigError:
        raise
    except ValueError as error:
        raise ConfigError(f"{fields.where}{error}") from None


def _experts(fields: _Fields, layers: int) -> Experts:
    intermediate = fields.number("moe_intermediate_size", "intermediate_size")
    shared = fields.number("shared_expert_intermediate_size", default=0)
    shared = shared or intermediate * fields.number("n_shared_experts", default=0)
    dense = fields.number("first_k_dense_replace", default=0) + len(
        fields.values.get("mlp_only_layers") or ()
    )
    every = fields.number("decoder_sparse_step", "moe_layer_freq", default=1)
    if every != 1:
        raise ConfigError(f"{fields.where}experts in every {every}th layer are not known here")
    try:
        return Experts(
            count=fields.number("num_local_experts", "num_experts", "n_routed_experts"),
            active=fields.number("num_experts_per_tok"),
            intermediate=intermediate,
            shared=shared,
            dense_layers=min(dense, layers),
        )
    except ConfigError:
        raise
    except ValueError as error:
        raise ConfigError(f"{fields.where}{error}") from None


def _windows(fields: _Fields, layers: int) -> tuple[int, int]:
    """Tokens of the window, and how many layers have it."""
    window = fields.number("sliding_window", default=0)
    kinds = fields.values.get("layer_types")
    if kinds is not None:
        unknown = sorted({str(kind) for kind in kinds} - {"full_attention", "sliding_attention"})
        if unknown or len(kinds) != layers:
            raise ConfigError(
                f"{fields.where}layer_types has {len(kinds)} entries for {layers} layers, not known: "
                f"{', '.join(unknown) or 'none'}; known: full_attention, sliding_attention"
            )
        return window, sum(kind == "sliding_attention" for kind in kinds)
    if not window or fields.values.get("use_sliding_window") is False:
        return 0, 0
    if fields.kind in ("gemma2", "gpt_oss"):
        return window, layers - layers // 2
    if fields.kind == "gemma3_text":
        pattern = fields.number("sliding_window_pattern", "_sliding_window_pattern", default=6)
        return window, layers - layers // pattern
    if "use_sliding_window" in fields.values:  # Qwen: from a layer on
        return window, max(layers - fields.number("max_window_layers", default=layers), 0)
    return window, layers if fields.kind in ("mistral", "mixtral") else 0


def read_vision(config: Mapping[str, Any]) -> VisionShape:
    """The vision encoder of a `config.json`: its `vision_config`, or a vision model's own file.

    Raises ConfigError.
    """
    inner = config.get("vision_config")
    if isinstance(inner, Mapping):
        fields = _Fields({"model_type": config.get("model_type"), **inner}, _VISION, "vision_config: ")
    else:
        fields = _Fields(config, _VISION, "")
        if fields.kind not in ("siglip_vision_model", "clip_vision_model"):
            raise ConfigError(f"no vision_config, which {fields.kind} needs")
    layers = fields.number("depth", "num_hidden_layers")
    if fields.kind == "qwen2_vl":  # its hidden_size is that of the language model
        hidden = fields.number("embed_dim")
        return VisionShape(hidden, layers, hidden * fields.number("mlp_ratio"))
    hidden, intermediate = fields.number("hidden_size"), fields.number("intermediate_size")
    if fields.kind == "qwen2_5_vl":
        side = fields.number("window_size") // fields.number("patch_size")
        full = len(fields.values["fullatt_block_indexes"])
        return VisionShape(hidden, layers, intermediate, window=side**2, full_layers=full, gated=True)
    return VisionShape(hidden, layers, intermediate)


def read_audio(config: Mapping[str, Any]) -> AudioShape:
    """The audio encoder of a `config.json`: its `audio_config`, or Whisper's own file. Raises ConfigError."""
    inner = config.get("audio_config")
    fields = _Fields(inner, _AUDIO, "audio_config: ") if isinstance(inner, Mapping) else None
    fields = fields or _Fields(config, _AUDIO, "")
    return AudioShape(
        hidden=fields.number("d_model"),
        layers=fields.number("encoder_layers"),
        intermediate=fields.number("encoder_ffn_dim"),
        mel_bins=fields.number("num_mel_bins", default=80),
        positions=fields.number("max_source_positions", default=1500),
    )
