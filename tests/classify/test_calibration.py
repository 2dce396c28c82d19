"""Calibration against slow and obvious references, and what its numbers promise on data drawn anew."""

import numpy as np
import pytest
import torch
from helpers.classifiers import classifier, examples
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax, softmax

from anyshot import FewShotClassifier
from anyshot.classify.calibration import (
    LEFT_OUT_GROUPS,
    calibration_error,
    calibration_error_by_chance,
    fit_scale,
    fit_threshold,
    leave_one_out,
)
from anyshot.models.heads import HEADS


@pytest.mark.parametrize("head", HEADS)
def test_leaving_one_out_is_a_classifier_without_it(head):
    """Every score equals that of a classifier fitted on what is left: one less of every class that has another."""
    X, y = examples(23, 5, seed=4)
    X, y = X[(y < 4) | (np.arange(23) < 5)], y[(y < 4) | (np.arange(23) < 5)]  # class 4 has one example
    fitted = classifier(head).fit(X, y)
    scores, owner = leave_one_out(fitted.head_, fitted.support_, np.arange(len(fitted.support_.exemplars.keys)))
    support = fitted.support_
    row = 0
    for place, (mine, rank) in enumerate(_ranks(support.exemplars.class_index)):
        if support.counts[mine] < 2:
            continue
        means, counts = [], []
        for other in range(len(support.labels)):
            inside = np.flatnonzero(support.exemplars.class_index == other)
            gone = place if other == mine else inside[rank % min(len(inside), LEFT_OUT_GROUPS)]
            left = inside if len(inside) == 1 else inside[inside != gone]
            means.append(support.exemplars.vectors[left].mean(0))
            counts.append(len(left))
        head, parameters = fitted.head_.head, fitted.head_.parameters
        refined = head.refined(torch.from_numpy(np.stack(means)), torch.tensor(counts), parameters)
        expected = fitted.head_.head.score(torch.from_numpy(support.exemplars.vectors[[place]]), refined)[0].numpy()
        np.testing.assert_allclose(scores[row], expected, atol=1e-9)
        assert owner[row] == mine
        row += 1
    assert row == len(scores)


@pytest.mark.parametrize("head", HEADS)
def test_classes_without_exemplars_stand_as_they_are(head):
    """Scores of exemplars for classes that have none are those of these classes' full means."""
    X, y = examples(24, 4, seed=4)
    bare = classifier(head, keep=0).fit(X[np.isin(y, [1, 3])], y[np.isin(y, [1, 3])])
    fitted = classifier(head).fit(X[np.isin(y, [0, 2])], y[np.isin(y, [0, 2])]).merge(bare)
    scores, owner = leave_one_out(fitted.head_, fitted.support_, np.arange(len(fitted.support_.exemplars.keys)))
    assert owner.tolist() == [0] * 6 + [2] * 6
    assert np.isfinite(scores).all()
    assert fitted.coverage_ is not None
    if not HEADS[head].couples:
        expected = fitted.head_.score(
            torch.from_numpy(fitted.support_.exemplars.vectors.copy()), fitted.prototypes_
        ).numpy()
        np.testing.assert_allclose(scores[:, [1, 3]], expected[:, [1, 3]], atol=1e-9)


def _ranks(owner):
    seen: dict[int, int] = {}
    for mine in owner.tolist():
        yield mine, seen.get(mine, 0)
        seen[mine] = seen.get(mine, 0) + 1


@settings(max_examples=50)
@given(seed=st.integers(0, 10_000), way=st.integers(2, 6), images=st.integers(1, 40), unit=st.floats(1e-3, 1e3))
def test_the_scale_is_the_likeliest(seed, way, images, unit):
    rng = np.random.default_rng(seed)
    owner = rng.integers(way, size=images)
    scores = unit * (rng.normal(size=(images, way)) + np.eye(way)[owner])
    doubt = 1 / (images + 1)
    target = (1 - doubt) * np.eye(way)[owner] + doubt / way

    def loss(log_scale):
        return -(target * log_softmax(np.exp(log_scale) * scores, axis=1)).sum(1).mean()

    scale = fit_scale(scores, owner)
    bounds = np.log([1e-3, 1e3]) - np.log((scores - scores.max(1, keepdims=True)).std())
    best = minimize_scalar(loss, bounds=bounds, method="bounded").fun
    assert loss(np.log(scale)) <= best + 1e-6
    assert np.isfinite(scale)


@pytest.mark.parametrize(
    ("head", "base"),
    [("proto", None), ("cosine-frn", None), ("posterior", None), ("posterior", examples(90, 9, spread=1.2))],
)
def test_what_examples_are_taken_for_does_not_need_the_scale(head, base):
    X, y = examples(18, 6, spread=1.2)
    fitted = FewShotClassifier(head, base=base).fit(X, y)
    logits, owner = fitted.leave_one_out()
    other, owners = FewShotClassifier(head, base=base, scale=0.3).fit(X, y).leave_one_out()
    np.testing.assert_array_equal(owner, owners)
    np.testing.assert_array_equal(logits.argmax(1), other.argmax(1))
    assert 0.2 < (logits.argmax(1) == owner).mean() < 1, "neither chance nor certain"


def test_all_right_is_not_certain():
    scores = np.eye(3)[np.arange(6) % 3]
    sure = softmax(fit_scale(scores, np.arange(6) % 3) * scores, axis=1).max()
    assert 0.8 < sure < 0.99


@settings(max_examples=50)
@given(seed=st.integers(0, 10_000), bins=st.integers(1, 30))
def test_calibration_error_by_its_definition(seed, bins):
    rng = np.random.default_rng(seed)
    probabilities = rng.dirichlet(np.full(4, 0.5), size=50)
    labels = rng.integers(4, size=50)
    sure, right = probabilities.max(1), probabilities.argmax(1) == labels
    expected = 0.0
    for low in range(bins):
        inside = (sure >= low / bins) & ((sure < (low + 1) / bins) | (low == bins - 1))
        if inside.any():
            expected += inside.mean() * abs(right[inside].mean() - sure[inside].mean())
    assert calibration_error(probabilities, labels, bins) == pytest.approx(expected)


@pytest.mark.parametrize("images", [60, 240, 2000])
@pytest.mark.parametrize("concentration", [0.1, 0.5, 2.0])
def test_chance_alone_makes_the_calibration_error_that_is_said(images, concentration):
    """Labels are drawn with the very probabilities that the classifier states, so that it is calibrated."""
    rng = np.random.default_rng(0)
    probabilities = rng.dirichlet(np.full(4, concentration), size=images)
    draws = [(probabilities.cumsum(1) < rng.random((images, 1))).sum(1).clip(max=3) for _ in range(200)]
    errors = [calibration_error(probabilities, labels) for labels in draws]
    assert calibration_error_by_chance(probabilities) == pytest.approx(np.mean(errors), rel=0.1)


def draw(rng, centres, labels, spread):
    return centres[labels] + spread * rng.normal(size=(len(labels), centres.shape[1]))


@pytest.mark.parametrize(("shot", "most"), [(2, 0.18), (3, 0.12), (5, 0.08), (20, 0.05)])
@pytest.mark.parametrize("head", ["proto", "cosine-proto"])
def test_probabilities_hold_on_new_images(head, shot, most):
    """Over many classifiers of few shots, those that say 80 % are right about 80 % of the time."""
    rng = np.random.default_rng(0)
    sure, right = [], []
    for _ in range(60):
        centres, owner, labels = rng.normal(size=(5, 24)), np.repeat(np.arange(5), shot), np.repeat(np.arange(5), 20)
        fitted = FewShotClassifier(head).fit(draw(rng, centres, owner, 1.6), owner)
        sure.append(fitted.predict_proba(draw(rng, centres, labels, 1.6)))
        right.append(labels)
    assert calibration_error(np.concatenate(sure), np.concatenate(right)) < most


def test_the_scale_of_fewer_shots_comes_from_them():
    """The scale at a shot, from examples left out, is near that of classifiers which never had more."""
    rng = np.random.default_rng(0)
    ratios = []
    for _ in range(30):
        centres, labels = rng.normal(size=(5, 24)), np.repeat(np.arange(5), 16)
        many = FewShotClassifier("proto").fit(draw(rng, centres, labels, 1.6), labels)
        few = FewShotClassifier("proto").fit(draw(rng, centres, labels[::4], 1.6), labels[::4])
        ratios.append(many.at_shot(4).scale_ / few.scale_)
    assert 0.8 < np.median(ratios) < 1.25


def test_the_rejection_rate_holds_on_new_images():
    rng = np.random.default_rng(0)
    rejected, strangers = [], []
    for _ in range(40):
        centres = rng.normal(size=(8, 32))
        labels = np.repeat(np.arange(5), 20)
        fitted = FewShotClassifier("proto", reject=0.1).fit(draw(rng, centres, labels, 0.8), labels)
        rejected.append(1 - fitted.is_known(draw(rng, centres, labels, 0.8)).mean())
        strangers.append(1 - fitted.is_known(draw(rng, centres, 5 + np.arange(60) % 3, 0.8)).mean())
        assert abs(fitted.coverage_.accepted - 0.9) <= 0.011
    assert 0.06 < np.mean(rejected) < 0.14
    assert np.mean(strangers) > 0.8


@settings(max_examples=40)
@given(rate=st.floats(0, 0.99), images=st.integers(1, 60), seed=st.integers(0, 999))
def test_coverage_counts_what_it_says(rate, images, seed):
    rng = np.random.default_rng(seed)
    logits, owner = rng.normal(size=(images, 3)), rng.integers(3, size=images)
    coverage = fit_threshold(logits, owner, rate)
    accepted = logits.max(1) >= coverage.threshold
    assert coverage.accepted == accepted.mean()
    assert 1 - coverage.accepted <= rate + 1e-9
    if accepted.any():
        assert coverage.accuracy == (logits[accepted].argmax(1) == owner[accepted]).mean()
