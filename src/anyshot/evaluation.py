"""Evaluation: features and labels in, one row a cell out, with intervals; on any arrays, stores or trained models.

>>> import numpy as np
>>> rng = np.random.default_rng(0)
>>> labels = np.repeat(["wren", "hawk", "gull", "coot", "kite", "rook"], 40)
>>> features = rng.normal(size=(6, 1, 8)).repeat(40, 1).reshape(240, 8) + rng.normal(size=(240, 8))
>>> found = evaluate(features, labels, heads=["proto", "cosine-proto"], shots=[1, 4, 16], episodes=500)
>>> [(row["head"], row["test_shot"]) for row in found][:3]
[('proto', 1), ('proto', 4), ('proto', 16)]
"""

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import ArrayLike
from torch import Tensor

from anyshot.engine import Reading, Shots, full_patterns
from anyshot.episodes import Plan
from anyshot.errors import BadInput, choose
from anyshot.heads import EMBEDS, HEADS, Head, Parameters
from anyshot.intervals import class_interval, episode_interval
from anyshot.readouts import check_readout, read_out
from anyshot.recipe import Recipe
from anyshot.table import Row

SHOTS = (1, 2, 4, 8, 16, 32)
UNTRAINED = ("proto", "cosine-proto", "frn", "frn-old", "cosine-frn")
Maps = Float[Tensor, "image position channel"]
Unequal = Literal["uniform", "step", "long-tailed"]


@dataclass(frozen=True, eq=False)
class Evaluation:
    """What an evaluation found. Iterating gives its rows; `recall` keeps every class of every episode, so that anything
    paired can still be asked."""

    plan: Plan
    shots: Shots
    names: Sequence[str]
    """What each pattern of shots is called in the rows: the shot, or its kind."""
    recall: Mapping[tuple[str, str], Float[np.ndarray, "pattern episode way"]]
    """By head and readout."""
    about: Mapping[str, Any] = field(default_factory=dict)
    """Columns that all rows share."""

    def __iter__(self) -> Iterator[Row]:
        for head, readout in self.recall:
            for number, name in enumerate(self.names):
                measured = self._measured(self.accuracies(head, readout)[number])
                yield {
                    **self.about,
                    "head": head,
                    "readout": readout,
                    "test_shot": name,
                    **self._protocol(),
                    **measured,
                }

    def __len__(self) -> int:
        return len(self.recall) * len(self.names)

    def accuracies(self, head: str, readout: str = "own") -> Float[np.ndarray, "pattern episode"]:
        """Accuracy of each episode, in percent: the mean over its classes."""
        return 100 * self.recall[head, readout].mean(-1, dtype=np.float64)

    def difference(self, one: tuple[str, str] | str, other: tuple[str, str] | str) -> list[Row]:
        """How much more accurate one (head, readout) is than another on the same episodes, a row a test shot."""
        pair = [(key, "own") if isinstance(key, str) else key for key in (one, other)]
        gain = self.accuracies(*pair[0]) - self.accuracies(*pair[1])
        words = [head if readout == "own" else f"{head} ({readout})" for head, readout in pair]
        label = {"head": words[0], "against": words[1]}
        return [
            {**label, "test_shot": name, **{k.replace("accuracy", "gain"): v for k, v in self._measured(row).items()}}
            for name, row in zip(self.names, gain, strict=True)
        ]

    def by_own_shot(self, head: str, readout: str = "own") -> list[Row]:
        """Unequal shots: the recall of classes by the shot they had themselves."""
        patterns = full_patterns(self.shots, self.plan)
        rows = []
        for name, shots, recall in zip(self.names, patterns, self.recall[head, readout], strict=True):
            for shot in np.unique(shots):
                percent = 100 * float(recall[shots == shot].mean(dtype=np.float64))
                rows.append(
                    {"head": head, "readout": readout, "test_shot": name, "own_shot": int(shot), "recall": percent}
                )
        return rows

    def _protocol(self) -> Row:
        return {"way": self.plan.way, "queries": self.plan.queries, "episodes": self.plan.episodes}

    def _measured(self, accuracy: Float[np.ndarray, " episode"]) -> Row:
        return {
            "accuracy": round(float(accuracy.mean()), 4),
            "ci95": round(episode_interval(accuracy), 4),
            "ci95_classes": round(class_interval(accuracy, self._classes), 4),
        }

    @cached_property
    def _classes(self) -> Int[np.ndarray, "episode way"]:
        return self.plan.draw(0, self.plan.episodes).classes


def evaluate(
    features: ArrayLike | Tensor,
    labels: ArrayLike,
    heads: Sequence[str] = ("proto", "cosine-proto"),
    shots: Sequence[int] | Unequal = SHOTS,
    way: int | Literal["all"] = 5,
    queries: int = 16,
    episodes: int = 10_000,
    seed: int = 0,
    *,
    readouts: Sequence[str] = ("own",),
    base: tuple[ArrayLike | Tensor, ArrayLike] | None = None,
    parameters: Mapping[str, Parameters] | None = None,
    embed: str | None = None,
    plan: Plan | None = None,
    progress: Callable[[float], None] = lambda share: None,
) -> Evaluation:
    """Test heads on features of any network: vectors "image d", or maps "image position channel".

    `shots` is a list, or a kind of unequal shots between 1 and 32 ('uniform', 'step', 'long-tailed'). `base` has the
    features and labels that the projections of `readouts` are fitted on. `parameters` has what trained heads have
    learned. `plan` replaces way, queries, episodes and seed."""
    maps = check_features(features)
    names, codes = check_labels(labels, len(maps))
    if plan is None:
        largest = 32 if isinstance(shots, str) else max(shots, default=1)
        plan = Plan(codes, len(names) if way == "all" else way, largest, queries, episodes, seed, names)
    patterns, words = shot_patterns(shots, plan)
    recall = _recall_all(maps, base, heads, readouts, parameters or {}, embed, plan, patterns, progress)
    return Evaluation(plan, patterns, words, recall, {"seed": plan.seed})


def _recall_all(
    maps: Maps,
    base: tuple[ArrayLike | Tensor, ArrayLike] | None,
    heads: Sequence[str],
    readouts: Sequence[str],
    parameters: Mapping[str, Parameters],
    embed: str | None,
    plan: Plan,
    patterns: Shots,
    progress: Callable[[float], None],
) -> dict[tuple[str, str], np.ndarray]:
    """Recalls by head and readout; heads that embed alike are read from one bank."""
    asked: dict[str, list[tuple[str, str]]] = {}
    for name in heads:
        head = choose("head", name, HEADS)
        fitting = [readout for readout in readouts if _fits(readout, name, head, len(heads))]
        asked.setdefault(embed or head.embed, []).extend((name, readout) for readout in fitting)
    recall: dict[tuple[str, str], np.ndarray] = {}
    for how, keys in asked.items():
        vectors = embed_all(maps, choose("embed", how, EMBEDS))
        learned = {name: parameters.get(name) or _untrained(name, vectors.shape[1]) for name, _ in keys}
        readings = [(Reading(HEADS[name], learned[name]), readout) for name, readout in keys]

        @cache
        def fitted_on(how: str = how) -> tuple[Tensor, Tensor]:
            return _base_vectors(base, how)

        share = 1 / len(asked)
        found = read_out(readings, vectors, fitted_on, plan, patterns, lambda part, share=share: progress(part * share))
        recall |= dict(zip(keys, found, strict=True))
    return {
        (name, readout): recall[name, readout] for name in heads for readout in readouts if (name, readout) in recall
    }


def shot_patterns(shots: Sequence[int] | Unequal, plan: Plan) -> tuple[Shots, list[Any]]:
    """Patterns of shots and what rows call them.

    uniform       each class of each episode has its own shot, drawn evenly from 1 to the largest
    step          half of the classes (rounded down) have 1 shot, the others the largest
    long-tailed   shots fall by a constant factor from the largest to 1
    """
    if not isinstance(shots, str):
        if not shots or min(shots) < 1 or max(shots) > plan.shot:
            raise BadInput(f"test shots must lie between 1 and {plan.shot}, not {list(shots)}.")
        distinct = sorted(set(shots))
        return distinct, list(distinct)
    most, way = plan.shot, plan.way
    kinds: dict[str, Callable[[], np.ndarray]] = {
        "uniform": lambda: np.random.default_rng([plan.seed, 7]).integers(1, most + 1, size=(plan.episodes, way)),
        "step": lambda: np.broadcast_to(np.where(np.arange(way) < way // 2, 1, most), (plan.episodes, way)),
        "long-tailed": lambda: np.broadcast_to(
            np.geomspace(most, 1, way).round().astype(np.int64), (plan.episodes, way)
        ),
    }
    return choose("kind of unequal shots", shots, kinds)()[None], [shots]


def check_features(features: ArrayLike | Tensor) -> Maps:
    """Features as float32 maps; vectors become maps of one position. A memory map of float32 is not read here."""
    array = features if isinstance(features, Tensor) else np.asarray(features)
    if array.ndim not in (2, 3) or 0 in array.shape:
        raise BadInput(
            f'features must be vectors "image d" or maps "image position channel", none of them empty; these have '
            f"shape {tuple(array.shape)}."
        )
    if isinstance(array, np.ndarray):
        if array.dtype.kind not in "fiu":
            raise BadInput(f"features must be numbers; these are of type {array.dtype}.")
        with warnings.catch_warnings():  # torch warns of a memory map that must not be written to: nothing here writes
            warnings.simplefilter("ignore", UserWarning)
            array = torch.from_numpy(array if array.dtype == np.float32 else array.astype(np.float32))
    maps = array.float() if array.ndim == 3 else array.float()[:, None]
    for start in range(0, len(maps), 4096):
        piece = maps[start : start + 4096]
        if not torch.isfinite(piece).all():
            row = start + int((~torch.isfinite(piece.flatten(1)).all(1)).nonzero()[0])
            raise BadInput(f"features must be finite, and row {row} is not: it has NaN or infinite values.")
    return maps


def check_labels(labels: ArrayLike, images: int) -> tuple[list[str], Int[np.ndarray, " image"]]:
    """Class names, and the labels as indices into them."""
    array = np.asarray(labels)
    if array.shape != (images,):
        raise BadInput(f"there must be one label an image: {images} images, labels of shape {array.shape}.")
    names, codes = np.unique(array, return_inverse=True)
    if len(names) < 2:
        raise BadInput(f"an evaluation needs at least 2 classes; all labels are {names[0]!r}.")
    return [str(name) for name in names], codes


def _fits(readout: str, name: str, head: Head, heads: int) -> bool:
    """Whether a readout fits a head; with several heads those that do not are left out, with one it is an error."""
    try:
        check_readout(readout, name, head)
    except BadInput as error:
        if heads == 1 or str(error).startswith("there is no"):
            raise
        return False
    return True


def _untrained(name: str, d: int) -> Parameters:
    if HEADS[name].couples:
        raise BadInput(f"{name} has to be trained: name a model with it, or choose among {', '.join(UNTRAINED)}.")
    return HEADS[name].parameters(d, Recipe(data="", head=name, train_shot=2, way=2))


def _base_vectors(base: tuple[ArrayLike | Tensor, ArrayLike] | None, how: str) -> tuple[Tensor, Tensor]:
    if base is None:
        raise BadInput("a projection is fitted on the training classes: give their features and labels as the base.")
    maps = check_features(base[0])
    return embed_all(maps, EMBEDS[how]), torch.from_numpy(check_labels(base[1], len(maps))[1])


def embed_all(maps: Maps, embed: Callable[[Tensor], Tensor]) -> Float[Tensor, "image d"]:
    """The vector of every image; a view of the maps where it can be one."""
    if embed is EMBEDS["flatten"] or maps.shape[1] == 1 and embed is not EMBEDS["gram"]:
        return maps.flatten(1)
    with torch.inference_mode():
        first = embed(maps[:1])
        out = torch.empty(len(maps), first.shape[1])
        for start in range(0, len(maps), 256):
            out[start : start + 256] = embed(maps[start : start + 256])
    return out
