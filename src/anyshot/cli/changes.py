"""`anyshot add`, `remove` and `merge`: a classifier that is there, with more examples, without some of its classes or
examples, with the classes of others. A class is a mean, so nothing is learned anew."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from anyshot.classify.classifier import FewShotClassifier
from anyshot.classify.images import ImageClassifier
from anyshot.cli.predict import open_pictures
from anyshot.data.embeddings import read_vectors
from anyshot.data.layout import SourceOptions
from anyshot.data.open import describe_skipped, select_splits
from anyshot.data.packer import Item
from anyshot.errors import BadInput, as_bad_input, look_up
from anyshot.inspect.fit_report import RepeatedExamples
from anyshot.models.cache import FeatureCache
from anyshot.models.examples import embed_readable, has_features, read_examples, report_unreadable, select_pictures
from anyshot.progress import OnMessage, no_message, progress
from anyshot.text import count_noun

Classifier = ImageClassifier | FewShotClassifier


def add(
    classifier: Classifier,
    sources: Sequence[Path],
    class_name: str = "",
    split: Sequence[str] = (),
    layout: SourceOptions | None = None,
    cache: FeatureCache | None = None,
    say: OnMessage = no_message,
) -> str:
    """Learn from more examples, of classes that are there or new: those of labelled sources or, with a `class_name`,
    all that the sources hold as examples of that class. What changed, in words."""
    inner, layout = inner_of(classifier), layout or SourceOptions()
    before = dict(zip(map(str, inner.classes_), inner.support_.counts.tolist(), strict=True))
    choose_learned, copies = partial(select_splits, wanted=split, for_test=False), RepeatedExamples(inner)
    for source in sources:
        if isinstance(classifier, FewShotClassifier):
            if class_name:
                vectors = read_vectors(source, layout.feature_column)
                names = [class_name] * len(vectors)
            elif has_features(source):
                examples = read_examples(source, None, None, layout, choose_learned, say)
                vectors, names = examples.features, examples.labels
            else:
                raise BadInput(f"this classifier is one of features: {source} should be a file or a store of such.")
            copies.look(vectors, names, [f"{source.name}[{index}]" for index in range(len(names))])
            inner.partial_fit(vectors, np.array(_labels(inner, names)))
        elif class_name:
            with open_pictures([source], layout) as (items, left_out):
                say("\n".join(describe_skipped(left_out)))
                _learn(classifier, items, [class_name] * len(items), cache, say, copies)
        else:
            with select_pictures(source, layout, choose_learned, say) as chosen:
                _learn(classifier, chosen, [item.class_name for item in chosen], cache, say, copies)
    after = dict(zip(map(str, inner.classes_), inner.support_.counts.tolist(), strict=True))
    more = {name: many - before.get(name, 0) for name, many in after.items() if many > before.get(name, 0)}
    new = [name for name in more if name not in before]
    say(str(copies))
    words = f"{count_noun(sum(more.values()), 'example')} of {count_noun(len(more), 'class')} added"
    return f"{words}, {len(new)} of them new ({', '.join(new[:5])}{', ...' if len(new) > 5 else ''})" if new else words


def remove(classifier: Classifier, names: Sequence[str]) -> str:
    """Forget classes by their names."""
    inner = inner_of(classifier)
    labels = {str(label): label for label in inner.classes_}
    classifier.remove([look_up("class", name, labels) for name in names])
    return f"{count_noun(len(set(names)), 'class')} removed"


def remove_examples(
    classifier: Classifier,
    sources: Sequence[Path],
    class_name: str = "",
    layout: SourceOptions | None = None,
    cache: FeatureCache | None = None,
    say: OnMessage = no_message,
) -> str:
    """Forget single examples, those of a class where one is named: pictures, or rows of files of features. One that the
    classifier does not have, or has under two labels neither of which is its folder's, is bad input, and then nothing
    is forgotten."""
    inner, layout = inner_of(classifier), layout or SourceOptions()
    if isinstance(classifier, FewShotClassifier):
        parts = {source: read_vectors(source, layout.feature_column) for source in sources}
        names = [f"{source.name}[{row}]" for source, part in parts.items() for row in range(len(part))]
        features = np.concatenate(list(parts.values()))
    else:
        with open_pictures(sources, layout) as (items, _):
            rows, readable = embed_readable(classifier.backbone, items, "embedding", cache, say)
        if not readable:
            raise BadInput("there are no pictures to remove: name files, or folders of them.")
        names, features = [item.name for item in readable], rows.array
    wanted = look_up("class", class_name, {str(label): label for label in inner.classes_}) if class_name else None
    pairs = zip(inner.find_examples(features), names, features, strict=True)
    removed = {_example(found, name, wanted): x for found, name, x in pairs}
    for (label, key), x in removed.items():
        classifier.take_out(label, key, x)
    return (
        f"{count_noun(len(removed), 'example')} of {count_noun(len({label for label, _ in removed}), 'class')} removed"
    )


def _example(found: Sequence[tuple[Any, int]], name: str, wanted: Any) -> tuple[Any, int]:
    """Return the class and the key of an example that may be in several classes."""
    matches = [(label, key) for label, key in found if wanted is None or label == wanted]
    if not matches:
        raise BadInput(f"{name} is not among the examples{f' of {wanted}' if wanted is not None else ''}.")
    folder = Path(name).parent.name
    if len(matches) > 1:  # the one that it was given under
        matches = [pair for pair in matches if str(pair[0]) == folder] or matches
    if len(matches) > 1:
        labels = sorted(str(label) for label, _ in matches)
        raise BadInput(f"{name} is an example of {' and of '.join(labels)}: say which, --of.")
    return matches[0]


def merge(classifier: Classifier, others: Sequence[Classifier]) -> str:
    """Take in the classes of others."""
    before = set(map(str, inner_of(classifier).classes_))
    if any(isinstance(other, ImageClassifier) != isinstance(classifier, ImageClassifier) for other in others):
        raise BadInput("a classifier of pictures and one of features cannot merge.")
    alike: Any = classifier  # all are of its kind
    alike.merge(*others)
    both = before & {str(label) for other in others for label in inner_of(other).classes_}
    shared = f"; {count_noun(len(both), 'class')} of several are one now" if both else ""
    return f"{len(others) + 1} classifiers merged{shared}"


def inner_of(classifier: Classifier) -> FewShotClassifier:
    """What classifies the features."""
    return classifier.classifier if isinstance(classifier, ImageClassifier) else classifier


def _learn(
    classifier: ImageClassifier,
    items: Sequence[Item],
    names: Sequence[str],
    cache: FeatureCache | None,
    say: OnMessage,
    copies: RepeatedExamples,
) -> None:
    labels = _labels(classifier.classifier, names)
    with progress("learning", 1.0) as advance:
        report_unreadable(classifier.learn(items, labels, advance, cache, seen=copies.see), say)


def _labels(inner: FewShotClassifier, names: Sequence[str]) -> list[Any]:
    """Names as labels of the kind that the classifier has."""
    labels = {str(label): label for label in inner.classes_}
    kind = inner.classes_.dtype
    if kind.kind == "U":
        return list(names)
    for name in names:
        if name not in labels:
            with as_bad_input(ValueError, f"the classes here are numbers: {name!r} cannot be one."):
                labels[name] = kind.type(name)
    return [labels[name] for name in names]
