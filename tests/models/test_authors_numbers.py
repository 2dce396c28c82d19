"""Agreement with the authors' own programs: numbers that the public code of FRN, FEAT and batch folding gave on random
inputs (their README says how). They are no part of the project: without them these tests are skipped."""

import json
from math import log, sqrt
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyshot.models import heads as heads_module
from anyshot.models.backbones import Conv4, ResNet12
from anyshot.models.gram import class_overlap, gram
from anyshot.models.heads import HEADS
from anyshot.models.law import contrastive_logits, flatten, fold_logits, mean_pool
from anyshot.train.batches import training_batches

GOLDEN = Path(__file__).parents[3] / "shared" / "golden"
pytestmark = pytest.mark.skipif(
    not GOLDEN.is_dir(), reason="the numbers of the authors' programs are not at ../shared/golden"
)
SETS = ("a", "b", "c")


def numbers(name: str) -> dict[str, Tensor]:
    """The arrays of a file, as 64-bit numbers."""
    with np.load(GOLDEN / f"{name}.npz", allow_pickle=False) as file:
        return {key: torch.from_numpy(np.asarray(file[key], np.float64)) for key in file.files}


def close(ours: Tensor, expected: Tensor, within: float) -> None:
    torch.testing.assert_close(ours.detach(), expected, rtol=within, atol=within)


def logits(head: str, embed, support: Tensor, query: Tensor, parameters: dict[str, Tensor], reordered=False) -> Tensor:
    """By the law: queries in order of their class, or, reordered, the first of every class, then the second."""
    head_, vectors = HEADS[head], embed(query, parameters)
    prototypes = embed(support, parameters).mean(1)
    refined = head_.refined(prototypes, torch.full((len(support),), support.shape[1]), parameters)
    vectors = vectors.transpose(0, 1) if reordered else vectors
    return parameters["scale"] * head_.score(vectors.flatten(0, 1), refined)


def targets(way: int, query: int) -> Tensor:
    return torch.arange(way).repeat_interleave(query)


# ------------------------------------------------------------------------------------------------------------------ FRN


@pytest.mark.parametrize("row", range(3))
@pytest.mark.parametrize("key", SETS)
def test_frn_as_it_was(key, row):
    """Logits, loss and gradients. The authors add 1e-6 once a pool, we once a feature: alpha makes up for that."""
    of = numbers("frn")
    way, shot, query, position, channel = (int(n) for n in of[f"{key}_shape"])
    alpha, beta, scale = of[f"{key}_parameters"][row]
    many = shot * position
    shift = channel * (1e-6 / many - 1e-6)
    learned = {
        "alpha": (alpha.exp() + shift).log().requires_grad_(),
        "beta": beta.clone().requires_grad_(),
        "scale": scale.clone().requires_grad_(),
    }
    features = [of[f"{key}_{part}"].clone().requires_grad_() for part in ("support", "query")]
    ours = logits("frn-old", gram, *(part / of[f"{key}_divisor"] for part in features), learned)
    # With few features and a small ridge the authors' two forms differ by 7e-10 themselves.
    close(ours, of[f"{key}_logits"][row], 2e-9)
    close(ours.log_softmax(1), of[f"{key}_log_probabilities"][row], 2e-9)
    loss = F.cross_entropy(ours, targets(way, query))
    close(loss, of[f"{key}_loss"][row], 1e-10)
    loss.backward()
    chain = alpha.exp() / (alpha.exp() + shift)
    for name, factor in (("alpha", chain), ("beta", 1), ("scale", 1)):
        close(learned[name].grad * factor, of[f"{key}_grad_{name}"][row], 1e-8)
    if key == "b" and row == 1:
        for part, name in zip(features, ("support", "query"), strict=True):
            close(part.grad, of[f"b_grad_{name}"], 1e-10)


def test_frn_in_32_bits():
    """As models are tested: without gradients, where inverting takes another way."""
    of = numbers("frn")
    for key, within in (("a", 3e-3), ("b", 3e-5), ("c", 3e-5)):
        _, shot, _, position, channel = (int(n) for n in of[f"{key}_shape"])
        for row in range(3):
            alpha, beta, scale = of[f"{key}_parameters"][row].tolist()
            alpha = log(np.exp(alpha) + channel * (1e-6 / (shot * position) - 1e-6))
            learned = {"alpha": torch.tensor(alpha), "beta": torch.tensor(beta), "scale": torch.tensor(scale)}
            parts = [(of[f"{key}_{part}"] / of[f"{key}_divisor"]).float() for part in ("support", "query")]
            ours = logits("frn-old", gram, *parts, learned)
            torch.testing.assert_close(ours.double(), of[f"{key}_logits"][row], rtol=1e-4, atol=within)


def test_the_auxiliary_term_of_frn():
    of = numbers("frn")
    features = of["auxrank_support"].clone().requires_grad_()
    pooled = features.flatten(1, 2)
    value = 0.03 * class_overlap(gram(pooled, {}))
    close(value, of["auxrank_value"], 1e-15)
    value.backward()
    close(features.grad, of["auxrank_grad"], 1e-15)


# ----------------------------------------------------------------------------------------------------- prototypes, FEAT


@pytest.mark.parametrize("key", SETS)
def test_prototypes_of_both_authors(key):
    of = numbers("proto")
    embed = mean_pool if of[f"{key}_pooled"] else flatten
    parts = of[f"{key}_support"], of[f"{key}_query"]
    learned = {"scale": of[f"{key}_scale"]}
    ours = logits("proto", embed, *parts, learned)
    close(ours, of[f"{key}_logits"], 1e-13)
    close(ours.log_softmax(1), of[f"{key}_log_probabilities"], 1e-13)
    d = embed(parts[0], {}).shape[-1]
    learned = {"scale": d / of[f"{key}_feat_temperature"]}
    close(logits("proto", embed, *parts, learned, reordered=True), of[f"{key}_feat_logits"], 1e-13)


@pytest.mark.parametrize("normed", [False, True])
@pytest.mark.parametrize("key", ["a", "b"])
def test_feat(key, normed, monkeypatch):
    monkeypatch.setattr(heads_module, "_dropout", lambda x, share, parameters: x)
    of, kind = numbers("feat"), f"{key}_{'normed' if normed else 'plain'}"
    names = {"attend_query": "w_query", "attend_key": "w_key", "attend_value": "w_value", "attend_out": "w_out"}
    learned = {ours: of[theirs] for ours, theirs in names.items()} | {"attend_bias": of["b_out"]}
    if normed:
        learned |= {"norm_weight": of["norm_weight"], "norm_bias": of["norm_bias"]}
    support, query = of[f"{key}_support"], of[f"{key}_query"]
    refined = HEADS["feat"].refined(support.mean(1), torch.full((len(support),), support.shape[1]), learned)
    close(refined, of[f"{kind}_attended"], 1e-13)
    learned["scale"] = 64 / of[f"{key}_temperature"]
    ours = learned["scale"] * HEADS["feat"].score(query.flatten(0, 1), refined)
    close(ours, of[f"{kind}_logits"], 1e-13)
    if key == "b":
        vectors = torch.cat([support, query], 1).requires_grad_()
        learned["scale"] = 64 / of["b_temperature2"]
        aside = contrastive_logits(HEADS["feat"], learned, vectors)
        close(aside, of[f"{kind}_aux_logits"], 1e-13)
        loss = F.cross_entropy(aside, targets(*vectors.shape[:2]))
        close(loss, of[f"{kind}_aux_loss"], 1e-13)
        loss.backward()
        close(vectors.grad, of[f"{kind}_aux_grad"], 1e-15)


@pytest.mark.parametrize("key", SETS)
def test_batch_folding(key):
    of = numbers("folding")
    vectors = of[f"{key}_features"].clone().requires_grad_()
    way, shot, d = vectors.shape
    ours = fold_logits(HEADS["proto"], {"scale": torch.tensor(float(d))}, vectors)
    close(ours.log_softmax(1), of[f"{key}_log_probabilities"], 1e-12)
    loss = F.cross_entropy(ours, targets(way, shot))
    close(loss, of[f"{key}_loss"], 1e-13)
    loss.backward()
    close(vectors.grad, of[f"{key}_grad"], 1e-14)


# ------------------------------------------------------------------------------------------------------------ backbones


def fill(tensors: list[Tensor], seed: int) -> list[tuple[float, float]]:
    """Weights by a rule, one stream for all tensors: batch norms are four in a row, after their convolution."""
    stream, first_and_sum, of_norm = np.random.PCG64(seed), [], 0
    bounds = [(0.75, 1.25), (-0.2, 0.2), (-0.2, 0.2), (0.5, 1.5)]
    fan = 0
    for tensor in tensors:
        if tensor.ndim == 4:
            fan = tensor[0].numel()
            low, high = -sqrt(6 / fan), sqrt(6 / fan)
            of_norm = 0
        elif getattr(tensor, "is_bias", False):
            low, high = -1 / sqrt(fan), 1 / sqrt(fan)
        else:
            low, high = bounds[of_norm]
            of_norm += 1
        share = (stream.random_raw(tensor.numel()) >> np.uint64(11)) * 2.0**-53
        values = (low + (high - low) * share).astype(np.float32).astype(np.float64)
        tensor.data.copy_(torch.from_numpy(values).view(tensor.shape))
        first_and_sum.append((values[0], values.sum()))
    return first_and_sum


def of_convolution(conv: nn.Conv2d) -> list[Tensor]:
    if conv.bias is None:
        return [conv.weight]
    conv.bias.is_bias = True
    return [conv.weight, conv.bias]


def of_norm(norm: nn.BatchNorm2d) -> list[Tensor]:
    return [norm.weight, norm.bias, norm.running_mean, norm.running_var]


def conv4_tensors(network: Conv4) -> list[Tensor]:
    pairs = zip(network.convs, network.norms, strict=True)
    return [tensor for conv, norm in pairs for tensor in (*of_convolution(conv), *of_norm(norm))]


def resnet12_tensors(network: ResNet12) -> list[Tensor]:
    tensors = []
    for block in network.blocks:
        for conv, norm in (*zip(block.convs, block.norms, strict=True), tuple(block.shortcut)):
            tensors += [*of_convolution(conv), *of_norm(norm)]
    return tensors


@pytest.mark.parametrize(
    ("name", "make", "tensors", "within"),
    [("conv4", Conv4, conv4_tensors, 1e-11), ("resnet12", ResNet12, resnet12_tensors, 1e-10)],
)
def test_features_of_a_backbone(name, make, tensors, within):
    of, network = numbers(name), make().double().eval()
    close(torch.tensor(fill(tensors(network), int(of["fill_seed"])), dtype=torch.float64), of["fill_check"], 1e-12)
    with torch.no_grad():
        for side in (84, 32):
            ours = network(of[f"images_{side}"])
            close(ours, of[f"features_{side}"], within)
            close(ours.mean(), of[f"features_mean_{side}"], 1e-12)


def test_updates_of_a_backbone():
    """Three steps of SGD with momentum and weight decay, batch norm in training."""
    of, network = numbers("conv4"), Conv4().double()
    fill(conv4_tensors(network), int(of["fill_seed"]))
    lr, momentum, decay, nesterov = of["sgd"].tolist()
    updates = torch.optim.SGD(network.parameters(), lr, momentum, weight_decay=decay, nesterov=bool(nesterov))
    for expected in of["sgd_losses"]:
        loss = network(of["images_32"]).mean()
        close(loss, expected, 1e-13)
        updates.zero_grad()
        loss.backward()
        updates.step()
    for number, (conv, norm) in enumerate(zip(network.convs, network.norms, strict=True)):
        close(conv.bias, of[f"after_conv{number}_bias"], 1e-12)
        for part in ("weight", "bias", "running_mean", "running_var"):
            close(getattr(norm, part), of[f"after_norm{number}_{part}"], 1e-12)
    close(network.convs[0].weight, of["after_conv0_weight"], 1e-12)
    close(network.convs[3].weight[:4], of["after_conv3_weight_corner"], 1e-12)
    with torch.no_grad():
        close(network.eval()(of["images_32"]), of["after_features_32"], 1e-10)


# -------------------------------------------------------------------------------------------------------------- batches


def test_batches_per_epoch():
    """The draws are other ones, so they compare as counts; where those vary, by their mean."""
    golden = json.loads((GOLDEN / "batches.json").read_text())
    labels = np.repeat(np.arange(len(golden["class_sizes"])), golden["class_sizes"])
    epochs = 3
    for row in golden["rows"]:
        batches = [len(training_batches(labels, row["way"], sum(row["shots"]), 0, epoch)) for epoch in range(epochs)]
        assert min(row["batches_per_epoch"]) <= min(batches)
        assert max(batches) <= max(row["batches_per_epoch"]), row["way"]
