"""Real features, those that come with a study: the engine against a loop that anyone would write, and how often the
interval over new classes holds on real episodes."""

from pathlib import Path

import numpy as np
import pytest

import anyshot
from anyshot.measure.recalls import class_interval, episode_interval

READY = Path(__file__).parents[2] / "studies" / "ready" / "cub32"
QUERIES, SHOTS = 8, (1, 3, 8)
TRIALS = 40


@pytest.fixture(scope="module")
def labels():
    with np.load(READY / "test.npz", allow_pickle=False) as file:
        return file["labels"].astype(np.int64)


def features_of(model):
    (folder,) = READY.glob(f"cub32-conv4-{model}-*")
    with np.load(folder / "features.npz", allow_pickle=False) as file:
        return file["features"].astype(np.float32)


def distances(query, prototypes):
    return [((query - prototype) ** 2).sum() for prototype in prototypes]


def angles(query, prototypes):
    return [-(query @ prototype) / np.linalg.norm(query) / np.linalg.norm(prototype) for prototype in prototypes]


FAR = {"proto": distances, "cosine-proto": angles}


def recalls_of(vectors, support, query, shot, far):
    """The recall of each class of one episode: a query is right where its own class is the nearest."""
    prototypes = [vectors[images[:shot]].mean(0) for images in support]
    right = [
        [np.argmin(far(vectors[image], prototypes)) == own for image in images] for own, images in enumerate(query)
    ]
    return np.mean(right, axis=1)


def drawn_anew(rng, labels, way=5):
    """An episode, drawn without the package."""
    classes = rng.choice(np.unique(labels), way, replace=False)
    images = np.stack([rng.permutation(np.flatnonzero(labels == one))[: SHOTS[-1] + QUERIES] for one in classes])
    return images[:, QUERIES:], images[:, :QUERIES]


@pytest.mark.parametrize("head", FAR)
@pytest.mark.parametrize("model", ["proto-4shot", "cosine-proto-32shot"])
def test_the_engine_is_the_obvious_loop(head, model, labels):
    features = features_of(model)
    vectors = features.reshape(len(features), -1).astype(np.float64)
    evaluation = anyshot.evaluate(features, labels, heads=[head], shots=SHOTS, queries=QUERIES, episodes=1000)
    _, support, query = evaluation.plan.draw(0, 25)
    for place, shot in enumerate(SHOTS):
        expected = [recalls_of(vectors, *episode, shot, FAR[head]) for episode in zip(support, query, strict=True)]
        np.testing.assert_allclose(evaluation.of(head).recall[place, :25], expected, atol=1e-6)
    rng = np.random.default_rng(5)
    others = [recalls_of(vectors, *drawn_anew(rng, labels), SHOTS[-1], FAR[head]).mean() for _ in range(100)]
    ours = evaluation.of(head).recall[-1].mean(-1)
    error = np.sqrt(np.var(others) / len(others) + np.var(ours) / len(ours))
    assert abs(np.mean(others) - ours.mean()) < 4 * error


@pytest.mark.parametrize("many", [10, 20, 50])
def test_the_interval_over_new_classes_holds_on_real_episodes(many, labels):
    """The classes of the study are all there are, and so many are drawn from them, some of them more than once, as from
    a kind with more classes than anyone has; episodes that hold a class twice are left out. Of 40 draws an interval of
    95 % misses five or more once in twenty, and eight or more once in a thousand."""
    covered, narrow = coverage(many, labels, TRIALS)
    assert covered >= 33 / TRIALS
    assert narrow < covered, "an interval over episodes says nothing of new classes"


def coverage(many, labels, trials):
    """How often the intervals over new classes, and over episodes, hold the accuracy over all classes."""
    features = features_of("cosine-proto-16shot")
    truth = accuracies(features, labels, 4000)[0].mean()
    rng = np.random.default_rng(many)
    held = np.zeros(2)
    for trial in range(trials):
        drawn = rng.integers(0, labels.max() + 1, many)
        images = [np.flatnonzero(labels == one) for one in drawn]
        again = np.repeat(np.arange(many), [len(part) for part in images])
        accuracy, classes = accuracies(features[np.concatenate(images)], again, 600, trial)
        real = np.sort(drawn[classes], axis=1)
        is_fine = (np.diff(real, axis=1) > 0).all(1)
        error = abs(accuracy[is_fine].mean() - truth)
        over_classes = class_interval(accuracy[is_fine], classes[is_fine])
        held += error <= over_classes, error <= episode_interval(accuracy[is_fine])
    return held / trials


def accuracies(features, labels, episodes, seed=0):
    """Of each episode, and its classes."""
    evaluation = anyshot.evaluate(features, labels, "cosine-proto", (5,), queries=QUERIES, episodes=episodes, seed=seed)
    return evaluation.accuracies("cosine-proto")[0], evaluation.of("cosine-proto").classes
