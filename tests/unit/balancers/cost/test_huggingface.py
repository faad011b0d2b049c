"""Configs as they are published, down to the fields that matter here."""

import pytest

from dataloader_balancers.cost import PRESETS, ConfigError, VisionShape, read_audio, read_llm, read_vision

LLAMA = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "tie_word_embeddings": False,
    "vocab_size": 128256,
}
QWEN3_MOE = {
    "model_type": "qwen3_moe",
    "decoder_sparse_step": 1,
    "head_dim": 128,
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "max_window_layers": 48,
    "mlp_only_layers": [],
    "moe_intermediate_size": 768,
    "num_attention_heads": 32,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 48,
    "num_key_value_heads": 4,
    "sliding_window": None,
    "tie_word_embeddings": False,
    "use_sliding_window": False,
    "vocab_size": 151936,
}
DEEPSEEK = {
    "model_type": "deepseek_v3",
    "first_k_dense_replace": 3,
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "kv_lora_rank": 512,
    "moe_intermediate_size": 2048,
    "moe_layer_freq": 1,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_attention_heads": 128,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 61,
    "num_key_value_heads": 128,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "tie_word_embeddings": False,
    "vocab_size": 129280,
}
MIXTRAL = {
    "model_type": "mixtral",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_experts_per_tok": 2,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "num_local_experts": 8,
    "sliding_window": None,
    "tie_word_embeddings": False,
    "vocab_size": 32000,
}
GPT_OSS = {
    "model_type": "gpt_oss",
    "head_dim": 64,
    "hidden_size": 2880,
    "intermediate_size": 2880,
    "layer_types": ["sliding_attention", "full_attention"] * 12,
    "num_attention_heads": 64,
    "num_experts_per_tok": 4,
    "num_hidden_layers": 24,
    "num_key_value_heads": 8,
    "num_local_experts": 32,
    "sliding_window": 128,
    "tie_word_embeddings": False,
    "vocab_size": 201088,
}
GEMMA3_12B = {
    "model_type": "gemma3",
    "text_config": {
        "model_type": "gemma3_text",
        "hidden_size": 3840,
        "intermediate_size": 15360,
        "num_attention_heads": 16,
        "num_hidden_layers": 48,
        "num_key_value_heads": 8,
        "sliding_window": 1024,
    },
    "vision_config": {
        "model_type": "siglip_vision_model",
        "hidden_size": 1152,
        "image_size": 896,
        "intermediate_size": 4304,
        "num_attention_heads": 16,
        "num_hidden_layers": 27,
        "patch_size": 14,
    },
}
QWEN2_5_VL = {
    "model_type": "qwen2_5_vl",
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "max_window_layers": 28,
    "num_attention_heads": 28,
    "num_hidden_layers": 28,
    "num_key_value_heads": 4,
    "sliding_window": 32768,
    "tie_word_embeddings": False,
    "use_sliding_window": False,
    "vision_config": {
        "depth": 32,
        "hidden_size": 1280,
        "intermediate_size": 3420,
        "num_heads": 16,
        "out_hidden_size": 3584,
        "patch_size": 14,
        "window_size": 112,
        "fullatt_block_indexes": [7, 15, 23, 31],
    },
    "vocab_size": 152064,
}


@pytest.mark.parametrize(
    ("config", "name"),
    [
        (LLAMA, "llama-3.1-8b"),
        (QWEN3_MOE, "qwen3-30b-a3b"),
        (DEEPSEEK, "deepseek-v3"),
        (MIXTRAL, "mixtral-8x7b"),
        (GPT_OSS, "gpt-oss-20b"),
        (GEMMA3_12B, "gemma-3-12b"),
        (QWEN2_5_VL, "qwen2.5-7b"),
    ],
)
def test_a_published_config_has_the_shape_of_the_preset(config, name):
    assert read_llm(config) == PRESETS[name]


def test_gpt_oss_without_a_list_of_layers_alternates():
    config = {name: value for name, value in GPT_OSS.items() if name != "layer_types"}
    assert read_llm(config) == PRESETS["gpt-oss-20b"]


def test_a_sparse_text_config_has_its_class_defaults():
    """Gemma 3 4B is published without its heads."""
    text = {"model_type": "gemma3_text", "hidden_size": 2560, "intermediate_size": 10240}
    text |= {"num_hidden_layers": 34, "sliding_window": 1024}
    assert read_llm({"model_type": "gemma3", "text_config": text}) == PRESETS["gemma-3-4b"]


def test_every_layer_of_mistral_has_the_window():
    config = {"model_type": "mistral", "sliding_window": 4096, "vocab_size": 32000}
    shape = read_llm({**LLAMA, **config})
    assert (shape.window, shape.windowed_layers) == (4096, 32)


def test_qwen_has_a_window_from_a_layer_on():
    config = {**LLAMA, "model_type": "qwen2", "sliding_window": 512, "max_window_layers": 20}
    assert read_llm({**config, "use_sliding_window": True}).windowed_layers == 12
    assert read_llm({**config, "use_sliding_window": False}).windowed_layers == 0


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"model_type": "mamba2"}, "model_type is 'mamba2'; known: deepseek_v2"),
        ({}, "model_type is None"),
        ({"model_type": "llama"}, "no num_attention_heads, which llama needs"),
        ({**LLAMA, "hidden_size": "4096"}, "hidden_size is '4096'; expected a whole number"),
        ({**LLAMA, "hidden_size": True}, "hidden_size is True"),
        ({**LLAMA, "num_hidden_layers": 0}, "layers is 0"),
        ({**LLAMA, "num_attention_heads": 33}, "no multiple of 33 heads"),
        ({**LLAMA, "layer_types": ["linear_attention"] * 32}, "linear_attention; known: full_attention"),
        ({**LLAMA, "layer_types": ["full_attention"]}, "1 entries for 32 layers"),
        ({**QWEN3_MOE, "decoder_sparse_step": 2}, "every 2th layer"),
        ({**QWEN3_MOE, "num_experts_per_tok": 129}, "0 < active <= count"),
        ({"model_type": "new", "text_config": {"hidden_size": 1}}, "text_config: model_type is 'new_text'"),
    ],
)
def test_what_no_shape_can_be_read_from(config, message):
    with pytest.raises(ConfigError, match=message):
        read_llm(config)


def test_vision_encoders():
    assert read_vision(GEMMA3_12B) == VisionShape(1152, 27, 4304)
    assert read_vision(GEMMA3_12B["vision_config"]) == VisionShape(1152, 27, 4304)
    windowed = VisionShape(1280, 32, 3420, window=64, full_layers=4, gated=True)
    assert read_vision(QWEN2_5_VL) == windowed
    qwen2 = {"model_type": "qwen2_vl", "vision_config": {"depth": 32, "embed_dim": 1280, "hidden_size": 3584}}
    assert read_vision(qwen2) == VisionShape(1280, 32, 5120)


def test_no_vision_encoder():
    with pytest.raises(ConfigError, match="model_type is 'llama'"):
        read_vision(LLAMA)
    with pytest.raises(ConfigError, match="no vision_config"):
        read_vision({"model_type": "qwen2_vl"})


def test_audio_encoders():
    whisper = {"model_type": "whisper", "d_model": 1280, "encoder_layers": 32, "encoder_ffn_dim": 5120}
    shape = read_audio({**whisper, "num_mel_bins": 128, "max_source_positions": 1500})
    assert (shape.mel_bins, shape.positions, shape.hidden) == (128, 1500, 1280)
    inner = {**whisper, "model_type": "qwen2_audio_encoder"}
    assert read_audio({"model_type": "qwen2_audio", "audio_config": inner}).mel_bins == 80
    with pytest.raises(ConfigError, match="no encoder_ffn_dim"):
        read_audio({"model_type": "whisper", "d_model": 8, "encoder_layers": 1})
