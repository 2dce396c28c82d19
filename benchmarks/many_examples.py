"""Many examples of every class: the head `logistic` beside the posterior and the classifiers of scikit-learn.

    python benchmarks/many_examples.py                     digits, which come with scikit-learn; ten minutes of one core
    python benchmarks/many_examples.py --data FOLDER       birds, things and groceries, too; an hour
    python benchmarks/many_examples.py --features A.npz    features of your own (see heads.py)

FOLDER has cub84.npz, mini32.npz and grocery.zip (docs/data.md); pictures are embedded once by efficientnet-lite0, of
validation classes (50 birds; 16 things, 200 images each) and of the groceries' training folder (classes of 28 photos or
more). `loose`: several classes, drawn at random once, count as one, so that a class is a collection of several kinds.
Every classifier learns the same examples, drawn anew each time, and is asked 20 others of each class. `all` gives each
class all of its images but these (half of them where it has few), `step` half of the classes 1 image and the others 16,
`tail` 16 falling to 1. Rivals learn unit vectors with their default C and alpha of 1, balanced where classes differ in
size; C of logistic regression is chosen by cross-validation. Prints points over the posterior, with paired 95 %
intervals over draws, and the calibration errors of the posterior, of `logistic` and of scikit-learn's logistic
regression.
"""

import argparse
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from heads import (
    Record,
    Set,
    draw,
    embedded,
    groceries,
    half_width,
    images_of,
    logistic,
    measure_calibration,
    ours,
    read_features,
    theirs,
)
from sklearn.datasets import load_digits
from sklearn.linear_model import RidgeClassifier
from sklearn.svm import LinearSVC

QUERIES = 20
LEAST_PHOTOS = 28  # of a grocery


def read_sets(data: Path | None, cache: Path) -> Iterator[tuple[str, Set, tuple[str, ...]]]:
    """Yield the name of each development set, its images, and the supports that are drawn."""
    digits, kinds = load_digits(return_X_y=True)
    yield "digits", make_set(digits, kinds), ("2", "5", "10", "20", "50", "100")
    if data is None:
        return
    lite0 = "efficientnet-lite0"
    birds, species = embedded(cache, "cub84-val", lite0, images_of(data / "cub84.npz", "val"))
    things, names = embedded(cache, "mini32-val-many", lite0, images_of(data / "mini32.npz", "val", 16, 200))
    photos, goods = embedded(cache, "grocery-train", lite0, groceries(data / "grocery.zip", "train"))
    is_large = np.bincount(goods)[goods] >= LEAST_PHOTOS
    yield "birds", make_set(birds, species), ("10", "20", "step", "tail")
    yield "birds, loose", make_set(birds, merge_classes(species, 5)), ("10", "20", "50", "100")
    yield "things", make_set(things, names), ("10", "20", "50", "100", "step", "tail")
    yield "things, loose", make_set(things, merge_classes(names, 4)), ("10", "20", "50", "100")
    yield "groceries", make_set(photos[is_large], goods[is_large]), ("10", "all", "step", "tail")


def make_set(x: np.ndarray, y: np.ndarray) -> Set:
    """Return images and their classes, counted from 0; there are no images of unknown classes."""
    return Set(x.astype(np.float32), np.unique(y, return_inverse=True)[1], None, (x[:0], y[:0]))


def merge_classes(y: np.ndarray, size: int) -> np.ndarray:
    """Return labels by which so many classes at a time, drawn at random, are one."""
    return (np.random.default_rng(0).permutation(int(y.max()) + 1) // size)[y]


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--features", type=Path, nargs="+", help="with supports 10, 20 and all")
    parser.add_argument("--cache", type=Path, default=Path("runs/heads"))
    parser.add_argument("--draws", type=int, default=20)
    parser.add_argument("--sets", nargs="+", help="only these")
    parser.add_argument("--supports", nargs="+", help="only these")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    sets = read_sets(asked.data, asked.cache)
    if asked.features:
        sets = ((path.stem, read_features(path), ("10", "20", "all")) for path in asked.features)
    columns = ["logistic", "LinearSVC", "RidgeClassifier", "LogisticRegression"]
    print(f"| set | examples | posterior | {' | '.join(columns)} | calibration errors |")
    print(f"|---|---:|---:|{'---:|' * len(columns)}---|")
    for name, of, supports in sets:
        if asked.sets and name not in asked.sets:
            continue
        for support in (one for one in supports if not asked.supports or one in asked.supports):
            if cells := compare(of, support, asked.draws):
                print(f"| {name} | {support} | {' | '.join(cells)} |", flush=True)


def compare(of: Set, support: str, draws: int) -> list[str]:
    """Return the cells of a row; none where the set has too few images."""
    weight = None if support.isdigit() else "balanced"
    entrants = {
        "posterior": ours("posterior"),
        "logistic": ours("logistic"),
        "LinearSVC": theirs(lambda: LinearSVC(class_weight=weight)),
        "RidgeClassifier": theirs(lambda: RidgeClassifier(class_weight=weight)),
        "LogisticRegression": logistic(weight),
    }
    rng, results = np.random.default_rng(sum(map(ord, support))), {name: Record() for name in entrants}
    for _ in range(draws):
        episode = draw(of, None, "natural" if support == "all" else support, rng, QUERIES)
        if episode is None:
            return []
        for name, method in entrants.items():
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of iterations
                answer = method(episode.x, episode.y, episode.query, episode.strange)
            results[name].add(answer, episode)
    accuracy = {name: one.units(by_class=False) for name, one in results.items()}
    first = accuracy.pop("posterior")
    gains = [one - first for one in accuracy.values()]
    errors = (measure_calibration(results[name].sure) for name in ("posterior", "logistic", "LogisticRegression"))
    cells = [f"{first.mean():.1f}", *(f"{gain.mean():+.1f} ± {half_width(gain):.1f}" for gain in gains)]
    return [*cells, " ".join(f"{error:.1f}" for error in errors)]


if __name__ == "__main__":
    main()
