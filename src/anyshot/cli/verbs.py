"""What the deploying verbs of the command line do, as functions that return what is printed."""

import contextlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from anyshot.classify.classifier import FewShotClassifier
from anyshot.classify.files import describe_existing
from anyshot.classify.images import ImageClassifier, LearnedBatch, OnLearned
from anyshot.cli import changes as changing
from anyshot.data.layout import SourceOptions
from anyshot.data.open import select_splits
from anyshot.errors import BadInput
from anyshot.files import locked, write_json, write_text
from anyshot.inspect.fit_report import LearnedPictures, RepeatedExamples, describe_accuracy
from anyshot.machine import release_large_blocks
from anyshot.models.cache import FeatureCache
from anyshot.models.embedders import DEFAULT_EMBEDDER, load_embedder
from anyshot.models.examples import has_features, read_examples, report_unreadable, select_pictures
from anyshot.models.registry import BUILTIN, Registry
from anyshot.progress import print_message, progress
from anyshot.text import count_noun, format_range, to_printable


def fit_source(
    source: Path,
    model: str,
    out: Path,
    head: str,
    reject: float,
    keep: int,
    registry: Registry = BUILTIN,
    cache: FeatureCache | None = None,
    split: Sequence[str] = (),
    layout: SourceOptions | None = None,
) -> str:
    """Fit and save a classifier of pictures in folders, an archive, a table or a store, or of features with labels.
    What the source holds back for testing is not learned from."""
    replaced = describe_existing(out)
    if head:
        registry.head(head)  # before the work, to say early what is misspelt
    choose = partial(select_splits, wanted=split, for_test=False)
    arguments: dict[str, Any] = {"reject": reject, "keep": keep} | ({"head": head} if head else {})
    learned, copies = LearnedPictures(), RepeatedExamples()
    if has_features(source):
        inner, what = _features_classifier(source, model, registry, arguments), "example"
        examples = read_examples(source, None, None, layout, choose, print_message)
        copies.look(examples.features, examples.labels, examples.names)
        inner.fit(examples.features, np.array(examples.labels)).save(out)
    else:
        classifier = ImageClassifier(model or DEFAULT_EMBEDDER, registry=registry, **arguments)
        with select_pictures(source, layout, choose, print_message) as items, progress("learning", 1.0) as advance:
            names, learned = [item.class_name for item in items], LearnedPictures(len(items))
            report_unreadable(
                classifier.learn(items, names, advance, cache, seen=call_both(learned.see, copies.see)), print_message
            )
        classifier.save(out)
        inner, what = classifier.classifier, "picture"
    print_message(str(copies))
    counts = inner.support_.counts
    words = f"{out}: {count_noun(len(counts), 'class')}, {describe_counts(counts, what)}.{replaced}"
    return f"{words} {describe_accuracy(inner, learned, out)}".rstrip()


def _features_classifier(
    source: Path, model: str, registry: Registry, arguments: Mapping[str, Any]
) -> FewShotClassifier:
    """A classifier of features that are there: with the head of a model that was trained on such, or with any other."""
    trained = _trained_head(model, registry, **arguments)
    if model and (trained is None or not _is_of_features(model, registry)):
        raise BadInput(f"{source} holds features already: leave the model out.")
    return trained or FewShotClassifier(registry=registry, **arguments)


def open_classifier(folder: Path, registry: Registry = BUILTIN) -> ImageClassifier | FewShotClassifier:
    """A classifier from its folder, of pictures or of features."""
    if not folder.exists():
        raise BadInput(f"there is no folder {folder}: name one that `anyshot fit` made.")
    if (folder / "config.json").is_file() and not (folder / "backbone.json").is_file():
        return FewShotClassifier.load(folder, registry)
    return ImageClassifier.load(folder, registry=registry)


def measure_source(
    model: Path,
    source: Path,
    as_json: bool,
    out: Path | None = None,
    split: Sequence[str] = (),
    layout: SourceOptions | None = None,
    registry: Registry = BUILTIN,
    cache: FeatureCache | None = None,
) -> str:
    """How well a classifier does on labelled examples, as text or JSON; with `out` also as a page."""
    from anyshot.inspect.holdout import as_text, measure_holdout, measure_holdout_pictures
    from anyshot.inspect.holdout_page import as_html

    classifier = open_classifier(model, registry)
    choose = partial(select_splits, wanted=split, for_test=True)
    pictures: dict[int, bytes] = {}
    if isinstance(classifier, FewShotClassifier):
        if not has_features(source):
            raise BadInput(f"{model} classifies features: {source} should be a file or a store of such, with labels.")
        examples = read_examples(source, None, None, layout, choose, print_message)
        result = measure_holdout(classifier, examples.features, examples.labels, examples.names)
    else:
        if has_features(source):
            raise BadInput(f"{model} classifies pictures: {source} should be a folder of class folders of pictures.")
        with select_pictures(source, layout, choose, print_message) as items:
            result, pictures = measure_holdout_pictures(classifier, items, cache, print_message)
    if out is not None:
        write_json(out / "test.json", result.to_dict())
        write_text(out / "test.txt", as_text(result) + "\n")
        write_text(out / "test.html", as_html(result, pictures, f"{model.name}, tested with {source.name}"))
        print_message(f"open {out / 'test.html'}")
    return json.dumps(result.to_dict(), indent=2, ensure_ascii=False) if as_json else to_printable(as_text(result))


def add_examples(
    model: Path,
    sources: Sequence[Path],
    class_name: str = "",
    out: Path | None = None,
    split: Sequence[str] = (),
    layout: SourceOptions | None = None,
    registry: Registry = BUILTIN,
    cache: FeatureCache | None = None,
) -> str:
    """Teach a classifier more examples, in its place or into another folder."""
    if not sources:
        raise BadInput("name the examples to learn: files, folders, archives or tables.")
    replaced = describe_existing(out) if out is not None else ""
    with _changed(model, out):
        classifier = open_classifier(model, registry)
        words = changing.add(classifier, sources, class_name, split, layout, cache, print_message)
        return _saved(classifier, out or model, words, replaced)


def remove_from(
    model: Path,
    names: Sequence[str],
    examples: Sequence[Path] = (),
    class_name: str = "",
    out: Path | None = None,
    registry: Registry = BUILTIN,
    cache: FeatureCache | None = None,
) -> str:
    """Make a classifier forget classes, or single examples, in its place or into another folder."""
    if bool(names) == bool(examples):
        raise BadInput("name classes to remove, or examples: --examples FILES.")
    replaced = describe_existing(out) if out is not None else ""
    with _changed(model, out):
        classifier = open_classifier(model, registry)
        if names:
            words = changing.remove(classifier, names)
        else:
            words = changing.remove_examples(classifier, examples, class_name, cache=cache, say=print_message)
        return _saved(classifier, out or model, words, replaced)


def _changed(model: Path, out: Path | None) -> contextlib.AbstractContextManager[None]:
    """Hold a classifier that is read and then replaced: what another process learned meanwhile would be lost."""
    return locked(model) if out is None and model.is_dir() else contextlib.nullcontext()


def merge_classifiers(models: Sequence[Path], out: Path, registry: Registry = BUILTIN) -> str:
    """One classifier of the classes of several."""
    if len(models) < 2:
        raise BadInput("name at least two classifiers to merge.")
    replaced = describe_existing(out)
    first, *others = [open_classifier(model, registry) for model in models]
    return _saved(first, out, changing.merge(first, others), replaced)


def call_both(one: OnLearned, other: OnLearned) -> OnLearned:
    """What two of them see."""

    def see(batch: LearnedBatch) -> None:
        one(batch)
        other(batch)

    return see


def describe_counts(counts: np.ndarray, what: str) -> str:
    """How many of them each class has, in words."""
    smallest, largest = int(counts.min()), int(counts.max())
    return f"{format_range(smallest, largest)} {what}{'' if largest == 1 else 's'} each"


def _saved(classifier: changing.Classifier, out: Path, words: str, replaced: str = "") -> str:
    classifier.save(out)
    counts = changing.inner_of(classifier).support_.counts
    return f"{out}: {words}; {count_noun(len(counts), 'class')} now, {describe_counts(counts, 'example')}.{replaced}"


def export(model: str, out: Path, registry: Registry = BUILTIN) -> str:
    """Write a classifier, with its backbone where it can be written, or a backbone alone, as an ONNX file."""
    from anyshot.classify.onnx_export import export_backbone, export_onnx

    folder = Path(model)
    if not (folder / "config.json").is_file():
        if folder.is_dir() and not (folder / "model.safetensors").is_file():
            raise BadInput(f"{folder} is not an image classifier (it has no backbone.json): save one there first.")
        backbone = load_embedder(model, registry=registry)
        export_backbone(backbone, out)
        return f"{out}: images in, features out; --model takes it."
    classifier = open_classifier(folder, registry)
    if isinstance(classifier, ImageClassifier) and classifier.backbone.file is None:
        classifier.to_onnx(out)
        return f"{out}: images and prototypes in, logits and vectors out."
    inner = classifier.classifier if isinstance(classifier, ImageClassifier) else classifier
    export_onnx(inner, out)
    before = f"; {folder / 'backbone.onnx'} gives the features" if isinstance(classifier, ImageClassifier) else ""
    return f"{out}: features and prototypes in, logits and vectors out{before}."


# --------------------------------------------------------------------------------------------------------------- advice


def advise_source(
    source: Path,
    model: str,
    heads: Sequence[str],
    shots: Sequence[int],
    way: str,
    episodes: int,
    seed: int,
    out: Path | None,
    registry: Registry = BUILTIN,
    cache: FeatureCache | None = None,
    layout: SourceOptions | None = None,
    holdout: Path | None = None,
    split: Sequence[str] = (),
) -> str:
    """Advice for features, a store or a folder of pictures, as text; with `out` also as page, Markdown and JSON. With
    `holdout`, or where the source has a test folder, it is tested on other examples, too."""
    from anyshot.inspect.advice import advise
    from anyshot.inspect.advice_page import as_html, as_markdown, as_text, shown_images
    from anyshot.inspect.advise_pictures import (
        make_thumbnails,
        picture_reader,
        read_capture_times,
        try_default_features,
    )

    if way != "all" and not way.isdigit():
        raise BadInput(f"way is a number of classes or 'all', not {way!r}.")
    trained = _trained_head(model, registry)
    if of_features := has_features(source):
        _features_classifier(source, model, registry, {})
    embeds = None if of_features else load_embedder(model or DEFAULT_EMBEDDER, registry=registry)
    if holdout is not None and has_features(holdout) != (embeds is None):
        raise BadInput(f"{holdout} must be of the same kind as {source}: both pictures, or both features.")
    everything = read_examples(source, embeds, cache, layout, say=print_message)
    places, words = select_splits(everything.splits, split, for_test=False)
    print_message(f"  {words}." if words else "")
    examples, held_out = everything.at(places), None
    if holdout is not None:
        held_out = read_examples(
            holdout, embeds, cache, layout, partial(select_splits, wanted=(), for_test=True), print_message
        )
    elif "test" in everything.splits and "test" not in split:
        held_out = everything.at([place for place, split in enumerate(everything.splits) if split == "test"])
    picture = None if embeds is None else picture_reader(examples, embeds)
    learned: dict[str, Any] = {
        "parameters": {} if trained is None else {trained.head: _floats(trained)},
        "embed": {trained.head: trained.embed} if trained is not None and trained.embed else {},
    }
    with progress("weighing heads, shots and pictures", 1.0) as advance, release_large_blocks():
        advice = advise(
            examples.features,
            examples.labels,
            heads or _with_own(trained, examples.features),
            shots,
            "all" if way == "all" else int(way),
            episodes,
            seed,
            holdout=None if held_out is None else (held_out.features, held_out.labels),
            names=examples.names,
            times=read_capture_times(examples),
            picture=picture,
            registry=registry,
            progress=advance,
            **learned,
        )
    if embeds is not None:
        advice = replace(
            advice, other_features=try_default_features(advice, examples, embeds, learned, cache, registry)
        )
    if out is not None:
        write_json(out / "advice.json", advice.to_dict())
        write_text(out / "advice.md", as_markdown(advice))
        write_text(out / "advice.html", as_html(advice, make_thumbnails(picture, shown_images(advice))))
    return to_printable(as_text(advice))


def _trained_head(model: str, registry: Registry, **arguments: Any) -> FewShotClassifier | None:
    """A classifier of the model's own head, where it is one that anyshot trained."""
    trained = load_embedder(model, registry=registry).model if model else None
    return None if trained is None else FewShotClassifier.from_run(trained, registry=registry, **arguments)


def _is_of_features(model: str, registry: Registry) -> bool:
    """Whether a trained model reads features rather than pictures."""
    trained = load_embedder(model, registry=registry).model
    return trained is not None and trained.recipe.frozen


def _with_own(trained: FewShotClassifier | None, features: np.ndarray) -> list[str]:
    from anyshot.inspect.advice import heads_for

    usual = heads_for(features)
    return usual if trained is None else list(dict.fromkeys([trained.head, *usual]))


def _floats(trained: FewShotClassifier) -> dict[str, torch.Tensor]:
    return {name: torch.as_tensor(np.asarray(v), dtype=torch.float32) for name, v in (trained.parameters or {}).items()}
