"""A methods paragraph with the exact protocol, ready for a paper, and how to cite it."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import anyshot
from anyshot.report.answer import Choice
from anyshot.report.runs import Findings
from anyshot.show.pages import fill_template
from anyshot.tables import Row

HERE = Path(__file__).parent
CITATION = (HERE / "citation.bib").read_text(encoding="utf-8").replace("VERSION", anyshot.__version__)


def methods(findings: Findings, choices: Sequence[Choice], *, paired: bool) -> list[str]:
    """Return sentences of what the folders say, a paragraph per topic: models, test, intervals, software."""
    facts = _model_facts(findings) | _recipe_facts(list(findings.recipes.values()))
    facts |= _test_facts(findings.rows, choices) | _run_facts(findings)
    text = fill_template(HERE / "methods.txt", listed=_list, fields=_fields, paired=paired, **facts)
    return [paragraph.strip().replace("\n", " ") for paragraph in text.split("\n\n") if paragraph.strip()]


def _model_facts(findings: Findings) -> dict[str, Any]:
    rows = findings.rows
    return {
        "heads": _all(row["head"] for row in rows),
        "settings": _all(grid.setting for grid in findings.grids),
        "shots": [shot for shot in _all(row["train_shot"] for row in rows if not row["mixed"]) if shot],
        "readouts": [readout for readout in _all(row["readout"] for row in rows) if readout != "own"],
    }


def _recipe_facts(recipes: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    folded = sorted((r for r in recipes if not r.get("batch")), key=lambda recipe: recipe.get("train_shot", 0))
    plain = [r for r in folded if "way" in r and "train_shot" in r and not r.get("mixed")]
    return {
        "mixed": _all(_list(recipe["mixed"]) for recipe in recipes if recipe.get("mixed")),
        "folded": folded,
        "batches": _all(f"{r['way']} classes of {r['train_shot']}" for r in plain),
        "pretrained": [recipe for recipe in recipes if recipe.get("batch")],
    }


def _test_facts(rows: Sequence[Row], choices: Sequence[Choice]) -> dict[str, Any]:
    cells = [cell for choice in choices for cell in choice.cells.values()]
    return {
        **{name: _all(row.get(name) for row in rows) for name in ("way", "queries")},
        "episodes": [f"{n:,}" if isinstance(n, int) else n for n in _all(row.get("episodes") for row in rows)],
        "test_shots": _all(row["test_shot"] for row in rows),
        "over_episodes": any(cell["ci95"] is not None for cell in cells),
        "over_classes": any(cell["ci95_classes"] is not None for cell in cells),
        "seeds": _all(row["seed"] for row in rows),
    }


def _run_facts(findings: Findings) -> dict[str, Any]:
    recorded = [about["versions"] for about in findings.about if isinstance(about.get("versions"), dict)]
    return {
        "episode_seeds": _all(about.get("episode_seed") for about in findings.about),
        "has_intervals": bool(findings.sensitivities),
        "has_classes": any(isinstance(row.get("low_classes"), float) for row in findings.sensitivities.values()),
        "has_trend": any(isinstance(row.get("trend"), float) for row in findings.sensitivities.values()),
        "versions": recorded[0] if recorded else {},
        "versions_differ": any(versions != recorded[0] for versions in recorded),
        "version": anyshot.__version__,
    }


def _fields(recipes: Sequence[Mapping[str, Any]], *more: str) -> str:
    """Return what the recipes say of training, each value once."""
    names = (*more, "epochs", "optimiser", "lr", "weight_decay", "schedule", "seed")
    values = {name: _all(recipe.get(name) for recipe in recipes) for name in names}
    return ", ".join(f"{name.replace('_', ' ')} {_list(each)}" for name, each in values.items() if each)


def _all(values: Iterable[Any]) -> list[Any]:
    """Return the different values, numbers in order."""
    different = [value for value in dict.fromkeys(values) if value not in (None, "")]
    return sorted(different) if all(isinstance(value, int) for value in different) else different


def _list(values: Iterable[Any]) -> str:
    *most, last = map(str, values)
    return f"{', '.join(most)} and {last}" if most else last
