"""The paper's side experiments: consistency under a redrawn support (Table 1), the ratio of FRN's terms (Sec. 3.3).

Swapped predictors (Fig. 5) are a readout; gains by test shot and offsets by train shot come from the table.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from jaxtyping import Float

from anyshot.data.store import open_store
from anyshot.errors import BadInput
from anyshot.measure.engine import Logits, Vectors, visit_logits
from anyshot.measure.evaluate import EmbeddedSplit, embed_split
from anyshot.measure.plan import Plan, Protocol
from anyshot.measure.recalls import episode_interval
from anyshot.models.gram import gram, pack_symmetric, reconstruct, unpack_symmetric
from anyshot.models.heads import HEADS
from anyshot.models.law import BoundHead, Counts, Head, Parameters, Prototypes, cosine, dot, euclidean
from anyshot.models.model import load_model
from anyshot.models.registry import BUILTIN, Registry
from anyshot.tables import Row, round_row

SCORES = {"euclidean": euclidean, "cosine": cosine}


def consistency(
    vectors: Vectors, bound_heads: Sequence[BoundHead], plan: Plan, shot: int = 1
) -> list[tuple[float, float]]:
    """Return the share of predictions (in percent) that stay when the support is drawn anew for the same queries.

    The two supports share no image; the plan must hold both.

    Returns:
        For each head: the share, and the half-width of its 95 % interval over episodes.
    """
    if plan.shot < 2 * shot:
        raise BadInput(f"two supports of {shot} shots need a plan of {2 * shot} shots, not {plan.shot}.")
    plans = (plan, replace(plan, skip=shot))
    first, second = (_collect_logits(vectors, bound_heads, one, shot).argmax(2) for one in plans)
    same = 100 * (first == second).mean(-1)
    return [(float(row.mean()), episode_interval(row)) for row in same]


def _collect_logits(
    vectors: Vectors, bound_heads: Sequence[BoundHead], plan: Plan, shot: int
) -> Float[np.ndarray, "head episode way query"]:
    """Return the logits of each head at one shot."""
    collected = np.empty((len(bound_heads), plan.episodes, plan.way, plan.way * plan.queries), np.float32)

    def keep(index: int, start: int, logits: Logits) -> None:
        collected[index, start : start + len(logits)] = logits[:, 0].cpu().numpy()

    visit_logits(vectors, bound_heads, plan, [shot], keep)
    return collected


def term_ratio(grams: Vectors, parameters: Parameters, plan: Plan, shot: int = 5) -> dict[str, float]:
    """Measure how nearly FRN's dropped term is proportional to the kept one (Wertheimer et al. 2021).

    FRN's logit is 2<H, Q> - tr Q - <H^2, Q>; the paper drops all but the first term, as the last is nearly
    proportional to it.

    Returns:
        The mean of the ratio 2<H, Q> / <H^2, Q> over all queries and classes; its standard deviation; its deviation
        among the classes of one query (`within_query`), which alone could change a prediction; and the share of queries
        in percent that both forms of the logit classify alike (`agreement`).
    """
    frn = HEADS["frn"]
    pair = [BoundHead(frn, parameters), BoundHead(replace(frn, refine=_twice), parameters)]
    once, twice = _collect_logits(grams, pair, plan, shot).astype(np.float64)
    first, last = 2 * once, twice
    ratio = first / np.maximum(last, 1e-30)
    agreement = 100 * (first.argmax(1) == (first - last).argmax(1)).mean()
    numbers = {"mean": ratio.mean(), "deviation": ratio.std(), "within_query": ratio.std(1).mean()}
    return {name: float(number) for name, number in (numbers | {"agreement": agreement}).items()}


def _twice(prototypes: Prototypes, counts: Counts, parameters: Parameters) -> Prototypes:
    """Return H^2 instead of H."""
    once = unpack_symmetric(reconstruct(prototypes, counts, parameters))
    return pack_symmetric(once @ once)


def embed_each(
    store: Path, models: Sequence[Path], split: str, registry: Registry = BUILTIN
) -> Iterator[EmbeddedSplit]:
    """Embed a split with each of several trained models in their folders, one after the other."""
    images = open_store(store)
    if not models:
        raise BadInput("name at least one trained model, after the store.")
    return (embed_split(images, load_model(path, registry), split) for path in models)


def supports_consistency(head: Head) -> bool:
    """Return whether a head reads vectors by one of the two scores that consistency compares."""
    return head.score in SCORES.values() and head.embed is not gram


def model_consistency(embedded: EmbeddedSplit, episodes: int, seed: int, queries: int = 16) -> list[Row]:
    """Return Table 1 for a trained model: a row for each score."""
    model = embedded.model
    if not supports_consistency(model.head):
        raise BadInput(f"consistency compares Euclidean and cosine scores, which {model.recipe.name} does not have.")
    learned = model.bound_head.parameters
    bound_heads = [BoundHead(replace(model.head, score=score), learned) for score in SCORES.values()]
    plan = Protocol((2,), 5, queries, episodes, seed).plan(embedded.labels, embedded.class_names)
    shares = zip(SCORES, consistency(embedded.vectors(), bound_heads, plan), strict=True)
    about = embedded.about()
    return [
        round_row({**about, "score": score, "episodes": episodes, "consistency": percent, "ci95": interval})
        for score, (percent, interval) in shares
    ]


def model_terms(embedded: EmbeddedSplit, episodes: int, seed: int, queries: int = 16) -> Row:
    """Return the ratio of FRN's terms for a trained model."""
    model = embedded.model
    if model.head.score is not dot or "alpha" not in model.learned or "beta" in model.learned:
        raise BadInput(f"the ratio of terms is FRN's; {model.recipe.name} is a {model.recipe.head}.")
    plan = Protocol((5,), 5, queries, episodes, seed).plan(embedded.labels, embedded.class_names)
    ratio = term_ratio(embedded.vectors(), model.bound_head.parameters, plan)
    return embedded.about() | round_row(ratio, 5)
