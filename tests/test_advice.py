"""Advice: what it says of data whose truth is known."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anyshot import BadInput
from anyshot.deploy.advice import advise
from anyshot.deploy.shot_curve import Curve, Pool, fit_curve, forecast

SHOTS = np.array([1, 2, 3, 4, 6, 8])


def data(images=40, classes=6, d=16, spread=1.2, seed=0):
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(classes, d))
    labels = np.repeat(np.arange(classes), images)
    return centres[labels] + spread * rng.normal(size=(len(labels), d)), np.array([f"class {c}" for c in labels])


@settings(max_examples=50, deadline=None)
@given(a=st.floats(0.3, 1.0), gap=st.floats(0.05, 0.6), c=st.floats(0.05, 10))
def test_a_curve_of_its_own_kind_is_found_again(a, gap, c):
    true = Curve(a, min(gap, a) * (1 + c) * 0.9, c)
    found = fit_curve(SHOTS, true(SHOTS))
    np.testing.assert_allclose(found(np.array([16, 32])), true(np.array([16, 32])), atol=0.004)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(0, 1), min_size=6, max_size=6))
def test_a_curve_never_falls_and_never_passes_one(accuracy):
    found = fit_curve(SHOTS, np.array(accuracy))(np.arange(1, 200))
    assert (np.diff(found) >= -1e-12).all()
    assert found.max() <= 1 + 1e-12


def test_the_interval_of_gains_covers_the_truth_about_as_often_as_it_says():
    """Draw many data sets of the same kind; the gain of doubling the images must mostly lie in the interval."""
    rng = np.random.default_rng(0)
    shots = np.array([1, 2, 3, 4, 6, 8, 12])
    true = Curve(0.9, 0.5, 1.0)
    inside = []
    for _ in range(60):
        # disjoint episodes with noise that the shots of an episode share in part, as nested ones do
        shared = rng.normal(0, 0.04, (1, 50))
        episodes = true(shots)[:, None] + shared + rng.normal(0, 0.03, (len(shots), 50))
        told = forecast(shots, episodes, 16, (16,), Pool(images=200, classes=5, way=5, queries=4))
        gain = float(true(np.array([32]))[0] - true(np.array([16]))[0])
        inside.append(told.low[0] <= gain <= told.high[0])
    assert np.mean(inside) >= 0.9


def test_intervals_cover_the_accuracy_on_other_images():
    """Many pools of the same classes: the accuracy on a vast one mostly lies in the interval that each pool gives."""
    truth = advise(*data(500), ["cosine-proto"], shots=[8], episodes=400).curves["cosine-proto"]
    inside = []
    for seed in range(1, 17):
        rng = np.random.default_rng(seed)
        X, y = data(500)
        place = np.concatenate([rng.choice(np.flatnonzero(y == c), 24, replace=False) for c in np.unique(y)])
        curve = advise(X[place], y[place], ["cosine-proto"], episodes=100).curves["cosine-proto"]
        inside += [mine["low"] <= all_["accuracy"] <= mine["high"] for mine, all_ in zip(curve, truth, strict=False)]
    assert np.mean(inside) > 0.88


def test_advice_on_good_data():
    X, y = data()
    found = advise(X, y, episodes=150)
    assert found.shots == [1, 2, 3, 4, 6, 8, 12, 16, 24]
    assert found.best in found.curves
    told = found.forecasts[found.best]
    assert told.now == 40
    assert [shot for shot, _, _ in told.held_out] == [16, 24]
    assert told.error < 0.03
    assert all(low <= gain <= high for low, gain, high in zip(told.low, told.gain, told.high, strict=True))
    assert len(found.mislabelled) <= 2  # of 240
    assert found.duplicates == []
    assert found.same_class == []
    assert {row["class"] for row in found.classes} == set(y)


def test_the_better_head_is_chosen_for_the_expected_shots():
    rng = np.random.default_rng(1)
    X, y = data(spread=0.7)
    X = X * np.exp(rng.normal(0, 1.2, (len(X), 1)))  # lengths say nothing: only directions do
    found = advise(X, y, ["proto", "cosine-proto"], shots=[1, 2], episodes=100)
    assert found.best == found.robust == "cosine-proto"
    assert found.lead["proto"][0] > found.lead["proto"][1] > 0
    assert found.expected_shots == [1, 2]


def test_planted_mistakes_are_found():
    X, y = data(spread=0.6)
    y = y.copy()
    y[5], y[100] = "class 3", "class 0"
    X = np.concatenate([X, X[[7, 130]]])
    y = np.concatenate([y, y[[7, 130]]])
    found = advise(X, y, ["cosine-proto"], episodes=50)
    assert {(one["image"], one["looks_like"]) for one in found.mislabelled} == {(5, "class 0"), (100, "class 2")}
    assert found.duplicates == [(7, 240), (130, 241)]


def test_two_names_of_one_class_are_found():
    X, y = data(spread=0.6)
    y = np.where((y == "class 2") & (np.arange(len(y)) % 2 == 0), "class 2, again", y)
    found = advise(X, y, ["cosine-proto"], episodes=50)
    assert [set(pair["classes"]) for pair in found.same_class] == [{"class 2", "class 2, again"}]
    assert {found.confused[0]["class"], found.confused[0]["taken_for"]} == {"class 2", "class 2, again"}


def test_too_few_images_are_said_to_be():
    X, y = data(images=4)
    found = advise(X, y, episodes=50)
    assert found.forecasts == {}
    assert any("too few to say what more examples would bring" in doubt for doubt in found.doubts)
    X, y = data(images=9, classes=4)
    found = advise(np.r_[X, X[:1] + 1], np.r_[y, ["lonely"]], episodes=50)
    assert any("lonely" in doubt for doubt in found.doubts)
    assert "lonely" not in found.class_names
    with pytest.raises(BadInput, match="at least 2 classes of 3 examples"):
        advise(X[:4], ["a", "b", "c", "d"])
    found = advise(*data(images=12), shots=[1, 50], episodes=50)
    assert any("You expect up to 50 shots" in doubt for doubt in found.doubts)
