"""The page: one HTML file from one template, all it needs inside: Vega, figures as Vega-Lite, tables, downloads."""

import base64
import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import vl_convert
from markupsafe import Markup

import anyshot
from anyshot.measure.grid import Grid, format_shot, shot_sort_key
from anyshot.paper import audit as paper_audit
from anyshot.report import answer, tables
from anyshot.report.charts import Figure, draw_figures, ranking
from anyshot.report.explorer import Explorer, explore
from anyshot.report.methods import CITATION, methods
from anyshot.report.runs import Findings
from anyshot.show.pages import fill_template
from anyshot.show.summaries import ENDINGS, Summary, gain_summary
from anyshot.tables import CellKey, to_csv
from anyshot.text import count_noun

TOP = 12  # choices in the ranking chart; all are in its table
MEASURES = ("accuracy", *answer.INTERVALS)  # what page.js averages over the shots that a reader expects


def render_page(findings: Findings, audit: bool = False) -> str:
    """Return the report as HTML; with `audit`, the audit of the paper is a section of it."""
    folder = Path(__file__).parent
    context = _context(findings, audit=audit)
    code = {"data": as_script(context.pop("data")), "vega": vega_code()}
    files = {"css": "page.css", "js": "page.js", "licence": "vega-licence.txt"}
    code |= {name: (folder / file).read_text(encoding="utf-8") for name, file in files.items()}
    context |= {name: Markup(text) for name, text in code.items()} | {"policy": policy(code["vega"], code["js"])}
    return fill_template(folder / "page.html", **context, version=anyshot.__version__)


def policy(*scripts: str) -> str:
    """Return the content security policy: run these scripts, and ask nobody for anything.

    Vega compiles the expressions of charts to functions, which is why evaluating is allowed.
    """
    hashes = (base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts)
    allowed = " ".join(f"'sha256-{value}'" for value in hashes)
    return (
        f"default-src 'none'; script-src {allowed} 'unsafe-eval'; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )


def as_script(value: Any) -> str:
    """Return JSON that is safe inside a <script>: no name in it can end the element or start a comment."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.translate({ord("<"): "\\u003c", ord(">"): "\\u003e", 0x2028: "\\u2028", 0x2029: "\\u2029"})


def vega_code() -> str:
    """Return Vega, Vega-Lite and vega-embed as one script."""
    return vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;").replace("</script", "<\\/script")


def _context(findings: Findings, *, audit: bool) -> dict[str, Any]:
    """Return all that the template shows, and under `data` all that the script needs."""
    choices = answer.list_choices(findings)
    shots = sorted({shot for choice in choices for shot in choice.cells}, key=shot_sort_key)
    pairs = answer.list_paired_intervals(findings, choices)
    figures, explorer = draw_figures(findings, choices), explore(findings, choices)
    answered = _answer_context(findings, choices, shots, pairs)
    listed = _listed_tables(findings, choices, shots, audit=audit)
    paragraphs = methods(findings, choices, paired=any(pairs.values()))
    texts = {"methods.txt": "\n\n".join(paragraphs) + "\n", "citation.bib": CITATION}
    specs = {figure.id: figure.spec for figure in figures} | {"ranking": _ranking_spec(choices)}
    sections = {"answer": "Answer", "explore": "Explore"}
    sections |= {"paper": "Beside the paper"} if listed["beside"] else {}
    sections |= {"audit": "What holds in the paper"} if audit else {}
    return {
        "title": findings.title,
        "subtitle": _subtitle(findings, findings.grids),
        "sections": [*sections.items(), ("take", "Take away"), ("methods", "Methods")],
        **answered,
        **listed,
        "options": explorer.options,
        "chosen": explorer.chosen,
        "figures": figures,
        "grids": explorer.summaries,
        "methods": paragraphs,
        "citation": CITATION,
        "date": datetime.now(UTC).date().isoformat(),
        "data": {
            "setting": answered["setting"],
            "robust": answered["robust"],
            "top": TOP,
            "words": answer.WORDS,
            "measures": MEASURES,
            "choices": [_as_data(choice) for choice in choices],
            "paired": {name: _by_place(halves, shots) for name, halves in pairs.items()},
            "specs": specs,
            "grids": explorer.data,
            "charts": explorer.charts,
            "files": {"table.csv": _table_csv(findings), **_table_files(listed, explorer, figures), **texts},
        },
    }


def _answer_context(
    findings: Findings,
    choices: Sequence[answer.Choice],
    shots: Sequence[int | str],
    pairs: Mapping[str, answer.Pairs],
) -> dict[str, Any]:
    """Return what the first section shows: both halves of the answer, and what a reader may choose."""
    settings = list(dict.fromkeys(choice.setting for choice in choices))
    setting, weights = settings[-1], dict.fromkeys(shots, 1.0)
    sensitivities = answer.list_sensitivities(findings)
    ranked = answer.rank(choices, setting, weights)
    return {
        "settings": settings,
        "setting": setting,
        "robust": {name: answer.robust_sentence(sensitivities, name) for name in settings},
        "slots": answer.accurate_slots(ranked, weights, pairs.get(setting, {})),
        "shots": shots,
        "words": format_shot,
        "few_and_many": any(shot in (2, 4) for shot in shots) and 8 in shots,
        "class_intervals": any(cell["ci95_classes"] is not None for c in choices for cell in c.cells.values()),
        "notes": _notes(findings, findings.grids, choices),
    }


def _listed_tables(
    findings: Findings, choices: Sequence[answer.Choice], shots: Sequence[int | str], *, audit: bool
) -> dict[str, Any]:
    """Return the tables that belong to no figure: of the answer, the recipes, the paper and its audit."""
    grids = findings.grids
    matched = not findings.printed and tables.paper_grids(grids)
    return {
        "tables": _answer_tables(findings, choices, dict.fromkeys(shots, 1.0)),
        "recipes": tables.recipe_tables(findings.recipes) if findings.recipes else [],
        "beside": tables.comparison_with_paper(grids) if matched else None,
        "audit": _audit() if audit else None,
    }


def _table_files(listed: Mapping[str, Any], explorer: Explorer, figures: Sequence[Figure]) -> dict[str, str]:
    """Return every table of the page as CSV, Markdown and LaTeX, by the name of its file."""
    summaries = listed["tables"] | explorer.summaries | {figure.id: figure.table for figure in figures}
    summaries |= {f"recipes-{i}": summary for i, summary in enumerate(listed["recipes"], 1)}
    summaries |= {"beside-the-paper": listed["beside"]} if listed["beside"] else {}
    if audit := listed["audit"]:
        summaries["audit"] = audit["counts"]
        summaries |= {f"audit-{i}": summary for i, summary in enumerate(audit["sections"].values(), 1)}
    return {f"{name}.{end}": one.text(format) for name, one in summaries.items() for format, end in ENDINGS.items()}


def _answer_tables(
    findings: Findings, choices: Sequence[answer.Choice], weights: Mapping[Any, float]
) -> dict[str, Summary]:
    """Return the tables behind the answer: sensitivities, the ranking of every setting, gains."""
    shown = {"sensitivity": tables.sensitivity_table(findings)}
    settings = dict.fromkeys(choice.setting for choice in choices)
    if ranked := [pair for name in settings for pair in answer.rank(choices, name, weights)]:
        shown["ranking"] = tables.ranking_table(ranked)
    if complete := [grid for grid in findings.grids if grid.is_complete and _fits(grid, findings.grids)]:
        shown["gains"] = gain_summary(complete)
    return shown


def _table_csv(findings: Findings) -> str:
    columns = list(dict.fromkeys(name for row in findings.rows for name in row))
    return to_csv([columns, *([row.get(name) for name in columns] for row in findings.rows)])


def _as_data(choice: answer.Choice) -> dict[str, Any]:
    cells = {shot: {name: cell[name] for name in MEASURES} for shot, cell in choice.cells.items()}
    return {"setting": choice.setting, "head": choice.head, "name": choice.name, "label": choice.label, "cells": cells}


def _by_place(pairs: answer.Pairs, shots: Sequence[int | str]) -> dict[str, dict[str, list[float | None]]]:
    """Return halves of intervals as lists in the order of the page's shots, which keeps the page small."""
    nested: dict[str, dict[str, list[float | None]]] = {}
    for (one, other), halves in pairs.items():
        nested.setdefault(one, {})[other] = [halves.get(shot) for shot in shots]
    return nested


def _ranking_spec(choices: Sequence[answer.Choice]) -> dict[str, Any]:
    most = max(Counter(choice.setting for choice in choices).values())
    return ranking(list(dict.fromkeys(choice.name for choice in choices)), min(TOP, most)).to_dict()


def _fits(grid: Grid, among: Sequence[Grid]) -> bool:
    """Whether a grid can be set against its counterpart: the same test shots, nothing missing."""
    other = grid.find_counterpart(among)
    return other is None or (other.test_shots == grid.test_shots and other.is_complete)


def _notes(findings: Findings, grids: Sequence[Grid], choices: Sequence[answer.Choice]) -> list[str]:
    """Return what a reader must know to read the answer."""
    cells = [cell for choice in choices for cell in choice.cells.values()]
    notes = []
    if any(cell["ci95"] is not None for cell in cells):
        note = "“± over episodes”: other episodes of the same classes; use it to compare heads on this data."
        if any(cell["ci95_classes"] is not None for cell in cells):
            note += " “± over new classes”: other classes of the same kind; expect it in use."
        notes.append(note)
    if findings.printed:
        notes.append("The paper prints no interval of a sensitivity, and one interval per test shot for all models.")
    whys = [f"{grid.name} on {grid.setting}: {why}" for grid in grids if (why := grid.why_no_sensitivity)]
    if whys:
        more = f"; and {len(whys) - 6} more" if len(whys) > 6 else ""
        notes.append(f"Without a sensitivity: {'; '.join(whys[:6])}{more}.")
    return notes


def _subtitle(findings: Findings, grids: Sequence[Grid]) -> str:
    models = len({CellKey.of_row(row)._replace(readout="own") for row in findings.rows})
    settings = len({grid.setting for grid in grids})
    episodes = sorted({row["episodes"] for row in findings.rows if isinstance(row.get("episodes"), int)})
    parts = [count_noun(models, "model"), count_noun(len(grids), "grid"), count_noun(settings, "setting")]
    return " · ".join(parts + ([f"{' or '.join(f'{n:,}' for n in episodes)} episodes per cell"] if episodes else []))


def _audit() -> dict[str, Any]:
    checks = paper_audit.run_checks()
    sections = {name: paper_audit.as_table(name, part) for name, part in paper_audit.sections(checks).items()}
    return {"counts": paper_audit.counts(checks), "sections": sections}
