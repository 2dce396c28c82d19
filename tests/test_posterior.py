"""The posterior is what a direct computation with multivariate normals gives, and its limits are scores one knows."""

import numpy as np
import pytest
import torch
from scipy.stats import multivariate_normal
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

from anyshot import BadInput, FewShotClassifier, evaluate
from anyshot.measure.engine import each_logits
from anyshot.measure.plan import Plan
from anyshot.models.heads import HEADS
from anyshot.models.law import Reading
from anyshot.models.posterior import _moments as moments_of
from anyshot.models.posterior import as_posterior, diagonalise, fit_posterior, predict_class, quadratic, unit, whiten

D, CLASSES, IMAGES = 6, 24, 12
RNG = np.random.default_rng(0)
MIX = RNG.normal(size=(D, D)) / 2
CENTRES = RNG.normal(size=(CLASSES, D)) @ np.diag(np.linspace(2, 0.2, D))
LABELS = np.repeat(np.arange(CLASSES), IMAGES)
VECTORS = CENTRES[LABELS] + RNG.normal(size=(len(LABELS), D)) @ MIX + 3


def base() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.from_numpy(VECTORS), torch.from_numpy(LABELS)


def logits(z: torch.Tensor, means: torch.Tensor, counts: torch.Tensor, spread: torch.Tensor) -> np.ndarray:
    return quadratic(z, predict_class(means, counts, {"spread": spread})).numpy()


@pytest.mark.parametrize("counts", [(1, 1, 1), (4, 4, 4), (1, 7, 200)])
def test_logits_are_log_densities_of_the_predictive_normal(counts):
    """With B and W as full matrices: the class mean given the support, then the query given the class mean."""
    within = MIX.T @ MIX + 0.1 * np.eye(D)
    between = np.cov(CENTRES.T)
    half = np.linalg.inv(np.linalg.cholesky(within))
    values, turn = np.linalg.eigh(half @ between @ half.T)
    T = half.T @ turn
    supports, query = [RNG.normal(size=(k, D)) for k in counts], RNG.normal(size=(5, D))
    expected = []
    for support in supports:
        k, m = len(support), support.mean(0)
        gain = between @ np.linalg.inv(between + within / k)
        normal = multivariate_normal(gain @ m, within + between - gain @ between)
        expected.append(normal.logpdf(query))
    means = torch.from_numpy(np.stack([support.mean(0) for support in supports]) @ T)
    ours = logits(torch.from_numpy(query @ T), means, torch.tensor(counts), torch.from_numpy(values))
    constant = -0.5 * D * np.log(2 * np.pi) + np.log(abs(np.linalg.det(T)))
    np.testing.assert_allclose(ours + constant, np.stack(expected, 1), rtol=1e-9)


def test_the_coordinates_make_w_the_identity_and_b_diagonal():
    u = unit(base()[0] - base()[0].mean(0))
    moments = moments_of(u, base()[1], CLASSES)
    fitted = diagonalise(moments, 0.0, 0.0)
    T = fitted["matrix"]
    torch.testing.assert_close(T.mT @ moments.within @ T, torch.eye(D, dtype=T.dtype))
    between = torch.cov(moments.means.mT) - moments.within / IMAGES
    expected = torch.diag(T.mT @ between @ T)
    torch.testing.assert_close(T.mT @ between @ T, torch.diag(expected), atol=1e-9, rtol=0)
    torch.testing.assert_close(fitted["spread"], expected.clamp_min(1e-3))


def test_many_images_make_it_lda_and_a_wide_spread_makes_it_euclidean():
    means, query = torch.from_numpy(RNG.normal(size=(4, D))), torch.from_numpy(RNG.normal(size=(50, D)))
    wide = logits(query, means, torch.full((4,), 3), torch.full((D,), 1e9, dtype=torch.float64))
    euclidean = HEADS["proto"].score(query, means).numpy()
    gaps = wide - wide[:, :1], euclidean - euclidean[:, :1]
    np.testing.assert_allclose(gaps[0] * (1 + 1 / 3) * 2 / D, gaps[1], rtol=1e-6)
    x = np.concatenate([np.asarray(means)[[c]] + RNG.normal(size=(400, D)) for c in range(4)])
    y = np.repeat(np.arange(4), 400)
    lda = LinearDiscriminantAnalysis(solver="lsqr").fit(x, y)
    white = np.linalg.inv(np.linalg.cholesky(lda.covariance_)).T
    counts = torch.full((4,), 10**9)
    ours = logits(
        query @ torch.from_numpy(white),
        torch.from_numpy(lda.means_ @ white),
        counts,
        torch.ones(D, dtype=torch.float64),
    )
    theirs = lda.decision_function(query.numpy())
    np.testing.assert_allclose(ours - ours[:, :1], theirs - theirs[:, :1], rtol=1e-5, atol=1e-6)


def test_a_class_of_few_images_is_believed_less():
    """The same mean, further from the middle of all classes than its images: one image says less than nine."""
    mean, spread = torch.full((2, D), 2.0, dtype=torch.float64), torch.ones(D, dtype=torch.float64)
    few, many = predict_class(mean, torch.tensor([1, 9]), {"spread": spread})
    assert (few[:D].abs() < many[:D].abs()).all()
    far = torch.zeros(1, D, dtype=torch.float64) - 2
    assert quadratic(far, few[None]) > quadratic(far, many[None]), "and more is possible of it"


def test_equal_shots_drop_the_square_and_predict_the_same():
    z = whiten(base()[0], fitted := fit_posterior(*base()))
    reading = Reading(as_posterior(HEADS["proto"]), fitted)
    plan = Plan(LABELS, way=5, shot=4, queries=4, episodes=30)
    fast, general = {}, {}
    each_logits(z, [reading], plan, [1, 4], lambda i, start, found: fast.update({start: found.clone()}))
    patterns = np.array([[1] * 5, [4] * 5, [1, 4, 1, 4, 2]])
    each_logits(z, [reading], plan, patterns, lambda i, start, found: general.update({start: found.clone()}))
    for start, found in fast.items():
        both = found, general[start][:, :2]
        gaps = [x - x[:, :, :1] for x in both]
        torch.testing.assert_close(*gaps)


def test_the_readout_and_the_classifier_agree_and_the_order_of_the_support_is_nothing():
    x, y = VECTORS[:72], LABELS[:72]
    rest = (VECTORS[72:], LABELS[72:])
    order = RNG.permutation(len(x))
    one = FewShotClassifier("proto", readout="posterior", base=rest, scale=1.0).fit(x, y)
    other = FewShotClassifier("proto", readout="posterior", base=rest, scale=1.0).fit(x[order], y[order])
    np.testing.assert_allclose(one.logits(x), other.logits(x), rtol=1e-9)
    halves = [
        FewShotClassifier("proto", readout="posterior", base=rest, scale=1.0).fit(x[i::2], y[i::2]) for i in (0, 1)
    ]
    np.testing.assert_allclose(halves[0].merge(halves[1]).logits(x), one.logits(x), rtol=1e-9)
    fitted = fit_posterior(torch.from_numpy(rest[0]), torch.from_numpy(rest[1]))
    z = whiten(torch.from_numpy(x), fitted)
    means = torch.stack([z[y == c].mean(0) for c in np.unique(y)])
    np.testing.assert_allclose(one.logits(x), logits(z, means, torch.full((6,), IMAGES), fitted["spread"]), rtol=1e-7)


@pytest.mark.parametrize("head", HEADS)
def test_every_heads_vectors_can_be_read(head):
    if HEADS[head].needs_training:
        pytest.skip("has to be trained first")
    maps = np.abs(VECTORS).reshape(-1, 2, 3)
    table = evaluate(
        maps[144:], LABELS[144:], [head], [1, 4], queries=4, episodes=50,
        readouts=["own", "posterior"], base=(maps[:144], LABELS[:144]),
    )  # fmt: skip
    assert all(row["accuracy"] > 25 for row in table if row["readout"] == "posterior")


def test_too_few_base_classes_get_a_sentence():
    with pytest.raises(BadInput, match="at least 4 base classes"):
        fit_posterior(torch.from_numpy(VECTORS[:24]), torch.from_numpy(LABELS[:24]))
