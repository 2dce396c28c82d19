"""Which unlabelled picture to label next? The ranking of `advise --unlabelled` against other rules and random choice.

    python benchmarks/labelling.py --data FOLDER [--cache runs/labelling] [--draws 40] [--sets birds-train things-train]

FOLDER has cub84.npz, mini32.npz and grocery.zip (docs/data.md). Training and validation classes only, pictures of the
groceries' training folder. Each draw takes 16 classes, with 2 or 6 labelled pictures of each, 8 to test on, and the
others as the pool, as many of each class or from all to a tenth of them (`tail`). A rule ranks the pool once; its first
8, 16 and 32 pictures get their labels. The table has the gain in accuracy in points over no new labels, and in brackets
that over random choice with its 95 % interval over draws, which are the same for every rule.
"""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from heads import embedded, groceries, images_of

from anyshot import FewShotClassifier
from anyshot.inspect.unlabelled import rank_unlabelled

MODEL, WAY, TESTED, DIRECTIONS = "efficientnet-lite0:160", 16, 8, 320
BUDGETS = (WAY // 2, WAY, 2 * WAY)
Order = list[int]


def read_set(name: str, data: Path, cache: Path) -> tuple[np.ndarray, np.ndarray]:
    """Unit vectors, in 320 random directions, and classes."""
    sources: dict[str, Callable[..., Any]] = {
        "birds-train": images_of(data / "cub84.npz", "train", 50, 40),
        "birds-val": images_of(data / "cub84.npz", "val", 50, 40),
        "things-train": images_of(data / "mini32.npz", "train", 50, 40),
        "things-val": images_of(data / "mini32.npz", "val", 16, 40),
        "groceries-train": groceries(data / "grocery.zip", "train"),
    }
    x, y = embedded(cache, name, MODEL, sources[name])
    x = x / np.linalg.norm(x, axis=1, keepdims=True)
    x = x @ np.random.default_rng(0).normal(size=(x.shape[1], DIRECTIONS))
    return (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32), y


def rank_by_rules(
    x: np.ndarray, y: np.ndarray, pool: np.ndarray, rng: np.random.Generator, many: int
) -> dict[str, Order]:
    """The order in which each rule takes the pool."""
    probabilities = np.sort(FewShotClassifier().fit(x, y).predict_proba(pool), axis=1)
    unsure, narrow = 1 - probabilities[:, -1], 1 - probabilities[:, -1] + probabilities[:, -2]
    squares = np.maximum(2 - 2 * pool @ pool.T, 0)
    density = np.exp(-squares / np.median(squares)).mean(1)
    distance, centres = np.maximum(2 - 2 * pool @ x.T, 0).min(1), list[int]()
    for _ in range(many):
        centres.append(int(distance.argmax()))
        distance = np.minimum(distance, squares[:, centres[-1]])
    return {
        "random": rng.permutation(len(pool))[:many].tolist(),
        "least confidence": np.argsort(-unsure)[:many].tolist(),
        "margin": np.argsort(-narrow)[:many].tolist(),
        "margin x density": np.argsort(-narrow * density)[:many].tolist(),
        "k-center": centres,
        "uncertainty herding": [one.example for one in rank_unlabelled(x, y, pool, many)],
    }


def simulate(x: np.ndarray, y: np.ndarray, shot: int, is_even: bool, draws: int) -> dict[str, list[list[float]]]:
    """Gains in points by rule, draw and budget."""
    gains: dict[str, list[list[float]]] = {}
    for draw in range(draws):
        rng = np.random.default_rng((draw, shot, is_even))
        rows: dict[str, list[int]] = {"labelled": [], "pool": [], "test": []}
        for place, label in enumerate(rng.permutation(np.unique(y))[:WAY]):
            mine = rng.permutation(np.flatnonzero(y == label)).tolist()
            rest = mine[TESTED + shot :]
            most = len(rest) if is_even else max(1, round(len(rest) * 0.1 ** (place / (WAY - 1))))
            rows["test"] += mine[:TESTED]
            rows["labelled"] += mine[TESTED : TESTED + shot]
            rows["pool"] += rest[:most]
        test, pool = rows["test"], rows["pool"]

        def accuracy(examples: list[int], test: list[int] = test) -> float:
            return 100 * FewShotClassifier().fit(x[examples], y[examples]).score(x[test], y[test])

        before = accuracy(rows["labelled"])
        for rule, order in rank_by_rules(x[rows["labelled"]], y[rows["labelled"]], x[pool], rng, BUDGETS[-1]).items():
            chosen = [pool[place] for place in order]
            gained = [accuracy(rows["labelled"] + chosen[:many]) - before for many in BUDGETS]
            gains.setdefault(rule, []).append(gained)
    return gains


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--cache", type=Path, default=Path("runs/labelling"))
    parser.add_argument("--draws", type=int, default=40)
    parser.add_argument("--sets", nargs="*", default=["birds-train", "things-train", "birds-val", "groceries-train"])
    asked = parser.parse_args()
    for name in asked.sets:
        x, y = read_set(name, asked.data, asked.cache)
        for shot in (2, 6):
            print(f"{name}, {shot} labelled pictures of each class: 8, 16, 32 labels; the same from a tail", flush=True)
            both = [simulate(x, y, shot, is_even, asked.draws) for is_even in (True, False)]
            for rule in both[0]:
                cells = []
                for gains in both:
                    over = np.array(gains[rule]) - np.array(gains["random"])
                    half = 1.96 * over.std(0, ddof=1) / np.sqrt(len(over))
                    means = zip(np.mean(gains[rule], 0), over.mean(0), half, strict=True)
                    cells += [f"{gain:+.1f} ({more:+.1f} ± {width:.1f})" for gain, more, width in means]
                print(f"| {rule} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
