"""Early stopping: test on a part of the episodes first, and stop as soon as these tell the heads apart.

Whoever looks several times finds a difference by chance more often than whoever looks once. So the looks are fixed
beforehand, and each has an equal share of the error of 5 % (Bonferroni): heads that do not differ are told apart in at
most 5 % of all runs, at whichever look. That all pairs of heads must differ needs no further correction (Berger 1982).
This is about these classes: episodes do not tell what new classes would show.
"""

from collections.abc import Callable, Sequence
from itertools import combinations
from typing import TypeVar

from scipy.special import ndtri

from anyshot.errors import BadInput
from anyshot.measure.grid import build_paired_grids
from anyshot.measure.recalls import Recalls
from anyshot.measure.sensitivity import bootstrap_episodes, residual_deviation
from anyshot.tables import Row
from anyshot.text import format_decimals, format_number

SHARES = (16, 4, 1)  # a look is after this fraction of the episodes: all but the last take a third of its time together
LEAST_EPISODES = 100  # of a look, so that the mean of their differences is nearly normal
ERROR = 0.05  # of all looks together

T = TypeVar("T")


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
