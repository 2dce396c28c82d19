"""mini-ImageNet at 32x32: the paper's study on everyday things that two cores can carry.

    anyshot study mini32 --images MINI_IMAGENET     or, as one file: --images mini32.npz
    anyshot study mini32                             32 models, about 4 hours on two cores
    anyshot study mini32 --only proto,cosine-proto   16 of them, two seeds each

Conv-4 of 64 channels; everything else is the paper's protocol, for 12 epochs with a one-cycle schedule instead of 350.
"""

from _small import small_study


def study(heads=None):
    return small_study(
        "mini32",
        {"kind": "mini"},
        heads,
        # What an evening carries; accuracies would still rise a little (validation classes at 16 shots after 6, 12 and
        # 24 epochs: proto 64.6, 67.0 and 69.1 %, cosine-proto 63.3, 66.0 and 67.3 %).
        epochs=12,
        train_images=38400,
        seeds=lambda head: 2 if head in ("proto", "cosine-proto") else 1,
        validation_queries=lambda train_shot: 16,
    )
