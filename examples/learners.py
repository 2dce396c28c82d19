"""Three learners of the literature in a file of your own: R2D2, RelationNet and SimpleShot.

    anyshot study examples/learners.py          9 small models on glyphs, about a minute on one core

Each is the law (a class is the mean, over its support, of one vector per image) with other slots, and nothing in the
package changes. Their networks, data and schedules are small here: this shows how to write them, not how good they are.
"""

import math

import torch
import torch.nn.functional as F

from anyshot import Head, Protocol, Readout, Recipe, Registry, Study
from anyshot.data.glyphs import glyphs
from anyshot.models.gram import pack_symmetric, unpack_symmetric
from anyshot.models.law import max_pool

# ---------------------------------------------------------------------------------------------------------------- R2D2
# Bertinetto et al. 2019: ridge regression from the support's vectors X to its one-hot labels Y, W = (X'X + r I)^-1 X'Y.
# X'Y are the sums of the classes' vectors, and X'X is the sum of the Gram matrices of all images. Both are sums over
# the support, so an image is its vector x and its matrix x x', and the regression is a refinement of the class means.


def vector_and_gram(features, parameters):
    x = max_pool(features, parameters)
    return torch.cat([x, pack_symmetric(x[..., :, None] * x[..., None, :])], -1)


def ridge_weights(prototypes, counts, parameters):
    channels = (math.isqrt(9 + 8 * prototypes.shape[-1]) - 3) // 2  # of vectors of d + d (d + 1) / 2 numbers
    sums = prototypes * counts[..., None]
    matrix = unpack_symmetric(sums[..., channels:].sum(-2))
    matrix = matrix + parameters["log_ridge"].exp() * torch.eye(channels, device=matrix.device)
    return torch.linalg.solve(matrix, sums[..., :channels].mT).mT


def linear_score(query, weights, parameters):
    return query[..., : weights.shape[-1]] @ weights.mT


def ridge_start(features, recipe):
    return {"log_ridge": torch.tensor(0.0)}


# The classes of an episode share one regression, so refining one looks at all (couples). Its answers lie between 0 and
# 1, so its logits start at ten times that, as those of a cosine do.
r2d2 = Head(vector_and_gram, linear_score, ridge_weights, ridge_start, couples=True, temperature=10.0, has_onnx=False)

# --------------------------------------------------------------------------------------------------------- RelationNet
# Sung et al. 2018: a small network looks at query and prototype side by side and says how well they fit. It is a score
# that learns.

HIDDEN = 16


def relation(query, prototypes, parameters):
    pairs = torch.broadcast_tensors(query[..., :, None, :], prototypes[..., None, :, :])
    hidden = F.relu(torch.cat(pairs, -1) @ parameters["first"] + parameters["bias"])
    return torch.sigmoid(hidden @ parameters["second"])[..., 0]


def relation_start(features, recipe):
    d = features.shape[-1]
    first, second = torch.randn(2 * d, HIDDEN) / d**0.5, torch.randn(HIDDEN, 1) / HIDDEN**0.5
    return {"first": first, "bias": torch.zeros(HIDDEN), "second": second}


relation_net = Head(
    max_pool, relation, parameters=relation_start, needs_training=True, temperature=10.0, has_onnx=False
)

# ---------------------------------------------------------------------------------------------------------- SimpleShot
# Wang et al. 2019: vectors minus the mean of the training classes, scaled to length one (CL2N), then the nearest mean.
# It is a way to read a trained model: a readout.


def centre(vectors, labels):
    return {"centre": vectors.mean(0)}


def cl2n(vectors, fitted):
    return F.normalize(vectors - fitted["centre"], dim=-1)


registry = Registry(
    heads={"r2d2": r2d2, "relation": relation_net},
    readouts={"cl2n": Readout(centre, cl2n)},
)


def study(heads=None):
    heads = heads or ("proto", "r2d2", "relation")
    recipes = [
        Recipe(
            data="glyphs-small",
            head=head,
            train_shot=shot,
            way=64 // shot,
            size=16,
            width=16,
            epochs=12,
            schedule="one-cycle",
            lr=0.03,
            temperature=registry.heads[head].temperature if head in registry.heads else 1.0,
            validate_every=12,
            validation_episodes=100,
            validation_queries=4,
        )
        for head in heads
        for shot in (2, 4, 8)
    ]
    split = {"train": 40, "val": 8, "test": 12}
    return Study(
        recipes=recipes,
        stores={"glyphs-small": lambda data: glyphs(data / "glyphs-small", split, images=20, size=16)},
        readouts={"proto": ("cl2n",)},
        protocol=Protocol(shots=(1, 2, 4, 8), queries=8, episodes=500),
        adds=registry,
    )
