"""`anyshot test` and `anyshot advise`: measure a classifier, or a source of examples, and report it."""

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from anyshot.classify.classifier import FewShotClassifier
from anyshot.cli.classifiers import CurveOptions
from anyshot.cli.fitting import make_features_classifier
from anyshot.cli.folders import open_classifier
from anyshot.cli.options import ReadOptions, parse_way
from anyshot.data.open import has_features
from anyshot.data.source import Source, select_splits
from anyshot.errors import BadInput
from anyshot.files import write_json, write_text
from anyshot.inspect.advice import advise
from anyshot.inspect.case import AdviceOptions, heads_for
from anyshot.inspect.holdout import measure_holdout, measure_holdout_pictures
from anyshot.inspect.pages import render_advice, render_test
from anyshot.inspect.pictures import describe_pictures, make_thumbnails
from anyshot.machine import release_large_blocks
from anyshot.models.embedders import DEFAULT_EMBEDDER, load_embedder
from anyshot.models.features import read_examples, select_pictures
from anyshot.models.registry import Registry
from anyshot.progress import print_message, progress
from anyshot.text import to_printable


def measure_classifier(
    model: Path, source: Path, options: ReadOptions, as_json: bool, out: Path | None, split: Sequence[str]
) -> str:
    """Measure a classifier on labelled examples.

    The arguments are those of the verb.
    """
    classifier = open_classifier(model, options.registry())
    choose = partial(select_splits, wanted=split, for_test=True)
    pictures: dict[int, bytes] = {}
    if isinstance(classifier, FewShotClassifier):
        if not has_features(source, options.layout):
            raise BadInput(f"{model} classifies features: {source} should be a file or a store of such, with labels.")
        examples = read_examples(source, None, None, options.layout, choose, print_message)
        result = measure_holdout(classifier, examples.features, examples.labels, examples.names)
    else:
        if has_features(source, options.layout):
            raise BadInput(f"{model} classifies pictures: {source} should be a folder of class folders of pictures.")
        with select_pictures(source, options.layout, choose, print_message) as items:
            result, pictures = measure_holdout_pictures(classifier, items, options.features(), print_message)
    text = result.to_text()
    if out is not None:
        write_json(out / "test.json", result.to_dict())
        write_text(out / "test.txt", text + "\n")
        write_text(out / "test.html", render_test(result, pictures, f"{model.name}, tested with {source.name}"))
        print_message(f"open {out / 'test.html'}")
    return json.dumps(result.to_dict(), indent=2, ensure_ascii=False) if as_json else to_printable(text)


def advise_source(
    source: Path,
    curve: CurveOptions,
    options: ReadOptions,
    model: str,
    heads: Sequence[str],
    holdout: Path | None,
    split: Sequence[str],
    out: Path | None,
) -> str:
    """Give advice for features, a store or a folder of pictures.

    The arguments are those of the verb.
    """
    registry = options.registry()
    way: int | Literal["all"] = parse_way(curve.way) or "all"
    trained = _load_trained_head(model, registry)
    embeds = None
    if has_features(source, options.layout):
        make_features_classifier(source, model, registry)  # refuses a model of pictures
    else:
        embeds = load_embedder(model or DEFAULT_EMBEDDER, registry=registry)
    if holdout is not None and has_features(holdout, options.layout) != (embeds is None):
        raise BadInput(f"{holdout} must be of the same kind as {source}: both pictures, or both features.")
    everything = read_examples(source, embeds, options.features(), options.layout, say=print_message)
    rows, summary = select_splits(everything.splits, split, for_test=False)
    print_message(f"  {summary}." if summary else "")
    examples = everything.select(rows)
    held_out = _select_test(everything, split)
    if holdout is not None:
        choose = partial(select_splits, wanted=(), for_test=True)
        held_out = read_examples(holdout, embeds, options.features(), options.layout, choose, print_message)
    known: AdviceOptions = {"names": examples.names, "registry": registry}
    if held_out is not None:
        known["holdout"] = held_out.features, held_out.labels
    if trained is not None:
        known["parameters"] = {trained.head: _list_parameters(trained)}
        known["embed"] = {trained.head: trained.embed} if trained.embed else {}
    if embeds is not None:
        known = describe_pictures(examples, embeds, known, options.features())
    tried = heads or _default_heads(trained, examples.features)
    with progress("weighing heads, shots and pictures", 1.0) as advance, release_large_blocks():
        known["progress"] = advance
        advice = advise(
            examples.features, examples.labels, tried, curve.shots, way, curve.episodes, curve.seed, **known
        )
    if out is not None:
        write_json(out / "advice.json", advice.to_dict())
        write_text(out / "advice.md", advice.to_markdown())
        write_text(out / "advice.html", render_advice(advice, make_thumbnails(known.get("picture"), advice.pictures)))
    return to_printable(advice.to_text())


def _select_test(examples: Source, wanted: Sequence[str]) -> Source | None:
    """Return the examples for testing, unless advice is wanted from them or there are none."""
    if "test" not in examples.splits or "test" in wanted:
        return None
    return examples.select([row for row, split in enumerate(examples.splits) if split == "test"])


def _load_trained_head(model: str, registry: Registry) -> FewShotClassifier | None:
    """Return a classifier with the model's own head, where anyshot trained it."""
    trained = load_embedder(model, registry=registry).model if model else None
    return None if trained is None else FewShotClassifier.from_run(trained, registry=registry)


def _default_heads(trained: FewShotClassifier | None, features: np.ndarray) -> list[str]:
    usual = heads_for(features)
    return usual if trained is None else list(dict.fromkeys([trained.head, *usual]))


def _list_parameters(trained: FewShotClassifier) -> dict[str, torch.Tensor]:
    """Return what a trained head has learned."""
    parameters = (trained.parameters or {}).items()
    return {name: torch.as_tensor(np.asarray(value), dtype=torch.float32) for name, value in parameters}
