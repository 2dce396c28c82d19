"""`anyshot fit`, `add`, `remove`, `merge` and `export`: make, change and write classifiers.

A class is a mean of its examples, so that a change trains nothing.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from anyshot.classify.classifier import FewShotClassifier
from anyshot.classify.files import describe_existing, find_onnx_backbone, is_classifier
from anyshot.classify.images import ImageClassifier, load_classifier
from anyshot.classify.keys import hash_rows
from anyshot.cli.options import EmbedOptions, ExampleOptions, ReadOptions
from anyshot.data.layout import SourceOptions
from anyshot.data.open import has_features, open_unlabelled
from anyshot.data.source import Source, check_content, describe_notes, select_splits
from anyshot.errors import BadInput, as_bad_input, look_up
from anyshot.files import lock_existing
from anyshot.inspect.corrections import Correction, apply_tables, move_example, read_corrections
from anyshot.inspect.fit_report import FitReport, describe_conflicts, describe_exemplar_accuracy
from anyshot.models.cache import FeatureCache
from anyshot.models.embedders import DEFAULT_EMBEDDER, Embedder, load_embedder
from anyshot.models.features import describe_unreadable, embed_pictures, open_examples, read_examples
from anyshot.models.model import Model
from anyshot.models.registry import Registry
from anyshot.progress import print_message, progress
from anyshot.text import count_noun, format_range, list_first

MOST_NAMES = 5  # classes that are named

Classifier = ImageClassifier | FewShotClassifier


def get_estimator(classifier: Classifier) -> FewShotClassifier:
    """Return the classifier of features inside a classifier of pictures, or the classifier itself."""
    return classifier.classifier if isinstance(classifier, ImageClassifier) else classifier


def get_backbone(classifier: Classifier) -> Embedder | None:
    """Return what embeds pictures, for a classifier of such."""
    return classifier.backbone if isinstance(classifier, ImageClassifier) else None


def check_size(estimator: FewShotClassifier, source: Source, name: str) -> None:
    """Raise BadInput where the features of a source are not as long as those that a classifier learned from."""
    size, wanted = int(np.prod(source.features.shape[1:])), estimator.n_features_in_
    if size != wanted:
        raise BadInput(f"{name} has features of {size} numbers, and the classifier learned from {wanted} each.")


@contextlib.contextmanager
def open_with_features(
    paths: Sequence[Path],
    backbone: Embedder | None,
    cache: FeatureCache | None,
    layout: SourceOptions | None = None,
    title: str = "embedding",
) -> Iterator[Source]:
    """Open unlabelled examples of several paths with their features.

    Args:
        paths: Paths of features, or of pictures where there is a backbone.
        backbone: What embeds the pictures.
        cache: Features of earlier runs.
        layout: How the sources are laid out, where that cannot be seen.
        title: Title of the progress bar.
    """
    with open_unlabelled(paths, layout, has_features=backbone is None) as examples:
        if backbone is not None:
            print_message("\n".join(describe_notes(examples)) if examples.items else "")
            examples = embed_pictures(backbone, examples.items, cache, title, print_message)
        yield examples


# ------------------------------------------------------------------------------------------------------------------ fit


def fit_source(
    path: Path, out: Path, options: ReadOptions, examples: ExampleOptions, model: str, head: str, **arguments: Any
) -> str:
    """Fit a classifier to a source and save it; the arguments are those of the verb, the last ones the classifier's."""
    with lock_existing(out):
        replaced, registry = describe_existing(out), options.registry()
        if head:
            registry.head(head)  # before the work, so that a misspelling is reported at once
            arguments["head"] = head
        classifier: Classifier
        if not has_features(path, options.layout):
            classifier, noun = ImageClassifier(model or DEFAULT_EMBEDDER, registry=registry, **arguments), "picture"
        elif (trained := load_features_model(path, model, registry)) is not None:
            classifier, noun = FewShotClassifier.from_run(trained, registry=registry, **arguments), "example"
        else:
            classifier, noun = FewShotClassifier(registry=registry, **arguments), "example"
        with _open_to_learn(path, options, examples, get_backbone(classifier)) as source:
            report = FitReport(len(source.items), noun=noun)
            _learn_examples(classifier, source, source.labels, options, report)
        classifier.save(out)
    print_message(report.describe_doubts())
    accuracy = report.describe_accuracy(get_estimator(classifier), out)
    return f"{out}: {', '.join(_describe_counts(classifier, noun))}.{replaced}\n{accuracy}".rstrip()


def load_features_model(source: Path, name: str, registry: Registry) -> Model | None:
    """Return a model that was trained on features, None where none is named; refuse one that reads pictures."""
    model = load_embedder(name, registry=registry).model if name else None
    if name and (model is None or not model.recipe.frozen):
        raise BadInput(f"{source} holds features already: leave the model out.")
    return model


@contextlib.contextmanager
def _open_to_learn(
    path: Path, options: ReadOptions, examples: ExampleOptions, backbone: Embedder | None = None, hint: str = ""
) -> Iterator[Source]:
    """Open the examples of the chosen splits, with corrected labels; `hint` ends the error where there are none."""
    choose = partial(select_splits, wanted=examples.split, for_test=False)
    with contextlib.ExitStack() as stack:
        try:
            source = stack.enter_context(open_examples(path, options.layout, choose, print_message))
        except BadInput as error:
            raise BadInput(f"{error}{hint}") if hint and path.exists() else error from None
        check_content(source, path, has_features=backbone is None)
        yield apply_tables(source, examples.corrections, backbone, options.open_cache())


def _learn_examples(
    classifier: Classifier, source: Source, labels: Sequence[Any], options: ReadOptions, report: FitReport
) -> None:
    """Teach a classifier the examples of a source under these labels, and collect them for the report."""
    if isinstance(classifier, FewShotClassifier):
        report.add(source.features, list(map(str, labels)), source.items)
        classifier.partial_fit(source.features, np.array(labels), groups=source.groups)
        return
    with progress("learning", 1.0) as advance:
        unread = classifier.learn(
            source.items, labels, advance, options.open_cache(), on_batch=report.add, groups=source.groups
        )
    print_message(describe_unreadable(unread))


def _describe_counts(classifier: Classifier, noun: str) -> tuple[str, str]:
    """Return how many classes there are, and examples of each, in words: `3 classes`, `8 to 9 examples each`."""
    counts = get_estimator(classifier).support_.counts
    smallest, largest = int(counts.min()), int(counts.max())
    examples = f"{format_range(smallest, largest)} {noun}{'' if largest == 1 else 's'} each"
    return count_noun(len(counts), "class"), examples


# --------------------------------------------------------------------------------------------------- add, remove, merge


def _change_classifier(model: Path, out: Path | None, registry: Registry, change: Callable[[Classifier], str]) -> str:
    """Change a classifier, in its folder or into another; return what changed, which `change` says, and what it has."""
    with lock_existing(out or model):
        replaced = describe_existing(out) if out is not None else ""
        classifier = load_classifier(model, registry)
        what = change(classifier)
        if not get_estimator(classifier).is_fitted:
            raise BadInput("a classifier needs a class: the last one cannot be removed.")
        classifier.save(out or model)
    classes, examples = _describe_counts(classifier, "example")
    estimator = get_estimator(classifier)
    print_message(describe_conflicts(estimator, out or model))
    return (
        f"{out or model}: {what}; {classes} now, {examples}.{replaced} {describe_exemplar_accuracy(estimator)}".rstrip()
    )


def add_examples(
    model: Path, sources: Sequence[Path], options: ReadOptions, examples: ExampleOptions, to: str, out: Path | None
) -> str:
    """Teach a classifier more examples; the arguments are those of the verb."""
    if not sources:
        raise BadInput("name the examples to learn: files, folders, archives or tables.")
    if to and examples.corrections:
        raise BadInput("with --to all examples get one label, so that there is nothing to correct: leave one out.")

    def add(classifier: Classifier) -> str:
        estimator, backbone = get_estimator(classifier), get_backbone(classifier)
        before, noun = _count_by_name(estimator), "example" if backbone is None else "picture"
        report = FitReport(classifier=estimator, noun=noun)
        for path in sources:
            hint = " If its pictures are all of one class, name it: --to CLASS." if backbone is not None else ""
            context = (
                open_unlabelled([path], options.layout, has_features=backbone is None)
                if to
                else _open_to_learn(path, options, examples, backbone, hint)
            )
            with context as source:
                print_message("\n".join(describe_notes(source)) if to else "")
                if backbone is None:
                    check_size(estimator, source, str(path))
                labels = estimator.parse_labels([to] * len(source.items) if to else source.labels)
                _learn_examples(classifier, source, labels, options, report)
        print_message(report.describe_doubts())
        return _describe_added(before, _count_by_name(estimator))

    return _change_classifier(model, out, options.registry(), add)


def _count_by_name(estimator: FewShotClassifier) -> dict[str, int]:
    support = estimator.support_
    return dict(zip(map(str, support.labels), support.counts.tolist(), strict=True))


def _describe_added(before: dict[str, int], after: dict[str, int]) -> str:
    """Return how many examples and classes are new, in words."""
    added = {name: count - before.get(name, 0) for name, count in after.items() if count > before.get(name, 0)}
    if not added:
        return "no new examples, all were learned before"
    examples, classes = count_noun(sum(added.values()), "example"), count_noun(len(added), "class")
    new = [name for name in added if name not in before]
    names = list_first(new, MOST_NAMES)
    if not new:
        return f"{examples} of {classes} added"
    if len(new) == len(added):
        return f"{examples} of {count_noun(len(new), 'new class')} added ({names})"
    return f"{examples} of {classes} added, of which {count_noun(len(new), 'class', 'is')} new ({names})"


def remove_classes_or_examples(
    model: Path,
    names: Sequence[str],
    options: EmbedOptions,
    examples: Sequence[Path],
    of: str,
    corrections: Sequence[Path],
    out: Path | None,
) -> str:
    """Make a classifier forget classes, or single examples; the arguments are those of the verb."""
    if bool(names) == bool(examples or corrections):
        both = ", not both" if names else ""
        raise BadInput(f"name classes to remove, or examples{both}: --examples FILES, or --corrections TABLE.")

    def remove(classifier: Classifier) -> str:
        estimator = get_estimator(classifier)
        labels = estimator.labels_by_name
        if corrections:
            decisions = [one for table in corrections for one in read_corrections(table) if one.decision != "keep"]
            done = _correct(classifier, decisions, examples, options.open_cache())
        elif examples:
            done = _remove_examples(classifier, examples, of, options.open_cache())
        else:
            classifier.remove([look_up("class", name, labels) for name in names])
            return f"{count_noun(len(set(names)), 'class')} removed"
        if gone := sorted(labels.keys() - estimator.labels_by_name.keys()):
            has, is_ = ("has", "is") if len(gone) == 1 else ("have", "are")
            done += f"; {list_first(gone, MOST_NAMES)} {has} none left and {is_} gone"
        return done

    return _change_classifier(model, out, options.registry(), remove)


def _correct(
    classifier: Classifier, corrections: Sequence[Correction], sources: Sequence[Path], cache: FeatureCache | None
) -> str:
    """Drop and relabel examples that a classifier has learned, found by their keys or among the pictures of sources."""
    estimator, backbone = get_estimator(classifier), get_backbone(classifier)
    parts = [read_examples(source, backbone, cache, say=print_message) for source in sources]
    rows = [row for one in parts for row in zip(one.items, hash_rows(one.features).tolist(), one.features, strict=True)]
    by_path = {item.name: (key, x) for item, key, x in rows}
    changed = {(one.path, one.label) for one in corrections}
    unchanged = {(key, item.class_name) for item, key, _ in rows if (item.name, item.class_name) not in changed}
    counts = {"drop": 0, "relabel": 0}
    for one in corrections:
        label = look_up("class", one.label, estimator.labels_by_name)
        key, x = by_path.get(one.path, (int(one.key or "0", 16), None))
        if one.decision == "drop" and (key, one.label) in unchanged:  # a copy of an example that stays: they are one
            continue
        counts[one.decision] += 1
        what = f"{one.path or one.key} of {one.label} cannot be corrected"
        hint = "--examples FOLDER names the pictures that the corrections are of."
        if one.path in by_path:
            hint = "was it corrected before?"
        with as_bad_input(BadInput, what, f"; {hint}"):
            if one.decision == "drop":
                classifier.take_out(label, key, x)
            else:
                move_example(classifier, label, key, estimator.parse_labels([one.new_label])[0], x)
    return f"{count_noun(counts['drop'], 'example')} dropped, {counts['relabel']} relabelled"


def _remove_examples(
    classifier: Classifier, sources: Sequence[Path], class_name: str, cache: FeatureCache | None
) -> str:
    """Forget single examples, pictures or rows of files of features: all of them, or none if one is not found."""
    estimator, backbone = get_estimator(classifier), get_backbone(classifier)
    with open_with_features(sources, backbone, cache) as examples:
        if not examples.items:
            raise BadInput("there are no pictures to remove: name files, or folders of them.")
    check_size(estimator, examples, " ".join(map(str, sources)))
    wanted, x = look_up("class", class_name, estimator.labels_by_name) if class_name else None, examples.features
    pairs = zip(estimator.find_examples(x), examples.names, x, strict=True)
    removed = {_choose_example(matches, name, wanted): row for matches, name, row in pairs}
    for (label, key), row in removed.items():
        classifier.take_out(label, key, row)
    classes = sorted({str(label) for label, _ in removed})
    return f"{count_noun(len(removed), 'example')} of {list_first(classes, MOST_NAMES)} removed"


def _choose_example(matches: Sequence[tuple[Any, int]], name: str, wanted: Any) -> tuple[Any, int]:
    """Return the class and the key of an example that may be in several classes."""
    matches = [(label, key) for label, key in matches if wanted is None or label == wanted]
    if not matches:
        raise BadInput(f"{name} is not among the examples{f' of {wanted}' if wanted is not None else ''}.")
    folder = Path(name).parent.name
    if len(matches) > 1:  # the class of the folder that it is in, if it is one of them
        matches = [pair for pair in matches if str(pair[0]) == folder] or matches
    if len(matches) > 1:
        labels = sorted(str(label) for label, _ in matches)
        raise BadInput(f"{name} is an example of {' and of '.join(labels)}: say which, --of.")
    return matches[0]


def merge_classifiers(models: Sequence[Path], out: Path, registry: Registry) -> str:
    """Make one classifier of several, and return what it has."""
    if len(models) < 2:
        raise BadInput("name at least two classifiers to merge.")

    def merge(merged: Any) -> str:
        others: list[Any] = [load_classifier(model, registry) for model in models[1:]]
        if any(type(other) is not type(merged) for other in others):
            raise BadInput("a classifier of pictures and one of features cannot merge.")
        names = [get_estimator(each).labels_by_name.keys() for each in (merged, *others)]
        shared = names[0] & set().union(*names[1:])
        merged.merge(*others)
        in_several = f" ({count_noun(len(shared), 'class')} in more than one)" if shared else ""
        return f"{len(models)} classifiers merged{in_several}"

    return _change_classifier(models[0], out, registry, merge)


# --------------------------------------------------------------------------------------------------------------- export


def export_model(model: str, out: Path, registry: Registry) -> str:
    """Write a classifier, with its backbone where that can be written, or a backbone alone, as an ONNX file."""
    from anyshot.classify.onnx_export import describe_ports, export_backbone, export_onnx

    folder = Path(model)
    if not is_classifier(folder):
        if folder.is_dir() and not (folder / "model.safetensors").is_file():
            raise BadInput(
                f"{folder} is not an image classifier: name a folder that `anyshot fit` made, or a trained model."
            )
        export_backbone(load_embedder(model, registry=registry), out)
        return f"{out}: {describe_ports(out)}; --model takes it."
    classifier = load_classifier(folder, registry)
    if isinstance(classifier, ImageClassifier) and classifier.backbone.file is None:
        classifier.to_onnx(out)
        return f"{out}: {describe_ports(out)}."
    export_onnx(get_estimator(classifier), out)
    is_of_images = isinstance(classifier, ImageClassifier)
    before = f"; {find_onnx_backbone(folder)} gives the features" if is_of_images else ""
    return f"{out}: {describe_ports(out)}{before}."
