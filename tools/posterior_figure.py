"""What a score believes about a class after 1, 4 and 32 images, in one dimension: docs/images/posterior.png.

python tools/posterior_figure.py
"""

from pathlib import Path

import altair as alt
import numpy as np
from scipy.stats import norm

from anyshot.show.figures import BLUE, GREEN, ORANGE, apply_theme, save_chart

SPREAD = 1.0  # of class means, in units of the variance within a class
TRUE = 1.0  # the mean of this class
SHOTS = (1, 4, 32)
BELIEFS = {
    "the class as it is": GREEN,
    "a Euclidean score: the mean of the images, exactly": ORANGE,
    "the posterior: what these images predict of the next one": BLUE,
}


def main() -> None:
    images = TRUE + np.random.default_rng(3).normal(size=max(SHOTS))
    z = np.linspace(-4, 5, 181)
    panels = []
    for shot in SHOTS:
        mean, evidence = images[:shot].mean(), shot * SPREAD
        a, v = evidence / (evidence + 1), 1 + SPREAD / (evidence + 1)
        densities = (norm.pdf(z, TRUE), norm.pdf(z, mean), norm.pdf(z, a * mean, v**0.5))
        values = [
            {"z": float(at), "density": float(density), "belief": belief}
            for belief, line in zip(BELIEFS, densities, strict=True)
            for at, density in zip(z, line, strict=True)
        ]
        colour = alt.Color(
            "belief:N",
            title=None,
            scale=alt.Scale(domain=list(BELIEFS), range=list(BELIEFS.values())),
            legend=alt.Legend(orient="bottom", direction="vertical", labelLimit=500),
        )
        dash = alt.StrokeDash(
            "belief:N", legend=None, scale=alt.Scale(domain=list(BELIEFS), range=[[4, 3], [1, 0], [1, 0]])
        )
        lines = (
            alt.Chart(alt.Data(values=values))
            .mark_line()
            .encode(
                x=alt.X("z:Q", title="an image's vector, one dimension", axis=alt.Axis(grid=False)),
                y=alt.Y("density:Q", title=None, axis=None, scale=alt.Scale(domain=[-0.03, 0.45])),
                color=colour,
                strokeDash=dash,
            )
        )
        seen = [{"z": float(at), "density": -0.02} for at in images[:shot]]
        ticks = alt.Chart(alt.Data(values=seen)).mark_point(filled=True, size=28, opacity=0.7, color="#333")
        title = f"after {shot} image{'s' if shot > 1 else ''}"
        panels.append(
            alt.layer(lines, ticks.encode(x="z:Q", y="density:Q")).properties(width=210, height=170, title=title)
        )
    save_chart(apply_theme(alt.hconcat(*panels)), Path("docs/images/posterior.png"))


if __name__ == "__main__":
    main()
