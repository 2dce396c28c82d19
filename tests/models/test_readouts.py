"""PCA equals scikit-learn's; EST is what its definition says; both are orthonormal."""

import numpy as np
import pytest
import torch
from sklearn.decomposition import PCA

from anyshot import BadInput
from anyshot.models.readouts import est, pca
from anyshot.models.registry import BUILTIN

RNG = np.random.default_rng(0)
LABELS = np.repeat(np.arange(7), [5, 9, 12, 6, 8, 10, 11])
VECTORS = RNG.normal(size=(7, 10))[LABELS] * np.linspace(2, 0.1, 10) + RNG.normal(size=(61, 10)) * np.linspace(
    0.1, 3, 10
)


def both() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.from_numpy(VECTORS), torch.from_numpy(LABELS)


@pytest.mark.parametrize("dimensions", [1, 4, 9])
def test_pca_is_scikit_learns(dimensions):
    theirs = PCA(dimensions).fit(VECTORS).components_
    ours = pca(*both(), dimensions)["basis"].numpy().T
    np.testing.assert_allclose(np.abs((ours * theirs).sum(1)), 1)


@pytest.mark.parametrize("rho", [0.0, 1e-3, 0.1])
def test_est_is_its_definition(rho):
    means = np.stack([VECTORS[label == LABELS].mean(0) for label in range(7)])
    within = np.mean([np.cov(VECTORS[label == LABELS].T) for label in range(7)], 0)
    _, directions = np.linalg.eigh(np.cov(means.T) - rho * within)
    ours = est(*both(), 3, rho)["basis"].numpy()
    np.testing.assert_allclose(np.abs((ours * directions[:, ::-1][:, :3]).sum(0)), 1)


@pytest.mark.parametrize("fit", [pca, est])
def test_bases_are_orthonormal_and_labels_may_have_gaps(fit):
    basis = fit(torch.from_numpy(VECTORS), torch.from_numpy(10 * LABELS + 3), 5)["basis"]
    torch.testing.assert_close(basis.mT @ basis, torch.eye(5, dtype=torch.float64))
    torch.testing.assert_close(basis, fit(*both(), 5)["basis"])


def test_keeping_nothing_gets_a_sentence():
    with pytest.raises(BadInput, match="at least one"):
        pca(*both(), 0)
    with pytest.raises(BadInput, match="there is no readout named 'pca9"):
        BUILTIN.readout("pca" + "9" * 5000)
