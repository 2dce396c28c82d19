"""Whether logistic regression is the better choice, where every class has many examples."""

import numpy as np
from scipy.stats import t as student_t
from sklearn.model_selection import StratifiedGroupKFold

from anyshot.inspect.case import AdviceCase
from anyshot.inspect.sections import Section

HEAD = "logistic"
LEAST_EXAMPLES = 15  # of every class: with fewer, logistic regression was behind on all sets (docs/log/posterior.md)
MOST_EXAMPLES = 1000  # that are taken of all classes together, which takes some seconds
FOLDS = 3


def compare_with_regression(case: AdviceCase, best: str) -> Section:
    """Compare logistic regression with the best head: fit two thirds of the examples, test the others, three times.

    Its values are the advice to use it, if any, and the lead (from -1 to 1) with half of the 95 % interval; None where
    it was not tried.
    """
    title = "Logistic regression instead"
    if reason := _find_obstacle(case):
        values = {"regression_lead": None, "regression_advice": ""}
        return Section(title, [f"It was not tried: {reason}."], values=values)
    rows = _sample(case)
    features, labels = case.features[rows].numpy(), case.labels[rows]
    folds = StratifiedGroupKFold(FOLDS, shuffle=True, random_state=case.seed)
    right = np.zeros((2, len(rows)))
    for support, query in folds.split(features, labels, case.groups.group[rows]):
        for place, head in enumerate((best, HEAD)):
            fitted = case.classifier(head).set_params(keep=MOST_EXAMPLES).fit(features[support], labels[support])
            right[place, query] = fitted.predict(features[query]) == labels[query]
    difference = right[1] - right[0]
    lead = float(difference.mean())
    half = float(student_t.ppf(0.975, len(rows) - 1) * difference.std(ddof=1) / len(rows) ** 0.5)
    accuracy_of_best, accuracy = right.mean(1)
    advice, gap = "", f"{100 * lead:+.1f} ± {100 * half:.1f}"
    if lead > half:
        advice = f"Use {HEAD} (--head {HEAD} --keep {int(case.counts.max())}): with as many examples as these it is "
        advice += f"{100 * lead:.1f} points ahead of {best}."
    sentences = [
        f"Fitted to two thirds of {len(rows)} examples and tested on the others, three times: logistic regression is "
        f"right on {accuracy:.1%}, {best} on {accuracy_of_best:.1%} (a difference of {gap} points).",
        advice or f"That is no reason to prefer it to {best}, which also takes classes of few examples.",
    ]
    return Section(title, sentences, values={"regression_lead": (lead, half), "regression_advice": advice})


def _find_obstacle(case: AdviceCase) -> str:
    """Return why logistic regression is not tried; nothing where it is."""
    smallest = int(case.counts.min())
    if HEAD in case.heads:
        return "it is among the heads above"
    if smallest < LEAST_EXAMPLES:
        return f"it takes {LEAST_EXAMPLES} examples of every class, and the smallest has {smallest}"
    if len(case.counts) * LEAST_EXAMPLES > MOST_EXAMPLES:
        return f"there are more than {MOST_EXAMPLES // LEAST_EXAMPLES} classes"
    return ""


def _sample(case: AdviceCase) -> np.ndarray:
    """Return the rows of as many examples of each class as are affordable, whole groups before parts of others."""
    rng, most = np.random.default_rng(case.seed), MOST_EXAMPLES // len(case.counts)
    order = rng.permutation(int(case.groups.group.max()) + 1)[case.groups.group].argsort(kind="stable")
    return np.sort(np.concatenate([order[case.labels[order] == label][:most] for label in range(len(case.counts))]))
