"""`anyshot fit` and `anyshot export`: make a classifier from any source, and write it for other programs."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from anyshot.classify.classifier import FewShotClassifier
from anyshot.classify.files import describe_existing
from anyshot.classify.images import ImageClassifier
from anyshot.cli.folders import Classifier, describe_counts, get_estimator, open_classifier, open_destination
from anyshot.cli.options import ReadOptions
from anyshot.data.open import has_features
from anyshot.data.source import select_splits
from anyshot.errors import BadInput
from anyshot.inspect.fit_report import FitReport
from anyshot.models.embedders import DEFAULT_EMBEDDER, load_embedder
from anyshot.models.features import describe_unreadable, read_examples, select_pictures
from anyshot.models.registry import Registry
from anyshot.progress import print_message, progress
from anyshot.text import count_noun


def fit_source(
    source: Path, out: Path, options: ReadOptions, model: str, head: str, split: Sequence[str], **arguments: Any
) -> str:
    """Fit a classifier to a source and save it; examples for testing are not learned from.

    The arguments are those of the verb.
    """
    with open_destination(out) as save:
        replaced, registry = describe_existing(out), options.registry()
        if head:
            registry.head(head)  # before the work, so that a misspelling is reported at once
            arguments["head"] = head
        choose = partial(select_splits, wanted=split, for_test=False)
        classifier: Classifier
        if has_features(source, options.layout):
            classifier = make_features_classifier(source, model, registry, **arguments)
            examples = read_examples(source, None, None, options.layout, choose, print_message)
            report = FitReport(len(examples.labels))
            report.add_features(examples.features, examples.labels, examples.names)
            classifier.fit(examples.features, np.array(examples.labels))
        else:
            classifier = pictures = ImageClassifier(model or DEFAULT_EMBEDDER, registry=registry, **arguments)
            with (
                select_pictures(source, options.layout, choose, print_message) as items,
                progress("learning", 1.0) as advance,
            ):
                report = FitReport(len(items))
                labels = [item.class_name for item in items]
                unreadable = pictures.learn(items, labels, advance, options.features(), seen=report.add_pictures)
            print_message(describe_unreadable(unreadable))
        save(classifier)
    print_message(str(report.repeats))
    estimator, noun = get_estimator(classifier), "picture" if isinstance(classifier, ImageClassifier) else "example"
    classes = count_noun(len(estimator.classes_), "class")
    summary = f"{out}: {classes}, {describe_counts(classifier, noun)}.{replaced}"
    return f"{summary} {report.describe_accuracy(estimator, out)}".rstrip()


def make_features_classifier(source: Path, model: str, registry: Registry, **arguments: Any) -> FewShotClassifier:
    """Make a classifier for a source of features, with the head of a model that was trained on such or with any other.

    Raises:
        BadInput: Where the model reads pictures.
    """
    trained = load_embedder(model, registry=registry).model if model else None
    if model and (trained is None or not trained.recipe.frozen):
        raise BadInput(f"{source} holds features already: leave the model out.")
    if trained is not None:
        return FewShotClassifier.from_run(trained, registry=registry, **arguments)
    return FewShotClassifier(registry=registry, **arguments)


def export_model(model: str, out: Path, registry: Registry) -> str:
    """Write a classifier, with its backbone where that can be written, or a backbone alone, as an ONNX file."""
    from anyshot.classify.onnx_export import export_backbone, export_onnx

    folder = Path(model)
    if not (folder / "config.json").is_file():
        if folder.is_dir() and not (folder / "model.safetensors").is_file():
            raise BadInput(f"{folder} is not an image classifier (it has no backbone.json): save one there first.")
        export_backbone(load_embedder(model, registry=registry), out)
        return f"{out}: images in, features out; --model takes it."
    classifier = open_classifier(folder, registry)
    if isinstance(classifier, ImageClassifier) and classifier.backbone.file is None:
        classifier.to_onnx(out)
        return f"{out}: images and prototypes in, logits and vectors out."
    export_onnx(get_estimator(classifier), out)
    before = f"; {folder / 'backbone.onnx'} gives the features" if isinstance(classifier, ImageClassifier) else ""
    return f"{out}: features and prototypes in, logits and vectors out{before}."
