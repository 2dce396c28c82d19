"""The figures of a report, each with a caption and the table behind it; `show.figures` draws them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np

from anyshot.errors import BadInput
from anyshot.measure.comparisons import offsets_by_train_shot, swapped_scores
from anyshot.measure.grid import Grid, format_train_shot
from anyshot.report import tables
from anyshot.report.answer import Choice, grids_of_paper, list_sensitivities
from anyshot.report.runs import Findings
from anyshot.show import figures
from anyshot.show.summaries import Summary, gain_summary, scores_by_seed
from anyshot.tables import GridKey, Row
from anyshot.text import group_by

POINTS = 2000  # of all learning curves together: a page of many models stays small


class Figure(NamedTuple):
    """A figure of the report: what draws it, a caption, and the table behind it."""

    id: str
    title: str
    caption: str
    draw: Callable[[], figures.Chart]
    table: Summary


def draw_figures(findings: Findings, choices: Sequence[Choice]) -> tuple[list[Figure], dict[str, Any]]:
    """Return every figure that has something to show, and their Vega-Lite specifications by id."""
    specs = {}
    listed = [*_list_figures(findings, choices), *_list_swapped(findings), *_list_learning(findings.history)]
    for figure in listed:
        with suppress(BadInput):  # a figure says itself that there is nothing to draw
            specs[figure.id] = figure.draw().to_dict()
    return [figure for figure in listed if figure.id in specs], specs


def _list_figures(findings: Findings, choices: Sequence[Choice]) -> Iterator[Figure]:
    grids = [grid for grid in findings.grids if grid.is_complete]
    single = {(grid.setting, grid.name) for grid in findings.grids if len(grid.train_shots) == 1}
    points = [
        {"choice": f"{choice.label}, {choice.setting}", "test_shot": shot, "accuracy": cell["accuracy"]}
        | {end: cell["accuracy"] + sign * (cell["ci95"] or 0.0) for end, sign in (("low", -1), ("high", 1))}
        for choice in choices
        if (choice.setting, choice.name) in single
        for shot, cell in choice.cells.items()
    ]
    caption = "One line per head; bars are 95 % intervals over episodes."
    table = Summary.from_rows("Accuracy by test shot, with its 95 % interval over episodes", points)
    yield Figure("curves", "Accuracy by test shot", caption, partial(figures.curves, points), table)
    yield from _list_frontier(findings, choices)
    caption = "How much more accurate a cosine group is than its Euclidean counterpart, by test shot."
    draw = partial(figures.gains_by_test_shot, grids)
    yield Figure("gains-by-test-shot", "Gains by test shot", caption, draw, gain_summary(grids))
    caption = "How far the model of each train shot lies above the mean of its group."
    title = "Model bias: mean distance of each model to its group, in points"
    table = Summary.from_rows(title, offsets_by_train_shot(findings.rows))
    draw = partial(figures.offsets_by_train_shot, grids)
    yield Figure("offsets-by-train-shot", "Offsets by train shot", caption, draw, table)
    columns = ("data", "backbone", "head", "score", "train_shot", "consistency")
    shares = [row for row in findings.consistency if isinstance(row.get("consistency"), float)]
    listed = [{name: row.get(name, "") for name in columns} for row in shares]
    table = Summary.from_rows("Predictions that survive a new support, in percent", listed)
    caption = "Share of predictions that stay when the support is drawn anew."
    yield Figure("consistency", "Consistency", caption, partial(figures.consistency, shares), table)


def _list_frontier(findings: Findings, choices: Sequence[Choice]) -> Iterator[Figure]:
    scored = list_sensitivities(findings)
    if len(scored) < 2:
        return
    caption = (
        "One point per grid; of its sensitivity the thick bar is the interval over episodes, the thin one over new"
        " classes, and a short stroke one training. Down and right is better; what the dashed line joins is beaten by"
        " nothing in both."
    )
    printed = [] if findings.printed else grids_of_paper(grid for grid, _ in scored)
    caption += " The paper's printed grids of the same images are beside ours." if printed else ""
    names = [choice.name for choice in choices] + [grid.name for grid in printed]
    points = frontier_points([*scored, *((grid, {}) for grid in printed)])
    draw = partial(figures.frontier, points, list(dict.fromkeys(names)))
    table = tables.sensitivity_table(findings, printed)
    yield Figure("frontier", "Accuracy against sensitivity", caption, draw, table)


def frontier_points(sensitivities: Sequence[tuple[Grid, Row]]) -> list[Row]:
    """Return a row for each training of each grid, with what the frontier shows of the grid.

    A grid without known trainings counts as one; unknown ends of intervals are at the point itself.

    Args:
        sensitivities: Grids, and their rows of sensitivity.csv.
    """
    points: list[Row] = []
    for grid, row in sensitivities:
        score = grid.parts.sensitivity
        point: Row = {"method": grid.name, "head": grid.head, "readout": grid.readout, "setting": grid.setting}
        point |= {"accuracy": float(grid.accuracy.mean()), "sensitivity": score}
        ends = {name: row.get(name) for name in ("low", "high", "low_classes", "high_classes")}
        points.append(point | {name: end if isinstance(end, float) else score for name, end in ends.items()})
    for point in points:
        point["frontier"] = not any(_beats(other, point) for other in points)
    return [
        point | {"training": training, "has_trainings": bool(scores_by_seed(row))}
        for (_, row), point in zip(sensitivities, points, strict=True)
        for training in scores_by_seed(row) or [point["sensitivity"]]
    ]


def _beats(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Return whether one is better in accuracy or sensitivity and worse in neither, in the same setting."""
    gain, loss = one["accuracy"] - other["accuracy"], one["sensitivity"] - other["sensitivity"]
    return one["setting"] == other["setting"] and gain >= 0 and loss <= 0 and (gain, loss) != (0, 0)


def _list_swapped(findings: Findings) -> Iterator[Figure]:
    """Return a figure for each setting with models that were also read with the other head's score."""
    swapped = group_by((grid.key for grid in findings.grids if grid.readout == "swapped"), lambda key: key.setting)
    for setting, keys in swapped.items():
        keys += [key._replace(readout="own") for key in keys]
        rows = [row for row in findings.rows if GridKey.of_row(row) in keys]
        caption = f"{setting}: do models follow the score they were trained with, or the one that reads them?"
        id = "-".join(("swapped", *keys[0][:2])) if len(swapped) > 1 else "swapped"
        table = Summary.from_rows("Accuracy with a model's own score and with the other", swapped_scores(rows))
        yield Figure(id, "Swapped predictors", caption, partial(figures.swapped_predictors, rows), table)


def _list_learning(history: Sequence[Row]) -> Iterator[Figure]:
    caption = "By epoch, one panel per head, one line per train shot. Batches of lower train shots hold more classes."
    table = tables.history_table(history)
    accuracy = partial(learning_curves, history, ("train_accuracy", "val_accuracy"), "accuracy (%)")
    yield Figure("learning-curves", "Learning curves", caption, accuracy, table)
    yield Figure("loss-curves", "Loss", caption, partial(learning_curves, history, ("loss",), "cross-entropy"), table)


def learning_curves(history: Sequence[Row], measures: Sequence[str], title: str) -> figures.Chart:
    """Draw measures by epoch."""
    rows = [
        {"head": f"{row['head']}, {row['data']}/{row['backbone']}", "train_shot": format_train_shot(row)}
        | {"seed": row["seed"], "epoch": row["epoch"], "measure": name.replace("_", " "), "value": row[name]}
        for name in measures
        for row in thin_history(history, name)
    ]
    return figures.learning_curves(rows, title)


def thin_history(history: Sequence[Row], measure: str) -> list[Row]:
    """Return epochs of each model at which something was measured, evenly thinned to what a small panel can show."""
    measured = [row for row in history if isinstance(row.get(measure), float)]
    models = group_by(measured, itemgetter("data", "backbone", "head", "train_shot", "seed")).values()
    most = int(np.clip(POINTS // max(1, len(models)), 10, 60))
    places = {len(rows): np.unique(np.linspace(0, len(rows) - 1, most).round().astype(int)) for rows in models}
    return [rows[place] for rows in models for place in places[len(rows)]]
