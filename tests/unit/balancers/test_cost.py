import numpy as np
import pytest

from dataloader_balancers import EncoderCost, LlmCost, segment_sum, sequence_cost
from dataloader_balancers.cost import PRESETS


def test_a_model_of_known_size_costs_what_the_papers_say():
    """Llama 2 7B, 4,096 tokens: twice 6.4 billion weights a token, and 2 h L^2 of attention a layer."""
    cost = LlmCost.preset("7b")
    assert cost.linear == pytest.approx(2 * 6.44, rel=0.01)
    attention = 32 * 2 * 4096 * 4096**2 / 1e9
    assert cost.of_documents([4096])[0] == pytest.approx(4096 * cost.linear + attention)


def test_attention_weighs_as_much_as_the_matrices_at_twelve_widths():
    for hidden, layers in PRESETS.values():
        cost = LlmCost.of_model(hidden, layers)
        length = 12 * hidden
        assert cost.linear * length == pytest.approx(cost.quadratic * length**2)


def test_larger_models_cost_more():
    costs = [
        LlmCost.preset(name).of_documents([8192])[0]
        for name in ("0.5b", "1b", "3b", "7b", "13b", "70b", "405b")
    ]
    assert costs == sorted(costs)
    assert len(set(costs)) == len(costs)


def test_two_sequences_of_one_length_cost_by_their_documents():
    cost = LlmCost(linear=1.0, quadratic=1.0)
    one_long, eight_short = sequence_cost([8, 1, 1, 1, 1, 1, 1, 1, 1], [0, 1, 9], cost)
    assert one_long == 8 + 64
    assert eight_short == 8 + 8


def test_empty_sequences_cost_nothing_wherever_they_stand():
    cost = LlmCost(linear=1.0, quadratic=0.0)
    assert sequence_cost([5, 7], [0, 0, 1, 1, 2, 2], cost).tolist() == [0, 5, 0, 7, 0]
    assert sequence_cost([], [0, 0], cost).tolist() == [0]
    assert sequence_cost([], [0], cost).tolist() == []


def test_equal_sequences_cost_exactly_the_same():
    documents = np.array([0.1, 0.7, 1e9, 0.3])
    sums = segment_sum(np.tile(documents, 100), np.arange(0, 401, 4))
    assert len(set(sums.tolist())) == 1


@pytest.mark.parametrize("offsets", [[], [0, 3], [0, 2, 1], [-1, 2]])
def test_offsets_that_are_none_are_refused(offsets):
    with pytest.raises(ValueError, match="offsets must ascend within 0 to 2"):
        segment_sum([1.0, 2.0], offsets)


@pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf")])
def test_coefficients_are_finite_and_not_negative(value):
    with pytest.raises(ValueError, match=f"quadratic is {value}"):
        LlmCost(1.0, value)
    with pytest.raises(ValueError, match=f"per_patch is {value}"):
        EncoderCost(value)


def test_an_unknown_model_is_answered_with_the_known():
    with pytest.raises(ValueError, match=r"'9b'.*7b, 8b"):
        LlmCost.preset("9b")


def test_patches_cost_in_proportion():
    assert EncoderCost(0.5).of_patches([0, 4, 100]).tolist() == [0, 2, 50]
