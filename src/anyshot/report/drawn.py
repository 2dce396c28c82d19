"""Which figures a report shows: those its data can fill, each with a caption and the table behind it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from typing import Any, TypeVar

from anyshot.errors import BadInput
from anyshot.report import charts, tables
from anyshot.report.answer import EVERYWHERE, Choice, beside_paper, list_sensitivities
from anyshot.report.runs import Findings
from anyshot.rows import Row, grouped
from anyshot.show import figures
from anyshot.show.grid import Grid, Key
from anyshot.show.summaries import Summary, counterpart, gain_summary

T = TypeVar("T")


@dataclass(frozen=True)
class Figure:
    """A figure of the report: its Vega-Lite specification, a caption, and the table behind it."""

    id: str
    title: str
    caption: str
    spec: dict[str, Any]
    table: Summary
    broad: bool = False


def drawn_figures(findings: Findings, choices: Sequence[Choice]) -> list[Figure]:
    """Every figure that has something to show."""
    single = {(grid.setting, grid.name) for grid in findings.grids if len(grid.train_shots) == 1}
    curves = [choice for choice in choices if (choice.setting, choice.name) in single and choice.setting != EVERYWHERE]
    caption = "One line per head; bars are 95 % intervals over episodes."
    drawn = _drawn("curves", "Accuracy by test shot", caption, charts.curves, curves, tables.curve_table(curves))
    drawn += _frontier(findings, choices)
    pairs = _with_counterparts([grid for grid in findings.grids if grid.is_whole])
    caption = "How much more accurate a cosine group is than its Euclidean counterpart, by test shot."
    gains = figures.gains_by_test_shot, pairs, gain_summary(pairs)
    drawn += _drawn("gains-by-test-shot", "Gains by test shot", caption, *gains)
    trained = [grid for grid in findings.grids if grid.is_scored]
    caption = "How far the model of each train shot lies above the mean of its group."
    offsets = figures.offsets_by_train_shot, trained, tables.bias_table(trained)
    drawn += _drawn("offsets-by-train-shot", "Offsets by train shot", caption, *offsets)
    drawn += _swapped(findings, choices)
    shares = [row for row in findings.consistency if isinstance(row.get("consistency"), float | int)]
    caption = "Share of predictions that stay when the support is drawn anew."
    drawn += _drawn(
        "consistency", "Consistency", caption, figures.consistency, shares, tables.consistency_table(shares)
    )
    return drawn + _learning(findings.history)


def _drawn(
    id: str,
    title: str,
    caption: str,
    draw: Callable[[Sequence[T]], Any],
    of: Sequence[T],
    table: Summary,
    broad: bool = False,
) -> list[Figure]:
    """One figure, or none where there is nothing to draw."""
    try:
        return [Figure(id, title, caption, draw(of).to_dict(), table, broad)] if of else []
    except BadInput:  # the figure says so itself
        return []


def _frontier(findings: Findings, choices: Sequence[Choice]) -> list[Figure]:
    sensitivities = list_sensitivities(findings)
    if len(sensitivities) < 2:
        return []
    caption = (
        "One point per grid; of its sensitivity the thick bar is the interval over episodes, the thin one over new"
        " classes, and a short stroke one training. Down and right is better; what the dashed line joins is beaten by"
        " nothing in both."
    )
    if not findings.printed and (printed := beside_paper(sensitivities)):
        sensitivities += printed
        caption += " The paper's printed grids of the same images are beside ours."
    methods = [choice.name for choice in choices] + [one.grid.name for one in sensitivities]
    draw = partial(charts.frontier, names=list(dict.fromkeys(methods)))
    frontier = draw, sensitivities, tables.frontier_table(sensitivities)
    broad = len({one.grid.setting for one in sensitivities}) > 1
    return _drawn("frontier", "Accuracy against sensitivity", caption, *frontier, broad)


def _learning(history: Sequence[Row]) -> list[Figure]:
    caption = "By epoch, one panel per head, one line per train shot. Batches of lower train shots hold more classes."
    broad = len({(row["data"], row["backbone"], row["head"]) for row in history}) > 2
    table = tables.history_table(history)
    accuracy = partial(charts.learning_curves, measures=("train_accuracy", "val_accuracy"), title="accuracy (%)")
    loss = partial(charts.learning_curves, measures=("loss",), title="cross-entropy")
    drawn = _drawn("learning-curves", "Learning curves", caption, accuracy, history, table, broad)
    return drawn + _drawn("loss-curves", "Loss", caption, loss, history, table, broad)


def _with_counterparts(whole: Sequence[Grid]) -> list[Grid]:
    """Grids and their Euclidean counterparts, where both have the same test shots."""
    paired: dict[Key, Grid] = {}
    for grid in whole:
        other = counterpart(grid, whole)
        if other is not None and other.test_shots == grid.test_shots:
            paired |= {one.key: one for one in (other, grid)}
    return list(paired.values())


def _swapped(findings: Findings, choices: Sequence[Choice]) -> list[Figure]:
    """One figure per setting: models read with the other head's score."""
    drawn = []
    read = grouped(
        (row for row in findings.rows if row["readout"] in ("own", "swapped")), itemgetter("data", "backbone")
    )
    heads = {where: {row["head"] for row in rows if row["readout"] == "swapped"} for where, rows in read.items()}
    for where, rows in read.items():
        if not heads[where]:
            continue
        grids = [grid for grid in findings.grids if grid.key[:2] == where and grid.head in heads[where]]
        names = {grid.name for grid in grids if grid.readout in ("own", "swapped")}
        setting = grids[0].setting
        lines = [choice for choice in choices if choice.setting == setting and choice.name in names]
        caption = f"{setting}: do models follow the score they were trained with, or the one that reads them?"
        id = "-".join(("swapped", *where)) if sum(map(bool, heads.values())) > 1 else "swapped"
        shown = [row for row in rows if row["head"] in heads[where]]
        swapped = figures.swapped_predictors, shown, tables.curve_table(lines)
        drawn += _drawn(id, "Swapped predictors", caption, *swapped, broad=True)
    return drawn
