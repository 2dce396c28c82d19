"""What halving and doubling each constant of the head `posterior` changes, on development classes.

    python benchmarks/constants.py --data FOLDER            a Markdown table: some ten minutes of one core

FOLDER has cub84.npz, cub32.npz, mini32.npz and grocery.zip, as for benchmarks/heads.py, whose sets, supports and cache
of features are used: validation classes of CUB (birds, also by Conv-4) and of mini-ImageNet (things), and the
groceries that heads.py has as a base; features in at most 320 random directions. Cells are these four sets, 5 and 15
classes, and all supports. For each change: the mean over cells, and the worst cell, of the difference in accuracy
(points), in the calibration error at one image of each class and in the other cells (points), and in the AUROC of
unknown classes by the evidence. Episodes are the same for all changes.
"""

import argparse
from itertools import product
from pathlib import Path

import numpy as np
from heads import SUPPORTS, Record, draw, in_directions, measure_calibration, posterior, read_sets

from anyshot.models import gaussian
from anyshot.progress import progress

CONSTANTS = ("RIDGE", "RATIO", "DIMENSIONS", "DOUBT")  # EVIDENCE counts only where there is a base (bases.py)
SETS = ("birds", "groceries", "things", "birds-conv4")
WAYS = (5, 15)
Change = tuple[str, float]


def set_constant(name: str, value: float) -> None:
    """Give a constant of the head another value, also where it is the default of an argument."""
    setattr(gaussian, name, value)
    gaussian.fit_moments.__defaults__ = (gaussian.RIDGE, gaussian.RATIO, 1)


def measure(record: Record) -> np.ndarray:
    """The accuracy and the calibration error in percent, and the AUROC of unknown classes."""
    return np.array(
        [record.units(by_class=False).mean(), measure_calibration(record.sure), np.mean(record.aurocs, 0)[0]]
    )


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--cache", type=Path, default=Path("runs/heads"))
    parser.add_argument("--episodes", type=int, default=20)
    asked = parser.parse_args()
    sets = {name: in_directions(of) for name, of in read_sets(asked.data, asked.cache, list(SETS), "val").items()}
    changes: list[Change] = [("", 1.0), *product(CONSTANTS, (0.5, 2.0))]
    head, cells = posterior(), list(product(sets, WAYS, SUPPORTS))
    values: dict[Change, list[np.ndarray]] = {change: [] for change in changes}
    supports = []
    with progress("changes of constants", float(len(cells))) as advance:
        for place, (name, way, support) in enumerate(cells):
            rng = np.random.default_rng(place)
            episodes = [draw(sets[name], way, support, rng) for _ in range(asked.episodes)]
            if None not in episodes:
                supports.append(support)
                for constant, factor in changes:
                    before, record = getattr(gaussian, constant or "RIDGE"), Record()
                    set_constant(constant or "RIDGE", factor * before)
                    for one in episodes:
                        record.add(head(one.x, one.y, one.query, one.strange), one)
                    set_constant(constant or "RIDGE", before)
                    values[constant, factor].append(measure(record))
            advance(1.0, f"{name}, {way} classes, {support}")
    is_single = np.array(supports) == "1"
    print(f"Cells: {len(supports)}. As it is: accuracy, calibration error, AUROC")
    print(" ".join(f"{value:.3f}" for value in np.mean(values[changes[0]], 0)))
    print("| constant | accuracy | calibration error at one image | elsewhere | AUROC |\n|---|---|---|---|---|")
    for constant, factor in changes[1:]:
        accuracy, error, auroc = (np.array(values[constant, factor]) - np.array(values[changes[0]])).T
        columns = [
            f"{accuracy.mean():+.2f} ({accuracy.min():+.1f}, {accuracy.max():+.1f})",
            f"{error[is_single].mean():+.2f} ({error[is_single].max():+.1f})",
            f"{error[~is_single].mean():+.2f} ({error[~is_single].max():+.1f})",
            f"{auroc.mean():+.4f} ({auroc.min():+.3f})",
        ]
        print(f"| {constant.lower()}, {'half' if factor < 1 else 'double'} | {' | '.join(columns)} |")


if __name__ == "__main__":
    main()
