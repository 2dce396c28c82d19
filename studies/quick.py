"""The quick study: does shot sensitivity show on glyphs, and what do cosine heads do to it?

    anyshot study quick              proto and cosine-proto, 4 train shots each: under 5 minutes on two cores
    anyshot study quick --heads all  every head of the paper: about 20 minutes

It demonstrates the measurement on generated images. How large the effect is on real images is another study's business.
"""

from anyshot import BUILTIN, Recipe, Study
from anyshot.data.glyphs import glyphs

PROJECTIONS = ("pca16", "est16")  # half of Conv-4's 32 numbers for a 28x28 image


def study(heads=None):
    recipes = [
        Recipe(
            data="glyphs",
            head=head,
            train_shot=train_shot,
            way=256 // train_shot,
            size=28,
            width=32,
            epochs=6,
            schedule="one-cycle",
            lr=BUILTIN.head(head).lr,
            # A cosine is at most 1, and six epochs are too few for its scale to grow. (Validation classes at 1 shot:
            # 43 % from a temperature of 1, 48 % from 10; Euclidean logits 50 and 48 %.)
            temperature=10.0 if BUILTIN.head(head).score_name == "cosine" else 1.0,
            validate_every=6,
        )
        for head in heads or ("proto", "cosine-proto")
        for train_shot in (4, 8, 16, 32)
    ]
    readouts = {head: ("swapped",) for head in BUILTIN.heads if BUILTIN.fits("swapped", head)}
    readouts["proto"] = ("swapped", *PROJECTIONS)
    readouts |= {head: (*readouts[head], "posterior") for head in ("proto", "cosine-proto", "feat", "cosine-feat")}
    stores = {"glyphs": lambda data: glyphs(data / "glyphs")}
    return Study(recipes=recipes, stores=stores, readouts=readouts, train_images={"glyphs": 7680})
