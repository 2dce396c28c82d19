"""Losses of the first three updates of every head, on fixed images: a change that should move no number moves none.

    python tests/golden.py          prints them anew, for a change that should

(Used by the tests of training.)"""

from collections.abc import Iterator

import numpy as np
import torch

from anyshot.models.heads import PRETRAINING
from anyshot.models.registry import BUILTIN
from anyshot.recipe import Recipe
from anyshot.train.training import Learner
from helpers.own_study import recipe


def losses_of_updates(learner: Learner, number: int = 3, device: str = "cpu") -> Iterator[float]:
    """The losses of a learner's updates at half its pace, on images drawn from a seed; they lie class by class."""
    recipe = learner.recipe
    images = np.random.default_rng(0).integers(0, 256, (recipe.images, recipe.size, recipe.size, 1), np.uint8)
    shot = recipe.images // recipe.way
    target = torch.arange(recipe.way, device=device).repeat_interleave(shot)
    learner.model.train()
    for step in range(number):
        yield float(learner.update(images, target, shot, seed=step, pace=0.5)[0])


def golden_recipe(head: str) -> Recipe:
    """Small, with all that an update has: augmentation, dropout, the contrastive term, a temperature."""
    changes = {"batch": 16, "train_shot": 1, "way": 4} if head in PRETRAINING else {}
    return recipe(head, **{"contrastive": 0.1, "temperature": 2.0, "alpha": -1.0, **changes})


def losses(head: str) -> list[float]:
    return list(losses_of_updates(Learner(golden_recipe(head), BUILTIN, 1, "cpu")))


GOLDEN: dict[str, tuple[float, ...]] = {
    "proto": (1.457777, 1.461141, 1.462678),
    "cosine-proto": (1.385293, 1.395828, 1.421177),
    "feat": (9.696017, 3.304628, 2.466180),
    "cosine-feat": (1.722077, 1.673230, 1.819962),
    "frn": (2.077325, 1.809768, 1.918361),
    "frn-old": (2.390413, 1.686488, 2.380187),
    "cosine-frn": (1.381636, 1.409651, 1.443833),
    "unit-proto": (1.397817, 1.410272, 1.440948),
    "linear-proto": (1.590212, 1.519643, 1.475753),
    "cosine-linear-proto": (1.400523, 1.391176, 1.411510),
    "posterior": (1.386165, 1.387449, 1.394140),
    "logistic": (1.379347, 1.385365, 1.411402),
    "linear": (2.494465, 2.284635, 2.005890),
    "class-matrix": (5.108869, 3.194671, 2.445929),
}

if __name__ == "__main__":
    for head in BUILTIN.heads:
        print(f'    "{head}": ({", ".join(f"{loss:.6f}" for loss in losses(head))}),')
