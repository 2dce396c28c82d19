"""Evaluation: features and labels in, recalls out, and of them one row per cell, with intervals; on any arrays, stores
or trained models.

>>> import numpy as np
>>> rng = np.random.default_rng(0)
>>> labels = np.repeat(["wren", "hawk", "gull", "coot", "kite", "rook"], 40)
>>> features = rng.normal(size=(6, 1, 8)).repeat(40, 1).reshape(240, 8) + rng.normal(size=(240, 8))
>>> table = evaluate(features, labels, heads=["proto", "cosine-proto"], shots=[1, 4, 16], episodes=500)
>>> [(row["head"], row["test_shot"]) for row in table][:3]
[('proto', 1), ('proto', 4), ('proto', 16)]
"""

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import ArrayLike
from torch import Tensor

from anyshot.data.layout import Layout
from anyshot.data.store import Part, Store, open_store
from anyshot.errors import BadInput, choose
from anyshot.measure.engine import Lazy, Shots, Vectors, full_patterns, recall, vectors_of
from anyshot.measure.intervals import LEAST_WITHOUT
from anyshot.measure.plan import Plan, Protocol
from anyshot.measure.readouts import Fitted, fit_on, read_out, scaled
from anyshot.measure.recalls import Recalls, difference, title, write_recalls
from anyshot.models.cache import FeatureCache
from anyshot.models.devices import side_by_side
from anyshot.models.embedders import DEFAULT, Embedder, embedder
from anyshot.models.examples import holds_features, read_examples
from anyshot.models.heads import EMBEDS
from anyshot.models.law import Embed, Head, Parameters, Reading, score_support
from anyshot.models.model import Model
from anyshot.models.registry import PACKAGE, Registry
from anyshot.progress import Done, say, unwatched
from anyshot.progress import progress as bar
from anyshot.recipe import Recipe
from anyshot.rows import Row, grouped, shown, write_table

SHOTS = Protocol().shots
CHECKED = 512  # images that are looked at together for what is not finite
EPISODES = 8  # that a thread fits a head to at a time
Maps = Float[Tensor, "image position channel"]
Labelled = tuple[ArrayLike | Tensor, ArrayLike]
Pattern = Literal["uniform", "step", "long-tailed"]


@dataclass(frozen=True, eq=False)
class Evaluation:
    """The recalls of every head and readout on one plan of episodes. Iterating gives the rows of its table; since the
    recalls are there, anything paired can still be asked."""

    plan: Plan
    recalls: Sequence[Recalls]

    def __iter__(self) -> Iterator[Row]:
        return (row for one in self.recalls for row in one.rows())

    def __len__(self) -> int:
        return sum(len(one.shots) for one in self.recalls)

    def __repr__(self) -> str:
        return f"<Evaluation of {', '.join(dict.fromkeys(one.of['head'] for one in self.recalls))}: {len(self)} rows>"

    def of(self, head: str, readout: str = "own") -> Recalls:
        """The recalls of one head and readout."""
        every = {(one.of["head"], one.of["readout"]): one for one in self.recalls}
        if (head, readout) not in every:
            there = ", ".join(title(one.of) for one in self.recalls)
            raise BadInput(f"{head} was not tested with the readout {readout}; there is {there}.")
        return every[head, readout]

    def accuracies(self, head: str, readout: str = "own") -> Float[np.ndarray, "pattern episode"]:
        """Accuracy of each episode, in percent."""
        return self.of(head, readout).accuracies

    def difference(self, one: tuple[str, str] | str, other: tuple[str, str] | str) -> list[Row]:
        """How much more accurate one head, or (head, readout), is than another on the same episodes, one row per test
        shot."""
        pair = [self.of(key) if isinstance(key, str) else self.of(*key) for key in (one, other)]
        return difference(*pair)

    def __str__(self) -> str:
        """The rows for a terminal, and what their intervals mean."""
        rows, plan = list(self), self.plan
        lines = [
            f"{'head (readout)':26} {'test shot':>11} {'accuracy':>9} {'+- episodes':>12} {'+- new classes':>15}",
            *(
                f"{title(row):26} {row['test_shot']:>11} {row['accuracy']:8.2f}% "
                f"{shown(row['ci95']):>12} {shown(row['ci95_classes']):>15}"
                for row in rows
            ),
            f"{plan.way}-way, {plan.queries} queries per class, {plan.episodes} paired episodes, seed {plan.seed}.",
            "95 % intervals: '+- episodes' over other draws of episodes from these examples (is this table well",
            "measured?), '+- new classes' over new classes of the same kind (does it hold elsewhere?).",
        ]
        if plan.episodes < 2:
            lines.append("An interval over episodes needs at least two episodes.")
        if any(np.isnan(row["ci95_classes"]) for row in rows):
            absent = f"three classes, each absent from {LEAST_WITHOUT} episodes"
            lines.append(f"An interval over new classes needs {absent}.")
        if self.ties:
            lines.append(f"{self.ties:.2g} % of class recalls hold ties, counted as if broken at random.")
        return "\n".join(lines)

    @property
    def ties(self) -> float:
        """The share of class recalls (in percent) that hold a tie: a query whose own class shares the best logit."""
        counts = [one.recall * self.plan.queries for one in self.recalls]
        return 100 * float(np.mean([np.abs(count - count.round()) > 1e-3 for count in counts]))


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
    base: Labelled | None = None,
    parameters: Mapping[str, Parameters] | None = None,
    embed: Mapping[str, str] | None = None,
    plan: Plan | None = None,
    dirichlet: float | None = None,
    registry: Registry = PACKAGE,
    about: Mapping[str, Any] | None = None,
    progress: Done = unwatched,
) -> Evaluation:
    """Test heads on features of any network.

    Args:
        features: Vectors "image d", or maps "image position channel".
        labels: The class of each image.
        heads: Names of heads in the registry.
        shots: Test shots, or a kind of unequal shots between 1 and 32: uniform, step, long-tailed.
        way: Classes per episode; 'all' for every class at once.
        queries: Queries per class.
        episodes: Episodes, the same for all heads, readouts and shots.
        seed: Seed of the episodes.
        readouts: Ways to read: own, swapped, pcaN, estN; with several heads those that do not fit one are left out.
        base: Features and labels of other classes, which readouts are fitted on.
        parameters: What trained heads have learned, by head.
        embed: How features become a vector (flatten, mean, max, gram), by head; the head's own way by default.
        plan: Episodes instead of way, queries, episodes and seed.
        dirichlet: Makes some classes commoner than others among the queries: the smaller, the more unequal.
        registry: What heads and readouts are looked up in.
        about: What the features are of, for the columns of the table: data, backbone, train_shot, seed, model.
        progress: Called with shares of the whole that add up to 1.
    """
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
    arrays = _recall_all(maps, base, heads, readouts, parameters or {}, embed or {}, plan, patterns, registry, progress)
    unequal = full_patterns(patterns, plan) if isinstance(shots, str) else None
    of = [{**(about or {}), "head": h, "readout": r, **kind_of(h, registry.head(h))} for h, r in arrays]
    return Evaluation(plan, _recalls(of, arrays.values(), plan, words, unequal, dirichlet))


def _recalls(
    of: Iterable[Row],
    arrays: Iterable[Float[np.ndarray, "pattern episode way"]],
    plan: Plan,
    shots: Sequence[int | str],
    patterns: np.ndarray | None,
    dirichlet: float | None = None,
) -> list[Recalls]:
    """Recalls on one plan: what each is of, and its array."""
    about, classes = plan.about(), plan.draw(0, plan.episodes).classes
    return [
        Recalls(one, about, tuple(shots), classes, array, patterns, dirichlet)
        for one, array in zip(of, arrays, strict=True)
    ]


def kind_of(name: str, head: Head, mixed: Sequence[int] = ()) -> Row:
    """The columns that say what kind of head it is."""
    return {"learner": head.alternative_to or name, "score": head.score_name, "mixed": " ".join(map(str, mixed))}


def columns_of(model: Model, data: str) -> Row:
    """The columns that identify a trained model, but for its readout."""
    recipe = model.recipe
    about: Row = {"data": data, "backbone": recipe.backbone, "head": recipe.label, "train_shot": recipe.train_shot}
    return about | {"seed": recipe.seed, "model": recipe.id, **kind_of(recipe.head, model.head, recipe.mixed)}


def recalls_of_model(
    model: Model,
    data: str,
    features: Float[np.ndarray, "image position channel"],
    fitted: Fitted,
    readouts: Sequence[str],
    plan: Plan,
    shots: Sequence[int] | Sequence[str],
    registry: Registry = PACKAGE,
) -> list[Recalls]:
    """Recalls of a trained model on its features of the test images, one per readout. `shots` are test shots, or kinds
    of unequal ones; `fitted` has what readouts learned (`fitted_on_training_classes`)."""
    kinds = [kind for kind in shots if isinstance(kind, str)]
    patterns = np.concatenate([shot_patterns(kind, plan)[0] for kind in kinds]) if kinds else None
    asked = [(model.reading, readout) for readout in readouts]
    wanted: Any = shots if patterns is None else patterns
    arrays = read_out(asked, model.vectors(features), fitted, plan, wanted, registry)
    of = [columns_of(model, data) | {"readout": readout} for readout in readouts]
    return _recalls(of, arrays, plan, shots, patterns)


def fitted_on_training_classes(model: Model, store: Store, registry: Registry = PACKAGE) -> Fitted:
    """Readouts of a trained model, fitted when they are asked for."""

    def base() -> tuple[Tensor, Tensor]:
        part = store.part("train")
        return model.vectors(model.features(part.items)), torch.from_numpy(part.labels)

    return fit_on(base, registry)


def _recall_all(
    maps: Maps,
    base: Labelled | None,
    heads: Sequence[str],
    readouts: Sequence[str],
    parameters: Mapping[str, Parameters],
    embed: Mapping[str, str],
    plan: Plan,
    patterns: Shots,
    registry: Registry,
    progress: Done,
) -> dict[tuple[str, str], np.ndarray]:
    """Recalls by head and readout."""
    groups, arrays = _alike(heads, readouts, embed, registry), dict[tuple[str, str], np.ndarray]()
    share = scaled(progress, 1 / max(1, len(groups)))
    for (how, _), keys in groups.items():
        learned = {name: parameters.get(name) or untrained(name, maps, registry) for name, _ in keys}
        used = learned[keys[0][0]]
        vectors = vectors_of(maps, how, used)
        asked = [(Reading(registry.head(name), learned[name]), readout) for name, readout in keys]
        head = registry.head(keys[0][0])
        if head.estimator is not None:
            arrays[keys[0]] = _estimated(head, vectors, plan, patterns, share)
            asked, keys = asked[1:], keys[1:]
        fitted = fit_on(partial(_base_vectors, base, how, used), registry)
        arrays |= dict(zip(keys, read_out(asked, vectors, fitted, plan, patterns, registry, share), strict=True))
    return {key: arrays[key] for key in product(heads, readouts) if key in arrays}


def _alike(
    heads: Sequence[str], readouts: Sequence[str], embed: Mapping[str, str], registry: Registry
) -> dict[tuple[Embed, str], list[tuple[str, str]]]:
    """Heads and the readouts that fit them, by how they embed: those that do so alike are read from one bank."""

    def bank(pair: tuple[str, str]) -> tuple[Embed, str]:
        name, _ = pair
        how = choose("embed", embed[name], EMBEDS) if embed.get(name) else registry.head(name).embed
        return how, "" if how in EMBEDS.values() else name  # an embed of a head's own may use what that head learned

    fitting = [(name, readout) for name in heads for readout in readouts if registry.fits(readout, name)]
    if len(heads) == 1 or not fitting:
        for name, readout in product(heads[:1], readouts):
            registry.check_readout(readout, name)
    return grouped(fitting, bank)


def _estimated(
    head: Head, vectors: Vectors, plan: Plan, shots: Shots, progress: Done
) -> Float[np.ndarray, "pattern episode way"]:
    """Recalls of a head that estimates its parameters from each support: one fit per episode and pattern."""
    patterns = full_patterns(shots, plan)
    out = np.empty((len(patterns), plan.episodes, plan.way), np.float32)

    def run(first: int) -> int:
        draw = plan.draw(first, min(first + EPISODES, plan.episodes))
        for episode, query in enumerate(draw.query.reshape(len(draw.query), -1)):
            for number, counts in enumerate(patterns[:, first + episode]):
                images = np.concatenate([draw.support[episode, c, :k] for c, k in enumerate(counts)])
                owner = torch.from_numpy(np.repeat(np.arange(plan.way), counts))
                scores = score_support(head, _in_double(vectors, images), owner, _in_double(vectors, query))
                out[number, first + episode] = recall(scores.mT[None, None], plan)[0, 0]
        return len(draw.query)

    for episodes in side_by_side(run, range(0, plan.episodes, EPISODES), ahead=4):
        progress(episodes / plan.episodes)
    return out


def _in_double(vectors: Vectors, images: Int[np.ndarray, " some"]) -> Float[Tensor, "some d"]:
    """The vectors of some images: in double precision all of them would take twice their memory."""
    places = torch.from_numpy(images)
    return (vectors.at(places) if isinstance(vectors, Lazy) else vectors[places]).double()


def evaluate_store(
    store: Store,
    model: Model | Embedder | None = None,
    heads: Sequence[str] = (),
    split: str = "test",
    *,
    readouts: Sequence[str] = ("own",),
    registry: Registry = PACKAGE,
    cache: FeatureCache | None = None,
    **options: Any,
) -> Evaluation:
    """Test heads on a split of a store: on its features, or on those that a trained model or another embedder gives of
    its images. Without `heads`, a trained model's own head is read; readouts are fitted on the training classes, where
    the store has some. A `cache` keeps the features of images. `options` are those of `evaluate`."""
    part = store.part(split)
    embed = None if model is None else embedder(model)
    check_kind(store, embed)

    def features(part: Part) -> np.ndarray:
        return part.items if embed is None or store.is_features else embed.features(part.items, cache=cache)

    if embed is not None and embed.model is not None:
        recipe = embed.model.recipe
        heads = heads or (recipe.head,)
        options["embed"] = {name: recipe.embed for name in heads if recipe.embed}
        options["parameters"] = {recipe.head: embed.model.reading.parameters}
    if any(registry.readout(name).fit for name in readouts) and "train" in store.class_split:
        train = store.part("train")
        options["base"] = (features(train), train.labels)
    names = np.array(part.class_names)[part.labels]
    options |= {"readouts": readouts, "registry": registry, "about": _about(store, embed)}
    return evaluate(features(part), names, heads or ("proto", "cosine-proto"), **options)


def _about(store: Store, embed: Embedder | None) -> Row:
    """What features of a store are of, for the columns of a table."""
    about: Row = {"data": store.path.name}
    if embed is None:
        return about
    if embed.model is None:
        return about | {"backbone": embed.name or embed.about["backbone"]}
    columns = columns_of(embed.model, "")
    return about | {name: columns[name] for name in ("backbone", "train_shot", "seed", "model")}


def check_kind(store: Store, embed: Embedder | None) -> None:
    """Images need a model, features have had theirs, or are what a model was trained on."""
    if embed is None and not store.is_features:
        raise BadInput(f"{store.path} holds images: name a trained model to embed them, or pack features instead.")
    if embed is None or not store.is_features:
        return
    content = store.about.get("content", "")
    reads_any = embed.model is not None and embed.model.recipe.frozen and not (content and embed.content)
    if not reads_any and (not content or content != embed.content):
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
    for start in range(0, len(maps), CHECKED):
        piece = maps[start : start + CHECKED]
        if not torch.isfinite(piece).all():
            row = start + int((~torch.isfinite(piece.flatten(1)).all(1)).nonzero()[0])
            raise BadInput(f"features must be finite, and row {row} is not: it has NaN or infinite values.")
    return maps


def check_labels(labels: ArrayLike, images: int) -> tuple[list[str], Int[np.ndarray, " image"]]:
    """Class names, and the labels as indices into them."""
    array = np.asarray(labels)
    if array.shape != (images,):
        raise BadInput(f"there must be one label for each example: {images} examples, labels of shape {array.shape}.")
    names, codes = np.unique(array, return_inverse=True)
    if len(names) < 2:
        raise BadInput(f"an evaluation needs at least 2 classes; all labels are {str(names[0])!r}.")
    return [str(name) for name in names], codes


def untrained(name: str, features: Maps, registry: Registry = PACKAGE) -> Parameters:
    """The parameters of a head that works without training, for such features."""
    head = registry.head(name)
    if head.needs_training:
        others = ", ".join(key for key, other in registry.heads.items() if not other.needs_training)
        raise BadInput(f"{name} has to be trained: name a model with it, or choose among {others}.")
    blank = torch.zeros(1, *features.shape[-2:])
    return head.parameters(blank, Recipe(data="", head=name, train_shot=2, way=2))


def _base_vectors(base: Labelled | None, how: Embed, parameters: Parameters) -> tuple[Tensor, Tensor]:
    if base is None:
        raise BadInput(
            "a projection is fitted on training classes: use a store whose split has some (in Python, give their "
            "features and labels as the base)."
        )
    maps = check_features(base[0])
    vectors = torch.cat(list(Lazy(maps, how, parameters).split(256)))
    return vectors, torch.from_numpy(check_labels(base[1], len(maps))[1])


def run_evaluation(
    store: Path,
    model: str | None,
    heads: Sequence[str],
    split: str,
    protocol: Protocol,
    unequal: Pattern | None,
    readouts: Sequence[str],
    dirichlet: float | None,
    plan: Path | None,
    save_plan: Path | None,
    out: Path | None,
    registry: Registry,
    cache: FeatureCache | None = None,
    layout: Layout | None = None,
) -> str:
    """The `evaluate` verb: from paths to a table, kept where it is asked for; what the terminal shows. A `way` of 0 in
    the protocol means every class at once; without shots in it, those are measured that fit."""
    opened, embeds = _opened(store, model, registry, cache, layout)
    check_kind(opened, embeds)
    part = opened.part(split)
    names, codes = check_labels(np.array(part.class_names)[part.labels], len(part.labels))
    protocol, words = (protocol, "") if protocol.shots else protocol.fitting(codes)
    if plan is None:
        episodes = replace(protocol, way=protocol.way or len(names)).plan(codes, names)
    else:
        episodes = Plan.load(plan, codes, names)
    say(words)
    with bar("evaluating", 1.0) as advance:
        evaluation = evaluate_store(
            opened, embeds, heads, split, readouts=readouts, registry=registry, shots=unequal or protocol.shots,
            plan=episodes, dirichlet=dirichlet, progress=advance, cache=cache,
        )  # fmt: skip
    if save_plan is not None:
        episodes.save(save_plan)
    if out is not None:
        write_table(out / "table.csv", list(evaluation))
        write_recalls(out / "recalls.npz", evaluation.recalls)
    return str(evaluation)


def _opened(
    source: Path, model: str | None, registry: Registry, cache: FeatureCache | None, layout: Layout | None
) -> tuple[Store, Embedder | None]:
    """A store, or pictures or features as one, and what embeds its images; by default what comes with anyshot."""
    is_store = (source / "store.json").is_file() or not source.exists()
    store = open_store(source) if is_store else None
    of_features = store.is_features if store is not None else holds_features(source)
    model = DEFAULT if model is None and not of_features else model
    embeds = embedder(model, registry=registry) if model is not None else None
    if store is None:
        store = read_examples(source, embeds, cache, layout, say=say).store(source)
        if embeds is not None and not of_features:
            store.about["content"] = embeds.content
    return store, embeds
