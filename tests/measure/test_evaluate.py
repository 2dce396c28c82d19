"""The public evaluation: rows, intervals, paired differences, unequal shots, and a sentence for every bad input."""

import numpy as np
import pytest
import torch

import anyshot
from anyshot import BadInput, evaluate
from anyshot.data.store import write_store
from anyshot.measure.engine import compute_recalls
from anyshot.measure.evaluate import evaluate_store
from anyshot.measure.plan import Plan
from anyshot.models.heads import HEADS
from anyshot.models.law import BoundHead

RNG = np.random.default_rng(0)
LABELS = np.repeat([f"bird {i}" for i in range(8)], 30)
FEATURES = (RNG.normal(size=(8, 1, 12)).repeat(30, 1).reshape(240, 12) + RNG.normal(size=(240, 12))).astype(np.float32)
SMALL = {"shots": (1, 2, 4), "queries": 5, "episodes": 60}


def assert_same(one, other):
    assert [recalls.of for recalls in one.recalls] == [recalls.of for recalls in other.recalls]
    for ours, theirs in zip(one.recalls, other.recalls, strict=True):
        np.testing.assert_array_equal(ours.recall, theirs.recall)


def test_rows_have_what_a_table_needs():
    evaluation = evaluate(FEATURES, LABELS, heads=["proto", "cosine-proto", "frn"], **SMALL)
    rows = list(evaluation)
    assert len(rows) == len(evaluation) == 9
    for row in rows:
        assert {"head", "readout", "test_shot", "way", "episodes", "accuracy", "ci95", "ci95_classes"} <= set(row)
        assert 20 < row["accuracy"] <= 100
    assert [row["test_shot"] for row in rows[:3]] == [1, 2, 4]


def test_rows_equal_the_engine():
    evaluation = evaluate(FEATURES, LABELS, heads=["cosine-proto"], **SMALL)
    plan = Plan(np.repeat(np.arange(8), 30), 5, 4, 5, 60)
    direct = compute_recalls(torch.from_numpy(FEATURES), [BoundHead(HEADS["cosine-proto"], {})], plan, (1, 2, 4))[0]
    np.testing.assert_array_equal(evaluation.of("cosine-proto").recall, direct)


def test_arrays_of_any_kind_give_the_same():
    half = FEATURES.astype(np.float16)
    for same in (half.tolist(), torch.from_numpy(half)):
        assert_same(evaluate(same, list(LABELS), **SMALL), evaluate(half, LABELS, **SMALL))
    whole = (10 * FEATURES).round()
    assert_same(evaluate(whole.astype(np.int64), LABELS, **SMALL), evaluate(whole, LABELS, **SMALL))


def test_a_memory_map_is_read_where_it_lies(tmp_path, monkeypatch):
    from anyshot.measure import engine

    np.save(tmp_path / "features.npy", FEATURES)
    mapped = np.load(tmp_path / "features.npy", mmap_mode="r")
    expected = evaluate(FEATURES, LABELS, **SMALL)
    monkeypatch.setattr(engine, "BANK_BYTES", 0)  # as if it did not fit into memory
    assert_same(evaluate(mapped, LABELS, **SMALL), expected)


def test_all_ways_at_once_and_one_episode():
    row = next(iter(evaluate(FEATURES, LABELS, shots=[3], way="all", queries=4, episodes=1)))
    assert row["way"] == 8
    assert np.isnan(row["ci95"])


def test_differences_are_paired():
    evaluation = evaluate(FEATURES, LABELS, heads=["proto", "cosine-proto"], readouts=["own", "swapped"], **SMALL)
    for row in evaluation.difference(("proto", "swapped"), "cosine-proto"):
        assert row["gain"] == 0
        assert row["ci95"] == 0
    gain = evaluation.difference("cosine-proto", "proto")[0]
    rows = list(evaluation)
    alone = next(r for r in rows if (r["head"], r["readout"]) == ("proto", "own"))["ci95"]
    assert gain["ci95"] < alone, "the same episodes: what they share drops out"


def test_projections_are_fitted_on_the_base_and_swapped_equals_the_other_head():
    base = (FEATURES[:120], LABELS[:120])
    test = FEATURES[120:], LABELS[120:]
    evaluation = evaluate(*test, heads=["proto"], readouts=["pca6", "est6"], base=base, way=3, **SMALL)
    assert [one.of["readout"] for one in evaluation.recalls] == ["pca6", "est6"]
    from anyshot.models.readouts import pca

    basis = pca(torch.from_numpy(base[0]), torch.from_numpy(np.repeat(np.arange(4), 30)), 6)["basis"]
    direct = evaluate(torch.from_numpy(test[0]) @ basis, test[1], heads=["proto"], way=3, **SMALL)
    np.testing.assert_array_equal(evaluation.of("proto", "pca6").recall, direct.of("proto").recall)


@pytest.mark.parametrize("kind", ["uniform", "step", "long-tailed"])
def test_unequal_shots(kind):
    evaluation = evaluate(
        FEATURES,
        LABELS,
        shots=kind,
        queries=5,
        episodes=200,
        plan=Plan(np.unique(LABELS, return_inverse=True)[1], 5, 16, 5, 200),
    )
    rows = evaluation.of("cosine-proto").by_own_shot()
    shots = [row["own_shot"] for row in rows]
    assert min(shots) == 1
    assert max(shots) == 16
    assert rows[0]["recall"] < rows[-1]["recall"], "a class with more shots is found more often"


def test_dirichlet_queries_move_the_mean_little_and_the_spread_much():
    even = next(iter(evaluate(FEATURES, LABELS, shots=[4], queries=10, episodes=2000)))
    skewed = next(iter(evaluate(FEATURES, LABELS, shots=[4], queries=10, episodes=2000, dirichlet=0.3)))
    assert abs(even["accuracy"] - skewed["accuracy"]) < 1.5
    assert skewed["ci95"] > even["ci95"]


def test_plans_are_shared_by_file(tmp_path):
    codes = np.unique(LABELS, return_inverse=True)[1]
    plan = Plan(codes, 4, 8, 6, 50, seed=9)
    plan.save(tmp_path / "plan.json")
    again = Plan.load(tmp_path / "plan.json", codes)
    assert again.id == plan.id
    with pytest.raises(BadInput, match="other examples"):
        Plan.load(tmp_path / "plan.json", np.roll(codes, 7))
    (tmp_path / "other.json").write_text("{}")
    with pytest.raises(BadInput, match="not a saved plan"):
        Plan.load(tmp_path / "other.json", codes)
    groups = np.arange(len(codes)) // 2
    grouped = Plan(codes, 4, 8, 6, 50, seed=9, group=groups)
    grouped.save(tmp_path / "grouped.json")
    assert Plan.load(tmp_path / "grouped.json", codes, groups=groups).id == grouped.id
    with pytest.raises(BadInput, match="groups draw other episodes"):
        Plan.load(tmp_path / "grouped.json", codes)


@pytest.mark.parametrize(
    ("features", "labels", "more", "sentence"),
    [
        (np.where(np.arange(240)[:, None] == 17, np.nan, FEATURES), LABELS, {}, "row 17"),
        (np.where(np.arange(240)[:, None] == 200, np.inf, FEATURES), LABELS, {}, "row 200"),
        (FEATURES, LABELS[:-1], {}, "240 examples"),
        (FEATURES[:0], LABELS[:0], {}, "empty"),
        (FEATURES[:, 0], LABELS, {}, "image d"),
        (FEATURES.astype(str), LABELS, {}, "must be numbers"),
        (FEATURES, np.full(240, "one"), {}, "at least 2 classes"),
        (FEATURES, LABELS, {"way": 9}, "9 ways does not fit 8 classes"),
        (FEATURES, LABELS, {"shots": [1, 26]}, "largest feasible shot is 25"),
        (FEATURES, LABELS, {"shots": [0]}, "shot must be at least 1"),
        (FEATURES, LABELS, {"shots": []}, "between 1 and"),
        (FEATURES, LABELS, {"heads": ["cosine-prot"]}, "did you mean 'cosine-proto'"),
        (FEATURES, LABELS, {"heads": ["feat"]}, "has to be trained"),
        (FEATURES, LABELS, {"heads": []}, "at least one head"),
        (FEATURES, LABELS, {"heads": ["foo"]}, "no head named 'foo': choose one of .*proto"),
        (FEATURES, LABELS, {"heads": ["nohead"]}, "no head named 'nohead': choose one of .*proto"),
        (FEATURES, LABELS, {"readouts": ["swaped"]}, "did you mean 'swapped'"),
        (FEATURES, LABELS, {"heads": ["frn"], "readouts": ["pca4"]}, "pca4 does not fit frn"),
        (FEATURES, LABELS, {"heads": ["frn", "frn-old"], "readouts": ["pca4"]}, "pca4 does not fit frn"),
        (FEATURES, LABELS, {"readouts": ["pca4"]}, "as the base"),
        (FEATURES, LABELS, {"readouts": ["pca40"], "base": (FEATURES, LABELS)}, "only 12"),
        (FEATURES, LABELS, {"shots": "steep"}, "did you mean 'step'"),
        (FEATURES, LABELS, {"dirichlet": 0.0}, "above 0"),
    ],
)
def test_bad_input_gets_a_sentence(features, labels, more, sentence):
    with pytest.raises(BadInput, match=sentence):
        evaluate(features, labels, **({"queries": 5, "episodes": 20, "shots": (1, 2)} | more))


def test_a_store_of_features(tmp_path):
    store = write_store(
        tmp_path / "birds",
        [FEATURES[:, None]],
        np.repeat(np.arange(8), 30),
        [f"b{i}" for i in range(8)],
        ["train"] * 3 + ["test"] * 5,
    )
    evaluation = evaluate_store(store, readouts=["own", "pca4"], **SMALL)
    assert {row["data"] for row in evaluation} == {"birds"}
    assert evaluation.of("proto", "pca4")
    with pytest.raises(BadInput, match="no val classes"):
        evaluate_store(store, split="val")


def test_an_evaluation_prints_as_its_table():
    evaluation = evaluate(FEATURES, LABELS, heads="proto", **SMALL)
    assert "new classes" in str(evaluation)
    assert repr(evaluation) == "<Evaluation of proto: 3 rows>"


def test_an_interval_that_cannot_be_had_is_a_dash_with_a_reason():
    text = str(evaluate(FEATURES, LABELS, heads="proto", **SMALL | {"episodes": 1}))
    assert "nan" not in text
    assert "An interval over episodes needs at least two episodes." in text
    assert all(line.split()[-2:] == ["-", "-"] for line in text.splitlines() if line.startswith("proto"))
    every = str(evaluate(FEATURES, LABELS, heads="proto", shots=[3], way="all", queries=4, episodes=30))
    assert [line.split()[-1] for line in every.splitlines() if line.startswith("proto")] == ["-"]
    assert "An interval over new classes needs" in every
    assert "two episodes" not in every


def test_ties_are_told():
    assert evaluate(FEATURES, LABELS, **SMALL).ties == 0
    blank = evaluate(np.zeros_like(FEATURES), LABELS, heads="cosine-proto", shots=[1], queries=4, episodes=20, way=3)
    assert blank.ties == 100
    assert "ties" in str(blank)


def scenes_of_noise(frames=3, noise=1e-3):
    """Five classes that cannot be told apart, of 12 scenes of several frames each."""
    rng = np.random.default_rng(0)
    scenes = np.repeat(rng.normal(size=(60, 16)), frames, axis=0)
    groups = np.repeat(np.arange(60), frames)
    return scenes + noise * rng.normal(size=scenes.shape), groups // 12, groups


@pytest.mark.parametrize("noise", [0, 1e-3])
def test_copies_and_near_copies_are_told(noise):
    X, labels, _ = scenes_of_noise(noise=noise)
    evaluation = evaluate(X, labels, heads="proto", shots=[5], episodes=50)
    assert evaluation.copies == 120
    assert "120 of 180 examples are copies of others" in str(evaluation)
    assert evaluate(X[::3], labels[::3], heads="proto", shots=[2], queries=4, episodes=50).copies == 0


def test_no_group_is_in_a_support_and_among_its_queries():
    X, labels, groups = scenes_of_noise()
    options = {"heads": "proto", "shots": [5], "episodes": 200}
    alone, grouped = evaluate(X, labels, **options), evaluate(X, labels, **options, groups=groups)
    for episode in zip(*grouped.plan.draw(0, 200)[1:], strict=True):
        support, query = (set(groups[images].ravel().tolist()) for images in episode)
        assert not support & query
    assert alone.accuracies("proto").mean() > 28
    assert grouped.accuracies("proto").mean() == pytest.approx(20, abs=4)
    assert not grouped.copies
    with pytest.raises(BadInput, match="180 examples and 3 groups"):
        evaluate(X, labels, **options, groups=[1, 2, 3])


def test_public_names():
    for name in anyshot.__all__:
        assert getattr(anyshot, name) is not None
