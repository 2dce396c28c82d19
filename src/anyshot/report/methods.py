"""A methods paragraph with the exact protocol, ready for a paper, and how to cite it."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import anyshot
from anyshot.report.answer import Choice
from anyshot.report.runs import Findings

CITATION = f"""@software{{anyshot,
  title = {{anyshot: few-shot image classification that holds at any shot}},
  version = {{{anyshot.__version__}}},
}}

@article{{shot-sensitivity,
  title = {{Diagnosing and Remedying Shot Sensitivity with Cosine Few-Shot Learners}},
  author = {{Wertheimer, Davis and Tang, Luming and Hariharan, Bharath}},
}}
"""


def methods(findings: Findings, choices: Sequence[Choice], *, paired: bool) -> list[str]:
    """Sentences, one paragraph per topic: models, test, intervals, sensitivity, software. Only what the folders say."""
    intervals = _intervals(choices, paired=paired)
    paragraphs = (_models(findings), _test(findings), intervals, _sensitivity(findings), _software(findings))
    return [text for text in paragraphs if text]


def _models(findings: Findings) -> str:
    rows, recipes = findings.rows, list(findings.recipes.values())
    shots = [shot for shot in _all(row["train_shot"] for row in rows if not row["mixed"]) if shot]
    text = f"{_list(_all(row['head'] for row in rows))} on {_list(_all(grid.setting for grid in findings.grids))}"
    text = f"Heads: {text}." + (f" Train shots: {_list(shots)}." if shots else "")
    readouts = [readout for readout in _all(row["readout"] for row in rows) if readout != "own"]
    text += f" Readouts besides each head's own: {_list(readouts)}." if readouts else ""
    mixed = _all(_list(recipe["mixed"]) for recipe in recipes if recipe.get("mixed"))
    if mixed:
        text += f" Heads called mixed draw the images per class anew for each batch, from {'; '.join(mixed)}."
    folded = sorted((r for r in recipes if not r.get("batch")), key=lambda recipe: recipe.get("train_shot", 0))
    if folded:
        plain = [r for r in folded if "way" in r and "train_shot" in r and not r.get("mixed")]
        batch = _all(f"{r['way']} classes of {r['train_shot']}" for r in plain)
        text += " Training by batch folding, without a split of support and queries"
        text += f", on batches of {_list(batch)} images" if batch else ""
        text += f"; {_fields(folded)}."
    pretrained = [recipe for recipe in recipes if recipe.get("batch")]
    text += f" Backbones of some models were pretrained: {_fields(pretrained, 'batch')}." if pretrained else ""
    return text


def _fields(recipes: Sequence[Mapping[str, Any]], *more: str) -> str:
    """What the recipes say of training, each value once."""
    names = (*more, "epochs", "optimiser", "lr", "weight_decay", "schedule", "seed")
    values = {name: _all(recipe.get(name) for recipe in recipes) for name in names}
    return ", ".join(f"{name.replace('_', ' ')} {_list(each)}" for name, each in values.items() if each)


def _test(findings: Findings) -> str:
    rows = findings.rows
    way, queries, episodes = (_all(row.get(name) for row in rows) for name in ("way", "queries", "episodes"))
    shots = _list(_all(row["test_shot"] for row in rows))
    parts = [f"{_list(way)}-way episodes" if way else "episodes"]
    parts += [f"with {_list(queries)} queries per class"] if queries else []
    count = f"{_list(f'{n:,}' if isinstance(n, int) else n for n in episodes)} " if episodes else ""
    seeds = _all(about.get("episode_seed") for about in findings.about)
    drawn = f" (seed {_list(seeds)})" if seeds else ""
    text = f"Test: {count}{' '.join(parts)} of unseen classes{drawn} at {shots} shots."
    paired = " The episodes are the same for all models, heads and readouts of a run, and the supports are nested."
    return text + (paired if findings.recipes else "")


def _intervals(choices: Sequence[Choice], *, paired: bool) -> str:
    cells = [cell for choice in choices for cell in choice.cells.values()]
    text = ""
    if any(cell["ci95"] is not None for cell in cells):
        text += (
            "Intervals over episodes (± 1.96 standard deviations / square root of episodes) say how far a mean could"
            " move with other episodes of the same images and classes; they compare models on this data."
        )
    if any(cell["ci95_classes"] is not None for cell in cells):
        text += (
            " Intervals over new classes (jackknife over the test classes, corrected for the noise of the episodes) say"
            " where the accuracy would lie on other classes of the same kind; they are what to expect in use."
        )
    if text:
        text += (
            " An interval of several cells is the mean of theirs, the widest it can be. That of a difference"
            f" {'is over the episodes that both met' if paired else 'treats the two as independent'}"
        )
        wide = "treats them as independent, which is wider than a paired one"
        text += f"; where these are not at hand it {wide}." if paired else ", which is wider than a paired one."
    return text.strip()


def _sensitivity(findings: Findings) -> str:
    text = (
        "Sensitivity: each accuracy of a grid (test shot by train shot) is the test bias (mean of the models at that"
        " test shot) plus the model bias (mean distance of a model to its group) plus a residual; sensitivity is"
        " the largest minus the smallest residual, in points of accuracy (Eq. 7 of the paper); lower is more robust."
    )
    if findings.sensitivities:
        text += (
            " Its interval over episodes covers the sensitivity of these models over all episodes of these classes with"
            " at least 95 % confidence: the 95 % quantile of the range of the residual's deviations in 1000 paired"
            " bootstrap draws of episodes. The noise floor is the sensitivity that perfectly robust models would show"
            " on average at this number of episodes."
        )
    if any(isinstance(row.get("low_classes"), float) for row in findings.sensitivities.values()):
        text += (
            " Its interval over new classes (a jackknife of all cells over the test classes, less the noise of the"
            " episodes) says where it would lie on other classes of the same kind; that of a difference is drawn for"
            " both together. Neither says anything of another training."
        )
    seeds = _all(row["seed"] for row in findings.rows)
    return text + (f" Accuracies are means over seeds {_list(seeds)}." if len(seeds) > 1 else "")


def _software(findings: Findings) -> str:
    recorded = [about["versions"] for about in findings.about if isinstance(about.get("versions"), dict)]
    versions = recorded[0] if recorded else {}
    ran = ", ".join(f"{name} {number}" for name, number in versions.items())
    more = " (the runs together do not share one set of versions)" if any(v != versions for v in recorded) else ""
    return (f"Run with {ran}{more}. " if ran else "") + f"Report by anyshot {anyshot.__version__}."


def _all(values: Iterable[Any]) -> list[Any]:
    """The different values, numbers in order."""
    different = [value for value in dict.fromkeys(values) if value not in (None, "")]
    return sorted(different) if all(isinstance(value, int) for value in different) else different


def _list(values: Iterable[Any]) -> str:
    *most, last = map(str, values)
    return f"{', '.join(most)} and {last}" if most else last
