"""The paper's study at 32x32, sized for two cores: what cub32 and mini32 share."""

from anyshot import PACKAGE, Recipe, Study, packed

PAPER_HEADS = ("proto", "cosine-proto", "feat", "cosine-feat", "frn", "cosine-frn")
SHOTS = (4, 8, 16, 32)
# Scores of unit vectors are small too.
TEMPERATURES = {"unit-proto": 10.0, "posterior": 30.0}


def small_study(data, packing, heads, epochs, train_images, seeds, validation_queries, mixed=(), **others):
    """`packing` is what `packed` is told of the public images; `seeds(head)` says how often a head
    is trained, `validation_queries(train_shot)` how many queries its validation classes have images for; the heads
    `mixed` are also trained, at the first two seeds, with a shot drawn anew for every batch, and validated at 16 shots;
    `others` are further fields of all recipes."""
    recipes = [
        Recipe(
            data=data,
            head=head,
            train_shot=train_shot,
            way=256 // train_shot,
            mixed=shots,
            size=32,
            augment=("crop", "flip", "jitter"),
            epochs=epochs,
            schedule="one-cycle",
            # FEAT on Conv-4 diverges at this learning rate; the paper divides it by 10 there, and so do we.
            lr=0.01 if "feat" in head else 0.1,
            # A cosine is at most 1, and so short a training does not let its temperature grow from 1 (validation
            # classes of cub32, 12 epochs, 8-shot, from 1 and from 10: cosine-proto 73.7 and 77.9 %, cosine-frn 76.0 and
            # 79.4 %, cosine-feat 46.6 and 68.3 %).
            temperature=TEMPERATURES.get(head, 10.0 if "cosine" in head else 1.0),
            validate_every=max(1, epochs // 8),
            validation_queries=validation_queries(train_shot),
            seed=seed,
            **others,
        )
        for seed in range(max(map(seeds, heads or PAPER_HEADS)))  # a whole study first, then the next seed
        for head in heads or PAPER_HEADS
        if seed < seeds(head)
        for train_shot, shots in [
            *((shot, ()) for shot in SHOTS),
            *([(16, SHOTS)] if head in mixed and seed < 2 else []),
        ]
    ]
    readouts = {head: ("swapped",) for head in PACKAGE.heads if PACKAGE.fits("swapped", head)}
    readouts["proto"] = ("swapped", "pca60", "est60")
    readouts |= {head: (*readouts[head], "posterior") for head in ("proto", "cosine-proto", "feat", "cosine-feat")}
    readouts["unit-proto"] = ("posterior",)
    return Study(
        recipes=recipes,
        stores={data: packed(data, size=32, **packing)},
        readouts=readouts,
        train_images={data: train_images},
    )
