"""Against scipy's solver, which shares no code with ours."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import nnls as reference

from dataloader_balancers.calibrate import nnls

numbers = st.floats(-100, 100, allow_subnormal=False).map(lambda x: round(x, 3))


@st.composite
def problems(draw):
    rows, columns = draw(st.integers(1, 12)), draw(st.integers(1, 5))
    matrix = np.array([[draw(numbers) for _ in range(columns)] for _ in range(rows)])
    if draw(st.booleans()) and columns > 1:
        matrix[:, -1] = matrix[:, 0] * draw(st.sampled_from([1.0, 2.0, 0.0]))  # depends on another
    return matrix, np.array([draw(numbers) for _ in range(rows)])


@given(problems())
@settings(max_examples=300, deadline=None)
def test_no_other_solution_is_nearer(problem):
    matrix, target = problem
    found = nnls(matrix, target)
    assert np.all(found >= 0)
    distance = np.linalg.norm(matrix @ found - target)
    _, best = reference(matrix, target)
    assert distance <= best + 1e-6 * (1 + np.linalg.norm(target))


def test_what_would_be_negative_is_zero():
    assert nnls([[1.0, 0.0], [0.0, 1.0]], [3.0, -2.0]).tolist() == [3, 0]


def test_columns_of_any_size_are_found():
    matrix = np.array([[1e-9, 1e12], [3e-9, 1e12], [5e-9, 2e12]])
    assert nnls(matrix, matrix @ [2e9, 3e-12]) == pytest.approx([2e9, 3e-12])


def test_a_column_of_zeros_is_left_at_zero():
    assert nnls([[0.0, 2.0], [0.0, 4.0]], [1.0, 2.0]).tolist() == [0, 0.5]


def test_shapes_that_do_not_fit():
    with pytest.raises(ValueError, match=r"\(2, 1\) and target \(3,\)"):
        nnls([[1.0], [2.0]], [1.0, 2.0, 3.0])
