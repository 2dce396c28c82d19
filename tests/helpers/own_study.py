"""A user's own study, with a head of its own: small enough to run in seconds. (Used by the tests of studies.)"""

from anyshot.data.glyphs import glyphs
from anyshot.measure.plan import Protocol
from anyshot.models.law import Head, max_pool
from anyshot.models.registry import BUILTIN, Registry
from anyshot.recipe import Recipe
from anyshot.study.study import Study


def tanimoto(query, prototypes):
    product = query @ prototypes.mT
    squares = query.square().sum(-1)[..., :, None] + prototypes.square().sum(-1)[..., None, :]
    return product / (squares - product).clamp_min(1e-9)


registry = Registry(heads={"tanimoto": Head(max_pool, tanimoto)})


def recipe(head, train_shot=4, **changes):
    return Recipe(
        **{
            "data": "tiny",
            "head": head,
            "train_shot": train_shot,
            "way": 16 // train_shot,
            "size": 16,
            "width": 8,
            "epochs": 4,
            "schedule": "one-cycle",
            "lr": 0.01,
            "augment": ("crop", "flip"),
            "validate_every": 2,
            "validation_episodes": 20,
            "validation_queries": 4,
        }
        | changes
    )


def store(data):
    return glyphs(data / "tiny", {"train": 16, "val": 6, "test": 8}, images=16, size=16)


def study(heads=None):
    return Study(
        recipes=[recipe(head, shot) for head in heads or ("proto", "tanimoto") for shot in (2, 4)],
        stores={"tiny": store},
        adds=registry,
        readouts={"proto": ("swapped", "pca4")},
        protocol=Protocol(shots=(1, 2, 4), queries=4, episodes=40),
    )


REGISTRY = BUILTIN | registry
