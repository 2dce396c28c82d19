"""Pairs of examples that are one: the same example twice, or a cropped, turned, mirrored or brighter copy of a picture.

Features suggest pairs; where the pictures are at hand, these decide (`anyshot.inspect.alignment`). Without pictures a
pair is reported only if it is as near as near-copies are (`anyshot.measure.groups`), and nearer than chance would bring
two examples of one class.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from sklearn.neighbors import NearestNeighbors
from threadpoolctl import threadpool_limits

from anyshot.inspect.alignment import COPY_SIMILARITY, PictureSketch, compare_pictures
from anyshot.inspect.case import AdviceCase
from anyshot.inspect.sections import Cell, Section, Table, example_cell
from anyshot.measure.groups import MOST_EXAMPLES, NEAR, Labels, Vectors, WithinClassDistance
from anyshot.progress import OnProgress, no_progress
from anyshot.text import count_noun

NEIGHBOURS = 3  # nearest examples of each that are considered; not tuned
# Squared distance of a possible copy, as a share of the typical one within a class: a crop to 70 % moves features by
# 0.63 of it (docs/log/advice.md).
POSSIBLE = 0.9
CHANCE = 0.05  # expected number of pairs, over all examples, that are reported by chance
ROUNDING = 1e-10  # squared distance of equal vectors after rounding, as a share of the mean square about the mean
MOST_PAIRS = 600  # pairs compared as pictures
SECONDS_PER_PAIR = 0.02  # to compare one (docs/log/advice.md)
MOST_LISTED = 40  # pairs in the table; all are in the JSON


def find_copies(
    vectors: Vectors,
    labels: Labels,
    picture: Callable[[int], np.ndarray] | None = None,
    progress: OnProgress = no_progress,
) -> list[tuple[int, int, float]]:
    """Return pairs of examples that are copies, and how alike they are, from 0 to 1; the most alike first.

    Args:
        vectors: A vector per example.
        labels: Their classes, counted from 0.
        picture: Returns the picture of an example, where pictures are at hand.
        progress: Called with shares of the work that add up to 1.
    """
    count = len(vectors)
    if not 3 <= count <= MOST_EXAMPLES:
        progress(1.0)
        return []
    typical = WithinClassDistance.estimate(vectors, labels)
    rounding = ROUNDING * float(vectors.var(0).sum())
    search = NearestNeighbors(n_neighbors=min(NEIGHBOURS, count - 1), algorithm="brute").fit(vectors)
    distances, neighbours = search.kneighbors()
    squares = distances**2
    # Pairs that are near in comparison with the other neighbours of both come first.
    relative: dict[tuple[int, int], tuple[float, float]] = {}
    for (one, place), other in np.ndenumerate(neighbours):
        scale = max(squares[one, -1], squares[other, -1], rounding) or 1.0
        relative[min(one, int(other)), max(one, int(other))] = squares[one, place] / scale, squares[one, place]
    if picture is not None:
        limit = POSSIBLE * typical.distance
    else:
        limit = min(NEAR * typical.distance, typical.quantile(2 * CHANCE / count**2))
    limit = max(limit, rounding)
    nearest = sorted(relative.items(), key=lambda row: row[1])
    pairs = [(pair, square) for pair, (_, square) in nearest if square <= limit]
    if picture is not None and pairs:
        copies = _compare_pairs(pairs[:MOST_PAIRS], rounding, picture, progress)
    else:
        copies = [(*pair, float(1 - square / max(typical.distance, limit))) for pair, square in pairs]
        progress(1.0)
    return sorted(copies, key=lambda pair: (-pair[2], pair[:2]))


def _compare_pairs(
    pairs: list[tuple[tuple[int, int], float]],
    rounding: float,
    picture: Callable[[int], np.ndarray],
    progress: OnProgress,
) -> list[tuple[int, int, float]]:
    """Return the pairs whose pictures are copies or whose vectors are equal, with their similarity.

    Args:
        pairs: Pairs of examples, with the squared distance of their vectors.
        rounding: The squared distance up to which vectors are equal.
        picture: Returns the picture of an example.
        progress: Called with shares of the work that add up to 1.
    """
    read = cache(lambda image: PictureSketch.from_image(picture(image)).pixels)
    copies = []
    with threadpool_limits(1):  # the products are small: threads would only wait for each other
        for (one, other), square in pairs:
            similarity = 1.0
            if square > rounding:
                similarity = compare_pictures(PictureSketch(read(one)), PictureSketch(read(other)))
            if similarity >= COPY_SIMILARITY:
                copies.append((one, other, similarity))
            progress(1 / len(pairs))
    return copies


def estimate_seconds(case: AdviceCase) -> float:
    """Return how long `find_duplicates` takes, roughly."""
    return SECONDS_PER_PAIR * min(MOST_PAIRS, len(case.labels)) if case.picture is not None else 0.1


def find_duplicates(case: AdviceCase, progress: OnProgress) -> Section:
    """Find examples that are there twice, by their features and, where pictures are at hand, by these.

    Its values are the pairs (`duplicates`), those under two labels first, and how many these are (`conflicts`). Pairs
    that a person has reviewed are not listed.
    """
    pairs = find_copies(case.unit_vectors, case.labels, case.picture, progress)
    rows: list[dict[str, Any]] = [
        {
            "one": case.describe(one),
            "other": case.describe(other),
            "likeness": likeness,
            "conflict": bool(case.labels[one] != case.labels[other]),
        }
        for one, other, likeness in pairs
        if not _is_reviewed(case, one, other)
    ]
    rows.sort(key=lambda row: not row["conflict"])
    conflicts, title = sum(row["conflict"] for row in rows), "The same example twice"
    values = {"duplicates": rows, "conflicts": conflicts}
    if not rows:
        return Section(title, ["No example is found twice."], values=values)
    table = Table("", ["one", "other", "label", "alike"], [_make_row(row) for row in rows[:MOST_LISTED]])
    sentences = _describe_duplicates(len(rows), conflicts, has_pictures=case.picture is not None)
    if len(rows) > MOST_LISTED:
        sentences.append(f"The first {MOST_LISTED} are listed; all of them are in advice.json, which --out writes.")
    return Section(title, sentences, [table], values=values)


def _is_reviewed(case: AdviceCase, one: int, other: int) -> bool:
    """Return whether a person has confirmed both labels of two examples; of two copies in one class one is enough."""
    confirmed = case.is_confirmed[[one, other]]
    return bool(confirmed.any() if case.labels[one] == case.labels[other] else confirmed.all())


def _describe_duplicates(count: int, conflicts: int, *, has_pictures: bool) -> list[str]:
    """Return how many pairs there are, and how many of them have two labels, in sentences."""
    same = "nearer than two of a class mostly are: copies, or nearly so"
    wrong = "one is wrong if they are copies"
    if has_pictures:
        same = (
            f"{'is' if count == 1 else 'are'} one, a copy (cropped, turned, brighter) or the same scene a moment later"
        )
        wrong = "at least one is wrong"
    sentences = [f"{count_noun(count, 'pair')} of examples {same}."]
    if conflicts:
        sentences.append(f"{conflicts} of them {'has' if conflicts == 1 else 'have'} two labels, of which {wrong}.")
    if count > conflicts:
        sentences.append("Copies under the same label can stay: doing nothing is fine.")
    return sentences


def _make_row(duplicate: dict[str, Any]) -> list[Cell]:
    """Return a pair as a row of the table; where it has two labels, each example may rather have the other's."""
    one, other = duplicate["one"], duplicate["other"]
    likeness = f"{duplicate['likeness']:.0%}"
    if not duplicate["conflict"]:
        return [example_cell(one), example_cell(other), one["label"], likeness]
    cells = example_cell(one, other["label"]), example_cell(other, one["label"])
    return [*cells, f"{one['label']} or {other['label']}?", likeness]
