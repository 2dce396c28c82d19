"""CUB at 32x32 with ResNet-12: is a larger backbone more robust, as the paper finds?

    anyshot study cub32-resnet12                    8 models, about an hour on two cores
    anyshot publish cub32-resnet12 -o results/cub32-resnet12

Half of the paper's widths (32 to 320 channels): of its own an image costs 3.1 GFLOP in training, four times as much.
Features are the mean over positions, as on the paper's ResNet-12. The schedule is that of cub32 in 16 epochs; its
learning rate was tried against 0.03 on validation classes and stayed.
"""

from _small import small_study


def study(heads=None):
    return small_study(
        "cub32",
        {"kind": "cub", "box": True},
        heads or ("proto", "cosine-proto"),
        epochs=16,
        train_images=5903,
        seeds=lambda head: 1,
        validation_queries=lambda train_shot: min(16, 44 - train_shot),
        backbone="resnet12",
        width=32,
        embed="mean",
    )
