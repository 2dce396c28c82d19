"""Step: how accurate the best head is, on the examples at hand and on those held out."""

from dataclasses import dataclass

from anyshot.classify.classifier import DEFAULT_HEAD
from anyshot.classify.leave_one_out import LeaveOneOutAccuracy, LeaveOneOutScores
from anyshot.inspect.case import AdviceCase
from anyshot.inspect.curves import compare_heads
from anyshot.inspect.holdout import HoldoutResult, measure_holdout
from anyshot.inspect.sections import Section, Table, join_some

MOST_CLASSES = 10  # classes in a table; all are in the JSON


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


def leave_out_of_best(case: AdviceCase) -> LeaveOneOutScores:
    """Score every example without its group, with the best head."""
    return case.leave_out(case.result(compare_heads).best)


def measure_accuracy(case: AdviceCase) -> Accuracy:
    """Measure the best head as `anyshot fit` and `anyshot test` would."""
    best, left_out = case.result(compare_heads).best, case.result(leave_out_of_best)
    by_head = {best: left_out.accuracy.accuracy}
    if DEFAULT_HEAD in case.heads and best != DEFAULT_HEAD:
        by_head[DEFAULT_HEAD] = case.leave_out(DEFAULT_HEAD).accuracy.accuracy
    tests: dict[str, HoldoutResult] = {}
    if case.held_out is not None:
        examples = case.held_out.features.numpy(), case.held_out.labels
        tests = {head: measure_holdout(case.fit(head), *examples) for head in case.heads}
    sentences = [left_out.accuracy.sentences]
    if len(by_head) > 1:
        sentences.append(
            f"That is with {best}; `anyshot fit` takes {DEFAULT_HEAD} unless --head names another, and with it the "
            f"same number is {by_head[DEFAULT_HEAD]:.1%}."
        )
    test, by_test = tests.get(best), {head: result.accuracy[0] for head, result in tests.items()}
    if test is None:
        sentences.append("Name such examples, --holdout FOLDER, to know how much harder.")
    else:
        rate, low, high = test.accuracy
        sentences += [
            f"On the {test.examples} examples that were held out, {best} is right on {rate:.1%} ({low:.1%} to "
            f"{high:.1%}): that is the accuracy to expect.",
            *test.sentences[1:],
        ]
    heads = [[head, f"{rate:.1%}"] for head, rate in sorted(by_test.items(), key=lambda row: -row[1])]
    tables = [Table("Every head on the examples held out", ["head", "accuracy"], heads)] if len(heads) > 1 else []
    return Accuracy(
        left_out.accuracy,
        by_head,
        test,
        by_test,
        Section("How accurate it is", sentences, tables, _doubt_accuracy(case, left_out, test)),
    )


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
