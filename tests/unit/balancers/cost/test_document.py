import numpy as np
import pytest

from dataloader_balancers import LlmCost, segment_sum, sequence_cost


def test_attention_of_the_textbook_weighs_as_much_as_the_matrices_at_twelve_widths():
    for hidden, layers in ((896, 24), (4096, 32), (16384, 126)):
        cost = LlmCost.of_model(hidden, layers)
        length = 12 * hidden
        assert cost.linear * length == pytest.approx(cost.quadratic * length**2)


def test_a_window_cuts_a_corner_off_the_square():
    """Pairs counted one by one: a token sees itself and at most window - 1 before it."""
    window, cost = 10, LlmCost(0.0, 0.0, ((10, 1.0),))
    for length in (1, 9, 10, 11, 25, 1000):
        pairs = sum(min(token + 1, window) for token in range(length))
        # The formula takes half a pair of a token with itself, as L^2 / 2 does.
        assert cost.of_documents([length])[0] == 2 * pairs - min(length, window)


def test_a_window_as_long_as_the_document_is_none():
    lengths = np.arange(1, 101)
    assert np.array_equal(
        LlmCost(1.0, 0.5, ((100, 0.25),)).of_documents(lengths), LlmCost(1.0, 0.75).of_documents(lengths)
    )


def test_beyond_its_window_attention_is_linear():
    costs = LlmCost(0.0, 0.0, ((128, 2.0),)).of_documents([1000, 2000, 3000])
    assert costs[1] - costs[0] == costs[2] - costs[1] == 2.0 * 2 * 128 * 1000


def test_parts_are_the_cost_and_can_be_scaled_each():
    cost = LlmCost(3.0, 0.25, ((16, 0.5),))
    lengths = np.array([0, 1, 16, 40])
    parts = cost.parts(lengths)
    assert parts.shape == (4, 2)
    assert np.array_equal(parts.sum(axis=1), cost.of_documents(lengths))
    assert np.array_equal(cost.scaled([2.0, 0.5]).parts(lengths), parts * [2.0, 0.5])


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
    with pytest.raises(ValueError, match=f"window of 8 tokens is {value}"):
        LlmCost(1.0, 1.0, ((8, value),))


def test_a_window_holds_a_token():
    with pytest.raises(ValueError, match="window of 0 tokens"):
        LlmCost(1.0, 1.0, ((0, 1.0),))


def test_an_unknown_model_is_answered_with_the_known():
    with pytest.raises(ValueError, match=r"'9b'.*7b, 8b"):
        LlmCost.preset("9b")
