"""The paper's Table 4: FRN as its authors published it (frn-old) against its new form, on meta-iNat with Conv-4.

anyshot study paper-frn                          8 models; those of frn are the ones of `anyshot study paper`
anyshot experiment compare frn-forms runs/paper-frn
"""

from paper import IMAGES, SHOTS, recipe

from anyshot import Study, packed


def study(heads=None):
    recipes = [recipe("meta-inat", "conv4", head, shot) for head in heads or ("frn", "frn-old") for shot in SHOTS]
    return Study(recipes=recipes, stores={"meta-inat": packed("meta-inat", "meta-inat")}, train_images=IMAGES)
