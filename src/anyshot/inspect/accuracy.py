"""Steps: how accurate the best head is, which classes need examples most, and which are confused."""

from typing import Any

from scipy.special import softmax

from anyshot.classify.calibration import fit_scale
from anyshot.classify.leave_one_out import LeaveOneOutScores
from anyshot.inspect.case import AdviceCase
from anyshot.inspect.holdout import ClassResult, HoldoutResult, measure_holdout, summarize_classes
from anyshot.inspect.sections import Section, Table
from anyshot.text import count_noun, list_first

MOST_CLASSES = 10  # classes in a table; all are in the JSON
MOST_CONFUSED = 5  # pairs of classes in the table


def measure_accuracy(case: AdviceCase, best: str, left_out: LeaveOneOutScores) -> Section:
    """Measure the best head as `anyshot fit` and `anyshot test` would.

    Its values are the accuracy on the examples at hand (`left_out`; `left_out_by_head` is that of the best head and of
    the one that `anyshot fit` takes by default), that on examples held out (`holdout`, `holdout_accuracies` by head),
    and the best that is known (`accuracy`): on examples held out, or else with whole groups or each example left out.
    """
    by_head, default = {best: left_out.accuracy.accuracy}, case.default_head
    sentences, tables = [left_out.accuracy.sentences], []
    if default in case.heads and best != default:
        by_head[default] = case.leave_out(default).accuracy.accuracy
        sentences.append(
            f"That is with {best}; `anyshot fit` takes {default} unless --head names another, and with it the "
            f"same number is {by_head[default]:.1%}."
        )
    test, by_test = None, {}
    if case.held_out is None:
        sentences.append(f"To know how much harder, name some of those: --holdout {case.source_noun}.")
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
        leaders, table = compare_on_holdout(tests, best)
        sentences += leaders
        tables = [table] if len(tests) > 1 else []
    values = {
        "left_out": left_out.accuracy,
        "left_out_by_head": by_head,
        "holdout": test,
        "holdout_accuracies": by_test,
        "accuracy": left_out.accuracy.accuracy if test is None else test.accuracy[0],
    }
    return Section("How accurate it is", sentences, tables, _doubt_accuracy(case, left_out, test), values)


def compare_on_holdout(tests: dict[str, HoldoutResult], best: str) -> tuple[list[str], Table]:
    """Compare the best head with the others on the examples held out.

    Differences are paired: every head has learned all examples at hand, and was asked the same ones.

    Args:
        tests: The result of each head.
        best: The head that is recommended.

    Returns:
        A sentence if other heads are surely ahead of the best one, and a table of all.
    """
    n, cells, ahead = tests[best].examples, [], []
    mistakes = {head: {mistake.place for mistake in result.mistakes} for head, result in tests.items()}
    for head, result in sorted(tests.items(), key=lambda row: -row[1].accuracy[0]):
        gained, lost = len(mistakes[best] - mistakes[head]), len(mistakes[head] - mistakes[best])
        lead = (gained - lost) / n
        half = 1.96 * ((gained + lost) / n - lead**2) ** 0.5 / n**0.5
        points = "" if head == best else f"{100 * lead:+.1f} ± {100 * half:.1f}"
        cells.append([head, f"{result.accuracy[0]:.1%}", points])
        if lead > half:
            ahead.append(f"{head} ({points} points)")
    sentences = [
        f"Of these, {list_first(ahead)} {'is' if len(ahead) == 1 else 'are'} surely ahead of {best} with all examples "
        "at hand: anyshot fit --head takes it."
    ]
    table = Table(
        "Every head on the examples held out, having learned all at hand",
        ["head", "accuracy", f"points over {best}"],
        cells,
    )
    return (sentences if ahead else []), table


def _doubt_accuracy(case: AdviceCase, left_out: LeaveOneOutScores, test: HoldoutResult | None) -> list[str]:
    """Return what the examples cannot say, and which classes are a single group, so that none can be left out."""
    if test is None:
        doubts = [
            "All of this is of the examples at hand. They cannot say how much harder those of other days, places and "
            f"sources are: --holdout {case.source_noun} can."
        ]
    else:
        doubts = [
            f"{test.examples} examples held out tell the accuracy to about "
            f"{50 * (test.accuracy[2] - test.accuracy[1]):.0f} points, for others like these. Labels that may be "
            "wrong, copies and classes that may be one are looked for among the examples at hand."
        ]
    scored = set(case.labels[left_out.is_scored].tolist())
    single = [name for label, name in enumerate(case.class_names) if case.counts[label] > 1 and label not in scored]
    if single:
        doubts.append(
            f"{count_noun(len(single), 'class', 'is')} a single group of examples that belong together "
            f"({list_first(single)}): nothing can be said of how new ones are recognised."
        )
    return doubts


def summarize_left_out(case: AdviceCase, left_out: LeaveOneOutScores) -> list[ClassResult]:
    """Return how the examples of each class are classified when left out, where they can be."""
    scores, labels = left_out.scores[left_out.is_scored], case.labels[left_out.is_scored]
    if not len(labels):
        return []
    return summarize_classes(case.class_names, labels, softmax(fit_scale(scores, labels) * scores, axis=1))


def rank_classes(case: AdviceCase, at_hand: list[ClassResult], test: HoldoutResult | None) -> Section:
    """Rank classes by how unsurely they are recognised and how few examples they have.

    The score is (1 - mean probability of the class for its examples) / number of examples; benchmarks/advice.py
    compares it with other rules (docs/log/advice.md). The value `classes` has for each class its examples, its recall,
    its probability for its examples, and on which examples these two were judged.
    """
    chance = {"recall": None, "probability": 1 / len(case.class_names), "judged_on": "at hand"}
    results = {
        one.name: {"recall": one.recall[0], "probability": one.probability, "judged_on": judged_on}
        for judged_on, classes in (("at hand", at_hand), ("held out", test.classes if test else ()))
        for one in classes
    }
    rows: list[dict[str, Any]] = [
        {"class": name, "examples": count, **results.get(name, chance)}
        for name, count in zip(case.class_names, case.counts.tolist(), strict=True)
    ]
    rows.sort(key=lambda row: (row["probability"] - 1) / row["examples"])
    judged = "examples held out" if test else "examples, left out,"
    sentence = (
        f"Classes whose {judged} are recognised least surely, and that have few, come first: in our tests they "
        "profited most, also where all were right."
    )
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
    table = Table("", ["class", "examples", "recall", "probability", "judged on examples"], cells)
    return Section("Where to add examples first", [sentence], [table], values={"classes": rows})


def find_confusions(
    at_hand: list[ClassResult], test: HoldoutResult | None, same_class: list[dict[str, Any]]
) -> Section:
    """Find the commonest mistakes, by their share of the examples of a class; and name classes that may be one."""
    rows: list[dict[str, Any]] = [
        {"class": one.name, "taken_for": other, "share": times / one.examples}
        for one in (test.classes if test else at_hand)
        for other, times in one.taken_for
    ]
    rows = sorted(rows, key=lambda row: -row["share"])[:MOST_CONFUSED]
    sentences = [
        f"{' and '.join(pair['classes'])} are hardly told apart: asked which of the two it is, "
        f"{pair['told_apart']:.0%} of their examples at hand are right (50% by chance). Are they one class?"
        for pair in same_class[:MOST_CLASSES]
    ]
    if not rows:
        sentences.append(f"{'Held out' if test else 'Left out'}, every example is found in its own class.")
    columns = ["class", "taken for", "of its examples held out" if test else "of its examples"]
    cells = [[row["class"], row["taken_for"], f"{row['share']:.0%}"] for row in rows]
    tables = [Table("", columns, cells)] if rows else []
    return Section("What is confused", sentences, tables, values={"confused": rows})
