"""Whether logistic regression is the better choice, where every class has many examples."""

from dataclasses import dataclass

import numpy as np
from scipy.stats import t as student_t
from sklearn.model_selection import StratifiedGroupKFold

from anyshot.inspect.case import AdviceCase
from anyshot.inspect.curves import compare_heads
from anyshot.inspect.sections import Section

HEAD = "logistic"
LEAST_EXAMPLES = 15  # of every class: with fewer, logistic regression was behind on all sets (docs/log/posterior.md)
MOST_EXAMPLES = 1000  # that are taken of all classes together, which takes some seconds
FOLDS = 3


@dataclass(frozen=True)
class RegressionComparison:
    """The accuracy of logistic regression beside the best head, on the same examples that neither has seen."""

    regression_lead: tuple[float, float] | None
    """How far it is ahead, from -1 to 1, and half of the 95 % interval; None where it was not tried."""
    regression_advice: str
    section: Section


def compare_with_regression(case: AdviceCase) -> RegressionComparison:
    """Learn two thirds of the examples and ask the others, three times, by logistic regression and by the best head."""
    best, smallest = case.result(compare_heads).best, int(case.counts.min())
    title = "Logistic regression instead"
    if HEAD in case.heads or smallest < LEAST_EXAMPLES or len(case.counts) * LEAST_EXAMPLES > MOST_EXAMPLES:
        few = f"it takes {LEAST_EXAMPLES} examples of every class, and the smallest has {smallest}"
        many = f"there are more than {MOST_EXAMPLES // LEAST_EXAMPLES} classes"
        why = "it is among the heads above" if HEAD in case.heads else few if smallest < LEAST_EXAMPLES else many
        return RegressionComparison(None, "", Section(title, [f"It was not tried: {why}."]))
    rows = _sample(case)
    features, labels = case.features[rows].numpy(), case.labels[rows]
    folds = StratifiedGroupKFold(FOLDS, shuffle=True, random_state=case.seed)
    right = np.zeros((2, len(rows)))
    for learned, asked in folds.split(features, labels, case.groups.group[rows]):
        for place, head in enumerate((best, HEAD)):
            fitted = case.classifier(head).set_params(keep=MOST_EXAMPLES).fit(features[learned], labels[learned])
            right[place, asked] = fitted.predict(features[asked]) == labels[asked]
    difference = right[1] - right[0]
    lead, half = float(difference.mean()), _half_width(difference)
    ours, theirs = right.mean(1)
    advice = ""
    if lead > half:
        advice = f"Use {HEAD} (--head {HEAD} --keep {int(case.counts.max())}): with as many examples as these it is "
        advice += f"{100 * lead:.1f} points ahead of {best}."
    sentences = [
        f"Two thirds of {len(rows)} examples learned and the others asked, three times: logistic regression is right "
        f"on {theirs:.1%}, {best} on {ours:.1%} (a difference of {100 * lead:+.1f} ± {100 * half:.1f} points).",
        advice or f"That is no reason to prefer it to {best}, which also takes classes of few examples.",
    ]
    return RegressionComparison((lead, half), advice, Section(title, sentences))


def _sample(case: AdviceCase) -> np.ndarray:
    """Return the rows of as many examples of each class as are affordable, whole groups before parts of others."""
    rng, most = np.random.default_rng(case.seed), MOST_EXAMPLES // len(case.counts)
    order = rng.permutation(int(case.groups.group.max()) + 1)[case.groups.group].argsort(kind="stable")
    return np.sort(np.concatenate([order[case.labels[order] == label][:most] for label in range(len(case.counts))]))


def _half_width(values: np.ndarray) -> float:
    """Return half of the 95 % interval of a mean."""
    return float(student_t.ppf(0.975, len(values) - 1) * values.std(ddof=1) / len(values) ** 0.5)
