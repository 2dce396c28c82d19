"""Episodes for advice: what they are drawn from, and how well their accuracies are known."""

from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Float, Int

from anyshot.errors import BadInput
from anyshot.inspect.case import AdviceCase, HeldOutExamples
from anyshot.measure.plan import Plan
from anyshot.text import count_noun, list_first

SHOTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)  # shots that are measured, as far as the examples reach
LEAST_EXAMPLES = 3  # examples of a class, to be drawn into episodes: two to learn from at two shots, and a query
MOST_QUERIES = 16  # examples of a class that an episode asks, as in the paper's protocol

Accuracies = Float[np.ndarray, "shot episode"]
Shots = Int[np.ndarray, " shot"]


@dataclass(frozen=True)
class EpisodePool:
    """The sizes of a set of images, and of the episodes that are drawn from it.

    Attributes:
        images: Images per class (the median).
        classes: The number of classes.
        way: Classes per episode.
        queries: Queries per class.
        held_out_images: The number of images that are queries only; None where none were held out.
    """

    images: int
    classes: int
    way: int
    queries: int
    held_out_images: int | None = None

    def count_independent(self, accuracies: Accuracies, shots: Shots) -> Float[np.ndarray, " shot"]:
        """Return how many independent episodes would know each mean accuracy as well as the pool does.

        Episodes of one pool overlap, so that their own number proves nothing. Each image is a query once, and the pool
        holds only images / shot disjoint supports: that is what other images of the same classes may change.
        """
        mean, variance = accuracies.mean(1), np.maximum(accuracies.var(1, ddof=1), 1e-9)
        total = self.images * self.classes if self.held_out_images is None else self.held_out_images
        smooth = (mean * total + 1) / (total + 2)  # nobody is sure of 100 %
        of_query = smooth * (1 - smooth)
        of_support = np.maximum(variance - of_query / (self.queries * self.way), 0)
        error = of_query / total + of_support * (shots / self.images) * (self.way / self.classes)
        return np.minimum(variance / error, accuracies.shape[1])

    def half_widths(self, accuracies: Accuracies, shots: Shots) -> Float[np.ndarray, " shot"]:
        """Return half of the 95 % interval of each mean accuracy, for other images of the same classes."""
        variance = np.maximum(accuracies.var(1, ddof=1), 1e-9)
        return 1.96 * np.sqrt(variance / self.count_independent(accuracies, shots))


@dataclass(frozen=True)
class EpisodeSource:
    """What episodes are drawn from.

    Attributes:
        features: The features of all images.
        plan: The episodes.
        shots: The shots that are measured.
        pool: The sizes of the images and of the episodes.
        doubts: What these images are too few to say, in sentences.
    """

    features: torch.Tensor
    plan: Plan
    shots: list[int]
    pool: EpisodePool
    doubts: list[str]

    @property
    def judged_on(self) -> str:
        """Where the queries come from: the examples at hand, or those held out."""
        return "at hand" if self.pool.held_out_images is None else "held out"


def choose_episodes(case: AdviceCase) -> EpisodeSource:
    """Return what episodes are drawn from.

    Queries are examples that were held out, where two classes or more have such. Otherwise they are examples at hand of
    other groups than the support.
    """
    classes = np.flatnonzero(case.counts >= LEAST_EXAMPLES)
    if len(classes) < 2:
        raise BadInput(
            f"advice needs at least 2 classes of {LEAST_EXAMPLES} examples; {len(classes)} have as many: label more "
            "first."
        )
    doubts = []
    if few := [name for name, count in zip(case.class_names, case.counts, strict=True) if count < LEAST_EXAMPLES]:
        doubts.append(
            f"{count_noun(len(few), 'class', 'has')} fewer than {LEAST_EXAMPLES} examples ({list_first(few)}): left "
            "out of the curves."
        )
    if case.held_out is None:
        return _make_source(case, classes, doubts)
    is_tested = np.isin(classes, case.held_out.codes)
    if is_tested.sum() < 2:
        doubts.append("Fewer than two classes have examples held out: what is said is of the examples at hand.")
        return _make_source(case, classes, doubts)
    if untested := [case.class_names[place] for place in classes[~is_tested]]:
        doubts.append(
            f"{count_noun(len(untested), 'class', 'has')} no example held out ({list_first(untested)}): the curves are "
            "of the others, and of these classes only the examples at hand tell."
        )
    return _make_source(case, classes[is_tested], doubts, case.held_out)


def _make_source(
    case: AdviceCase, classes: np.ndarray, doubts: list[str], held_out: HeldOutExamples | None = None
) -> EpisodeSource:
    """Return a source of episodes of some classes, whose queries are held-out examples where these are given."""
    rows = np.isin(case.labels, classes)
    labels = np.searchsorted(classes, case.labels[rows])
    features = case.features if rows.all() else case.features[torch.from_numpy(rows)]  # no copy, where all are drawn
    counts, way = case.counts[classes], len(classes) if case.way == "all" else case.way
    names, group, is_query, query_count = [case.class_names[place] for place in classes], None, None, None
    if held_out is not None:
        query_rows = np.isin(held_out.codes, classes)
        query_labels = np.searchsorted(classes, held_out.codes[query_rows])
        features = torch.cat([features, held_out.features[torch.from_numpy(query_rows)]])
        labels, query_count = np.concatenate([labels, query_labels]), len(query_labels)
        queries = min(MOST_QUERIES, int(np.bincount(query_labels).min()))
        is_query = np.arange(len(labels)) >= len(labels) - query_count
    else:
        queries = max(1, min(MOST_QUERIES, int(counts.min()) // 4))
        if case.groups.evidence:
            group = case.groups.group[rows]
            queries = min(queries, Plan(labels, way, 1, 1, group=group).most_queries)
    plan = Plan(labels, way, 1, queries, case.episodes, case.seed, names, group=group, held_out=is_query)
    shots = [shot for shot in SHOTS if shot <= plan.feasible.min()]
    pool = EpisodePool(int(np.median(counts)), len(classes), way, queries, query_count)
    return EpisodeSource(features, replace(plan, shot=shots[-1]), shots, pool, doubts)
