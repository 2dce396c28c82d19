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
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import ArrayLike
from torch import Tensor

from anyshot.data.store import Part, Store, open_store
from anyshot.errors import BadInput, choose
from anyshot.files import whole
from anyshot.measure.engine import Lazy, Reading, Shots, full_patterns, vectors_of
from anyshot.measure.intervals import LEAST_WITHOUT, class_interval, episode_interval
from anyshot.measure.plan import Plan
from anyshot.measure.readouts import check_readout, read_out, scaled
from anyshot.models.heads import EMBEDS, HEADS, Head, Parameters
from anyshot.models.model import Model, load_model
from anyshot.progress import progress as bar
from anyshot.recipe import Recipe
from anyshot.rows import Row, shown, write_table

SHOTS = (1, 2, 4, 8, 16, 32)
UNTRAINED = ("proto", "cosine-proto", "frn", "frn-old", "cosine-frn")
Maps = Float[Tensor, "image position channel"]


@dataclass(frozen=True, eq=False)
class Evaluation:
    """What an evaluation found. Iterating gives its rows; `recall` keeps every class of every episode, so that anything
    paired can still be asked."""

    plan: Plan
    shots: Shots
    names: Sequence[int | str]
    """What each pattern of shots is called in the rows: the shot, or its kind."""
    recall: Mapping[tuple[str, str], Float[np.ndarray, "pattern episode way"]]
    """By head and readout."""
    about: Mapping[str, Any] = field(default_factory=dict)
    """Columns that all rows share."""
    dirichlet: float | None = None
    """Unequal queries: each episode weighs its classes by a draw from this symmetric Dirichlet distribution."""

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

    def __repr__(self) -> str:
        return f"<Evaluation of {', '.join(dict.fromkeys(head for head, _ in self.recall))}: {len(self)} rows>"

    def accuracies(self, head: str, readout: str = "own") -> Float[np.ndarray, "pattern episode"]:
        """Accuracy of each episode, in percent: the mean over its classes, or over classes as common among the queries
        as `dirichlet` makes them."""
        recall = 100 * self.recall[head, readout].astype(np.float64)
        if self.dirichlet is None:
            return recall.mean(-1)
        rng = np.random.default_rng([self.plan.seed, 11])
        return (recall * rng.dirichlet(np.full(self.plan.way, self.dirichlet), self.plan.episodes)).sum(-1)

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

    def __str__(self) -> str:
        """The rows for a terminal, and what their intervals mean."""
        lines = [f"{'head (readout)':26} {'test shot':>11} {'accuracy':>9} {'+- episodes':>12} {'+- new classes':>15}"]
        rows = list(self)
        for row in rows:
            name = row["head"] if row["readout"] == "own" else f"{row['head']} ({row['readout']})"
            numbers = f"{row['accuracy']:8.2f}% {shown(row['ci95']):>12} {shown(row['ci95_classes']):>15}"
            lines.append(f"{name:26} {row['test_shot']:>11} {numbers}")
        plan = self.plan
        lines.append(
            f"{plan.way}-way, {plan.queries} queries a class, {plan.episodes} paired episodes, seed {plan.seed}."
        )
        lines.append("95 % intervals: '+- episodes' over other draws of episodes from these images (is this table well")
        lines.append("measured?), '+- new classes' over new classes of the same kind (does it hold elsewhere?).")
        if plan.episodes < 2:
            lines.append("An interval over episodes needs at least two episodes.")
        if any(np.isnan(row["ci95_classes"]) for row in rows):
            lines.append(
                f"An interval over new classes needs three classes, each absent from {LEAST_WITHOUT} episodes."
            )
        if self.ties:
            lines.append(f"{self.ties:.2g} % of class recalls hold ties, counted as if broken at random.")
        return "\n".join(lines)

    @property
    def ties(self) -> float:
        """The share of class recalls (in percent) that hold a tie: a query whose own class shares the best logit."""
        counts = [recall * self.plan.queries for recall in self.recall.values()]
        return 100 * float(np.mean([np.abs(count - count.round()) > 1e-3 for count in counts]))

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
    heads: Sequence[str] | str = ("proto", "cosine-proto"),
    shots: Sequence[int] | str = SHOTS,
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
    dirichlet: float | None = None,
    progress: Callable[[float], None] = lambda share: None,
) -> Evaluation:
    """Test heads on features of any network: vectors "image d", or maps "image position channel".

    `shots` is a list, or a kind of unequal shots between 1 and 32 ('uniform', 'step', 'long-tailed'). `base` has the
    features and labels that the projections of `readouts` are fitted on. `parameters` has what trained heads have
    learned. `plan` replaces way, queries, episodes and seed. `dirichlet` makes some classes commoner than others among
    the queries: the smaller, the more unequal."""
    if dirichlet is not None and not dirichlet > 0:
        raise BadInput(f"the Dirichlet concentration must be above 0, not {dirichlet}.")
    heads = (heads,) if isinstance(heads, str) else heads
    maps = check_features(features)
    names, codes = check_labels(labels, len(maps))
    if isinstance(shots, str):
        choose("kind of unequal shots", shots, UNEQUAL)
    if plan is None:
        largest = 32 if isinstance(shots, str) else max(shots, default=1)
        plan = Plan(codes, len(names) if way == "all" else way, largest, queries, episodes, seed, names)
    patterns, words = shot_patterns(shots, plan)
    recall = _recall_all(maps, base, heads, readouts, parameters or {}, embed, plan, patterns, progress)
    return Evaluation(plan, patterns, words, recall, {"seed": plan.seed}, dirichlet)


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
        vectors = vectors_of(maps, choose("embed", how, EMBEDS))
        learned = {name: parameters.get(name) or untrained(name, vectors.shape[1]) for name, _ in keys}
        readings = [(Reading(HEADS[name], learned[name]), readout) for name, readout in keys]

        @cache
        def fitted_on(how: str = how) -> tuple[Tensor, Tensor]:
            return _base_vectors(base, how)

        found = read_out(readings, vectors, fitted_on, plan, patterns, scaled(progress, 1 / len(asked)))
        recall |= dict(zip(keys, found, strict=True))
    return {
        (name, readout): recall[name, readout] for name in heads for readout in readouts if (name, readout) in recall
    }


def evaluate_store(
    store: Store, model: Model | None = None, heads: Sequence[str] = (), split: str = "test", **how: Any
) -> Evaluation:
    """Test heads on a split of a store: on its features, or on a model's features of its images. Without `heads`, the
    model's own head is read; projections are fitted on the training classes, where the store has some."""
    part = store.part(split)
    _check_kind(store, model is not None)

    def features(part: Part) -> np.ndarray:
        return part.items if model is None else model.features(part.items)

    about: dict[str, Any] = {"data": store.path.name}
    if model is not None:
        recipe = model.recipe
        heads = heads or (recipe.head,)
        how["embed"] = recipe.embed
        how["parameters"] = {recipe.head: model.head_parameters}
        about |= {"backbone": recipe.backbone, "train_shot": recipe.train_shot, "model": recipe.id}
    if any(readout not in ("own", "swapped") for readout in how.get("readouts", ())) and "train" in store.class_split:
        train = store.part("train")
        how["base"] = (features(train), train.labels)
    names = np.array(part.class_names)[part.labels]
    found = evaluate(features(part), names, heads or ("proto", "cosine-proto"), **how)
    return replace(found, about={**about, **found.about})


def _check_kind(store: Store, is_embedded: bool) -> None:
    """Images need a model, features have had theirs."""
    if not (is_embedded or store.is_features):
        raise BadInput(f"{store.path} holds images: name a trained model to embed them, or pack features instead.")
    if is_embedded and store.is_features:
        raise BadInput(f"{store.path} holds features already: leave the model out.")


def shot_patterns(shots: Sequence[int] | str, plan: Plan) -> tuple[Shots, list[int | str]]:
    """Patterns of shots and what rows call them: a list of shots, or a kind of UNEQUAL ones."""
    if isinstance(shots, str):
        pattern = choose("kind of unequal shots", shots, UNEQUAL)(plan)
        return np.broadcast_to(pattern, (1, plan.episodes, plan.way)), [shots]
    if not shots or min(shots) < 1 or max(shots) > plan.shot:
        raise BadInput(f"test shots must lie between 1 and {plan.shot}, not {list(shots)}.")
    distinct = sorted(set(shots))
    return distinct, list(distinct)


def _uniform(plan: Plan) -> np.ndarray:
    """Each class of each episode has its own shot, drawn evenly from 1 to the largest."""
    return np.random.default_rng([plan.seed, 7]).integers(1, plan.shot + 1, size=(plan.episodes, plan.way))


def _step(plan: Plan) -> np.ndarray:
    """Half of the classes (rounded down) have 1 shot, the others the largest."""
    return np.where(np.arange(plan.way) < plan.way // 2, 1, plan.shot)


def _long_tailed(plan: Plan) -> np.ndarray:
    """Shots fall by a constant factor from the largest to 1."""
    return np.geomspace(plan.shot, 1, plan.way).round().astype(np.int64)


UNEQUAL: dict[str, Callable[[Plan], np.ndarray]] = {"uniform": _uniform, "step": _step, "long-tailed": _long_tailed}


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
        raise BadInput(f"an evaluation needs at least 2 classes; all labels are {str(names[0])!r}.")
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


def untrained(name: str, d: int) -> Parameters:
    """The parameters of a head that works without training."""
    if HEADS[name].couples:
        raise BadInput(f"{name} has to be trained: name a model with it, or choose among {', '.join(UNTRAINED)}.")
    return HEADS[name].parameters(d, Recipe(data="", head=name, train_shot=2, way=2))


def _base_vectors(base: tuple[ArrayLike | Tensor, ArrayLike] | None, how: str) -> tuple[Tensor, Tensor]:
    if base is None:
        raise BadInput(
            "a projection is fitted on training classes: use a store whose split has some (in Python, give their "
            "features and labels as the base)."
        )
    maps = check_features(base[0])
    return torch.cat(list(Lazy(maps, EMBEDS[how]).split(256))), torch.from_numpy(check_labels(base[1], len(maps))[1])


def run_evaluation(
    store: Path,
    model: Path | None,
    heads: Sequence[str],
    split: str,
    out: Path | None,
    plan: Path | None,
    save_plan: Path | None,
    **how: Any,
) -> str:
    """The `evaluate` verb: from paths to a table, kept where it is asked for; what the terminal shows."""
    opened = open_store(store)
    part = opened.part(split)
    _check_kind(opened, model is not None)
    loaded = load_model(model) if model is not None else None
    shots: tuple[int, ...] = how.pop("shots")
    unequal = how.pop("unequal")
    names, codes = check_labels(np.array(part.class_names)[part.labels], len(part.labels))
    if plan is not None:
        episodes = Plan.load(plan, codes, names)
    else:
        way = len(names) if how["way"] == "all" else int(how["way"])
        episodes = Plan(codes, way, max(shots, default=1), how["queries"], how["episodes"], how["seed"], names)
    for name in ("way", "queries", "episodes", "seed"):
        del how[name]
    with bar("evaluating", 1.0) as advance:
        found = evaluate_store(
            opened, loaded, heads, split, shots=unequal or shots, plan=episodes, progress=advance, **how
        )
    if save_plan is not None:
        episodes.save(save_plan)
    if out is not None:
        write_table(out / "table.csv", list(found))
        arrays: dict[str, Any] = {f"{head} {readout}": recall for (head, readout), recall in found.recall.items()}
        with whole(out / "recall.npz") as aside, aside.open("wb") as file:
            np.savez_compressed(file, **arrays)
    return str(found)
