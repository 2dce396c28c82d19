"""Photos that are present twice: are genuine new photos refused, and are the stated numbers true?

    python benchmarks/twins.py --data FOLDER [--draws 5]

FOLDER has cub84.npz and grocery.zip (docs/data.md). Of 16 validation classes of CUB, or 16 classes of the groceries'
training folder, 15 photos each are learned and 15 others asked; a share of the learned ones has a twin, which is the
photo cropped by two pixels on each side and encoded again. `reject` is 0.05. For each head and share: genuine photos
refused, what the classifier states of that and of its calibration error, and the calibration error on the new photos.
"""

import argparse
import io
from pathlib import Path

import numpy as np
from heads import groceries, images_of
from PIL import Image

from anyshot import FewShotClassifier
from anyshot.classify.calibration import calibration_error
from anyshot.models.embedders import load_embedder

CLASSES, LEARNED = 16, 15
SHARES = (0.0, 0.3, 0.5, 0.7, 0.9, 1.0)


def make_twin(picture: np.ndarray) -> np.ndarray:
    """The picture cropped by two pixels on each side, and encoded again."""
    out = io.BytesIO()
    Image.fromarray(picture[2:-2, 2:-2]).resize(picture.shape[1::-1]).save(out, "JPEG", quality=85)
    return np.asarray(Image.open(out))


def measure(features: np.ndarray, twins: np.ndarray, head: str, share: float, rng: np.random.Generator) -> list[float]:
    """In percent: refused, refused as stated, calibration error, and the same as stated; features "class photo d"."""
    d = features.shape[-1]
    learned, asked = features[:, :LEARNED], features[:, LEARNED:]
    labels = np.repeat(np.arange(CLASSES), LEARNED)
    chosen = np.flatnonzero(rng.permutation(len(labels)) < round(share * len(labels)))
    rows = np.concatenate([learned.reshape(-1, d), twins[:, :LEARNED].reshape(-1, d)[chosen]])
    fitted = FewShotClassifier(head).fit(rows, np.concatenate([labels, labels[chosen]]))
    new, owner = asked.reshape(-1, d), np.repeat(np.arange(CLASSES), asked.shape[1])
    return [
        100 * float(1 - fitted.is_known(new).mean()),
        100 * float(1 - fitted.coverage_.accepted),
        100 * calibration_error(fitted.predict_proba(new), owner),
        100 * fitted.support_calibration_error(),
    ]


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--draws", type=int, default=5)
    asked = parser.parse_args()
    embedder = load_embedder("efficientnet-lite0:160")
    files, codes = groceries(asked.data / "grocery.zip", "train")()
    large = [label for label in np.unique(codes) if (codes == label).sum() >= 2 * LEARNED][:CLASSES]
    chosen = [place for label in large for place in np.flatnonzero(codes == label)[: 2 * LEARNED]]
    sets = {
        "birds": images_of(asked.data / "cub84.npz", "val", CLASSES, 2 * LEARNED)()[0],
        "groceries": np.stack([embedder.crop_square(files[place]) for place in chosen]),
    }
    for name, images in sets.items():
        both = [embedder.features(x) for x in (images, np.stack([make_twin(one) for one in images]))]
        features, twins = (x.reshape(CLASSES, 2 * LEARNED, -1) for x in both)
        for head in ("posterior", "cosine-proto"):
            for share in SHARES:
                rows = []
                for draw in range(asked.draws):
                    rng = np.random.default_rng(draw)
                    order = np.stack([rng.permutation(2 * LEARNED) for _ in range(CLASSES)])[..., None]
                    drawn = [np.take_along_axis(x, order, 1) for x in (features, twins)]
                    rows.append(measure(drawn[0], drawn[1], head, share, rng))
                cells = " | ".join(f"{value:.1f}" for value in np.mean(rows, 0))
                print(f"| {name} | {head} | {share:.0%} | {cells} | {max(row[0] for row in rows):.1f} |", flush=True)


if __name__ == "__main__":
    main()
