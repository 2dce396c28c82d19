"""How many base classes does the posterior want, and what do bases of another kind do?

    python benchmarks/bases.py --data FOLDER            a Markdown table: some ten minutes of one core

FOLDER has cub84.npz, cub32.npz, mini32.npz and grocery.zip, as for benchmarks/heads.py; pictures are embedded once,
into a cache (ten more minutes). Supports are five validation classes, drawn anew every time: `birds` and `things` as
efficientnet-lite0 sees them at 160 pixels, in 320 random directions, and `birds-conv4`, of the Conv-4 that comes with
us and was trained on the base classes of the same kind. Of every class at most 30 images are read. Bases are training
classes: 8 to 100 birds, 8 to 64 things, 81 groceries; one of four random orders of the classes says which, in turn, and
a larger base has the classes of the smaller one. The head uses a base where its three tests allow it
(docs/posterior.md); "in spite" means that it was made to.

For each base and support: points over the same head without a base, with paired 95 % intervals over draws, and in how
many supports the base was used.
"""

import argparse
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from heads import Episode, Labelled, Set, draw, embedded, groceries, half_width, images_of, in_directions

from anyshot.models import gaussian
from anyshot.models.gaussian import rank_in_class
from anyshot.models.law import BoundHead, Examples, Parameters
from anyshot.models.law import normalize as unit

SUPPORTS = ("1", "2", "5", "20", "step")
SIZES = (8, 16, 32, 64, 100)
ORDERS = 4  # of the base classes
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


def fit_bases(base: Labelled, size: int) -> list[dict[str, torch.Tensor]]:
    """Return what is estimated on so many classes of a base, in some random orders of its classes."""
    labels, fitted = np.unique(base[1]), []
    for order in range(ORDERS if size < len(labels) else 1):
        chosen = np.isin(base[1], np.random.default_rng(order).permutation(labels)[:size])
        fitted.append(gaussian.fit_base(torch.from_numpy(base[0][chosen]), torch.from_numpy(base[1][chosen])))
    return fitted


def draw_episodes(of: Set, support: str, draws: int) -> list[Episode]:
    """Return episodes of five classes, the same for all bases."""
    rng = np.random.default_rng([len(support), sum(map(ord, support))])
    episodes = [draw(of, 5, support, rng) for _ in range(draws)]
    return [episode for episode in episodes if episode is not None]


def answer(episode: Episode, base: Parameters | None, is_forced: bool) -> tuple[float, bool]:
    """Return how many queries are told apart in percent, and whether the base was used."""
    examples = Examples(unit(torch.from_numpy(episode.x).double()), torch.from_numpy(episode.y))
    moments = gaussian.moments_of(examples.vectors, examples.owner)
    tests: dict[str, Any] = {"EVIDENCE": float("inf"), "is_foreign": lambda moments, base: False, "RIDGES": ()}
    with mock.patch.multiple(gaussian, **tests) if is_forced else nullcontext():
        fitted = gaussian.fit(moments, examples, base)
    bound = BoundHead(gaussian.POSTERIOR_HEAD, fitted)
    prototypes = bound.head.refined(moments.prototypes, moments.counts, fitted)
    scores = bound.score(bound.transform(unit(torch.from_numpy(episode.query).double())), prototypes)
    right = scores.argmax(1).numpy() == episode.answer
    return 100 * float(right.mean()), "share" not in fitted  # which only a W of the support's own has


def compare(
    episodes: list[Episode], plain: np.ndarray, bases: list[dict[str, torch.Tensor]], is_forced: bool
) -> tuple[np.ndarray, float]:
    """Return what bases gain in each episode over none, in points, and in how many of these one was used."""
    gains, used = np.zeros(len(episodes)), 0
    for number, episode in enumerate(episodes):
        base = bases[number % len(bases)]
        if is_forced:
            base = base | {"helps": torch.ones(())}
        if base["helps"]:  # else it is refused, and nothing changes
            right, is_used = answer(episode, base, is_forced)
            gains[number], used = right - plain[number], used + is_used
    return gains, used / len(episodes)


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
    parser.add_argument("--draws", type=int, default=40)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    print(f"| asked | base | classes | used | {' | '.join(SUPPORTS)} |")
    print("|---|---|---:|---:|" + "---:|" * len(SUPPORTS))
    for name, kinds in read_sets(asked.data, asked.cache).items():
        seen = {kind: in_directions(Set(*base, None, base)) for kind, base in kinds.items()}
        episodes = {support: draw_episodes(seen["asked"], support, asked.draws) for support in SUPPORTS}
        plain = {
            support: np.array([answer(e, None, False)[0] for e in several]) for support, several in episodes.items()
        }
        cells = " | ".join(f"{values.mean():.1f}" for values in plain.values())
        print(f"| {name} | none | 0 | | {cells} |", flush=True)
        fitted: dict[tuple[str, int], list[dict[str, torch.Tensor]]] = {}
        for kind, size, is_forced in list_bases(name, kinds):
            if (kind, size) not in fitted:
                fitted[kind, size] = fit_bases((seen[kind].x, seen[kind].y), size)
            rows = [compare(episodes[s], plain[s], fitted[kind, size], is_forced) for s in SUPPORTS]
            cells = " | ".join(f"{gain.mean():+.1f} ± {half_width(gain):.1f}" for gain, _ in rows)
            used = np.mean([share for _, share in rows])
            print(f"| {name} | {kind}{', in spite' if is_forced else ''} | {size} | {used:.0%} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
