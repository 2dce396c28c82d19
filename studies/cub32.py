"""CUB at 32x32: the paper's study on birds that two cores can carry.

    anyshot study cub32 --images CUB_200_2011.tgz   68 models, about 4 hours on two cores; or --images cub32.npz
    anyshot study cub32 --only proto,cosine-proto   32 of them, four seeds each
    anyshot study cub32 --ready                     the two ProtoNets as trained by us: a minute

Images are cut to the bird's box, Conv-4 has 64 channels; everything else is the paper's protocol, for 40 epochs with a
one-cycle schedule instead of 800.
"""

from _small import small_study


def study(heads=None):
    return small_study(
        "cub32",
        {"kind": "cub", "box": True},
        heads,
        epochs=40,
        train_images=5903,
        # Four seeds where the paper's headline is: the difference between the two ProtoNets.
        seeds=lambda head: 4 if head in ("proto", "cosine-proto") else 2,
        # Does drawing the train shot at random do what a cosine does?
        mixed=("proto", "cosine-proto"),
        # One validation class has 44 images.
        validation_queries=lambda train_shot: min(16, 44 - train_shot),
    )
