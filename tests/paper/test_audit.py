"""The transcription is the source's, the audit's arithmetic is exact, and what it finds is there."""

import csv
import importlib.util
import io
import json
import os
import re
import subprocess
import sys
from collections import Counter
from fractions import Fraction
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.optimize import linprog

from anyshot import decompose
from anyshot.measure.grid import build_grids
from anyshot.paper import audit, checks, printed, rounding
from anyshot.paper.printed import TEST_SHOTS, TRAIN_SHOTS, Group
from anyshot.paper.rounding import HIGH, LOW, SLACK, VALUE, Exact, half_unit, judge, judge_twice, parse
from anyshot.train.batches import training_batches

ROOT = Path(__file__).parents[2]
SOURCE = ROOT.parent / "shared" / "paper.tex"
CHECKS = audit.run_checks()


@pytest.fixture(scope="module")
def source() -> str:
    if not SOURCE.exists():
        pytest.skip("the paper's LaTeX source is not at ../shared/paper.tex, so nothing can be transcribed again")
    return SOURCE.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def transcriber() -> ModuleType:
    spec = importlib.util.spec_from_file_location("transcribe_paper", ROOT / "tools" / "transcribe_paper.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# The transcription


def test_transcribing_again_gives_the_committed_numbers(source: str, transcriber: ModuleType) -> None:
    file = io.StringIO()
    writer = csv.DictWriter(file, transcriber.COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(transcriber.transcribe(source))
    assert file.getvalue() == (ROOT / "src/anyshot/paper/numbers.csv").read_text(encoding="utf-8")


def test_no_number_of_the_source_is_left_out(source: str, transcriber: ModuleType) -> None:
    assert transcriber.left_over(source) == []
    in_tables = sum(row["table"].startswith("Table") for row in printed.numbers())
    grids_with_six_test_shots = 50 * 6  # a grid's lines open with their test shot, a column of ours
    assert transcriber.numbers_in_tables(source) == in_tables + grids_with_six_test_shots


def test_decimals_are_those_a_blunt_search_finds(source: str) -> None:
    """Not a parser: every number with two decimals between the tabulars' begin and end, wherever it stands."""
    tabulars = re.findall(r"\\begin\{tabularx?\}.*?\\end\{tabularx?\}", source, flags=re.S)
    blunt = Counter(re.findall(r"(?<![\d.])[-+]?\d+[.,]\d\d(?!\d|\\linewidth)", " ".join(tabulars)))
    in_tables = [row["printed"] for row in printed.numbers() if row["table"].startswith("Table")]
    assert blunt == Counter(number for number in in_tables if re.fullmatch(r"[-+]?\d+[.,]\d\d", number))


def test_fifty_grids_are_whole() -> None:
    assert len(printed.exact_grids()) == 50
    assert len(printed.study()) == 48
    assert all(grid.cells.shape == (6, 4) for grid in printed.exact_grids().values())
    quantities = Counter(row["quantity"] for row in printed.numbers())
    assert (quantities["accuracy"], quantities["offset"], quantities["gain"]) == (1200, 200, 180)
    assert quantities["mean"] == 50 * 6 + 48 * 6
    assert quantities["sensitivity"] == 50 + 48 + 48


def test_paper_rows_are_ordinary_rows() -> None:
    listed = build_grids(printed.rows())
    assert len(listed) == 49
    assert {grid.data for grid in listed} == {"cub", "mini", "tiered", "meta-inat"}
    assert {grid.backbone for grid in listed} == {"conv4", "resnet12"}
    assert {grid.readout for grid in listed} == {"own", "pca60", "est60"}
    assert all((grid.test_shots, grid.train_shots) == (TEST_SHOTS, TRAIN_SHOTS) for grid in listed)
    assert all(np.isfinite(grid.accuracy).all() for grid in listed)


# Rounding


@pytest.mark.parametrize(
    ("text", "value", "half"),
    [
        ("-1,97", "-1.97", "0.005"),
        ("+6.46", "6.46", "0.005"),
        ("3.2", "3.2", "0.05"),
        (".059", "0.059", "0.0005"),
        ("7", "7", "1/2"),
        ("779,165", "779165", "1/2"),
        ("10K", "10000", "500"),
    ],
)
def test_printed_numbers_are_read_as_meant(text: str, value: str, half: str) -> None:
    assert parse(text) == Fraction(value)
    assert half_unit(text) == Fraction(half)


TRUE_GRIDS = arrays(np.int64, (6, 4), elements=st.integers(200_000, 999_999))  # ten-thousandths of a point


@given(TRUE_GRIDS)
def test_honest_rounding_is_never_contradicted(true: np.ndarray) -> None:
    """Round a grid of finer numbers to hundredths, its margins too: the audit must accept every one of them."""
    shown = Exact(np.array([[round(Fraction(int(cell), 100)) for cell in row] for row in true]))
    finer = Exact(true)  # in units of a ten-thousandth, so a hundred times too large
    pairs = [*zip(finer.means, shown.means, strict=True), *zip(finer.offsets, shown.offsets, strict=True)]
    for exact, derived in [*pairs, (finer.sensitivity, shown.sensitivity)]:
        text = f"{round(exact[VALUE]) / 100:.2f}"
        assert judge(text, derived) in ("holds", "rounding")


@given(TRUE_GRIDS, st.integers(0, 3))
def test_rounding_can_move_a_number_as_far_as_said_and_no_farther(true: np.ndarray, column: int) -> None:
    """Push every cell by 49 of the 50 parts that rounding hides, each the way that moves the number most."""
    shown = Exact(true // 100)
    towards = np.where(np.arange(4) == column, 49, -49) * np.ones((6, 1), dtype=np.int64)
    for push, parts in ((towards, "offsets"), (np.full((6, 4), 49), "means")):
        moved = getattr(Exact(shown.cells * 100 + push), parts)[column]
        derived = getattr(shown, parts)[column]
        pushed = moved[VALUE] / 100 - derived[VALUE]
        above, below = derived[HIGH] - derived[VALUE], derived[VALUE] - derived[LOW]
        assert pushed == Fraction(49, 50) * above == Fraction(49, 50) * below


@given(TRUE_GRIDS, st.integers(0, 3))
def test_what_rounding_cannot_explain_is_contradicted(cells: np.ndarray, column: int) -> None:
    grid = Exact(cells // 100)
    for derived in (*grid.means, grid.offsets[column], grid.sensitivity):
        beyond = derived[HIGH] + Fraction(11, 1000)
        assert judge(f"{float(beyond):.2f}", derived) == "contradicted"


@given(TRUE_GRIDS)
def test_exact_parts_are_the_decomposition(cells: np.ndarray) -> None:
    grid = Exact(cells // 100)
    parts = decompose(grid.cells / 100)
    np.testing.assert_allclose([float(k[VALUE]) for k in grid.means], parts.test_bias, atol=1e-9)
    np.testing.assert_allclose([float(k[VALUE]) for k in grid.offsets], parts.model_bias, atol=1e-9)
    np.testing.assert_allclose(float(grid.sensitivity[VALUE]), parts.sensitivity, atol=1e-9)


@pytest.mark.parametrize("key", list(printed.exact_grids()), ids=str)
def test_range_of_the_residual_has_the_bounds_of_a_linear_program(key: tuple[str, Group]) -> None:
    """The smallest range any unrounded cells can have, by a solver; the largest is attained by construction."""
    cells = printed.exact_grids()[key].cells
    differences, _ = rounding._residual_differences(*cells.shape)
    weights = differences.reshape(-1, cells.size) / cells.size
    above = np.hstack([weights, -np.ones((len(weights), 1))])
    bounds = [(-0.5, 0.5)] * cells.size + [(None, None)]
    bound = linprog(np.r_[np.zeros(cells.size), 1], A_ub=above, b_ub=-weights @ cells.ravel(), bounds=bounds)
    assert bound.fun / 100 == pytest.approx(float(printed.exact_grids()[key].sensitivity[LOW]), abs=1e-7)


def test_two_prints_of_a_tie_are_rounding_and_others_are_not() -> None:
    tie = Fraction("65.395") + SLACK
    assert judge_twice("65.40", "65.39", tie) == "rounding"
    assert judge_twice("65.40", "65.40", tie) == "holds"
    assert judge_twice("71.71", "71.72", Fraction("71.7225") + SLACK) == "contradicted"
    assert judge_twice("83.37", "83.87", Fraction("83.8675") + SLACK) == "contradicted"


# The audit


CONTRADICTED = {
    "sensitivity-factor": "4.5",
    "same-data": "same",
    "four-shot-cosine-below": "none",
    "table-2/cub/resnet12/frn/own/sensitivity": "2.80",
    "table-5/cub/resnet12/frn/own/sensitivity": "2.80",
    "table-20/cub/resnet12/frn/own/sensitivity": "2.80",
    "table-4/meta-inat/conv4/frn-old/own/sensitivity": "2.60",
    "table-4/meta-inat/conv4/frn/own/sensitivity": "2.30",
    "table-4/meta-inat/conv4/frn/own/sensitivity/twice": "2.30",
    "table-5/cub/conv4/proto/est60/mean/32": "83.37",
    "table-5/cub/conv4/proto/est60/mean/32/twice": "83.37",
    "table-5/cub/conv4/cosine-feat/own/mean/2": "71.71",
    "table-5/cub/conv4/cosine-feat/own/mean/2/twice": "71.71",
    "table-6/mini/conv4/proto/pca60/gain/8": "-0.66",
    "table-7/tiered/resnet12/proto/est60/gain/8": "-0.27",
    "table-7/tiered/resnet12/proto/est60/gain/16": "-0.14",
}


def test_the_contradictions_are_these_and_no_others() -> None:
    assert {check.id: check.printed for check in CHECKS if check.verdict == "contradicted"} == CONTRADICTED


def test_contradictions_have_ten_roots() -> None:
    roots = Counter(check.root for check in CHECKS if check.verdict == "contradicted")
    assert len(roots) == 10
    assert roots["cub/resnet12/frn/own/sensitivity"] == 4  # three tables, and the factor of 4.5
    assert "They have 10 roots" in audit.markdown(CHECKS)


def test_models_of_different_shots_do_not_see_the_same_data() -> None:
    """As many batches as a pass gives over a hundred classes of CUB's mean size."""
    from anyshot.paper.claims import CUB_BATCHES, CUB_IMAGES

    labels = np.repeat(np.arange(100), [60] * 50 + [58] * 47 + [59] * 3)
    assert len(labels) == CUB_IMAGES
    for shot, batches in CUB_BATCHES.items():
        passes = [len(training_batches(labels, 256 // shot, shot, 0, epoch)) for epoch in range(10)]
        assert min(passes) <= batches <= max(passes)


def test_contradicted_table_numbers_by_floating_point() -> None:
    """The same findings from the other side: plain numpy on the rows, and the most that rounding can move a number."""
    parts = {(g.data, g.backbone, g.head, g.readout): decompose(g.accuracy) for g in build_grids(printed.rows())}
    wrong = set()
    for row in printed.numbers():
        group = printed.group(row)
        if group not in parts or row["quantity"] in ("accuracy", "consistency"):
            continue
        shot = TEST_SHOTS.index(row["test_shot"]) if row["test_shot"] else None
        mine, base = parts[group], parts[group.euclidean] if group.head != "frn-old" else None
        values = {
            "mean": lambda p=mine, s=shot: p.test_bias[s],
            "gain": lambda p=mine, b=base, s=shot: p.test_bias[s] - b.test_bias[s],
            "offset": lambda p=mine, r=row: p.model_bias[TRAIN_SHOTS.index(r["train_shot"])],
            "sensitivity": lambda p=mine: p.sensitivity,
        }
        allowed = {"mean": 0.01, "gain": 0.015, "offset": 0.0125, "sensitivity": 0.0235}[row["quantity"]]
        if abs(float(parse(row["printed"])) - values[row["quantity"]]()) > allowed + 1e-9:
            wrong.add((row["table"], row["printed"]))
    listed = [check for check in CHECKS if check.verdict == "contradicted"]
    assert wrong == {(check.where, check.printed) for check in listed if audit.kind(check) in ("grid", "summary")}


def test_every_table_number_that_can_be_derived_is_checked() -> None:
    derived = sum(row["quantity"] in ("mean", "offset", "sensitivity", "gain") for row in printed.numbers())
    kinds = Counter(audit.kind(check) for check in CHECKS)
    assert kinds["grid"] + kinds["summary"] == derived == 50 * 11 + 48 * (6 + 1) + 180 + 48
    assert kinds["twice"] == 48 * (6 + 1 + 1) + 35  # the summary tables, and the FRN grid that is printed twice
    assert len({check.id for check in CHECKS}) == len(CHECKS)


def test_claims_have_their_known_answers() -> None:
    by_id = {check.id: check for check in CHECKS}
    readings = {check.id: {r.reading: (r.recomputed, r.verdict) for r in check.readings} for check in CHECKS}
    assert by_id["one-shot-gain"].verdict == "holds"
    assert by_id["single-exception"].verdict == "holds"
    assert by_id["cosine-beats-projections"].recomputed == "6 of 6"
    assert readings["gain-without-four-shot"] == {
        "group mean without them minus group mean with them": ("0.368", "contradicted"),
        "other three models minus the 4-shot model": ("1.472", "holds"),
    }
    assert by_id["gain-without-four-shot"].disputed
    assert readings["worst-cosine-best-euclidean"]["PCA and EST counted as Euclidean"][1] == "contradicted"
    assert readings["high-shot-loss-bounded"]["32-shot"] == ("1.03", "contradicted")
    assert "4.501" in by_id["sensitivity-factor"].recomputed
    assert by_id["confidence-intervals"].verdict == "underivable"
    assert by_id["proto-range"].disputed
    assert by_id["score-bounds-performance"].disputed
    assert "in 6 of 48 grids" in by_id["score-bounds-performance"].recomputed


def test_a_claim_takes_its_best_reading_and_a_reading_its_worst_part() -> None:
    good, bad = checks.true_or_false(True, "yes"), checks.true_or_false(False, "no")
    assert checks.all_parts_hold(good, bad).verdict == "contradicted"

    def two_readings() -> checks.Evidence:
        """Sec. 0: words."""
        return "1", [bad, good, "a remark"]

    disputed = checks.check_claim(two_readings)
    assert (disputed.id, disputed.where, disputed.claim) == ("two-readings", "Sec. 0", "words")
    silent = checks.check_claim(lambda: ("1", ["only a remark"]))
    assert (disputed.verdict, disputed.disputed, disputed.recomputed) == ("holds", True, "no; yes; a remark")
    assert (silent.verdict, silent.disputed, silent.readings) == ("underivable", False, ())


def test_mean_ratio_of_table_2_and_of_the_grids_by_hand() -> None:
    recomputed = {
        (g.data, g.backbone, g.head, g.readout): decompose(g.accuracy).sensitivity for g in build_grids(printed.rows())
    }
    as_printed = {printed.group(row): float(row["printed"]) for row in printed.find("sensitivity", "Table 2")}
    for table, expected in ((as_printed, 4.501), (recomputed, 3.944)):
        ratios = [table[g.euclidean] / table[g] for g in as_printed if g.head.startswith("cosine-")]
        assert len(ratios) == 18
        assert np.mean(ratios) == pytest.approx(expected, abs=5e-4)


def test_the_page_is_the_generated_one() -> None:
    page = (ROOT / "docs" / "paper.md").read_text(encoding="utf-8")
    assert page == audit.markdown(CHECKS), "write it again: anyshot paper audit --markdown > docs/paper.md"


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """The command line in a fresh process, which ends by naming the heavy modules it imported."""
    code = "import sys; from anyshot.cli.main import main; main(); "
    code += "print(*(m for m in ('torch', 'altair') if m in sys.modules), file=sys.stderr)"
    command = [sys.executable, "-c", code, *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


def test_audit_is_json_without_torch() -> None:
    done = run("paper", "audit", "--json")
    objects = json.loads(done.stdout)
    assert len(objects) == len(CHECKS)
    assert {"id", "where", "claim", "printed", "recomputed", "verdict"} <= set(objects[0])
    assert {o["verdict"] for o in objects} == {"holds", "rounding", "contradicted", "underivable"}
    assert done.stderr == "\n"  # no heavy module was named


def test_audit_shows_contradictions_first_and_ends_with_the_count() -> None:
    lines = run("paper", "audit").stdout.strip().splitlines()
    assert lines[0].startswith("Contradicted (16)")
    assert lines[-1].startswith(f"{len(CHECKS)} checks: ")


def test_tables_are_written(tmp_path: Path) -> None:
    done = run("paper", "tables", "-o", str(tmp_path), "--format", "csv")
    assert done.returncode == 0, done.stderr
    assert len(list(tmp_path.glob("*.csv"))) == 1 + 3 + 49


def test_regenerated_tables_equal_the_printed_ones_but_for_what_the_audit_lists() -> None:
    from anyshot.show.summaries import gain_summary

    wrong = {check.id for check in CHECKS if check.verdict in ("contradicted", "rounding")}
    study = [grid for grid in build_grids(printed.rows()) if grid.head != "frn-old"]
    rows = {tuple(row[:2]): row[2:] for row in gain_summary(study).rows}
    differing = 0
    for row in printed.numbers():
        if row["table"] in ("Table 5", "Table 6", "Table 7") and row["quantity"] in ("mean", "gain"):
            group = printed.group(row)
            cell = rows[group.setting, group.name][1 + TEST_SHOTS.index(row["test_shot"])]
            shown = re.findall(r"[-+]?[\d.]+", cell)[0 if row["quantity"] == "mean" else 1]
            id = "/".join([row["table"].lower().replace(" ", "-"), *group, row["quantity"], str(row["test_shot"])])
            if abs(parse(shown) - parse(row["printed"])) > Fraction(1, 100):
                assert id in wrong
            differing += parse(shown) != parse(row["printed"])
    assert differing < 30
