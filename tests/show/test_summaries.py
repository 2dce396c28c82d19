"""Tables for people: their numbers, and the three ways they are written."""

import csv
import io
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from anyshot import BadInput, decompose
from anyshot.measure.grid import Grid, build_grids
from anyshot.models.heads import HEADS
from anyshot.paper import printed
from anyshot.show.summaries import (
    Summary,
    gain_summary,
    grid_summary,
    sensitivity_summary,
    sort_grids,
)
from anyshot.tables import add_head_columns

STUDY = [grid for grid in build_grids(printed.rows()) if grid.head != "frn-old"]


def grid(head: str, readout: str = "own", accuracy: Any = ((50.0, 54.0), (80.0, 82.0))) -> Grid:
    return Grid("glyphs", "conv4", head, readout, (1, 5), (1, 5), np.array(accuracy))


def test_grid_summary_has_margins_and_corner() -> None:
    summary = grid_summary(grid("proto"))
    assert summary.rows[0] == ["1", "50.00", "54.00", "52.00"]
    assert summary.rows[-1] == ["model bias", "-1.50", "+1.50", "**1.00**"]


def test_gains_are_over_the_euclidean_head_as_trained() -> None:
    cosine = grid("cosine-proto", accuracy=((52.0, 54.0), (80.0, 81.0)))
    rows = {row[1]: row for row in gain_summary([cosine, grid("proto"), grid("proto", "pca60")]).rows}
    assert rows["cosine-proto"][3:] == ["53.00 (+1.00)", "80.50 (-0.50)"]
    assert rows["proto"][3:] == ["52.00", "81.00"]
    assert rows["proto (pca60)"][3:] == ["52.00 (+0.00)", "81.00 (+0.00)"]
    assert cosine.find_counterpart([grid("feat")]) is None


def test_ties_go_away_from_zero_however_they_are_held() -> None:
    summary = grid_summary(grid("proto", accuracy=((65.38, 65.41), (1.00, 1.01))))
    assert [row[-1] for row in summary.rows[:2]] == ["65.40", "1.01"]


def test_bold_is_the_one_lowest_of_a_family() -> None:
    rows = {row[0]: row[1:] for row in sensitivity_summary(STUDY).rows}
    assert len(rows) == 8
    assert all(cell.startswith("**") for cell in rows["cosine-proto"])
    assert sum(cell.startswith("**") for row in rows.values() for cell in row) == 17  # feat on tiered is a tie


MIXED = [
    *(grid(head) for head in ("proto", "cosine-proto")),
    Grid("glyphs", "conv4", "proto-mixed", "own", (1, 5), (16,), np.array([[53.0], [80.0]])),
    Grid("glyphs", "conv4", "cosine-proto-mixed", "own", (1, 5), (16,), np.array([[55.0], [82.0]])),
]


def test_a_grid_of_one_train_shot_has_a_dash_for_sensitivity_and_gains_over_the_mean() -> None:
    assert {row[0]: row[1] for row in sensitivity_summary(MIXED).rows} == {
        "proto": "1.00",
        "proto-mixed": "-",
        "cosine-proto": "1.00",
        "cosine-proto-mixed": "-",
    }
    rows = {row[1]: row[2:] for row in gain_summary(MIXED).rows}
    assert rows["proto-mixed"] == ["-", "53.00 (+1.00)", "80.00 (-1.00)"]
    assert rows["cosine-proto-mixed"] == ["-", "55.00 (+3.00)", "82.00 (+1.00)"]
    assert grid_summary(MIXED[2]).rows == [["1", "53.00"], ["5", "80.00"]]
    assert grid_summary(MIXED[2]).columns == ["test shot", "mixed"]


def test_a_table_that_only_names_the_heads_gets_the_columns_of_their_kind() -> None:
    for name, head in HEADS.items():
        row = add_head_columns({"head": name})
        assert (row["learner"], row["score"], row["mixed"]) == (head.alternative_to or name, head.score_name, "")
        assert add_head_columns({"head": f"{name}-mixed"}) == row | {"head": f"{name}-mixed", "mixed": "mixed"}
    assert add_head_columns({"head": "their-own"})["learner"] == "their-own"
    columns = {"head": "cosine-x", "learner": "y", "score": "z", "mixed": ""}
    assert add_head_columns(columns) == columns, "columns count, not names"


def test_order_is_head_readouts_cosine() -> None:
    mixed = [grid("cosine-proto"), grid("proto", "est60"), grid("proto"), grid("feat")]
    assert [g.name for g in sort_grids(mixed)] == ["proto", "proto (est60)", "cosine-proto", "feat"]


@pytest.mark.parametrize("summary", [sensitivity_summary(STUDY), gain_summary(STUDY), grid_summary(STUDY[0])])
def test_csv_markdown_and_latex_hold_the_same_cells(summary: Summary) -> None:
    plain = [[cell.replace("**", "") for cell in row] for row in (summary.columns, *summary.rows)]
    assert list(csv.reader(io.StringIO(summary.text("csv")))) == plain
    lines = summary.text("markdown").strip().splitlines()
    cells = [[cell.strip().replace("**", "") for cell in line.strip("|").split("|")] for line in lines]
    assert [cells[0], *cells[2:]] == plain
    body = [line for line in summary.text("latex").splitlines() if line.endswith(r"\\")]
    latex = [[cell.strip().replace(r"\textbf{", "").rstrip("}") for cell in line[:-2].split("&")] for line in body]
    assert latex == plain


def test_rows_of_a_table_are_a_summary_without_empty_columns() -> None:
    rows = [
        {"head": "proto", "train_shot": 4, "gain": 1.005, "why": ""},
        {"head": "[b]x", "train_shot": 8, "loss": None},
    ]
    summary = Summary.from_rows("t", [*rows, {"head": "y", "gain": float("nan")}])
    assert (summary.columns, summary.names) == (["head", "train shot", "gain"], 2)
    assert summary.rows == [["proto", "4", "1.01"], ["[b]x", "8", ""], ["y", "", ""]]
    console = Console(file=io.StringIO(), width=80)
    console.print(summary.terminal())
    assert "[b]x" in console.file.getvalue(), "a name is never markup"
    assert Summary.from_rows("t", []).csv() == "\n"


def test_signs_are_safe_in_latex_and_markdown() -> None:
    summary = Summary("50 % & more_", ["a|b", "x"], [["c_d", "**1 %**"]])
    assert r"\caption{50 \% \& more\_}" in summary.latex()
    assert r"c\_d & \textbf{1 \%} \\" in summary.latex()
    assert r"a\|b" in summary.markdown()


def test_unknown_format_is_named() -> None:
    with pytest.raises(BadInput, match="latex"):
        grid_summary(grid("proto")).text("latx")


def test_scores_are_those_of_the_decomposition() -> None:
    row = next(row for row in gain_summary(STUDY).rows if row[:2] == ["cub/resnet12", "frn"])
    frn = next(g for g in STUDY if (g.setting, g.name) == ("cub/resnet12", "frn"))
    assert row[2] == f"{decompose(frn.accuracy).sensitivity:.2f}" == "0.67"
