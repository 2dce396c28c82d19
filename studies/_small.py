"""The paper's study at 32x32, sized for two cores: what cub32 and mini32 share."""

from anyshot import BUILTIN, Recipe, Study, packed

PAPER_HEADS = ("proto", "cosine-proto", "feat", "cosine-feat", "frn", "cosine-frn")
SHOTS = (4, 8, 16, 32)


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
            lr=BUILTIN.head(head).lr,
            temperature=BUILTIN.head(head).temperature,
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
    readouts = {head: ("swapped",) for head in BUILTIN.heads if BUILTIN.fits("swapped", head)}
    readouts["proto"] = ("swapped", "pca60", "est60")
    readouts |= {head: (*readouts[head], "posterior") for head in ("proto", "cosine-proto", "feat", "cosine-feat")}
    readouts["unit-proto"] = ("posterior",)
    return Study(
        recipes=recipes,
        stores={data: packed(data, size=32, **packing)},
        readouts=readouts,
        train_images={data: train_images},
    )
