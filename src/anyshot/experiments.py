"""The paper's side experiments, on any vectors: consistency under a redrawn support (Table 1), the ratio of FRN's terms
(Sec. 3.3). Swapped predictors (Fig. 5) are a readout; gains by test shot and offsets by train shot come from the table.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from anyshot.data.store import open_store
from anyshot.engine import Logits, Reading, Vectors, each_logits
from anyshot.episodes import Plan
from anyshot.errors import BadInput
from anyshot.heads import HEADS, Parameters, Prototypes, cosine, dot, euclidean, pack, reconstruct, unpack
from anyshot.model import Model, load_model
from anyshot.table import Row

SCORES = {"euclidean": euclidean, "cosine": cosine}


def consistency(vectors: Vectors, readings: Sequence[Reading], plan: Plan, shot: int = 1) -> list[tuple[float, float]]:
    """For each reading, the share of predictions (in percent) that stay when the support is drawn anew for the same
    queries, and its 95 % half-width over episodes. The two supports share no image; the plan must hold both."""
    if plan.shot < 2 * shot:
        raise BadInput(f"two supports of {shot} shots need a plan of {2 * shot} shots, not {plan.shot}.")
    guesses = np.empty((2, len(readings), plan.episodes, plan.way * plan.queries), np.int16)
    for number, other in enumerate((plan, replace(plan, skip=shot))):

        def keep(index: int, start: int, logits: Logits, number: int = number) -> None:
            guesses[number, index, start : start + len(logits)] = logits[:, 0].argmax(1)

        each_logits(vectors, readings, other, [shot], keep)
    kept = 100 * (guesses[0] == guesses[1]).mean(-1)
    return [(float(row.mean()), 1.96 * float(row.std(ddof=1)) / len(row) ** 0.5) for row in kept]


@dataclass(frozen=True)
class TermRatio:
    """FRN's logit is 2<H, Q> - tr Q - <H^2, Q>; the paper drops all but the first term because the last is nearly
    proportional to it. `mean` and `deviation` are of the ratio 2<H, Q> / <H^2, Q> over all queries and classes;
    `within_query` is its deviation among the classes of one query, which alone could change a prediction; `agreement`
    is the share of queries (in percent) that both forms of the logit classify alike."""

    mean: float
    deviation: float
    within_query: float
    agreement: float


def term_ratio(grams: Vectors, parameters: Parameters, plan: Plan, shot: int = 5) -> TermRatio:
    """How nearly FRN's dropped term is proportional to the kept one, over a plan's episodes."""
    frn = HEADS["frn"]
    pair = [Reading(frn, parameters), Reading(replace(frn, refine=_twice), parameters)]
    terms = np.empty((2, plan.episodes, plan.way, plan.way * plan.queries), np.float32)

    def keep(index: int, start: int, logits: Logits) -> None:
        terms[index, start : start + len(logits)] = logits[:, 0]

    each_logits(grams, pair, plan, [shot], keep)
    first, last = 2 * terms[0].astype(np.float64), terms[1].astype(np.float64)
    ratio = first / np.maximum(last, 1e-30)
    same = 100 * (first.argmax(1) == (first - last).argmax(1)).mean()
    return TermRatio(float(ratio.mean()), float(ratio.std()), float(ratio.std(1).mean()), float(same))


def _twice(prototypes: Prototypes, parameters: Parameters, train: bool) -> Prototypes:
    """H^2 instead of H."""
    once = unpack(reconstruct(prototypes, parameters, train))
    return pack(once @ once)


def run_consistency(
    store: Path, models: Sequence[Path], split: str, episodes: int, seed: int, queries: int = 16
) -> list[Row]:
    """Table 1 for trained models: each under both scores."""
    rows = []
    for path in models:
        model, vectors, labels, names = _embedded(store, path, split)
        plan = Plan(labels, shot=2, queries=queries, episodes=episodes, seed=seed, class_names=names)
        if not any(model.head.score is score for score in SCORES.values()):
            raise BadInput(f"consistency compares Euclidean and cosine scores; {path} holds {model.recipe.head}.")
        readings = [Reading(replace(model.head, score=score), _learned(model)) for score in SCORES.values()]
        for score, (percent, interval) in zip(SCORES, consistency(vectors, readings, plan), strict=True):
            rows.append(
                {
                    "data": store.name,
                    "backbone": model.recipe.backbone,
                    "head": model.recipe.head,
                    "train_shot": model.recipe.train_shot,
                    "score": score,
                    "episodes": episodes,
                    "consistency": round(percent, 4),
                    "ci95": round(interval, 4),
                }
            )
    return rows


def run_term_ratio(
    store: Path, models: Sequence[Path], split: str, episodes: int, seed: int, queries: int = 16
) -> list[Row]:
    """The ratio of FRN's terms for trained models."""
    rows = []
    for path in models:
        model, grams, labels, names = _embedded(store, path, split)
        if model.head.score is not dot or "alpha" not in model.learned or "beta" in model.learned:
            raise BadInput(f"the ratio of terms is FRN's; {path} holds {model.recipe.head}.")
        plan = Plan(labels, shot=5, queries=queries, episodes=episodes, seed=seed, class_names=names)
        found = term_ratio(grams, _learned(model), plan)
        about = {"data": store.name, "backbone": model.recipe.backbone, "train_shot": model.recipe.train_shot}
        rows.append(about | {name: round(value, 5) for name, value in vars(found).items()})
    return rows


def _embedded(store: Path, path: Path, split: str) -> tuple[Model, Vectors, Int[np.ndarray, " image"], tuple[str, ...]]:
    part = open_store(store).part(split)
    model = load_model(path)
    with torch.inference_mode():
        vectors: Float[Tensor, "image d"] = model.embed(torch.from_numpy(model.features(part.items)))
    return model, vectors, part.labels, part.class_names


def _learned(model: Model) -> Mapping[str, Tensor]:
    return {name: value.detach() for name, value in model.learned.items()}
