"""Comparisons from a table equal what the paper's own numbers give."""

import sys

import numpy as np
import pytest

from anyshot import BadInput, decompose
from anyshot.cli.main import main
from anyshot.measure.comparisons import (
    frn_forms,
    gains_by_test_shot,
    mixed_shot_training,
    offsets_by_train_shot,
    swapped_scores,
)
from anyshot.show.comparisons import COMPARISONS, run_comparison
from anyshot.tables import write_table

ROWS = [
    {"data": "glyphs", "backbone": "conv4", "head": head, "readout": readout, "train_shot": train, "test_shot": test}
    | {"accuracy": 50 + 3 * test + (train == test) + 2 * head.startswith("cosine") - (readout == "swapped")}
    for head in ("proto", "cosine-proto", "frn", "frn-old")
    for readout in ("own", "swapped")
    if readout == "own" or "proto" in head
    for train in (4, 8)
    for test in (4, 8)
]
MIXED = [{**row, "head": "proto-mixed", "accuracy": row["accuracy"] - 0.25} for row in ROWS[:2]]


def test_gains_offsets_swapped_and_frn_forms():
    assert {(row["head"], row["against"], row["gain"]) for row in gains_by_test_shot(ROWS)} == {
        ("cosine-proto", "proto", 2.0)
    }
    grid = np.array([[63.0, 62.0], [74.0, 75.0]])
    proto = [row["offset"] for row in offsets_by_train_shot(ROWS) if row["head"] == "proto"]
    np.testing.assert_allclose(proto, decompose(grid).model_bias)
    assert {row["change"] for row in swapped_scores(ROWS)} == {-1}
    assert [row["gain"] for row in frn_forms(ROWS)] == [0.0, 0.0]


def test_swapped_predictors_are_compared_within_a_seed():
    """What a swap changes is the mean over seeds, whatever the seeds' own accuracies."""
    seeds = [{**row, "seed": seed, "accuracy": row["accuracy"] + 5 * seed} for seed in (0, 1) for row in ROWS]
    compared = swapped_scores(seeds)
    assert len(compared) == len(swapped_scores(ROWS)) == 8
    assert {row["change"] for row in compared} == {-1}
    assert compared[0]["own"] == ROWS[0]["accuracy"] + 2.5


def test_mixed_training_stands_beside_the_best_and_worst_of_single_shots():
    (four, eight) = mixed_shot_training([*ROWS, *MIXED])
    assert (four["accuracy"], four["best"], four["mean"], four["worst"], four["behind"]) == (62.75, 63, 62.5, 62, 0.25)
    assert (eight["accuracy"], eight["best"], eight["behind"]) == (73.75, 75, 1.25)
    assert mixed_shot_training(ROWS) == []


def test_a_model_of_mixed_shots_gains_on_the_mean_and_has_no_offset():
    about = {"data": "glyphs", "backbone": "conv4", "head": "proto-mixed", "readout": "own", "train_shot": 16}
    rows = [*ROWS, *(about | {"test_shot": shot, "accuracy": 50.5 + 3 * shot} for shot in (4, 8))]
    assert [(row["against"], row["gain"]) for row in gains_by_test_shot(rows) if row["head"] == "proto-mixed"] == [
        ("proto", 0)
    ] * 2
    assert "proto-mixed" not in {row["head"] for row in offsets_by_train_shot(rows)}


@pytest.mark.parametrize("kind", sorted(COMPARISONS))
def test_the_verb_prints_keeps_and_draws(kind, tmp_path, monkeypatch, capsys):
    write_table(tmp_path / "run" / "table.csv", [*ROWS, *MIXED])
    words = [
        "experiment",
        "compare",
        kind,
        tmp_path / "run",
        "--out",
        tmp_path / "o.csv",
        "--figure",
        tmp_path / "f.svg",
    ]
    monkeypatch.setattr(sys, "argv", ["anyshot", *map(str, words)])
    main()
    assert "conv4" in capsys.readouterr().out
    assert (tmp_path / "o.csv").exists()
    assert (tmp_path / "f.svg").read_text().startswith("<svg")


def test_what_is_not_there_gets_a_sentence(tmp_path):
    write_table(tmp_path / "table.csv", [row for row in ROWS if row["head"] == "proto" and row["readout"] == "own"])
    with pytest.raises(BadInput, match="needs a cosine head"):
        run_comparison("gains", tmp_path, None, None)
    with pytest.raises(BadInput, match="did you mean 'gains'"):
        run_comparison("gain", tmp_path, None, None)
