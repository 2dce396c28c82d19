"""The paper's study: 6 settings x 6 heads x 4 train shots = 144 models, and the pretrainings that some begin with.

    anyshot pack cub CUB_200_2011 --fit frame -o data/cub       (likewise mini; tiered and meta-inat without --fit)
    anyshot study paper --dry-run                   what it would cost here
    anyshot study paper --only cub/conv4/frn        one grid of it
    anyshot study paper --on ray://HEAD:10001       all of it, on a cluster of GPUs that share a disk

The paper's own runs took one GPU "hours to days" each. What it leaves open was filled from the code it builds on or
chosen (marked so); each exception that its appendix makes stands beside our words for it.
"""

from dataclasses import replace

from anyshot.recipe import Recipe
from anyshot.study.study import Study, packed

SHOTS = (4, 8, 16, 32)
HEADS = ("proto", "cosine-proto", "feat", "cosine-feat", "frn", "cosine-frn")
CLASSES = {"cub": 100, "mini": 64, "tiered": 351}
# For training, validation and test. Of meta-iNat's 243,986 images 192,270 are of the training classes.
IMAGES = {
    "cub": (5903, 2927, 2958),
    "mini": (38400, 9600, 12000),
    "tiered": (448695, 124261, 206209),
    "meta-inat": (192270, 0, 51716),
}
SETTINGS = (
    ("cub", "conv4"),
    ("cub", "resnet12"),
    ("meta-inat", "conv4"),
    ("mini", "conv4"),
    ("mini", "resnet12"),
    ("tiered", "resnet12"),
)


def study(heads=None):
    recipes = [
        recipe(data, backbone, head, train_shot)
        for data, backbone in SETTINGS
        for head in heads or HEADS
        for train_shot in SHOTS
    ]
    # PCA and EST are readouts of the trained Euclidean ProtoNets, with 60 dimensions as in EST's own paper. The scores
    # of the ProtoNets are swapped (Fig. 5).
    readouts = {"proto": ("swapped", "pca60", "est60"), "cosine-proto": ("swapped",)}
    # Resized crops are drawn from whole photos, as by the authors.
    fits = {data: "frame" if crop == "resized-crop" else None for data, crop in CROP.items()}
    stores = {data: packed(data, data, fit=fits[data]) for data in IMAGES}
    return Study(recipes=recipes, stores=stores, readouts=readouts, train_images=IMAGES)


def recipe(data, backbone, head, train_shot):
    is_resnet, is_feat, is_frn = backbone == "resnet12", "feat" in head, "frn" in head
    way = 256 // train_shot
    # For practical reasons the paper has a quarter fewer classes in a batch of ResNet-12 ProtoNets on CUB and of every
    # ResNet-12 FEAT.
    if is_resnet and (is_feat or (data == "cub" and not is_frn)):
        way = way * 3 // 4
    model = Recipe(
        data=data,
        backbone=backbone,
        head=head,
        train_shot=train_shot,
        way=way,
        # Every head starts at 1: the paper's trainings are long enough for the scale of a cosine to grow.
        temperature=1.0,
        augment=(CROP[data], "flip", "jitter"),
        **from_scratch(data, backbone),
    )
    # One validation class of CUB has 44 images.
    if data == "cub":
        model = replace(model, validation_queries=min(16, 44 - train_shot))
    # ResNet-12 is pooled by the mean over positions; at Conv-4 ProtoNet keeps all positions and FEAT their maximum.
    if is_resnet and not is_frn:
        model = replace(model, embed="mean")
    # FRN's features on ResNet-12 are divided by the square root of their width, which only rescales its logits.
    if is_resnet and is_frn:
        model = replace(model, feature_scale=640**-0.5)
    # Conv-4 FEATs that do not train with Adam diverged at the common learning rate: a tenth of it.
    if is_feat and not is_resnet and model.optimiser == "sgd":
        model = replace(model, lr=model.lr / 10)
    # ResNet-12 FEATs are pretrained as linear classifiers, then finetuned with a learning rate for the backbone and
    # another for the attention, both a tenth from halfway on; 200 epochs, 15 on the much larger tiered-ImageNet.
    if is_feat and is_resnet:
        epochs, drop = (15, 8) if data == "tiered" else (200, 100)
        model = replace(model, lr=1e-3, head_lr=1e-2, epochs=epochs, drops=(drop,), validate_every=5)
        model = replace(model, start=pretraining("linear", data))
    # ResNet-12 FRNs of both kinds on mini- and tiered-ImageNet begin with the pretrained backbone of FRN's authors: we
    # pretrain it as they did, and finetune as they did.
    if is_frn and is_resnet and data != "cub":
        epochs, drops = (60, (30, 50)) if data == "tiered" else (150, (70, 120))
        model = replace(model, lr=1e-3, epochs=epochs, drops=drops, validate_every=5)
        model = replace(model, start=pretraining("class-matrix", data))
    return model


# Images of CUB and mini-ImageNet are larger than the network's input, the others have its size.
CROP = {"cub": "resized-crop", "mini": "resized-crop", "tiered": "crop", "meta-inat": "crop"}


def from_scratch(data, backbone):
    """Optimiser, epochs and validation of a model that begins with random weights."""
    if data == "meta-inat":  # Adam, halved every 20 epochs; there are no validation classes: the last epoch counts
        common = {"optimiser": "adam", "lr": 1e-3, "epochs": 100, "validate_every": 0}
        return {**common, "drops": (20, 40, 60, 80), "factor": 0.5}
    if data == "cub" and backbone == "conv4":
        return {"epochs": 800, "drops": (400,), "validate_every": 20}
    if data == "cub":
        return {"epochs": 1200, "drops": (400, 800), "validate_every": 20}
    if data == "mini":  # ResNet-12 ProtoNets from scratch like Conv-4: chosen
        return {"epochs": 350, "drops": (200, 300), "validate_every": 5}
    return {"epochs": 90, "drops": (30, 60), "validate_every": 5}  # tiered: chosen


def pretraining(head, data):
    """The stage before finetuning: batches of 128 images of all classes, validated at 1 shot (chosen). On CUB, where
    FRN has none, FEAT's pretraining takes FRN's settings for mini-ImageNet."""
    epochs, drops, every = (90, (30, 60), 5) if data == "tiered" else (350, (200, 300), 25)
    return Recipe(
        data=data,
        backbone="resnet12",
        head=head,
        train_shot=1,
        way=CLASSES[data],
        batch=128,
        feature_scale=640**-0.5 if head == "class-matrix" else 1.0,
        augment=(CROP[data], "flip", "jitter"),
        epochs=epochs,
        drops=drops,
        validate_every=every,
    )
