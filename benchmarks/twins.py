"""Photos that are present twice, and scenes of several frames: are genuine new photos refused, are stated numbers true?

    python benchmarks/twins.py --data FOLDER [--draws 5] [--parts twins scenes] [--split val]

FOLDER has cub84.npz, mini32.npz and grocery.zip (docs/data.md). Of 16 validation classes of CUB (birds) or of
mini-ImageNet (things), or 16 classes of the groceries' training folder (`--split train`: 16 training classes of birds
and things, which nothing was chosen on), 15 photos each are learned and 15 others asked; a share of the learned ones
has a twin, which is the photo cropped by two pixels on each side and encoded again. `reject` is 0.05. For each head
and share, each on the new photos and as the classifier states it from its examples when they are left out: the share
refused, the expected calibration error, the accuracy, and by how much the mean probability of the answers is above it.
All are of the answers of all draws together, for the calibration error of few answers is too large by chance; 95 %
intervals are over draws (jackknife). Last, the largest share refused in one draw.

Scenes: of 12 classes drawn from these 16, 5 photos each are scenes of 4 frames, and the 25 others are asked. A frame
is the photo cropped and with other brightness and contrast, each by up to 10, 20, 35 or 40 %, with 35 % also turned by
up to 14 degrees; new photos are changed alike. The scenes are found by the classifier, or named.
"""

import argparse
import io
from itertools import product
from pathlib import Path

import numpy as np
from heads import groceries, half_width, images_of, measure_calibration
from PIL import Image, ImageEnhance
from scipy.special import softmax

from anyshot import FewShotClassifier
from anyshot.models.embedders import load_embedder

HEADS = ("posterior", "cosine-proto")
CLASSES, LEARNED = 16, 15
SHARES = (0.0, 0.3, 0.5, 0.7, 0.9, 1.0)
DRAWN, SCENES, FRAMES = 12, 5, 4  # classes, scenes and frames of the second part
CHANGES = ((0.1, 0), (0.2, 0), (0.4, 0), (0.35, 14))  # most of crop, brightness and contrast; most degrees
Draw = list[tuple[float, np.ndarray]]  # what `ask` returns


def make_twin(picture: np.ndarray) -> np.ndarray:
    """The picture cropped by two pixels on each side, and encoded again."""
    out = io.BytesIO()
    Image.fromarray(picture[2:-2, 2:-2]).resize(picture.shape[1::-1]).save(out, "JPEG", quality=85)
    return np.asarray(Image.open(out))


def make_frame(picture: np.ndarray, most: float, degrees: float, rng: np.random.Generator) -> np.ndarray:
    """The picture cropped and with other brightness and contrast, each by at most this share; turned, if at all."""
    if degrees:
        turned = Image.fromarray(picture).rotate(rng.uniform(-degrees, degrees), Image.Resampling.BILINEAR)
        picture = np.asarray(turned)
    height, width = picture.shape[:2]
    kept = [int(side * (1 - rng.uniform(0, most))) for side in (height, width)]
    top, left = rng.integers(0, height - kept[0] + 1), rng.integers(0, width - kept[1] + 1)
    frame = Image.fromarray(picture[top : top + kept[0], left : left + kept[1]]).resize((width, height))
    for change in (ImageEnhance.Brightness, ImageEnhance.Contrast):
        frame = change(frame).enhance(1 + rng.uniform(-most, most))
    return np.asarray(frame)


def measure(features: np.ndarray, twins: np.ndarray, head: str, share: float, rng: np.random.Generator) -> Draw:
    """What `ask` returns where a share of the photos has twins; features "class photo d"."""
    d = features.shape[-1]
    learned, asked = features[:, :LEARNED], features[:, LEARNED:]
    labels = np.repeat(np.arange(CLASSES), LEARNED)
    chosen = np.flatnonzero(rng.permutation(len(labels)) < round(share * len(labels)))
    rows = np.concatenate([learned.reshape(-1, d), twins[:, :LEARNED].reshape(-1, d)[chosen]])
    fitted = FewShotClassifier(head).fit(rows, np.concatenate([labels, labels[chosen]]))
    return ask(fitted, asked)


def measure_scenes(features: np.ndarray, head: str, are_named: bool, rng: np.random.Generator) -> Draw:
    """The same for scenes of several frames; features "class photo frame d"."""
    features = features[rng.permutation(len(features))[:DRAWN]]
    features = np.take_along_axis(features, rng.random(features.shape[:2]).argsort(1)[..., None, None], 1)
    scenes = np.repeat(np.arange(DRAWN * SCENES), FRAMES)
    rows = features[:, :SCENES].reshape(len(scenes), -1)
    fitted = FewShotClassifier(head).fit(rows, scenes // SCENES, groups=scenes if are_named else None)
    return ask(fitted, features[:, SCENES:, 0])


def ask(fitted: FewShotClassifier, new: np.ndarray) -> Draw:
    """For new photos "class photo d", and for examples that are left out: the share refused; the largest probability of
    each answer, and whether it is right."""
    assert fitted.coverage_ is not None
    rows, owner = new.reshape(-1, new.shape[-1]), np.repeat(np.arange(len(new)), new.shape[1])
    logits, own = fitted.leave_one_out()
    refused = 1 - fitted.is_known(rows).mean(), 1 - fitted.coverage_.accepted
    asked = (fitted.predict_proba(rows), owner), (softmax(logits, axis=1), own)
    return [
        (float(share), np.stack([said.max(1), said.argmax(1) == right], 1))
        for share, (said, right) in zip(refused, asked, strict=True)
    ]


def summarize(draws: list[Draw]) -> np.ndarray:
    """In percent: refused, calibration error, accuracy, mean probability less accuracy, each real and stated."""
    values = []
    for refused, sure in (zip(*one, strict=True) for one in zip(*draws, strict=True)):
        largest, accuracy = 100 * np.concatenate(sure).mean(0)
        values.append([100 * np.mean(refused), measure_calibration(list(sure)), accuracy, largest - accuracy])
    return np.array(values).T.ravel()


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--draws", type=int, default=5, help="two or more")
    parser.add_argument("--parts", nargs="+", choices=("twins", "scenes"), default=("twins", "scenes"))
    parser.add_argument("--split", choices=("val", "train"), default="val")
    asked = parser.parse_args()
    embedder = load_embedder("efficientnet-lite0:160")
    packed = {"birds": "cub84.npz", "things": "mini32.npz"}
    sets = {name: images_of(asked.data / file, asked.split, CLASSES, 2 * LEARNED)()[0] for name, file in packed.items()}
    if asked.split == "val":
        files, codes = groceries(asked.data / "grocery.zip", "train")()
        large = [label for label in np.unique(codes) if (codes == label).sum() >= 2 * LEARNED][:CLASSES]
        chosen = [place for label in large for place in np.flatnonzero(codes == label)[: 2 * LEARNED]]
        sets["groceries"] = np.stack([embedder.crop_square(files[place]) for place in chosen])
    for name, images in sets.items():
        if "twins" in asked.parts:
            both = [embedder.features(x) for x in (images, np.stack([make_twin(one) for one in images]))]
            features, twins = (x.reshape(CLASSES, 2 * LEARNED, -1) for x in both)
            for head, share in product(HEADS, SHARES):
                rows = []
                for draw in range(asked.draws):
                    rng = np.random.default_rng(draw)
                    order = np.stack([rng.permutation(2 * LEARNED) for _ in range(CLASSES)])[..., None]
                    drawn = [np.take_along_axis(x, order, 1) for x in (features, twins)]
                    rows.append(measure(drawn[0], drawn[1], head, share, rng))
                print_row([name, head, f"{share:.0%} twins"], rows)
        for most, degrees in CHANGES if "scenes" in asked.parts else ():
            rng = np.random.default_rng(0)
            frames = np.stack([make_frame(one, most, degrees, rng) for one in images for _ in range(FRAMES)])
            features = embedder.features(frames).reshape(CLASSES, 2 * LEARNED, FRAMES, -1)
            for head, are_named in product(HEADS, (False, True)):
                draws = [np.random.default_rng(draw) for draw in range(asked.draws)]
                rows = [measure_scenes(features, head, are_named, rng) for rng in draws]
                print_row(
                    [name, head, f"{most:.0%} changed, {degrees}° turned", "named" if are_named else "found"], rows
                )


def print_row(words: list[str], draws: list[Draw]) -> None:
    """Print what `summarize` returns with intervals, and the largest share that was refused in one draw."""
    left_out = np.stack([summarize(draws[:n] + draws[n + 1 :]) for n in range(len(draws))])
    widths = [half_width(values) * (len(draws) - 1) for values in left_out.T]
    cells = (f"{value:.1f} ± {width:.1f}" for value, width in zip(summarize(draws), widths, strict=True))
    print(f"| {' | '.join([*words, *cells])} | {100 * max(new[0] for new, _ in draws):.1f} |", flush=True)


if __name__ == "__main__":
    main()
