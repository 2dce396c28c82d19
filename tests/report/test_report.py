"""A report tells what is in its folders, all of it, and nothing else; it says why where it cannot."""

import csv
import io
import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from helpers.report_runs import TEST_SHOTS, rows, with_recalls, write_run
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

import anyshot.report
from anyshot.errors import BadInput
from anyshot.measure.grid import build_grids
from anyshot.measure.recalls import episode_interval, read_recalls, write_recalls
from anyshot.measure.sensitivity import decompose
from anyshot.report.answer import (
    WORDS,
    accurate_slots,
    half_width,
    list_sensitivities,
    rank,
    robust_sentence,
)
from anyshot.report.charts import learning_curves, thin_history
from anyshot.report.page import as_script, write_report
from anyshot.report.runs import AT, Findings, paper_findings, read_runs
from anyshot.report.tables import comparison_with_paper, sensitivity_table
from anyshot.report.text import print_report
from anyshot.tables import read_table, write_table
from anyshot.text import format_decimals, format_number

EVERY = dict.fromkeys(TEST_SHOTS, 1.0)
CHOICES = Findings("x", rows()).choices


@pytest.fixture(autouse=True)
def _no_vega(monkeypatch: pytest.MonkeyPatch) -> None:
    """These tests read the page, they do not run it: Vega stays out."""
    monkeypatch.setattr("anyshot.report.page.vega_code", lambda: "/* Vega */")


def data_of(page: str) -> dict:
    match = re.search(r'<script type="application/json" id="page-data">(.*?)</script>', page, re.DOTALL)
    assert match
    return json.loads(match.group(1))


def written(tmp_path: Path, *folders: Path, paper: bool = False) -> str:
    return write_report(folders, tmp_path / "report.html", paper).read_text(encoding="utf-8")


def test_an_evaluation_opens_with_what_it_can_say(tmp_path: Path) -> None:
    """No model was trained: the best head of each shot, and not a word on sensitivity."""
    table = [row | {"train_shot": 0, "backbone": "", "model": ""} for row in rows(train_shots=(4,))]
    folder = write_run(tmp_path / "tested", table, models=False)
    page, said = written(tmp_path, folder), io.StringIO()
    print_report(read_runs([folder]), Console(file=said, width=2000))
    best = {
        shot: max((row for row in table if row["test_shot"] == shot), key=lambda row: row["accuracy"]) for shot in EVERY
    }
    name, words = data_of(page)["robust"]["glyphs"]
    assert name == "Most accurate by test shot"
    for shot, row in best.items():
        cell = f"{row['head']} at {shot}-shot, {format_decimals(row['accuracy'])} % (± 0.20 over episodes, ± 3.00 over"
        assert cell in words
        assert cell in said.getvalue()
    shown = re.sub(r"<script.*?</script>|<pre.*?</pre>|<figure[^>]* hidden>.*?</figure>", "", page, flags=re.DOTALL)
    shown = re.sub(r"<[^>]+>", "", re.sub(r"<style.*?</style>|<!--.*?-->", "", shown, flags=re.DOTALL))
    assert "ensitivity" not in shown + said.getvalue()
    assert "2 heads · 1 setting" in shown
    charts = json.dumps(data_of(page)["specs"]["gains-by-test-shot"])
    assert '"strokeDash": {"field": "backbone", "legend": null' in charts


def test_the_page_holds_every_cell_and_the_answer(tmp_path: Path) -> None:
    table = rows()
    page = written(tmp_path, write_run(tmp_path / "run", table))
    data = data_of(page)
    taken = list(csv.DictReader(io.StringIO(data["files"]["table.csv"])))
    assert [float(row["accuracy"]) for row in taken] == [row["accuracy"] for row in table]
    assert '<strong data-slot="robust">cosine-proto</strong>' in page
    cells = {c["label"]: c["cells"] for c in data["choices"]}
    assert cells["proto, 8-shot"]["4"]["accuracy"] == next(
        row["accuracy"] for row in table if (row["head"], row["train_shot"], row["test_shot"]) == ("proto", 8, 4)
    )
    assert {"learning-curves", "frontier", "gains-by-test-shot", "offsets-by-train-shot"} <= data["specs"].keys()


@pytest.mark.parametrize(("data", "printed"), [("cub32", {"cub/conv4", "cub/resnet12"}), ("cubes32", set())])
def test_the_papers_grids_of_the_same_images_stand_beside_ours(tmp_path: Path, data: str, printed: set[str]) -> None:
    run = write_run(tmp_path / data, [row | {"data": data} for row in rows()], models=False)
    spec = data_of(written(tmp_path, run))["specs"]["frontier"]
    settings = {f"{data}/conv4"} | {f"the paper's {setting}" for setting in printed}
    assert set(re.findall(r'"setting": "([^"]*)"', json.dumps(spec))) == settings


def test_the_ranking_is_the_weighted_mean_of_the_cells() -> None:
    findings = Findings("x", rows())
    ranked = rank(findings.choices, "glyphs/conv4", {1: 3.0, 32: 1.0})
    (grid,) = [grid for grid in findings.grids if grid.head == "proto"]
    means = (3 * grid.accuracy[0] + grid.accuracy[-1]) / 4
    accuracies = {choice.train_shot: value["accuracy"] for choice, value in ranked if choice.head == "proto"}
    np.testing.assert_allclose([accuracies[shot] for shot in grid.train_shots], means)
    accuracies = [value["accuracy"] for _, value in ranked]
    assert accuracies == sorted(accuracies, reverse=True)


@given(st.dictionaries(st.sampled_from(TEST_SHOTS), st.integers(0, 10).map(float), min_size=1))
def test_an_expected_accuracy_lies_between_its_cells(weights: dict[int, float]) -> None:
    for choice in CHOICES:
        value = choice.expected(weights)
        used = [choice.cells[shot]["accuracy"] for shot, weight in weights.items() if weight > 0]
        assert (value is None) == (not used)
        if value:
            assert min(used) - 1e-9 <= value["accuracy"] <= max(used) + 1e-9
            assert value["ci95"] == pytest.approx(0.2)


def test_a_choice_that_was_not_measured_at_a_shot_is_not_ranked_by_it() -> None:
    table = [row for row in rows() if (row["head"], row["test_shot"]) != ("proto", 32)]
    heads = {choice.head for choice, _ in rank(Findings("x", table).choices, "glyphs/conv4", EVERY)}
    assert heads == {"cosine-proto"}


def test_seeds_are_averaged_and_settings_are_not() -> None:
    table = rows() + [row | {"seed": 1, "accuracy": row["accuracy"] + 2} for row in rows()]
    table += [row | {"data": "other", "accuracy": 10.0} for row in rows()]
    choices = {(c.setting, c.label): c.cells for c in Findings("x", table).choices}
    base = {(row["head"], row["train_shot"], row["test_shot"]): row["accuracy"] for row in rows()}
    cell = choices["glyphs/conv4", "proto, 8-shot"][4]
    assert cell["accuracy"] == pytest.approx(base["proto", 8, 4] + 1)
    assert cell["seeds"] == 2
    assert {setting for setting, _ in choices} == {"glyphs/conv4", "other/conv4"}


def test_the_most_robust_has_the_lowest_sensitivity_and_its_interval_is_the_runs_own(tmp_path: Path) -> None:
    findings = read_runs([write_run(tmp_path / "run", rows())])
    best = min(findings.grids, key=lambda grid: decompose(grid.accuracy).sensitivity)
    name, rest = robust_sentence(findings, "glyphs/conv4")
    sensitivity = decompose(best.accuracy).sensitivity
    assert name == best.name
    ends = f"{sensitivity - 0.2:.2f} to {sensitivity + 0.2:.2f} over episodes"
    assert f"{sensitivity:.2f} points (95 % interval {ends})" in rest


@pytest.mark.parametrize("settled", [True, False])
def test_which_is_more_robust_is_judged_by_the_difference_over_new_classes(tmp_path: Path, settled: bool) -> None:
    folder = write_run(tmp_path / "run", rows())
    where = {"data": "glyphs", "backbone": "conv4", "head": "cosine-proto", "readout": "own", "against": "proto"}
    where |= {"against_readout": "own"}
    ends = {"difference": -3.1, "low_classes": -5.0, "high_classes": -1.2 if settled else 0.3}
    write_table(folder / "sensitivity-differences.csv", [where | ends])
    _, rest = robust_sentence(read_runs([folder]), "glyphs/conv4")
    expected = "+1.20 to +5.00 over new classes." if settled else "-0.30 to +5.00 over new classes, so the order is not"
    assert f"the difference is {expected}" in rest


def test_a_difference_has_its_paired_interval_where_the_recalls_are(tmp_path: Path) -> None:
    table = with_recalls(tmp_path / "run", rows())
    folder = write_run(tmp_path / "run", table)
    findings = read_runs([folder])
    choices = findings.choices
    pairs = findings.paired_intervals["glyphs/conv4"]
    ranked = rank(choices, "glyphs/conv4", {4: 1.0})
    (best, value), (rival, other) = ranked[0], next(pair for pair in ranked if pair[0].head != ranked[0][0].head)
    one, two = (
        read_recalls(next(folder.glob(f"{c.head}-{c.train_shot}-*/recalls-1.npz")))[0].recall[2] for c in (best, rival)
    )
    gap = 100 * (one - two).mean(-1, dtype=np.float64)
    half = half_width(pairs, best.label, rival.label, {4: 1.0})
    assert half == pytest.approx(episode_interval(gap), abs=0.0006)
    assert half < 0.4 * np.hypot(value["ci95"], other["ci95"])
    margin = accurate_slots(ranked, {4: 1.0}, pairs)["margin"]
    assert margin.startswith(f"; {gap.mean():.2f} ± {half:.2f} points above {rival.label}")
    assert WORDS["unpaired"] not in written(tmp_path, folder).split("<script")[0]
    first, second = sorted((best.label, rival.label))
    assert data_of(written(tmp_path, folder))["paired"]["glyphs/conv4"][first][second]["4"] == half


@pytest.mark.parametrize("spoil", ["none", "another model", "cut short", "other episodes"])
def test_without_fitting_recalls_a_difference_is_called_unpaired(tmp_path: Path, spoil: str) -> None:
    table = with_recalls(tmp_path / "run", rows())
    for number, path in enumerate(sorted((tmp_path / "run").glob("*/recalls-1.npz"))):
        if spoil == "none":
            path.unlink()
        elif spoil == "cut short":
            path.write_bytes(path.read_bytes()[:100])
        elif spoil == "other episodes":
            (recalls,) = read_recalls(path)
            write_recalls(path, [replace(recalls, plan={**recalls.plan, "id": f"draw {number}"})])
    if spoil == "another model":
        table = [row | {"model": f"new-{row['model']}"} for row in table]
    page = written(tmp_path, write_run(tmp_path / "run", table))
    assert WORDS["unpaired"] in page.split("<script")[0]
    assert not any(data_of(page)["paired"].values())
    assert "treats the two as independent, which is wider than a paired one" in page


def test_half_of_the_cells_missing(tmp_path: Path) -> None:
    table = [row for i, row in enumerate(rows()) if (i + i // len(TEST_SHOTS)) % 2]
    page = written(tmp_path, write_run(tmp_path / "run", table))
    (grid, *_) = data_of(page)["grids"].values()
    assert grid["why"] == "12 of its 24 cells are missing"
    assert set(grid["views"]) == {"accuracy"}
    assert len(grid["views"]["accuracy"]) == 12
    assert "12 of its 24 cells are missing" in page


def test_a_single_train_shot_says_why_there_is_no_sensitivity(tmp_path: Path) -> None:
    page = written(tmp_path, write_run(tmp_path / "run", rows(train_shots=(8,))))
    assert "trained at 8 shots only, and sensitivity compares at least two train shots" in page
    assert "curves" in data_of(page)["specs"]


MIXED = rows() + rows(heads=("proto-mixed", "cosine-proto-mixed"), train_shots=(16,))


def test_a_model_of_mixed_shots_has_an_accuracy_and_no_sensitivity(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", MIXED)
    findings = read_runs([folder])
    assert {grid.head for grid, _ in list_sensitivities(findings)} == {"proto", "cosine-proto"}
    assert robust_sentence(findings, "glyphs/conv4")[0] == "cosine-proto"
    page = written(tmp_path, folder)
    data = data_of(page)
    labels = {choice["label"] for choice in data["choices"]}
    assert {"proto-mixed", "cosine-proto-mixed", "proto, 16-shot"} <= labels
    for head in ("proto-mixed", "cosine-proto-mixed"):
        (grid,) = [grid for grid in data["grids"].values() if grid["name"] == head]
        assert grid["sensitivity"] is None
        assert set(grid["views"]) == {"accuracy"}
        assert "one model of all train shots" in grid["about"]
        assert data["files"][f"{grid['id']}.csv"].startswith("test shot,mixed\n")
        gains = next(line for line in data["files"]["gains.csv"].splitlines() if f",{head}," in line)
        assert gains.split(",")[2] == "-"
        assert gains.count("(") == len(TEST_SHOTS)
    assert "sensitivity 0.00" not in page
    specs = json.dumps({name: data["specs"][name] for name in ("frontier", "offsets-by-train-shot")})
    assert '"offset": 0.0}' not in specs
    assert "curves" in data["specs"]
    console = Console(file=io.StringIO(), width=200, force_terminal=False)
    print_report(findings, console)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "proto-mixed" in text
    assert "0.00 points" not in text


def test_rows_without_a_train_shot_are_a_curve(tmp_path: Path) -> None:
    table = [{k: v for k, v in row.items() if k not in ("train_shot", "backbone")} for row in rows(train_shots=(0,))]
    data = data_of(written(tmp_path, write_run(tmp_path / "run", table, models=False)))
    assert {c["label"] for c in data["choices"]} == {"proto", "cosine-proto"}
    assert data["setting"] == "glyphs"
    assert "curves" in data["specs"]


def test_unequal_shots_are_shots_with_a_name(tmp_path: Path) -> None:
    table = [
        row | {"test_shot": "uniform", "train_shot": ""} for row in rows(train_shots=(0,)) if row["test_shot"] == 1
    ]
    page = written(tmp_path, write_run(tmp_path / "run", table, models=False))
    assert [list(choice["cells"]) for choice in data_of(page)["choices"]] == [["uniform"]] * 2


def test_consistency_is_drawn_where_it_was_measured(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", rows())
    where = {"data": "glyphs", "backbone": "conv4", "head": "proto", "train_shot": 4, "episodes": 10}
    shares = [
        where | {"score": score, "consistency": share} for score, share in (("euclidean", 40.0), ("cosine", 60.0))
    ]
    write_table(folder / "consistency.csv", shares)
    data = data_of(written(tmp_path, folder))
    assert "consistency" in data["specs"]
    assert "cosine,4,60.0" in data["files"]["consistency.csv"]


def test_one_row_is_enough(tmp_path: Path) -> None:
    page = written(tmp_path, write_run(tmp_path / "run", rows()[:1], models=False))
    assert f"{rows()[0]['accuracy']}" in data_of(page)["files"]["table.csv"]


@pytest.mark.parametrize("evil", ['<script>alert("x")</script>', "</script><b>&", "a|b_c${}", "[bold]x[/bold]"])
def test_names_stay_names(tmp_path: Path, evil: str) -> None:
    table = rows(heads=("proto", evil), data=evil)
    folder = write_run(tmp_path / "run", table)
    page = written(tmp_path, folder)
    assert "<script>alert" not in page
    assert "</script><b>" not in page
    assert {choice["head"] for choice in data_of(page)["choices"]} == {"proto", evil}
    console = Console(file=io.StringIO(), width=200, force_terminal=False)
    print_report(read_runs([folder]), console)
    assert evil in console.file.getvalue()  # type: ignore[attr-defined]


NASTY = st.text(alphabet='<>/script!-"\\ \u2028é', max_size=12)


@given(st.recursive(NASTY | st.none() | st.integers(), lambda x: st.lists(x) | st.dictionaries(NASTY, x), max_leaves=5))
def test_data_in_a_script_cannot_end_it(value: object) -> None:
    text = as_script(value)
    assert "<" not in text
    assert json.loads(text) == value


def test_several_runs_together(tmp_path: Path) -> None:
    one = write_run(tmp_path / "one", rows(heads=("proto",)))
    two = write_run(tmp_path / "two", rows(heads=("cosine-proto",)))
    assert {grid.head for grid in read_runs([one, two]).grids} == {"proto", "cosine-proto"}
    assert len(read_runs([one, one]).rows) == len(rows(heads=("proto",)))


def test_runs_that_differ_keep_their_names(tmp_path: Path) -> None:
    one = write_run(tmp_path / "one", rows())
    two = write_run(tmp_path / "two", [row | {"model": "another"} for row in rows(seed=1)])
    both = read_runs([one, two])
    assert {grid.head for grid in both.grids} == {
        f"{head}{AT}{run}" for head in ("proto", "cosine-proto") for run in ("one", "two")
    }
    assert len(list_sensitivities(both)) == 4
    assert all(isinstance(row["low"], float) for _, row in list_sensitivities(both))


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda folder: None, "is not a run: it is empty"),
        (lambda folder: (folder / "notes.txt").write_text("x"), "it has no table.csv. .* `anyshot evaluate --out`"),
        (lambda folder: (folder / "test.html").write_text("x"), "it has a page of its own, .*test.html"),
        (lambda folder: (folder / "advice.html").write_text("x"), "it has a page of its own, .*advice.html"),
        (lambda folder: (folder / "table.csv").write_text("data,head,test_shot,accuracy\n"), "holds no accuracy yet"),
        (lambda folder: (folder / "table.csv").write_text("data,head\nx,y\n"), "line 2 of .* has no test_shot"),
        (
            lambda folder: (folder / "table.csv").write_text("data,head,test_shot,accuracy\nx,y,1,good\n"),
            "line 2 of .* has 'good' for accuracy",
        ),
    ],
)
def test_a_folder_that_is_no_run_gets_one_clear_sentence(tmp_path: Path, make: object, sentence: str) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    make(folder)  # type: ignore[operator]
    with pytest.raises(BadInput, match=sentence):
        written(tmp_path, folder)


def test_no_folder_and_nothing_named(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="there is no folder"):
        written(tmp_path, tmp_path / "nowhere")
    with pytest.raises(BadInput, match="name at least one"):
        written(tmp_path)


def test_beside_the_paper(tmp_path: Path) -> None:
    theirs = {(r["train_shot"], r["test_shot"]): r["accuracy"] for r in paper_findings().rows if _is_cub_proto(r)}
    table = [row | {"accuracy": theirs[row["train_shot"], row["test_shot"]]} for row in rows(("proto",), data="cub")]
    ours, paper = comparison_with_paper(build_grids(table)).rows
    assert (ours[2], paper[2]) == ("ours", "paper")
    assert ours[3:] == paper[3:]
    data = data_of(written(tmp_path, write_run(tmp_path / "run", table)))
    assert "paper-cub-conv4-proto-own" in data["grids"]
    assert (
        data["grids"]["paper-cub-conv4-proto-own"]["sensitivity"] == data["grids"]["cub-conv4-proto-own"]["sensitivity"]
    )


def _is_cub_proto(row: dict) -> bool:
    return (row["data"], row["backbone"], row["head"], row["readout"]) == ("cub", "conv4", "proto", "own")


def test_the_paper_as_a_report_is_small_and_holds_its_tables(tmp_path: Path) -> None:
    page = written(tmp_path, paper=True)
    assert len(page.encode()) < 2_000_000  # Vega adds 0.9 MB: together under 3 MB
    assert "What holds in the paper" in page
    data = data_of(page)
    assert len(data["grids"]) == 49
    table = {(row[0], row[1]): row[2] for row in sensitivity_table(paper_findings()).rows}
    assert table["meta-inat/conv4", "proto"] == "14.86"  # as Table 2 prints it
    assert table["meta-inat/conv4", "cosine-proto"] == "2.13"


def test_every_table_and_figure_can_be_taken_away(tmp_path: Path) -> None:
    page = written(tmp_path, write_run(tmp_path / "run", rows()), paper=True)
    data = data_of(page)
    asked = set(re.findall(r'data-file="([^"]+)"', page))
    assert asked <= data["files"].keys()
    assert all(data["files"][name].strip() for name in asked)
    assert set(re.findall(r'data-picture="([^"]+)"', page)) <= {*data["specs"], "grids"}
    assert r"\toprule" in data["files"]["sensitivity.tex"]
    (grid, *_) = build_grids(rows())
    numbers = re.findall(r"\d+\.\d\d", data["files"]["glyphs-conv4-proto-own.csv"].split("model bias")[0])
    printed = np.array(numbers, float).reshape(len(grid.test_shots), -1)
    np.testing.assert_allclose(printed[:, :-1], grid.accuracy, atol=0.00501)


def test_ids_are_unique_and_tables_stand_behind_figures(tmp_path: Path) -> None:
    page = written(tmp_path, write_run(tmp_path / "run", rows()), paper=True)
    ids = re.findall(r'\sid="([^"]+)"', page)
    assert len(ids) == len(set(ids))
    for name in re.findall(r'data-figure="([^"]+)"', page):
        assert f'id="table-{name}"' in page


def test_methods_say_protocol_versions_and_seeds(tmp_path: Path) -> None:
    page = written(tmp_path, write_run(tmp_path / "run", rows()))
    text = data_of(page)["files"]["methods.txt"]
    for words in (
        "1,000 5-way episodes",
        "16 queries",
        "seed 7",
        "torch 2.13.0",
        "64 classes of 4",
        "epochs 3",
        "lr 0.1",
    ):
        assert words in text


def test_text_prints_answer_sensitivities_and_a_coloured_heatmap(tmp_path: Path) -> None:
    findings = read_runs([write_run(tmp_path / "run", rows())])
    console = Console(file=io.StringIO(), width=100, force_terminal=True, color_system="truecolor")
    print_report(findings, console)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "is the most robust" in text
    assert "\x1b[38;2;" in text or "48;2;" in text
    for grid, _ in list_sensitivities(findings):
        assert f"{grid.parts.sensitivity:.2f}" in text


def test_text_answers_for_every_setting(tmp_path: Path) -> None:
    other = [row | {"data": "other"} for row in rows()]
    third = [row | {"data": "third"} for row in rows()]
    console = Console(file=io.StringIO(), width=100)
    print_report(read_runs([write_run(tmp_path / "run", [*rows(), *other, *third])]), console)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    for setting in ("glyphs/conv4", "other/conv4", "third/conv4"):
        answer = text[text.index(f"{setting}:") :]
        assert "is the most robust" in answer.split(":", 2)[1], setting


def test_one_rounding_everywhere() -> None:
    """A tie goes away from zero in every table and page, however it is held in binary."""
    assert [format_decimals(value) for value in (0.125, 2.675, -0.004, 1.005)] == ["0.13", "2.68", "0.00", "1.01"]
    assert format_decimals(2.675, "+") == "+2.68"
    assert format_number(2.675) == "2.68"
    source = Path(anyshot.report.__file__).parents[1]
    pages = [path for path in source.rglob("*.py") if path.parent.name != "paper"]  # which rounds exact bounds itself
    others = [path.name for path in pages if re.search(r"\{[^{}]*:\+?\.2f\}", path.read_text(encoding="utf-8"))]
    assert not others, "two decimals are written by text.format_decimals"


def test_text_gives_a_remark_once_below_the_table(tmp_path: Path) -> None:
    one = [row for row in rows() if row["train_shot"] == 8]
    mixed = [row | {"head": f"{row['head']}-mixed"} for row in one]
    findings = read_runs([write_run(tmp_path / "run", [*rows(), *mixed])])
    console = Console(file=io.StringIO(), width=80)
    print_report(findings, console)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert text.count("no sensitivity") == 1


def test_a_table_of_80_columns_breaks_no_number_and_no_word(tmp_path: Path) -> None:
    long = [row | {"head": "cosine-proto", "readout": readout} for row in rows() for readout in ("posterior", "est60")]
    console = Console(file=io.StringIO(), width=80)
    print_report(read_runs([write_run(tmp_path / "run", [*rows(), *long])]), console)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    lines = text.partition("Shot sensitivity")[2].split("residual")[0].splitlines()
    assert any(re.match(r"cosine-proto +\d", line) for line in lines)
    assert any(line.startswith(("(posterior)", "cosine-proto (posterior)")) for line in lines)
    assert all(len(line) <= 80 for line in lines)
    numbers = [re.findall(r"\d+\.\d\d", line) for line in lines if re.match(r"[a-z].*\d\.\d\d", line)]
    assert numbers
    assert len({len(row) for row in numbers}) == 1


def test_long_learning_curves_are_thinned_to_their_ends() -> None:
    where = {"data": "d", "backbone": "b", "head": "h", "seed": 0}
    history = [where | {"train_shot": s, "epoch": float(e), "loss": 1.0 / e} for s in (4, 8) for e in range(1, 801)]
    shown = thin_history(history, "loss")
    assert len(shown) <= 120
    assert [row["epoch"] for row in shown if row["train_shot"] == 4][:: len(shown) // 2 - 1] == [1.0, 800.0]


def test_learning_curves_of_mixed_shots_name_no_train_shot() -> None:
    where = {"data": "d", "backbone": "b", "seed": 0, "train_shot": 16, "epoch": 1.0, "loss": 1.0}
    chart = learning_curves([where | {"head": head} for head in ("proto-mixed", "proto")], ["loss"], "loss").to_dict()
    (values,) = chart["datasets"].values()
    assert [value["train shot"] for value in values] == ["mixed", 16]
    assert chart["spec"]["layer"][0]["encoding"]["color"]["scale"]["domain"] == [16, "mixed"]


def test_why_is_empty_only_for_a_grid_with_a_sensitivity() -> None:
    assert [grid.why_no_sensitivity for grid in build_grids(rows())] == ["", ""]
    assert "tested at 4-shot only" in build_grids([r for r in rows() if r["test_shot"] == 4])[0].why_no_sensitivity


def test_a_report_imports_no_torch(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", rows())
    code = (
        "import sys; from pathlib import Path\n"
        "from anyshot.report import page, text\n"
        "page.vega_code = lambda: ''\n"
        f"page.write_report([Path({str(folder)!r})], Path({str(tmp_path / 'r.html')!r}), paper=True)\n"
        f"text.show_report([Path({str(folder)!r})])\n"
        "assert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", f"import anyshot.report.page\n{code}"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_verb_writes_a_page_or_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from anyshot.cli.main import main

    folder = write_run(tmp_path / "run", rows())
    monkeypatch.setattr(sys, "argv", ["anyshot", "report", str(folder), "-o", str(tmp_path / "page.html")])
    main()
    assert capsys.readouterr().out == f"open {tmp_path / 'page.html'}\n"
    assert "glyphs" in (tmp_path / "page.html").read_text(encoding="utf-8")
    monkeypatch.setattr(sys, "argv", ["anyshot", "report", str(tmp_path)])
    with pytest.raises(SystemExit) as left:
        main()
    assert left.value.code == 2
    assert "is not a run: it has no table.csv" in capsys.readouterr().err


def test_a_run_whose_table_has_deviation_and_trend_shows_them_with_their_intervals(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", rows())
    assert "trend" not in sensitivity_table(read_runs([folder])).columns
    table = read_table(folder / "sensitivity.csv")
    more = {"deviation": 0.25, "trend": -0.69, "trend_low_classes": -1.0, "trend_high_classes": -0.38}
    write_table(folder / "sensitivity.csv", [row | more for row in table])
    shown = sensitivity_table(read_runs([folder]))
    assert shown.rows[0][shown.columns.index("trend")] == "-0.69 (-1.00 to -0.38)"
    assert shown.rows[0][shown.columns.index("deviation")] == "0.25"
    assert "positive where models overfit" in written(tmp_path, folder)
