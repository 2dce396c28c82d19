"""`anyshot add`, `remove` and `merge`: change a saved classifier.

A class is a mean of its examples, so that nothing is trained.
"""

import contextlib
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from anyshot.classify.classifier import FewShotClassifier
from anyshot.classify.files import describe_existing
from anyshot.classify.images import ImageClassifier
from anyshot.cli.folders import Classifier, describe_counts, get_estimator, open_classifier, open_destination
from anyshot.cli.options import EmbedOptions, ReadOptions
from anyshot.data.layout import SourceOptions
from anyshot.data.open import has_features, open_pictures, read_vectors
from anyshot.data.source import Item, describe_notes, select_splits
from anyshot.errors import BadInput, as_bad_input, look_up
from anyshot.inspect.fit_report import RepeatedExamples
from anyshot.models.cache import FeatureCache
from anyshot.models.features import describe_unreadable, embed_pictures, read_examples, select_pictures
from anyshot.models.registry import Registry
from anyshot.progress import print_message, progress
from anyshot.text import count_noun

MOST_NAMES = 5  # new classes that are named


def add_examples(
    model: Path, sources: Sequence[Path], options: ReadOptions, to: str, out: Path | None, split: Sequence[str]
) -> str:
    """Teach a classifier more examples, in its folder or into another; return what changed.

    The arguments are those of the verb.
    """
    if not sources:
        raise BadInput("name the examples to learn: files, folders, archives or tables.")
    with open_destination(out or model) as save:
        replaced = describe_existing(out) if out is not None else ""
        classifier, cache = open_classifier(model, options.registry()), options.features()
        before = _count_by_name(classifier)
        copies = RepeatedExamples(get_estimator(classifier))
        for source in sources:
            if isinstance(classifier, FewShotClassifier):
                vectors, names = _read_vectors(source, options.layout, to, split)
                copies.add_features(vectors, names, [f"{source.name}[{index}]" for index in range(len(names))])
                classifier.partial_fit(vectors, np.array(_as_labels(classifier, names)))
            elif to:
                with open_pictures([source], options.layout) as pictures:
                    print_message("\n".join(describe_notes(pictures)))
                    _learn(classifier, pictures.items, [to] * len(pictures.items), cache, copies)
            else:
                with _open_labelled(source, options.layout, split) as items:
                    _learn(classifier, items, [item.class_name for item in items], cache, copies)
        save(classifier)
    print_message(str(copies))
    return _describe_change(classifier, out or model, _describe_added(before, _count_by_name(classifier))) + replaced


@contextlib.contextmanager
def _open_labelled(source: Path, layout: SourceOptions, split: Sequence[str]) -> Iterator[Sequence[Item]]:
    """Open the pictures of a source that has labels; the error of one without says how they can be given."""
    choose = partial(select_splits, wanted=split, for_test=False)
    with contextlib.ExitStack() as stack:
        try:
            items = stack.enter_context(select_pictures(source, layout, choose, print_message))
        except BadInput as error:
            if not source.exists():
                raise
            raise BadInput(f"{error} If its pictures are all of one class, name it: --to CLASS.") from None
        yield items


def _read_vectors(
    source: Path, layout: SourceOptions, to: str, split: Sequence[str]
) -> tuple[np.ndarray, Sequence[str]]:
    """Return the vectors of a source of features, and the class of each."""
    if to:
        vectors = read_vectors(source, layout).features
        return vectors, [to] * len(vectors)
    if not has_features(source, layout):
        raise BadInput(f"this classifier is one of features: {source} should be a file or a store of such.")
    choose = partial(select_splits, wanted=split, for_test=False)
    examples = read_examples(source, None, None, layout, choose, print_message)
    return examples.features, examples.labels


def _learn(
    classifier: ImageClassifier,
    items: Sequence[Item],
    names: Sequence[str],
    cache: FeatureCache | None,
    copies: RepeatedExamples,
) -> None:
    labels = _as_labels(classifier.classifier, names)
    with progress("learning", 1.0) as advance:
        print_message(describe_unreadable(classifier.learn(items, labels, advance, cache, seen=copies.add_pictures)))


def _as_labels(estimator: FewShotClassifier, names: Sequence[str]) -> list[Any]:
    """Return names as labels of the type that the classifier has."""
    labels = {str(label): label for label in estimator.classes_}
    dtype = estimator.classes_.dtype
    if dtype.kind == "U":
        return list(names)
    for name in names:
        if name not in labels:
            with as_bad_input(ValueError, f"the classes here are numbers: {name!r} cannot be one."):
                labels[name] = dtype.type(name)
    return [labels[name] for name in names]


def _count_by_name(classifier: Classifier) -> dict[str, int]:
    support = get_estimator(classifier).support_
    return dict(zip(map(str, support.labels), support.counts.tolist(), strict=True))


def _describe_added(before: dict[str, int], after: dict[str, int]) -> str:
    """Return how many examples and classes are new, in words."""
    added = {name: count - before.get(name, 0) for name, count in after.items() if count > before.get(name, 0)}
    if not added:
        return "no new examples, all were learned before"
    examples, classes = count_noun(sum(added.values()), "example"), count_noun(len(added), "class")
    new = [name for name in added if name not in before]
    names = ", ".join(new[:MOST_NAMES]) + ", ..." * (len(new) > MOST_NAMES)
    if not new:
        return f"{examples} of {classes} added"
    if len(new) == len(added):
        return f"{examples} of {count_noun(len(new), 'new class')} added ({names})"
    verb = "is" if len(new) == 1 else "are"
    return f"{examples} of {classes} added, of which {count_noun(len(new), 'class')} {verb} new ({names})"


def _describe_change(classifier: Classifier, out: Path, change: str) -> str:
    classes = count_noun(len(get_estimator(classifier).classes_), "class")
    return f"{out}: {change}; {classes} now, {describe_counts(classifier, 'example')}."


def remove_classes_or_examples(
    model: Path, names: Sequence[str], options: EmbedOptions, examples: Sequence[Path], of: str, out: Path | None
) -> str:
    """Make a classifier forget classes, or single examples, in its folder or into another; return what changed.

    The arguments are those of the verb.
    """
    if bool(names) == bool(examples):
        raise BadInput("name classes to remove, or examples: --examples FILES.")
    with open_destination(out or model) as save:
        replaced = describe_existing(out) if out is not None else ""
        classifier = open_classifier(model, options.registry())
        if names:
            labels = _labels_by_name(classifier)
            classifier.remove([look_up("class", name, labels) for name in names])
            change = f"{count_noun(len(set(names)), 'class')} removed"
        else:
            change = _remove_examples(classifier, examples, of, options.features())
        save(classifier)
    return _describe_change(classifier, out or model, change) + replaced


def _labels_by_name(classifier: Classifier) -> dict[str, Any]:
    return {str(label): label for label in get_estimator(classifier).classes_}


def _remove_examples(
    classifier: Classifier, sources: Sequence[Path], class_name: str, cache: FeatureCache | None
) -> str:
    """Forget single examples: pictures, or rows of files of features.

    Raises:
        BadInput: Where one is not an example of the classifier, or of two classes neither of which is that of its
            folder; then nothing is forgotten.
    """
    estimator = get_estimator(classifier)
    if isinstance(classifier, FewShotClassifier):
        parts = {source: read_vectors(source).features for source in sources}
        names = [f"{source.name}[{row}]" for source, part in parts.items() for row in range(len(part))]
        features = np.concatenate(list(parts.values()))
    else:
        with open_pictures(sources) as pictures:
            embedded = embed_pictures(classifier.backbone, pictures.items, cache, say=print_message)
        if not embedded.has_features:
            raise BadInput("there are no pictures to remove: name files, or folders of them.")
        names, features = embedded.names, embedded.features
    wanted = look_up("class", class_name, _labels_by_name(classifier)) if class_name else None
    pairs = zip(estimator.find_examples(features), names, features, strict=True)
    removed = {_choose_example(matches, name, wanted): row for matches, name, row in pairs}
    for (label, key), row in removed.items():
        classifier.take_out(label, key, row)
    classes = count_noun(len({label for label, _ in removed}), "class")
    return f"{count_noun(len(removed), 'example')} of {classes} removed"


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
    with open_destination(out) as save:
        replaced = describe_existing(out)
        first, *others = [open_classifier(model, registry) for model in models]
        if any(isinstance(other, ImageClassifier) != isinstance(first, ImageClassifier) for other in others):
            raise BadInput("a classifier of pictures and one of features cannot merge.")
        shared = set(_labels_by_name(first)) & {name for other in others for name in _labels_by_name(other)}
        merged: Any = first  # all are of one kind
        merged.merge(*others)
        save(first)
    change = f"{len(models)} classifiers merged"
    if shared:
        change += f" ({count_noun(len(shared), 'class')} in more than one)"
    return _describe_change(first, out, change) + replaced
