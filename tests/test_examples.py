"""The examples run, and are the learners that they say they are."""

import runpy
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.shell import exit_code

from anyshot.measure.engine import compute_recalls
from anyshot.measure.plan import Plan
from anyshot.models.law import BoundHead, fold_logits
from anyshot.models.registry import load_registry
from anyshot.tables import read_table

EXAMPLES = Path(__file__).parents[1] / "examples"
REGISTRY = load_registry(EXAMPLES / "learners.py")


def episode(way=3, shot=4, queries=5, d=6):
    torch.manual_seed(0)
    means = 2 * torch.randn(way, 1, d)
    return means + torch.randn(way, shot, d), means + torch.randn(way, queries, d)


def r2d2_logits(support, query):
    head = REGISTRY.head("r2d2")
    parameters = {"log_ridge": torch.tensor(0.3)}
    embedded = head.embed(support[..., None, :], parameters)
    counts = torch.full((len(support),), support.shape[1])
    weights = head.refine(embedded.mean(1), counts, parameters)
    return head.score(head.embed(query[..., None, :], parameters), weights, parameters)


def test_r2d2_is_ridge_regression_to_one_hot_labels():
    """As its authors compute it: W = X' (X X' + r I)^-1 Y, from all images of the support."""
    support, query = episode()
    x, y = support.flatten(0, 1), torch.eye(3).repeat_interleave(4, 0)
    weights = x.mT @ torch.linalg.solve(x @ x.mT + torch.tensor(0.3).exp() * torch.eye(len(x)), y)
    torch.testing.assert_close(r2d2_logits(support, query.flatten(0, 1)), query.flatten(0, 1) @ weights)


def test_folds_of_r2d2_do_not_show_a_query_to_its_own_class():
    """A query's logits in batch folding are those of a regression to all other images, but for the counts."""
    support, _ = episode()
    head = REGISTRY.head("r2d2")
    parameters = {"log_ridge": torch.tensor(0.3), "scale": torch.tensor(1.0)}
    logits = fold_logits(head, parameters, head.embed(support[..., None, :], parameters))
    embedded = head.embed(support[..., None, :], parameters)
    means = embedded.mean(1)
    means[1] = embedded[1, [0, 1, 3]].mean(0)
    weights = head.refine(means, torch.full((3,), 3), parameters)
    torch.testing.assert_close(logits[6], head.score(embedded[1, 2:3], weights, parameters)[0])


def test_simpleshot_is_the_nearest_mean_of_centred_unit_vectors():
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(6), 12)
    vectors = torch.from_numpy((rng.normal(size=(6, 8))[labels] * 1.5 + rng.normal(size=(72, 8)) + 3).astype("f"))
    plan = Plan(labels, way=4, shot=2, queries=3, episodes=20)
    readout = REGISTRY.readout("cl2n")
    read = readout.applied(vectors, readout.fit(vectors, torch.from_numpy(labels)))
    recalls = compute_recalls(read, [BoundHead(REGISTRY.head("proto"), {})], plan, [2])[0, 0]
    x = vectors.numpy() - vectors.numpy().mean(0)
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    drawn = plan.draw(0, 20)
    for number in range(20):
        means = x[drawn.support[number]].mean(1)
        distance = np.square(x[drawn.query[number]][:, :, None] - means).sum(-1)
        np.testing.assert_allclose(recalls[number], (distance.argmin(-1) == np.arange(4)[:, None]).mean(1))


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    folder = tmp_path_factory.mktemp("examples")
    words = ["study", EXAMPLES / "learners.py", "--only", "4-shot", "--out", folder / "out", "--data", folder / "data"]
    with pytest.MonkeyPatch.context() as patch:
        assert exit_code(patch, *words, "--workers", "1") == 0
    return read_table(folder / "out" / "table.csv")


def test_the_study_of_the_learners_runs_and_they_learn(rows):
    at_four = {(row["head"], row["readout"]): row["accuracy"] for row in rows if row["test_shot"] == 4}
    assert at_four.keys() == {("proto", "own"), ("proto", "cl2n"), ("r2d2", "own"), ("relation", "own")}
    assert min(at_four.values()) > 25, "more than the 20 % of a guess among five"


def test_logistic_regression_meets_the_same_episodes(tmp_path, monkeypatch, capsys):
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(6), 30)
    np.savez(
        tmp_path / "f.npz", features=3 * rng.normal(size=(6, 8))[labels] + rng.normal(size=(180, 8)), labels=labels
    )
    monkeypatch.setattr(sys, "argv", ["logistic_regression.py", str(tmp_path / "f.npz")])
    runpy.run_path(str(EXAMPLES / "logistic_regression.py"), run_name="__main__")
    text = capsys.readouterr().out
    assert "logistic, 4 shots: 9" in text
    assert "'against': 'cosine-proto'" in text
