"""Does shot sensitivity matter on strong features? Heads trained on CUB as a pretrained network sees it.

    anyshot study birds-pretrained --images cub84.npz    (or all pixels: --images CUB_200_2011.tgz)

10 heads: two minutes on one core, and two or three more to embed the images the first time.

The backbone is EfficientNet-Lite0 as it comes with the package, and stays as it is; a head learns a linear map of its
1,280 numbers to 128, once for every train shot. Beside them, features as they are: no train shot has touched those, and
all that can differ is the test shot. Images are cut to the bird's box, at 84 pixels.
"""

from anyshot import BUILTIN, Recipe, Study, packed

STORE = "cub84-lite0"
# Chosen on validation classes, 16 shots, among 0.01 to 1 (docs/pretrained.md).
LEARNING_RATES = {"linear-proto": 0.3, "cosine-linear-proto": 0.1}


def study(heads=None):
    recipes = [
        Recipe(
            data=STORE,
            head=head,
            train_shot=train_shot,
            way=256 // train_shot,
            backbone="efficientnet-lite0",
            frozen=True,
            width=128,
            epochs=20 if head in LEARNING_RATES else 1,
            schedule="one-cycle",
            lr=LEARNING_RATES.get(head, 0.1),
            temperature=10.0 if BUILTIN.head(head).score_name == "cosine" else 1.0,
            validate_every=10,
            # One validation class has 44 images.
            validation_queries=min(16, 44 - train_shot),
        )
        for head in heads or (*LEARNING_RATES, "proto", "cosine-proto")
        # A head that has nothing but a scale to learn is the same after any training.
        for train_shot in ((4, 8, 16, 32) if head in LEARNING_RATES else (16,))
    ]
    readouts = {head: ("swapped", "posterior") for head in LEARNING_RATES}
    readouts |= {"proto": ("est60", "posterior")}
    return Study(
        recipes=recipes,
        stores={STORE: packed(STORE, "cub", embed="efficientnet-lite0", box=True)},
        readouts=readouts,
        train_images={STORE: 5903},
    )
