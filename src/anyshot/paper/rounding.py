"""What rounding allows: exact arithmetic on printed decimals, no floats.

A number printed with two decimals stands for anything within half a hundredth of it. A quantity derived from printed
numbers is an array of three fractions: the lowest value that rounding allows, the value that the printed numbers give,
and the highest. Sums and means are numpy's; `subtract` and `divide` set the lowest against the highest. A printed value

- holds, if it is a correct rounding of the value computed from the printed numbers (either neighbour at a tie);
- is rounding, if it is not, but some unrounded numbers behind the printed ones give it;
- is contradicted, if none do.
"""

import re
from dataclasses import dataclass
from fractions import Fraction
from functools import cache, cached_property
from typing import Literal

import numpy as np
from jaxtyping import Int

Verdict = Literal["holds", "rounding", "contradicted", "underivable"]
Bounds = np.ndarray  # the lowest, the computed and the highest value, as fractions, in the last axis
LOW, VALUE, HIGH = range(3)
SLACK = np.array([-1, 0, 1]) * Fraction(1, 200)  # half a hundredth


def subtract(bounds: Bounds, other: Bounds) -> Bounds:
    """Return the difference of two quantities that share no printed number."""
    return bounds - other[..., ::-1]


def divide(over: Bounds, under: Bounds) -> Bounds:
    """Return the quotient of two positive quantities that share no printed number."""
    return over / under[..., ::-1]


def parse(printed: str) -> Fraction:
    """Return the value of a printed number: signs, thousands and one decimal comma included.

    >>> parse("+6.46"), parse("-1,97"), parse("11,788"), parse("10K")
    (Fraction(323, 50), Fraction(-197, 100), Fraction(11788, 1), Fraction(10000, 1))
    """
    return Fraction(_digits(printed)) * (1000 if printed.endswith("K") else 1)


def half_unit(printed: str) -> Fraction:
    """Return half of the last printed digit: how far the number behind it may lie."""
    decimals = _digits(printed).partition(".")[2]
    return Fraction(1000 if printed.endswith("K") else 1, 2 * 10 ** len(decimals))


def _digits(printed: str) -> str:
    """Return sign, digits and decimal point; a comma before three digits separates thousands, else it is the point."""
    return re.sub(r",(?=\d{3}\b)", "", printed.removesuffix("K")).replace(",", ".")


def judge(printed: str, derived: Bounds) -> Verdict:
    """Return whether a printed number is the derived one.

    >>> judge("61.51", np.full(3, Fraction("61.5125"))), judge("2.60", np.full(3, Fraction("5.755")))
    ('holds', 'contradicted')
    """
    value, half = parse(printed), half_unit(printed)
    if abs(value - derived[VALUE]) <= half:
        return "holds"
    return "rounding" if derived[LOW] - half <= value <= derived[HIGH] + half else "contradicted"


def judge_twice(first: str, second: str, derived: Bounds) -> Verdict:
    """Return whether one derived number can have been printed as both: equal, or the two sides of a tie."""
    if parse(first) == parse(second):
        return "holds"
    low = max(derived[LOW], *(parse(p) - half_unit(p) for p in (first, second)))
    high = min(derived[HIGH], *(parse(p) + half_unit(p) for p in (first, second)))
    return "rounding" if low <= high else "contradicted"


def show_ties(derived: Bounds) -> str:
    """Return the value with four decimals, which show every tie; at least two."""
    text = f"{float(derived[VALUE]):.4f}"
    return text[:-2] + text[-2:].rstrip("0")


@dataclass(frozen=True)
class Exact:
    """A grid of cells printed in hundredths, taken apart in points without losing a digit."""

    cells: Int[np.ndarray, "test_shot train_shot"]

    @cached_property
    def means(self) -> Bounds:
        """The test bias, by test shot."""
        return (self.cells * Fraction(1, 100)).mean(1)[:, None] + SLACK

    @cached_property
    def offsets(self) -> Bounds:
        """The model bias, by train shot. Its weights on the cells add up to 2 (1 - 1 / train shots) in size."""
        cells, columns = self.cells * Fraction(1, 100), self.cells.shape[1]
        return (cells.mean(0) - cells.mean())[:, None] + SLACK * Fraction(2 * (columns - 1), columns)

    @cached_property
    def sensitivity(self) -> Bounds:
        """The range of the residual: the largest of all differences of two residuals.

        Each difference is linear in the cells, so each has its own slack; the range can be no larger than the largest
        upper end and no smaller than the largest lower end.
        """
        differences, slack = _residual_differences(*self.cells.shape)
        twice = 2 * differences @ self.cells.ravel()
        return np.array([int((twice + sign * slack).max()) for sign in (-1, 0, 1)]) * Fraction(1, 200 * self.cells.size)


@cache
def _residual_differences(
    rows: int, columns: int
) -> tuple[Int[np.ndarray, "cell cell cell"], Int[np.ndarray, "cell cell"]]:
    """Return what each difference of two residuals weighs the cells by, times rows * columns; and twice its slack."""
    centre_rows = rows * np.eye(rows, dtype=np.int64) - 1
    centre_columns = columns * np.eye(columns, dtype=np.int64) - 1
    residual = np.kron(centre_rows, centre_columns)
    differences = residual[:, None] - residual[None, :]
    return differences, abs(differences).sum(-1)  # a cell moves by half a hundredth, hence twice
