"""The posterior is what a direct computation with multivariate normals gives, and its limits are scores one knows."""

import time

import numpy as np
import pytest
import torch
from scipy.stats import multivariate_normal, norm
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.metrics import roc_auc_score

from anyshot import BadInput, FewShotClassifier, evaluate
from anyshot.classify import support as deployed
from anyshot.classify.onnx_export import export_onnx
from anyshot.measure.engine import score_support, visit_logits
from anyshot.measure.plan import Plan
from anyshot.models import gaussian
from anyshot.models.gaussian import _sum_images as sum_images
from anyshot.models.gaussian import (
    as_posterior,
    diagonalise,
    diagonalise_images,
    fit,
    fit_base,
    fit_moments,
    fit_posterior,
    is_foreign,
    leave_one_out,
    moments_of,
    predict,
    predict_class,
    quadratic,
    read_base,
    transform,
    whiten,
)
from anyshot.models.heads import HEADS
from anyshot.models.law import BoundHead, Examples, Moments, normalize
from anyshot.models.registry import BUILTIN

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
    u = normalize(base()[0] - base()[0].mean(0))
    moments = sum_images(u, base()[1])
    within = moments.scatter / moments.degrees_of_freedom
    fitted = diagonalise(moments, 0.0, 0.0)
    T = fitted["matrix"]
    torch.testing.assert_close(T.mT @ within @ T, torch.eye(D, dtype=T.dtype))
    between = torch.cov(moments.means.mT) - within / IMAGES
    expected = torch.diag(T.mT @ between @ T)
    torch.testing.assert_close(T.mT @ between @ T, torch.diag(expected), atol=1e-9, rtol=0)
    torch.testing.assert_close(fitted["spread"], expected.clamp_min(1e-3))


@pytest.mark.parametrize("shrinkage", [(0.3, 0.05), (0.9, 0.7)])
def test_few_images_of_many_dimensions_are_whitened_as_in_all_of_them(shrinkage):
    vectors, owner = units(24, 60), torch.arange(24) % 8
    fast, slow = diagonalise_images(vectors, owner, shrinkage), diagonalise(sum_images(vectors, owner), *shrinkage)
    query, counts = units(9, 60, seed=3), torch.tensor([1, 2, 5, 1])
    scores = [logits_of(model | {"scale": torch.ones(())}, query[:4], counts, query[4:]) for model in (fast, slow)]
    torch.testing.assert_close(*scores)
    torch.testing.assert_close(fast["spread"].sort().values, slow["spread"])
    torch.testing.assert_close(fast["mean"], slow["mean"])


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
    reading = BoundHead(as_posterior(HEADS["proto"]), fitted)
    plan = Plan(LABELS, way=5, shot=4, queries=4, episodes=30)
    fast, general = {}, {}
    visit_logits(z, [reading], plan, [1, 4], lambda i, start, logits: fast.update({start: logits.clone()}))
    patterns = np.array([[1] * 5, [4] * 5, [1, 4, 1, 4, 2]])
    visit_logits(z, [reading], plan, patterns, lambda i, start, logits: general.update({start: logits.clone()}))
    for start, logits in fast.items():
        both = logits, general[start][:, :2]
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
    with pytest.raises(BadInput, match="at least 8 base classes"):
        fit_posterior(torch.from_numpy(VECTORS[:24]), torch.from_numpy(LABELS[:24]))


# --------------------------------------------------------------------------------------- the head: empirical Bayes


def unequal(seed=5, shift=0.0):
    """Six classes with 1, 2, 3, 8, 8 and 12 images of one kind, and as many queries each."""
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(6, D)) @ np.diag(np.linspace(2, 0.2, D))
    counts = np.array([1, 2, 3, 8, 8, 12])
    y = np.repeat(np.arange(6), counts)
    ask = np.repeat(np.arange(6), 20)
    X, Q = (centres[labels] + rng.normal(size=(len(labels), D)) @ MIX + 3 + shift for labels in (y, ask))
    return X, y, Q, ask


def units(*shape, seed=0, shift=1.0):
    return normalize(torch.from_numpy(np.random.default_rng(seed).normal(size=shape) + shift))


SUPPORTS = [(30, (1, 2, 5)), (4, (3, 9, 9)), (30, (1, 1, 1)), (30, (2, 2, 2)), (12, (1, 16, 16))]


def logits_of(model, means, counts, query):
    return model["scale"] * quadratic(transform(query, model), predict(means, counts, model))


def evidence_of(model, means, counts, query):
    return model["scale"] * gaussian.evidence(query, means, counts, model)


def class_means(x, owner):
    return torch.stack([x[owner == c].mean(0) for c in owner.unique()])


@pytest.mark.parametrize(("d", "counts"), SUPPORTS)
def test_the_span_of_the_examples_gives_what_all_dimensions_give(d, counts):
    x, query, owner = units(sum(counts), d), units(7, d, seed=1), torch.repeat_interleave(torch.tensor(counts))
    small, examples = moments_of(x, owner), Examples(x, owner)
    means = class_means(x, owner)
    residuals = x - means[owner]
    whole = Moments(torch.tensor(counts), means, residuals.mT @ residuals, len(x) - len(counts))
    assert (small.basis is not None) == (len(x) < d)
    models = [fit(moments, examples) for moments in (small, whole)]
    for ask in (logits_of, evidence_of):
        one, other = (ask(model, means, whole.counts, query) for model in models)
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(models[0]["scale"], models[1]["scale"], rtol=1e-6, atol=1e-8)
    one, other = (leave_one_out(m, examples, model) for m, model in zip((small, whole), models, strict=True))
    torch.testing.assert_close(one.logits, other.logits, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(one.evidence, other.evidence, rtol=1e-5, atol=1e-6)


def test_w_is_what_the_formula_says():
    """The model equals the sum of a sphere, residuals and shares of class means, written out class by class."""
    x, owner = units(11, 5), torch.tensor([0, 1, 1, 2, 2, 2, 2, 2, 2, 2, 2])
    model = fit_moments(moments_of(x, owner), ridge=2.0)
    r = float(model["spread"][0])
    means, counts = class_means(x, owner), torch.bincount(owner).double()
    weights = 1 / (r + 1 / counts)
    centre = (weights[:, None] * means).sum(0) / weights.sum()
    residuals = x - means[owner]
    W = 2.0 * residuals.square().sum() / (len(x) - 3) * torch.eye(5, dtype=x.dtype)
    for row in residuals:
        W = W + torch.outer(row, row)
    for k, w, mean in zip(counts, weights, means, strict=True):
        W = W + w / (1 + r * k) * torch.outer(mean - centre, mean - centre)
    torch.testing.assert_close(model["mean"], centre)
    T = model["matrix"]
    torch.testing.assert_close(T.mT @ (model["share"] * W) @ T, torch.eye(5, dtype=x.dtype))


def test_one_cosine_is_all_that_the_logits_see():
    """With B = r W and everything at its expected length, by the formula of docs/posterior.md."""
    x, owner = units(11, 5), torch.tensor([0, 1, 1, 2, 2, 2, 2, 2, 2, 2, 2])
    model, query = fit(moments_of(x, owner), Examples(x, owner)), units(4, 5, seed=3)
    means, k, r = class_means(x, owner), torch.bincount(owner), float(model["spread"][0])
    cosine = torch.nn.functional.cosine_similarity(
        *(((v - model["mean"]) @ model["matrix"]) for v in (query[:, None], means)), dim=-1
    )
    rho = r / ((1 + r) * (r + 1 / k.double())).sqrt()
    ratio = (rho * (cosine - rho) / (1 - rho**2) - (1 - rho**2).log() / 2) * (4 / 9) / rho
    torch.testing.assert_close(logits_of(model, means, k, query), model["scale"] * ratio)


def test_a_cosine_is_worth_as_much_whatever_the_number_of_images():
    """But for 1 - rho^2: a wrong class of one image is as unlikely to look right by chance as one of sixteen."""
    x, owner = units(33, 12), torch.repeat_interleave(torch.tensor([1, 16, 16]))
    model, mean = fit(moments_of(x, owner), Examples(x, owner)), x[:1]
    near, far = (logits_of(model, mean.repeat(2, 1), torch.tensor([1, 16]), query)[0] for query in (x[:1], x[1:2]))
    r = model["spread"][0]
    rho = r / ((1 + r) * (r + 1 / torch.tensor([1.0, 16.0]).double())).sqrt()
    gain = (near - far) * (1 - rho**2)
    torch.testing.assert_close(gain[0], gain[1])


@pytest.mark.parametrize("counts", [(3, 3, 3), (1, 4, 16)])
def test_with_a_base_a_logit_is_a_likelihood_ratio_over_the_cosine_that_is_expected(counts):
    """On average over the classes the division changes nothing, and at equal shots nothing at all."""
    base, k = fit_base(*kind(60, 10, 1.0, 0)), np.array(counts)
    x, owner = kind(3, 17, 1.0, 1)
    is_support = torch.from_numpy(np.arange(17) < k[:, None]).flatten()
    support, query = x[is_support], x[~is_support][:5]
    model = fit(moments_of(support, owner[is_support]), Examples(support, owner[is_support]), base)
    assert "share" not in model, "the base is used"
    means, b = class_means(support, owner[is_support]), base["spread"].numpy()
    z = ((torch.cat([means, query]) - base["mean"]) @ base["matrix"]).numpy()
    z /= np.sqrt((z**2 / (b + 1 / np.r_[k, np.ones(5)][:, None])).mean(1, keepdims=True))  # at their expected length
    a, v = k[:, None] * b / (k[:, None] * b + 1), 1 + b / (k[:, None] * b + 1)
    ratios = norm(a * z[:3], v**0.5).logpdf(z[3:, None]) - norm(0, (1 + b) ** 0.5).logpdf(z[3:, None])
    rho = b.sum() / ((1 + b).sum() * (b + 1 / k[:, None]).sum(1)) ** 0.5
    expected = float(model["scale"]) * ratios.mean(2) * rho.mean() / rho
    np.testing.assert_allclose(logits_of(model, means, torch.from_numpy(k), query), expected, rtol=1e-6)


@pytest.mark.parametrize("times", [1e6, 1e-6])
@pytest.mark.parametrize("shots", [1, 4])
def test_order_rotation_and_scale_change_nothing(times, shots):
    rng = np.random.default_rng(2)
    y = np.repeat(np.arange(5), shots)
    X, Q = rng.normal(size=(len(y), 12)) + np.eye(12)[y] * 3, rng.normal(size=(9, 12))
    turn = np.linalg.qr(rng.normal(size=(12, 12)))[0]
    order = rng.permutation(len(y))
    plain = FewShotClassifier("posterior").fit(X, y)
    for make in (lambda rows: rows @ turn, lambda rows: rows * times, lambda rows: rows):
        other = FewShotClassifier("posterior").fit(make(X)[order], y[order])
        np.testing.assert_allclose(other.predict_proba(make(Q)), plain.predict_proba(Q), atol=1e-7)
        np.testing.assert_allclose(
            other.evidence_of(other.vectors(make(Q))), plain.evidence_of(plain.vectors(Q)), rtol=1e-6, atol=1e-7
        )


def test_many_dimensions_take_no_minutes():
    rng = np.random.default_rng(0)
    y = np.repeat(np.arange(10), 5)
    X = rng.normal(size=(50, 8000))
    owner = torch.from_numpy(y)
    began = time.process_time()
    score_support(BUILTIN.head("posterior"), normalize(torch.from_numpy(X)), owner, normalize(torch.from_numpy(X[:5])))
    assert time.process_time() - began < 10


def test_fewer_shots_are_no_surer_than_all_of_them_say():
    """A few examples that are all right would make a classifier certain; how sure it may be, all of them tell."""
    X, y, Q, _ = unequal()
    X[0], y[0] = X[-1], 0  # a wrong label, which a few examples may not show
    fitted = FewShotClassifier("posterior").fit(X, y)
    assert {fitted.at_shot(shot).scale_ for shot in (1, 2, 4, 8)} == {fitted.scale_}
    np.testing.assert_allclose(fitted.at_shot(12).predict_proba(Q), fitted.predict_proba(Q), rtol=1e-9)


@pytest.mark.parametrize("d", [6, 60])
@pytest.mark.parametrize("size", [1, 2, 3, 8])
def test_leaving_a_group_out_is_fitting_without_it(d, size):
    """W, class means and centre without the group's images; every class counts as many images less."""
    rng = np.random.default_rng(0)
    owner = torch.repeat_interleave(torch.tensor([1, 2, 3, 8, 8, 12]))
    x = normalize(torch.from_numpy(rng.normal(size=(6, d))[owner] * 2 + rng.normal(size=(len(owner), d)) + 1))
    groups = torch.arange(len(x)).repeat(size)
    x, owner = x.repeat(size, 1), owner.repeat(size)
    x = normalize(x + 0.1 * torch.from_numpy(rng.normal(size=x.shape))) if size > 1 else x
    moments, examples = moments_of(x, owner), Examples(x, owner, groups)
    model = fit(moments, examples)
    left = leave_one_out(moments, examples, model)
    r, inside = model["spread"][0], x if moments.basis is None else gaussian._in_span(x, moments.basis)
    root = torch.linalg.inv(model["matrix"])

    def parts(stays):
        """What the images that stay put into W, their class means and counts."""
        counts = torch.bincount(owner[stays], minlength=6)
        means = torch.stack([inside[stays & (owner == c)].mean(0) for c in range(6)]).nan_to_num()
        residuals = inside[stays] - means[owner[stays]]
        about = means - model["mean"]
        share = counts / (1 + r * counts) ** 2
        return residuals.mT @ residuals + (about * share[:, None]).mT @ about, means, counts

    everyone = parts(torch.ones_like(owner, dtype=torch.bool))[0]
    asked = []
    for image in range(len(owner)):
        matrix, means, counts = parts(groups != groups[image])
        if not counts[owner[image]]:
            continue
        W = root.mT @ root - model["share"] * (everyone - matrix)
        values, turn = torch.linalg.eigh(W)
        weights = torch.where(counts > 0, 1 / (r + 1 / counts), 0.0).double()
        other = {**model, "matrix": turn / values.sqrt(), "mean": weights @ means / weights.sum()}
        other.pop("basis", None)
        query = inside[[image]]
        row = len(asked)
        counts = (torch.bincount(owner) - size).clamp_min(1)
        torch.testing.assert_close(left.logits[row], logits_of(other, means, counts, query)[0], rtol=1e-7, atol=1e-6)
        expected = evidence_of(other, means, counts, query)[0]
        torch.testing.assert_close(left.evidence[row], expected, rtol=1e-7, atol=1e-7)
        asked.append(image)
    assert left.owner.tolist() == owner[asked].tolist()


def test_leaving_out_with_a_base_subtracts_from_the_class_mean_only():
    X, y, *_ = unequal()
    x, owner = normalize(torch.from_numpy(X)), torch.from_numpy(y)
    model = {**fit_base(*base()), "scale": torch.tensor(0.3).double()}
    b, fewer = model["spread"], (torch.bincount(owner) - 1).clamp_min(1)
    cosines = b.sum() / ((1 + b).sum() * (b + 1 / fewer[:, None]).sum(1)).sqrt()
    left = leave_one_out(moments_of(x, owner), Examples(x, owner), model)
    model["cosine"] = cosines.mean()  # that of a support whose classes have one image less
    asked = torch.nonzero(torch.bincount(owner)[owner] > 1)[:, 0]
    assert left.owner.tolist() == owner[asked].tolist()
    for row, image in enumerate(asked.tolist()):
        stays = torch.arange(len(x)) != image
        means = class_means(x[stays], owner[stays])
        torch.testing.assert_close(left.logits[row], logits_of(model, means, fewer, x[[image]])[0])
        torch.testing.assert_close(left.evidence[row], evidence_of(model, means, fewer, x[[image]])[0])


@pytest.mark.parametrize("shot", [2, 3])
def test_leaving_out_tells_nothing_of_noise(shot):
    """A class that has lost an image must not be given away by its count, its length or the centre."""
    right, chance, way = [], 0.1, 10
    owner = torch.arange(way).repeat_interleave(shot)
    for _ in range(20):
        x = normalize(torch.from_numpy(RNG.normal(size=(len(owner), 320))))
        moments, examples = moments_of(x, owner), Examples(x, owner)
        left = leave_one_out(moments, examples, fit(moments, examples))
        right += (left.logits.argmax(1) == left.owner).tolist()
    assert np.mean(right) < chance + 3 * (chance * (1 - chance) / len(right)) ** 0.5


def test_examples_left_out_in_parts_are_left_out_the_same(monkeypatch):
    x, owner = units(60, 20), torch.arange(60) % 7
    moments, examples = moments_of(x, owner), Examples(x, owner)
    model = fit(moments, examples)
    whole = leave_one_out(moments, examples, model)
    monkeypatch.setattr(gaussian, "PART", 8)
    for part, all_of_them in zip(leave_one_out(moments, examples, model), whole, strict=True):
        torch.testing.assert_close(part, all_of_them, rtol=1e-9, atol=1e-9)


def test_twins_that_are_left_out_together_do_not_make_it_sure():
    """Every image twice: alone, each is recognised by its twin; in groups the factor is that of the images once."""
    X, y, *_ = unequal()
    X = X + np.random.default_rng(0).normal(size=X.shape) * 2
    x, owner = normalize(torch.from_numpy(X)), torch.from_numpy(y)
    twice, owners = torch.cat([x, x]), torch.cat([owner, owner])
    moments, groups = moments_of(twice, owners), torch.arange(len(x)).repeat(2)
    once = float(fit(moments_of(x, owner), Examples(x, owner))["scale"])
    alone = float(fit(moments, Examples(twice, owners))["scale"])
    together = float(fit(moments, Examples(twice, owners, groups))["scale"])
    assert together < 0.75 * alone
    assert together < 1.5 * once


def test_the_scatter_is_the_sum_over_images_of_their_residuals(monkeypatch):
    monkeypatch.setattr(deployed, "PART", 16)
    X, y = np.random.default_rng(0).normal(size=(50, 6)), np.arange(50) % 7
    fitted = FewShotClassifier("posterior").fit(X, y)
    inside = np.concatenate([rows - rows.mean(0) for rows in (fitted.vectors(X[y == c]) for c in range(7))])
    np.testing.assert_allclose(fitted.support_.scatter, sum(np.outer(row, row) for row in inside), atol=1e-12)


def test_a_unit_vector_leaves_what_it_is_of_as_it_was_and_has_a_gradient():
    x = torch.tensor([[3.0, 4.0]], dtype=torch.float64)
    torch.testing.assert_close(normalize(x), torch.tensor([[0.6, 0.8]], dtype=torch.float64))
    assert x.tolist() == [[3.0, 4.0]]
    assert torch.autograd.gradcheck(normalize, (x.clone().requires_grad_(),))


def test_any_order_any_batching_and_any_merge_give_the_same_classifier():
    X, y, Q, _ = unequal()
    base = (VECTORS, LABELS)
    for more in ({}, {"base": base}):
        whole = FewShotClassifier("posterior", **more).fit(X, y)
        order = RNG.permutation(len(X))
        pieces = FewShotClassifier("posterior", **more)
        for piece in np.array_split(order, 5):
            pieces.partial_fit(X[piece], y[piece])
        merged = FewShotClassifier("posterior", **more).fit(X[::2], y[::2])
        merged.merge(FewShotClassifier("posterior", **more).fit(X[1::2], y[1::2]))
        for other in (pieces, merged):
            np.testing.assert_allclose(other.predict_proba(Q), whole.predict_proba(Q), atol=1e-8)
            np.testing.assert_allclose(other.coverage_.threshold, whole.coverage_.threshold, rtol=1e-6)


def test_it_travels(tmp_path):
    X, y, Q, _ = unequal()
    fitted = FewShotClassifier("posterior", base=(VECTORS, LABELS)).fit(X, y)
    fitted.save(tmp_path / "classifier")
    again = FewShotClassifier.load(tmp_path / "classifier")
    np.testing.assert_allclose(again.predict_proba(Q), fitted.predict_proba(Q))
    np.testing.assert_array_equal(again.is_known(Q), fitted.is_known(Q))
    again.partial_fit(Q[:5], np.full(5, 9))
    assert 9 in again.classes_


def test_onnx_is_the_same_and_takes_a_new_class(tmp_path):
    runtime = pytest.importorskip("onnxruntime")
    X, y, Q, _ = unequal()
    fitted = FewShotClassifier("posterior").fit(X, y)
    export_onnx(fitted, tmp_path / "classifier.onnx")
    session = runtime.InferenceSession(tmp_path / "classifier.onnx")
    logits, vectors = session.run(["logits", "vectors"], {"features": Q.astype(np.float32)})
    np.testing.assert_allclose(logits, fitted.logits(Q), rtol=1e-3, atol=1e-3)
    means = np.concatenate([fitted.support_.means, vectors[:4].mean(0, keepdims=True)]).astype(np.float32)
    feeds = {"features": Q.astype(np.float32), "prototypes": means, "counts": np.append(fitted.support_.counts, 4)}
    assert session.run(["logits"], feeds)[0].shape == (len(Q), 7)


@pytest.mark.parametrize("shots", [(2, 2, 2, 2, 2), (1, 1, 1, 16, 16), (16, 16, 16, 16, 16)])
def test_the_evidence_tells_strangers_better_than_the_largest_probability(shots):
    by_evidence, by_probability = [], []
    for seed in range(8):
        x, owner = kind(10, 26, 1.0, seed, spread=1.5)
        is_support = torch.from_numpy(np.arange(26) < np.array([*shots, *[0] * 5])[:, None]).flatten()
        fitted = FewShotClassifier("posterior").fit(x[is_support].numpy(), owner[is_support].numpy())
        query, is_known = x[~is_support].numpy(), (owner[~is_support] < 5).numpy()
        by_evidence.append(roc_auc_score(is_known, fitted.evidence_of(fitted.vectors(query))))
        by_probability.append(roc_auc_score(is_known, fitted.predict_proba(query).max(1)))
    assert np.mean(by_evidence) > np.mean(by_probability) + 0.01


def test_a_foreign_base_is_seen_and_left_alone():
    base = kind(60, 10, 1.0, 0)
    for shift, is_used in ((-1.0, False), (1.0, True)):
        (X, y), (Q, _) = kind(5, 2, shift, 1), kind(5, 4, shift, 2)
        alone, based = (FewShotClassifier("posterior", base=b).fit(X.numpy(), y.numpy()) for b in (None, base))
        assert np.allclose(alone.predict_proba(Q.numpy()), based.predict_proba(Q.numpy())) != is_used


def kind(classes, each, shift, seed, spread=3.0):
    """Images that differ by class in ten directions and within classes in thirty, about a centre of their kind."""
    rng = np.random.default_rng(seed)
    owner = np.repeat(np.arange(classes), each)
    within = np.r_[np.full(10, 0.7), np.full(30, spread)]
    centres = np.c_[2 * rng.normal(size=(classes, 10)), np.zeros((classes, 30))]
    x = centres[owner] + rng.normal(size=(len(owner), 40)) * within + shift * np.eye(40)[0] * 6
    return normalize(torch.from_numpy(x)), torch.from_numpy(owner)


def test_five_single_images_show_that_a_base_is_of_another_kind():
    base = fit_base(*kind(60, 10, 1.0, 0))
    own = sum(is_foreign(moments_of(*kind(5, 1, 1.0, seed)), base) for seed in range(1, 101))
    other = sum(is_foreign(moments_of(*kind(5, 1, -1.0, seed)), base) for seed in range(1, 101))
    assert own <= 20  # a test of 5 %, with W and B estimated
    assert other >= 90


@pytest.mark.parametrize(("classes", "spread", "helps"), [(60, 3.0, True), (60, 0.7, None), (7, 3.0, False)])
def test_a_base_is_used_only_where_it_helped_its_own_kind(classes, spread, helps):
    base = fit_base(*kind(classes, 12, 1.0, 0, spread))
    if helps is not None:
        assert bool(base["helps"]) == helps
    x, owner = kind(5, 1, 1.0, 1, spread)
    alone, based = (fit(moments_of(x, owner), Examples(x, owner), which) for which in (None, base))
    if not bool(base["helps"]):
        assert alone.keys() == based.keys()
        torch.testing.assert_close(alone["matrix"], based["matrix"])


def test_a_base_brings_its_own_factor_where_nothing_can_be_left_out():
    """Probabilities of single images, with a base, are about as often right as they say."""
    base, sure, right = fit_base(*kind(60, 12, 1.0, 0)), [], []
    for seed in range(1, 31):
        x, owner = kind(5, 9, 1.0, seed)
        first = torch.arange(5) * 9
        query = torch.ones(45, dtype=torch.bool)
        query[first] = False
        model = fit(moments_of(x[first], torch.arange(5)), Examples(x[first], torch.arange(5)), base)
        assert "share" not in model
        torch.testing.assert_close(model["scale"], base["dimensions"])
        chances = logits_of(model, x[first], torch.ones(5, dtype=torch.long), x[query]).softmax(1)
        sure.append(chances.amax(1))
        right.append((chances.argmax(1) == owner[query]).double())
    assert abs(float(torch.cat(sure).mean() - torch.cat(right).mean())) < 0.05


def test_a_base_of_before_is_read():
    """Files of before hold counts, means, scatter and (factor, degrees of freedom, gain)."""
    x, owner = kind(20, 6, 1.0, 0)
    moments = moments_of(x, owner)
    numbers = torch.tensor([0.1, float(moments.degrees_of_freedom), 0.2]).double()
    old = {"counts": moments.counts, "means": moments.means, "scatter": moments.scatter, "numbers": numbers}
    assert bool(read_base(old)["helps"])
    assert read_base(old).keys() == fit_base(x, owner).keys()
    assert not read_base({**old, "numbers": numbers * torch.tensor([1, 1, -1])})["helps"]
    support = kind(4, 3, 1.0, 5)
    model = fit(moments_of(*support), Examples(*support), read_base(old))
    assert torch.isfinite(model["scale"])


@pytest.mark.parametrize(
    ("X", "y"),
    [
        (np.eye(5), np.arange(5)),  # one image per class
        (np.repeat(np.eye(4), 3, 0), np.repeat(np.arange(4), 3)),  # copies
        (np.ones((6, 3)), np.repeat([0, 1], 3)),  # nothing to tell apart
        (np.zeros((4, 3)), np.array([0, 0, 1, 1])),
        (np.eye(2), np.array([0, 0])),  # one class
    ],
)
def test_odd_supports_are_finite(X, y):
    fitted = FewShotClassifier("posterior").fit(X, y)
    proba = fitted.predict_proba(X + 0.01)
    assert np.isfinite(proba).all()
    assert np.isfinite(fitted.evidence_of(fitted.vectors(X))).all()


def test_evaluate_fits_every_support_anew_as_the_classifier_does():
    plan = Plan(LABELS, way=4, shot=5, queries=3, episodes=6, seed=1)
    table = evaluate(VECTORS, LABELS, ["posterior"], [1, 5], plan=plan)
    draw = plan.draw(0, plan.episodes)
    for number, shot in enumerate((1, 5)):
        for episode in range(plan.episodes):
            support, query = draw.support[episode, :, :shot], draw.query[episode]
            fitted = FewShotClassifier("posterior").fit(VECTORS[support.ravel()], np.repeat(np.arange(4), shot))
            right = fitted.predict(VECTORS[query.ravel()]).reshape(4, 3) == np.arange(4)[:, None]
            np.testing.assert_allclose(table.of("posterior").recall[number, episode], right.mean(1), atol=1e-6)
