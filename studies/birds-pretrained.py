"""Does shot sensitivity matter on strong features? Heads trained on CUB as a pretrained network sees it.

    anyshot pack cub CUB_200_2011.tgz --box --size 84 --embed efficientnet-lite0 -o data/cub84-lite0
    anyshot study birds-pretrained                  8 heads, about two minutes once the features are there

The backbone stays as it comes with the package; a head learns a linear map of its 1,280 numbers, once for every train
shot. Beside them both scores on the features as they are, which no train shot has touched. Images are cut to the bird's
box and stored at 84 pixels.
"""

from anyshot import Recipe, Study, packed

LINEAR = ("linear-proto", "cosine-linear-proto")
PLAIN = ("proto", "cosine-proto")


def study(heads=None):
    recipes = [
        Recipe(
            data="cub84-lite0",
            head=head,
            train_shot=train_shot,
            way=256 // train_shot,
            backbone="efficientnet-lite0",
            frozen=True,
            width=128,
            epochs=EPOCHS if head in LINEAR else 1,
            schedule="one-cycle",
            lr=0.1,
            temperature=10.0 if "cosine" in head else 1.0,
            validate_every=5,
            # One validation class has 44 images.
            validation_queries=min(16, 44 - train_shot),
        )
        for head in heads or (*LINEAR, *PLAIN)
        for train_shot in (4, 8, 16, 32)
        if head in LINEAR or train_shot == 4
    ]
    readouts = {"linear-proto": ("posterior",), "cosine-linear-proto": ("posterior",)}
    readouts |= {"proto": ("est60", "posterior"), "cosine-proto": ()}
    stores = {"cub84-lite0": packed("cub84-lite0", "cub", "--box --size 84 --embed efficientnet-lite0")}
    return Study(recipes=recipes, stores=stores, readouts=readouts, train_images={"cub84-lite0": 5903})
