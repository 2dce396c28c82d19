"""A methods paragraph with the exact protocol, ready for a paper, and how to cite it."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import anyshot
from anyshot.report.runs import Findings
from anyshot.show.pages import fill_template

HERE = Path(__file__).parent
CITATION = (HERE / "citation.bib").read_text(encoding="utf-8").replace("VERSION", anyshot.__version__)


def methods(findings: Findings, over: Mapping[str, bool], *, paired: bool) -> list[str]:
    """Return sentences of what the folders say, a paragraph per topic: models, test, intervals, software.

    Args:
        findings: What the folders hold.
        over: Whether there are intervals over episodes (ci95) and over new classes (ci95_classes).
        paired: Whether intervals of differences are paired.
    """
    text = fill_template(
        HERE / "methods.txt",
        rows=findings.rows,
        about=findings.about,
        settings=[grid.setting for grid in findings.grids],
        **_describe_recipes(list(findings.recipes.values())),
        over=over,
        paired=paired,
        known={name for row in findings.sensitivities.values() for name in row if isinstance(row[name], float)},
        version=anyshot.__version__,
        listed=list_values,
        fields=_fields,
    )
    return [paragraph.strip().replace("\n", " ") for paragraph in text.split("\n\n") if paragraph.strip()]


def _describe_recipes(recipes: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    folded = sorted((r for r in recipes if not r.get("batch")), key=lambda recipe: recipe.get("train_shot", 0))
    plain = [r for r in folded if "way" in r and "train_shot" in r and not r.get("mixed")]
    return {
        "mixed": dict.fromkeys(list_values(recipe["mixed"]) for recipe in recipes if recipe.get("mixed")),
        "folded": folded,
        "batches": list_values(f"{r['way']} classes of {r['train_shot']}" for r in plain),
        "pretrained": [recipe for recipe in recipes if recipe.get("batch")],
    }


def list_values(values: Iterable[Any], format: str = "") -> str:
    """Return the different values as words, numbers in order: 1, 2 and 4."""
    different = [value for value in dict.fromkeys(values) if value not in (None, "")]
    if all(isinstance(value, int) for value in different):
        different = [f"{value:{format}}" for value in sorted(different)]
    *most, last = map(str, different or [""])
    return f"{', '.join(most)} and {last}" if most else last


def _fields(recipes: Sequence[Mapping[str, Any]], *more: str) -> str:
    """Return what the recipes say of training, each value once."""
    names = (*more, "epochs", "optimiser", "lr", "weight_decay", "schedule", "seed")
    values = {name: list_values(recipe.get(name) for recipe in recipes) for name in names}
    return ", ".join(f"{name.replace('_', ' ')} {each}" for name, each in values.items() if each)
