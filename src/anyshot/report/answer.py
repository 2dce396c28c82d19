"""The answer: which head is most robust, and which choice most accurate at the shots that a reader expects."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Any, NamedTuple

from anyshot.measure.grid import Grid, format_shot, shot_sort_key
from anyshot.report.runs import INTERVALS, Choice, Findings, Pairs, paper_findings, weighted_mean
from anyshot.show.summaries import describe_intervals
from anyshot.tables import Row
from anyshot.text import format_decimals, group_by

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


def half_width(pairs: Pairs, one: str, other: str, weights: Mapping[Any, float]) -> float | None:
    """Return half the interval of a difference under a distribution of shots: the mean, the widest it can be."""
    return weighted_mean(pairs.get(min(one, other), {}).get(max(one, other), {}), weights)


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

    Where it has none, the next head stands beside it. Of an evaluation, these are the most accurate heads by test shot.
    """
    ranked = [pair for pair in list_sensitivities(findings) if pair[0].setting == setting]
    if findings.is_evaluation:
        return _best_by_shot([choice for choice in findings.choices if choice.setting == setting])
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


def _best_by_shot(choices: Sequence[Choice]) -> tuple[str, str]:
    """Return the most accurate head at each test shot with its intervals, in words."""
    parts = []
    for shot in sorted({shot for choice in choices for shot in choice.cells}, key=shot_sort_key):
        best = max((one for one in choices if shot in one.cells), key=lambda one: one.cells[shot]["accuracy"])
        cell = best.cells[shot]
        known = ((cell[name], over) for name, over in INTERVALS.items())
        intervals = ", ".join(f"± {format_decimals(half)} {over}" for half, over in known if half is not None)
        parts.append(
            f"{best.label} at {format_shot(shot)}, {format_decimals(cell['accuracy'])} %"
            + (f" ({intervals})" if intervals else "")
        )
    return "Most accurate by test shot", f": {'; '.join(parts)}."


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


def list_answers(findings: Findings, at: str) -> dict[str, Answer]:
    """Return the answer for every setting; `at` are the words for its shots."""
    answers = {}
    for setting, members in group_by(findings.choices, attrgetter("setting")).items():
        weights = {shot: 1.0 for choice in members for shot in choice.cells}
        ranked = rank(members, setting, weights)
        accurate = accurate_slots(ranked, weights, findings.paired_intervals.get(setting, {}), at)
        answers[setting] = Answer(robust_sentence(findings, setting), accurate, ranked)
    return answers
