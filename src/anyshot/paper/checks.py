"""Checks: how a sentence of the paper or a number of its tables is set beside what the printed cells give.

A claim may be read in several ways. Each reading is computed from the grids and judged; the claim takes the best
verdict among them, so that none is called contradicted while a reading its words allow stands. Where the words are
qualified ("generally", "on average"), what lies outside them is a remark and weighs nothing.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from anyshot.paper import printed
from anyshot.paper.printed import TEST_SHOTS, TRAIN_SHOTS
from anyshot.paper.rounding import VALUE, Bounds, Verdict, judge, judge_twice, parse, show_ties, subtract
from anyshot.tables import Row

ORDER: tuple[Verdict, ...] = ("holds", "rounding", "contradicted")


@dataclass(frozen=True)
class Interpretation:
    """One way to read a claim, what it comes to, and whether the claim then stands."""

    reading: str
    recomputed: str
    verdict: Verdict

    def __str__(self) -> str:
        return f"{self.reading}: {self.recomputed}" if self.reading else self.recomputed


@dataclass(frozen=True)
class Check:
    """One claim of the paper, in our words, beside what its own numbers say."""

    id: str
    where: str
    claim: str
    printed: str
    recomputed: str
    verdict: Verdict
    readings: tuple[Interpretation, ...] = ()
    follows: str = ""
    """The root of the number that this one was evidently computed from."""

    @property
    def disputed(self) -> bool:
        """Whether the verdict depends on how the claim is read."""
        return {"holds", "contradicted"} <= {reading.verdict for reading in self.readings}

    @property
    def root(self) -> str:
        """What checks share that fail for one reason: a number of the study, wherever it is printed."""
        return self.follows or re.sub(r"^table-\d+/|/twice$", "", self.id)


Evidence = tuple[str, Sequence[Interpretation | str]]  # the printed value; readings of the claim, and remarks
FOLLOWS = {"sensitivity-factor": "cub/resnet12/frn/own/sensitivity"}


def check_claim(claim: Callable[[], Evidence]) -> Check:
    """Check a claim: the function's name is its id, its docstring the places in the paper and our words for it."""
    printed, listed = claim()
    readings = tuple(reading for reading in listed if isinstance(reading, Interpretation))
    verdict: Verdict = min((reading.verdict for reading in readings), key=ORDER.index, default="underivable")
    id, (where, _, words) = claim.__name__.replace("_", "-"), (claim.__doc__ or "").rstrip(".").partition(": ")
    return Check(id, where, words, printed, "; ".join(map(str, listed)), verdict, readings, FOLLOWS.get(id, ""))


def number(printed: str, derived: Bounds, reading: str = "") -> Interpretation:
    """Return a reading that gives a number to set beside the printed one."""
    return Interpretation(reading, f"{float(derived[VALUE]):.3f}", judge(printed, derived))


def true_or_false(stands: bool | np.bool_, recomputed: str, reading: str = "") -> Interpretation:
    """Return a reading that is true or false of the printed cells."""
    return Interpretation(reading, recomputed, "holds" if stands else "contradicted")


def all_hold(cases: Iterable[tuple[object, bool]], reading: str = "") -> Interpretation:
    """Return a reading that is true where all cases stand."""
    return true_or_false(*count(cases), reading)


def all_parts_hold(*parts: Interpretation) -> Interpretation:
    """Return one reading of several parts, all of which must stand."""
    return Interpretation("", "; ".join(map(str, parts)), max((part.verdict for part in parts), key=ORDER.index))


def count(cases: Iterable[tuple[object, bool]]) -> tuple[bool, str]:
    """Return whether all cases stand, and a sentence that names those that do not."""
    listed = list(cases)
    failing = [str(name) for name, stands in listed if not stands]
    but = f", not {', '.join(failing)}" if failing else ""
    return not failing, f"{len(listed) - len(failing)} of {len(listed)}{but}"


# ------------------------------------------------------------------------------------------------ numbers of the tables
RULES = {
    "mean": "mean of its four cells",
    "offset": "mean distance of the model to its group",
    "sensitivity": "range of the residual of its grid",
    "gain": "group mean minus that of its Euclidean counterpart",
}
SUMMARIES = ("Table 2", "Table 5", "Table 6", "Table 7")


def check_tables() -> Iterator[Check]:
    """Check every derived number of a table against the cells, and every number that is printed twice with its twin."""
    for row in printed.numbers():
        if row["quantity"] in RULES:
            derived, words = _derive(row), f"{_describe(row)} of {printed.group(row)}: {RULES[row['quantity']]}"
            verdict = judge(row["printed"], derived)
            yield Check(_id(row), row["table"], words, row["printed"], show_ties(derived), verdict)
    study = {_key(row): row for row in printed.numbers() if printed.in_study(row["table"])}
    for row in printed.numbers():
        if row["table"] in (*SUMMARIES, "Table 4") and (twin := study.get(_key(row))):
            where, prints = f"{row['table']}, {twin['table']}", (row["printed"], twin["printed"])
            words = f"{_describe(row)} of {printed.group(row)} is printed alike in both places"
            yield Check(f"{_id(row)}/twice", where, words, *prints, judge_twice(*prints, _derive(row)))


def _key(row: Row) -> tuple[Any, ...]:
    return *printed.group(row), row["quantity"], row["test_shot"], row["train_shot"]


def _derive(row: Row) -> Bounds:
    """Derive a printed number from cells: those of its own table where it holds the grid, else the study's."""
    group, quantity = printed.group(row), row["quantity"]
    grid = printed.exact_grids().get((row["table"], group)) or printed.study()[group]
    if quantity == "sensitivity":
        return grid.sensitivity
    if quantity == "offset":
        return grid.offsets[TRAIN_SHOTS.index(row["train_shot"])]
    place = TEST_SHOTS.index(row["test_shot"])
    if quantity == "accuracy":
        return np.full(3, parse(row["printed"]))
    mean = grid.means[place]
    return mean if quantity == "mean" else subtract(mean, printed.study()[group.euclidean].means[place])


def _describe(row: Row) -> str:
    shot = [f"at {row['test_shot']}-shot test"] if row["test_shot"] else []
    shot += [f"of the {row['train_shot']}-shot model"] if row["train_shot"] else []
    return " ".join([row["quantity"], *shot])


def _id(row: Row) -> str:
    parts = [row["table"].lower().replace(" ", "-"), *printed.group(row), row["quantity"]]
    parts += [f"{row[shot]}" for shot in ("test_shot", "train_shot") if row[shot]]
    return "/".join(parts)
