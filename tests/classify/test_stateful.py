"""A classifier against a model of it, a dictionary of sets of examples, under any order of operations; and groups.

ANYSHOT_EXAMPLES is the number of orders that are tried for each head; `make hostile` asks for 250.
"""

import copy
import os
import tempfile
import time
from collections import defaultdict
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from helpers.classifiers import UNTRAINED, examples
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from PIL import Image

from anyshot import BadInput, FewShotClassifier, ImageClassifier
from anyshot.classify.keys import hash_rows
from anyshot.measure.groups import find_groups

POOL = np.random.default_rng(0).normal(size=(24, 32))  # rows of fewer numbers are not recognised as float16
PAIRS = st.lists(st.tuples(st.integers(0, 23), st.sampled_from("abc")), min_size=1, max_size=8)


class ClassifierModel(RuleBasedStateMachine):
    """Examples are numbers of rows of POOL; the model is a set of them for each class."""

    head = "proto"

    def __init__(self):
        super().__init__()
        self.classifier, self.sets = self.new(keep=4), defaultdict(set)
        self.removed = []

    def new(self, keep):
        return FewShotClassifier(self.head, keep=keep, positions=4 if self.head == "frn" else 1)

    def _add(self, pairs):
        for image, label in pairs:
            self.sets[label].add(image)

    @rule(pairs=PAIRS)
    def fit(self, pairs):
        self.sets.clear()
        self.removed = []
        self.classifier.fit(*rows_of(pairs))
        self._add(pairs)

    @rule(pairs=PAIRS, as_half=st.booleans())
    def add(self, pairs, as_half):
        X, y = rows_of(pairs)
        before = sum(map(len, self.sets.values()))
        self.classifier.partial_fit(X.astype(np.float16).astype(np.float32) if as_half else X, y)
        self._add(pairs)
        assert self.classifier.n_repeated_ == len(pairs) - (sum(map(len, self.sets.values())) - before)

    @rule(pairs=PAIRS)
    def merge(self, pairs):
        other = self.new(keep=24).fit(*rows_of(pairs))
        if not self.sets:
            self.classifier.fit(*rows_of(pairs))
        else:
            self.classifier.merge(other)
        self._add(pairs)

    @precondition(lambda self: len(self.sets) > 1)
    @rule(data=st.data())
    def remove_class(self, data):
        label = data.draw(st.sampled_from(sorted(self.sets)))
        self.removed.append((self.classifier.take_out(label), label, self.sets.pop(label)))

    @precondition(lambda self: self.sets)
    @rule(data=st.data())
    def remove_example(self, data):
        label = data.draw(st.sampled_from(sorted(self.sets)))
        image = data.draw(st.sampled_from(sorted(self.sets[label])))
        found = dict(self.classifier.find_examples(POOL[[image]])[0])
        part = self.classifier.take_out(label, found[label], POOL[image])
        self.removed.append((part, label, {image}))
        self.sets[label].remove(image)
        if not self.sets[label]:
            del self.sets[label]

    @precondition(lambda self: self.removed)
    @rule()
    def undo(self):
        part, label, images = self.removed.pop()
        self.classifier.put_back(part)
        self.sets[label] |= images

    @precondition(lambda self: self.sets)
    @rule()
    def save_and_load(self):
        with tempfile.TemporaryDirectory() as folder:
            self.classifier.save(Path(folder) / "classifier")
            self.classifier = FewShotClassifier.load(Path(folder) / "classifier")

    @precondition(lambda self: self.sets)
    @rule()
    def copy(self):
        self.classifier = copy.copy(self.classifier)

    @invariant()
    def is_the_model(self):
        if not self.sets:
            return
        support = self.classifier.support_
        labels = sorted(self.sets)
        assert support.labels.tolist() == labels
        assert support.counts.tolist() == [len(self.sets[label]) for label in labels]
        vectors = self.classifier.vectors(POOL)
        sums = np.stack([vectors[sorted(self.sets[label])].sum(0) for label in labels])
        np.testing.assert_allclose(support.sums, sums, atol=2e-2)  # those that came as float16 are rounded
        keys, owner = support.all_keys
        for place, label in enumerate(labels):
            assert set(keys[owner == place].tolist()) == set(hash_rows(POOL[sorted(self.sets[label])]).tolist())
            assert len(support.exemplars.keys[support.exemplars.class_index == place]) <= 4


def rows_of(pairs):
    return POOL[[image for image, _ in pairs]], np.array([label for _, label in pairs])


EXAMPLES = int(os.environ.get("ANYSHOT_EXAMPLES", "0"))


def model_of(name, examples):
    """Return the tests of a head, with so many sequences of operations."""
    machine = type(f"ClassifierModel_{name}", (ClassifierModel,), {"head": name})
    machine.TestCase.settings = settings(max_examples=EXAMPLES or examples, stateful_step_count=12)
    return machine.TestCase


TestProto = model_of("proto", 30)
TestCosineProto = model_of("cosine-proto", 10)
TestPosterior = model_of("posterior", 15)
TestFrn = model_of("frn", 10)


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("scale", [1.0, 1e-3, 300.0])
def test_keys_outlive_storage_as_float16(kind, scale):
    X = (scale * np.random.default_rng(0).normal(size=(500, 37))).astype(np.float32)
    stored = X.astype(np.float16)
    np.testing.assert_array_equal(hash_rows(stored.astype(kind).astype(np.float64)), hash_rows(X))
    assert len(set(hash_rows(X).tolist())) == 500
    np.testing.assert_array_equal(hash_rows(-0.0 * X), hash_rows(0.0 * X))


def test_rows_of_few_numbers_are_told_apart_by_all_digits():
    X = np.array([[2048.0], [2049.0], [1e6], [2e6], [1.0], [1.0 + 1e-9], [2**20], [2**21]])
    assert len(set(hash_rows(X).tolist())) == len(X)
    np.testing.assert_array_equal(hash_rows(np.array([[-0.0, 1.0]])), hash_rows(np.array([[0.0, 1.0]])))
    fitted = FewShotClassifier("proto").fit(X[:4], [0, 0, 1, 1])
    assert fitted.support_.counts.tolist() == [2, 2]


def test_examples_that_two_classifiers_share_count_once():
    X, y = examples(60, 3)
    one, two = FewShotClassifier("proto").fit(X[:40], y[:40]), FewShotClassifier("proto").fit(X[20:], y[20:])
    one.merge(two)
    whole = FewShotClassifier("proto").fit(X, y)
    assert one.n_repeated_ == 20
    np.testing.assert_allclose(one.support_.sums, whole.support_.sums)
    np.testing.assert_allclose(one.predict_proba(X), whole.predict_proba(X), atol=1e-6)


@pytest.mark.parametrize("head", ["proto", "posterior"])
def test_a_classifier_of_some_examples_of_another_merges_both_ways(head):
    X, y = examples(60, 3)
    for first, second in ((slice(40), slice(60)), (slice(60), slice(40))):
        merged = FewShotClassifier(head, keep=2).fit(X[first], y[first])
        merged.merge(FewShotClassifier(head, keep=2).fit(X[second], y[second]))
        whole = FewShotClassifier(head, keep=2).fit(X, y)
        assert merged.n_repeated_ == 40
        np.testing.assert_allclose(merged.support_.sums, whole.support_.sums)
        np.testing.assert_array_equal(merged.support_.exemplars.keys, whole.support_.exemplars.keys)
        np.testing.assert_array_equal(merged.predict(X), whole.predict(X))


def test_shared_examples_whose_vectors_nobody_has_are_refused():
    X, y = examples(60, 3)
    one, two = (FewShotClassifier("proto", keep=2).fit(X[part], y[part]) for part in (slice(40), slice(20, 60)))
    before = one.predict_proba(X)
    with pytest.raises(BadInput, match="are in both classifiers, and neither has kept their vectors"):
        one.merge(two)
    np.testing.assert_array_equal(one.predict_proba(X), before)


def test_merging_many_shared_classes_takes_no_longer_than_learning_them():
    """The keys of each class were once looked for among all keys."""
    X, y = np.random.default_rng(0).normal(size=(40_000, 4)), np.arange(40_000)
    one, start = FewShotClassifier("proto", keep=0).fit(X, y), time.process_time()
    two, middle = FewShotClassifier("proto", keep=0).fit(X, y), time.process_time()
    one.merge(two)
    assert time.process_time() - middle < 3 * (middle - start) + 0.3
    assert one.n_repeated_ == 40_000


# --------------------------------------------------------------------------------------------------------------- groups


def twins(rng, centres, scenes, share, spread=0.8):
    """Scenes of each class, of which a share is there twice, with a little noise between the two."""
    labels = np.repeat(np.arange(len(centres)), scenes)
    X = centres[labels] + spread * rng.normal(size=(len(labels), centres.shape[1]))
    again = np.flatnonzero(rng.random(len(labels)) < share)
    more = X[again] + 0.02 * rng.normal(size=(len(again), X.shape[1]))
    return np.concatenate([X, more]), np.concatenate([labels, labels[again]]), np.r_[np.arange(len(labels)), again]


@pytest.mark.parametrize("are_given", [True, False])
@pytest.mark.parametrize("share", [0.3, 0.7, 1.0])
@pytest.mark.parametrize("head", [*UNTRAINED, "posterior"])
def test_genuine_photos_are_not_refused_because_others_have_twins(head, share, are_given):
    rng = np.random.default_rng(0)
    rejected, stated, found = [], [], []
    for _ in range(6):
        centres = rng.normal(size=(8, 24))
        X, y, groups = twins(rng, centres, 8, share)
        fitted = FewShotClassifier(head).fit(X, y, groups=groups if are_given else None)
        new, labels, _ = twins(rng, centres, 25, 0)
        rejected.append(1 - fitted.is_known(new).mean())
        stated.append(fitted.coverage_.accuracy_of_all)
        found.append((fitted.predict(new) == labels).mean())
    assert np.mean(rejected) < 0.09
    assert abs(np.mean(stated) - np.mean(found)) < 0.05


def frames(rng, centres, scenes, size, differ=0.3):
    """Scenes of several frames; of the variance within a class, `differ` is that within a scene."""
    labels = np.repeat(np.arange(len(centres)), scenes * size)
    scene = np.repeat(rng.normal(size=(len(centres) * scenes, centres.shape[1])), size, axis=0)
    frame = rng.uniform(0.5, 1.5, (len(scene), 1)) * rng.normal(size=scene.shape)
    return centres[labels] + (1 - differ) ** 0.5 * scene + differ**0.5 * frame, labels


@pytest.mark.parametrize(
    ("head", "d", "differ"),
    [
        *((head, 64, 0.3) for head in (*UNTRAINED, "posterior")),
        *((head, 256, 0.5) for head in ("proto", "cosine-proto", "posterior")),
    ],
)
def test_new_scenes_are_not_refused_because_frames_of_a_scene_are_alike(head, d, differ):
    """Nobody has named the scenes, and frames differ too much to be near-copies of each other, all but a few."""
    rejected = []
    for seed in range(5):
        rng = np.random.default_rng(seed)
        centres = 1.2 * rng.normal(size=(10, d))
        fitted = FewShotClassifier(head).fit(*frames(rng, centres, scenes=6, size=4, differ=differ))
        rejected.append(1 - fitted.is_known(frames(rng, centres, scenes=30, size=1)[0]).mean())
    assert np.mean(rejected) < 0.09


def test_a_frame_unlike_its_siblings_is_left_out_with_them():
    """Alone it would be recognised by the others of its scene; a scene of its own, farther away, is left as it is."""
    rng = np.random.default_rng(0)
    X, y = frames(rng, 1.2 * rng.normal(size=(10, 64)), scenes=6, size=4, differ=0.4)
    scene = np.arange(len(X)) // 4
    found = find_groups(X, y).group
    is_together = (found[:, None] == found) & (scene[:, None] == scene)
    assert (is_together.sum(1) > 1).mean() > 0.98  # 84 % if frames stayed alone
    far = X[:1] + 3 * rng.normal(size=(1, 64))
    assert (find_groups(np.concatenate([X, far]), np.append(y, 0)).group[-1] != found).all()


def test_examples_that_are_loosely_alike_are_no_groups_in_one_draw_and_single_in_the_next():
    """Pairs that share less than half of their variance: half of them were groups in one of six draws."""
    for seed in range(6):
        rng = np.random.default_rng(seed)
        X, y = frames(rng, 1.2 * rng.normal(size=(10, 64)), scenes=8, size=2, differ=0.6)
        assert find_groups(X, y).members < 0.1 * len(y)


def test_a_class_of_one_group_is_not_judged_and_nothing_is_rejected_for_it(tmp_path):
    X, y = examples(60, 3)
    groups = np.where(y == 0, 1000, np.arange(60))
    fitted = FewShotClassifier("proto").fit(X, y, groups=groups)
    assert fitted.single_group_classes_.tolist() == [0]
    assert np.isnan(fitted.recalls_[0])
    assert not np.isnan(fitted.recalls_[1:]).any()
    far = X[y == 0] + 5 * (X[y == 0].mean(0) - X[y != 0].mean(0))
    assert (fitted.predict(far) == 0).all()
    assert fitted.is_known(far).all()
    fitted.save(tmp_path / "model")
    assert "All examples of 0 are one group" in (tmp_path / "model" / "README.md").read_text()
    assert FewShotClassifier.load(tmp_path / "model").single_group_classes_.tolist() == [0]


@pytest.mark.parametrize("head", ["proto", "posterior"])
def test_a_group_larger_than_what_is_kept_is_not_recognised_by_its_siblings(head):
    X, y = examples(120, 3, spread=1.5)
    groups = np.where(y == 0, 1000, np.where(y == 1, np.arange(120) // 12, np.arange(120)))
    fitted = FewShotClassifier(head, keep=8).fit(X, y, groups=groups)
    assert fitted.single_group_classes_.tolist() == [0]
    assert np.isnan(fitted.recalls_[0])
    assert not np.isnan(fitted.recalls_[1:]).any()
    in_order = FewShotClassifier(head, keep=8)
    for part in np.split(np.arange(120), 12):
        in_order.partial_fit(X[part], y[part], groups=groups[part])
    assert in_order.single_group_classes_.tolist() == [0]
    np.testing.assert_allclose(in_order.recalls_, fitted.recalls_)


def test_bursts_are_known_before_exemplars_are_picked(tmp_path):
    """Of photos taken in bursts, whole bursts are exemplars."""
    rng = np.random.default_rng(0)
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        for burst in range(5):
            for second in range(3):
                pixels = rng.integers(0, 255, (8, 8, 3), np.uint8)
                Image.fromarray(pixels).save(tmp_path / name / f"IMG_20240131_12{burst:02}{second:02}.png")
    made = ImageClassifier(lambda x: x.reshape(len(x), -1).astype(np.float32), side=8, head="proto", keep=6)
    exemplars = made.fit(tmp_path).classifier.support_.exemplars
    for row in range(2):
        assert np.unique(exemplars.groups[exemplars.class_index == row], return_counts=True)[1].tolist() == [3, 3]


def test_a_group_goes_on_in_a_later_call():
    X, y = examples(40, 2)
    groups = np.arange(40) // 4
    whole = FewShotClassifier("proto").fit(X, y, groups=groups)
    parts = FewShotClassifier("proto").fit(X[:18], y[:18], groups=groups[:18])
    parts.partial_fit(X[18:], y[18:], groups=groups[18:])
    assert parts.scale_ == pytest.approx(whole.scale_)
    assert parts.coverage_.threshold == pytest.approx(whole.coverage_.threshold)


@pytest.mark.parametrize("is_merged", [False, True])
@pytest.mark.parametrize("head", ["cosine-proto", "posterior"])
def test_a_scene_that_was_learned_in_two_parts_is_one_group(head, is_merged):
    """Times name the burst of each part on its own; once, frames of one part were recognised by those of the other."""
    rejected, stated, found = [], [], []
    for seed in range(4):
        rng = np.random.default_rng(seed)
        centres = 1.2 * rng.normal(size=(10, 64))
        X, y = frames(rng, centres, scenes=6, size=4)
        burst, is_later = np.arange(len(X)) // 2, np.arange(len(X)) // 2 % 2 == 1
        fitted = FewShotClassifier(head).fit(X[~is_later], y[~is_later], groups=burst[~is_later])
        if is_merged:
            fitted.merge(FewShotClassifier(head).fit(X[is_later], y[is_later], groups=burst[is_later]))
        else:
            fitted.partial_fit(X[is_later], y[is_later], groups=burst[is_later])
        new, labels = frames(rng, centres, scenes=30, size=1)
        rejected.append(1 - fitted.is_known(new).mean())
        stated.append(fitted.support_calibration_error())
        found.append(fitted.calibration_error(new, labels))
    assert np.mean(rejected) < 0.09
    assert abs(np.mean(stated) - np.mean(found)) < 0.03


@pytest.mark.parametrize("missing", [None, float("nan"), np.float32("nan"), pd.NA, pd.NaT])
def test_an_example_without_a_group_belongs_to_no_other(missing):
    X, y = examples(60, 3)
    groups = [missing if place % 3 else place // 6 for place in range(60)]
    fitted = FewShotClassifier().fit(X, y, groups=groups)
    expected = FewShotClassifier().fit(X, y, groups=[None if place % 3 else place // 6 for place in range(60)])
    np.testing.assert_array_equal(fitted.support_.exemplars.groups, expected.support_.exemplars.groups)
    assert fitted.threshold_ == expected.threshold_


# ------------------------------------------------------------------------------------ more examples than are kept


@pytest.mark.parametrize("keep", [0, 4, 16, 256])
@pytest.mark.parametrize("head", ["proto", "posterior"])
def test_merging_what_is_known_changes_nothing(head, keep):
    """The scatter within classes was once counted twice where classes had more examples than were kept."""
    X, y = examples(120, 3, spread=1.5)
    whole, once, again = (FewShotClassifier(head, keep=keep).fit(X, y) for _ in range(3))
    merged = once.merge(again)
    assert merged.support_.degrees_of_freedom == whole.support_.degrees_of_freedom
    if head == "posterior":
        np.testing.assert_allclose(merged.support_.scatter, whole.support_.scatter, atol=1e-9)
    np.testing.assert_allclose(merged.predict_proba(X), whole.predict_proba(X), rtol=1e-6)
    assert merged.threshold_ == pytest.approx(whole.threshold_)


@pytest.mark.parametrize("keep", [0, 4, 16, 256])
def test_a_class_that_is_removed_and_learned_again_counts_once(keep):
    X, y = examples(120, 3, spread=1.5)
    whole, changed = (FewShotClassifier(keep=keep).fit(X, y) for _ in range(2))
    changed.remove([0]).partial_fit(X[y == 0], y[y == 0])
    assert changed.support_.degrees_of_freedom == whole.support_.degrees_of_freedom
    sizes = [np.trace(one.support_.scatter) for one in (changed, whole)]
    assert sizes[0] == pytest.approx(sizes[1], rel=0.1 if keep < 40 else 1e-9)  # the share of a class is an estimate


@pytest.mark.parametrize("head", ["proto", "cosine-proto", "posterior"])
def test_near_copies_that_are_not_kept_do_not_make_examples_familiar(head):
    rejected = []
    for seed in range(4):
        rng = np.random.default_rng(seed)
        centres = rng.normal(size=(8, 64))
        fitted = FewShotClassifier(head, keep=20).fit(*frames(rng, centres, scenes=10, size=4, differ=0.02))
        rejected.append(1 - fitted.is_known(frames(rng, centres, scenes=30, size=1, differ=0.02)[0]).mean())
    assert np.mean(rejected) < 0.09
