"""Advice: what it says of data whose truth is known."""

import json
import re

import numpy as np
import pytest
import torch
from helpers.classifiers import data
from helpers.shell import run
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import adjusted_rand_score

from anyshot import BadInput, FewShotClassifier
from anyshot.inspect.accuracy import compare_on_holdout
from anyshot.inspect.advice import advise
from anyshot.inspect.case import OtherFeatures
from anyshot.inspect.copies import find_copies
from anyshot.inspect.episodes import EpisodePool
from anyshot.inspect.gains import Curve, fit_curve, forecast_gains
from anyshot.inspect.holdout import measure_holdout
from anyshot.inspect.labels import find_same_classes, rank_suspects
from anyshot.inspect.pages import draw_curves, list_forecast_points, render_advice
from anyshot.measure.groups import find_groups, parse_time, unit_vectors

SHOTS = np.array([1, 2, 3, 4, 6, 8])
PICTURES = np.random.default_rng(0).integers(0, 255, (144, 24, 24, 3)).astype(np.uint8)


@settings(max_examples=50)
@given(a=st.floats(0.3, 1.0), gap=st.floats(0.05, 0.6), c=st.floats(0.05, 10))
def test_a_curve_of_its_own_kind_is_found_again(a, gap, c):
    true = Curve(a, min(gap, a) * (1 + c) * 0.9, c)
    advice = fit_curve(SHOTS, true(SHOTS))
    np.testing.assert_allclose(advice(np.array([16, 32])), true(np.array([16, 32])), atol=0.004)


@settings(max_examples=50)
@given(st.lists(st.floats(0, 1), min_size=6, max_size=6))
def test_a_curve_never_falls_and_never_passes_one(accuracy):
    advice = fit_curve(SHOTS, np.array(accuracy))(np.arange(1, 200))
    assert (np.diff(advice) >= -1e-12).all()
    assert advice.max() <= 1 + 1e-12


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
        ahead = forecast_gains(shots, episodes, 16, (16,), EpisodePool(images=200, classes=5, way=5, queries=4))
        gain = float(true(np.array([32]))[0] - true(np.array([16]))[0])
        inside.append(ahead.low[0] <= gain <= ahead.high[0])
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
    advice = advise(X, y, episodes=150)
    assert advice.shots == [1, 2, 3, 4, 6, 8, 12, 16, 24]
    assert advice.best in advice.curves
    ahead = advice.forecasts[advice.best]
    assert ahead.now == 40
    assert [shot for shot, _, _ in ahead.held_out] == [16, 24]
    assert ahead.error < 0.03
    assert all(low <= gain <= high for low, gain, high in zip(ahead.low, ahead.gain, ahead.high, strict=True))
    assert len(advice.mislabelled) <= 8  # of 240, of which 23 are not recognised
    assert len(advice.unlikely) <= 5
    assert advice.left_out.in_groups is None
    assert advice.duplicates == []
    assert advice.same_class == []
    assert {row["class"] for row in advice.classes} == set(y)


def test_the_better_head_is_chosen_for_the_expected_shots():
    rng = np.random.default_rng(1)
    X, y = data(spread=0.7)
    X = X * np.exp(rng.normal(0, 1.2, (len(X), 1)))  # lengths say nothing: only directions do
    advice = advise(X, y, ["proto", "cosine-proto"], shots=[1, 2], episodes=100)
    assert advice.best == advice.robust == "cosine-proto"
    assert advice.lead["proto"][0] > advice.lead["proto"][1] > 0
    assert advice.expected_shots == [1, 2]
    assert "it is the most accurate on average over 1 and 2 shots" in advice.headline + advice.to_text()
    once = advise(X, y, ["proto", "cosine-proto"], shots=[1], episodes=100)
    assert "it is the most accurate at 1 shot (" in once.to_text()


def test_the_default_head_is_left_only_for_one_that_is_surely_better():
    """In pools without structure another head is often ahead by chance, and seldom recommended."""
    heads, default = ["proto", "cosine-proto"], {"proto": {"scale": torch.tensor(1.0)}}  # that of a trained model
    leads, y = [], np.repeat(["a", "b", "c"], 10)
    for seed in range(8):
        X = np.random.default_rng(seed).normal(size=(30, 8))
        advice = advise(X, y, heads, shots=[4], episodes=20, parameters=default)
        leads += [advice.lead["cosine-proto"][0]] if advice.best == "proto" else []
    assert len(leads) >= 7
    assert min(leads) < 0  # behind by chance, and recommended all the same
    X, y = data(spread=0.7)
    lengths = np.exp(np.random.default_rng(1).normal(0, 1.2, (len(X), 1)))
    assert advise(X * lengths, y, heads, shots=[1], episodes=60, parameters=default).best == "cosine-proto"


def test_levels_and_differences_are_known_differently():
    X, y = data(images=10, spread=1.5)
    advice = advise(X, y, ["cosine-proto", "proto"], episodes=60)
    (doubt,) = (doubt for doubt in advice.doubts if "level of the accuracies" in doubt)
    half = max((row["high"] - row["low"]) / 2 for row in advice.curves[advice.best])
    assert f"about {100 * half:.0f} points only" in doubt
    ((_, half_of_lead),) = advice.lead.values()
    assert half_of_lead < half


def test_planted_mistakes_are_found():
    X, y = data(spread=0.6)
    y = y.copy()
    y[5], y[100] = "class 3", "class 0"
    X = np.concatenate([X, X[[7, 130]]])
    y = np.concatenate([y, y[[7]], ["class 5"]])  # a copy under another label is a conflict, and comes first
    advice = advise(X, y, ["cosine-proto"], episodes=50, names=[f"{i}.jpg" for i in range(len(y))])
    for ranking in (advice.unlikely, advice.mislabelled):
        assert {(one["name"], one["looks_like"]) for one in ranking[:3]} == {
            ("5.jpg", "class 0"),
            ("100.jpg", "class 2"),
            ("241.jpg", "class 3"),
        }
    pairs = [(row["one"]["image"], row["other"]["image"], row["conflict"]) for row in advice.duplicates]
    assert pairs == [(130, 241, True), (7, 240, False)]
    assert "Copies under the same label can stay: doing nothing is fine." in advice.to_text()


def test_more_than_ten_suspects_are_shown():
    X, y = data(spread=0.4)
    wrong = np.arange(0, 240, 16)  # 15 of them
    y = np.where(np.isin(np.arange(240), wrong), np.roll(y, 80), y)
    advice = advise(X, y, ["cosine-proto"], episodes=30, names=[f"{i}.jpg" for i in range(240)])
    assert {one["image"] for one in advice.mislabelled} >= set(wrong.tolist())
    shown = advice.to_text().partition("Labels that may be wrong")[2].partition("The same example twice")[0]
    assert all(f"  {image}.jpg" in shown for image in wrong)
    own = [one["own_probability"] for one in advice.unlikely]
    assert own == sorted(own)
    others = [one["probability"] for one in advice.mislabelled]
    assert others == sorted(others, reverse=True)


def test_it_is_said_where_not_all_copies_are_listed():
    X, y = data()
    advice = advise(np.r_[X, X[:50]], np.r_[y, y[:50]], ["cosine-proto"], episodes=20)
    assert len(advice.duplicates) == 50
    assert "The first 40 are listed; all of them are in advice.json" in advice.to_text()
    few = advise(np.r_[X, X[:9]], np.r_[y, y[:9]], ["cosine-proto"], episodes=20)
    assert "are listed; all of them" not in few.to_text()


def test_the_two_rankings_find_two_kinds_of_mistakes():
    """Random mistakes are the least likely under their own label, above images that lie between two classes; those that
    are surely of another class are told by its probability."""
    owner = np.array([0, 0, 1])
    scores = np.array([[-9.0, 0.0, 0.1, 0.0], [-2.0, 3.0, -5.0, -5.0], [0.0, 5.0, 0.0, 0.0]])
    scores = np.concatenate([scores, np.eye(4).repeat(10, 0) * 8])
    owner = np.concatenate([owner, np.arange(4).repeat(10)])
    suspects = rank_suspects(scores, owner, np.arange(len(owner)))
    assert min(suspects, key=lambda one: one.log_own).image == 0
    assert max(suspects, key=lambda one: one.other).image == 1


@pytest.mark.parametrize("d", [2, 16, 64])
def test_chance_makes_neither_copies_nor_bursts(d):
    X, y = data(d=d, images=60)
    codes = np.unique(y, return_inverse=True)[1]
    assert find_copies(X, codes) == []
    assert find_groups(X, codes).evidence == ()


def bursts(pieces=4, size=6, classes=4, seed=0):
    """Classes whose images are some moments, with photos that hardly differ."""
    rng = np.random.default_rng(seed)
    moments, labels = data(images=pieces, classes=classes, d=32, spread=2.5, seed=seed)
    X = moments.repeat(size, 0) + 0.1 * rng.normal(size=(len(moments) * size, 32))
    return X, labels.repeat(size), np.arange(len(moments)).repeat(size)


def test_near_copies_are_not_joined_with_other_examples():
    """Half of the examples have a near-copy, and some of the others are nearer to each other than to the rest."""
    for seed in range(3):
        rng = np.random.default_rng(seed)
        codes = np.repeat(np.arange(8), 15)
        X = 1.2 * rng.normal(size=(8, 64))[codes] + rng.uniform(0.4, 1.4, (120, 1)) * rng.normal(size=(120, 64))
        copied = rng.permutation(120)[:60]
        both = np.r_[X, X[copied] + 0.55 * rng.normal(size=(60, 64))]
        found = find_groups(unit_vectors(both), np.r_[codes, codes[copied]]).group
        assert adjusted_rand_score(np.r_[np.arange(120), copied], found) > 0.9
        few = np.r_[:120, 120:132]  # nor are others called copies, where copies are few
        pairs = {pair[:2] for pair in find_copies(unit_vectors(both[few]), np.r_[codes, codes[copied[:12]]])}
        assert len(pairs - {(one, 120 + place) for place, one in enumerate(copied[:12])}) <= 6


def test_bursts_are_told_and_left_out_whole():
    X, y, moment = bursts()
    advice = advise(X, y, ["cosine-proto"], episodes=30)
    assert advice.left_out.evidence == ("similar features",)
    assert advice.left_out.groups == 16
    assert advice.left_out.alone > 0.95
    assert advice.left_out.in_groups < advice.left_out.alone - 0.1
    assert advice.accuracy == advice.left_out.in_groups
    right = []  # the same by hand: all but one moment, of every class one, at a time
    codes = np.unique(y, return_inverse=True)[1]
    for one in range(16):
        fitted = FewShotClassifier("cosine-proto").fit(X[moment != one], codes[moment != one])
        right += (fitted.predict(X[moment == one]) == codes[moment == one]).tolist()
    assert abs(advice.left_out.in_groups - np.mean(right)) < 0.15
    words = advice.to_text()
    assert "with whole groups left out it is" in words
    assert "other days" in words


def test_times_tell_of_bursts():
    X, y = data(images=12, d=32, classes=3)
    codes = np.unique(y, return_inverse=True)[1]
    times = [3600.0 * (i // 3) + 5 * (i % 3) for i in range(len(y))]
    assert find_groups(X, codes, times=times).count == 12
    named = [f"IMG_20240131_12{i // 3:02}{5 * (i % 3):02}.jpg" for i in range(len(y))]
    advice = find_groups(X, codes, named)
    assert advice.evidence == ("times",)
    np.testing.assert_array_equal(advice.group, np.arange(len(y)) // 3)
    assert parse_time("IMG_20249931_120501.jpg") is None


def test_a_class_that_is_one_burst_is_said_to_be():
    X, y, _ = bursts(pieces=3)
    once = np.repeat(X[:1], 6, 0) + 5 + 0.1 * np.random.default_rng(1).normal(size=(6, 32))
    advice = advise(np.r_[X, once], np.r_[y, ["once"] * 6], ["cosine-proto"], episodes=30)
    assert any("class is a single group of examples that belong together (once)" in doubt for doubt in advice.doubts)
    assert next(row for row in advice.classes if row["class"] == "once")["recall"] is None


def test_a_test_on_examples_held_out_comes_with_the_advice():
    X, y = data(images=60)
    first, later = np.arange(len(y)) % 60 < 30, np.arange(len(y)) % 60 >= 30
    strange = X[later] + np.random.default_rng(3).normal(size=X[later].shape)  # of another day
    advice = advise(X[first], y[first], ["proto", "cosine-proto"], episodes=30, holdout=(strange, y[later]))
    fitted = FewShotClassifier(advice.best).fit(X[first], y[first])
    assert advice.accuracy == advice.holdout.accuracy[0] == np.mean(fitted.predict(strange) == y[later])
    assert advice.holdout_accuracies.keys() == {"proto", "cosine-proto"}
    assert advice.to_dict()["holdout"]["accuracy"][0] == advice.accuracy
    for words in (advice.to_text(), advice.to_markdown(), render_advice(advice)):
        assert f"{advice.accuracy:.1%}" in words


def test_a_head_that_is_surely_ahead_on_the_examples_held_out_is_named():
    """Examples of longer vectors are nearer to the class of the longest ones; the cosine sees directions only."""
    rng, y = np.random.default_rng(0), np.repeat(["a", "b", "c", "d"], 100)
    X, later = (np.eye(4).repeat(100, 0) + 0.4 * rng.normal(size=(400, 4)) for _ in range(2))
    X *= np.linspace(1, 2, 4).repeat(100)[:, None]
    fitted = {head: FewShotClassifier(head).fit(X, y) for head in ("proto", "cosine-proto")}
    by_proto, by_cosine = ((classifier.predict(later) == y).astype(float) for classifier in fitted.values())
    gain = by_cosine - by_proto
    tests = {head: measure_holdout(classifier, later, y.tolist()) for head, classifier in fitted.items()}
    words = f"{100 * gain.mean():+.1f} ± {196 * gain.std() / 20:.1f}"
    (sentence,), table = compare_on_holdout(tests, "proto")
    assert f"cosine-proto ({words} points) is surely ahead of proto" in sentence
    assert [row[2] for row in table.rows] == [words, ""]
    assert compare_on_holdout(tests, "cosine-proto")[0] == []


def of_another_day():
    """Classes 0 and 1 are told apart at hand, by the last number; on another day that is the same for both, and class 5
    is noisier at hand than any other."""
    X, y = data(images=24, spread=0.4)
    codes = np.repeat(np.arange(6), 24)
    X[codes == 1, :-1] += X[codes == 0, :-1].mean(0) - X[codes == 1, :-1].mean(0)
    X[codes == 0, -1], X[codes == 1, -1] = 3, -3
    later = X.copy()
    later[codes <= 1, -1] = 0
    X[codes == 5] += np.random.default_rng(1).normal(size=X[codes == 5].shape)
    return X, y, later


def test_with_a_holdout_all_that_can_be_judged_on_it_is():
    X, y, later = of_another_day()
    others = y != "class 4"  # of which nothing is held out
    alone = advise(X, y, ["cosine-proto"], episodes=60)
    advice = advise(X, y, ["cosine-proto"], episodes=60, holdout=(later[others], y[others]))
    assert alone.classes[0]["class"] == "class 5"
    assert {row["class"] for row in advice.classes[:2]} == {"class 0", "class 1"}
    assert {row["class"]: row["judged_on"] for row in advice.classes}["class 4"] == "at hand"
    assert advice.classes[0]["judged_on"] == advice.judged_on == "held out"
    recalls = {one.name: one.recall[0] for one in advice.holdout.classes}
    assert all(row["recall"] == recalls[row["class"]] for row in advice.classes if row["class"] != "class 4")
    assert {(one["class"], one["taken_for"]) for one in advice.confused[:2]} <= {
        ("class 0", "class 1"),
        ("class 1", "class 0"),
    }
    ahead = advice.forecasts["cosine-proto"]
    assert abs(ahead.accuracy - advice.accuracy) < 0.05 < alone.forecasts["cosine-proto"].accuracy - advice.accuracy
    words = advice.to_text()
    assert "asked of those held out" in words
    assert "class 4" in next(doubt for doubt in advice.doubts if "no example held out" in doubt)
    assert "Examples of other days rather than more like these" in words
    assert advice.accuracy < 0.85 < advice.left_out.accuracy  # these features tell what they have seen
    assert "Better features" not in words
    assert "Nothing" not in words.partition("What these data cannot say")[2]
    assert "Nothing" not in alone.to_text().partition("What these data cannot say")[2]


def test_beside_examples_held_out_those_at_hand_have_the_accuracy_that_fit_says():
    X, y, _ = bursts()
    options = {"holdout": (X + 8 * np.random.default_rng(1).normal(size=X.shape), y), "groups": np.arange(len(y)) // 4}
    advice = advise(X, y, ["cosine-proto"], episodes=9, **options)
    assert advice.left_out.alone - advice.left_out.accuracy > 0.01
    assert f"{advice.left_out.accuracy:.1%} of those at hand are recognised" in advice.to_text()


def test_a_class_that_is_nearly_one_burst_is_asked_what_is_beside_it():
    X, y, _ = bursts(pieces=6, size=4)  # of 24 images a class six would be asked
    rng = np.random.default_rng(1)
    once = np.repeat(X[:1], 22, 0) + 5 + 0.1 * rng.normal(size=(22, 32))
    many = np.r_[X, once, X[:2] - 5], np.r_[y, ["nearly once"] * 24]
    advice = advise(*many, ["cosine-proto"], episodes=20)
    assert advice.left_out.evidence == ("similar features",)
    assert 1 <= advice.queries <= 2


def test_curves_of_bursts_are_drawn_from_whole_bursts():
    """Else the support holds a sibling of nearly every query, and all looks solved."""
    X, y, _ = bursts(pieces=6, size=4)
    advice = advise(X, y, ["cosine-proto"], episodes=60)
    each = FewShotClassifier("cosine-proto")
    leaking = np.mean([each.fit(X[i::4], y[i::4]).score(X[i + 1 :: 4], y[i + 1 :: 4]) for i in range(3)])
    assert advice.curves["cosine-proto"][-1]["accuracy"] < leaking - 0.1
    assert abs(advice.curves["cosine-proto"][-1]["accuracy"] - advice.left_out.in_groups) < 0.15
    assert "groups drawn whole" in advice.to_text()


def test_a_classifier_of_bursts_states_the_accuracy_with_whole_bursts_left_out():
    """With its siblings in the support, a photo left out is always recognised."""
    X, y, _ = bursts(pieces=4, size=6)
    fitted = FewShotClassifier("cosine-proto").fit(X, y)
    assert fitted.coverage_.accuracy_of_all < 0.65  # with siblings 0.95 and more


def test_progress_is_told_to_the_end():
    shares = []
    X, y, later = of_another_day()
    advise(X, y, ["posterior"], episodes=20, holdout=(later, y), progress=shares.append, picture=lambda i: PICTURES[i])
    assert sum(shares) == pytest.approx(1)


def test_progress_is_weighed_by_cost():
    """A head that is fitted to every support takes nearly all of the time; it runs in the first two chunks."""
    shares = []
    advise(*data(images=6, classes=3), ["posterior", "cosine-proto"], episodes=32, progress=shares.append)
    assert sum(shares[:2]) > 0.8


def test_a_flat_curve_at_a_low_accuracy_asks_for_better_features():
    X, y = data(images=60, classes=8, d=4, spread=2.5)
    advice = advise(X, y, ["cosine-proto"], episodes=60)
    assert advice.accuracy < 0.6
    assert advice.features_are_the_limit
    assert "Better features, not more labels" in advice.to_text()
    other = OtherFeatures("efficientnet-lite0", 0.5, 0.9, 8, 8, 96)
    better = advise(X, y, ["cosine-proto"], episodes=60, other_features=lambda head, accuracy: other)
    assert "90.0% where these features are on 50.0%" in better.to_text()
    assert not advise(*data(images=60, spread=0.6), ["cosine-proto"], episodes=60).features_are_the_limit


def test_forecasts_go_to_twice_the_images_and_are_never_sure_of_nothing():
    ahead = advise(*data(images=12), ["cosine-proto"], episodes=60).forecasts["cosine-proto"]
    assert ahead.more == (1, 2, 5, 10, 12)
    perfect = advise(*data(images=6, spread=0.01), ["cosine-proto"], episodes=60).forecasts["cosine-proto"]
    assert perfect.gain[-1] == 0
    assert perfect.high[-1] > 0.005


def test_a_shot_without_a_mistake_is_not_trusted_alone():
    """Five images of each class may all be right by chance: the smaller shots still say that more would help."""
    rng, shots = np.random.default_rng(0), np.array([1, 2, 3, 4])
    right = rng.binomial(5, np.array([[0.87], [0.92], [0.97], [1.0]]), (4, 100)) / 5
    ahead = forecast_gains(shots, right, 5, (5,), EpisodePool(images=5, classes=5, way=5, queries=1))
    assert 0.005 < ahead.gain[0] < 0.03
    assert ahead.high[0] > 0.025


def test_noise_does_not_promise_gains():
    """Of shots that are as noisy as five images make them, the curve is no longer taken at its word."""
    true, rng = Curve(0.9, 0.3, 0.8), np.random.default_rng(0)
    shots, wanted = np.array([1, 2, 3, 4]), np.array([5, 10])
    errors = {noise: [] for noise in (0.0, 0.03**2)}
    for _ in range(200):
        seen = true(shots) + rng.normal(0, 0.03, 4)
        for noise, missed in errors.items():
            missed.append(np.diff(fit_curve(shots, seen, noise=noise)(wanted) - true(wanted))[0])
    doubted, believed = np.abs(errors[0.03**2]).mean(), np.abs(errors[0.0]).mean()
    assert doubted < 0.8 * believed


def test_names_are_escaped_and_pictures_inside_the_page():
    X, y = data(spread=0.6)
    y = y.copy()
    y[5] = "class 3"
    names = [f"<b>{i}</b>&.jpg" for i in range(len(y))]
    advice = advise(X, np.char.add(y, "<script>"), ["cosine-proto"], episodes=30, names=names)
    assert advice.pictures[0] == 5
    page = render_advice(advice, {5: b"jpeg"})
    assert page.count("<script") == 1  # our own
    assert "<b>5" not in page
    assert "&lt;b&gt;5&lt;/b&gt;&amp;.jpg" in page
    assert 'src="data:image/jpeg;base64,anBlZw=="' in page
    assert "http" not in page.replace("http://www.w3.org/", "")


def test_a_suspect_is_listed_once_with_both_reasons():
    X, y = data(spread=0.6)
    y = np.where(np.isin(np.arange(len(y)), [5, 100]), np.roll(y, 80), y)
    advice = advise(X, y, ["cosine-proto"], episodes=30, names=[f"{i}.jpg" for i in range(len(y))])
    assert {5, 100} <= {row["image"] for row in advice.unlikely} & {row["image"] for row in advice.mislabelled}
    assert str(advice) == advice.to_text()
    for number in (5, 100):
        (line,) = (line for line in str(advice).splitlines() if line.startswith(f"    {number}.jpg "))
        assert line.endswith("unlikely label, sure of another")
    assert "advice.html" not in render_advice(advice)


def test_two_names_of_one_class_are_found():
    X, y = data(spread=0.6)
    y = np.where((y == "class 2") & (np.arange(len(y)) % 2 == 0), "class 2, again", y)
    advice = advise(X, y, ["cosine-proto"], episodes=50)
    (pair,) = advice.same_class
    assert set(pair["classes"]) == {"class 2", "class 2, again"}
    share = f"{pair['told_apart']:.0%} of their examples at hand are right (50% by chance). Are they one class?"
    assert f"are hardly told apart: asked which of the two it is, {share}" in advice.to_text()
    assert {advice.confused[0]["class"], advice.confused[0]["taken_for"]} == {"class 2", "class 2, again"}


def test_two_classes_are_not_called_one_where_few_groups_speak_for_it():
    """Of 12 examples each half are told from the other class: that may be chance, if they are three moments of each."""
    labels, right = np.repeat([0, 1], 12), np.tile([1, 0], 12)
    scores = np.where(labels[:, None] == 0, np.stack([right, 1 - right], 1), np.stack([1 - right, right], 1)) * 1.0
    assert [pair[:2] for pair in find_same_classes(scores, labels, np.arange(24))] == [(0, 1)]
    assert find_same_classes(scores, labels, np.arange(24) // 4) == []


def test_too_few_images_are_said_to_be():
    X, y = data(images=4)
    advice = advise(X, y, episodes=50)
    assert advice.forecasts == {}
    assert any("too few to say what more examples would bring" in doubt for doubt in advice.doubts)
    X, y = data(images=9, classes=4)
    advice = advise(np.r_[X, X[:1] + 1], np.r_[y, ["lonely"]], episodes=50)
    assert any("1 class has fewer than 3 examples (lonely)" in doubt for doubt in advice.doubts)
    assert "lonely" not in advice.class_names
    with pytest.raises(BadInput, match="at least 2 classes of 3 examples"):
        advise(X[:4], ["a", "b", "c", "d"])
    advice = advise(*data(images=12), shots=[1, 50], episodes=50)
    assert any("You expect up to 50 shots" in doubt for doubt in advice.doubts)


def test_bursts_looked_for_some_images_at_a_time_are_the_same(monkeypatch):
    rng = np.random.default_rng(0)
    codes = np.repeat(np.arange(3), 40)
    moments = 3.0 * rng.normal(size=(60, 16)).repeat(2, 0)
    X = moments + 0.01 * rng.normal(size=(120, 16))
    names = [f"p{number:03d}.jpg" for number in range(120)]
    whole = find_groups(X, codes, names)
    monkeypatch.setattr("anyshot.measure.groups.PART", 7)
    parts = find_groups(X, codes, names)
    assert whole.count > 1
    assert (parts.evidence, parts.group.tolist()) == (whole.evidence, whole.group.tolist())


def test_fit_and_advise_give_one_accuracy(tmp_path, monkeypatch):
    """Of the same examples and head, with a class of two examples, and classes of more than a classifier keeps."""
    monkeypatch.chdir(tmp_path)
    X, y, _ = bursts(pieces=10, size=4)
    X, y = np.r_[X, X[:2] + 3].astype(np.float32), np.r_[y, ["rare"] * 2]
    np.savez("all.npz", features=X, labels=y)
    later = X + np.random.default_rng(1).normal(size=X.shape).astype(np.float32)
    np.savez("later.npz", features=later, labels=y)
    words = run("anyshot fit all.npz -o model", monkeypatch).out
    advice = advise(X, y, ["posterior"], episodes=20, holdout=(later, y))
    assert f"with whole groups left out it is {advice.left_out.in_groups:.1%}" in words
    assert f"Left out and asked as if they were new, {advice.left_out.alone:.1%}" in words
    result = json.loads(run("anyshot test model later.npz --json", monkeypatch).out)
    assert result["accuracy"] == pytest.approx(advice.holdout.accuracy)


def test_the_number_of_the_default_head_is_given_too():
    rng = np.random.default_rng(1)
    X, y = data(images=6, classes=8, spread=1.5)
    X[:, 3:] *= 0.01
    X[:, 0] *= 10 * np.exp(rng.normal(0, 1.0, len(X)))
    advice = advise(X, y, ["posterior", "proto", "cosine-proto"], episodes=60)
    assert advice.left_out_by_head.keys() == {advice.best, "posterior"}
    assert f"{advice.left_out_by_head['posterior']:.1%}" in advice.to_text()


def test_conflicts_are_weighed_before_the_features():
    """Poor features, and copies under two labels: the labels are to be looked at first, whatever the curve says."""
    X, y = data(images=60, classes=8, d=4, spread=2.5)
    assert advise(X, y, ["cosine-proto"], episodes=60).features_are_the_limit
    advice = advise(np.r_[X, X[:18]], np.r_[y, ["class 5"] * 18], ["cosine-proto"], episodes=60)
    assert advice.conflicts == 18
    assert advice.labels_first
    assert not advice.features_are_the_limit
    assert "Better features, not more labels" not in advice.to_text()
    assert "Check the labels first: 18 pairs of copies have two labels" in advice.headline


def test_a_mislabelled_group_is_suspected_as_a_whole():
    """Left out alone, each of its members would be recognised by its siblings under the wrong label."""
    X, y, moment = bursts(pieces=8, size=5)
    X = X + 15 * np.eye(32)[np.unique(y, return_inverse=True)[1]]
    y = np.where(moment == 3, "class 2", y)
    advice = advise(X, y, ["cosine-proto"], episodes=20)
    assert {row["image"] for row in advice.mislabelled[:5]} == set(np.flatnonzero(moment == 3).tolist())


def test_groups_can_be_named():
    X, y = data(images=12)
    advice = advise(X, y, ["cosine-proto"], episodes=20, groups=np.arange(len(y)) // 3)
    assert (advice.left_out.groups, advice.left_out.evidence) == (24, ("the names you gave",))


def test_examples_without_pictures_are_not_called_such():
    X, y, _ = bursts()
    advice = advise(np.r_[X, X[:1]], np.r_[y, ["class 3"]], ["cosine-proto"], episodes=20)
    assert not re.search("burst|photo|picture|image|scene", advice.to_text())


def test_the_page_of_few_examples_counts_whole_ones_and_says_where_to_add_some():
    X, y = data(images=3)
    advice = advise(X[:-1], y[:-1], ["cosine-proto", "proto"], episodes=40)
    page = render_advice(advice)
    assert ">2<" in page
    assert ">1.1<" not in page
    assert "Add examples of the smallest classes first: class 5 (2), class 0 (3)" in page
    assert (
        "it is the default of <code>anyshot fit</code>" in page
        or "is the most accurate on average over 1 and 2 shots" in page
    )


def test_the_headline_promises_no_gain_above_all_right():
    """The gain is counted from the curve, which may be below the accuracy of the examples that were left out."""
    X, y = data(images=10, classes=2, d=6, spread=0.35)
    advice = advise(X, y, ["cosine-proto"], episodes=60)
    assert advice.accuracy + advice.forecasts["cosine-proto"].gain[-1] > 1
    assert "are expected to bring" not in advice.headline
    assert "hardly any is mistaken; those of other days may be: --holdout FILE" in advice.headline
    tested = advise(X, y, ["cosine-proto"], episodes=60, holdout=(X + 0.1, y))
    assert "--holdout" not in tested.headline


def test_the_curves_say_whose_median_they_forecast_from():
    """Classes of fewer than three examples are not in the curves, but in the median that logistic regression needs."""
    X, y = data(images=12)
    assert "(the median class has as many)" in advise(X, y, ["cosine-proto"], episodes=20).to_text()
    few = np.r_[np.arange(len(y)), np.arange(2)]
    y = np.r_[y, ["rare", "rare"]]
    assert "(the median of the 6 classes of the curves)" in advise(X[few], y, ["cosine-proto"], episodes=20).to_text()


def test_the_forecast_continues_its_curve():
    advice = advise(*data(images=12), ["cosine-proto", "proto"], episodes=40)
    svg = draw_curves(advice)
    assert all(f">{head}<" in svg for head in advice.curves)  # legends are not cut off
    first = list_forecast_points(advice)[0]
    assert (first["shot"], first["accuracy"]) == tuple(advice.curves[advice.best][-1][k] for k in ("shot", "accuracy"))
