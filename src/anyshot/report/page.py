"""The page: one HTML file from one template, all it needs inside: Vega, figures as Vega-Lite, tables, downloads.

Its methods paragraph states the exact protocol, ready for a paper.
"""

import base64
import hashlib
import json
from collections import ChainMap, Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import vl_convert
from markupsafe import Markup

import anyshot
from anyshot.files import write_text
from anyshot.measure.grid import format_shot, shot_sort_key
from anyshot.paper import audit as paper_audit
from anyshot.report import answer, tables
from anyshot.report.charts import draw_figures, explore
from anyshot.report.runs import INTERVALS, Choice, Findings, read_findings
from anyshot.show.figures import ranking
from anyshot.show.pages import fill_template
from anyshot.show.summaries import ENDINGS, Summary, gain_summary
from anyshot.tables import CellKey, to_csv
from anyshot.text import count_noun

FOLDER = Path(__file__).parent
CITATION = (FOLDER / "citation.bib").read_text(encoding="utf-8").replace("VERSION", anyshot.__version__)
TOP = 12  # choices in the ranking chart; all are in its table


def write_report(runs: Sequence[Path], out: Path, paper: bool = False) -> Path:
    """Write the report of these runs (or of the paper alone) to `out`, and return where it is.

    With `paper`, the audit of the paper is a section of it.
    """
    context = _context(read_findings(runs, paper=paper), audit=paper)
    code = {"data": as_script(context["page"]), "vega": vega_code()}
    files = {"css": "page.css", "js": "page.js", "licence": "vega-licence.txt"}
    code |= {name: (FOLDER / file).read_text(encoding="utf-8") for name, file in files.items()}
    context |= {name: Markup(text) for name, text in code.items()} | {"policy": policy(code["vega"], code["js"])}
    write_text(out, fill_template(FOLDER / "page.html", **context, version=anyshot.__version__))
    return out


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
    """Return all that the template shows, and under `page` what page.js needs, too."""
    choices, pairs = findings.choices, findings.paired_intervals
    cells = [(shot, cell) for choice in choices for shot, cell in choice.cells.items()]
    over = {name: any(cell[name] is not None for _, cell in cells) for name in INTERVALS}
    shots = sorted({shot for shot, _ in cells}, key=shot_sort_key)
    answers = answer.list_answers(findings, "the shots you expect")
    setting = list(answers)[-1]
    listed = _list_tables(findings, [pair for one in answers.values() for pair in one.ranked], audit=audit)
    (figures, specs), explorer = draw_figures(findings), explore(findings)
    paragraphs = describe_methods(findings, over, paired=any(pairs.values()))
    summaries = explorer["summaries"] | {figure.id: figure.table for figure in figures}
    files = {"methods.txt": "\n\n".join(paragraphs) + "\n", "citation.bib": CITATION, "table.csv": _table_csv(findings)}
    for name, summary in ChainMap(summaries, *listed.values()).items():
        files |= {f"{name}.{end}": summary.text(format) for format, end in ENDINGS.items()}
    return {
        **listed,
        "slots": answers[setting].accurate,
        "findings": findings,
        "shots": shots,
        "format_shot": format_shot,
        "over": over,
        "subtitle": _subtitle(findings),
        "figures": figures,
        "explorer": explorer,
        "methods": paragraphs,
        "citation": CITATION,
        "date": datetime.now(UTC).date().isoformat(),
        "page": {
            "setting": setting,
            "robust": {setting: one.robust for setting, one in answers.items()},
            "top": TOP,
            "words": answer.WORDS,
            "choices": [asdict(choice) | {"label": choice.label} for choice in choices],
            "paired": pairs,
            "specs": specs | {"ranking": _ranking_spec(choices)},
            "grids": explorer["data"],
            "charts": explorer["charts"],
            "files": files,
        },
    }


def _list_tables(findings: Findings, ranked: answer.Ranking, *, audit: bool) -> dict[str, dict[str, Summary]]:
    """Return the tables that belong to no figure, by section: of the answer, the recipes, the paper and its audit."""
    shown = {} if findings.is_evaluation else {"sensitivity": tables.sensitivity_table(findings)}
    shown |= {"ranking": tables.ranking_table(ranked)} if ranked else {}
    complete = [grid for grid in findings.grids if grid.is_complete]
    shown |= {"gains": gain_summary(complete)} if complete else {}
    recipes = enumerate(tables.recipe_tables(findings.recipes) if findings.recipes else (), 1)
    matched = not findings.printed and tables.paper_grids(findings.grids)
    beside = {"beside-the-paper": tables.comparison_with_paper(findings.grids)} if matched else {}
    audits = {}
    if audit:
        checks = paper_audit.run_checks()
        audits["audit"] = paper_audit.counts(checks)
        for number, (title, part) in enumerate(paper_audit.sections(checks).items(), 1):
            audits[f"audit-{number}"] = paper_audit.as_table(title, part)
    return {"tables": shown, "recipes": {f"recipes-{i}": one for i, one in recipes}, "beside": beside, "audits": audits}


def _table_csv(findings: Findings) -> str:
    columns = list(dict.fromkeys(name for row in findings.rows for name in row))
    return to_csv([columns, *([row.get(name) for name in columns] for row in findings.rows)])


def _ranking_spec(choices: Sequence[Choice]) -> dict[str, Any]:
    most = max(Counter(choice.setting for choice in choices).values())
    return ranking(list(dict.fromkeys(choice.name for choice in choices)), min(TOP, most)).to_dict()


def _subtitle(findings: Findings) -> str:
    models = len({CellKey.of_row(row)._replace(readout="own") for row in findings.rows})
    settings, grids = len({grid.setting for grid in findings.grids}), len(findings.grids)
    what = [count_noun(models, "model"), count_noun(grids, "grid")]
    parts = [*([count_noun(grids, "head")] if findings.is_evaluation else what), count_noun(settings, "setting")]
    episodes = sorted({row["episodes"] for row in findings.rows if isinstance(row.get("episodes"), int)})
    return " · ".join(parts + ([f"{' or '.join(f'{n:,}' for n in episodes)} episodes per cell"] if episodes else []))


def describe_methods(findings: Findings, over: Mapping[str, bool], *, paired: bool) -> list[str]:
    """Return sentences of what the folders say, a paragraph per topic: models, test, intervals, software.

    Args:
        findings: What the folders hold.
        over: Whether there are intervals over episodes (ci95) and over new classes (ci95_classes).
        paired: Whether intervals of differences are paired.
    """
    text = fill_template(
        FOLDER / "methods.txt",
        rows=findings.rows,
        about=findings.about,
        settings=[grid.setting for grid in findings.grids],
        **_describe_recipes(list(findings.recipes.values())),
        over=over,
        paired=paired,
        is_evaluation=findings.is_evaluation,
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
