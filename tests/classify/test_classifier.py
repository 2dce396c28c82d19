"""The laws of FewShotClassifier: it predicts what the engine does; adding, merging and removing are exact."""

from itertools import pairwise

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from helpers.classifiers import CHANNELS, POSITIONS, UNTRAINED, assert_same, classifier, examples, trained
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.validation import check_is_fitted

from anyshot import BadInput, FewShotClassifier
from anyshot.classify.keys import hash_rows
from anyshot.measure.engine import compute_recalls
from anyshot.measure.plan import Plan
from anyshot.models.heads import HEADS
from anyshot.models.law import BoundHead
from anyshot.models.readouts import READOUTS


@pytest.mark.parametrize("head", HEADS)
def test_equals_the_evaluation_engine_on_the_same_episodes(head):
    X, y = examples(100, 6)
    plan = Plan(y, way=4, shot=5, queries=3, episodes=12, seed=3)
    parameters = trained(head)
    bank = HEADS[head].embed(torch.from_numpy(X).float(), {})
    floats = {name: torch.tensor(value, dtype=torch.float32) for name, value in parameters.items()}
    engine = compute_recalls(bank, [BoundHead(HEADS[head], floats)], plan, [1, 5])[0]
    draw = plan.draw(0, plan.episodes)
    for index, shot in enumerate((1, 5)):
        for episode in range(plan.episodes):
            support, query = draw.support[episode, :, :shot], draw.query[episode]
            fitted = classifier(head).fit(X[support.ravel()], np.repeat(np.arange(4), shot))
            right = fitted.predict(X[query.ravel()]).reshape(4, 3) == np.arange(4)[:, None]
            np.testing.assert_allclose(right.mean(1), engine[index, episode], atol=1e-6)


@pytest.mark.parametrize("head", HEADS)
@settings(max_examples=5)
@given(data=st.data())
def test_partial_fit_in_any_order_and_batching_equals_fit(head, data):
    X, y = examples(40, 4, seed=data.draw(st.integers(0, 99)))
    order = np.array(data.draw(st.permutations(range(len(y)))))
    cuts = sorted(data.draw(st.lists(st.integers(1, len(y) - 1), max_size=5, unique=True)))
    whole = classifier(head, keep=6).fit(X, y)
    pieces = classifier(head, keep=6)
    for place in np.split(order, cuts):
        pieces.partial_fit(X[place], y[place])
    assert_same(whole, pieces, X)


@settings(max_examples=12)
@given(data=st.data(), head=st.sampled_from(UNTRAINED))
def test_merge_equals_joint_fit(data, head):
    X, y = examples(50, 5, seed=data.draw(st.integers(0, 99)))
    names = np.array(["ant", "bee", "cicada", "dragonfly", "elephant beetle"])[y]
    where = np.array(data.draw(st.lists(st.integers(0, 2), min_size=50, max_size=50)))
    where[:3] = 0, 1, 2
    parts = [FewShotClassifier(head, keep=5).fit(X[where == p], names[where == p]) for p in range(3)]
    merged = parts[0].merge(*parts[1:])
    assert_same(FewShotClassifier(head, keep=5).fit(X, names), merged, X)


def test_merging_several_adds_all_of_them_or_none():
    X, y = examples(40, 4)
    fitted = FewShotClassifier("proto").fit(X[:20], y[:20])
    one, named = FewShotClassifier("proto").fit(X[20:], y[20:]), FewShotClassifier("proto").fit(X, y.astype(str))
    with pytest.raises(BadInput, match="cannot be in one classifier"):
        fitted.merge(one, named)
    assert fitted.support_.counts.tolist() == [5] * 4


@settings(max_examples=10)
@given(gone=st.sets(st.integers(0, 4), min_size=1, max_size=3), head=st.sampled_from(UNTRAINED))
def test_removed_classes_leave_no_trace(gone, head):
    X, y = examples(50, 5)
    stay = ~np.isin(y, list(gone))
    assert_same(
        FewShotClassifier(head).fit(X, y).remove(sorted(gone)), FewShotClassifier(head).fit(X[stay], y[stay]), X
    )


def test_labels_may_be_anything_and_counts_may_differ():
    X, y = examples(40, 4)
    names = np.array(["z", "a", "long name", "m"])
    place = np.r_[
        np.flatnonzero(y == 0)[:1], np.flatnonzero(y == 1)[:7], np.flatnonzero(y == 2)[:2], np.flatnonzero(y == 3)
    ]
    fitted = FewShotClassifier().fit(X[place], names[y[place]])
    assert fitted.classes_.tolist() == ["a", "long name", "m", "z"]
    assert fitted.support_.counts.tolist() == [7, 2, 10, 1]
    assert fitted.score(X, names[y]) > 0.9
    sparse = FewShotClassifier().fit(X[place], np.array([10**9, -5, 77, 3])[y[place]])
    assert sparse.classes_.tolist() == [-5, 3, 77, 10**9]
    fitted.partial_fit(X[:1], ["new class, of a longer name"])
    assert "new class, of a longer name" in fitted.classes_


@pytest.mark.parametrize("head", UNTRAINED)
def test_single_examples_are_enough(head):
    X, y = examples(5, 5)
    fitted = FewShotClassifier(head).fit(X, y)
    assert not fitted.calibrated_
    assert fitted.coverage_ is None
    assert fitted.is_known(X).all()
    assert fitted.predict(X).tolist() == y.tolist()
    assert np.isfinite(fitted.predict_proba(X)).all()


def test_rows_of_a_map_and_the_map_are_the_same():
    X, y = examples()
    rows = X.reshape(len(X), -1)
    for head in UNTRAINED:
        given_maps = FewShotClassifier(head).fit(X, y)
        given_rows = FewShotClassifier(head, positions=POSITIONS).fit(rows, y)
        np.testing.assert_array_equal(given_maps.predict_proba(X), given_rows.predict_proba(rows))
    with pytest.raises(BadInput, match="has 5 positions, but the classifier was made for 4"):
        given_maps.predict(np.zeros((1, 5, CHANNELS)))


def test_projections_are_those_of_the_readouts():
    X, y = examples()
    base, base_y = examples(90, 9, seed=1)
    for name in ("pca", "est"):
        basis = READOUTS[name].fit(torch.from_numpy(base.reshape(90, -1)), torch.from_numpy(base_y), 3)["basis"]
        fitted = FewShotClassifier("proto", readout=f"{name}3", base=(base, base_y), scale=2.0).fit(X, y)
        by_hand = FewShotClassifier("proto", scale=2.0).fit(X.reshape(60, -1) @ basis.numpy(), y)
        np.testing.assert_allclose(fitted.predict_proba(X), by_hand.predict_proba(X.reshape(60, -1) @ basis.numpy()))
        again = FewShotClassifier("proto", readout=f"{name}3", base={"basis": basis.numpy()}, scale=2.0).fit(X, y)
        np.testing.assert_allclose(fitted.predict_proba(X), again.predict_proba(X))
    with pytest.raises(BadInput, match=r"give them as base=\(X, y\)"):
        FewShotClassifier("proto", readout="pca3").fit(X, y)


def test_swapped_is_the_other_score():
    X, y = examples()
    swapped = FewShotClassifier("proto", readout="swapped").fit(X, y)
    np.testing.assert_allclose(swapped.logits(X), FewShotClassifier("cosine-proto").fit(X, y).logits(X))


def test_fewer_shots_are_nested_and_end_at_all():
    X, y = examples()
    fitted = FewShotClassifier().fit(X, y)
    np.testing.assert_allclose(fitted.at_shot(12).predict_proba(X), fitted.predict_proba(X), rtol=1e-9)
    firsts = [set(fitted.support_.limit_shots(shot).exemplars.keys.tolist()) for shot in range(1, 13)]
    assert all(less < more for less, more in pairwise(firsts))
    np.testing.assert_allclose(fitted.support_.limit_shots(12).sums, fitted.support_.sums)


def test_fewer_shots_of_fewer_shots():
    X, y = examples()
    fitted = FewShotClassifier("proto").fit(X, y)
    few = fitted.at_shot(3)
    np.testing.assert_allclose(few.at_shot(3).logits(X), few.logits(X))
    one = fitted.at_shot(1)
    np.testing.assert_allclose(one.at_shot(1).logits(X), one.logits(X))


def test_the_scale_of_fewer_shots_leaves_out_groups():
    """Where examples come as pairs of near-copies, leaving out one of a pair says nothing about new images."""
    rng = np.random.default_rng(2)
    y = np.repeat(np.arange(6), 8)
    X = rng.normal(size=(6, 24))[y] + 1.6 * rng.normal(size=(48, 24))
    twins = np.concatenate([X, X + 0.01 * rng.normal(size=X.shape)])
    doubled = FewShotClassifier("proto").fit(twins, np.r_[y, y])
    for shot in (8, 12, 15):
        assert doubled.at_shot(shot).scale_ < 1.05 * doubled.scale_


def test_frames_of_pandas_and_polars():
    X, y = examples()
    rows, names = X.reshape(len(X), -1), np.array(list("abcde"))[y]
    expected = FewShotClassifier().fit(rows, names).predict(rows).tolist()
    columns = [f"f{i}" for i in range(rows.shape[1])]
    frame = pd.DataFrame(rows, columns=columns)
    assert FewShotClassifier().fit(frame, pd.Series(names)).predict(frame).tolist() == expected
    table = pl.DataFrame(rows, schema=columns)
    fitted = FewShotClassifier().fit(table, pl.Series(names))
    assert fitted.predict(table).tolist() == expected
    assert fitted.feature_names_in_.tolist() == columns


def test_works_inside_scikit_learn():
    X, y = examples(spread=2.0)
    rows = X.reshape(len(X), -1)
    search = GridSearchCV(
        make_pipeline(StandardScaler(), FewShotClassifier(positions=POSITIONS)),
        {"fewshotclassifier__head": ["proto", "cosine-proto", "cosine-frn"]},
        cv=3,
        scoring="neg_log_loss",
    ).fit(rows, y)
    assert search.best_score_ > -np.log(5)
    assert cross_val_score(clone(FewShotClassifier("proto")), rows, y, cv=3).mean() > 0.5


def test_words_of_errors():
    X, y = examples()
    with pytest.raises(BadInput, match=r"did you mean 'cosine-proto'\?"):
        FewShotClassifier("cosine-prot").fit(X, y)
    with pytest.raises(BadInput, match="has to be trained"):
        FewShotClassifier("feat").fit(X, y)
    with pytest.raises(BadInput, match="cannot hold 7 positions"):
        FewShotClassifier(positions=7).fit(X.reshape(len(X), -1), y)
    fitted = FewShotClassifier().fit(X, y)
    with pytest.raises(BadInput, match="no class 9 to remove"):
        fitted.remove([9])
    with pytest.raises(BadInput, match="the last one cannot be removed"):
        fitted.remove(range(5))
    with pytest.raises(BadInput, match=r"same head.*: these have the head posterior and proto"):
        fitted.merge(FewShotClassifier("proto").fit(X, y))
    with pytest.raises(BadInput, match="these have the way to embed mean_pool and max_pool"):
        FewShotClassifier("proto", embed="mean").fit(X, y).merge(FewShotClassifier("proto", embed="max").fit(X, y))
    with pytest.raises(BadInput, match="cannot be in one classifier"):
        fitted.partial_fit(X[:1], ["name"])
    with pytest.raises(BadInput, match="from 1 to 256"):
        fitted.at_shot(257)


@pytest.mark.parametrize("change", [{"reject": 2.0}, {"head": "no-such-head"}, {"positions": 5}])
def test_a_fit_that_fails_changes_nothing(change):
    X, y = examples()
    rows = X.reshape(len(X), -1)
    fitted = FewShotClassifier("proto").fit(pd.DataFrame(rows, columns=[f"f{i}" for i in range(24)]), y)
    expected = fitted.predict_proba(pd.DataFrame(rows, columns=[f"f{i}" for i in range(24)]))
    before = fitted.get_params()
    with pytest.raises((BadInput, ValueError)):
        fitted.set_params(**change).fit(rows[:, :12], y)
    fitted.set_params(**before)
    np.testing.assert_array_equal(
        fitted.predict_proba(pd.DataFrame(rows, columns=[f"f{i}" for i in range(24)])), expected
    )
    never = FewShotClassifier("proto", **{name: value for name, value in change.items() if name != "head"})
    with pytest.raises((BadInput, ValueError)):
        never.fit(rows, y[:-1] if "head" in change else y)
    with pytest.raises(NotFittedError):
        check_is_fitted(never)


def test_memory_is_bounded_whatever_the_number_of_examples():
    X, y = examples(900, 3)
    fitted = FewShotClassifier("proto", keep=8).fit(X, y)
    assert len(fitted.support_.exemplars.vectors) == 24
    np.testing.assert_allclose(fitted.support_.sums[1], X[y == 1].reshape(300, -1).sum(0))


@pytest.mark.parametrize("head", [*HEADS, "posterior"])
def test_what_is_taken_out_is_as_if_never_seen_and_put_back_as_if_never_gone(head):
    X, y = examples(40, 4)
    made = (lambda: FewShotClassifier("posterior")) if head == "posterior" else (lambda: classifier(head))
    fitted, before = made().fit(X, y), made().fit(X, y)
    support = fitted.support_
    key = int(support.exemplars.keys[support.exemplars.class_index == 2][3])
    seen = [image for image in range(len(X)) if int(hash_rows(X[image].reshape(1, -1))[0]) != key]
    taken = fitted.take_out(2, key)
    assert_same(fitted, made().fit(X[seen], y[seen]), X)
    np.testing.assert_array_equal(
        before.support_.exemplars.vectors, support.exemplars.vectors
    )  # nothing was changed in place
    assert_same(fitted.put_back(taken), before, X)
    taken = fitted.take_out(1)
    assert fitted.classes_.tolist() == [0, 2, 3]
    assert_same(fitted.put_back(taken), before, X)


def test_the_last_example_and_the_last_class_can_be_taken_out_and_put_back():
    X, y = examples(4, 2)
    fitted = FewShotClassifier(keep=2).fit(X[:3], y[:3])
    only = int(fitted.support_.exemplars.keys[fitted.support_.exemplars.class_index == 1][0])
    one = fitted.take_out(1, only)
    assert fitted.classes_.tolist() == [0]
    all_of_it = fitted.take_out(0)
    assert not hasattr(fitted, "support_")
    assert fitted.put_back(one).classes_.tolist() == [1]
    assert fitted.put_back(all_of_it).classes_.tolist() == [0, 1]
    assert fitted.support_.counts.tolist() == [2, 1]


def test_what_is_not_there_cannot_be_taken_out():
    X, y = examples(8, 2)
    fitted = FewShotClassifier(keep=2).fit(X, y)
    with pytest.raises(BadInput, match="no class 7"):
        fitted.take_out(7)
    with pytest.raises(BadInput, match="no such example"):
        fitted.take_out(0, 1)
    keys = fitted.support_.exemplars.keys[fitted.support_.exemplars.class_index == 0].tolist()
    fitted.take_out(0, keys[0])
    fitted.take_out(0, keys[1])
    assert fitted.support_.counts.tolist() == [2, 4]
    rest = {int(key): x for key, x in zip(hash_rows(X), X, strict=True) if fitted.find_examples(x[None])[0]}
    (key, x), _ = [(key, x) for key, x in rest.items() if fitted.find_examples(x[None])[0][0][0] == 0]
    with pytest.raises(BadInput, match="its features are needed"):
        fitted.take_out(0, key)
    with pytest.raises(BadInput, match="another example"):
        fitted.take_out(0, key, x + 1)
    fitted.take_out(0, key, x)
    assert fitted.support_.counts.tolist() == [1, 4]


@pytest.mark.parametrize("head", HEADS)
def test_recalls_are_of_examples_left_out_and_average_to_the_accuracy(head):
    X, y = examples(60, 5, spread=1.5)
    fitted = classifier(head).fit(np.concatenate([X, X[:1] + 9]), [*y, 5])
    assert np.isnan(fitted.recalls_[5])
    np.testing.assert_allclose(fitted.recalls_[:5].mean(), fitted.coverage_.accuracy_of_all)


@pytest.mark.parametrize("head", [*UNTRAINED, "posterior"])
def test_the_nearest_example_of_a_picture_is_itself(head):
    X, y = examples(30, 3)
    fitted = FewShotClassifier(head).fit(X, y)
    itself = hash_rows(X[4].reshape(1, -1))[0]
    nearest = fitted.nearest(fitted.vectors(X[4:5])[0], y[4], k=3)
    assert len(set(nearest.tolist())) == 3
    if head != "cosine-frn":  # the nearest to a Gram matrix by its direction alone
        assert nearest[0] == itself


@pytest.mark.parametrize("bad", [np.nan, np.inf, 3e38])
def test_one_number_that_is_none_is_refused_later_too_and_a_huge_one_is_not(bad, recwarn):
    X, y = examples()
    X = X.reshape(len(X), -1).astype(np.float32)
    fitted = FewShotClassifier("proto").fit(X, y)
    X[:2, 3] = bad
    for ask in (lambda: fitted.predict(X[:2]), lambda: fitted.partial_fit(X[:2], y[:2])):
        if np.isfinite(bad):
            ask()
        else:
            with pytest.raises(ValueError, match="Input X contains"):
                ask()
    assert not recwarn.list
