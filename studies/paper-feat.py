"""FEAT with the LayerNorm of its authors (Ye et al. 2020) beside FEAT without it, on Conv-4 (Sec. 3.2 of the paper).

    anyshot study paper-feat --only cub              16 models, a grid for each of four heads

The paper removes the LayerNorm and finds that scores with it lie between Euclidean and cosine ones.
"""

from dataclasses import replace

from paper import CROP, IMAGES, SHOTS, recipe

from anyshot import BUILTIN, Registry, Study, packed

# The same functions under other names, so that tables tell them apart; the recipe asks for the LayerNorm.
NORMED = {
    "feat-norm": replace(BUILTIN.head("feat"), alternative_to="feat"),
    "cosine-feat-norm": replace(BUILTIN.head("cosine-feat"), alternative_to="feat"),
}


def study(heads=None):
    recipes = [
        replace(recipe(data, "conv4", head, shot), layer_norm=head in NORMED)
        for data in ("cub", "mini", "meta-inat")
        for head in heads or ("feat", "cosine-feat", *NORMED)
        for shot in SHOTS
    ]
    stores = {data: packed(data, data, fit="frame" if CROP[data] == "resized-crop" else None) for data in CROP}
    return Study(recipes=recipes, stores=stores, train_images=IMAGES, adds=Registry(heads=NORMED))
