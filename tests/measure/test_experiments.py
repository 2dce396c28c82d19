"""The side experiments equal what their definitions say."""

import numpy as np
import pytest
import torch

from anyshot import BadInput
from anyshot.measure.experiments import consistency, term_ratio
from anyshot.measure.plan import Plan
from anyshot.models.gram import gram
from anyshot.models.heads import HEADS
from anyshot.models.law import BoundHead

LABELS = np.repeat(np.arange(6), 20)


def test_consistency_counts_predictions_that_stay():
    generator = torch.Generator().manual_seed(0)
    vectors = torch.randn(120, 4, generator=generator) + 2 * torch.eye(6, 4).repeat_interleave(20, 0)
    plan = Plan(LABELS, way=3, shot=2, queries=4, episodes=30)
    draw = plan.draw(0, 30)
    same = []
    for e in range(30):
        query = vectors[draw.query[e].ravel()]
        guesses = [torch.cdist(query, vectors[draw.support[e, :, place]]).argmin(1) for place in (0, 1)]
        same.append((guesses[0] == guesses[1]).double().mean())
    ((percent, interval),) = consistency(vectors, [BoundHead(HEADS["proto"], {})], plan)
    assert percent == pytest.approx(100 * float(torch.stack(same).mean()))
    assert interval == pytest.approx(1.96 * 100 * float(torch.stack(same).std()) / 30**0.5)
    with pytest.raises(BadInput, match="plan of 4 shots"):
        consistency(vectors, [BoundHead(HEADS["proto"], {})], plan, shot=2)


def test_one_position_a_class_that_never_moves_is_wholly_consistent():
    vectors = torch.eye(6).repeat_interleave(20, 0)
    plan = Plan(LABELS, way=5, shot=2, queries=3, episodes=10)
    ((percent, _),) = consistency(vectors, [BoundHead(HEADS["cosine-proto"], {})], plan)
    assert percent == 100


def test_term_ratio_is_two_where_the_support_reconstructs_perfectly():
    """With a vanishing ridge H is a projection, so H^2 = H and the terms 2<H, Q> and <H^2, Q> are as 2 to 1."""
    maps = torch.randn(120, 9, 6, generator=torch.Generator().manual_seed(1))
    plan = Plan(LABELS, way=4, shot=5, queries=3, episodes=12)
    exact = term_ratio(gram(maps, {}), {"alpha": torch.tensor(-14.0)}, plan)
    assert exact["mean"] == pytest.approx(2, abs=1e-3)
    assert exact["deviation"] < 1e-3
    ridged = term_ratio(gram(maps, {}), {"alpha": torch.tensor(-1.0)}, plan)
    assert ridged["mean"] > 2.1
    assert ridged["within_query"] <= ridged["deviation"]
    assert ridged["agreement"] > 80
