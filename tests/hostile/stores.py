"""Stores: their JSON and arrays spoiled; given to `doctor`, `evaluate`, `fit`."""

import hashlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from hostile import arrays, spoil
from hostile.corpus import Case
from hostile.good import Good

HARMLESS = ("format", "about", "sha256")
EVALUATE = ["evaluate", "feature-store", "--way", "2", "--shots", "1", "2", "--queries", "2", "--episodes", "20"]


def spoiled(name: str, words: str, how: Callable[[Path], Any], good: Good, may_do: bool = False) -> Case:
    """A store with something done to its folder, and read whole."""

    def make(folder: Path) -> list[str]:
        how(good.copy(name, folder))
        if name == "feature-store":
            return EVALUATE
        return ["doctor", name, "--out", "out", "--verify"]

    return Case(f"{name}: {words}", make, may_do)


def cases(good: Good) -> Iterator[Case]:
    for name in ("image-store", "feature-store"):
        for file in ("items.npy", "labels.npy", "store.json"):
            for words in ("empty", "cut in half", "zeros", "random bytes", "a text", "a picture"):
                yield spoiled(name, f"{file} is {words}", _file(file, spoil.BROKEN[words]), good)
            for seed in range(2):
                change = spoil.flips(seed, 3)
                yield spoiled(name, f"{file} with bytes changed ({seed})", _file(file, change), good, may_do=True)
            for words, place in spoil.PLACES.items():
                how = lambda folder, file=file, place=place: spoil.replaced(folder / file, place)  # noqa: E731
                yield spoiled(name, f"{file} is {words}", how, good)
    for words, header in arrays.HEADERS.items():
        for file in ("items.npy", "labels.npy"):
            yield spoiled("image-store", f"{file} that {words}", _file(file, lambda data, h=header: h), good)
    for words, data in spoil.JSONS.items():
        yield spoiled("image-store", f"store.json is {words}", _file("store.json", lambda _, data=data: data), good)
    for words, how in spoil.changed_keys(good / "feature-store" / "store.json"):
        may = words.rpartition(" ")[2] in HARMLESS
        yield spoiled("feature-store", f"store.json {words}", lambda f, how=how: how(f / "store.json"), good, may)
    yield from _false(good)
    yield from _evaluations(good)


def _file(name: str, change: spoil.Spoil) -> Callable[[Path], Any]:
    return lambda folder: (folder / name).write_bytes(change((folder / name).read_bytes()))


def _with(folder: Path, name: str, array: np.ndarray) -> None:
    """Put another array in, and its checksum, so that only what it says is wrong."""
    np.save(folder / name, array)
    about = json.loads((folder / "store.json").read_text())
    about["sha256"][name] = hashlib.sha256((folder / name).read_bytes()).hexdigest()
    (folder / "store.json").write_text(json.dumps(about))


def _false(good: Good) -> Iterator[Case]:
    """What has the right checksum and is false."""
    items, labels = (np.load(good / "image-store" / name) for name in ("items.npy", "labels.npy"))
    for words, name, array in (
        ("items of text", "items.npy", np.full(items.shape, "x")),
        ("items of 64-bit numbers", "items.npy", items.astype(np.float64)),
        ("items of five channels", "items.npy", np.zeros((*items.shape[:3], 5), np.uint8)),
        ("items in two dimensions", "items.npy", items.reshape(len(items), -1)),
        ("an item too few", "items.npy", items[:-1]),
        ("labels of text", "labels.npy", labels.astype(str)),
        ("labels with a point", "labels.npy", labels + 0.5),
        ("a label of -1", "labels.npy", np.where(labels == 0, -1, labels)),
        ("a label too large", "labels.npy", np.where(labels == 2, 9, labels)),
        ("labels out of order", "labels.npy", labels[::-1]),
        ("a label too few", "labels.npy", labels[:-1]),
    ):
        yield spoiled("image-store", words, lambda f, name=name, array=array: _with(f, name, array), good)
    for words, changes in {
        "splits in another order": {"class_split": ["test", "val", "train"]},
        "splits of numbers": {"class_split": [0, 1, 2]},
        "a split that is none": {"class_split": ["train", "val", "holdout"]},
        "a split too few": {"class_split": ["train", "val"]},
        "class names of numbers": {"class_names": [1, 2, 3]},
        "a class name too few": {"class_names": ["ant", "bee"]},
        "a text as class names": {"class_names": "abc"},
    }.items():
        how = lambda folder, changes=changes: spoil.edit_json(folder / "store.json", **changes)  # noqa: E731
        yield spoiled("image-store", words, how, good)
    nan = np.load(good / "feature-store" / "items.npy")
    nan[0, 0, 0], nan[-1, 0, 0] = np.nan, np.inf
    yield spoiled("feature-store", "features that are not numbers", lambda f: _with(f, "items.npy", nan), good)


def _evaluations(good: Good) -> Iterator[Case]:
    """Evaluations and packs that cannot be."""
    whole = {"plan": 1, "id": "x", "way": 2, "shot": 1, "queries": 1, "episodes": 2, "seed": 0}
    plans = {"a list": "[]", "no JSON": "{", "a text": '"x"', "other names": '{"plan": 1, "id": "x", "zzz": 3}'}
    for words, changes in {
        "text for numbers": {"way": "a"},
        "a trillion episodes": {"episodes": 10**12},
        "a negative seed": {"seed": -1},
        "labels of its own": {"labels": [1]},
    }.items():
        plans[words] = json.dumps(whole | changes)
    for words, text in plans.items():

        def make(folder: Path, text: str = text) -> list[str]:
            good.copy("feature-store", folder)
            (folder / "plan.json").write_text(text)
            return ["evaluate", "feature-store", "--plan", "plan.json"]

        yield Case(f"a plan that is {words}", make)
    for words, more in {
        "of a way that is none": ["--way", "x"],
        "of 1 way": ["--way", "1"],
        "of 100 ways": ["--way", "100"],
        "of 0 shots": ["--shots", "0"],
        "of negative shots": ["--shots", "-1"],
        "of too many shots": ["--shots", "1000"],
        "of 0 episodes": ["--episodes", "0"],
        "of 0 queries": ["--queries", "0"],
        "of a negative seed": ["--seed", "-1"],
        "of a head that is none": ["--heads", "zzz"],
        "of a readout that is none": ["--readouts", "zzz"],
        "of a split that is none": ["--split", "zzz"],
        "of a negative Dirichlet": ["--dirichlet", "-1"],
        "of a Dirichlet that is no number": ["--dirichlet", "nan"],
        "of a plan that is not there": ["--plan", "zzz.json"],
        "into a file": ["--out", "feature-store/store.json"],
        "into a device": ["--out", "/dev/null/x"],
    }.items():

        def make(folder: Path, more: list[str] = more) -> list[str]:
            good.copy("feature-store", folder)
            return [*EVALUATE, *more]

        yield Case(f"an evaluation {words}", make)
    for words, more in {
        "of size 0": ["folder", "photos", "--size", "0"],
        "of a huge size": ["folder", "photos", "--size", "100000"],
        "of negative shares": ["folder", "photos", "--split", "-1", "1", "1"],
        "of shares that are no numbers": ["folder", "photos", "--split", "nan", "1", "1"],
        "of no shares": ["folder", "photos", "--split", "0", "0", "0"],
        "of a kind that is none": ["zzz", "photos"],
        "of another kind": ["npz", "photos"],
        "with an option of another kind": ["folder", "photos", "--box"],
        "of a folder that is not there": ["folder", "zzz"],
        "with a model that is none": ["folder", "photos", "--embed", "zzz"],
    }.items():

        def make(folder: Path, more: list[str] = more) -> list[str]:
            good.copy("photos", folder)
            return ["pack", *more, "-o", "store"]

        yield Case(f"a pack {words}", make)
