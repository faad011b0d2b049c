import numpy as np
import pytest

from dataloader_balancers import LlmCost
from dataloader_balancers.cost import PRESETS, Experts, LatentAttention, ModelShape

SIZES = {
    # Billions of weights and, of mixtures, of weights that a token goes through, as their authors say.
    "llama-2-7b": (6.74, None),
    "llama-2-13b": (13.02, None),
    "llama-2-70b": (68.98, None),
    "llama-3.1-8b": (8.03, None),
    "llama-3.1-70b": (70.6, None),
    "llama-3.1-405b": (405, None),
    "llama-3.2-1b": (1.23, None),
    "llama-3.2-3b": (3.21, None),
    "qwen2.5-0.5b": (0.49, None),
    "qwen2.5-1.5b": (1.54, None),
    "qwen2.5-3b": (3.09, None),
    "qwen2.5-7b": (7.61, None),
    "qwen2.5-14b": (14.7, None),
    "qwen2.5-32b": (32.5, None),
    "qwen2.5-72b": (72.7, None),
    "qwen3-0.6b": (0.6, None),
    "qwen3-1.7b": (1.7, None),
    "qwen3-4b": (4.0, None),
    "qwen3-8b": (8.2, None),
    "qwen3-14b": (14.8, None),
    "qwen3-32b": (32.8, None),
    "qwen3-30b-a3b": (30.5, 3.3),
    "qwen3-235b-a22b": (235, 22),
    "mistral-7b": (7.25, None),
    "mixtral-8x7b": (46.7, 12.9),
    "mixtral-8x22b": (141, 39),
    "deepseek-v2-lite": (15.7, 2.4),
    "deepseek-v3": (671, 37),
    "gemma-3-1b": (1.0, None),
    "gemma-3-4b": (3.88, None),
    "gemma-3-12b": (11.8, None),
    "gemma-3-27b": (27.0, None),
    "gpt-oss-20b": (20.9, 3.6),
    "gpt-oss-120b": (116.8, 5.1),
}


def test_every_model_has_as_many_weights_as_its_authors_say():
    full_names = {name for name in PRESETS if "-" in name}
    assert full_names == set(SIZES)
    for name, (total, _) in SIZES.items():
        assert PRESETS[name].num_weights / 1e9 == pytest.approx(total, rel=0.015), name


def test_a_token_goes_through_as_many_weights_of_a_mixture_as_its_authors_say():
    for name, (_, active) in SIZES.items():
        if active is not None:
            # Some count the embedding too, or norms: 10 %.
            assert PRESETS[name].active_weights / 1e9 == pytest.approx(active, rel=0.1), name


def test_a_size_is_a_model_of_that_size():
    for name in PRESETS:
        if "-" not in name:
            assert PRESETS[name].num_weights / 1e9 == pytest.approx(float(name[:-1]), rel=0.25), name


def test_a_forward_pass_counted_matrix_by_matrix():
    """Llama 3.1 8B, a document of 1,000 tokens, from the published list of its tensors."""
    tokens, hidden, layers = 1000, 4096, 32
    layer = [(4096, 4096), (4096, 1024), (4096, 1024), (4096, 4096), *3 * [(4096, 14336)]]
    matrices = layers * sum(2 * rows * columns for rows, columns in layer) + 2 * hidden * 128_256
    pairs = tokens**2 / 2
    attention = layers * 32 * pairs * (2 * 128 + 2 * 128)
    assert LlmCost.preset("8b").of_documents([tokens])[0] * 1e9 == pytest.approx(
        matrices * tokens + attention
    )


def test_latent_attention_counted_matrix_by_matrix():
    latent = LatentAttention(kv_rank=5, q_rank=7, nope_dim=3, rope_dim=2, value_dim=4)
    shape = ModelShape(11, 1, 13, heads=6, kv_heads=6, vocabulary=17, head_dim=4, latent=latent)
    matrices = [(11, 7), (7, 6 * 5), (11, 5 + 2), (5, 6 * (3 + 4)), (6 * 4, 11), *3 * [(11, 13)], (11, 17)]
    assert shape.active_weights == sum(rows * columns for rows, columns in matrices)
    assert shape.cost.quadratic * 1e9 == pytest.approx(6 * (5 + 4))
    whole_queries = LatentAttention(kv_rank=5, q_rank=None, nope_dim=3, rope_dim=2, value_dim=4)
    other = ModelShape(11, 1, 13, heads=6, kv_heads=6, vocabulary=17, head_dim=4, latent=whole_queries)
    assert shape.active_weights - other.active_weights == 7 * (11 + 30) - 11 * 30


def test_a_token_goes_through_router_active_and_shared_experts():
    experts = Experts(count=8, active=2, intermediate=3, shared=5, dense_layers=1)
    shape = ModelShape(10, 4, 20, heads=2, kv_heads=1, vocabulary=100, experts=experts)
    attention = 10 * 5 * (2 * 2 + 2 * 1)
    mixed = 10 * 8 + 3 * 10 * (2 * 3 + 5)
    assert shape.active_weights == 4 * attention + 3 * 10 * 20 + 3 * mixed + 10 * 100
    assert shape.num_weights - shape.active_weights == 3 * 3 * 10 * 6 * 3 + 10 * 100


def test_local_layers_see_their_window_and_the_others_all():
    shape = PRESETS["gemma-3-27b"]
    (window, local), full = shape.cost.windowed[0], shape.cost.quadratic
    assert window == 1024
    assert local / full == pytest.approx(52 / 10)
    long, short = shape.cost.parts([131_072, 1024])[:, 1]
    if_all_were_full = LlmCost(0.0, full + local).of_documents([131_072, 1024])
    assert short == pytest.approx(if_all_were_full[1])
    assert long < 0.2 * if_all_were_full[0]


def test_training_takes_what_the_papers_say_it_takes():
    """Llama 3.1 405B, 15.6 T tokens: 3.8e25 operations (arXiv 2407.21783, section 3.2), attention beside."""
    shape, tokens = PRESETS["llama-3.1-405b"], 8192
    operations = shape.training_flops([tokens])[0] / tokens * 15.6e12
    assert operations == pytest.approx(3.8e25, rel=0.05)
    once, twice = (shape.training_flops([tokens], recompute=again)[0] for again in (False, True))
    assert twice == pytest.approx(once * 4 / 3)


def test_palm_appendix_b():
    """6 N + 12 L H Q T a token, of which a causal kernel computes half of the second term."""
    shape, tokens = PRESETS["llama-2-7b"], 2048
    expected = 6 * shape.active_weights + 12 * 32 * 32 * 128 * tokens / 2
    assert shape.training_flops([tokens])[0] / tokens == pytest.approx(expected)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden": 0}, "hidden is 0"),
        ({"heads": 3}, "no multiple of 3 heads"),
        ({"head_dim": -1}, "head_dim is -1"),
        ({"windowed_layers": 2}, "2 of 4 layers with a window of 0"),
        ({"windowed_layers": 5, "window": 8}, "5 of 4 layers"),
        ({"experts": Experts(8, 2, 4, dense_layers=5)}, "5 of 4 layers are dense"),
    ],
)
def test_a_shape_that_no_model_has(change, message):
    values = {"hidden": 16, "layers": 4, "intermediate": 8, "heads": 4, "kv_heads": 2, "vocabulary": 10}
    with pytest.raises(ValueError, match=message):
        ModelShape(**values | change)


@pytest.mark.parametrize("values", [(8, 0, 4), (8, 9, 4), (8, 2, 0), (8, 2, 4, -1)])
def test_experts_that_no_model_has(values):
    with pytest.raises(ValueError, match="Experts"):
        Experts(*values)


def test_costs_rise_with_length_for_every_model():
    lengths = np.array([1, 2, 128, 129, 1024, 1025, 100_000])
    for shape in PRESETS.values():
        assert np.all(np.diff(shape.cost.of_documents(lengths)) > 0)
