"""How many base classes does the posterior want, and what do bases of another kind do?

    python benchmarks/bases.py --data FOLDER            a Markdown table: some ten minutes of one core

FOLDER has cub84.npz, cub32.npz, mini32.npz and grocery.zip, as for benchmarks/heads.py; pictures are embedded once,
into a cache (ten more minutes). Supports are five validation classes, drawn anew every time: `birds` and `things` as
efficientnet-lite0 sees them at 160 pixels, in 320 random directions, and `birds-conv4`, of the Conv-4 that comes with
us and was trained on the base classes of the same kind. Of every class at most 30 images are read. Bases are training
classes: 8 to 100 birds, 8 to 64 things, 81 groceries; one of five random orders of the classes says which, in turn, and
a larger base has the classes of the smaller one. The head uses a base where its three tests allow it
(docs/posterior.md); "in spite" means that it was made to.

For each base and support: points over the same head without a base, with paired 95 % intervals over draws, and in how
many supports the base was used.
"""

import argparse
from contextlib import nullcontext
from pathlib import Path
from unittest import mock

import numpy as np
import torch
from heads import Labelled, Set, draw, embedded, groceries, half_width, images_of, in_directions

from anyshot.models import gaussian
from anyshot.models.gaussian import rank_in_class
from anyshot.models.law import BoundHead, Examples, Parameters
from anyshot.models.law import normalize as unit

SUPPORTS = ("1", "2", "5", "20", "step")
SIZES = (8, 16, 32, 64, 100)
ORDERS = 5  # of the base classes
IMAGES = 30  # of each class at most: 20 to learn from and 8 to ask; they cost the most time
LITE0, CONV4 = "efficientnet-lite0:160", "cub32-conv4-cosine-proto-16shot"


def read_sets(data: Path, cache: Path) -> dict[str, dict[str, Labelled]]:
    """Return by set: the validation classes (`asked`), and the training classes of each kind."""

    def read(file: str, split: str, model: str = LITE0) -> Labelled:
        name = f"bases-{file}-{split}-{model.split(':')[0]}"
        return embedded(cache, name, model, images_of(data / f"{file}.npz", split, most=IMAGES))

    def read_groceries() -> tuple[list[bytes], np.ndarray]:
        files, labels = groceries(data / "grocery.zip", "train")()
        few = rank_in_class(torch.from_numpy(labels)).numpy() < IMAGES
        return [file for file, is_one in zip(files, few, strict=True) if is_one], labels[few]

    bases = {"birds": read("cub84", "train"), "things": read("mini32", "train")}
    bases["groceries"] = embedded(cache, "bases-grocery-train", LITE0, read_groceries)
    conv4 = {"birds": read("cub32", "train", CONV4), "things": read("mini32", "train", CONV4)}
    return {
        "birds": {"asked": read("cub84", "val"), **bases},
        "things": {"asked": read("mini32", "val"), **bases},
        "birds-conv4": {"asked": read("cub32", "val", CONV4), **conv4},
    }


def choose_classes(base: Labelled, size: int, order: int) -> dict[str, torch.Tensor]:
    """Return what is estimated on so many classes of a base, in one of some random orders of its classes."""
    labels = np.unique(base[1])
    chosen = np.isin(base[1], np.random.default_rng(order).permutation(labels)[:size])
    return gaussian.fit_base(torch.from_numpy(base[0][chosen]), torch.from_numpy(base[1][chosen]))


def answer(x: np.ndarray, y: np.ndarray, query: np.ndarray, base: Parameters | None) -> tuple[np.ndarray, bool]:
    """Return the classes of the queries, and whether the base was used."""
    examples = Examples(unit(torch.from_numpy(x).double()), torch.from_numpy(y))
    moments = gaussian.moments_of(examples.vectors, examples.owner)
    fitted = gaussian.fit(moments, examples, base)
    bound = BoundHead(gaussian.POSTERIOR_HEAD, fitted)
    prototypes = bound.head.refined(moments.prototypes, moments.counts, fitted)
    scores = bound.score(bound.transform(unit(torch.from_numpy(query).double())), prototypes)
    return scores.argmax(1).numpy(), "share" not in fitted  # what only a W of the support's own has


def compare(
    of: Set, support: str, draws: int, bases: list[dict[str, torch.Tensor]] | None, is_forced: bool
) -> tuple[np.ndarray, float]:
    """Return the accuracy of each draw in percent, and the share of supports for which a base was used."""
    rng, right, used = np.random.default_rng([len(support), sum(map(ord, support))]), [], 0
    for number in range(draws):
        episode = draw(of, 5, support, rng)
        assert episode is not None
        base, tests = (bases[number % len(bases)] if bases else None), nullcontext()
        if base is not None and is_forced:
            base = {**base, "helps": torch.ones(())}
            tests = mock.patch.multiple(gaussian, EVIDENCE=float("inf"), is_foreign=lambda moments, base: False)
        with tests:
            answers, is_used = answer(episode.x, episode.y, episode.query, base)
        right.append(100 * float((answers == episode.answer).mean()))
        used += is_used
    return np.array(right), used / draws


def list_bases(name: str, kinds: dict[str, Labelled]) -> list[tuple[str, int, bool]]:
    """Return what is compared on a set: kind of the base, number of classes, and whether the head is made to use it."""
    same = name.removesuffix("-conv4")
    rows: list[tuple[str, int, bool]] = []
    for kind in (kind for kind in kinds if kind != "asked"):
        most = len(np.unique(kinds[kind][1]))
        if kind == same:
            rows += [(kind, size, False) for size in SIZES if size <= most]
            rows += [(kind, 8, True), (kind, most, True)]
        else:
            rows += [(kind, most, False), (kind, most, True)]
    return rows


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--cache", type=Path, default=Path("runs/heads"))
    parser.add_argument("--draws", type=int, default=100)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    print(f"| asked | base | classes | used | {' | '.join(SUPPORTS)} |")
    print("|---|---|---:|---:|" + "---:|" * len(SUPPORTS))
    for name, kinds in read_sets(asked.data, asked.cache).items():
        of = in_directions(Set(*kinds["asked"], None, kinds["asked"]))
        seen = {kind: in_directions(Set(*base, None, base)) for kind, base in kinds.items()}
        plain = {support: compare(of, support, asked.draws, None, is_forced=False)[0] for support in SUPPORTS}
        cells = " | ".join(f"{values.mean():.1f}" for values in plain.values())
        print(f"| {name} | none | 0 | | {cells} |", flush=True)
        for kind, size, is_forced in list_bases(name, kinds):
            orders = range(ORDERS) if size < len(np.unique(kinds[kind][1])) else range(1)
            bases = [choose_classes((seen[kind].x, seen[kind].y), size, order) for order in orders]
            gains, shares = [], []
            for support in SUPPORTS:
                right, used = compare(of, support, asked.draws, bases, is_forced)
                gains.append(right - plain[support])
                shares.append(used)
            cells = " | ".join(f"{gain.mean():+.1f} ± {half_width(gain):.1f}" for gain in gains)
            word = f"{kind}, in spite" if is_forced else kind
            print(f"| {name} | {word} | {size} | {np.mean(shares):.0%} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
