"""The posterior is what a direct computation with multivariate normals gives, and its limits are scores one knows."""

import numpy as np
import pytest
import torch
from scipy.stats import multivariate_normal
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

from anyshot import BadInput, FewShotClassifier, evaluate
from anyshot.classify import support as deployed
from anyshot.classify.onnx_export import export_onnx
from anyshot.measure.engine import visit_logits
from anyshot.measure.plan import Plan
from anyshot.models.empirical import LITTLE_USE, Base, fit_base, fit_support, is_foreign, leave_one_out, support_scores
from anyshot.models.empirical import moments_of as moments_of_units
from anyshot.models.heads import HEADS
from anyshot.models.law import BoundHead, normalize
from anyshot.models.posterior import _moments as moments_of
from anyshot.models.posterior import as_posterior, diagonalise, fit_posterior, predict_class, quadratic, whiten

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


def test_the_head_in_few_dimensions_is_the_head_in_all():
    """`support_scores` works in what the support spans; the fit in all dimensions gives the same, up to the scale."""
    rng = np.random.default_rng(0)
    for d, counts in ((30, (1, 2, 5)), (4, (3, 9, 9)), (30, (1, 1, 1)), (30, (2, 2, 2))):
        x = normalize(torch.from_numpy(rng.normal(size=(sum(counts), d)) + 1))
        query, owner = (
            normalize(torch.from_numpy(rng.normal(size=(7, d)) + 1)),
            torch.repeat_interleave(torch.tensor(counts)),
        )
        moments = moments_of_units(x, owner)
        fit = fit_support(moments)
        ours = fit.logits(fit.coordinates(query), fit.coordinates(moments.means), moments.counts) / fit.scale
        torch.testing.assert_close(support_scores(x, owner, query), ours, rtol=1e-6, atol=1e-6)


def test_fewer_shots_are_no_surer_than_all_of_them_say():
    """A few examples that are all right would make a classifier certain; how sure it may be, all of them tell."""
    X, y, Q, _ = unequal()
    X[0], y[0] = X[-1], 0  # a wrong label, which a few examples may not show
    fitted = FewShotClassifier("posterior").fit(X, y)
    assert {fitted.at_shot(shot).scale_ for shot in (1, 2, 4, 8)} == {fitted.scale_}
    np.testing.assert_allclose(fitted.at_shot(12).predict_proba(Q), fitted.predict_proba(Q), rtol=1e-9)


def test_leaving_one_out_is_fitting_without_it():
    """The rank-one change of W and of the centre equals the scatter, means and counts of a support without the image,
    with everything else (shrinkage, size, ratio, scale) as it was."""
    X, y, *_ = unequal()
    u, owner = normalize(torch.from_numpy(X)), torch.from_numpy(y)
    moments = moments_of_units(u, owner)
    fit = fit_support(moments)
    left = leave_one_out(fit, moments, u, owner)
    share, ratio = fit.share, fit.spread[0]
    metric = torch.linalg.inv(fit.matrix @ fit.matrix.mT)  # W, in u
    row = 0
    for image in range(len(u)):
        if moments.counts[owner[image]] == 1:
            continue
        stays = torch.arange(len(u)) != image
        without = moments_of_units(u[stays], owner[stays])
        W = metric - share * (moments.scatter - without.scatter)  # what this image had put into it
        inverse, centre = torch.linalg.inv(W), without.centre
        k = without.counts.double()
        a, v = k * ratio / (k * ratio + 1), 1 + ratio / (k * ratio + 1)
        gap = (u[image] - centre) - a[:, None] * (without.means - centre)
        expected = -0.5 * fit.scale * (torch.einsum("cd,de,ce->c", gap, inverse, gap) / v + D * v.log())
        torch.testing.assert_close(left.logits[row], expected, rtol=1e-8, atol=1e-8)
        row += 1
    assert row == len(left.owner)


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


def test_a_foreign_base_is_seen_and_left_alone():
    X, y, Q, _ = unequal(shift=np.array([0, 9.0, 0, -9, 0, 0]))
    base = (VECTORS, LABELS)
    alone, foreign = FewShotClassifier("posterior").fit(X, y), FewShotClassifier("posterior", base=base).fit(X, y)
    np.testing.assert_allclose(alone.predict_proba(Q), foreign.predict_proba(Q))
    X, y, Q, _ = unequal()
    own = FewShotClassifier("posterior", base=base).fit(X, y)
    assert not np.allclose(own.predict_proba(Q), FewShotClassifier("posterior").fit(X, y).predict_proba(Q))


def test_five_single_images_show_that_they_lack_what_a_base_shares():
    """Base classes share a direction and differ in 39 others; the foreign support has half as much of that direction,
    too little to be seen in the distance of the two centres."""
    rng = np.random.default_rng(0)

    def images(classes, each, shared):
        centres = rng.normal(size=(classes, 40))
        owner = np.repeat(np.arange(classes), each)
        x = centres[owner] + rng.normal(size=(len(owner), 40)) + shared * np.eye(40)[0] * 6
        return moments_of_units(normalize(torch.from_numpy(x)), torch.from_numpy(owner))

    base = images(60, 10, 1.0)
    false = sum(is_foreign(images(5, 1, 1.0), base) for _ in range(200))
    right = sum(is_foreign(images(5, 1, 0.5), base) for _ in range(200))
    assert false <= 24  # a test of 5 %
    assert right >= 190
    near = [images(5, 1, 0.85) for _ in range(200)]
    assert sum(is_foreign(one, base, gain=0.0) for one in near) > 1.2 * sum(is_foreign(one, base) for one in near)


@pytest.mark.parametrize(("spread", "gains"), [(3.0, True), (1.0, False)])
def test_a_base_knows_what_it_brings_to_its_own_kind(spread, gains):
    """Much where images differ in directions in which classes do not; nothing where all directions are alike."""
    rng = np.random.default_rng(1)
    owner = np.repeat(np.arange(40), 12)
    within = np.r_[np.full(10, 0.7), np.full(20, spread)]
    x = rng.normal(size=(40, 30))[owner] + rng.normal(size=(len(owner), 30)) * within
    base = fit_base(torch.from_numpy(x), torch.from_numpy(owner))
    assert (base.gain > LITTLE_USE) == gains
    assert Base.of(base.tensors()).gain == base.gain


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
