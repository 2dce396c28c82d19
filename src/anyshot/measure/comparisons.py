"""Comparisons of heads: of recalls on the same episodes with intervals, or of a table's grids. No torch is needed.

An evaluation may stop early: it tests on a part of the episodes first, and stops as soon as these tell the heads apart.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import combinations, product, repeat
from math import nan
from typing import Any, TypeVar

import numpy as np
from scipy.special import ndtri

from anyshot.errors import BadInput
from anyshot.measure.grid import Grid, PairedGrid, build_grids, build_paired_grids
from anyshot.measure.recalls import Recalls, summarise_accuracies
from anyshot.measure.sensitivity import (
    ResidualDraws,
    bootstrap_episodes,
    decompose,
    jackknife_classes,
    list_statistics,
    residual_deviation,
)
from anyshot.tables import CellKey, Row, round_row
from anyshot.text import format_decimals, format_number, group_by

Rows = Sequence[Mapping[str, Any]]
T = TypeVar("T")
SHARES = (16, 4, 1)  # a look is after this fraction of the episodes: all but the last take a third of its time together
LEAST_EPISODES = 100  # of a look, so that the mean of their differences is nearly normal
ERROR = 0.05  # of all looks together


def study_tables(recalls: Sequence[Recalls]) -> dict[str, list[Row]]:
    """Return the tables of a study's models: accuracies, sensitivities, and differences of sensitivities."""
    sensitivities, differences = list[Row](), list[Row]()
    for group in build_paired_grids(recalls):
        grids = [grid for grid in group if grid.has_sensitivity]
        if not grids:
            continue
        draws = jackknife_classes([grid.episodes for grid in grids], grids[0].classes)
        sensitivities += [_sensitivity_row(grid, one) for grid, one in zip(grids, draws or repeat(None), strict=False)]
        if draws is not None:
            differences += [
                _against(grids[one], grids[other]) | _difference_columns(grids[one], draws[one], draws[other])
                for one, other in _list_rivals(grids)
            ]
    table = [row for one in recalls for row in one.rows()]
    return {"table": table, "sensitivity": sensitivities, "sensitivity-differences": differences}


def _sensitivity_row(grid: PairedGrid, over_classes: ResidualDraws | None) -> Row:
    """Return a row of sensitivity.csv.

    `low` to `high` is the interval over episodes, `low_classes` to `high_classes` the one over new classes.
    """
    cells = grid.episodes
    over_episodes = bootstrap_episodes(cells)
    row: Row = {}
    for name, statistic in list_statistics(grid.test_shots, grid.train_shots).items():
        prefix = "" if name == "sensitivity" else f"{name}_"
        low, high = over_episodes.interval(statistic)
        row |= {name: float(statistic(over_episodes.residual)), f"{prefix}low": low, f"{prefix}high": high}
        if name == "sensitivity":
            row["noise_floor"] = over_episodes.noise_floor
        low, high = over_classes.interval(statistic) if over_classes else (nan, nan)
        row |= {f"{prefix}low_classes": low, f"{prefix}high_classes": high}
    seeds = [f"{decompose(one.mean(-1)).sensitivity:.4f}" for one in cells] if len(cells) > 1 else []
    return grid.key._asdict() | {"seeds": len(cells)} | round_row(row) | {"over_seeds": " ".join(seeds)}


def _difference_columns(grid: Grid, ours: ResidualDraws, theirs: ResidualDraws) -> Row:
    """Return by how much each statistic of one grid is above another's, with its 95 % interval over new classes."""
    row: Row = {}
    for name, statistic in list_statistics(grid.test_shots, grid.train_shots).items():
        prefix = "" if name == "sensitivity" else f"{name}_"
        low, high = ours.difference(theirs, statistic)
        row[f"{prefix}difference"] = float(statistic(ours.residual) - statistic(theirs.residual))
        row |= {f"{prefix}low_classes": low, f"{prefix}high_classes": high}
    return round_row(row)


def accuracy_differences(recalls: Iterable[Recalls]) -> list[Row]:
    """Return how much more accurate each head and readout is than its rivals, on the same episodes.

    Returns:
        One row per pair and test shot, and one for all test shots; the mean over train shots and seeds.
    """
    rows = []
    for group in build_paired_grids(recalls):
        grids = [grid for grid in group if len(grid.train_shots) > 1]
        means = [grid.episodes.mean((0, 2)) for grid in grids]
        for one, other in _list_rivals(grids):
            gain, classes = means[one] - means[other], grids[one].classes
            rows += _rows_by_shot(_against(grids[one], grids[other]), grids[one].test_shots, gain, classes)
    return rows


def _list_rivals(grids: Sequence[Grid]) -> list[tuple[int, int]]:
    """Return the places of each grid and of every other of the same learner, as trained or with the same readout."""
    return [
        (one, other)
        for (one, ours), (other, theirs) in product(enumerate(grids), repeat=2)
        if one != other and theirs.readout in ("own", ours.readout) and ours.learner == theirs.learner
    ]


def _against(ours: PairedGrid, theirs: PairedGrid) -> Row:
    seeds = {"seeds": min(len(ours.episodes), len(theirs.episodes))}
    return ours.key._asdict() | {"against": theirs.head, "against_readout": theirs.readout} | seeds


def paired_difference(one: Recalls, other: Recalls) -> list[Row]:
    """Return how much more accurate one is than the other on the same episodes, a row per test shot."""
    if one.plan["id"] != other.plan["id"] or one.shots != other.shots:
        raise BadInput("a paired difference needs the same episodes and shots on both sides.")
    label = {"head": one.key.grid.name, "against": other.key.grid.name}
    return _rows_by_shot(label, one.shots, one.accuracies - other.accuracies, one.classes)[:-1]


def _rows_by_shot(label: Row, shots: Sequence[int | str], gains: np.ndarray, classes: Any, **more: Any) -> list[Row]:
    """Return the gains of every episode as one row per test shot, and one for all of them."""
    lines = zip([*shots, "all"], [*gains, gains.mean(0)], strict=True)
    return [{**label, "test_shot": shot, **more, **summarise_accuracies(gain, classes, "gain")} for shot, gain in lines]


def paired_gains(recalls: Sequence[Recalls]) -> list[Row]:
    """Return how much more accurate each head is than the one it is an alternative of, on the same episodes.

    Returns:
        In each setting, averaged over the train shots and seeds that both have: one row per test shot and one for all;
        then as many for each train shot.
    """
    trained = {one.key: one for one in recalls if one.key.readout == "own"}
    heads = group_by(trained.values(), lambda one: one.key.grid)
    rows = []
    for grid, models in heads.items():
        columns = models[0].columns
        other = grid._replace(head=columns["learner"] + ("-mixed" if columns["mixed"] else ""))
        if other == grid or other not in heads:
            continue
        pairs = [(one, trained[rival]) for one in models if (rival := one.key._replace(head=other.head)) in trained]
        pairs.sort(key=lambda pair: (pair[0].key.train_shot, pair[0].key.seed))
        for train_shot in dict.fromkeys(["all", *(one.key.train_shot for one, _ in pairs)]) if pairs else ():
            chosen = [pair for pair in pairs if train_shot in ("all", pair[0].key.train_shot)]
            gain = np.mean([one.accuracies - rival.accuracies for one, rival in chosen], axis=0)
            label: Row = {"data": grid.data, "backbone": grid.backbone, "head": grid.head, "against": other.head}
            label |= {"train_shot": train_shot}
            rows += _rows_by_shot(label, chosen[0][0].shots, gain, chosen[0][0].classes, models=len(chosen))
    return rows


# -------------------------------------------------------------------------------------------------- grids of a table


def gains_by_test_shot(rows: Rows) -> list[Row]:
    """Return how far each head's mean accuracy is above its Euclidean counterpart's, by test shot (Fig. 4)."""
    grids = list_complete_grids(rows)
    pairs = [(grid, grid.find_counterpart(grids)) for grid in grids if grid.readout == "own"]
    return [row for grid, other in pairs if other for row in _gain_rows(grid, other)]


def offsets_by_train_shot(rows: Rows) -> list[Row]:
    """Return how far each model lies above its group on average, by train shot (Fig. 4)."""
    return [
        _label(grid) | {"train_shot": shot, "offset": float(bias)}
        for grid in list_complete_grids(rows)
        if grid.readout == "own" and len(grid.train_shots) > 1
        for shot, bias in zip(grid.train_shots, grid.parts.model_bias, strict=True)
    ]


def swapped_scores(rows: Rows) -> list[Row]:
    """Return each model's accuracy with its own score and with the other, by train shot and test shot (Fig. 5)."""
    cells = {
        key: float(np.mean([row["accuracy"] for row in seeds]))
        for key, seeds in group_by(rows, lambda row: (CellKey.of_row(row)._replace(seed=0), row["test_shot"])).items()
    }
    compared = []
    for (key, test_shot), accuracy in cells.items():
        swapped = cells.get((key._replace(readout="swapped"), test_shot))
        if key.readout == "own" and swapped is not None:
            row = {"data": key.data, "backbone": key.backbone, "head": key.head, "train_shot": key.train_shot}
            row |= {"test_shot": test_shot, "own": accuracy, "swapped": swapped, "change": swapped - accuracy}
            compared.append(row)
    return compared


def frn_forms(rows: Rows) -> list[Row]:
    """Return how far the new FRN is above the old one, by test shot (Table 4)."""
    grids = list_complete_grids(rows)
    old = {grid.setting: grid for grid in grids if grid.head == "frn-old"}
    new = [grid for grid in grids if grid.head == "frn" and grid.setting in old]
    return [row for grid in new for row in _gain_rows(grid, old[grid.setting])]


def mixed_shot_training(rows: Rows) -> list[Row]:
    """Return models trained with mixed shots beside those of their head that were trained for one shot.

    Returns:
        By test shot: the best, the mean and the worst of single shots, and how far the mixed model is behind the best.
    """
    grids = list_complete_grids(rows)
    fixed = {(grid.setting, f"{grid.head}-mixed", grid.readout): grid for grid in grids if not grid.mixed}
    compared = []
    for grid in grids:
        other = fixed.get((grid.setting, grid.head, grid.readout))
        if other is None or grid.readout != "own":
            continue
        for shot, accuracy in grid.means.items():
            cells = other.accuracy[other.test_shots.index(shot)].tolist()
            single = {"best": max(cells), "mean": sum(cells) / len(cells), "worst": min(cells)}
            row = _label(grid) | {"test_shot": shot, "accuracy": accuracy} | single
            compared.append(row | {"behind": max(cells) - accuracy})
    return compared


def list_complete_grids(rows: Rows) -> list[Grid]:
    """Return the grids of a table that lack no cell."""
    return [grid for grid in build_grids(rows) if grid.is_complete]


def _gain_rows(grid: Grid, other: Grid) -> list[Row]:
    label = _label(grid) | {"against": other.head}
    return [label | {"test_shot": shot, "gain": gain} for shot, gain in grid.gains_over(other).items()]


def _label(grid: Grid) -> Row:
    return {"data": grid.data, "backbone": grid.backbone, "head": grid.head}


# ------------------------------------------------------------------------------------------------------- stopping early
# Whoever looks several times finds a difference by chance more often than whoever looks once. So the looks are fixed
# beforehand, and each has an equal share of the error of 5 % (Bonferroni): heads that do not differ are told apart in
# at most 5 % of all runs, at whichever look. That all pairs of heads must differ needs no further correction (Berger
# 1982). This is about these classes: episodes do not tell what new classes would show.


def list_looks(episodes: int) -> list[int]:
    """Return after how many episodes the heads are compared; the last number is that of all episodes."""
    return sorted({min(episodes, max(LEAST_EPISODES, episodes // share)) for share in SHARES})


def run_until_apart(
    run: Callable[[int], T], looks: Sequence[int], compare: Callable[[T, float], list[Row]]
) -> tuple[T, str]:
    """Test on more and more episodes until all pairs of heads differ; return the last result and a message.

    Args:
        run: Tests all heads on the first so many episodes.
        looks: After how many episodes the heads are compared (`list_looks`).
        compare: Returns the difference of each pair of heads in a result, and its interval at a level.

    Raises:
        BadInput: There are no two heads to tell apart.
    """
    level = 1 - ERROR / len(looks)
    for episodes in looks:
        result = run(episodes)
        rows = compare(result, level)
        if not rows:
            raise BadInput("there are no two heads to tell apart: stopping early needs at least two.")
        told_apart = sum(row["low"] > 0 or row["high"] < 0 for row in rows)
        if told_apart == len(rows):
            break
    lines = [f"After {episodes} of {looks[-1]} episodes, {told_apart} of {len(rows)} pairs of heads are told apart."]
    lines += [
        f"{row['head']} against {row['against']}: {row['what']} {format_decimals(row['difference'], '+')} "
        f"({format_number(row['low'])} to {format_number(row['high'])})"
        for row in rows
    ]
    looked = f"{len(looks)} looks at {', '.join(map(str, looks))} episodes share an error of {ERROR:.0%}"
    return result, "\n".join([*lines, f"Intervals over episodes at {level:.1%}, because {looked}."])


def compare_accuracies(recalls: Sequence[Recalls], level: float) -> list[Row]:
    """Return how much more accurate each head is than each other, in the mean over test shots."""
    rows = []
    for one, other in combinations(recalls, 2):
        gain = (one.accuracies - other.accuracies).mean(0)
        margin = float(ndtri((1 + level) / 2) * gain.std(ddof=1) / len(gain) ** 0.5)
        names = {"head": one.key.grid.name, "against": other.key.grid.name, "what": "accuracy"}
        mean = float(gain.mean())
        rows.append(names | {"difference": mean, "low": mean - margin, "high": mean + margin})
    return rows


def compare_deviations(recalls: Sequence[Recalls], level: float) -> list[Row]:
    """Return how much larger the deviation of each head is than that of each other with the same learner, as trained.

    The deviation takes the place of the range, which needs more episodes for the same.
    """
    rows = []
    for group in build_paired_grids(recalls):
        grids = [grid for grid in group if grid.has_sensitivity and grid.readout == "own"]
        for one, other in combinations(grids, 2):
            if one.learner != other.learner:
                continue
            ours, theirs = (bootstrap_episodes(grid.episodes) for grid in (one, other))
            low, high = ours.difference(theirs, residual_deviation, level)
            names = {"head": one.name, "against": other.name, "what": "deviation of the residual"}
            rows.append(names | {"difference": (low + high) / 2, "low": low, "high": high})
    return rows
