"""`anyshot fit` and `anyshot export`: make a classifier from any source, and write it for other programs."""

import contextlib
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from anyshot.classify.classifier import FewShotClassifier
from anyshot.classify.files import describe_existing, find_onnx_backbone, is_classifier
from anyshot.classify.images import ImageClassifier, load_classifier
from anyshot.cli.folders import Classifier, describe_counts, get_backbone, get_estimator, open_destination
from anyshot.cli.options import ExampleOptions, ReadOptions
from anyshot.data.open import has_features
from anyshot.data.source import Source, select_splits
from anyshot.errors import BadInput
from anyshot.inspect.corrections import apply_corrections, read_corrections
from anyshot.inspect.fit_report import FitReport
from anyshot.models.embedders import DEFAULT_EMBEDDER, Embedder, load_embedder
from anyshot.models.features import describe_unreadable, embed_pictures, open_examples
from anyshot.models.registry import Registry
from anyshot.progress import print_message, progress
from anyshot.text import count_noun


def fit_source(
    path: Path, out: Path, options: ReadOptions, examples: ExampleOptions, model: str, head: str, **arguments: Any
) -> str:
    """Fit a classifier to a source and save it; the arguments are those of the verb, the last ones the classifier's."""
    with open_destination(out) as save:
        replaced, registry = describe_existing(out), options.registry()
        if head:
            registry.head(head)  # before the work, so that a misspelling is reported at once
            arguments["head"] = head
        classifier: Classifier
        if has_features(path, options.layout):
            classifier = make_features_classifier(path, model, registry, **arguments)
        else:
            classifier = ImageClassifier(model or DEFAULT_EMBEDDER, registry=registry, **arguments)
        with open_to_learn(path, options, examples, get_backbone(classifier)) as source:
            report = FitReport(len(source.items))
            learn_examples(classifier, source, source.labels, options, report)
        save(classifier)
    print_message(report.describe_repeats())
    estimator, noun = get_estimator(classifier), "picture" if isinstance(classifier, ImageClassifier) else "example"
    classes = count_noun(len(estimator.classes_), "class")
    summary = f"{out}: {classes}, {describe_counts(classifier, noun)}.{replaced}"
    return f"{summary} {report.describe_accuracy(estimator, out)}".rstrip()


def learn_examples(
    classifier: Classifier, source: Source, labels: Sequence[Any], options: ReadOptions, report: FitReport
) -> None:
    """Teach a classifier the examples of a source under these labels, and collect them for the report."""
    if isinstance(classifier, FewShotClassifier):
        report.add(source.features, list(map(str, labels)), source.names, groups=source.groups)
        classifier.partial_fit(source.features, np.array(labels), groups=source.groups)
        return
    with progress("learning", 1.0) as advance:
        unread = classifier.learn(
            source.items,
            labels,
            advance,
            options.features(),
            on_batch=report.add_pictures,
            groups=source.groups,
        )
    print_message(describe_unreadable(unread))


@contextlib.contextmanager
def open_to_learn(
    path: Path, options: ReadOptions, examples: ExampleOptions, backbone: Embedder | None = None, hint: str = ""
) -> Iterator[Source]:
    """Open the examples to learn from: those of the chosen splits, with corrected labels.

    Args:
        path: Where they are.
        options: How they are read.
        examples: Which are chosen, and the corrections.
        backbone: What embeds pictures: corrections may name these by keys, which are hashes of their features.
        hint: The end of the error where there are no labels.
    """
    choose = partial(select_splits, wanted=examples.split, for_test=False)
    with contextlib.ExitStack() as stack:
        try:
            source = stack.enter_context(open_examples(path, options.layout, choose, print_message))
        except BadInput as error:
            raise BadInput(f"{error}{hint}") if hint and path.exists() else error from None
        if source.has_features != (backbone is None):
            has, needs = ("features", "pictures") if source.has_features else ("pictures", "features")
            raise BadInput(f"{path} holds {has}, and this classifier is one of {needs}.")
        for table in examples.corrections:
            corrections = read_corrections(table)
            if backbone is not None and not all(one.path for one in corrections):
                source = embed_pictures(backbone, source.items, options.features(), say=print_message)
            source = apply_corrections(source, corrections)
            print_message(f"  {count_noun(len(corrections), 'correction')} of {table} applied.")
        yield source


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
    if not is_classifier(folder):
        if folder.is_dir() and not (folder / "model.safetensors").is_file():
            raise BadInput(
                f"{folder} is not an image classifier: name a folder that `anyshot fit` made, or a trained model."
            )
        export_backbone(load_embedder(model, registry=registry), out)
        return f"{out}: images in, features out; --model takes it."
    classifier = load_classifier(folder, registry)
    if isinstance(classifier, ImageClassifier) and classifier.backbone.file is None:
        classifier.to_onnx(out)
        return f"{out}: images and prototypes in, logits and vectors out."
    export_onnx(get_estimator(classifier), out)
    is_of_images = isinstance(classifier, ImageClassifier)
    before = f"; {find_onnx_backbone(folder)} gives the features" if is_of_images else ""
    return f"{out}: features and prototypes in, logits and vectors out{before}."
