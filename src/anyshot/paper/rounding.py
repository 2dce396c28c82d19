"""What rounding allows: exact arithmetic on printed decimals, no floats.

A number printed with two decimals stands for anything within half a hundredth of it. A quantity derived from printed
numbers is then known up to a slack, and a printed value of it

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
HALF = Fraction(1, 2)


@dataclass(frozen=True)
class Derived:
    """A derived value and how far rounding of what it was derived from may have moved it, down and up."""

    value: Fraction
    below: Fraction = Fraction(0)
    above: Fraction = Fraction(0)

    def __sub__(self, other: "Derived") -> "Derived":
        """The difference of two values that share no printed number."""
        return Derived(self.value - other.value, self.below + other.above, self.above + other.below)

    def __truediv__(self, by: int | Fraction) -> "Derived":
        return Derived(self.value / by, self.below / by, self.above / by)

    def __neg__(self) -> "Derived":
        return Derived(-self.value, self.above, self.below)

    def __lt__(self, other: "Derived") -> bool:
        return self.value < other.value

    def __float__(self) -> float:
        return float(self.value)

    @property
    def low(self) -> Fraction:
        """The lowest value that rounding allows."""
        return self.value - self.below

    @property
    def high(self) -> Fraction:
        """The highest value that rounding allows."""
        return self.value + self.above

    def __str__(self) -> str:
        """Four decimals, which show every tie; at least two."""
        text = f"{float(self):.4f}"
        return text[:-2] + text[-2:].rstrip("0")


def total(values: list[Derived]) -> Derived:
    """The sum of values that share no printed number."""
    parts = [(one.value, one.below, one.above) for one in values]
    return Derived(*(sum(column, Fraction(0)) for column in zip(*parts, strict=True)))


def mean(values: list[Derived]) -> Derived:
    """The mean of derived values, and the bounds that their rounding leaves it."""
    return total(values) / len(values)


def ratio(over: Derived, under: Derived) -> Derived:
    """The quotient of two positive values that share no printed number."""
    value, low, high = over.value / under.value, over.low / under.high, over.high / under.low
    return Derived(value, value - low, high - value)


def parse(printed: str) -> Fraction:
    """The value of a printed number: signs, thousands and one decimal comma included.

    >>> parse("+6.46"), parse("-1,97"), parse("11,788"), parse("10K")
    (Fraction(323, 50), Fraction(-197, 100), Fraction(11788, 1), Fraction(10000, 1))
    """
    return Fraction(_digits(printed)) * (1000 if printed.endswith("K") else 1)


def half_unit(printed: str) -> Fraction:
    """Half of the last printed digit: how far the number behind it may lie."""
    decimals = _digits(printed).partition(".")[2]
    return Fraction(1000 if printed.endswith("K") else 1, 2 * 10 ** len(decimals))


def _digits(printed: str) -> str:
    """Sign, digits and a decimal point; a comma before three digits separates thousands, else it is the point."""
    return re.sub(r",(?=\d{3}\b)", "", printed.removesuffix("K")).replace(",", ".")


def judge(printed: str, derived: Derived) -> Verdict:
    """Whether a printed number is the derived one.

    >>> judge("61.51", Derived(Fraction("61.5125"))), judge("2.60", Derived(Fraction("5.755")))
    ('holds', 'contradicted')
    """
    value, half = parse(printed), half_unit(printed)
    if abs(value - derived.value) <= half:
        return "holds"
    return "rounding" if derived.low - half <= value <= derived.high + half else "contradicted"


def judge_twice(first: str, second: str, derived: Derived) -> Verdict:
    """Whether one derived number can have been printed as both: equal, or the two sides of a tie."""
    if parse(first) == parse(second):
        return "holds"
    low = max(derived.low, *(parse(p) - half_unit(p) for p in (first, second)))
    high = min(derived.high, *(parse(p) + half_unit(p) for p in (first, second)))
    return "rounding" if low <= high else "contradicted"


@dataclass(frozen=True)
class Exact:
    """A grid of cells printed in hundredths, taken apart without losing a digit."""

    cells: Int[np.ndarray, "test_shot train_shot"]

    @cached_property
    def means(self) -> list[Derived]:
        """The test bias, in points."""
        slack = HALF / 100
        return [Derived(Fraction(int(row.sum()), 100 * len(row)), slack, slack) for row in self.cells]

    @cached_property
    def offsets(self) -> list[Derived]:
        """The model bias, in points. Its weights on the cells add up to 2 (1 - 1 / train shots) in size."""
        rows, columns = self.cells.shape
        slack = HALF * Fraction(2 * (columns - 1), columns) / 100
        sums = [int(column.sum()) * columns - int(self.cells.sum()) for column in self.cells.T]
        return [Derived(Fraction(total, 100 * rows * columns), slack, slack) for total in sums]

    @cached_property
    def sensitivity(self) -> Derived:
        """The range of the residual, in points: the largest of all differences of two residuals.

        Each difference is linear in the cells, so each has its own slack; the range can be no larger than the largest
        upper end and no smaller than the largest lower end.
        """
        differences, slack = _residual_differences(*self.cells.shape)
        values = differences @ self.cells.ravel()
        unit = 2 * 100 * self.cells.size
        value, low, high = (Fraction(int(x.max()), unit) for x in (2 * values, 2 * values - slack, 2 * values + slack))
        return Derived(value, value - low, high - value)


@cache
def _residual_differences(
    rows: int, columns: int
) -> tuple[Int[np.ndarray, "cell cell cell"], Int[np.ndarray, "cell cell"]]:
    """The weights of each difference of two residuals on the cells, times rows * columns, and twice its slack."""
    centre_rows = rows * np.eye(rows, dtype=np.int64) - 1
    centre_columns = columns * np.eye(columns, dtype=np.int64) - 1
    residual = np.kron(centre_rows, centre_columns)
    differences = residual[:, None] - residual[None, :]
    return differences, abs(differences).sum(-1)  # a cell moves by half a hundredth, hence twice
