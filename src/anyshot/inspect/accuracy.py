"""Steps: how accurate the best head is, which classes need examples most, and which are confused."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import softmax

from anyshot.classify.calibration import fit_scale
from anyshot.classify.classifier import DEFAULT_HEAD
from anyshot.classify.leave_one_out import LeaveOneOutAccuracy, LeaveOneOutScores
from anyshot.inspect.case import AdviceCase
from anyshot.inspect.curves import compare_heads
from anyshot.inspect.holdout import HoldoutResult, measure_holdout
from anyshot.inspect.labels import find_label_errors, leave_out_of_best
from anyshot.inspect.sections import Section, Table, join_some

MOST_CLASSES = 10  # classes in a table; all are in the JSON
MOST_CONFUSED = 5  # pairs of classes in the table


@dataclass(frozen=True)
class Accuracy:
    """The accuracy with all examples."""

    left_out: LeaveOneOutAccuracy
    """Of the best head, on the examples at hand."""
    left_out_by_head: dict[str, float]
    """The same number of the best head and of the one that `anyshot fit` takes by default."""
    holdout: HoldoutResult | None
    """The best head on the examples that were held out."""
    holdout_accuracies: dict[str, float]
    """The accuracy of every head on them."""
    section: Section

    @property
    def accuracy(self) -> float:
        """The best that is known: on examples held out, or else with whole groups left out, or each example."""
        return self.left_out.accuracy if self.holdout is None else self.holdout.accuracy[0]


@dataclass(frozen=True)
class ClassRanking:
    """Classes by how much they need examples."""

    classes: list[dict[str, Any]]
    """By class: examples, recall, the probability of the class for its examples, and on which examples these two were
    judged; those first where more examples are expected to help most."""
    section: Section


@dataclass(frozen=True)
class Confusions:
    """Classes that are taken for each other."""

    confused: list[dict[str, Any]]
    section: Section


def measure_accuracy(case: AdviceCase) -> Accuracy:
    """Measure the best head as `anyshot fit` and `anyshot test` would."""
    best, left_out = case.result(compare_heads).best, case.result(leave_out_of_best)
    by_head = {best: left_out.accuracy.accuracy}
    sentences, tables = [left_out.accuracy.sentences], []
    if DEFAULT_HEAD in case.heads and best != DEFAULT_HEAD:
        by_head[DEFAULT_HEAD] = case.leave_out(DEFAULT_HEAD).accuracy.accuracy
        sentences.append(
            f"That is with {best}; `anyshot fit` takes {DEFAULT_HEAD} unless --head names another, and with it the "
            f"same number is {by_head[DEFAULT_HEAD]:.1%}."
        )
    test, by_test = None, {}
    if case.held_out is None:
        sentences.append("Name such examples, --holdout FOLDER, to know how much harder.")
    else:
        examples = case.held_out.features.numpy(), case.held_out.labels
        tests = {head: measure_holdout(case.fit(head), *examples) for head in case.heads}
        test, by_test = tests[best], {head: result.accuracy[0] for head, result in tests.items()}
        rate, low, high = test.accuracy
        sentences += [
            f"On the {test.examples} examples that were held out, {best} is right on {rate:.1%} ({low:.1%} to "
            f"{high:.1%}): that is the accuracy to expect.",
            *test.sentences[1:],
        ]
        rows = [[head, f"{rate:.1%}"] for head, rate in sorted(by_test.items(), key=lambda row: -row[1])]
        tables = [Table("Every head on the examples held out", ["head", "accuracy"], rows)] if len(rows) > 1 else []
    section = Section("How accurate it is", sentences, tables, _doubt_accuracy(case, left_out, test))
    return Accuracy(left_out.accuracy, by_head, test, by_test, section)


def _doubt_accuracy(case: AdviceCase, left_out: LeaveOneOutScores, test: HoldoutResult | None) -> list[str]:
    """Return what the examples cannot say, and which classes are a single group, so that none can be left out."""
    if test is None:
        doubts = [
            "All of this is of the examples at hand. How much harder those of other days, places and sources are they "
            "cannot say: --holdout FOLDER can."
        ]
    else:
        doubts = [
            f"{test.examples} examples held out tell the accuracy to about "
            f"{50 * (test.accuracy[2] - test.accuracy[1]):.0f} points, for others like these. Labels that may be "
            "wrong, copies and classes that may be one are looked for among the examples at hand."
        ]
    scored = set(left_out.labels[left_out.is_scored].tolist())
    single = [name for label, name in enumerate(case.class_names) if case.counts[label] > 1 and label not in scored]
    if single:
        doubts.append(
            f"{len(single)} classes are a single group of near-copies ({join_some(single)}): nothing can be said of "
            "how they are recognised on another occasion."
        )
    return doubts


def rank_classes(case: AdviceCase) -> ClassRanking:
    """Rank classes by how unsurely they are recognised and how few examples they have.

    The score is (1 - mean probability of the class for its examples) / number of examples; benchmarks/advice.py
    compares it with other rules (docs/log/advice.md).
    """
    left_out, test = case.result(leave_out_of_best), case.result(measure_accuracy).holdout
    own = np.full(len(case.labels), 1 / len(case.class_names))  # chance, where an example cannot be left out
    scored = left_out.is_scored
    if scored.any():
        scores, owner = left_out.scores[scored], left_out.labels[scored]
        own[scored] = softmax(fit_scale(scores, owner) * scores, axis=1)[np.arange(len(owner)), owner]
    tested = {} if test is None else {one.name: one for one in test.classes}
    rows: list[dict[str, Any]] = []
    for label, name in enumerate(case.class_names):
        mine = case.labels == label
        row: dict[str, Any] = {"class": name, "examples": int(mine.sum())}
        if name in tested:
            row |= {"recall": tested[name].recall[0], "probability": tested[name].probability, "judged_on": "held out"}
        else:
            right = left_out.predicted[mine & scored] == label
            recall = float(right.mean()) if len(right) else None
            row |= {"recall": recall, "probability": float(own[mine].mean()), "judged_on": "at hand"}
        rows.append(row)
    rows.sort(key=lambda row: (row["probability"] - 1) / row["examples"])
    which = "examples held out" if test else "own examples, left out,"
    sentence = f"Classes by how little their {which} are taken for them, and how few they have; the first profit most."
    cells = [
        [
            row["class"],
            str(row["examples"]),
            "-" if row["recall"] is None else f"{row['recall']:.0%}",
            f"{row['probability']:.0%}",
            row["judged_on"],
        ]
        for row in rows[:MOST_CLASSES]
    ]
    table = Table("", ["class", "examples", "found", "probability", "judged on examples"], cells)
    return ClassRanking(rows, Section("Where to add examples first", [sentence], [table]))


def find_confusions(case: AdviceCase) -> Confusions:
    """Find the commonest mistakes, by their share of the examples of a class."""
    test = case.result(measure_accuracy).holdout
    if test is None:
        left_out, names = case.result(leave_out_of_best), case.class_names
        judged = np.bincount(left_out.labels[left_out.is_scored], minlength=len(names))
        wrong = left_out.is_scored & (left_out.predicted != left_out.labels)
        pairs, times = np.unique(
            np.stack([left_out.labels[wrong], left_out.predicted[wrong]]), axis=1, return_counts=True
        )
        rows = [
            {"class": names[one], "taken_for": names[other], "share": float(count / judged[one])}
            for one, other, count in zip(*pairs, times, strict=True)
        ]
    else:
        rows = [
            {"class": one.name, "taken_for": other, "share": count / one.examples}
            for one in test.classes
            for other, count in one.taken_for
        ]
    rows = sorted(rows, key=lambda row: -row["share"])[:MOST_CONFUSED]
    sentences = [
        f"{' and '.join(pair['classes'])} are hardly told apart ({pair['told_apart']:.0%}, of the examples at hand): "
        "are they one class?"
        for pair in case.result(find_label_errors).same_class[:MOST_CLASSES]
    ]
    if not rows:
        sentences.append(f"{'Held out' if test else 'Left out'}, every example is found in its own class.")
    columns = ["class", "taken for", "of its examples held out" if test else "of its examples"]
    tables = [Table("", columns, [[r["class"], r["taken_for"], f"{r['share']:.0%}"] for r in rows])] if rows else []
    return Confusions(rows, Section("What is confused", sentences, tables))
