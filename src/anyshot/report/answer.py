"""The answer: which head is most robust, and which choice most accurate at the shots that a reader expects."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from math import isfinite
from operator import attrgetter, itemgetter
from typing import Any, NamedTuple

import numpy as np

from anyshot.measure.grid import Grid, shot_sort_key
from anyshot.measure.recalls import episode_interval
from anyshot.report.runs import Findings, paper_findings
from anyshot.show.summaries import describe_intervals
from anyshot.tables import GridKey, Row, add_head_columns
from anyshot.text import format_decimals, group_by

INTERVALS = {"ci95": "over episodes", "ci95_classes": "over new classes"}
Pairs = dict[str, dict[str, dict[Any, float]]]
"""By two labels (in order of the alphabet), then by test shot: half the 95 % interval of the difference."""
WORDS = {
    "none": " was measured at all of these shots",
    "accuracy": " is the most accurate at {at}: {value} %",
    "ci95": " ± {value} over episodes",
    "ci95_classes": ", ± {value} over new classes",
    "margin": "; {points} points above {rival}, {what}{close}",
    "within": " ± {value}",
    "unpaired": " (not paired, so wide)",
    "another": "the best of another head",
    "next": "the next",
    "close": ": too close to call",
}
"""The sentence about accuracy, for the terminal and for page.js, which fills it in for any distribution of shots."""


@dataclass(frozen=True)
class Choice:
    """What a reader may choose in a setting: a head, how it is read, and the shot it was trained for (0: unknown).

    Args:
        setting: Data and backbone.
        head: The head.
        name: The head and its readout.
        train_shot: The shot that it was trained for.
        cells: By test shot: accuracy, its two intervals (None where unknown), episodes and seeds.
        mixed: The shots that it was trained with at random.
    """

    setting: str
    head: str
    name: str
    train_shot: int
    cells: Mapping[int | str, Mapping[str, Any]]
    mixed: str = ""

    @property
    def label(self) -> str:
        """The head, its readout and its train shot."""
        return f"{self.name}, {self.train_shot}-shot" if self.train_shot and not self.mixed else self.name

    def expected(self, weights: Mapping[Any, float]) -> dict[str, Any] | None:
        """Return accuracy and intervals under a distribution of test shots; None where one was not measured.

        Cells of one model share their episodes, so the intervals are averaged like the accuracies: the widest they
        can be, whatever the cells have in common.
        """
        by_shot = {name: {shot: cell[name] for shot, cell in self.cells.items()} for name in ("accuracy", *INTERVALS)}
        means = {name: weighted_mean(values, weights) for name, values in by_shot.items()}
        return means if means["accuracy"] is not None else None


def list_choices(findings: Findings) -> list[Choice]:
    """Return every choice of the table, with seeds averaged."""
    choices = []
    groups = group_by(findings.rows, lambda row: (GridKey.of_row(row), row["train_shot"]))
    for (key, train_shot), rows in groups.items():
        by_shot = group_by(sorted(rows, key=lambda row: shot_sort_key(row["test_shot"])), itemgetter("test_shot"))
        cells = {shot: _average(seeds) for shot, seeds in by_shot.items()}
        mixed = add_head_columns(rows[0])["mixed"]
        choices.append(Choice(key.setting, key.head, key.name, train_shot, cells, mixed))
    return choices


def list_paired_intervals(findings: Findings, choices: Sequence[Choice]) -> dict[str, Pairs]:
    """Return how well differences of choices are known from the episodes that both met, by setting."""
    models = group_by(findings.episodes, lambda key: (key.grid.setting, key.grid.name, key.train_shot))
    means = []  # a choice, the id of its episodes, and the accuracy in each by test shot
    for choice in sorted(choices, key=lambda choice: choice.label):
        keys = models.get((choice.setting, choice.name, choice.train_shot), [])
        plans, seeds = {findings.episodes[key][0] for key in keys}, [findings.episodes[key][1] for key in keys]
        if len(plans) == 1:
            shots = set.intersection(*map(set, seeds))
            means.append((choice, plans, {shot: np.mean([cells[shot] for cells in seeds], 0) for shot in shots}))
    pairs: dict[str, Pairs] = {}
    for (one, plan, ours), (other, other_plan, theirs) in combinations(means, 2):
        if (one.setting, plan) == (other.setting, other_plan):
            gaps = {shot: ours[shot] - theirs[shot] for shot in ours if shot in theirs}
            halves = {shot: round(episode_interval(gap), 3) for shot, gap in gaps.items()}
            pairs.setdefault(one.setting, {}).setdefault(one.label, {})[other.label] = halves
    return pairs


def half_width(pairs: Pairs, one: str, other: str, weights: Mapping[Any, float]) -> float | None:
    """Return half the interval of a difference under a distribution of shots: the mean, the widest it can be."""
    return weighted_mean(pairs.get(min(one, other), {}).get(max(one, other), {}), weights)


def weighted_mean(values: Mapping[Any, float | None], weights: Mapping[Any, float]) -> float | None:
    """Return the mean of values under a distribution of shots; None where a shot that counts has no value."""
    counted = {shot: weight for shot, weight in weights.items() if weight > 0}
    parts = [value * weight for shot, weight in counted.items() if (value := values.get(shot)) is not None]
    return sum(parts) / sum(counted.values()) if 0 < len(parts) == len(counted) else None


def _average(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the mean of cells; also of their intervals, which is the widest the interval of the mean can be."""
    cell: dict[str, Any] = {}
    for name in ("accuracy", *INTERVALS):
        values: list[Any] = [row.get(name) for row in rows]
        are_known = all(isinstance(value, int | float) and isfinite(value) for value in values)
        cell[name] = float(np.mean(values)) if are_known else None
    episodes = [row["episodes"] for row in rows if isinstance(row.get("episodes"), int)]
    return cell | {"episodes": min(episodes, default=None), "seeds": len(rows)}


Ranking = Sequence[tuple[Choice, dict[str, Any]]]


def rank(choices: Sequence[Choice], setting: str, weights: Mapping[Any, float]) -> Ranking:
    """Return the choices of a setting that were measured at these shots, the most accurate first."""
    expected = [(choice, choice.expected(weights)) for choice in choices if choice.setting == setting]
    measured = [(choice, cell) for choice, cell in expected if cell]
    return sorted(measured, key=lambda pair: -pair[1]["accuracy"])


def list_sensitivities(findings: Findings) -> list[tuple[Grid, Row]]:
    """Return every grid that has a sensitivity with its row of sensitivity.csv, if any; the most robust first."""
    scored = sorted((grid for grid in findings.grids if grid.has_sensitivity), key=lambda grid: grid.parts.sensitivity)
    return [(grid, findings.sensitivities.get(grid.key, {})) for grid in scored]


def grids_of_paper(ours: Iterable[Grid]) -> list[Grid]:
    """Return the paper's printed grids of the same images: of cub for cub32."""
    data = {grid.data for grid in ours}
    printed = [grid for grid, _ in list_sensitivities(paper_findings()) if grid.head != "frn-old"]
    same = [grid for grid in printed if any(re.fullmatch(rf"{grid.data}\d+(-.*)?", name) for name in data)]
    return [replace(grid, data=f"the paper's {grid.data}") for grid in same]


def first_pair(grids: Sequence[Grid]) -> tuple[Grid, ...]:
    """Return what to compare first: the head that differs most in sensitivity from its Euclidean counterpart, and it.

    Where there is no such pair, these are the first two grids with a sensitivity, or the only one.
    """
    scored = [grid for grid in grids if grid.has_sensitivity]
    pairs = [(other, grid) for grid in scored if grid.readout == "own" and (other := grid.find_counterpart(scored))]
    if not pairs:
        return tuple(scored[:2])
    return max(pairs, key=lambda pair: pair[0].parts.sensitivity - pair[1].parts.sensitivity)


def robust_sentence(findings: Findings, setting: str) -> tuple[str, str]:
    """Return the first half of the answer: the most robust head of a setting, beside its Euclidean counterpart.

    Where it has none, the next head stands beside it.
    """
    ranked = [pair for pair in list_sensitivities(findings) if pair[0].setting == setting]
    if not ranked:
        return "No head", " has a sensitivity here; below, each grid says why."
    best, row = ranked[0]
    points = f"{format_decimals(best.parts.sensitivity)} points{_list_intervals(row, '95 % interval ')}"
    if len(ranked) == 1:
        return best.name, f" has a sensitivity of {points}; no other head has one here."
    counterpart = best.find_counterpart(grid for grid, _ in ranked)
    rival, row = next((pair for pair in ranked if pair[0] is counterpart), ranked[1])
    against = f"{format_decimals(rival.parts.sensitivity)}{_list_intervals(row)} of {rival.name}"
    against += _describe_certainty(findings, best, rival)
    return best.name, f" is the most robust: its sensitivity is {points}, against {against}."


def _list_intervals(row: Row, words: str = "") -> str:
    """Return the intervals of a sensitivity in brackets, after some words."""
    intervals = describe_intervals(row)
    return f" ({words}{intervals})" if intervals else ""


def _describe_certainty(findings: Findings, best: Grid, rival: Grid) -> str:
    """Say whether one sensitivity is lower than the other: on new classes by their difference, where it is known."""
    if ends := findings.differences.get((best.key, rival.key)):
        low, high = ends
        interval = f"{format_decimals(-high, '+')} to {format_decimals(-low, '+')} over new classes"
        return f"; the difference is {interval}" + ("" if high < 0 else ", so the order is not settled")
    top = findings.sensitivities.get(best.key, {}).get("high")
    bottom = findings.sensitivities.get(rival.key, {}).get("low")
    if not (isinstance(top, float) and isinstance(bottom, float)):
        return ""
    meet = "do not meet" if top < bottom else "overlap, so the order is not settled"
    return f"; the intervals over episodes {meet}"


def accurate_slots(
    ranked: Ranking, weights: Mapping[Any, float], pairs: Pairs, at: str = "the shots you expect"
) -> dict[str, str]:
    """Return the second half of the answer in parts, which page.js fills in again when the reader's shots change.

    The best is set against the best of another head; a head's readouts share their training and often tie.
    """
    if not ranked:
        return {"best": "No choice", "accuracy": WORDS["none"], "margin": ""}
    best, value = ranked[0]
    slots = {"best": best.label, "accuracy": WORDS["accuracy"].format(at=at, value=format_decimals(value["accuracy"]))}
    for name in INTERVALS:
        if value[name] is not None:
            slots["accuracy"] += WORDS[name].format(value=format_decimals(value[name]))
    rivals = [pair for pair in ranked if pair[0].head != best.head] or ranked[1:]
    if not rivals:
        return slots | {"margin": ""}
    rival, other = rivals[0]
    gap, within = value["accuracy"] - other["accuracy"], half_width(pairs, best.label, rival.label, weights)
    unpaired = "" if within is not None else WORDS["unpaired"]
    if unpaired and value["ci95"] is not None and other["ci95"] is not None:
        within = (value["ci95"] ** 2 + other["ci95"] ** 2) ** 0.5
    points, close = format_decimals(gap), ""
    if within is not None:
        points += WORDS["within"].format(value=format_decimals(within)) + unpaired
        close = WORDS["close"] if gap < within else ""
    what = WORDS["another"] if rival.head != best.head else WORDS["next"]
    return slots | {"margin": WORDS["margin"].format(points=points, rival=rival.label, what=what, close=close)}


class Answer(NamedTuple):
    """The answer for a setting, where all of its shots count alike."""

    robust: tuple[str, str]
    accurate: dict[str, str]
    ranked: Ranking


def list_answers(
    findings: Findings, choices: Sequence[Choice], pairs: Mapping[str, Pairs], at: str
) -> dict[str, Answer]:
    """Return the answer for every setting.

    Args:
        findings: What the runs hold.
        choices: Their choices.
        pairs: The intervals of differences, by setting.
        at: The words for its shots.
    """
    answers = {}
    for setting, members in group_by(choices, attrgetter("setting")).items():
        weights = {shot: 1.0 for choice in members for shot in choice.cells}
        ranked = rank(members, setting, weights)
        accurate = accurate_slots(ranked, weights, pairs.get(setting, {}), at)
        answers[setting] = Answer(robust_sentence(findings, setting), accurate, ranked)
    return answers
