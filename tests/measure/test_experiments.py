"""The side experiments equal what their definitions say."""

import numpy as np
import pytest
import torch
from helpers.own_study import recipe, store

from anyshot import BadInput
from anyshot.measure import engine, evaluate
from anyshot.measure.experiments import consistency, embed_split, model_terms, term_ratio
from anyshot.measure.plan import Plan
from anyshot.models.gram import gram
from anyshot.models.heads import HEADS
from anyshot.models.law import BoundHead
from anyshot.models.model import Model

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


def test_grams_of_a_wide_network_are_made_as_needed(tmp_path, monkeypatch):
    """Those of the 12,000 test images of mini-ImageNet would take 10 GB of ResNet-12, of tiered-ImageNet 170 GB."""
    embedded = embed_split(store(tmp_path), Model(recipe("frn"), 1).eval())
    expected = model_terms(embedded, 10, 0, 4)
    monkeypatch.setattr(engine, "BANK_BYTES", 0)
    assert isinstance(embedded.vectors(), engine.LazyVectors)
    ratios = model_terms(embedded, 10, 0, 4)
    for name in ("mean", "deviation", "within_query", "agreement"):
        assert ratios[name] == pytest.approx(expected[name], rel=1e-3)


def test_a_readout_is_fitted_without_the_features_of_all_training_images_at_once(tmp_path, monkeypatch):
    data, model = store(tmp_path), Model(recipe("proto"), 1).eval()
    expected = evaluate.embed_split(data, model).fit_readout("pca4")
    lengths = []
    vectors = Model.vectors
    monkeypatch.setattr(Model, "vectors", lambda self, maps: lengths.append(len(maps)) or vectors(self, maps))
    monkeypatch.setattr(evaluate, "PIECE", 64)
    fitted = evaluate.embed_split(data, model).fit_readout("pca4")
    assert lengths == [64, 64, 64, 64]
    assert all(torch.equal(fitted[name], expected[name]) for name in expected)
