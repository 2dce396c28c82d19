"""What is published says what the run says; models that come with a study are tested as they were."""

import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from helpers.shell import exit_code

from anyshot.errors import BadInput
from anyshot.report.runs import read_runs
from anyshot.study.publishing import publish
from anyshot.study.ready import run_ready, write_ready
from anyshot.study.runner import run_study
from anyshot.study.study import StudySource
from anyshot.tables import read_table, write_table


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """A small study of its own folder, run: its source, its results and its data."""
    folder = tmp_path_factory.mktemp("published")
    shutil.copy(Path(__file__).parents[1] / "helpers" / "own_study.py", folder / "own_study.py")
    source = StudySource(folder / "own_study.py", ("proto", "cosine-proto", "frn"))
    run_study(source, folder / "run", folder / "data", workers=2)
    return source, folder / "run", folder / "data"


@pytest.fixture(scope="module")
def published(ran, tmp_path_factory):
    source, run, data = ran
    out = tmp_path_factory.mktemp("results") / "own"
    publish(source, run, data, out)
    return out


def test_a_report_of_what_is_published_has_the_runs_numbers(ran, published):
    ours, theirs = read_runs([ran[1]]), read_runs([published])
    assert str(theirs.rows) == str(ours.rows)  # as text: an interval may be NaN
    assert theirs.sensitivities == ours.sensitivities
    assert theirs.recipes == ours.recipes
    assert theirs.history == ours.history


@pytest.mark.parametrize(
    ("cells", "gains", "shots"),
    [("table", "gains", [1, 2, 4]), ("unequal", "unequal-gains", ["step", "long-tailed"])],
)
def test_gains_are_the_differences_of_the_tables_accuracies(published, cells, gains, shots):
    rows = [row for row in read_table(published / f"{cells}.csv") if row["readout"] == "own"]
    table = read_table(published / f"{gains}.csv")
    assert [row["test_shot"] for row in table if row["train_shot"] == "all"] == [*shots, "all"]
    for gain in table:
        cells = [row for row in rows if all(gain[of] in ("all", row[of]) for of in ("train_shot", "test_shot"))]
        mean = {
            head: np.mean([row["accuracy"] for row in cells if row["head"] == head])
            for head in (gain["head"], gain["against"])
        }
        assert gain["gain"] == pytest.approx(mean[gain["head"]] - mean[gain["against"]], abs=1e-3)


def test_a_cosine_head_alone_has_no_gains(ran, tmp_path):
    publish(*ran, tmp_path / "own", only="cosine-proto")
    assert read_table(tmp_path / "own" / "gains.csv") == []
    assert "unequal-gains" not in (tmp_path / "own" / "README.md").read_text(encoding="utf-8")


def test_models_of_one_train_shot_are_published_without_a_sensitivity(ran, tmp_path):
    publish(*ran, tmp_path / "own", only="2-shot")
    assert {row["train_shot"] for row in read_table(tmp_path / "own" / "table.csv")} == {2}
    assert not (tmp_path / "own" / "sensitivity.csv").exists()
    page = (tmp_path / "own" / "README.md").read_text(encoding="utf-8")
    assert "Data and backbone: tiny/conv4." in page
    assert "Sensitivity" not in page


def test_the_page_names_the_setting_and_commands_that_work(ran, published, tmp_path, monkeypatch, capsys):
    """A study of the user's is named by its file, in whose folder the commands of the page are run."""
    source, run, data = ran
    page = (published / "README.md").read_text(encoding="utf-8")
    assert "| tiny/conv4 | cosine-proto" in page
    monkeypatch.chdir(source.path.parent)
    study, again = re.findall("`(anyshot .+?)`", page)
    assert exit_code(monkeypatch, *study.split()[1:], "--out", run, "--data", data) == 0  # all models are done
    assert "is the most robust" in capsys.readouterr().out
    again = again.replace("FOLDER", str(tmp_path / "own"))
    assert exit_code(monkeypatch, *again.split()[1:], "--run", run, "--data", data) == 0
    assert (tmp_path / "own" / "README.md").read_text(encoding="utf-8") == page


def test_each_model_has_its_side_experiments(ran, published):
    models = len(read_table(published / "table.csv")) and {row["model"] for row in read_table(published / "table.csv")}
    consistency, terms = (read_table(published / f"{name}.csv") for name in ("consistency", "terms"))
    assert len(models) == 6
    assert len(consistency) == 4 * 2  # proto and cosine-proto at two train shots, under two scores
    assert [row["train_shot"] for row in terms] == [2, 4]
    assert {path.suffix for path in (published / "figures").iterdir()} == {".svg"}


def test_no_weights_and_no_images_are_published(published):
    files = [path for path in published.rglob("*") if path.is_file()]
    assert {path.suffix for path in files} == {".csv", ".json", ".svg", ".md"}
    assert max(path.stat().st_size for path in files) < 1e6


def test_publishing_again_replaces_what_was_there(ran, published, tmp_path):
    source, run, data = ran
    shutil.copytree(published, tmp_path / "own")
    shutil.copytree(published, tmp_path / "own" / "second-training")
    (tmp_path / "own" / "old.csv").write_text("stale")
    publish(source, run, data, tmp_path / "own")
    assert not (tmp_path / "own" / "old.csv").exists()
    assert (tmp_path / "own" / "table.csv").read_bytes() == (published / "table.csv").read_bytes()
    assert (tmp_path / "own" / "second-training" / "README.md").exists(), "another training stays"


def test_a_part_is_added_and_what_is_there_stays(ran, published, tmp_path):
    """Published model by model it is the same as published at once, but for the order of its rows."""
    source, run, data = ran
    out = tmp_path / "own"
    for number, head in enumerate(("proto", "cosine-proto", "frn")):
        publish(source, run, data, out, only=head, add=number > 0)
    publish(source, run, data, out, add=True)  # what compares heads, and nothing else, is new
    files = {path.relative_to(published) for path in published.rglob("*") if path.is_file()}
    assert {path.relative_to(out) for path in out.rglob("*") if path.is_file()} == files
    for path in files:
        if path.suffix == ".csv":
            whole, parts = (
                sorted(map(str, map(sorted_items, read_table(folder / path)))) for folder in (published, out)
            )
            assert parts == whole, path


def sorted_items(row):
    return sorted(row.items())


def test_columns_that_came_later_are_filled_in(ran, published, tmp_path):
    source, run, data = ran
    out = tmp_path / "own"
    shutil.copytree(published, out)
    later = {
        "table": ("learner", "score", "mixed"),
        "sensitivity": ("deviation", "low_classes"),
        "gains": ("data", "backbone"),
    }
    for name, columns in later.items():
        rows = read_table(out / f"{name}.csv")
        write_table(out / f"{name}.csv", [{k: v for k, v in row.items() if k not in columns} for row in rows])
    publish(source, run, data, out, only="proto,cosine-proto", add=True)
    for name in later:
        whole, parts = (map(sorted_items, read_table(folder / f"{name}.csv")) for folder in (published, out))
        for one, other in zip(whole, parts, strict=True):
            assert one == other or ("head", "frn") in other


@pytest.mark.parametrize(("table", "value"), [("table", "accuracy"), ("sensitivity", "sensitivity")])
def test_what_is_published_is_not_changed_by_adding_another_training(ran, published, tmp_path, table, value):
    source, run, data = ran
    out = tmp_path / "own"
    shutil.copytree(published, out)
    rows = read_table(out / f"{table}.csv")
    rows[0][value] += 0.02
    write_table(out / f"{table}.csv", rows)
    with pytest.raises(BadInput, match="is published for"):
        publish(source, run, data, out, add=True)
    with pytest.raises(BadInput, match="nothing published"):
        publish(source, run, data, tmp_path / "none", add=True)


def test_nothing_but_what_was_published_is_replaced(ran, tmp_path):
    source, run, data = ran
    (tmp_path / "thesis.txt").write_text("years of work")
    for precious in (tmp_path, run, tmp_path / "thesis.txt"):
        with pytest.raises(BadInput, match="name a new or empty folder"):
            publish(source, run, data, precious)
    assert (tmp_path / "thesis.txt").read_text() == "years of work"
    assert (run / "table.csv").exists()


def test_a_study_that_was_not_run_is_not_published(ran, tmp_path):
    source, run, data = ran
    shutil.copytree(run, tmp_path / "run")
    shutil.rmtree(next(tmp_path.glob("run/*frn*")))
    with pytest.raises(BadInput, match="run the whole study first"):
        publish(source, tmp_path / "run", data, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_models_that_come_with_a_study_are_tested_without_its_data(ran, tmp_path):
    source, run, data = ran
    study = source.load()
    folder = write_ready(source, study, [recipe for recipe in study.recipes if recipe.head != "frn"], run, data)
    assert folder == source.path.parent / "ready" / "own_study"
    rows = run_ready(source, tmp_path)
    ours = {tuple(row[key] for key in ("model", "readout", "test_shot")): row for row in rows}
    trained = {
        tuple(row[key] for key in ("model", "readout", "test_shot")): row["accuracy"]
        for row in read_table(run / "table.csv")
        if row["head"] != "frn"
    }
    assert ours.keys() == trained.keys()
    for key, row in ours.items():  # float16 moves single predictions: each of the 800 is an eighth of a point
        assert row["accuracy"] == pytest.approx(trained[key], abs=0.5)
    assert {path.name for path in tmp_path.iterdir()} >= {"table.csv", "sensitivity.csv", "about.json"}


def test_a_study_without_such_models_says_so(ran, tmp_path):
    other = tmp_path / "other.py"
    shutil.copy(ran[0].path, other)
    with pytest.raises(BadInput, match="no trained models come with other"):
        run_ready(StudySource(other), tmp_path / "out")
