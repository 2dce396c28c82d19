"""The head `logistic` refines the posterior where that makes examples likelier that it has not seen."""

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import normalize

from anyshot import BadInput, FewShotClassifier, advise, evaluate
from anyshot.classify.calibration import calibration_error
from anyshot.classify.keys import hash_rows
from anyshot.models import gaussian, logistic
from anyshot.models.law import Examples

X, Y = load_digits(return_X_y=True)
X = X.astype(np.float32)


def digits(shot, queries=30, way=10, seed=0):
    rng = np.random.default_rng(seed)
    rows = [rng.permutation(np.flatnonzero(label == Y)) for label in range(way)]
    support, query = (
        np.concatenate([row[part] for row in rows]) for part in (slice(shot), slice(shot, shot + queries))
    )
    return X[support], Y[support], X[query], Y[query]


@pytest.mark.parametrize(("way", "shot"), [(2, 8), (10, 8), (10, 60)])
def test_without_an_offset_the_weights_are_those_of_scikit_learn(way, shot):
    x, y, *_ = digits(shot, way=way)
    x, y = torch.from_numpy(normalize(x.astype(float))), torch.from_numpy(y)
    strengths, is_refined = (0.0, 1.0, 10.0), torch.ones(way, dtype=torch.bool)
    rows = logistic.fit_weights(x, torch.zeros(len(x), way).double(), y, is_refined, strengths)
    assert not rows[0].any()
    for weights, strength in zip(rows[1:], strengths[1:], strict=True):
        theirs = LogisticRegression(C=strength, fit_intercept=False, max_iter=5000, tol=1e-8).fit(x, y)
        logits = (x @ weights.mT).softmax(1)
        if way > 2:  # for two classes scikit-learn fits one row, which is penalised otherwise
            np.testing.assert_allclose(logits.numpy(), theirs.predict_proba(x.numpy()), atol=2e-3)


@pytest.mark.parametrize("way", [3, 10])
def test_the_weights_make_left_out_examples_likeliest(way):
    """No step from the fitted weights lowers the penalised loss, which is written out here."""
    x, y, *_ = digits(40, way=way)
    vectors, owner = torch.from_numpy(normalize(x.astype(float))), torch.from_numpy(y)
    moments, examples = gaussian.moments_of(vectors, owner), Examples(vectors, owner)
    model = logistic.fit(moments, examples)
    strength, weights = float(model["strength"]), model["weights"].clone().requires_grad_()
    assert strength > 0
    offset = gaussian.leave_one_out(moments, examples, gaussian.fit(moments, examples)).logits
    directions = torch.nn.functional.normalize(vectors - model["centre"])
    likelihood = torch.nn.functional.cross_entropy(offset + directions @ weights.T, owner, reduction="sum")
    (gradient,) = torch.autograd.grad(likelihood + weights.square().sum() / 2 / strength, weights)
    assert gradient.abs().max() < 5e-3
    assert weights.abs().max() > 0.1


def test_rare_classes_keep_their_logits_and_common_ones_their_sum():
    x, y, query, _ = digits(20)
    is_learned = (y > 2) | (np.arange(len(y)) % 20 == 0)  # classes 0 to 2 have one example
    posterior, refined = (
        FewShotClassifier(head).fit(x[is_learned], y[is_learned]) for head in ("posterior", "logistic")
    )
    assert float(refined.head_.parameters["strength"]) > 0
    before = posterior.decision_function(query)
    after = refined.decision_function(query) / float(refined.head_.parameters["scale"])
    np.testing.assert_allclose(after[:, :3], before[:, :3], atol=1e-6)
    np.testing.assert_allclose(np.logaddexp.reduce(after, 1), np.logaddexp.reduce(before, 1), atol=1e-6)
    assert np.abs(after[:, 3:] - before[:, 3:]).max() > 0.1


def test_with_two_examples_of_each_class_it_is_the_posterior():
    x, y, query, _ = digits(2)
    posterior, refined = (FewShotClassifier(head).fit(x, y) for head in ("posterior", "logistic"))
    np.testing.assert_allclose(refined.predict_proba(query), posterior.predict_proba(query), atol=1e-9)
    assert refined.coverage_ == posterior.coverage_


def test_the_example_nearest_to_itself_is_itself():
    """Weights belong to classes, and a class has another number of examples than there are classes."""
    x, y, *_ = digits(16)
    fitted = FewShotClassifier("logistic").fit(x, y)
    vectors = fitted.vectors(x)
    for row in (0, 16, 159):
        assert fitted.nearest(vectors[row], y[row], k=1).tolist() == hash_rows(x[row : row + 1]).tolist()


def test_it_is_ahead_of_the_posterior_with_many_examples_and_calibrated():
    right = dict.fromkeys(("posterior", "logistic"), 0.0)
    errors = []
    for seed in range(4):
        x, y, query, answer = digits(40, seed=seed)
        for head in right:
            fitted = FewShotClassifier(head, keep=64).fit(x, y)
            right[head] += float((fitted.predict(query) == answer).mean()) / 4
        errors.append(calibration_error(fitted.predict_proba(query), answer))
    assert right["logistic"] > right["posterior"]
    assert np.mean(errors) < 0.05


def test_noise_is_not_recognised_and_groups_are_left_out_whole():
    rng = np.random.default_rng(0)
    once, owner = rng.normal(size=(60, 40)), torch.arange(10).repeat_interleave(6)
    for x, groups, owners in (
        (once, None, owner),
        (np.concatenate([once, once]), torch.arange(60).repeat(2), owner.repeat(2)),
    ):
        examples = Examples(torch.from_numpy(normalize(x)), owners, groups)
        moments = gaussian.moments_of(examples.vectors, owners)
        left = logistic.leave_one_out(moments, examples, logistic.fit(moments, examples))
        assert left.owner.tolist() == owners.tolist()
        assert left.logits.shape == left.evidence.shape
        assert (left.logits.argmax(1) == left.owner).double().mean() < 0.25


def test_strangers_are_rejected():
    x, y, query, _ = digits(30, way=5)
    fitted = FewShotClassifier("logistic", reject=0.05).fit(x, y)
    known, unknown = (fitted.evidence_of(fitted.vectors(one)) for one in (query, X[Y >= 5]))
    assert (known < fitted.coverage_.threshold).mean() < 0.15
    assert (unknown < fitted.coverage_.threshold).mean() > 0.4


def test_it_learns_more_and_is_saved_and_loaded(tmp_path):
    x, y, query, _ = digits(6)
    whole = FewShotClassifier("logistic").fit(x, y)
    parts = FewShotClassifier("logistic").fit(x[::2], y[::2]).partial_fit(x[1::2], y[1::2])
    np.testing.assert_allclose(parts.predict_proba(query), whole.predict_proba(query), atol=0.02)
    whole.save(tmp_path / "classifier")
    again = FewShotClassifier.load(tmp_path / "classifier")
    np.testing.assert_allclose(again.predict_proba(query), whole.predict_proba(query), atol=1e-6)


def test_single_images_and_a_single_class_are_taken():
    x, y, query, _ = digits(1)
    assert FewShotClassifier("logistic").fit(x, y).predict_proba(query).shape == (300, 10)
    assert (FewShotClassifier("logistic").fit(x[:1], y[:1]).predict(query) == y[0]).all()


def test_a_class_of_which_no_example_is_kept_is_learned_from_its_mean():
    x, y, query, answer = digits(20)
    assert (FewShotClassifier("logistic", keep=0).fit(x, y).predict(query) == answer).mean() > 0.8
    moment = np.where(y == 3, 1000, np.arange(len(y)))  # one moment of more images than are kept
    fitted = FewShotClassifier("logistic", keep=8).fit(x, y, groups=moment)
    assert fitted.single_group_classes_.tolist() == [3]
    assert (fitted.predict(query) == answer)[answer == 3].mean() > 0.5


def test_it_takes_no_base():
    x, y, *_ = digits(5)
    with pytest.raises(BadInput, match="logistic takes no base"):
        FewShotClassifier("logistic", base=(x, y)).fit(x, y)


def test_it_is_a_row_beside_the_heads():
    table = evaluate(X, Y, ["cosine-proto", "logistic"], (1, 5), episodes=5)
    assert 60 < table.accuracies("logistic").mean() < 100


def test_advice_says_when_it_is_ahead():
    """Classes of two kinds of images, of which the rarer kind looks much like another class."""
    rng = np.random.default_rng(0)
    y = np.repeat(np.arange(5), 40)
    common, rare = np.eye(20)[:5], 0.9 * np.roll(np.eye(20)[:5], 1, 0) + 0.4 * np.eye(20)[5:10]
    x = np.where(rng.random((200, 1)) < 0.85, common[y], rare[y]) + rng.normal(size=(200, 20)) * 0.1
    advice = advise(x, y, episodes=20)
    lead, half = advice.regression_lead
    assert lead > half > 0
    assert "--head logistic --keep 40" in advice.headline
    assert f"Of these heads use {advice.best}" in advice.to_text()  # not another advice than the headline's
    most = np.r_[:122, 160:200]  # one class has two examples
    assert advise(x[most], y[most], ["cosine-proto"], episodes=20).regression_lead[0] > 0
    few = advise(x[::4], y[::4], episodes=20)
    assert few.regression_lead is None
    assert "it takes 15 examples of a class, and the median class has 10" in few.to_text()
