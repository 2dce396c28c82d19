"""Many classes: what is kept depends on the examples alone, the best are found exactly, writers never lose a row."""

import contextlib
import copy
import gc
import os
import pickle
import shutil
import signal
import threading
import time
import weakref
from functools import partial

import joblib
import numpy as np
import pytest
from helpers.classifiers import UNTRAINED, assert_same, examples
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.base import clone

from anyshot import BadInput, FewShotClassifier, machine
from anyshot.classify import calibration, support, topk
from anyshot.classify.keys import hash_label, hash_rows

SEARCHED = [*UNTRAINED, "posterior"]


@pytest.fixture
def few_are_many(monkeypatch):
    """All that happens beyond a number of classes happens beyond three."""
    monkeypatch.setattr(calibration, "MOST_CALIBRATED", 3)
    monkeypatch.setattr(support, "MOST_EXEMPLARS", 12)


@settings(max_examples=20)
@given(data=st.data())
def test_exemplars_depend_on_the_examples_alone(data):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(support, "MOST_EXEMPLARS", 12)
        new = partial(FewShotClassifier, data.draw(st.sampled_from(["cosine-proto", "posterior"])), keep=5)
        X, y = examples(60, data.draw(st.sampled_from([2, 5, 11])), seed=data.draw(st.integers(0, 99)))
        order = np.array(data.draw(st.permutations(range(len(y)))))
        cuts = sorted(data.draw(st.lists(st.integers(1, len(y) - 1), max_size=6, unique=True)))
        whole, pieces = new().fit(X, y), new()
        for place in np.split(order, cuts):
            pieces.partial_fit(X[place], y[place])
        merged = new().fit(X[::2], y[::2]).merge(new().fit(X[1::2], y[1::2]))
        for other in (pieces, merged, copy.copy(pieces), copy.deepcopy(new().fit(X, y))):
            if other.head == "posterior":
                residuals = whole.vectors(X) - (whole.support_.sums / whole.support_.counts[:, None])[y]
                np.testing.assert_allclose(other.support_.scatter, residuals.T @ residuals, atol=1e-12)
                assert other.support_.degrees_of_freedom == len(y) - len(whole.classes_)
            np.testing.assert_array_equal(other.support_.exemplars.keys, whole.support_.exemplars.keys)
            np.testing.assert_array_equal(other.support_.exemplars.class_index, whole.support_.exemplars.class_index)
            np.testing.assert_array_equal(other.support_.exemplars.vectors, whole.support_.exemplars.vectors)
            np.testing.assert_array_equal(other.support_.all_keys[0], whole.support_.all_keys[0])
            np.testing.assert_allclose(other.support_.sums, whole.support_.sums)
        assert len(whole.support_.exemplars.keys) <= (12 if len(whole.classes_) <= 6 else 6)


@pytest.mark.parametrize("head", ["cosine-proto", "posterior"])
def test_copies_learn_on_their_own(head):
    X, y = examples(200, 4)
    fitted = FewShotClassifier(head).fit(X[:100], y[:100]).partial_fit(X[100:101], y[100:101])
    other = copy.copy(fitted)
    fitted.partial_fit(X[110:120], y[110:120])
    other.partial_fit(X[101:], y[101:])
    first = np.r_[:101, 110:120]
    assert_same(fitted, FewShotClassifier(head).fit(X[first], y[first]), X)
    assert_same(other, FewShotClassifier(head).fit(X, y), X)


@pytest.mark.parametrize("head", ["cosine-proto", "posterior"])
def test_a_classifier_in_a_file_that_is_only_read_learns_in_memory(head, tmp_path):
    X, y = examples(90, 3)
    joblib.dump(FewShotClassifier(head).fit(X[:80], y[:80]), tmp_path / "classifier")
    before = (tmp_path / "classifier").read_bytes()
    loaded = joblib.load(tmp_path / "classifier", mmap_mode="r")
    assert_same(loaded.partial_fit(X[80:], y[80:]), FewShotClassifier(head).fit(X, y), X)
    assert (tmp_path / "classifier").read_bytes() == before


def test_examples_belong_to_the_caller():
    X, y = examples(80, 4)
    expected = FewShotClassifier().fit(X, y).predict_proba(X)
    mine, labels = X.copy(), y.copy()
    fitted = FewShotClassifier().fit(mine, labels)
    mine[:], labels[:] = 0, 0
    np.testing.assert_array_equal(fitted.predict_proba(X), expected)


def test_a_class_that_came_without_exemplars_gets_them_from_later_examples():
    X, y = examples(40, 2)
    without = FewShotClassifier(keep=0).fit(X[:20], y[:20] + 2)
    one = FewShotClassifier().fit(X[20:], y[20:]).merge(without).partial_fit(X[:2] + 1, y[:2] + 2)
    other = FewShotClassifier().fit(X[20:], y[20:]).partial_fit(X[:2] + 1, y[:2] + 2).merge(without)
    np.testing.assert_array_equal(one.support_.exemplars.class_index, [0] * 10 + [1] * 10 + [2, 3])
    np.testing.assert_array_equal(other.support_.exemplars.keys, one.support_.exemplars.keys)


@pytest.mark.usefixtures("few_are_many")
def test_a_class_without_exemplars_among_many_gets_none_later():
    X, y = examples(110, 11)
    fitted = FewShotClassifier().fit(X, y)
    kept = fitted.support_.labels[np.unique(fitted.support_.exemplars.class_index)]
    left = next(label for label in range(11) if label not in kept)
    fitted.remove(kept[:2]).partial_fit(X[:1] + 2, [left])
    after = fitted.support_
    assert after.labels[np.unique(after.exemplars.class_index)].tolist() == kept[2:].tolist(), "its first ones are gone"


@pytest.mark.usefixtures("few_are_many")
@pytest.mark.parametrize(("seed", "batch"), [(0, 110), *((seed, 8) for seed in range(6))])
def test_of_very_many_classes_some_have_exemplars(seed, batch):
    X, y = examples(110, 11)
    order = np.random.default_rng(seed).permutation(110)
    X, y = X[order], y[order]
    fitted = FewShotClassifier("posterior")
    for start in range(0, 110, batch):
        fitted.partial_fit(X[start : start + batch], y[start : start + batch])
    chosen = sorted(sorted(range(11), key=hash_label)[:3])
    assert fitted.support_.exemplars.class_index.tolist() == np.repeat(chosen, 2).tolist()
    vectors, keys = fitted.vectors(X), hash_rows(X)
    rows = [int(np.flatnonzero(keys == key)[0]) for key in fitted.support_.exemplars.keys]
    np.testing.assert_array_equal(fitted.support_.exemplars.vectors, vectors[rows])


def test_what_was_returned_does_not_change_and_cannot_be_changed():
    X, y = examples(60, 6)
    fitted = FewShotClassifier("proto").fit(X, y).partial_fit(X, y + 6)
    seen = fitted.support_
    before = seen.sums.copy()
    fitted.partial_fit(X[:1] + np.arange(500)[:, None, None], np.arange(500) + 100)
    np.testing.assert_array_equal(seen.sums, before)
    for array in (
        seen.sums,
        seen.counts,
        seen.exemplars.vectors,
        seen.exemplars.keys,
        fitted.classes_,
        fitted.recalls_,
    ):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0


def test_threads_learn_and_predict_at_once():
    X, y = examples(800, 8)
    fitted, errors, start = FewShotClassifier("proto").fit(X[:8], y[:8]), [], threading.Barrier(6)

    def work(places):
        try:
            start.wait()
            for place in places:
                fitted.partial_fit(X[place : place + 4], y[place : place + 4])
        except Exception as error:
            errors.append(error)

    def ask():
        try:
            start.wait()
            for _ in range(40):
                assert fitted.predict_proba(X[:20]).shape == (20, 8)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(range(8 + 4 * first, 800, 16),)) for first in range(4)]
    threads += [threading.Thread(target=ask) for _ in range(2)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert not errors
    whole = FewShotClassifier("proto").fit(X, y)
    np.testing.assert_array_equal(fitted.support_.counts, whole.support_.counts)
    np.testing.assert_allclose(fitted.support_.sums, whole.support_.sums)


def test_all_rows_are_compared_with_the_same_classes(monkeypatch):
    X, y = examples(200, 3)
    fitted, errors = FewShotClassifier("proto").fit(X[:3], y[:3]), []
    monkeypatch.setattr("anyshot.classify.classifier.CHUNK_FLOATS", 100)  # many parts

    def ask():
        try:
            for _ in range(15):
                fitted.logits(X[:100])
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=ask)
    thread.start()
    for place in range(3, 200):
        fitted.partial_fit(X[place : place + 1], [place])
    thread.join()
    assert not errors


def test_two_classifiers_that_merge_each_other_while_they_learn_lose_nothing():
    X, y = examples(160, 4)
    one, two, errors = FewShotClassifier("proto").fit(X[:4], y[:4]), FewShotClassifier("proto").fit(X[4:8], y[4:8]), []

    def work(mine, other, places):
        try:
            for place in places:
                mine.partial_fit(X[place : place + 2], y[place : place + 2] + 4 * (place % 40))
                mine.merge(other)
        except Exception as error:
            errors.append(error)

    threads = [
        threading.Thread(target=work, args=pair)
        for pair in ((one, two, range(8, 80, 2)), (two, one, range(80, 160, 2)))
    ]
    [thread.start() for thread in threads]
    [thread.join(60) for thread in threads]
    assert not errors
    one.merge(two)
    assert one.support_.counts.sum() == 160


@pytest.fixture
def can_be_interrupted():
    """Ctrl-C interrupts, as in a terminal: a process that a shell has started in the background ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("can_be_interrupted")
@pytest.mark.parametrize("seconds", [0.0, 0.002, 0.005, 0.01, 0.02, 0.05])
def test_an_interrupted_learning_learns_nothing_or_all(seconds):
    X, y = examples(4000, 40)
    fitted = FewShotClassifier("proto").fit(X[:40], y[:40])
    timer = threading.Timer(seconds, lambda: os.kill(os.getpid(), signal.SIGINT))
    with contextlib.suppress(KeyboardInterrupt):
        timer.start()
        fitted.partial_fit(X, y)
        while True:
            time.sleep(0.001)
    many = int(fitted.support_.counts.sum())
    assert many in (40, 4000)
    assert len(fitted.support_.all_keys[0]) == many
    assert fitted.support_.degrees_of_freedom == many - 40


@pytest.mark.usefixtures("can_be_interrupted")
def test_an_interruption_before_the_new_classes_count_leaves_the_old_answers(monkeypatch):
    X, y = examples(40, 2)
    fitted = FewShotClassifier("proto").fit(X[:20], y[:20])
    before = fitted.predict_proba(X)
    merge = support.Support.merge

    def merge_and_interrupt(*arguments):
        merged = merge(*arguments)
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.001)  # the signal arrives here
        return merged

    monkeypatch.setattr(support.Support, "merge", merge_and_interrupt)
    with pytest.raises(KeyboardInterrupt):
        fitted.partial_fit(X[20:], y[20:] + 2)
    assert fitted.classes_.tolist() == [0, 1]
    assert fitted.support_.counts.sum() == 20
    np.testing.assert_array_equal(fitted.predict_proba(X), before)


@pytest.mark.parametrize("index", [False, True])
def test_the_memory_of_a_search_is_freed_with_its_classifier(index, monkeypatch):
    """Its rows are as large as the sums: no cycle may keep them until Python looks for cycles."""
    monkeypatch.setattr(calibration, "MOST_CALIBRATED", 3)
    X, y = examples(80, 9)
    for head in ("cosine-proto", "posterior"):
        fitted = FewShotClassifier(head, index=index).fit(X, y)
        fitted.predict(X)
        seen = weakref.ref(fitted.state_.search)
        gc.disable()
        try:
            del fitted
            assert seen() is None
        finally:
            gc.enable()


@pytest.mark.parametrize("head", ["proto", "posterior"])
def test_classifiers_of_parts_merge_to_that_of_all(head):
    X, y = examples(90, 9, seed=4)
    whole = FewShotClassifier(head).fit(X, y)
    one, two = FewShotClassifier(head).fit(X[::2], y[::2]), FewShotClassifier(head).fit(X[1::2], y[1::2])
    one.merge(two)
    assert_same(one, whole, X)
    if head == "posterior":
        np.testing.assert_allclose(one.support_.scatter, whole.support_.scatter, atol=1e-12)
        assert one.support_.degrees_of_freedom == whole.support_.degrees_of_freedom


@pytest.mark.usefixtures("few_are_many")
@pytest.mark.parametrize("head", SEARCHED)
def test_the_best_classes_are_those_of_all_logits(head):
    X, y = examples(80, 9, seed=2, spread=1.5)
    order = np.random.default_rng(0).permutation(len(y))
    fitted = FewShotClassifier(head).fit(X[order], y[order])
    for more in (np.arange(3), np.arange(5)):
        logits = fitted.logits(X)
        np.testing.assert_array_equal(fitted.predict(X), fitted.classes_[logits.argmax(1)])
        labels, chances = fitted.top(X, 3)
        best = np.argsort(-logits, 1, kind="stable")[:, :3]
        np.testing.assert_array_equal(labels, fitted.classes_[best])
        np.testing.assert_allclose(chances, np.take_along_axis(fitted.predict_proba(X), best, 1), rtol=1e-3, atol=1e-5)
        fitted.partial_fit(X[more], more + 7)  # of known classes and of new ones: the search follows


@pytest.mark.usefixtures("few_are_many")
@pytest.mark.parametrize("head", ["proto", "cosine-proto"])
def test_chances_of_many_classes_are_never_above_one(head):
    X, y = examples(80, 9, spread=0.1)
    fitted = FewShotClassifier(head, scale=3e4).fit(X + 100, y)
    assert fitted.top(X + 100, 4)[1].sum(1).max() <= 1 + 1e-12


@pytest.mark.usefixtures("few_are_many")
def test_of_equal_classes_the_first_label_is_taken():
    fitted = FewShotClassifier("cosine-proto").fit(np.ones((5, 4)), [9, 3, 7, 5, 8])
    assert fitted.predict(np.ones((2, 4))).tolist() == [3, 3]


@pytest.mark.parametrize("head", SEARCHED)
def test_an_index_over_few_classes_misses_none(head, monkeypatch):
    pytest.importorskip("faiss")
    monkeypatch.setattr(topk, "INDEX_FROM", 1)
    monkeypatch.setattr(topk, "CANDIDATES", 12)
    X, y = examples(160, 20, seed=3, spread=1.5)
    exact, indexed = FewShotClassifier(head).fit(X, y), FewShotClassifier(head, index=True).fit(X, y)
    np.testing.assert_array_equal(indexed.predict(X), exact.predict(X))
    for each in (exact, indexed):
        each.partial_fit(X[:4], np.array([3, 50, 51, 50]))  # the index does not know these
    np.testing.assert_array_equal(indexed.predict(X), exact.predict(X))


@pytest.mark.parametrize("head", ["cosine-proto", "posterior"])
def test_a_sample_of_the_classes_settles_nearly_what_all_of_them_do(head, monkeypatch):
    X, y = examples(1200, 120, spread=1.2)
    whole = FewShotClassifier(head).fit(X, y)
    scale, threshold = whole.scale_, whole.coverage_.threshold
    monkeypatch.setattr(calibration, "MOST_CALIBRATED", 60)
    part = FewShotClassifier(head).fit(X, y)
    assert part.scale_ == pytest.approx(scale, rel=0.15)
    assert part.coverage_.accuracy_of_all == pytest.approx(whole.coverage_.accuracy_of_all, abs=0.1)
    assert part.is_known(X).mean() == pytest.approx((whole.is_known(X)).mean(), abs=0.05), (threshold, part.coverage_)


def test_nothing_needs_to_be_kept():
    X, y = examples()
    fitted = FewShotClassifier("proto", keep=0).fit(X, y)
    assert not len(fitted.support_.exemplars.vectors)
    assert not fitted.calibrated_
    assert fitted.coverage_ is None
    np.testing.assert_array_equal(fitted.predict(X), FewShotClassifier("proto").fit(X, y).predict(X))
    with pytest.raises(BadInput, match="keep 0, or at least 2"):
        FewShotClassifier(keep=1).fit(X, y)


@pytest.mark.usefixtures("few_are_many")
def test_of_many_classes_without_examples_a_sample_sets_the_scale():
    X, y = examples(60, 9)
    fitted = FewShotClassifier("proto", keep=0).fit(X, y)
    names, chances = fitted.top(X, 2)
    assert (names[:, 0] == fitted.predict(X)).all()
    assert ((chances[:, 0] > chances[:, 1]) & (chances[:, 0] < 1)).all()


@pytest.mark.usefixtures("few_are_many")
@pytest.mark.parametrize("labels", [np.arange(9) * 10 - 7, np.array(["é", "", "a b", *"cdefgh"])])
def test_many_classes_travel(labels, tmp_path):
    X, y = examples(60, 9)
    late = y < 4  # classes need not arrive in order
    fitted = FewShotClassifier("cosine-proto").fit(X[~late], labels[y[~late]]).partial_fit(X[late], labels[y[late]])
    fitted.save(tmp_path / "model")
    loaded = FewShotClassifier.load(tmp_path / "model")
    assert loaded.classes_.dtype == fitted.classes_.dtype
    assert_same(loaded, fitted, X)
    assert_same(pickle.loads(pickle.dumps(fitted)), fitted, X)
    with pytest.raises(BadInput, match="have stored examples"):
        loaded.at_shot(1)


def test_threads_are_as_many_as_cores_are_free(monkeypatch):
    monkeypatch.setattr(machine, "BUSY_SECONDS", 0)
    monkeypatch.setattr(machine, "count_cores", lambda: 4)
    monkeypatch.setattr(machine.os, "cpu_count", lambda: 4)
    for idle, free in ((0, 1), (100, 1), (200, 2), (290, 3), (400, 4)):
        ticks = iter([(1000, 500), (1400, 500 + idle)])
        monkeypatch.setattr(machine, "_read_ticks", lambda ticks=ticks: next(ticks))
        assert machine.count_free_cores() == free


# ----------------------------------------------------------------------------------------------------------- class bank


@pytest.mark.parametrize("head", ["proto", "cosine-proto", "frn", "posterior"])
def test_a_bank_is_the_classifier_of_all_that_its_writers_added(head, tmp_path):
    pytest.importorskip("lancedb")
    from anyshot.classify.bank import ClassBank

    X, y = examples(96, 6)
    X, names = X.reshape(len(X), -1), np.array(["it's", "b", "c", "d", "e", "f"])[y]
    law = FewShotClassifier(head)
    if head == "posterior":  # as a readout, of what other classes say of how images vary
        base = examples(96, 12, seed=1)
        law = FewShotClassifier("proto", readout="posterior", base=(base[0].reshape(96, -1), base[1]))
    bank = ClassBank(tmp_path / "bank", law)
    bank.add(X[:8], names[:8])

    def write(first: int) -> None:
        mine = ClassBank(tmp_path / "bank")
        for start in range(first, 96, 32):
            mine.add(X[start : start + 8], names[start : start + 8])

    writers = [threading.Thread(target=write, args=(first,)) for first in (8, 16, 24)]
    for writer in writers:
        writer.start()
    bank.compact()  # beside them
    for writer in writers:
        writer.join()
    bank.add(X[32:40], names[32:40])
    bank.add(X[64:72], names[64:72])
    whole = clone(law).fit(X, names)
    for _ in range(2):
        together = bank.classifier()
        np.testing.assert_array_equal(together.support_.counts, whole.support_.counts)
        np.testing.assert_allclose(together.support_.sums, whole.support_.sums, rtol=1e-12, atol=1e-12)
        np.testing.assert_array_equal(bank.predict(X), whole.predict(X))
        assert bank.compact() == 6


@pytest.mark.parametrize("head", ["proto", "cosine-proto"])
def test_many_queries_of_a_bank_whose_every_class_was_added_to_since_it_was_folded(head, tmp_path):
    pytest.importorskip("lancedb")
    from anyshot.classify.bank import ClassBank

    X, y = examples(96, 6)
    X = X.reshape(len(X), -1)
    bank, whole = ClassBank(tmp_path / "bank", FewShotClassifier(head)), FewShotClassifier(head, scale=1.0).fit(X, y)
    bank.add(X[:90], y[:90])
    bank.compact()
    bank.add(X[90:], y[90:])
    labels, scores = bank.top(X, 2)
    np.testing.assert_array_equal(labels[:, 0], whole.predict(X))
    np.testing.assert_allclose(scores, -np.sort(-whole.logits(X), 1)[:, :2], rtol=1e-9)


def test_an_answer_of_a_bank_is_of_one_moment(tmp_path):
    """Classes that were added to and folded while someone asks are not counted twice."""
    pytest.importorskip("lancedb")
    from anyshot.classify.bank import ClassBank

    X, y = examples(96, 6)
    X = X.reshape(len(X), -1)
    bank = ClassBank(tmp_path / "bank", FewShotClassifier("proto"))
    bank.add(X[:48], y[:48])
    other = ClassBank(tmp_path / "bank")
    bank.compact()
    bank.add(X[48:], y[48:])
    labels, scores = bank.top(X, 6)
    read_consistently = bank._read_consistently
    bank._read_consistently = lambda read: (read_consistently(read), other.compact())[0]
    again = bank.top(X, 6)
    np.testing.assert_array_equal(again[0], labels)
    np.testing.assert_allclose(again[1], scores, rtol=1e-12)


def test_words_of_a_bank(tmp_path):
    pytest.importorskip("lancedb")
    from anyshot.classify.bank import ClassBank

    with pytest.raises(BadInput, match="no class bank"):
        ClassBank(tmp_path / "bank")
    X, y = examples(10, 2)
    with pytest.raises(BadInput, match="the readout posterior"):
        ClassBank(tmp_path / "bank", FewShotClassifier("posterior")).add(X, y)
    bank = ClassBank(tmp_path / "bank", FewShotClassifier("cosine-proto", positions=4))
    bank.add(X.reshape(10, -1), y)
    with pytest.raises(BadInput, match="another type"):
        bank.add(X.reshape(10, -1), y.astype(str))


def test_a_bank_forgets_what_dead_compactions_left(tmp_path):
    pytest.importorskip("lancedb")
    from anyshot.classify.bank import ClassBank

    X, y = examples(40, 5)
    X = X.reshape(40, -1)
    bank, slow = ClassBank(tmp_path / "bank", FewShotClassifier("proto")), None
    bank.add(X[:20], y[:20])
    slow = ClassBank(tmp_path / "bank")
    slow._fold = lambda name, number, support, parts: slow._write_folded(name, support)
    slow.compact()  # it dies before its table counts
    assert len(_folded_tables(tmp_path / "bank")) == 1
    bank.add(X[20:], y[20:])
    bank.compact()
    assert len(_folded_tables(tmp_path / "bank")) == 1
    early = ClassBank(tmp_path / "bank")
    fold = early._fold
    early._fold = lambda *arguments: (bank.compact(), fold(*arguments))[1]  # another is faster
    early.compact()
    assert len(_folded_tables(tmp_path / "bank")) == 1
    np.testing.assert_array_equal(bank.classifier().support_.counts, np.bincount(y))


def _folded_tables(place):
    return [table.name for table in place.glob("folded-*")]


def test_a_bank_whose_newest_log_is_gone_counts_nothing_twice(tmp_path):
    pytest.importorskip("lancedb")
    from anyshot.classify.bank import ClassBank

    X, y = examples(96, 6)
    bank = ClassBank(tmp_path / "bank", FewShotClassifier("proto", positions=1))
    bank.add(X.reshape(96, -1), y)
    bank.compact()
    bank.compact()
    min((tmp_path / "bank").glob("log.lance/_versions/*.manifest")).unlink()  # versions are counted down
    with pytest.raises(BadInput, match="the newest version of its log is gone"):
        ClassBank(tmp_path / "bank").classifier()


def test_a_damaged_bank_is_one_sentence(tmp_path):
    pytest.importorskip("lancedb")
    from anyshot.classify.bank import ClassBank

    X, y = examples(40, 5)
    X = X.reshape(40, -1)
    whole = tmp_path / "whole"
    bank = ClassBank(whole, FewShotClassifier("proto"))
    bank.add(X, y)
    bank.compact()
    bank.add(X[:5], y[:5])
    for table in ("state", "log", "folded-*"):
        newest = min(whole.glob(f"{table}.lance/_versions/*.manifest"))  # versions are counted down
        rows = max(whole.glob(f"{table}.lance/data/*"), key=lambda path: path.stat().st_mtime_ns)
        for spoiled, spoil in ((newest, b"cut"), (newest, bytes(500)), (rows, b""), (rows, bytes(500)), (rows, None)):
            shutil.rmtree(tmp_path / "bank", ignore_errors=True)
            shutil.copytree(whole, tmp_path / "bank")
            path = tmp_path / "bank" / spoiled.relative_to(whole)
            path.unlink() if spoil is None else path.write_bytes(spoil)
            with pytest.raises(BadInput, match="is damaged"):
                ClassBank(tmp_path / "bank").classifier()
