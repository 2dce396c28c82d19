"""Figure 1 as a computation: why a cosine boundary is stable when the support changes.

Two classes lie along two directions; their points differ far more in length than in direction. A scenario represents
each class by one point (the star), and the boundary between the stars has the largest margin its score allows:

- Euclidean: the set of points as near to one star as to the other, wherever that leads;
- cosine: the same for the stars at length one, so that it passes through the origin and halves the angle.
"""

from dataclasses import dataclass

import altair as alt
import numpy as np
from jaxtyping import Float, Int

from anyshot.show.figures import BLACK, BLUE, ORANGE, Chart, apply_theme, inline_data

DIRECTIONS = (62.0, 28.0)  # degrees
POINTS = 60  # of each class
EDGE = 10.0  # the square that is drawn


@dataclass(frozen=True)
class Boundary:
    """The line `normal @ x == threshold`; a point above the threshold belongs to the first class."""

    normal: Float[np.ndarray, " 2"]
    threshold: float

    def classify(self, points: Float[np.ndarray, "point 2"]) -> Int[np.ndarray, " point"]:
        """Return the class of each point."""
        return np.where(points @ self.normal > self.threshold, 0, 1)


def max_margin(stars: Float[np.ndarray, "2 2"], score: str) -> Boundary:
    """The boundary of largest margin between one star per class, under the Euclidean or the cosine score."""
    if score == "cosine":
        stars = stars / np.linalg.norm(stars, axis=1, keepdims=True)
    first, second = stars
    return Boundary(first - second, float((first @ first - second @ second) / 2))


def points(seed: int = 0) -> tuple[Float[np.ndarray, "point 2"], Int[np.ndarray, " point"]]:
    """Both classes: lengths spread widely, angles closely around the class's direction."""
    generator = np.random.default_rng(seed)
    labels = np.repeat([0, 1], POINTS)
    angles = np.radians(np.take(DIRECTIONS, labels) + generator.normal(0, 6, len(labels)))
    lengths = generator.uniform(2, 10, len(labels))
    return lengths[:, None] * np.stack([np.cos(angles), np.sin(angles)], axis=1), labels


def scenarios(seed: int = 0) -> dict[str, Float[np.ndarray, "2 2"]]:
    """The stars of two scenarios: a short first and a long second one, and the other way round."""
    cloud, labels = points(seed)
    order = [np.argsort(np.linalg.norm(cloud[labels == label], axis=1)) for label in (0, 1)]
    short, long = POINTS // 6, POINTS - POINTS // 6
    stars = [cloud[labels == label][order[label]] for label in (0, 1)]  # each class from its shortest to its longest
    return {"A": np.stack([stars[0][short], stars[1][long]]), "B": np.stack([stars[0][long], stars[1][short]])}


def illustrate(seed: int = 0) -> alt.ConcatChart:
    """Both scenarios under both scores, each with its boundary and the share of points it gets right."""
    cases = [(*scenario, score, seed) for score in ("Euclidean", "cosine") for scenario in scenarios(seed).items()]
    panels = [_panel(*case) for case in cases]
    return apply_theme(alt.concat(*panels, columns=2, spacing={"row": 60, "column": 30}, bounds="flush"))


def _panel(name: str, stars: Float[np.ndarray, "2 2"], score: str, seed: int) -> Chart:
    cloud, labels = points(seed)
    boundary = max_margin(stars, score)
    right = float((boundary.classify(cloud) == labels).mean())
    dots = [{"x": x, "y": y, "class": str(label + 1)} for (x, y), label in zip(cloud.tolist(), labels, strict=True)]
    star = [{"x": x, "y": y, "class": str(label + 1)} for label, (x, y) in enumerate(stars.tolist())]
    square = alt.Scale(domain=[0, EDGE], nice=False)
    x, y = alt.X("x:Q", axis=None, scale=square), alt.Y("y:Q", axis=None, scale=square)
    colour = alt.Color("class:N", scale=alt.Scale(domain=["1", "2"], range=[BLUE, ORANGE]))
    base = alt.Chart(inline_data(dots)).mark_circle(size=28, opacity=0.55).encode(x, y, colour)
    top = (
        alt.Chart(inline_data(star)).mark_text(text="★", fontSize=30, stroke=BLACK, strokeWidth=1).encode(x, y, colour)
    )
    line = alt.Chart(inline_data(_ends(boundary))).mark_line(color=BLACK, strokeWidth=2.5).encode(x, y)
    words = f"{right:.0%} of the points on their side"
    title = alt.TitleParams(f"{score}, scenario {name}", subtitle=words, anchor="start", frame="group")
    return alt.layer(base, line, top, title=title, width=230, height=230)


def _ends(boundary: Boundary) -> list[dict[str, float]]:
    """Where a boundary enters and leaves the square."""
    (a, b), c = boundary.normal, boundary.threshold
    sides = [(x, (c - a * x) / b) for x in (0.0, EDGE) if b] + [((c - b * y) / a, y) for y in (0.0, EDGE) if a]
    inside = {(round(x, 9), round(y, 9)) for x, y in sides if -1e-9 <= x <= EDGE + 1e-9 and -1e-9 <= y <= EDGE + 1e-9}
    return [{"x": x, "y": y} for x, y in (min(inside), max(inside))]
