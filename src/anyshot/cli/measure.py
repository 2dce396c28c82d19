"""The verb that measures heads on few-shot episodes: evaluate."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from cyclopts import Parameter

from anyshot.cli.options import OptionalOut, ReadOptions, parse_way
from anyshot.cli.paths import check_paths

if TYPE_CHECKING:
    from anyshot.data.source import Source
    from anyshot.data.store import Store
    from anyshot.models.embedders import Embedder
    from anyshot.models.registry import Registry


@Parameter(name="*", group="Episodes")
@dataclass(frozen=True)
class EpisodeOptions:
    """Episodes: what they are drawn from and how many.

    Attributes:
        shots: Test shots; by default those of 1, 2, 4, 8, 16 and 32 that the smallest class has examples for.
        unequal: Unequal shots between 1 and the largest test shot instead.
        way: Classes per episode; 'all' for every class at once.
        queries: Queries per class.
        episodes: Episodes; the same for all heads and shots.
        seed: Seed of the episodes.
        dirichlet: Make some classes commoner than others among the queries, by a Dirichlet distribution: the smaller,
            the more unequal.
        stop_early: Stop after a sixteenth or a quarter of the episodes, where these tell all heads apart.
        plan: File of saved episodes, instead of way, queries, episodes and seed.
        save_plan: File to save the episodes to, to share them.
    """

    shots: tuple[int, ...] = ()
    unequal: Literal["uniform", "step", "long-tailed"] | None = None
    way: str = "5"
    queries: int = 16
    episodes: int = 10_000
    seed: int = 0
    dirichlet: float | None = None
    stop_early: bool = False
    plan: Path | None = None
    save_plan: Path | None = None


def evaluate(
    store: Path,
    /,
    *,
    episodes: EpisodeOptions = EpisodeOptions(),
    options: ReadOptions = ReadOptions(),
    model: str | None = None,
    heads: tuple[str, ...] = (),
    readouts: tuple[str, ...] = ("own",),
    split: str = "test",
    out: OptionalOut = None,
) -> None:
    """Test heads on features, or on a model's features of images.

    A head is a way to tell classes apart by a few examples of each. It is tested in episodes: small tasks with some
    classes (the way), some examples of each to learn from (the shots) and others to recognise (the queries).

    Args:
        store: A store, made by `anyshot pack`; pictures in class folders (or a zip of them, or a table of paths and
            labels); a file of features with labels.
        episodes: What heads are tested on.
        options: How sources are read and networks run.
        model: What embeds images, by default efficientnet-lite0, which comes with anyshot; or the folder or name of a
            trained model, timm:NAME, or an .onnx file.
        heads: Heads to test; the model's own, or proto and cosine-proto, by default.
        readouts: Other ways to read the same features: own, swapped (the other score), pcaN and estN (after a
            projection to N numbers); those that do not fit a head are left out.
        split: Classes to test on: train, val or test; test by default.
        out: Folder for the table (table.csv) and the recalls of every episode; printed only by default.
    """
    from anyshot.machine import keep_freed_memory, limit_threads_to_free_cores

    check_paths(None, store)
    limit_threads_to_free_cores()  # before torch is imported, which counts its threads once
    registry = options.registry()
    import numpy as np

    from anyshot.measure.evaluate import evaluate_store
    from anyshot.measure.groups import number_groups
    from anyshot.measure.inputs import check_kind, check_labels
    from anyshot.measure.plan import Plan, Protocol
    from anyshot.measure.recalls import write_recalls
    from anyshot.progress import print_message, progress
    from anyshot.tables import write_table

    keep_freed_memory()
    way = parse_way(episodes.way)
    source, embedder = _open_source(store, model, options, registry, split)
    check_kind(source, embedder)
    part = source.part(split)
    names, codes = check_labels(np.array(part.class_names)[part.labels], len(part.labels))
    groups = number_groups(part.groups, codes)
    protocol = Protocol(episodes.shots, way or len(names), episodes.queries, episodes.episodes, episodes.seed)
    message = ""
    if not protocol.shots:
        protocol, message = protocol.shrink_to_fit(codes, groups)
    plan = Plan.load(episodes.plan, codes, names, groups) if episodes.plan else protocol.plan(codes, names, groups)
    print_message(message)
    refitted = [name for name in heads if registry.head(name).estimator is not None]
    if refitted:
        fits = f"in each of {plan.episodes} episodes and at each shot, some milliseconds each"
        print_message(f"{', '.join(refitted)}: fitted anew {fits}; fewer --episodes, or --stop-early, take less time.")
    with progress("evaluating", 1.0) as advance:
        evaluation = evaluate_store(
            source, embedder, heads, split, readouts=readouts, registry=registry, plan=plan, cache=options.open_cache(),
            shots=episodes.unequal or protocol.shots, dirichlet=episodes.dirichlet, stop_early=episodes.stop_early,
            progress=advance,
        )  # fmt: skip
    if episodes.save_plan is not None:
        evaluation.plan.save(episodes.save_plan)
    if out is not None:
        write_table(out / "table.csv", list(evaluation))
        write_recalls(out / "recalls.npz", evaluation.recalls)
    print(evaluation)


def _open_source(
    source: Path, model: str | None, options: ReadOptions, registry: "Registry", split: str
) -> "tuple[Store, Embedder | None]":
    """Return a store, or images or features as one, and what embeds its images."""
    from anyshot.data.open import find_kind, has_features
    from anyshot.data.store import open_store
    from anyshot.models.embedders import DEFAULT_EMBEDDER, load_embedder
    from anyshot.models.features import read_examples
    from anyshot.progress import print_message

    store = open_store(source) if find_kind(source, options.layout) == "store" else None
    is_features = store.is_features if store is not None else has_features(source, options.layout)
    model = DEFAULT_EMBEDDER if model is None and not is_features else model
    embedder = load_embedder(model, registry=registry) if model is not None else None
    if store is None:
        examples = read_examples(source, embedder, options.open_cache(), options.layout, say=print_message)
        examples = _leave_out_singles(examples, split)
        store = examples.to_store(source)
        if embedder is not None and not is_features:
            store.about["content"] = embedder.fingerprint
    return store, embedder


def _leave_out_singles(examples: "Source", split: str) -> "Source":
    """Leave out classes of the split with a single example, where two others remain, and say so."""
    from collections import Counter

    from anyshot.progress import print_message
    from anyshot.text import count_noun, list_first

    places = [item.class_name if (item.split or "test") == split else "" for item in examples.items]
    counts = Counter(filter(None, places))
    singles = sorted(name for name, count in counts.items() if count == 1)
    if not singles or len(counts) - len(singles) < 2:
        return examples
    left_out = f"{count_noun(len(singles), 'class')} with a single example left out ({list_first(singles)})"
    print_message(f"{left_out}: an episode needs one example to learn from and another to recognise.")
    return examples.select([row for row, name in enumerate(places) if counts[name] != 1])
