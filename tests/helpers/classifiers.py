"""Small data sets, classifiers and pictures that many tests use."""

import numpy as np
import torch
from PIL import Image

from anyshot import FewShotClassifier, Recipe
from anyshot.models.heads import HEADS
from anyshot.models.model import Model

UNTRAINED = ("proto", "cosine-proto", "frn", "frn-old", "cosine-frn")

POSITIONS, CHANNELS = 4, 6


def examples(images=60, classes=5, seed=0, spread=0.8):
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(classes, POSITIONS, CHANNELS))
    labels = np.arange(images) % classes
    return centres[labels] + spread * rng.normal(size=(images, POSITIONS, CHANNELS)), labels


def trained(head, seed=0):
    torch.manual_seed(seed)
    blank = torch.zeros(1, POSITIONS, CHANNELS)
    start = HEADS[head].parameters(blank, Recipe(data="", head=head, train_shot=2, way=2))
    return {"scale": np.array(3.0), **{name: value.double().numpy() for name, value in start.items()}}


def classifier(head, **arguments):
    if HEADS[head].couples:
        arguments["parameters"] = trained(head)
    return FewShotClassifier(head, **arguments)


def assert_same(left, right, X):
    assert left.classes_.tolist() == right.classes_.tolist()
    np.testing.assert_allclose(left.predict_proba(X), right.predict_proba(X), atol=1e-5)
    np.testing.assert_allclose(left.scale_, right.scale_, rtol=1e-4)
    np.testing.assert_allclose(left.coverage_.threshold, right.coverage_.threshold, rtol=1e-4)
    np.testing.assert_array_equal(left.support_.counts, right.support_.counts)
    np.testing.assert_array_equal(left.support_.exemplars.keys, right.support_.exemplars.keys)


def pictures(folder, classes=("red", "green", "blue"), images=4, seed=0):
    """A folder of class folders of noisy coloured squares."""
    rng = np.random.default_rng(seed)
    for channel, name in enumerate(classes):
        (folder / name).mkdir(parents=True)
        for number in range(images):
            pixels = rng.integers(0, 90, (40, 50, 3))
            pixels[..., channel % 3] += 120
            Image.fromarray(pixels.astype(np.uint8)).save(folder / name / f"{number}.png")
    return folder


def small_model(head="cosine-proto"):
    torch.manual_seed(0)
    recipe = Recipe(data="none", head=head, train_shot=4, way=4, width=8, size=32)
    return Model(recipe, 3).eval()


def colours(images):
    return images.astype(np.float32).mean((1, 2)) - images.mean()


def data(images=40, classes=6, d=16, spread=1.2, seed=0):
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(classes, d))
    labels = np.repeat(np.arange(classes), images)
    return centres[labels] + spread * rng.normal(size=(len(labels), d)), np.array([f"class {c}" for c in labels])
