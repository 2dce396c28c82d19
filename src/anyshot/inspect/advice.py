"""Advice from labelled features: which head, what more labels would bring, where, and what looks wrong.

Each step is a function that returns one section: sentences, tables, doubts, and values by name. `advise` calls the
steps and says what each needs of the others. To add one, write it in a file of its own and call it there.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, Unpack

import torch
from numpy.typing import ArrayLike

from anyshot.inspect.accuracy import find_confusions, measure_accuracy, rank_classes, summarize_left_out
from anyshot.inspect.case import AdviceCase, AdviceOptions
from anyshot.inspect.copies import estimate_seconds, find_duplicates
from anyshot.inspect.curves import compare_heads, compare_with_regression, limit_episodes, measure_curves
from anyshot.inspect.episodes import choose_episodes
from anyshot.inspect.gains import expect_gains
from anyshot.inspect.labels import find_label_errors
from anyshot.inspect.sections import ExampleCell, Section, as_markdown, as_text
from anyshot.progress import scale_progress

REST_SHARE = 0.1  # share of the time that is spent neither on curves nor on copies, roughly


@dataclass(frozen=True)
class Advice:
    """What all steps say. Their values are also attributes of the whole: `advice.best`, `advice.curves`."""

    case: AdviceCase
    sections: list[Section]

    def __getattr__(self, name: str) -> Any:
        """Look a name up in the values of the steps."""
        for section in self.__dict__.get("sections", ()):
            if name in section.values:
                return section.values[name]
        raise AttributeError(f"advice has no attribute {name!r}.")

    @property
    def headline(self) -> str:
        """The answer in a sentence or two: which head, how accurate, what next."""
        where = "of the examples held out" if self.holdout else "of these examples, left out,"
        use = f"{self.regression_advice} The best other head is" if self.regression_advice else "Use"
        choice = f"{use} {self.best}: it recognises {self.accuracy:.1%} {where} among {len(self.classes)} classes."
        return f"{choice} {self.next_step}".rstrip()

    @property
    def pictures(self) -> list[int]:
        """The numbers of the examples that a page shows."""
        cells = (cell for section in self.sections for table in section.tables for row in table.rows for cell in row)
        return sorted({cell.image for cell in cells if isinstance(cell, ExampleCell)})

    def to_text(self) -> str:
        """Return the advice for a terminal."""
        text = as_text(self.headline, self.sections)
        if not self.pictures:
            return text
        return (
            f"{text}\n\nOn the page that --out makes (advice.html) a click keeps, corrects or drops each doubtful "
            "example, into a table for anyshot fit --corrections."
        )

    def __str__(self) -> str:
        """Return the advice for a terminal."""
        return self.to_text()

    def to_markdown(self) -> str:
        """Return the advice as a Markdown page."""
        return as_markdown("Advice", self.headline, self.sections)

    def to_dict(self) -> dict[str, Any]:
        """Return all numbers, for JSON."""
        values = {name: value for section in self.sections for name, value in asdict(section)["values"].items()}
        return {"headline": self.headline, **values}


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
            `is_confirmed`, whether a person has confirmed the label of each: such ones are not called doubtful again.
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
    case = AdviceCase(features, labels, heads, shots, way, episodes, seed, **options)
    source, seconds = limit_episodes(case, choose_episodes(case))
    curve_seconds, copy_seconds = sum(seconds.values()), estimate_seconds(case)
    share_per_second = (1 - REST_SHARE) / (curve_seconds + copy_seconds)
    accuracies = measure_curves(case, source, seconds, scale_progress(case.progress, share_per_second * curve_seconds))
    choice = compare_heads(case, source, accuracies)
    best = choice.values["best"]
    left_out = case.leave_out(best)
    accuracy = measure_accuracy(case, best, left_out)
    test, at_hand = accuracy.values["holdout"], summarize_left_out(case, left_out)
    errors = find_label_errors(case, left_out)
    duplicates = find_duplicates(case, scale_progress(case.progress, share_per_second * copy_seconds))
    values = choice.values | accuracy.values | errors.values | duplicates.values
    sections = [
        accuracy,
        choice,
        compare_with_regression(case, best),
        expect_gains(case, source, accuracies, values),
        rank_classes(case, at_hand, test),
        find_confusions(at_hand, test, errors.values["same_class"]),
        errors,
        duplicates,
    ]
    doubts = [doubt for section in sections for doubt in section.doubts]
    sections.append(Section("What these data cannot say", doubts, values={"doubts": doubts}))
    case.progress(REST_SHARE)
    return Advice(case, sections)
