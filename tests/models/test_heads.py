"""Laws that hold for every head, and what each head is equal to."""

import numpy as np
import pytest
import torch
from helpers import laws
from sklearn.linear_model import Ridge
from sklearn.neighbors import NearestCentroid

import anyshot
from anyshot.models import heads as heads_module
from anyshot.models.gram import (
    class_overlap,
    gram,
    pack_symmetric,
    reconstruct,
    reconstruct_rows,
    ridge_hat_matrix,
    unpack_symmetric,
)
from anyshot.models.heads import HEADS
from anyshot.models.law import Head, contrastive_logits, cosine, euclidean, flatten, fold_logits
from anyshot.recipe import Recipe

every_head = pytest.mark.parametrize("name", laws.ALL_HEADS)
feat_heads = pytest.mark.parametrize("name", ["feat", "cosine-feat"])
WAY, SHOT, POSITIONS, CHANNELS = 4, 5, 6, 7


@pytest.fixture
def maps() -> torch.Tensor:
    generator = torch.Generator().manual_seed(3)
    return torch.rand(WAY, SHOT, POSITIONS, CHANNELS, generator=generator, dtype=torch.float64)


@pytest.fixture
def no_dropout(monkeypatch):
    """Gradients without chance: a head drops nothing even while its parameters are learned."""
    monkeypatch.setattr(heads_module, "_dropout", lambda x, share, parameters: x)


def make(name: str, maps: torch.Tensor):
    torch.manual_seed(0)
    head = HEADS[name]
    vectors = laws.embed(head, maps)
    return head, vectors, laws.parameters(head, maps)


def episode(head, learned, vectors):
    """Logits of the last image of each class, given the others as support."""
    supports = [own[:-1] for own in vectors]
    return torch.stack([laws.logits(head, learned, own[-1], supports) for own in vectors])


@every_head
def test_fold_is_a_leave_one_out_double_loop(name, maps):
    head, vectors, learned = make(name, maps)
    expected = []
    for label in range(WAY):
        for image in range(SHOT):
            supports = [vectors[c][[i for i in range(SHOT) if (c, i) != (label, image)]] for c in range(WAY)]
            expected.append(laws.logits(head, learned, vectors[label, image], supports))
    torch.testing.assert_close(fold_logits(head, learned, vectors), torch.stack(expected))


@every_head
def test_class_order_is_carried_along(name, maps):
    head, vectors, learned = make(name, maps)
    order = torch.tensor([2, 0, 3, 1])
    torch.testing.assert_close(episode(head, learned, vectors[order]), episode(head, learned, vectors)[order][:, order])


@every_head
def test_support_order_is_irrelevant_and_repeating_it_changes_nothing(name, maps):
    head, vectors, learned = make(name, maps)
    support, query = vectors[:, :-1], vectors[0, -1]
    expected = laws.logits(head, learned, query, list(support))
    torch.testing.assert_close(laws.logits(head, learned, query, list(support.flip(1))), expected)
    torch.testing.assert_close(laws.logits(head, learned, query, list(support.repeat(1, 3, 1))), expected)


@every_head
def test_feature_scale_is_ignored_where_it_should_be(name, maps):
    head, vectors, learned = make(name, maps)
    scaled = laws.embed(head, 10 * maps)
    before, after = episode(head, learned, vectors), episode(head, learned, scaled)
    if name == "frn":  # the reconstruction is equivariant: logits are squared features, so 100 times as large
        torch.testing.assert_close(after, 100 * before)
    elif "cosine" in name and "feat" not in name:
        torch.testing.assert_close(after, before)
    elif name in ("proto", "frn-old"):
        assert not torch.allclose(after, before)


@every_head
def test_every_parameter_gets_a_gradient(name, maps, no_dropout):
    head, _, learned = make(name, maps)
    learned = {key: value.requires_grad_() for key, value in learned.items()}
    features = maps.clone().requires_grad_()
    fold_logits(head, learned, laws.embed(head, features)).log_softmax(1)[:, 0].sum().backward()
    assert features.grad is not None
    assert features.grad.abs().sum(-1).ne(0).any(-1).all(), "every image must get a gradient"
    for key, value in learned.items():
        assert value.grad is not None, key
        assert torch.isfinite(value.grad).all(), key
        assert value.grad.abs().max() > 0, key


@every_head
def test_gradients_are_those_of_finite_differences(name, maps, no_dropout):
    head, vectors, learned = make(name, maps[:3, :3])
    names, values = zip(*learned.items(), strict=True)

    def logits(vectors, *values):
        return fold_logits(head, dict(zip(names, values, strict=True)), vectors)

    inputs = [value.clone().requires_grad_() for value in (vectors, *values)]
    assert torch.autograd.gradcheck(logits, inputs, fast_mode=True)


@every_head
def test_blank_features_give_finite_logits_and_gradients(name, maps):
    head, _, learned = make(name, maps)
    blank = torch.zeros_like(maps).requires_grad_()
    out = fold_logits(head, learned, laws.embed(head, blank))
    out.sum().backward()
    assert torch.isfinite(out).all()
    assert torch.isfinite(blank.grad).all()


@every_head
def test_heads_equal_what_they_are_named_after(name, maps):
    """proto is scikit-learn's NearestCentroid; cosine-frn is cosine-proto on whole Grams; frn and frn-old are the
    reconstruction errors of the paper's appendix."""
    head, vectors, learned = make(name, maps)
    logits = episode(head, learned, vectors) / learned["scale"]
    support, query = maps[:, :-1], maps[:, -1]
    if name == "proto":
        x, y = support.flatten(0, 1).flatten(1).numpy(), np.repeat(np.arange(WAY), SHOT - 1)
        centroids = NearestCentroid().fit(x, y).centroids_
        squared = ((query.flatten(1).numpy()[:, None] - centroids) ** 2).mean(-1)
        np.testing.assert_allclose(logits.numpy(), -squared)
    elif name == "cosine-frn":
        grams = (maps.mT @ maps).flatten(-2)
        proto = grams[:, :-1].mean(1)
        expected = torch.nn.functional.cosine_similarity(grams[:, -1][:, None], proto[None], dim=-1)
        torch.testing.assert_close(logits, expected)
    elif "frn" in name:
        for c in range(WAY):
            pool = support[c].flatten(0, 1)
            scatter = pool.mT @ pool
            for q in range(WAY):
                x = query[q]
                if name == "frn":
                    ridge = learned["alpha"].exp() * scatter.norm()
                else:
                    ridge = learned["alpha"].exp() * len(pool) / CHANNELS + 1e-6 * len(pool)
                weights = Ridge(alpha=float(ridge), fit_intercept=False).fit(pool.mT.numpy(), x.mT.numpy()).coef_
                rebuilt = torch.from_numpy(weights) @ pool
                if name == "frn-old":
                    error = (learned["beta"].exp() * rebuilt - x).square().sum(1).mean()
                    torch.testing.assert_close(logits[q, c], -error)
                else:  # |rebuilt - x|^2 = tr Q - 2 <rebuilt, x> + |rebuilt|^2, and the head keeps the middle term
                    torch.testing.assert_close(logits[q, c], (rebuilt * x).sum() / POSITIONS)
                    reconstruct = unpack_symmetric(ridge_hat_matrix(gram(pool, {}), ridge / len(pool)))
                    torch.testing.assert_close(x @ reconstruct, rebuilt)


@pytest.mark.parametrize("channel", [24, 64])
@pytest.mark.parametrize("many", [2, 200])
def test_reconstruction_is_as_exact_as_in_training_at_any_ridge(channel, many):
    """Few features make Grams of low rank, and a small ridge makes them all but singular."""
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(5, many, channel, generator=generator) * torch.linspace(2, 0.1, channel)
    grams = gram(rows, {})
    for share in (1.0, 0.1, 0.05, 0.04, 1e-2, 1e-3, 1e-4, 1e-5):
        ridge = share * grams.norm(dim=-1)
        exact = ridge_hat_matrix(gram(rows.double(), {}), ridge.double())
        error = (ridge_hat_matrix(grams, ridge) - exact).abs().max()
        of_training = (ridge_hat_matrix(grams.clone().requires_grad_(), ridge) - exact).abs().max()
        assert error <= 3 * of_training + 1e-6, share
    below_rounding = 1e-9 * grams.norm(dim=-1)
    rebuilding = unpack_symmetric(ridge_hat_matrix(grams, below_rounding))
    assert torch.linalg.eigvalsh(rebuilding.double()).min() > -1e-2  # nearly a projection
    assert torch.linalg.eigvalsh(rebuilding.double()).max() < 1.01


def test_the_original_reconstruction_of_wide_features():
    """Its ridge does not grow with the features: of a few wide ones, Grams are singular to 32 bits."""
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(3), 6)
    centres = rng.gamma(0.5, 2, (3, 384))
    features = (centres[labels] + rng.gamma(0.5, 1, (18, 384))).astype(np.float32)
    table = anyshot.evaluate(features, labels, heads=["frn-old"], shots=(1, 2), way=3, queries=4, episodes=2)
    assert [row["accuracy"] for row in table] == [100, 100]


@feat_heads
def test_layer_norm_makes_refined_prototypes_unit_vectors_about_zero(name, maps):
    head, vectors, _ = make(name, maps)
    recipe = Recipe(data="none", head=name, train_shot=4, way=4, layer_norm=True)
    learned = {key: value.double() for key, value in head.parameters(maps[:1, 0], recipe).items()}
    refined = head.refine(vectors.mean(1), torch.full((WAY,), SHOT), learned)
    torch.testing.assert_close(refined.mean(-1), torch.zeros(WAY, dtype=torch.float64), atol=1e-6, rtol=0)
    torch.testing.assert_close(refined.square().mean(-1), torch.ones(WAY, dtype=torch.float64), atol=1e-3, rtol=0)


@feat_heads
def test_contrastive_term_prefers_the_own_class(name, maps):
    head, vectors, learned = make(name, maps + 3 * torch.eye(WAY, CHANNELS, dtype=torch.float64)[:, None, None])
    out = contrastive_logits(head, {**learned, "attend_out": learned["attend_out"] * 0}, vectors)
    assert (out.argmax(1) == torch.arange(WAY).repeat_interleave(SHOT)).all()


def test_overlap_is_the_sum_over_pairs_of_classes_of_their_features_products(maps):
    """FRN's auxiliary term, as its authors write it: all features divided by the norm of all of them."""
    features = (maps / maps.norm()).flatten(1, 2)
    pairs = [(features[i] @ features[j].mT).square().sum() for i in range(WAY) for j in range(i)]
    torch.testing.assert_close(class_overlap(gram(maps, {}).mean(1)), sum(pairs))
    apart = torch.eye(WAY, CHANNELS, dtype=torch.float64)[:, None, None].expand(WAY, SHOT, 2, CHANNELS)
    assert class_overlap(gram(apart, {}).mean(1)) == 0


@every_head
def test_dropout_acts_in_training_only(name, maps):
    head, vectors, learned = make(name, maps)
    quiet = [fold_logits(head, learned, vectors) for _ in range(2)]
    torch.testing.assert_close(*quiet, rtol=0, atol=0)
    being_learned = {key: value.requires_grad_() for key, value in learned.items()}
    noisy = [fold_logits(head, being_learned, vectors) for _ in range(2)]
    assert torch.allclose(*noisy) != head.couples
    with torch.no_grad():
        torch.testing.assert_close(fold_logits(head, being_learned, vectors), quiet[0])


def test_frn_is_the_same_from_features_and_from_their_gram(maps):
    learned = {"alpha": torch.tensor(-2.0, dtype=torch.float64)}
    pools = maps[:, :2].flatten(1, 2)
    torch.testing.assert_close(
        reconstruct_rows(pools, learned), reconstruct(gram(pools, {}), torch.full((WAY,), 2), learned)
    )


def test_pack_keeps_inner_products_and_is_undone(maps):
    a, b = maps[0, 0].mT @ maps[0, 0], maps[0, 1].mT @ maps[0, 1]
    torch.testing.assert_close(pack_symmetric(a) @ pack_symmetric(b), (a * b).sum())
    torch.testing.assert_close(unpack_symmetric(pack_symmetric(a)), a)


def test_euclidean_logits_lose_no_digits_far_from_zero(maps):
    query, prototypes = maps[0, :, 0], maps[1, :, 0]
    far = [(x + 1000).float() for x in (query, prototypes)]
    expected = -(far[0].double()[:, None] - far[1].double()).square().mean(-1)
    torch.testing.assert_close(euclidean(*far).double(), expected, rtol=1e-4, atol=1e-5)
    assert cosine(query, prototypes).abs().max() <= 1 + 1e-12


def test_no_head_can_read_the_answer_off_the_counts(maps):
    """In a fold the own class has an image less than the others; every class is told the same count, by either path."""
    vectors = maps.flatten(2)

    def counted(prototypes, counts, parameters):
        return counts[..., None].expand_as(prototypes).to(prototypes.dtype)

    def only_the_count(query, prototypes):
        return prototypes[..., 0].unsqueeze(-2).expand(*query.shape[:-1], prototypes.shape[-2])

    for couples in (False, True):
        head = Head(flatten, only_the_count, counted, couples=couples)
        logits = fold_logits(head, {"scale": torch.tensor(1.0)}, vectors)
        assert logits.unique().tolist() == [SHOT - 1]


def test_packing_is_exact_in_double_precision(maps):
    a = maps[0, 0].mT @ maps[0, 0]
    np.testing.assert_allclose(pack_symmetric(a) @ pack_symmetric(a), (a * a).sum(), rtol=1e-14)
