"""The decomposition: its parts add up, its biases are centred, and the score ignores what is not shot-sensitive."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from anyshot import BadInput, decompose

GRIDS = st.tuples(st.integers(1, 7), st.integers(1, 5)).flatmap(
    lambda shape: arrays(np.float64, shape, elements=st.floats(0, 100, allow_subnormal=False))
)


@given(GRIDS)
def test_parts_add_up_and_are_centred(grid: np.ndarray) -> None:
    parts = decompose(grid)
    np.testing.assert_allclose(parts.test_bias[:, None] + parts.model_bias + parts.residual, grid, atol=1e-9)
    np.testing.assert_allclose(parts.residual.mean(0), 0, atol=1e-9)
    np.testing.assert_allclose(parts.residual.mean(1), 0, atol=1e-9)
    np.testing.assert_allclose(parts.model_bias.mean(), 0, atol=1e-9)
    assert parts.sensitivity == parts.residual.max() - parts.residual.min()


@given(GRIDS, st.floats(-20, 20))
def test_score_ignores_test_and_model_bias(grid: np.ndarray, shift: float) -> None:
    moved = grid + shift * np.arange(len(grid))[:, None] - shift * np.arange(grid.shape[1])
    np.testing.assert_allclose(decompose(moved).sensitivity, decompose(grid).sensitivity, atol=1e-9)


@pytest.mark.parametrize("grid", [[], [1.0, 2.0], [[1.0, np.nan]]])
def test_bad_grids_get_a_sentence(grid: list) -> None:
    with pytest.raises(BadInput, match="grid"):
        decompose(grid)
