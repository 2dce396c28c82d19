"""Episodes: drawn without replacement, from the right classes, evenly, and the same however they are chunked."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anyshot import BadInput
from anyshot.measure.plan import Plan
from anyshot.train.batches import training_batches

COUNTS = st.lists(st.integers(6, 20), min_size=2, max_size=8)


def labels_of(counts: list[int], seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).permutation(np.repeat(np.arange(len(counts)), counts))


@given(COUNTS, st.integers(0, 2**32), st.data())
@settings(max_examples=50)
def test_an_episode_is_without_replacement_and_of_its_classes(counts, seed, data):
    labels = labels_of(counts)
    way = data.draw(st.integers(2, len(counts)))
    shot = data.draw(st.integers(1, min(counts) - 1))
    plan = Plan(labels, way, shot, min(counts) - shot, episodes=7, seed=seed)
    draw = plan.draw(0, 7)
    assert (np.sort(draw.classes, 1)[:, 1:] > np.sort(draw.classes, 1)[:, :-1]).all()
    images = np.concatenate([draw.support, draw.query], -1)
    assert (labels[images] == draw.classes[..., None]).all()
    ordered = np.sort(images.reshape(7, -1), 1)
    assert (ordered[:, 1:] > ordered[:, :-1]).all()
    start = data.draw(st.integers(0, 6))
    for whole, piece in zip(draw, plan.draw(start, 7), strict=True):
        np.testing.assert_array_equal(whole[start:], piece)


@given(COUNTS, st.integers(1, 4), st.integers(0, 2**32), st.data())
@settings(max_examples=50)
def test_support_and_queries_are_of_other_moments(counts, size, seed, data):
    """No burst is in both, each is drawn whole, and what is held out is only asked."""
    labels = labels_of(counts)
    rank = np.array([(labels[:image] == label).sum() for image, label in enumerate(labels)])
    group = labels * 100 + rank // size
    held_out = rank % 2 == 0
    for more in ({"group": group}, {"held_out": held_out}):
        queries = data.draw(st.integers(1, 2))
        shot = int(Plan(labels, 2, 1, queries, 5, seed, **more).feasible.min())
        plan = Plan(labels, 2, shot, queries, 5, seed, **more)
        draw = plan.draw(0, 5)
        assert draw.support.shape == (5, 2, shot)
        images = np.concatenate([draw.support, draw.query], -1)
        assert (labels[images] == draw.classes[..., None]).all()
        assert all(len(np.unique(one)) == one.size for one in images)
        if "group" in more:
            assert not any(np.isin(group[s], group[q]).any() for s, q in zip(draw.support, draw.query, strict=True))
            for drawn in group[draw.support].reshape(-1, shot):  # a burst ends before another begins
                assert (np.diff(drawn) != 0).sum() == len(np.unique(drawn)) - 1
        else:
            assert held_out[draw.query].all()
            assert not held_out[draw.support].any()
        for whole, piece in zip(draw, plan.draw(2, 5), strict=True):
            np.testing.assert_array_equal(whole[2:], piece)
        with pytest.raises(BadInput, match="largest feasible shot"):
            Plan(labels, 2, shot + 30, queries, 5, seed, **more)


def test_draws_are_even():
    plan = Plan(labels_of([8, 12, 10, 9]), way=2, shot=2, queries=2, episodes=20_000)
    draw = plan.draw(0, plan.episodes)
    np.testing.assert_allclose(np.bincount(draw.classes.ravel()) / 10_000, 1, atol=0.04)
    for label, count in enumerate([8, 12, 10, 9]):
        for images in (draw.support[..., 0], draw.support[..., 1], draw.query[..., 1]):
            seen = np.unique(images[draw.classes == label], return_counts=True)[1]
            assert len(seen) == count
            np.testing.assert_allclose(seen * count / 10_000, 1, atol=0.16)
    for whole, piece in zip(draw, plan.draw(1500, 9000), strict=True):  # blocks of rows that begin elsewhere
        np.testing.assert_array_equal(whole[1500:9000], piece)


def test_ids_tell_plans_apart():
    labels = labels_of([10, 10, 10])
    plan = Plan(labels, 2, 3, 4, 50, seed=1)
    assert plan.id == Plan(labels.copy(), 2, 3, 4, 50, seed=1).id
    assert len({plan.id, Plan(labels, 2, 3, 4, 50, seed=2).id, Plan(labels, 2, 3, 5, 50, seed=1).id}) == 3


@given(COUNTS, st.integers(2, 5), st.integers(2, 6), st.integers(0, 1000), st.integers(0, 50))
@settings(max_examples=50)
def test_an_epoch_uses_no_image_twice_and_ends_when_it_must(counts, way, shot, seed, epoch):
    labels = labels_of(counts)
    if sum(count >= shot for count in counts) < way:
        with pytest.raises(BadInput, match="only"):
            training_batches(labels, way, shot, seed, epoch)
        return
    batches = np.array(training_batches(labels, way, shot, seed, epoch))
    assert batches.shape[1:] == (way, shot)
    assert len(np.unique(batches)) == batches.size
    by_class = labels[batches]
    assert (by_class == by_class[..., :1]).all()
    assert all(len(set(batch[:, 0])) == way for batch in by_class)
    left = np.array(counts) - np.bincount(labels[batches.ravel()], minlength=len(counts))
    assert (left >= shot).sum() < way
    np.testing.assert_array_equal(batches, training_batches(labels, way, shot, seed, epoch))


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"way": 4}, "4 ways does not fit 3 classes"),
        ({"way": 1}, "choose 2 to 3 ways"),
        ({"shot": 9}, "'owl' has 12 examples.*largest feasible shot is 8"),
        ({"queries": 12}, r"10 would do \(queries=10 in Python, --queries 10 of the command\)"),
        ({"shot": 0}, "shot must be at least 1"),
        ({"episodes": 0}, "episodes must be at least 1"),
    ],
)
def test_plans_that_do_not_fit_get_a_sentence(wrong, sentence):
    fine = {"way": 2, "shot": 2, "queries": 4, "episodes": 5}
    with pytest.raises(BadInput, match=sentence):
        Plan(labels_of([20, 12, 15]), class_names=["hawk", "owl", "wren"], **(fine | wrong))
