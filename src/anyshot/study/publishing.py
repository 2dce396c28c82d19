"""Publishing: the results of a study for others to read, in one folder of tables, figures, recipes and histories.

It holds no images, no weights and nothing that only this machine needs. A report can be made from it as from the run.

    about.json                     as the study left it
    recipes.json, histories.csv    the recipe of each model by its name, which ends in its id; a row per model and epoch
    *.csv                          what published.md says of each
    figures/, README.md
"""

import json
import shutil
from collections.abc import Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any

from anyshot.errors import BadInput
from anyshot.files import atomic_write, builtin_study_folders, read_json, write_text
from anyshot.measure.comparisons import accuracy_differences, paired_gains, study_tables
from anyshot.measure.evaluate import embed_split, evaluate_model
from anyshot.measure.experiments import model_consistency, model_terms, supports_consistency
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
from anyshot.tables import ROW_NAMES, GridKey, Row, add_head_columns, as_written, read_table, round_row, write_table
from anyshot.text import format_decimals, group_by
from anyshot.train.training import open_training_features

UNEQUAL = ("step", "long-tailed")


def publish(source: StudySource, run: Path, data: Path, out: Path, only: str = "", *, add: bool = False) -> None:
    """Write the results of a study's run to a folder.

    Args:
        source: The study.
        run: Folder of its results.
        data: Folder of stores.
        out: Folder to write, in place of what was published there before.
        only: Which models, by the words of their names; all where empty.
        add: Whether to add these models to what is published in `out`.

    Other trainings that are published in folders below `out` stay.
    """
    if out.exists() and not (out / "gains.csv").is_file() and (not out.is_dir() or any(out.iterdir())):
        raise BadInput(f"{out} holds something else than a published study: name a new or empty folder.")
    if add and not out.exists():
        raise BadInput(f"there is nothing published in {out} to add to.")
    study = source.load()
    recipes = select_recipes(study.recipes, only)
    with atomic_write(out) as temporary, progress("publishing", float(len(recipes))) as advance:
        if add:
            shutil.copytree(out, temporary, ignore=shutil.ignore_patterns("figures", "README.md"), dirs_exist_ok=True)
        for other in out.glob("*/gains.csv"):
            shutil.copytree(other.parent, temporary / other.parent.name, dirs_exist_ok=True)
        _write_records(run, temporary, recipes)
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
            if rows or name == "gains":  # the file that marks a folder as published
                write_table(temporary / f"{name}.csv", rows)
        _draw(tables, temporary)
        write_text(temporary / "README.md", describe_folder(source, only, temporary))


def _write_records(run: Path, folder: Path, recipes: Sequence[Recipe]) -> None:
    """Write recipes, histories and what the results depend on, beside those that are there."""
    path, names = folder / "recipes.json", [recipe.name for recipe in recipes]
    if missing := [run / name for name in names if not (run / name / "recipe.json").is_file()]:
        raise BadInput(f"there is no {missing[0]}: run the whole study first, or publish only what has been run.")
    published = read_json(path) if path.exists() else {}
    published |= {name: read_json(run / name / "recipe.json") for name in names}
    lines = (f"{json.dumps(name)}: {json.dumps(published[name])}" for name in sorted(published))
    write_text(path, "{\n" + ",\n".join(lines) + "\n}\n")
    table = folder / "histories.csv"
    histories = group_by(read_table(table, optional=True), lambda row: row["model"])
    for name in names:
        if rows := read_table(run / name / "history.csv", optional=True):  # models that come with a study have none
            histories[name] = [{"model": name} | row for row in rows]
    write_table(table, [row for name in sorted(histories) for row in histories[name]])
    if not (folder / "about.json").exists():
        shutil.copyfile(run / "about.json", folder / "about.json")


def _draw(tables: Mapping[str, Sequence[Row]], folder: Path) -> None:
    """Write the comparisons that follow from the tables, and all figures."""
    rows = tables["table"]
    scored = [grid for grid in build_grids(rows) if grid.has_sensitivity]
    charts: dict[str, Any] = {}
    if any(grid.find_counterpart(scored) for grid in scored):
        charts["tradeoff"] = figures.scatter(scored)
    for kind, (compare, _) in COMPARISONS.items():
        compared = compare(rows)
        if compared and kind != "gains":  # the gains are a table already, with intervals
            write_table(folder / f"{kind}.csv", [round_row(row) for row in compared])
        if compared:
            charts[kind] = draw(kind, rows)
    charts |= {name: chart(tables[name]) for name, chart in FIGURES.items() if tables.get(name)}
    for setting, grids in group_by(scored, lambda grid: grid.setting).items():
        charts["heatmaps-" + setting.replace("/", "-")] = figures.draw_heatmaps(grids)
    for name, chart in charts.items():
        figures.save_chart(chart, folder / "figures" / f"{name}.svg")


COUNTS = ("seeds", "models")  # how many models a row of a table rests on, where that is not one
VALUES = ("accuracy", "sensitivity")
TOLERANCE = 1e-2  # points by which weights of half precision, or another build of the same libraries, may differ


def merge_rows(path: Path, rows: Sequence[Row]) -> list[Row]:
    """Return the rows of a published table with those of another run added.

    A published row stays and gets the columns that it lacked, but a row that rests on more models replaces it.

    Raises:
        BadInput: Where a row that rests on as many models has another value: another training belongs into a folder of
            its own.
    """
    published, rows = read_table(path, optional=True), list(map(as_written, rows))
    if not published or not rows:
        return published or rows
    published = _add_columns(published, rows[0])
    identify = itemgetter(*(name for name in ROW_NAMES if name in rows[0] and name in published[0]))
    merged = {identify(row): row for row in published}
    for row in rows:
        key = identify(row)
        merged[key] = _merge_row(path, " ".join(map(str, key)), merged[key], row) if key in merged else row
    columns = dict.fromkeys(name for row in merged.values() for name in row)
    return [{name: row.get(name, "") for name in columns} for row in merged.values()]


def _add_columns(published: Sequence[Row], example: Row) -> list[Row]:
    """Add the columns that tables of earlier versions lack; these hold one setting."""
    missing = {name: example[name] for name in ("data", "backbone") if name in example and name not in published[0]}
    return [add_head_columns(missing | row) if "learner" in example else missing | row for row in published]


def _merge_row(path: Path, name: str, published: Row, row: Row) -> Row:
    """Return the row that rests on more models; of two that rest on as many, the published one with all columns."""
    if _models(row) != _models(published):
        return row if _models(row) > _models(published) else published
    for value in VALUES:
        if value in row and abs(published[value] - row[value]) > TOLERANCE:
            raise BadInput(
                f"{path}: {published[value]} is published for {name}, and this run has {row[value]}. Publish another "
                "training in a folder of its own."
            )
    return published | {name: value for name, value in row.items() if name not in published}


def _models(row: Row) -> float:
    return max((float(row[name]) for name in COUNTS if name in row), default=1.0)


FIGURES = {"consistency": figures.consistency, "terms": figures.term_ratios, "unequal-recall": figures.unequal_shots}


def _side_experiments(
    study: Study, recipes: Sequence[Recipe], run: Path, data: Path, advance: Advance
) -> dict[str, list[Row]]:
    """Return the tables of consistency, the ratio of FRN's terms, learned temperatures, and unequal shots.

    Each model embeds the test images once for all of them.
    """
    tables: dict[str, list[Row]] = {"consistency": [], "terms": [], "learned": []}
    unequal: list[Recalls] = []
    protocol = study.protocol
    episodes = (min(1000, protocol.episodes), protocol.seed, protocol.queries)
    for recipe in recipes:
        model = load_model(run / recipe.name, study.registry)
        store = open_training_features(recipe, study.store(recipe.data, data), study.registry)
        embedded = embed_split(store, model, registry=study.registry)
        about, seed = embedded.about(), {"seed": recipe.seed}
        if supports_consistency(model.head):
            tables["consistency"] += [row | seed for row in model_consistency(embedded, *episodes)]
        if recipe.head == "frn":
            tables["terms"].append(model_terms(embedded, *episodes) | seed)
        for name, value in model.bound_head.parameters.items():
            if value.numel() == 1:  # such as its temperature
                tables["learned"].append(about | seed | {"parameter": name, "value": round(value.item(), 5)})
        readouts = ("own", *(name for name in study.readouts_of(recipe) if name == "posterior"))
        unequal += evaluate_model(embedded, readouts, protocol, study.registry, UNEQUAL)
        advance(1.0, recipe.name)
    tables |= {
        "unequal": [row for one in unequal for row in one.rows()],
        "unequal-gains": paired_gains(unequal),
        "unequal-differences": accuracy_differences(unequal),
        "unequal-recall": [round_row(row) for one in unequal for row in one.by_own_shot()],
    }
    return {name: table for name, table in tables.items() if table}


def describe_folder(source: StudySource, only: str, folder: Path) -> str:
    """Return the first page of a folder of tables."""
    is_builtin = source.path.parent in builtin_study_folders()
    words = [source.path.stem if is_builtin else source.path.name]  # a study of the user's is named by its file
    words += ["--heads", *source.heads] if source.heads else []
    words += ["--only", only] if only else []
    grids = build_grids(read_table(folder / "table.csv"))
    scored = [grid for grid in grids if grid.has_sensitivity]
    columns = ["setting", "head", "readout", "sensitivity", "over episodes", "over new classes", "by seed"]
    columns += ["noise floor", "deviation", "trend"]
    cells = []
    for row in read_table(folder / "sensitivity.csv", optional=True):  # models of one train shot have no sensitivity
        numbers = [row.get(name, "") for name in ("sensitivity", "noise_floor", "deviation", "trend")]
        score, *others = (format_decimals(number) if number != "" else "" for number in numbers)
        names = [GridKey.of_row(row).setting, row["head"], row["readout"]]
        cells.append([*names, score, *summaries.describe_uncertainties(row).values(), *others])
    first = summaries.Summary("Sensitivity, its two 95 % intervals, and each training alone", columns, cells, names=3)
    drawn = sorted((folder / "figures").glob("*.svg"))
    return fill_template(
        Path(__file__).with_name("published.md"),
        name=source.path.stem,
        command=" ".join(words),
        settings=", ".join(dict.fromkeys(grid.setting for grid in grids)),
        summaries=(first, summaries.sensitivity_summary(scored), summaries.gain_summary(scored)) if cells else (),
        tables=[path.stem for path in folder.glob("*.csv")],
        figures=[path.stem for path in drawn],
    )
