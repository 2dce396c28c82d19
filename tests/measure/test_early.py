"""Stopping early: heads that do not differ are told apart as rarely as promised, whichever look comes first."""

import numpy as np
import pytest
from helpers.shell import run

from anyshot import BadInput, evaluate
from anyshot.measure.comparisons import compare_accuracies, compare_deviations, list_looks, run_until_apart
from anyshot.measure.recalls import Recalls
from anyshot.tables import read_table

TEST_SHOTS, TRAIN_SHOTS = (1, 4, 16), (4, 16)


def draw_recalls(rng, episodes, lead=0.0, interaction=0.0, train_shots=(4,)):
    """Two heads on the same episodes, which are hard for both alike; the first is ahead, or more sensitive."""
    plan = {"way": 2, "queries": 1, "episodes": episodes, "seed": 0, "id": str(episodes)}
    classes = rng.random((episodes, 6)).argsort(1)[:, :2]
    hard = rng.normal(0, 0.1, (1, episodes, 2))
    product = np.outer(np.linspace(-1, 1, len(TEST_SHOTS)), np.linspace(-1, 1, len(train_shots)))
    return [
        Recalls(
            {"head": head, "readout": "own", "train_shot": shot, "learner": "proto", "score": "", "mixed": ""},
            plan,
            TEST_SHOTS,
            classes,
            0.7 + mine * lead + (0.02 + mine * interaction) * product[:, [column]][..., None] + hard
            + rng.normal(0, 0.1 * (1 + noisier), (len(TEST_SHOTS), episodes, 2)),
        )
        for head, mine, noisier in (("proto", 1, 0), ("cosine-proto", 0, 0.5))
        for column, shot in enumerate(train_shots)
    ]  # fmt: skip


def prefix(recalls, episodes):
    return [
        Recalls(one.columns, one.plan, one.shots, one.classes[:episodes], one.recall[:, :episodes]) for one in recalls
    ]


def share_told_apart(compare, trials, looks=(100, 400, 1600), **drawn):
    """How often heads are told apart at any look, and after how many episodes in the mean."""
    rng = np.random.default_rng(5)
    ends = []
    for _ in range(trials):
        every = draw_recalls(rng, looks[-1], **drawn)
        last, message = run_until_apart(lambda n, every=every: prefix(every, n), looks, compare)
        ends.append(("1 of 1" in message, len(last[0].classes)))
    return tuple(np.mean(ends, 0))


def test_equal_heads_are_told_apart_in_at_most_five_of_a_hundred_runs():
    share, _ = share_told_apart(compare_accuracies, trials=400)
    assert share <= 0.05 + 0.02, "two standard errors of 400 runs"
    uncorrected, _ = share_told_apart(lambda recalls, _: compare_accuracies(recalls, 0.95), trials=400)
    assert uncorrected > 0.07, "three looks at 95 % each find what is not there more often than they say"


def test_equally_sensitive_heads_are_told_apart_as_rarely():
    share, _ = share_told_apart(compare_deviations, trials=60, looks=(50, 200), train_shots=TRAIN_SHOTS)
    assert share <= 0.05 + 0.05


@pytest.mark.parametrize(
    ("compare", "drawn"),
    [
        (compare_accuracies, {"lead": 0.05}),
        (compare_deviations, {"interaction": 0.1, "train_shots": TRAIN_SHOTS}),
    ],
)
def test_a_large_difference_ends_at_the_first_look(compare, drawn):
    share, episodes = share_told_apart(compare, trials=5, looks=(200, 1600), **drawn)
    assert (share, episodes) == (1, 200)


def test_looks_are_few_and_end_with_all_episodes():
    assert list_looks(10_000) == [625, 2500, 10_000]
    assert list_looks(800) == [100, 200, 800]
    assert list_looks(50) == [50]


def test_evaluate_stops_where_heads_differ_and_has_tested_the_first_episodes():
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(6), 40)
    features = rng.normal(size=(6, 1, 8)).repeat(40, 1).reshape(240, 8) + rng.normal(size=(240, 8))
    features[:, 0] += rng.exponential(30, 240)  # noise in one dimension, which a distance feels more than an angle
    options = {"heads": ["proto", "cosine-proto"], "shots": [1, 4], "episodes": 1600}
    early, every = (evaluate(features, labels, **options, stop_early=stop) for stop in (True, False))
    assert early.plan.episodes < 1600
    np.testing.assert_array_equal(early.of("proto").recall, every.of("proto").recall[:, : early.plan.episodes])
    assert "told apart" in str(early)
    assert "told apart" not in str(every)
    with pytest.raises(BadInput, match="no two heads"):
        evaluate(features, labels, ["proto"], [1], episodes=200, stop_early=True)


def test_a_study_stops_where_its_heads_differ(tmp_path, monkeypatch):
    """The models that come with cub32: Euclidean ones are far more sensitive, which few episodes tell."""
    done = run(f"anyshot study cub32 --ready --stop-early --only 4-shot,32-shot -o {tmp_path}", monkeypatch)
    assert "After 625 of 10000 episodes, 1 of 1 pairs of heads are told apart" in done.err + done.out
    assert {row["episodes"] for row in read_table(tmp_path / "table.csv")} == {625}
