"""Steps: which classes need examples most, and which are confused."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import softmax

from anyshot.classify.calibration import fit_scale
from anyshot.classify.groups import Labels
from anyshot.inspect.accuracy import MOST_CLASSES, leave_out_of_best, measure_accuracy
from anyshot.inspect.case import AdviceCase
from anyshot.inspect.labels import find_label_errors
from anyshot.inspect.sections import Section, Table

MOST_CONFUSED = 5  # pairs of classes in the table


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
    table = Table(
        "",
        ["class", "examples", "found", "probability", "judged on examples"],
        [
            [
                row["class"],
                str(row["examples"]),
                "-" if row["recall"] is None else f"{row['recall']:.0%}",
                f"{row['probability']:.0%}",
                row["judged_on"],
            ]
            for row in rows[:MOST_CLASSES]
        ],
    )
    return ClassRanking(rows, Section("Where to add examples first", [sentence], [table]))


def find_confusions(case: AdviceCase) -> Confusions:
    """Find the commonest mistakes, by their share of the examples of a class."""
    test = case.result(measure_accuracy).holdout
    if test is None:
        left_out = case.result(leave_out_of_best)
        rows = _count_confusions(left_out.predicted, left_out.labels, case.class_names)
    else:
        rows = [
            {"class": one.name, "taken_for": other, "share": times / one.examples}
            for one in test.classes
            for other, times in one.taken_for
        ]
    rows = sorted(rows, key=lambda row: -row["share"])[:MOST_CONFUSED]
    sentences = [
        f"{' and '.join(pair['classes'])} are hardly told apart ({pair['told_apart']:.0%}, of the examples at hand): "
        "are they one class?"
        for pair in case.result(find_label_errors).same_class[:MOST_CLASSES]
    ]
    share = "of its examples held out" if test else "of its examples"
    tables = [
        Table("", ["class", "taken for", share], [[r["class"], r["taken_for"], f"{r['share']:.0%}"] for r in rows])
    ]
    if not rows:
        sentences.append(f"{'Held out' if test else 'Left out'}, every example is found in its own class.")
    return Confusions(rows, Section("What is confused", sentences, tables if rows else []))


def _count_confusions(predicted: Labels, labels: Labels, names: list[str]) -> list[dict[str, Any]]:
    judged = predicted >= 0
    way = len(names)
    matrix = np.bincount(labels[judged] * way + predicted[judged], minlength=way * way).reshape(way, way)
    share = matrix / np.maximum(matrix.sum(1, keepdims=True), 1)
    np.fill_diagonal(share, 0)
    return [
        {"class": names[one], "taken_for": names[other], "share": float(share[one, other])}
        for one, other in np.argwhere(share > 0)
    ]
