"""Advice from labelled features: which head, what more labels would bring, where, and what looks wrong.

Advice is a list of steps over one value (`AdviceCase`). A step is a function that returns a small result with its own
section of sentences and tables; steps ask for each other's results with `case.result`. To add one, write it in a file
of its own and list it in STEPS, in the order of the page.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, Unpack

import torch
from numpy.typing import ArrayLike

from anyshot.inspect.accuracy import find_confusions, measure_accuracy, rank_classes
from anyshot.inspect.case import AdviceCase, AdviceOptions
from anyshot.inspect.curves import compare_heads
from anyshot.inspect.duplicates import find_duplicates
from anyshot.inspect.gains import expect_gains
from anyshot.inspect.labels import find_label_errors
from anyshot.inspect.regression import compare_with_regression
from anyshot.inspect.sections import Picture, Section, as_markdown, as_text
from anyshot.progress import no_progress

STEPS: tuple[Callable[[AdviceCase], Any], ...] = (
    measure_accuracy,
    compare_heads,
    compare_with_regression,
    expect_gains,
    rank_classes,
    find_confusions,
    find_label_errors,
    find_duplicates,
)


@dataclass(frozen=True)
class Advice:
    """The results of all steps. The fields of each are also attributes of the whole: `advice.best`, `advice.curves`."""

    case: AdviceCase
    results: tuple[Any, ...]

    def __getattr__(self, name: str) -> Any:
        """Look a name up in the results of the steps."""
        for result in () if name.startswith("_") or name in ("case", "results", "section") else self.results:
            if hasattr(result, name):
                return getattr(result, name)
        raise AttributeError(f"advice has no attribute {name!r}.")

    @property
    def headline(self) -> str:
        """The answer in a sentence or two: which head, how accurate, what next."""
        where = "of the examples held out" if self.holdout else "of these examples, left out,"
        use = f"{self.regression_advice} The best other head is" if self.regression_advice else "Use"
        found = f"{use} {self.best}: it recognises {self.accuracy:.1%} {where} among {len(self.classes)} classes."
        return f"{found} {self.next_step}".rstrip()

    @property
    def doubts(self) -> list[str]:
        """What the data are too few to say, in sentences."""
        return [doubt for result in self.results for doubt in result.section.doubts]

    @property
    def sections(self) -> list[Section]:
        """What each step says, and last what none of them can."""
        last = Section("What these data cannot say", self.doubts)
        return [*(result.section for result in self.results), last]

    @property
    def pictures(self) -> list[int]:
        """The numbers of the examples that a page shows."""
        cells = (cell for section in self.sections for table in section.tables for row in table.rows for cell in row)
        return sorted({cell.image for cell in cells if isinstance(cell, Picture)})

    def to_text(self) -> str:
        """Return the advice for a terminal."""
        return as_text(self.headline, self.sections)

    def to_markdown(self) -> str:
        """Return the advice as a Markdown page."""
        return as_markdown("Advice", self.headline, self.sections)

    def to_dict(self) -> dict[str, Any]:
        """Return all numbers, for JSON."""
        values = {name: value for result in self.results for name, value in asdict(result).items() if name != "section"}
        return {"headline": self.headline, **values, "accuracy": self.accuracy, "doubts": self.doubts}


def advise(
    features: ArrayLike | torch.Tensor,
    labels: ArrayLike,
    heads: Sequence[str] = (),
    shots: Sequence[int] = (),
    way: int | Literal["all"] = "all",
    episodes: int = 400,
    seed: int = 0,
    **options: Unpack[AdviceOptions],
) -> Advice:
    """Say which head to use, what more labelled examples would bring, and what looks wrong, from labelled features.

    Args:
        features: Vectors "image d", or maps "image position channel".
        labels: The class of each example.
        heads: Heads to compare; those that need no training by default.
        shots: Shots expected in use, for which the head is chosen; all that can be measured by default.
        way: Classes to tell apart at once; 'all' for every class.
        episodes: Draws of support and queries.
        seed: Seed of the draws.
        options: What else is known, by keyword.
            `holdout`, features and labels of other examples of the same classes, best of other days, for a test.
            `names`, what a person finds the examples by; numbers and times in file names tell of groups.
            `times`, when they were taken, in seconds, or None.
            `groups`, which examples belong together, a name for each, instead of finding that out.
            `picture`, a function that returns the picture of an example, by its number, to find copies.
            `parameters`, what trained heads have learned, by head.
            `embed`, how features become a vector (flatten, mean, max, gram), by head.
            `registry`, what heads are looked up in.
            `progress`, called with shares of the work that add up to 1.
            `other_features`, a function of the best head and its accuracy that measures another network.

    Returns:
        The advice; `advice.headline` says it in a sentence, `advice.to_dict()` has all numbers.

    Raises:
        BadInput: If fewer than two classes have three examples, or features and labels do not fit together.
    """
    report, total = options.get("progress", no_progress), 0.0

    def progress(share: float) -> None:
        nonlocal total
        total += share
        report(share)

    options["progress"] = progress
    case = AdviceCase(features, labels, heads, shots, way, episodes, seed, **options)
    advice = Advice(case, tuple(case.result(step) for step in STEPS))
    report(1 - total)
    return advice
