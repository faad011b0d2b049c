import numpy as np
import pytest

from dataloader_balancers import CostFunctionError, FunctionCost, sequence_cost


def test_a_function_is_the_cost():
    cost = FunctionCost(lambda sizes: 2.0 * sizes + sizes**2, "mine")
    assert cost.of_documents([1, 10]).tolist() == [3, 120]
    assert sequence_cost([1, 10, 10], [0, 1, 3], cost).tolist() == [3, 240]
    assert cost.parts([1, 10]).tolist() == [[3], [120]]
    assert cost.scaled([0.5]).of_documents([10]).tolist() == [60]


def test_no_patches_cost_nothing_even_where_a_call_does():
    cost = FunctionCost(lambda sizes: 100.0 + sizes, "mine")
    assert cost.of_patches([0, 1, 0]).tolist() == [0, 101, 0]


def test_a_function_of_whole_numbers_will_do():
    assert FunctionCost(lambda sizes: sizes, "mine").of_documents([3]).dtype == np.float64


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda sizes: float(sizes.sum()), r"mine: 6 sizes give a result of shape \(\)"),
        (lambda sizes: sizes[:, None], r"shape \(6, 1\); expected \(6,\)"),
        (lambda sizes: -sizes, "cost of one of 1 is -1"),
        (lambda sizes: np.where(sizes > 500, np.nan, 1.0), "cost of one of 1000 is nan"),
        (lambda sizes: np.full(len(sizes), np.inf), "is inf"),
        (lambda sizes: sizes / max(sizes.sum(), 1), "depend on that size alone"),
        (lambda sizes: [str(size) for size in sizes], "dtype <U"),
        (lambda sizes: 1 / 0, "mine failed on 6 sizes: ZeroDivisionError"),
        (lambda sizes: sizes.max() * np.ones(len(sizes)), "depend on that size alone"),
    ],
)
def test_what_is_no_cost_is_refused_by_name(function, message):
    with pytest.raises(CostFunctionError, match=message), np.errstate(all="ignore"):
        FunctionCost(function, "mine")


def test_a_function_that_fails_later_is_named_too():
    cost = FunctionCost(lambda sizes: np.where(sizes == 77, -1.0, 1.0), "mine")
    with pytest.raises(CostFunctionError, match="mine: the cost of one of 77 is -1"):
        cost.of_documents([5, 77])


def test_what_a_function_does_to_its_argument_stays_there():
    def spoil(sizes):
        sizes += 1
        return sizes

    lengths = np.array([1, 2])
    FunctionCost(spoil, "mine").of_documents(lengths)
    assert lengths.tolist() == [1, 2]
