"""Advice from a user's own labelled features: which head, what more labels would bring, where, and what looks wrong.

Episodes are drawn from the labelled images themselves, with nested shots, the same for every head. What the images are
too few for is said in words instead of numbers.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import ArrayLike

from anyshot.data.doctor import spread
from anyshot.deploy.shot_curve import LEAST_SHOTS, Forecast, Pool, forecast
from anyshot.deploy.suspects import Found, confusions, look
from anyshot.errors import BadInput
from anyshot.measure.engine import vectors_of
from anyshot.measure.evaluation import check_features, check_labels, evaluate, untrained
from anyshot.measure.recalls import Recalls
from anyshot.models.heads import EMBEDS
from anyshot.models.law import Parameters, Reading
from anyshot.models.registry import PACKAGE, Registry

HEADS_TO_TRY = ("posterior", "cosine-proto", "proto")
HEADS_OF_MAPS = ("cosine-frn", "frn")
STEPS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
MORE = (1, 2, 5, 10)
LEAST_IMAGES = 3  # of a class, to be drawn into episodes
FEW_CLASS = 20  # images a class below which the curve is rough
FLOATS = 400_000_000  # of a bank of vectors: beyond, a head is left out
OPERATIONS = 2e11  # of heads that are fitted to every support anew: about a minute; episodes are as many as fit
LEAST_EPISODES = 20


@dataclass(frozen=True)
class Advice:
    """All that was found; `anyshot.deploy.advice_page` puts it into words."""

    class_names: list[str]
    counts: list[int]
    way: int
    queries: int
    episodes: int
    shots: list[int]
    curves: dict[str, list[dict[str, Any]]]
    """By head: shot, accuracy and its 95 % interval (low, high), from 0 to 1."""
    best: str
    """The head of the highest mean accuracy over the shots that are expected."""
    robust: str
    """The head whose worst shortfall from the best at any of these shots is smallest."""
    expected_shots: list[int]
    lead: dict[str, tuple[float, float]]
    """How far the best head is ahead of the others, on the same episodes, with half of a 95 % interval."""
    forecasts: dict[str, Forecast]
    classes: list[dict[str, Any]]
    """By class: examples, recall when left out, what the last doubling of its shots brought."""
    confused: list[dict[str, Any]]
    mislabelled: list[dict[str, Any]]
    duplicates: list[tuple[int, int]]
    same_class: list[dict[str, Any]]
    doubts: list[str] = field(default_factory=list)
    """What the data are too few to say, in sentences."""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def advise(
    features: ArrayLike | torch.Tensor,
    labels: ArrayLike,
    heads: Sequence[str] = (),
    shots: Sequence[int] = (),
    way: int | Literal["all"] = "all",
    episodes: int = 400,
    seed: int = 0,
    *,
    parameters: Mapping[str, Parameters] | None = None,
    embed: Mapping[str, str] | None = None,
    registry: Registry = PACKAGE,
    progress: Callable[[float], None] = lambda share: None,
) -> Advice:
    """Which head to use, what more labelled images would bring, and what looks wrong, from labelled features.

    Args:
        features: Vectors "image d", or maps "image position channel".
        labels: The class of each image.
        heads: Heads to compare; those that need no training by default.
        shots: Shots expected in use, for which the head is chosen; all that can be measured by default.
        way: Classes to tell apart at once; 'all' for every class.
        episodes: Draws of support and queries.
        seed: Seed of the draws.
        parameters: What trained heads have learned, by head.
        embed: How features become a vector (flatten, mean, max, gram), by head; the head's own way by default.
        registry: What heads are looked up in.
        progress: Called with shares of the whole that add up to 1.
    """
    maps = check_features(features)
    names, codes = check_labels(labels, len(maps))
    counts = np.bincount(codes)
    tried = list(heads) or heads_for(maps)
    for name in tried:
        registry.head(name)
    doubts: list[str] = []
    inside = np.flatnonzero(counts >= LEAST_IMAGES)
    if len(inside) < 2:
        raise BadInput(
            f"advice needs at least 2 classes of {LEAST_IMAGES} examples; {len(inside)} have as many: label more first."
        )
    if len(inside) < len(counts):
        some = ", ".join(names[place] for place in np.flatnonzero(counts < LEAST_IMAGES)[:5])
        doubts.append(
            f"{len(counts) - len(inside)} classes have fewer than {LEAST_IMAGES} examples ({some}): left out."
        )
    here = np.isin(codes, inside)
    used, used_names = np.searchsorted(inside, codes[here]), [names[place] for place in inside]
    smallest = int(counts[inside].min())
    queries = max(1, smallest // 4)
    measured = [step for step in STEPS if step <= smallest - queries]
    together = {name: (parameters or {})[name] for name in tried if name in (parameters or {})}
    ways = len(inside) if way == "all" else way
    used_maps = maps[torch.from_numpy(here)]
    if any(registry.head(name).adapts for name in tried):
        episodes = _affordable(episodes, used_maps[0].numel(), ways, measured)
    evaluation = evaluate(
        used_maps, used, tried, measured, ways, queries, episodes, seed,
        parameters=together, embed=embed, registry=registry, progress=progress,
    )  # fmt: skip
    accuracies = {name: evaluation.accuracies(name) / 100 for name in tried}
    expected = _expected(shots, measured, doubts)
    places = [measured.index(shot) for shot in expected]
    best, robust = _choose_heads(accuracies, places)
    steps, pool = np.array(measured), Pool(int(np.median(counts[inside])), len(inside), ways, queries)
    widths = {name: pool.half_widths(a, steps) for name, a in accuracies.items()}
    forecasts = {n: f for n, a in accuracies.items() if (f := forecast(steps, a, pool.images, MORE, pool, seed))}
    top = accuracies[best].mean(1) - widths[best]
    if top.max() <= 1 / ways:
        doubts.append(
            f"No accuracy is surely above chance ({1 / ways:.1%}): these features do not tell these classes apart, and "
            "what is said above is noise. Try other features before labelling more."
        )
    _doubt(doubts, used_names, counts[inside], measured, widths[best], forecasts.get(best))
    seen = _look(used_maps, used, best, together.get(best), (embed or {}).get(best), registry)
    original = np.flatnonzero(here)
    return Advice(
        class_names=used_names,
        counts=counts[inside].tolist(),
        way=ways,
        queries=queries,
        episodes=episodes,
        shots=measured,
        curves={name: _rows(measured, a.mean(1), widths[name]) for name, a in accuracies.items()},
        best=best,
        robust=robust,
        expected_shots=expected,
        lead=_lead(accuracies, best, places, steps, pool),
        forecasts=forecasts,
        classes=_by_class(evaluation.of(best), seen, used, used_names),
        confused=[
            {**one, "class": used_names[one["class"]], "taken_for": used_names[one["taken_for"]]}
            for one in confusions(seen.predicted, used)
        ],
        mislabelled=[
            {"image": int(original[i]), "label": used_names[used[i]], "looks_like": used_names[c], "probability": p}
            for i, c, p in seen.mislabelled
        ],
        duplicates=[(int(original[i]), int(original[j])) for i, j in seen.duplicates],
        same_class=[{"classes": [used_names[i], used_names[j]], "told_apart": p} for i, j, p in seen.same_class],
        doubts=doubts,
    )


def _affordable(episodes: int, d: int, way: int, shots: Sequence[int]) -> int:
    """Episodes that can be had of a head that is fitted to each support: factorisations of the smaller of its sides."""
    sides = [sorted((way * shot, d)) for shot in shots]
    each = sum(3 * small**2 * large + small**3 for small, large in sides)
    return min(episodes, max(LEAST_EPISODES, int(OPERATIONS / each)))


def heads_for(maps: torch.Tensor | np.ndarray) -> list[str]:
    """Heads that need no training; those of maps where there are several positions, and room for their Grams."""
    room = len(maps) * maps.shape[-1] * (maps.shape[-1] + 1) // 2 <= FLOATS
    return [*HEADS_TO_TRY, *(HEADS_OF_MAPS if maps.ndim == 3 and maps.shape[1] > 1 and room else ())]


def _look(
    maps: torch.Tensor,
    labels: np.ndarray,
    name: str,
    learned: Parameters | None,
    how: str | None,
    registry: Registry,
) -> Found:
    """Leave-one-out, in double precision, with the head that is advised."""
    head, parameters = registry.head(name), learned or untrained(name, maps, registry)
    vectors = torch.cat(list(vectors_of(maps, EMBEDS[how] if how else head.embed, parameters).split(4096))).double()
    return look(vectors.numpy(), labels, Reading(head, {key: v.double() for key, v in parameters.items()}))


def _expected(shots: Sequence[int], measured: list[int], doubts: list[str]) -> list[int]:
    """The measured shots nearest to those that are expected."""
    if not shots:
        return measured
    if max(shots) > measured[-1]:
        doubts.append(
            f"You expect up to {max(shots)} shots; the examples allow to measure {measured[-1]}: the choice of a head "
            "is made at the shots that can be measured."
        )
    return sorted({min(measured, key=lambda step: (abs(step - shot), step)) for shot in shots})


def _choose_heads(accuracies: Mapping[str, np.ndarray], places: list[int]) -> tuple[str, str]:
    means = {name: a.mean(1)[places] for name, a in accuracies.items()}
    top = np.max(list(means.values()), 0)
    best = max(means, key=lambda name: float(means[name].mean()))
    return best, min(means, key=lambda name: float((top - means[name]).max()))


def _lead(
    accuracies: Mapping[str, np.ndarray], best: str, places: list[int], steps: np.ndarray, pool: Pool
) -> dict[str, tuple[float, float]]:
    """Paired on the same episodes: the best head's mean lead over each other one, and half of its interval."""
    many = pool.independent(accuracies[best], steps)[places].min()
    leads = {n: (accuracies[best] - a)[places].mean(0) for n, a in accuracies.items() if n != best}
    return {n: (float(lead.mean()), float(1.96 * lead.std(ddof=1) / np.sqrt(many))) for n, lead in leads.items()}


def _rows(shots: list[int], means: np.ndarray, widths: np.ndarray) -> list[dict[str, Any]]:
    return [
        {"shot": shot, "accuracy": float(mean), "low": float(max(mean - w, 0)), "high": float(min(mean + w, 1))}
        for shot, mean, w in zip(shots, means, widths, strict=True)
    ]


def _by_class(recalls: Recalls, seen: Found, labels: np.ndarray, names: list[str]) -> list[dict[str, Any]]:
    """Each class, those first that gained most when their shots doubled last and still fail."""
    recall, classes = recalls.recall, recalls.classes
    shots = [int(shot) for shot in recalls.shots]
    half = max((i for i, shot in enumerate(shots) if shot <= shots[-1] / 2), default=0)
    rows = []
    for place, name in enumerate(names):
        mine = classes == place
        known = (labels == place) & (seen.predicted >= 0)
        gained = float(recall[-1][mine].mean() - recall[half][mine].mean()) if mine.any() else float("nan")
        rows.append(
            {
                "class": name,
                "examples": int((labels == place).sum()),
                "recall": float((seen.predicted[known] == place).mean()) if known.any() else None,
                "last_doubling": gained,
            }
        )
    return sorted(rows, key=lambda row: -row["last_doubling"])


def _doubt(
    doubts: list[str],
    names: list[str],
    counts: np.ndarray,
    measured: list[int],
    widths: np.ndarray,
    told: Forecast | None,
) -> None:
    """What cannot be said, or only roughly."""
    smallest = int(counts.argmin())
    if told is None:
        doubts.append(
            f"Class {names[smallest]} has {counts[smallest]} examples, so only shots {measured[0]} to {measured[-1]} "
            f"can be measured: too few to say what more examples would bring ({LEAST_SHOTS} different shots needed)."
        )
    elif not told.held_out:
        doubts.append("There are too few shots to hold any out: the expected gains are not checked.")
    elif told.error > max(0.02, max(told.gain)):
        doubts.append(
            f"At held-out shots the extrapolation was off by {told.error:.1%}, more than the gains it expects: "
            "take them as rough."
        )
    if counts.min() < FEW_CLASS and widths.max() > 0.05:
        doubts.append(
            f"With {spread(int(counts.min()), int(counts.max()))} examples a class the accuracies are known to about "
            f"{widths.max():.0%} only; heads closer than that cannot be told apart."
        )
