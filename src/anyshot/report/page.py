"""The page: one HTML file from one template, all it needs inside: Vega, figures as Vega-Lite, tables, downloads."""

import base64
import contextlib
import hashlib
import json
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import vl_convert
from markupsafe import Markup

import anyshot
from anyshot.errors import BadInput
from anyshot.files import read_text, write_text
from anyshot.measure.grid import Grid, shot_sort_key
from anyshot.paper import audit as paper_audit
from anyshot.report import answer, tables
from anyshot.report.charts import draw_figures, ranking
from anyshot.report.explorer import Explorer
from anyshot.report.methods import CITATION, methods
from anyshot.report.runs import Findings
from anyshot.show.pages import fill_template
from anyshot.show.summaries import ENDINGS, Summary, find_counterpart, gain_summary
from anyshot.tables import to_csv

VEGA_SHA256 = {"1.9.0.post1": "373b1f84072b31010f15ceb787be6b415c53936411aae267c8c2b2b6ccde46e7"}
"""Of the bundle, by release of vl-convert; another release is bundled anew for each report."""
TOP = 12  # choices in the ranking chart; all are in its table


def render_page(findings: Findings, audit: bool = False) -> str:
    """The report as HTML; with the audit of the paper as a section where asked for."""
    folder = Path(__file__).parent
    context = _context(findings, audit=audit)
    code = {"data": as_script(context.pop("data")), "vega": vega_code()}
    files = {"css": "page.css", "js": "page.js", "licence": "vega-licence.txt"}
    code |= {name: (folder / file).read_text(encoding="utf-8") for name, file in files.items()}
    context |= {name: Markup(text) for name, text in code.items()} | {"policy": policy(code["vega"], code["js"])}
    return fill_template(folder / "page.html", **context, version=anyshot.__version__)


def policy(*scripts: str) -> str:
    """What the page may do: run these scripts, and ask nobody for anything. (Vega makes functions of what charts say,
    which is why evaluating is allowed.)"""
    hashes = (base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts)
    allowed = " ".join(f"'sha256-{value}'" for value in hashes)
    return (
        f"default-src 'none'; script-src {allowed} 'unsafe-eval'; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )


def as_script(value: Any) -> str:
    """JSON that is safe inside a <script>: no name in it can end the element or start a comment."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.translate({ord("<"): "\\u003c", ord(">"): "\\u003e", 0x2028: "\\u2028", 0x2029: "\\u2029"})


def vega_code() -> str:
    """Vega, Vega-Lite and vega-embed in one script, from the user's cache: bundling takes longer than the report. Every
    reader of a report runs it: what lies there is taken only where it is what this release of vl-convert gives."""
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "anyshot"
    release = version("vl-convert-python")
    cache, sha256 = folder / f"vega-{release}.js", VEGA_SHA256.get(release)
    with contextlib.suppress(BadInput):  # a cache that cannot be read or written costs time, not the report
        if cache.is_file() and hashlib.sha256((code := read_text(cache)).encode()).hexdigest() == sha256:
            return code
    code = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;").replace("</script", "<\\/script")
    if hashlib.sha256(code.encode()).hexdigest() == sha256:
        with contextlib.suppress(BadInput, OSError):
            write_text(cache, code)
    return code


def _context(findings: Findings, *, audit: bool) -> dict[str, Any]:
    """All that the template shows, and under `data` all that the script needs."""
    choices, grids = answer.list_choices(findings), findings.grids
    shots = sorted({shot for choice in choices for shot in choice.cells}, key=shot_sort_key)
    settings = list(dict.fromkeys(choice.setting for choice in choices))
    setting = answer.first_setting(choices)
    settings.sort(key=lambda name: name != answer.EVERYWHERE)  # the widest view first
    every = dict.fromkeys(shots, 1.0)
    ranked = answer.rank(choices, setting, every)
    pairs = answer.paired(findings, choices)
    robust = {name: answer.robust_sentence(answer.list_sensitivities(findings), name) for name in settings}
    figures = draw_figures(findings, choices)
    shown = Explorer(findings, choices)
    small = _answer_tables(findings, choices, every)
    recipes = tables.recipe_tables(findings.recipes) if findings.recipes else []
    matched = not findings.printed and tables.paper_grids(grids)
    beside = tables.comparison_with_paper(grids) if matched else None
    audited = _audit() if audit else None
    summaries = small | shown.summaries | {figure.id: figure.table for figure in figures}
    summaries |= {f"recipes-{i}": summary for i, summary in enumerate(recipes, 1)}
    summaries |= {"beside-the-paper": beside} if beside else {}
    if audited:
        summaries |= {"audit": audited["counts"]}
        summaries |= {f"audit-{i}": summary for i, summary in enumerate(audited["sections"].values(), 1)}
    paragraphs = methods(findings, choices, paired=any(pairs.values()))
    files = {f"{name}.{end}": one.text(format) for name, one in summaries.items() for format, end in ENDINGS.items()}
    files |= {"methods.txt": "\n\n".join(paragraphs) + "\n", "citation.bib": CITATION}
    specs = {figure.id: figure.spec for figure in figures} | {"ranking": _ranking_spec(choices)}
    sections = [("answer", "Answer"), ("explore", "Explore")] + ([("paper", "Beside the paper")] if beside else [])
    sections += [("audit", "What holds in the paper")] if audited else []
    return {
        "title": findings.title,
        "subtitle": _subtitle(findings, grids),
        "sections": [*sections, ("take", "Take away"), ("methods", "Methods")],
        "settings": settings,
        "setting": setting,
        "robust": robust,
        "slots": answer.accurate_slots(ranked, every, pairs.get(setting, {})),
        "shots": shots,
        "words": answer.describe_shot,
        "few_and_many": any(shot in (2, 4) for shot in shots) and 8 in shots,
        "class_intervals": any(cell["ci95_classes"] is not None for c in choices for cell in c.cells.values()),
        "notes": _notes(findings, grids, choices),
        "options": shown.options,
        "chosen": shown.chosen(),
        "figures": figures,
        "recipes": recipes,
        "beside": beside,
        "audit": audited,
        "tables": small,
        "grids": shown.summaries,
        "methods": paragraphs,
        "citation": CITATION,
        "date": datetime.now(UTC).date().isoformat(),
        "data": {
            "setting": setting,
            "top": TOP,
            "choices": [_as_data(choice) for choice in choices],
            "paired": {name: _by_place(halves, shots) for name, halves in pairs.items()},
            "unpaired": answer.UNPAIRED,
            "robust": robust,
            "specs": specs,
            "grids": shown.data,
            "skeletons": shown.skeletons,
            "files": {"table.csv": _table_csv(findings)} | files,
        },
    }


def _answer_tables(
    findings: Findings, choices: Sequence[answer.Choice], weights: Mapping[Any, float]
) -> dict[str, Summary]:
    """The tables behind the answer: sensitivities, the ranking of every setting, gains; as far as there are any."""
    shown = {"sensitivity": tables.sensitivity_table(findings)}
    if answer.rank(choices, answer.first_setting(choices), weights):
        settings = dict.fromkeys(choice.setting for choice in choices if choice.setting != answer.EVERYWHERE)
        shown["ranking"] = tables.ranking_table(
            [pair for name in settings for pair in answer.rank(choices, name, weights)]
        )
    if complete := [grid for grid in findings.grids if grid.is_whole and _fits(grid, findings.grids)]:
        shown["gains"] = gain_summary(complete)
    return shown


def _table_csv(findings: Findings) -> str:
    columns = list(dict.fromkeys(name for row in findings.rows for name in row))
    return to_csv([columns, *([row.get(name) for name in columns] for row in findings.rows)])


def _as_data(choice: answer.Choice) -> dict[str, Any]:
    names = ("accuracy", "ci95", "ci95_classes")
    cells = {shot: {name: cell[name] for name in names} for shot, cell in choice.cells.items()}
    return {"setting": choice.setting, "head": choice.head, "name": choice.name, "label": choice.label, "cells": cells}


def _by_place(pairs: answer.Pairs, shots: Sequence[int | str]) -> dict[str, dict[str, list[float | None]]]:
    """Halves of intervals as a list in the order of the page's shots: many pairs, little room."""
    nested: dict[str, dict[str, list[float | None]]] = {}
    for (one, other), halves in pairs.items():
        nested.setdefault(one, {})[other] = [halves.get(shot) for shot in shots]
    return nested


def _ranking_spec(choices: Sequence[answer.Choice]) -> dict[str, Any]:
    most = max(Counter(choice.setting for choice in choices).values())
    return ranking(list(dict.fromkeys(choice.name for choice in choices)), min(TOP, most)).to_dict()


def _fits(grid: Grid, among: Sequence[Grid]) -> bool:
    """Whether a grid can be set against its counterpart: the same test shots, nothing missing."""
    other = find_counterpart(grid, among)
    return other is None or (other.test_shots == grid.test_shots and other.is_whole)


def _notes(findings: Findings, grids: Sequence[Grid], choices: Sequence[answer.Choice]) -> list[str]:
    """What a reader must know to read the answer."""
    cells = [cell for choice in choices for cell in choice.cells.values()]
    notes = []
    if any(cell["ci95"] is not None for cell in cells):
        note = "“± over episodes”: other episodes of the same classes; use it to compare heads on this data."
        if any(cell["ci95_classes"] is not None for cell in cells):
            note += " “± over new classes”: other classes of the same kind; expect it in use."
        notes.append(note)
    if findings.printed:
        notes.append("The paper prints no interval of a sensitivity, and one interval per test shot for all models.")
    whys = [f"{grid.name} on {grid.setting}: {why}" for grid in grids if (why := answer.why_no_sensitivity(grid))]
    if whys:
        more = f"; and {len(whys) - 6} more" if len(whys) > 6 else ""
        notes.append(f"Without a sensitivity: {'; '.join(whys[:6])}{more}.")
    return notes


def _subtitle(findings: Findings, grids: Sequence[Grid]) -> str:
    models = len({(row["data"], row["backbone"], row["head"], row["train_shot"], row["seed"]) for row in findings.rows})
    settings = len({grid.setting for grid in grids})
    episodes = sorted({row["episodes"] for row in findings.rows if isinstance(row.get("episodes"), int)})
    parts = [_count(models, "model"), _count(len(grids), "grid"), _count(settings, "setting")]
    return " · ".join(parts + ([f"{' or '.join(f'{n:,}' for n in episodes)} episodes per cell"] if episodes else []))


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'s' if number != 1 else ''}"


def _audit() -> dict[str, Any]:
    checks = paper_audit.run_checks()
    sections = {name: paper_audit.as_table(name, part) for name, part in paper_audit.sections(checks).items()}
    return {"counts": paper_audit.counts(checks), "sections": sections}
