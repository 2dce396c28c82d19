"""CUB at 32x32 where models for 32 shots get as many updates as those for 4: is it the shot, or the shorter training?

    anyshot study cub32 --ready -o runs/cub32-updates      the models for 4, 8 and 16 shots, as trained by us
    anyshot study cub32-updates --images cub32.npz         two models for 32 shots, about half an hour of one core
    anyshot publish cub32-updates -o results/cub32-updates

An epoch of cub32 ends when too few classes have a train shot's images left: after 22, 21, 18 and 12 batches for 4, 8,
16 and 32 shots. So in 40 epochs the models for 4 shots get 880 updates and see 95 % of the images in each, and those
for 32 shots 480 and 52 %. Here these train for 73 epochs, which is 876 updates. Everything else is cub32's recipe; the
other models are its own.
"""

from dataclasses import replace

from _small import small_study

EPOCHS = 73


def study(heads=None):
    base = small_study(
        "cub32",
        {"kind": "cub", "box": True},
        heads or ("proto", "cosine-proto"),
        epochs=40,
        train_images=5903,
        seeds=lambda head: 1,
        # One validation class has 44 images.
        validation_queries=lambda train_shot: min(16, 44 - train_shot),
    )
    return replace(base, recipes=[_with_as_many_updates(recipe) for recipe in base.recipes])


def _with_as_many_updates(recipe):
    return replace(recipe, epochs=EPOCHS, validate_every=EPOCHS // 8) if recipe.train_shot == 32 else recipe
