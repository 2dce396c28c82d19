"""ResNet-12 FRN and FEAT that begin with the weights of their authors, as the paper's do.

    anyshot study paper-authors --only mini          16 models, which begin with weights/{frn,feat}-mini.pth
    anyshot study paper-authors --only cub           8 models of FEAT, which begin with a pretraining of their own

FRN's files are those of its `ResNet-12_pretrain` folders, FEAT's those that its repository offers as initial weights,
under the names of WEIGHTS below. FRN's finetuning takes the temperature along. FEAT finetunes with the preprocessing,
dropout and DropBlock of its authors (`resnet12-feat`). On CUB the paper pretrains FEAT itself: linearly, which is done
here with the plain layer of FEAT's authors, that has no temperature.
"""

from dataclasses import replace

import torch.nn.functional as F
from paper import CROP, IMAGES, SHOTS, pretraining, recipe

from anyshot import BUILTIN, Registry, Study, packed

WEIGHTS = "weights/{family}-{data}.pth"


def plain_logits(parameters, vectors):
    # The temperature changes nothing here, but several processes that train together wait for its gradient.
    return F.linear(vectors, parameters["classes"], parameters["bias"]) + 0 * parameters["scale"]


PLAIN = {"plain-linear": replace(BUILTIN.head("linear"), class_logits=plain_logits)}


def study(heads=None):
    feats, frns = ("feat", "cosine-feat"), ("frn", "cosine-frn")
    grids = [(data, head) for data in ("mini", "tiered") for head in (*frns, *feats)]
    grids += [("cub", head) for head in feats]
    recipes = [start(data, head, shot) for data, head in grids if head in (heads or (*frns, *feats)) for shot in SHOTS]
    stores = {data: packed(data, data, fit="frame" if CROP[data] == "resized-crop" else None) for data in CROP}
    return Study(recipes=recipes, stores=stores, train_images=IMAGES, adds=Registry(heads=PLAIN))


def start(data, head, shot):
    """The recipe of `paper.py` with another start."""
    model = recipe(data, "resnet12", head, shot)
    if data == "cub":
        return replace(model, start=replace(pretraining("linear", "cub"), head="plain-linear"))
    if "frn" in head:
        return replace(model, start=WEIGHTS.format(family="frn", data=data), start_scale=True)
    return replace(model, start=WEIGHTS.format(family="feat", data=data), backbone="resnet12-feat")
