"""mini-ImageNet at 32x32: the paper's study on everyday things that two cores can carry.

    anyshot pack mini MINI_IMAGENET --size 32 -o data/mini32    or, as one file: anyshot pack npz mini32.npz ...
    anyshot study mini32                             24 models, about 3 hours on two cores
    anyshot study mini32 --only proto,cosine-proto   8 of them

Conv-4 of 64 channels; everything else is the paper's protocol, for 12 epochs with a one-cycle schedule instead of 350.
"""

from _small import small_study


def study(heads=None):
    return small_study(
        "mini32",
        ("mini", "--size 32"),
        heads,
        # About as many updates as cub32's, and what an evening carries; accuracies would still rise (validation
        # classes, cosine-proto at 16 shots, 6 and 12 epochs: 63.3 and 66.0 %).
        epochs=12,
        train_images=38400,
        seeds=lambda head: 1,
        validation_queries=lambda train_shot: 16,
    )
