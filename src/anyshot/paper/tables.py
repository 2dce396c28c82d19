"""Every derived number of the paper's tables, recomputed from the printed cells it was derived from."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from anyshot.paper import printed
from anyshot.paper.printed import TEST_SHOTS, TRAIN_SHOTS
from anyshot.paper.rounding import Derived, Verdict, judge, judge_twice, parse
from anyshot.tables import Row


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


RULES = {
    "mean": "mean of its four cells",
    "offset": "mean distance of the model to its group",
    "sensitivity": "range of the residual of its grid",
    "gain": "group mean minus that of its Euclidean counterpart",
}
SUMMARIES = ("Table 2", "Table 5", "Table 6", "Table 7")


def checks() -> Iterator[Check]:
    """Every derived number of a table against the cells, and every number that is printed twice against its twin."""
    for row in printed.numbers():
        if row["quantity"] in RULES:
            yield _check(row)
    study = {_key(row): row for row in printed.numbers() if printed.in_study(row["table"])}
    for row in printed.numbers():
        if (row["table"] in SUMMARIES or row["table"] == "Table 4") and _key(row) in study:
            yield _printed_twice(row, study[_key(row)])


def _key(row: Row) -> tuple[Any, ...]:
    return *printed.group(row), row["quantity"], row["test_shot"], row["train_shot"]


def _derived(row: Row) -> Derived:
    """What the cells say a printed number is: those of its own table where it holds the grid, else the study's."""
    group = printed.group(row)
    grid = printed.exact_grids().get((row["table"], group)) or printed.study()[group]
    match row["quantity"]:
        case "offset":
            return grid.offsets[TRAIN_SHOTS.index(row["train_shot"])]
        case "sensitivity":
            return grid.sensitivity
        case "accuracy":
            return Derived(parse(row["printed"]))
    mean = grid.means[TEST_SHOTS.index(row["test_shot"])]
    if row["quantity"] == "mean":
        return mean
    return mean - printed.study()[group.euclidean].means[TEST_SHOTS.index(row["test_shot"])]


def _printed_twice(row: Row, twin: Row) -> Check:
    """The same quantity, beside its grid and in another table, is the same number."""
    where, both = f"{row['table']}, {twin['table']}", (row["printed"], twin["printed"])
    words = f"{_what(row)} of {printed.group(row)} is printed alike in both places"
    return Check(f"{_id(row)}/twice", where, words, *both, judge_twice(*both, _derived(row)))


def _check(row: Row) -> Check:
    derived = _derived(row)
    words = f"{_what(row)} of {printed.group(row)}: {RULES[row['quantity']]}"
    return Check(_id(row), row["table"], words, row["printed"], str(derived), judge(row["printed"], derived))


def _what(row: Row) -> str:
    shot = [f"at {row['test_shot']}-shot test"] if row["test_shot"] else []
    shot += [f"of the {row['train_shot']}-shot model"] if row["train_shot"] else []
    return " ".join([row["quantity"], *shot])


def _id(row: Row) -> str:
    parts = [row["table"].lower().replace(" ", "-"), *printed.group(row), row["quantity"]]
    parts += [f"{row[shot]}" for shot in ("test_shot", "train_shot") if row[shot]]
    return "/".join(parts)
