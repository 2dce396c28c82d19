"""What a study found, for others to read: one folder of tables and figures, with recipes and histories, without images,
weights or anything that only this machine needs. A report can be made from it as from the run itself.

    about.json, MODEL/recipe.json, MODEL/history.csv    as the study left them
    *.csv                                               what TABLES says
    figures/, README.md
"""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from anyshot.errors import BadInput
from anyshot.files import whole, write_text
from anyshot.measure.evaluation import fitted_on_training_classes, recalls_of_model
from anyshot.measure.experiments import compares_scores, embed_split, model_consistency, model_terms
from anyshot.measure.recalls import Recalls, gains
from anyshot.models.model import load_model
from anyshot.progress import Advance, progress
from anyshot.recipe import Recipe
from anyshot.rows import Row, read_table, write_table
from anyshot.show import figures
from anyshot.show.comparisons import COMPARISONS, draw
from anyshot.show.grid import grids
from anyshot.show.summaries import Summary, gain_summary, sensitivity_summary, two_decimals
from anyshot.study.runner import recalls_of_study
from anyshot.study.study import Source, Study, select

UNEQUAL = ("step", "long-tailed")
TABLES = {
    "table": "every cell: a model, a readout, a test shot; intervals over episodes and over new classes",
    "sensitivity": "the scores above",
    "gains": "each cosine head above its Euclidean counterpart, paired, by test shot and train shot and over all",
    "offsets": "how far each model lies above its group",
    "swapped": "models read with the other score",
    "frn-forms": "the new FRN above the original",
    "mixed": "one model for all shots beside those trained for one",
    "consistency": "1-shot predictions that stay when the support is drawn anew, in percent",
    "terms": "the ratio of FRN's two terms by train shot",
    "learned": "the numbers that each model's head has learned: its temperature (scale), the logarithm of FRN's ridge",
    "unequal": "accuracy where classes have unequal shots",
    "unequal-gains": "what the cosine gains there",
    "unequal-recall": "the recall of a class by its own number of shots there",
}


def publish(source: Source, run: Path, data: Path, out: Path, only: str = "") -> None:
    """Write all that the run of a study found to `out`, in place of what was published there before."""
    if out.exists() and not (out / "gains.csv").is_file() and (not out.is_dir() or any(out.iterdir())):
        raise BadInput(f"{out} holds something else than a published study: name a new or empty folder.")
    study = source.load()
    recipes = select(study.recipes, only)
    rows = read_table(run / "table.csv")
    with whole(out) as aside, progress("publishing", float(len(recipes))) as advance:
        for name in ("table.csv", "sensitivity.csv", "about.json"):
            _copy(run / name, aside / name)
        for recipe in recipes:
            for name in ("recipe.json", "history.csv"):
                _copy(run / recipe.name / name, aside / recipe.name / name)
        write_table(aside / "gains.csv", gains(recalls_of_study(study, recipes, run)))
        scored = [grid for grid in grids(rows) if grid.is_scored]
        charts: dict[str, Any] = {"tradeoff": figures.scatter(scored)}
        for kind, (compare, _) in COMPARISONS.items():
            if compared := compare(rows):
                if kind != "gains":
                    write_table(aside / f"{kind}.csv", _rounded(compared))
                charts[kind] = draw(kind, rows)
        for name, table in _side_experiments(study, recipes, run, data, advance).items():
            write_table(aside / f"{name}.csv", table)
            charts |= {name: FIGURES[name](table)} if name in FIGURES else {}
        for setting in dict.fromkeys(grid.setting for grid in scored):
            here = [grid for grid in scored if grid.setting == setting]
            charts["heatmaps-" + setting.replace("/", "-")] = figures.side_by_side(here)
        for name, chart in charts.items():
            figures.save(chart, aside / "figures" / f"{name}.svg")
        write_text(aside / "README.md", _page(source.path.stem, aside))


FIGURES = {
    "consistency": figures.consistency,
    "terms": figures.term_ratios,
    "unequal-recall": figures.unequal_shots,
}


def _copy(source: Path, target: Path) -> None:
    if not source.is_file():
        raise BadInput(f"there is no {source}: run the whole study first, or publish only what has been run.")
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)


def _rounded(rows: Sequence[Row]) -> list[Row]:
    return [{key: round(value, 4) if isinstance(value, float) else value for key, value in row.items()} for row in rows]


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
        embedded = embed_split(study.stores[recipe.data](data), model)
        of = {"seed": recipe.seed}
        if compares_scores(model.head):
            tables["consistency"] += [row | of for row in model_consistency(embedded, *asked)]
        if recipe.head == "frn":
            tables["terms"].append(model_terms(embedded, *asked) | of)
        tables["learned"] += [
            embedded.about() | of | {"parameter": name, "value": round(value.item(), 5)}
            for name, value in model.reading.parameters.items()
            if value.numel() == 1
        ]
        plan = protocol.plan(embedded.labels, embedded.class_names)
        readouts = ("own", *(name for name in study.readouts_of(recipe) if name == "posterior"))
        fitted = fitted_on_training_classes(model, study.stores[recipe.data](data), study.registry)
        tested = embedded.features, fitted, readouts, plan, UNEQUAL, study.registry
        unequal += recalls_of_model(model, recipe.data, *tested)
        advance(1.0, recipe.name)
    tables["unequal"] = [row for one in unequal for row in one.rows()]
    tables["unequal-gains"] = gains(unequal)
    tables["unequal-recall"] = _rounded([row for one in unequal for row in one.by_own_shot()])
    return {name: table for name, table in tables.items() if table}


def _page(name: str, folder: Path) -> str:
    """The first page of a folder of tables."""
    scored = [grid for grid in grids(read_table(folder / "table.csv")) if grid.is_scored]
    columns = ["head", "readout", "seeds", "sensitivity", "95 % interval", "noise floor"]
    cells = [
        [
            row["head"],
            row["readout"],
            f"{row['seeds']:.0f}",
            two_decimals(row["sensitivity"]),
            f"{two_decimals(row['low'])} to {two_decimals(row['high'])}",
            two_decimals(row["noise_floor"]),
        ]
        for row in read_table(folder / "sensitivity.csv")
    ]
    first = Summary("Sensitivity with its interval over episodes", columns, cells, names=2)
    parts = [f"# {name}", f"Made by `anyshot study {name}` and `anyshot publish {name}`. Accuracies in percent."]
    for summary in (first, sensitivity_summary(scored), gain_summary(scored)):
        parts += [f"## {summary.title}", summary.markdown().rstrip()]
    there = [
        f"- [{table}.csv]({table}.csv): {words}"
        for table, words in TABLES.items()
        if (folder / f"{table}.csv").is_file()
    ]
    drawn = [f"- [{path.stem}](figures/{path.name})" for path in sorted((folder / "figures").glob("*.svg"))]
    parts += ["## All tables", "\n".join(there), "## Figures", "\n".join(drawn)]
    return "\n\n".join(parts) + "\n"
