"""The `evaluate` verb: from paths to a table."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np

from anyshot.data.layout import SourceOptions
from anyshot.data.open import find_kind, has_features
from anyshot.data.store import Store, open_store
from anyshot.measure.evaluate import evaluate_store
from anyshot.measure.inputs import check_kind, check_labels
from anyshot.measure.plan import Plan, Protocol
from anyshot.measure.recalls import write_recalls
from anyshot.models.cache import FeatureCache
from anyshot.models.embedders import DEFAULT_EMBEDDER, Embedder, load_embedder
from anyshot.models.features import read_examples
from anyshot.models.registry import Registry
from anyshot.progress import print_message
from anyshot.progress import progress as bar
from anyshot.tables import write_table


@dataclass(frozen=True)
class EvaluationOptions:
    """What is tested, on which episodes, and where the results are kept.

    Args:
        model: The name or path of what embeds images; None for what comes with anyshot.
        heads: Names of heads; none for the model's own, or the default ones.
        split: The classes to test on.
        protocol: Shots and episodes. A way of 0 means every class at once; without shots, those that fit are measured.
        unequal: A kind of unequal shots instead of the protocol's.
        readouts: Names of readouts.
        dirichlet: The concentration of unequal queries.
        stop_early: Whether fewer episodes will do where they tell all heads apart.
        plan: A saved plan of episodes, in place of the protocol's.
        save_plan: Where to save the plan.
        out: The folder for the table and the recalls; None to keep neither.
    """

    model: str | None
    heads: Sequence[str]
    split: str
    protocol: Protocol
    unequal: Literal["uniform", "step", "long-tailed"] | None
    readouts: Sequence[str]
    dirichlet: float | None
    stop_early: bool
    plan: Path | None
    save_plan: Path | None
    out: Path | None


def run_evaluation(
    source: Path,
    options: EvaluationOptions,
    registry: Registry,
    cache: FeatureCache | None = None,
    layout: SourceOptions | None = None,
) -> str:
    """Test heads on whatever is at a path, and return what the terminal shows."""
    store, embedder = _open(source, options.model, registry, cache, layout)
    check_kind(store, embedder)
    part = store.part(options.split)
    names, codes = check_labels(np.array(part.class_names)[part.labels], len(part.labels))
    protocol, message = (options.protocol, "") if options.protocol.shots else options.protocol.fitting(codes)
    if options.plan is None:
        plan = replace(protocol, way=protocol.way or len(names)).plan(codes, names)
    else:
        plan = Plan.load(options.plan, codes, names)
    print_message(message)
    with bar("evaluating", 1.0) as advance:
        evaluation = evaluate_store(
            store, embedder, options.heads, options.split, readouts=options.readouts, registry=registry, plan=plan,
            shots=options.unequal or protocol.shots, dirichlet=options.dirichlet, stop_early=options.stop_early,
            progress=advance, cache=cache,
        )  # fmt: skip
    if options.save_plan is not None:
        evaluation.plan.save(options.save_plan)
    if options.out is not None:
        write_table(options.out / "table.csv", list(evaluation))
        write_recalls(options.out / "recalls.npz", evaluation.recalls)
    return str(evaluation)


def _open(
    source: Path, model: str | None, registry: Registry, cache: FeatureCache | None, layout: SourceOptions | None
) -> tuple[Store, Embedder | None]:
    """Return a store, or images or features as one, and what embeds its images."""
    store = open_store(source) if find_kind(source, layout) == "store" else None
    is_features = store.is_features if store is not None else has_features(source, layout)
    model = DEFAULT_EMBEDDER if model is None and not is_features else model
    embedder = load_embedder(model, registry=registry) if model is not None else None
    if store is None:
        store = read_examples(source, embedder, cache, layout, say=print_message).to_store(source)
        if embedder is not None and not is_features:
            store.about["content"] = embedder.content
    return store, embedder
