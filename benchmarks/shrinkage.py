"""How far should the posterior readout shrink the covariances of base classes, at equal and at unequal shots?

    python benchmarks/shrinkage.py data/cub84 runs/cub84/cub84-conv4-proto-4shot-*      a Markdown table, some minutes

The readout chooses W's and B's shrinkage by itself; here it is made to use each pair in turn. Its classes are the
validation classes of the store, so that a rule may be chosen by the table. `spread` is what all directions together say
that classes differ by, in units of the variance within a class. Accuracies in percent at 1 and 8 shots, and where some
classes have 1 image and others 32.
"""

import argparse
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch

from anyshot import BUILTIN, Registry, evaluate, load_model
from anyshot.data.store import open_store
from anyshot.models import gaussian
from anyshot.models.law import Parameters, normalize

PAIRS = (*gaussian.SHRINKAGES, (0.9, 0.1), (0.3, 0.0), (0.5, 0.0), (0.7, 0.0))
KINDS = ("step", "long-tailed")


def fit_with(pair: tuple[float, float], spreads: dict[str, float]) -> Callable[..., Parameters]:
    """Return a function that fits the readout with one pair, and notes the sum of the spreads."""

    def fit(vectors: torch.Tensor, labels: torch.Tensor) -> Parameters:
        centre = vectors.double().mean(0)
        unit = normalize(vectors.double() - centre)
        moments = gaussian._sum_images(unit, labels.unique(return_inverse=True)[1])
        fitted = {"centre": centre, **gaussian.diagonalise(moments, *pair)}
        spreads[name_of(pair)] = float(fitted["spread"].sum())
        return {name: value.to(vectors.dtype) for name, value in fitted.items()}

    return fit


def name_of(pair: tuple[float, float]) -> str:
    return f"{pair[0]} and {pair[1]}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store", type=Path)
    parser.add_argument("model", type=Path)
    parser.add_argument("--episodes", type=int, default=1000)
    options = parser.parse_args()
    store, model = open_store(options.store), load_model(options.model)
    spreads: dict[str, float] = {}
    ways = {name_of(pair): replace(gaussian.POSTERIOR, fit=fit_with(pair, spreads)) for pair in PAIRS}
    registry = BUILTIN | Registry(readouts=ways)
    train, val = store.part("train"), store.part("val")
    test = {
        "heads": model.recipe.head,
        "readouts": ("own", "swapped", "posterior", *ways),
        "base": (model.features(train.items), train.labels),
        "parameters": {model.recipe.head: model.bound_head.parameters},
        "queries": 12,  # one validation class of CUB has 44 images
        "episodes": options.episodes,
        "registry": registry,
    }
    features = model.features(val.items)
    tables = [evaluate(features, val.labels, shots=shots, **test) for shots in ((1, 8), *KINDS)]
    cells = {(row["readout"], row["test_shot"]): row["accuracy"] for table in tables for row in table}
    print("| shrinkage of W and B | spread | 1 | 8 | step | long-tailed |\n|---|---:|---:|---:|---:|---:|")
    for readout in test["readouts"]:
        numbers = (f"{cells[readout, shot]:.1f}" for shot in (1, 8, *KINDS))
        print(f"| {readout} | {spreads.get(readout, float('nan')):.0f} | {' | '.join(numbers)} |")


if __name__ == "__main__":
    main()
