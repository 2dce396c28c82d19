"""`anyshot add`, `remove` and `merge`: change a saved classifier.

A class is a mean of its examples, so that nothing is trained.
"""

import contextlib
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np

from anyshot.classify.classifier import FewShotClassifier
from anyshot.classify.images import ImageClassifier, load_classifier
from anyshot.classify.keys import hash_rows
from anyshot.cli.fitting import learn_examples, open_to_learn
from anyshot.cli.folders import Classifier, edit_classifier, get_backbone, get_estimator
from anyshot.cli.options import EmbedOptions, ExampleOptions, ReadOptions
from anyshot.data.open import open_pictures, read_vectors
from anyshot.data.source import Source, describe_notes
from anyshot.errors import BadInput, as_bad_input, look_up
from anyshot.inspect.corrections import Correction, move_example, read_corrections
from anyshot.inspect.fit_report import FitReport
from anyshot.models.cache import FeatureCache
from anyshot.models.features import embed_pictures, read_examples
from anyshot.models.registry import Registry
from anyshot.progress import print_message
from anyshot.text import count_noun, list_first

MOST_NAMES = 5  # new classes that are named


def add_examples(
    model: Path, sources: Sequence[Path], options: ReadOptions, examples: ExampleOptions, to: str, out: Path | None
) -> str:
    """Teach a classifier more examples, in its folder or into another; return what changed.

    The arguments are those of the verb.
    """
    if not sources:
        raise BadInput("name the examples to learn: files, folders, archives or tables.")
    if to and examples.corrections:
        raise BadInput("with --to all examples get one label, so that there is nothing to correct: leave one out.")
    with edit_classifier(model, out, options.registry()) as edit:
        estimator, backbone = get_estimator(edit.classifier), get_backbone(edit.classifier)
        before, report = _count_by_name(estimator), FitReport(classifier=estimator)
        for path in sources:
            context: AbstractContextManager[Source]
            if not to:
                hint = " If its pictures are all of one class, name it: --to CLASS." if backbone is not None else ""
                context = open_to_learn(path, options, examples, backbone, hint)
            elif backbone is not None:
                context = open_pictures([path], options.layout)
            else:
                context = contextlib.nullcontext(read_vectors(path, options.layout))
            with context as source:
                print_message("\n".join(describe_notes(source)) if to else "")
                labels = _as_labels(estimator, [to] * len(source.items) if to else source.labels)
                learn_examples(edit.classifier, source, labels, options, report)
        edit.change = _describe_added(before, _count_by_name(estimator))
    print_message(report.describe_repeats())
    return edit.summary


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
    verb = "is" if len(new) == 1 else "are"
    return f"{examples} of {classes} added, of which {count_noun(len(new), 'class')} {verb} new ({names})"


def remove_classes_or_examples(
    model: Path,
    names: Sequence[str],
    options: EmbedOptions,
    examples: Sequence[Path],
    of: str,
    corrections: Sequence[Path],
    out: Path | None,
) -> str:
    """Make a classifier forget classes, or single examples, in its folder or into another; return what changed.

    The arguments are those of the verb.
    """
    if bool(names) == bool(examples or corrections):
        raise BadInput("name classes to remove, or examples: --examples FILES, or --corrections TABLE.")
    with edit_classifier(model, out, options.registry()) as edit:
        if names:
            labels = _labels_by_name(edit.classifier)
            edit.classifier.remove([look_up("class", name, labels) for name in names])
            edit.change = f"{count_noun(len(set(names)), 'class')} removed"
        elif corrections:
            decisions = [one for table in corrections for one in read_corrections(table)]
            edit.change = _correct(edit.classifier, decisions, examples, options.features())
        else:
            edit.change = _remove_examples(edit.classifier, examples, of, options.features())
    return edit.summary


def _labels_by_name(classifier: Classifier) -> dict[str, Any]:
    return {str(label): label for label in get_estimator(classifier).classes_}


def _correct(
    classifier: Classifier, corrections: Sequence[Correction], sources: Sequence[Path], cache: FeatureCache | None
) -> str:
    """Drop and relabel examples that a classifier has learned, found by their keys or among the pictures of sources."""
    backbone = get_backbone(classifier)
    examples = [read_examples(source, backbone, cache, say=print_message) for source in sources]
    rows = {item.name: x for one in examples for item, x in zip(one.items, one.features, strict=True)}
    unchanged = _list_unchanged(examples, corrections)
    counts = {"drop": 0, "relabel": 0}
    for one in corrections:
        if one.decision == "keep":
            continue
        label, x = look_up("class", one.label, _labels_by_name(classifier)), rows.get(one.path)
        key = int(hash_rows(x[None])[0] if x is not None else int(one.key or "0", 16))
        if one.decision == "drop" and (key, one.label) in unchanged:  # a copy of an example that stays: they are one
            continue
        counts[one.decision] += 1
        what = f"{one.path or one.key} of {one.label} cannot be corrected"
        with as_bad_input(BadInput, what, "; --examples FOLDER names the pictures that the corrections are of."):
            if one.decision == "drop":
                classifier.take_out(label, key, x)
            else:
                move_example(classifier, label, key, _as_labels(get_estimator(classifier), [one.new_label])[0], x)
    return f"{count_noun(counts['drop'], 'example')} dropped, {counts['relabel']} relabelled"


def _list_unchanged(sources: Sequence[Source], corrections: Sequence[Correction]) -> set[tuple[int, str]]:
    """Return the keys and labels of the examples that corrections neither drop nor relabel."""
    changed = {(one.path, one.label) for one in corrections if one.decision != "keep"}
    pairs = ((item, x) for one in sources for item, x in zip(one.items, one.features, strict=True))
    rest = [(item, x) for item, x in pairs if (item.name, item.class_name) not in changed]
    return {(int(hash_rows(x[None])[0]), item.class_name) for item, x in rest}


def _remove_examples(
    classifier: Classifier, sources: Sequence[Path], class_name: str, cache: FeatureCache | None
) -> str:
    """Forget single examples, pictures or rows of files of features: all of them, or none if one is not found."""
    if isinstance(classifier, FewShotClassifier):
        parts = [read_vectors(source) for source in sources]
        names = [name for part in parts for name in part.names]
        features = np.concatenate([part.features for part in parts])
    else:
        with open_pictures(sources) as pictures:
            embedded = embed_pictures(classifier.backbone, pictures.items, cache, say=print_message)
        if not embedded.has_features:
            raise BadInput("there are no pictures to remove: name files, or folders of them.")
        names, features = embedded.names, embedded.features
    wanted = look_up("class", class_name, _labels_by_name(classifier)) if class_name else None
    pairs = zip(get_estimator(classifier).find_examples(features), names, features, strict=True)
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
    with edit_classifier(models[0], out, registry) as edit:
        merged: Any = edit.classifier  # all are of one kind
        others = [load_classifier(model, registry) for model in models[1:]]
        if any(isinstance(other, ImageClassifier) != isinstance(merged, ImageClassifier) for other in others):
            raise BadInput("a classifier of pictures and one of features cannot merge.")
        shared = set(_labels_by_name(merged)) & {name for other in others for name in _labels_by_name(other)}
        merged.merge(*others)
        in_several = f" ({count_noun(len(shared), 'class')} in more than one)" if shared else ""
        edit.change = f"{len(models)} classifiers merged{in_several}"
    return edit.summary
