"""What a study found, for others to read: one folder of tables and figures, with recipes and histories, without images,
weights or anything that only this machine needs. A report can be made from it as from the run itself.

    about.json, MODEL/recipe.json, MODEL/history.csv    as the study left them
    *.csv                                               what published.md says of each
    figures/, README.md
"""

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from anyshot.errors import BadInput
from anyshot.files import atomic_write, write_text
from anyshot.measure.comparisons import accuracy_differences, paired_gains, study_tables
from anyshot.measure.evaluate import evaluate_model, fit_readouts_on_training_classes
from anyshot.measure.experiments import embed_split, model_consistency, model_terms, supports_consistency
from anyshot.measure.grid import build_grids
from anyshot.measure.recalls import Recalls
from anyshot.models.model import load_model
from anyshot.progress import Advance, progress
from anyshot.recipe import Recipe
from anyshot.show import figures, summaries
from anyshot.show.comparisons import COMPARISONS, draw
from anyshot.show.pages import fill_template
from anyshot.study.runner import recalls_of_study
from anyshot.study.study import Study, StudySource, select_recipes
from anyshot.tables import ROW_NAMES, Row, add_head_columns, as_written, read_table, round_row, write_table
from anyshot.train.training import open_training_features

UNEQUAL = ("step", "long-tailed")


def publish(source: StudySource, run: Path, data: Path, out: Path, only: str = "", *, add: bool = False) -> None:
    """Write all that the run of a study found to `out`: in place of what was published there before, or added to it."""
    if out.exists() and not (out / "gains.csv").is_file() and (not out.is_dir() or any(out.iterdir())):
        raise BadInput(f"{out} holds something else than a published study: name a new or empty folder.")
    if add and not out.exists():
        raise BadInput(f"there is nothing published in {out} to add to.")
    study = source.load()
    recipes = select_recipes(study.recipes, only)
    with atomic_write(out) as aside, progress("publishing", float(len(recipes))) as advance:
        if add:
            shutil.copytree(out, aside, ignore=shutil.ignore_patterns("figures", "README.md"), dirs_exist_ok=True)
        for recipe in recipes:
            _copy(run / recipe.name / "recipe.json", aside / recipe.name / "recipe.json")
            if (run / recipe.name / "history.csv").exists():  # models that come with a study have none
                _copy(run / recipe.name / "history.csv", aside / recipe.name / "history.csv")
        if not (aside / "about.json").exists():
            _copy(run / "about.json", aside / "about.json")
        recalls = recalls_of_study(study, recipes, run)
        tables: dict[str, list[Row]] = {
            **study_tables(recalls),
            "gains": paired_gains(recalls),
            "differences": accuracy_differences(recalls),
            **_side_experiments(study, recipes, run, data, advance),
        }
        if add:
            tables = {name: merge_rows(out / f"{name}.csv", rows) for name, rows in tables.items()}
        for name, rows in tables.items():
            if rows or name == "gains":  # which says that a folder was published
                write_table(aside / f"{name}.csv", rows)
        _draw(tables, aside)
        write_text(aside / "README.md", _page(source.path.stem, aside))


def _draw(tables: Mapping[str, Sequence[Row]], folder: Path) -> None:
    """What follows from the tables: comparisons, and all figures."""
    rows = tables["table"]
    scored = [grid for grid in build_grids(rows) if grid.has_sensitivity]
    charts: dict[str, Any] = {}
    if any(grid.find_counterpart(scored) for grid in scored):
        charts["tradeoff"] = figures.scatter(scored)
    for kind, (compare, _) in COMPARISONS.items():
        if compared := compare(rows):
            if kind != "gains":
                write_table(folder / f"{kind}.csv", [round_row(row) for row in compared])
            charts[kind] = draw(kind, rows)
    charts |= {name: chart(tables[name]) for name, chart in FIGURES.items() if tables.get(name)}
    for setting in dict.fromkeys(grid.setting for grid in scored):
        here = [grid for grid in scored if grid.setting == setting]
        charts["heatmaps-" + setting.replace("/", "-")] = figures.draw_heatmaps(here)
    for name, chart in charts.items():
        figures.save_chart(chart, folder / "figures" / f"{name}.svg")


COUNTS = ("seeds", "models")  # how many models a row of a table rests on, where that is not one
VALUES = ("accuracy", "sensitivity")
SAME = 1e-2  # points: what weights of half precision, or another build of the same libraries, may decide otherwise


def merge_rows(path: Path, rows: Sequence[Row]) -> list[Row]:
    """The rows of a published table and those that a run adds to it. A row that is there stays, and is given what
    columns it lacked; one that rests on more models takes its place. What is there and rests on as many must be the
    same: another training belongs into a folder of its own."""
    there, rows = (read_table(path) if path.exists() else []), [as_written(row) for row in rows]
    if not there or not rows:
        return there or rows
    # Tables had them later, and hold one setting.
    missing = {name: rows[0][name] for name in ("data", "backbone") if name in rows[0] and name not in there[0]}
    there = [add_head_columns(missing | row) if "learner" in rows[0] else missing | row for row in there]
    names = [name for name in ROW_NAMES if name in rows[0] and name in there[0]]
    merged = {tuple(row[name] for name in names): row for row in there}
    for row in rows:
        key = tuple(row[name] for name in names)
        old = merged.get(key, {})
        if not old or _models(row) > _models(old):
            merged[key] = row
        elif _models(row) == _models(old):
            for value in VALUES:
                if value in row and abs(old[value] - row[value]) > SAME:
                    both = f"{old[value]} is published for {' '.join(map(str, key))}, and this run has {row[value]}"
                    raise BadInput(f"{path}: {both}. Publish another training in a folder of its own.")
            merged[key] = old | {name: value for name, value in row.items() if name not in old}
    columns = dict.fromkeys(name for row in merged.values() for name in row)
    return [{name: row.get(name, "") for name in columns} for row in merged.values()]


def _models(row: Row) -> float:
    return max((float(row[name]) for name in COUNTS if name in row), default=1.0)


FIGURES = {"consistency": figures.consistency, "terms": figures.term_ratios, "unequal-recall": figures.unequal_shots}


def _copy(source: Path, target: Path) -> None:
    if not source.is_file():
        raise BadInput(f"there is no {source}: run the whole study first, or publish only what has been run.")
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)


def _side_experiments(
    study: Study, recipes: Sequence[Recipe], run: Path, data: Path, advance: Advance
) -> dict[str, list[Row]]:
    """Consistency, the ratio of FRN's terms, and unequal shots, of all models that they concern; each model embeds the
    test images once."""
    tables: dict[str, list[Row]] = {"consistency": [], "terms": [], "learned": []}
    unequal: list[Recalls] = []
    protocol = study.protocol
    asked = (min(1000, protocol.episodes), protocol.seed, protocol.queries)
    for recipe in recipes:
        model = load_model(run / recipe.name, study.registry)
        store = open_training_features(recipe, study.store(recipe.data, data), study.registry)
        embedded = embed_split(store, model)
        of = {"seed": recipe.seed}
        if supports_consistency(model.head):
            tables["consistency"] += [row | of for row in model_consistency(embedded, *asked)]
        if recipe.head == "frn":
            tables["terms"].append(model_terms(embedded, *asked) | of)
        numbers = {name: value.item() for name, value in model.reading.parameters.items() if value.numel() == 1}
        about = embedded.about() | of
        tables["learned"] += [about | {"parameter": name, "value": round(v, 5)} for name, v in numbers.items()]
        plan = protocol.plan(embedded.labels, embedded.class_names)
        readouts = ("own", *(name for name in study.readouts_of(recipe) if name == "posterior"))
        fitted = fit_readouts_on_training_classes(model, store, study.registry)
        tested = embedded.features, fitted, readouts, plan, UNEQUAL, study.registry
        unequal += evaluate_model(model, recipe.data, *tested)
        advance(1.0, recipe.name)
    tables["unequal"] = [row for one in unequal for row in one.rows()]
    tables["unequal-gains"] = paired_gains(unequal)
    tables["unequal-differences"] = accuracy_differences(unequal)
    tables["unequal-recall"] = [round_row(row) for one in unequal for row in one.by_own_shot()]
    return {name: table for name, table in tables.items() if table}


def _page(name: str, folder: Path) -> str:
    """The first page of a folder of tables."""
    scored = [grid for grid in build_grids(read_table(folder / "table.csv")) if grid.has_sensitivity]
    columns = ["head", "readout", "sensitivity", "over episodes", "over new classes", "by seed", "noise floor"]
    cells = []
    for row in read_table(folder / "sensitivity.csv"):
        score, noise = (summaries.format_decimals(row[name]) for name in ("sensitivity", "noise_floor"))
        cells.append([row["head"], row["readout"], score, *summaries.describe_uncertainties(row), noise])
    first = summaries.Summary("Sensitivity, its two 95 % intervals, and each training alone", columns, cells, names=2)
    drawn = sorted((folder / "figures").glob("*.svg"))
    return fill_template(
        Path(__file__).with_name("published.md"),
        name=name,
        summaries=(first, summaries.sensitivity_summary(scored), summaries.gain_summary(scored)),
        tables=[path.stem for path in folder.glob("*.csv")],
        figures=[path.stem for path in drawn],
    )
