"""Evaluation: features and labels in, recalls out, and a table with intervals; on arrays, stores or trained models.

>>> import numpy as np
>>> rng = np.random.default_rng(0)
>>> labels = np.repeat(["wren", "hawk", "gull", "coot", "kite", "rook"], 40)
>>> features = rng.normal(size=(6, 1, 8)).repeat(40, 1).reshape(240, 8) + rng.normal(size=(240, 8))
>>> table = evaluate(features, labels, heads=["proto", "cosine-proto"], shots=[1, 4, 16], episodes=500)
>>> [(row["head"], row["test_shot"]) for row in table][:3]
[('proto', 1), ('proto', 4), ('proto', 16)]
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import ArrayLike
from torch import Tensor

from anyshot.arrays import split_rows
from anyshot.data.store import Store, StoreSplit
from anyshot.errors import BadInput, look_up
from anyshot.measure.comparisons import compare_accuracies, list_looks, paired_difference, run_until_apart
from anyshot.measure.engine import (
    FitReadout,
    LazyVectors,
    Vectors,
    compute_readout_recalls,
    compute_vectors,
    lazy_readout_fits,
)
from anyshot.measure.groups import find_groups, number_groups, unit_vectors
from anyshot.measure.inputs import LabelledFeatures, Maps, check_features, check_kind, check_labels
from anyshot.measure.plan import UNEQUAL, Plan, Protocol, shot_patterns
from anyshot.measure.recalls import LEAST_WITHOUT, Recalls
from anyshot.models.cache import FeatureCache
from anyshot.models.devices import to_gpu
from anyshot.models.embedders import Embedder, load_embedder
from anyshot.models.heads import EMBEDS
from anyshot.models.law import BoundHead, Embed, Head, Parameters, move_parameters
from anyshot.models.model import Model
from anyshot.models.registry import BUILTIN, Registry, untrained_parameters
from anyshot.progress import OnProgress, no_progress, scale_progress
from anyshot.tables import CellKey, GridKey, Row
from anyshot.text import format_number, group_by

SHOTS = Protocol().shots
LARGEST_UNEQUAL = 32  # the largest of unequal shots, as in the paper's protocol
MOST_COMPARED = 10_000_000  # pairs of examples of a class that are compared for near-copies: it takes two seconds
PIECE = 4096  # training images whose features are in memory at a time while a readout is fitted
Pair = tuple[str, str]  # the names of a head and of a readout


@dataclass(frozen=True, eq=False)
class Evaluation:
    """The recalls of every head and readout on one plan of episodes; iterating gives the rows of its table.

    Attributes:
        plan: The episodes.
        recalls: The recalls of each head and readout, from which paired differences can still be computed.
        message: What stopping early has found, where it was asked for.
        copies: Examples whose features are equal to those of an earlier one, or nearly so.
    """

    plan: Plan
    recalls: Sequence[Recalls]
    message: str = ""
    copies: int = 0

    def __iter__(self) -> Iterator[Row]:
        return (row for recalls in self.recalls for row in recalls.rows())

    def __len__(self) -> int:
        return sum(len(recalls.shots) for recalls in self.recalls)

    def __repr__(self) -> str:
        heads = dict.fromkeys(recalls.key.head for recalls in self.recalls)
        return f"<Evaluation of {', '.join(heads)}: {len(self)} rows>"

    def of(self, head: str, readout: str = "own") -> Recalls:
        """Return the recalls of one head and readout.

        Raises:
            BadInput: They were not tested.
        """
        for recalls in self.recalls:
            if (recalls.key.head, recalls.key.readout) == (head, readout):
                return recalls
        tested = ", ".join(recalls.key.grid.name for recalls in self.recalls)
        raise BadInput(f"{head} was not tested with the readout {readout}; there is {tested}.")

    def accuracies(self, head: str, readout: str = "own") -> Float[np.ndarray, "pattern episode"]:
        """Return the accuracy of each episode, in percent."""
        return self.of(head, readout).accuracies

    def difference(self, one: tuple[str, str] | str, other: tuple[str, str] | str) -> list[Row]:
        """Return how much more accurate one head is than another on the same episodes, a row per test shot.

        Args:
            one: A head, or a head and its readout.
            other: What it is compared with.
        """
        pair = [self.of(key) if isinstance(key, str) else self.of(*key) for key in (one, other)]
        return paired_difference(*pair)

    def __str__(self) -> str:
        """Return the rows for a terminal, and what their intervals mean."""
        rows, plan = list(self), self.plan
        queries = "query" if plan.queries == 1 else "queries"
        lines = [f"{'head (readout)':26} {'test shot':>11} {'accuracy':>9} {'+- episodes':>12} {'+- new classes':>15}"]
        lines += [
            f"{GridKey.of_row(row).name:26} {row['test_shot']:>11} {row['accuracy']:8.2f}% "
            f"{format_number(row['ci95']):>12} {format_number(row['ci95_classes']):>15}"
            for row in rows
        ]
        lines += [
            f"{plan.way}-way, {plan.queries} {queries} per class, {plan.episodes} paired episodes, seed {plan.seed}.",
            "95 % intervals: '+- episodes' over other draws of episodes from these examples (is this table well",
            "measured?), '+- new classes' over new classes of the same kind (does it hold elsewhere?).",
        ]
        if plan.episodes < 2:
            lines.append("An interval over episodes needs at least two episodes.")
        if any(np.isnan(row["ci95_classes"]) for row in rows):
            absent = f"three classes, each absent from {LEAST_WITHOUT} episodes"
            lines.append(f"An interval over new classes needs {absent}.")
        if self.copies:
            lines += [
                f"{self.copies} of {len(plan.labels)} examples are copies of others, or nearly so: the accuracies are "
                "optimistic,",
                "because a query may be equal to an example that was learned. Name what belongs together: groups= in",
                "Python; --group-column or --group-depth of `anyshot evaluate`.",
            ]
        if self.ties:
            lines.append(f"{self.ties:.2g} % of class recalls hold ties, counted as if broken at random.")
        return "\n".join([*lines, self.message] if self.message else lines)

    @property
    def ties(self) -> float:
        """The share of class recalls (in percent) that hold a tie: a query whose own class shares the best logit."""
        counts = [recalls.recall * self.plan.queries for recalls in self.recalls]
        return 100 * float(np.mean([np.abs(count - count.round()) > 1e-3 for count in counts]))


def evaluate(  # noqa: PLR0913 (a public signature, all but two by keyword)
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
    base: LabelledFeatures | None = None,
    parameters: Mapping[str, Parameters] | None = None,
    embed: Mapping[str, str] | None = None,
    plan: Plan | None = None,
    groups: Any = None,
    dirichlet: float | None = None,
    registry: Registry = BUILTIN,
    about: Mapping[str, Any] | None = None,
    stop_early: bool = False,
    progress: OnProgress = no_progress,
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
        groups: A name for each example, None for one that belongs to no other: no episode has examples of one group in
            its support and among its queries, unless a class is a single group.
        dirichlet: Makes some classes commoner than others among the queries: the smaller, the more unequal.
        registry: What heads and readouts are looked up in.
        about: What the features are of, for the columns of the table: data, backbone, train_shot, seed, model.
        stop_early: Whether to test on fewer episodes where these tell all heads apart (`run_until_apart`).
        progress: Called with shares of the whole that add up to 1.

    Returns:
        The recalls of every head and readout, and their table.

    Raises:
        BadInput: Features, labels, shots or names do not fit.
    """
    if dirichlet is not None and not dirichlet > 0:
        raise BadInput(f"the Dirichlet concentration must be above 0, not {dirichlet}.")
    heads = (heads,) if isinstance(heads, str) else heads
    maps = check_features(features)
    names, codes = check_labels(labels, len(maps))
    if isinstance(shots, str):
        look_up("kind of unequal shots", shots, UNEQUAL)
    largest = LARGEST_UNEQUAL if isinstance(shots, str) else max(shots, default=1)
    protocol = Protocol((largest,), len(names) if way == "all" else way, queries, episodes, seed)
    numbered_groups = number_groups(groups, codes)
    plan = plan or protocol.plan(codes, names, numbered_groups)
    pairs = _list_pairs(heads, readouts, registry)
    by_embedding = _group_by_embedding(pairs, embed or {}, registry)
    columns = {
        name: {**(about or {}), "head": name, **list_head_columns(name, registry.head(name))} for name, _ in pairs
    }
    copies = _count_copies(maps, codes) if numbered_groups is None else 0
    looks = list_looks(plan.episodes) if stop_early else [plan.episodes]
    advance = scale_progress(progress, 1 / max(1, len(by_embedding) * len(looks)))

    def test(episodes: int) -> Evaluation:
        first = replace(plan, episodes=episodes)
        patterns, shot_names = shot_patterns(shots, first)
        arrays: dict[Pair, np.ndarray] = {}
        for (embedding, _), members in by_embedding.items():
            bound, vectors, fit_readout = _bind(maps, base, parameters or {}, embedding, members, registry)
            results = compute_readout_recalls(bound, vectors, fit_readout, first, patterns, registry, advance)
            arrays |= dict(zip(members, results, strict=True))
        recalls = [
            Recalls(
                columns[name] | {"readout": readout},
                first.about(),
                tuple(shot_names),
                first.classes,
                arrays[name, readout],
                patterns=np.asarray(patterns) if isinstance(shots, str) else None,
                dirichlet=dirichlet,
            )
            for name, readout in pairs
        ]
        return Evaluation(first, recalls, copies=copies)

    if not stop_early:
        return test(plan.episodes)
    evaluation, message = run_until_apart(test, looks, lambda one, level: compare_accuracies(one.recalls, level))
    return replace(evaluation, message=message)


def _count_copies(maps: Maps, labels: Int[np.ndarray, " image"]) -> int:
    """Return how many examples are equal to an earlier one, or nearly so, judged by some 512 of their numbers.

    Of very many examples only equal ones are counted: comparing all of them would take longer than the evaluation.
    """
    rows = maps.flatten(1)[:, :: max(1, maps[0].numel() // 512)].cpu().numpy()
    equal = len(rows) - len({hash(row.tobytes()) for row in rows})
    if (np.bincount(labels) ** 2).sum() > MOST_COMPARED:
        return equal
    near = find_groups(unit_vectors(rows), labels)
    return max(equal, near.members - near.count)


def _bind(
    maps: Maps,
    base: LabelledFeatures | None,
    parameters: Mapping[str, Parameters],
    embedding: Embed,
    pairs: Sequence[Pair],
    registry: Registry,
) -> tuple[list[tuple[BoundHead, str]], Vectors, FitReadout]:
    """Return heads with their parameters and readouts, the vectors of the images, and what fits a readout.

    Args:
        maps: The features of the images.
        base: Features and labels of other classes, if there are any.
        parameters: What trained heads have learned, by head.
        embedding: How the heads embed images; it is the same for all of them.
        pairs: The heads, each with its readout.
        registry: What heads and readouts are looked up in.
    """
    heads = {name: registry.head(name) for name, _ in pairs}
    learned = {name: parameters.get(name) or untrained_parameters(name, maps, registry) for name in heads}
    shared = learned[pairs[0][0]]  # an embedding of several heads uses no parameters
    # A head with an estimator is fitted to each support, whatever it has learned.
    bound = {name: BoundHead(head, {} if head.estimator else learned[name]) for name, head in heads.items()}
    fit_readout = lazy_readout_fits(partial(_embed_base, base, embedding, shared, maps.device), registry)
    return [(bound[name], readout) for name, readout in pairs], compute_vectors(maps, embedding, shared), fit_readout


def _list_pairs(heads: Sequence[str], readouts: Sequence[str], registry: Registry) -> list[Pair]:
    """Return each head with each readout that fits it.

    Raises:
        BadInput: A readout does not fit the only head, or none fits any, or there is no head.
    """
    pairs = [(name, readout) for name in heads for readout in readouts if registry.fits(readout, name)]
    if len(heads) == 1 or not pairs:
        for name, readout in product(heads[:1], readouts):
            registry.check_readout(readout, name)
    if not pairs:
        raise BadInput("an evaluation needs at least one head and one readout.")
    return pairs


def _group_by_embedding(
    pairs: Sequence[Pair], embed: Mapping[str, str], registry: Registry
) -> dict[tuple[Embed, str], list[Pair]]:
    """Group heads and readouts by how they embed images: those that embed alike share their vectors."""

    def find_embedding(pair: Pair) -> tuple[Embed, str]:
        name, _ = pair
        embedding = look_up("embed", embed[name], EMBEDS) if embed.get(name) else registry.head(name).embed
        # An embedding that only one head has may use what this head has learned.
        return embedding, "" if embedding in EMBEDS.values() else name

    return group_by(pairs, find_embedding)


def _embed_base(
    base: LabelledFeatures | None, embedding: Embed, parameters: Parameters, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Return the vectors and the labels of the base classes, on which readouts are fitted."""
    if base is None:
        raise BadInput(
            "a projection is fitted on training classes: use a store whose split has some (in Python, give their "
            "features and labels as the base)."
        )
    maps = check_features(base[0]).to(device)
    vectors = torch.cat(list(LazyVectors(maps, embedding, move_parameters(parameters, device)).split(256)))
    return vectors, torch.from_numpy(check_labels(base[1], len(maps))[1]).to(device)


def list_head_columns(name: str, head: Head, mixed: Sequence[int] = ()) -> Row:
    """Return the columns of a table that describe a head (see `anyshot.tables.add_head_columns`)."""
    return {"learner": head.alternative_to or name, "score": head.score_name, "mixed": " ".join(map(str, mixed))}


def list_model_columns(model: Model, data: str) -> Row:
    """Return the columns of a table that identify a trained model, read by its own head."""
    recipe = model.recipe
    key = CellKey(data, recipe.backbone, recipe.label, "own", recipe.train_shot, recipe.seed)
    return key._asdict() | {"model": recipe.id, **list_head_columns(recipe.head, model.head, recipe.mixed)}


class EmbeddedSplit(NamedTuple):
    """A split of a store as features of a trained model, and what its readouts have learned."""

    data: str
    model: Model
    features: Float[np.ndarray, "image position channel"]
    labels: Int[np.ndarray, " image"]
    class_names: Sequence[str]
    fit_readout: FitReadout

    def vectors(self) -> Vectors:
        """Return the vectors of the images; Gram matrices of a wide network only as they are needed."""
        maps = to_gpu(torch.from_numpy(self.features), next(self.model.parameters()).device)
        return compute_vectors(maps, self.model.embed, self.model.bound_head.parameters)

    def about(self) -> Row:
        """Return the columns of the side experiments that identify the model."""
        columns = list_model_columns(self.model, self.data)
        return {name: columns[name] for name in ("data", "backbone", "head", "train_shot")}


def embed_split(store: Store, model: Model, split: str = "test", registry: Registry = BUILTIN) -> EmbeddedSplit:
    """Embed a split once, for all that will be asked of it; readouts are fitted on training classes when needed."""
    if store.is_features != model.recipe.frozen:
        holds, wants = ("features", "images") if store.is_features else ("images", "features")
        raise BadInput(f"{store.path} holds {holds}, and this model wants {wants}: name a store of {wants}.")

    def base() -> tuple[Tensor, Tensor]:
        # Features of all images at once would take 29 GB of ResNet-12 on tiered-ImageNet, their vectors 1 GB.
        part, read = store.part("train"), model.reader()
        vectors = [model.vectors(read(part.items[rows])) for rows in split_rows(len(part.items), PIECE)]
        return torch.cat(vectors), torch.from_numpy(part.labels)

    part, fit_readout = store.part(split), lazy_readout_fits(base, registry)
    return EmbeddedSplit(store.path.name, model, model.features(part.items), part.labels, part.class_names, fit_readout)


def evaluate_model(
    embedded: EmbeddedSplit,
    readouts: Sequence[str],
    protocol: Protocol,
    registry: Registry = BUILTIN,
    unequal: Sequence[str] = (),
) -> list[Recalls]:
    """Return the recalls of a trained model, one per readout.

    Args:
        embedded: Its features of the test images.
        readouts: Names of the readouts.
        protocol: Shots and episodes.
        registry: What readouts are looked up in.
        unequal: Kinds of unequal shots, in place of the protocol's shots.
    """
    model, plan = embedded.model, protocol.plan(embedded.labels, embedded.class_names)
    patterns = np.concatenate([shot_patterns(kind, plan)[0] for kind in unequal]) if unequal else None
    arrays = compute_readout_recalls(
        [(model.bound_head, readout) for readout in readouts],
        embedded.vectors(),
        embedded.fit_readout,
        plan,
        protocol.shots if patterns is None else patterns,
        registry,
    )
    columns, shots = list_model_columns(model, model.recipe.data), tuple(unequal) or protocol.shots
    return [
        Recalls(columns | {"readout": readout}, plan.about(), shots, plan.classes, array, patterns)
        for readout, array in zip(readouts, arrays, strict=True)
    ]


def evaluate_store(
    store: Store,
    model: Model | Embedder | None = None,
    heads: Sequence[str] = (),
    split: str = "test",
    *,
    readouts: Sequence[str] = ("own",),
    registry: Registry = BUILTIN,
    cache: FeatureCache | None = None,
    **options: Any,
) -> Evaluation:
    """Test heads on a split of a store.

    Args:
        store: Features, or images; readouts are fitted on its training classes, where it has some.
        model: A trained model or another embedder, which gives features of images.
        heads: Names of heads; a trained model's own head by default.
        split: The classes to test on.
        readouts: As in `evaluate`.
        registry: What heads and readouts are looked up in.
        cache: Where the features of images are kept.
        options: Other options of `evaluate`.
    """
    part = store.part(split)
    embedder = None if model is None else load_embedder(model)
    check_kind(store, embedder)

    def read_features(classes: StoreSplit) -> np.ndarray:
        if embedder is None or store.is_features:
            return np.asarray(classes.items)
        return embedder.features(classes.items, cache=cache)

    about: Row = {"data": store.path.name}
    if embedder is not None and embedder.model is not None:
        recipe, columns = embedder.model.recipe, list_model_columns(embedder.model, "")
        about |= {name: columns[name] for name in ("backbone", "train_shot", "seed", "model")}
        heads = heads or (recipe.head,)
        options["embed"] = {name: recipe.embed for name in heads if recipe.embed}
        options["parameters"] = {recipe.head: embedder.model.bound_head.parameters}
    elif embedder is not None:
        about["backbone"] = embedder.name or embedder.about["backbone"]
    if any(registry.readout(name).fit for name in readouts) and "train" in store.class_split:
        train = store.part("train")
        options["base"] = (read_features(train), train.labels)
    names = np.array(part.class_names)[part.labels]
    options |= {"readouts": readouts, "registry": registry, "about": about, "groups": part.groups}
    return evaluate(read_features(part), names, heads or ("proto", "cosine-proto"), **options)
