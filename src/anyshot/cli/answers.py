"""`anyshot predict`, `test` and `advise`: what a classifier answers, how good it is, and what its examples tell."""

import io
import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
from rich.console import Console
from rich.table import Table

from anyshot.classify.classifier import FewShotClassifier
from anyshot.classify.images import load_classifier
from anyshot.cli.classifiers import CurveOptions
from anyshot.cli.learning import check_size, get_backbone, get_estimator, load_features_model, open_with_features
from anyshot.cli.options import ExampleOptions, ReadOptions, parse_way
from anyshot.data.open import has_features
from anyshot.data.source import Source, check_content, select_splits
from anyshot.errors import BadInput
from anyshot.files import write_json, write_text
from anyshot.inspect.advice import Advice, advise
from anyshot.inspect.case import AdviceOptions, choose_default_heads
from anyshot.inspect.corrections import apply_tables
from anyshot.inspect.holdout import MOST_MISTAKES, measure_holdout
from anyshot.inspect.pages import render_advice, render_ranking, render_test
from anyshot.inspect.pictures import add_picture_options, make_picture_reader, make_thumbnails
from anyshot.inspect.sections import as_text
from anyshot.inspect.unlabelled import check_same_shape, describe_ranking, rank_unlabelled
from anyshot.machine import release_large_blocks
from anyshot.models.embedders import DEFAULT_EMBEDDER, Embedder, load_embedder
from anyshot.models.features import embed_pictures, open_examples, read_examples
from anyshot.progress import print_message, progress
from anyshot.tables import round_row, to_csv, write_table
from anyshot.text import count_noun, to_one_line, to_printable

Format = Literal["table", "csv", "json"]
BY_ENDING: dict[str, Format] = {".csv": "csv", ".json": "json"}
Answer = dict[str, Any]


def predict_sources(
    model: Path, sources: Sequence[Path], options: ReadOptions, format: Format | None, top: int | None, out: Path | None
) -> str:
    """Classify all that the sources hold; the arguments are those of the verb."""
    format = format or BY_ENDING.get(out.suffix.lower() if out is not None else "", "table")
    if top is None:
        top = 1 if format == "csv" else 3
    if top < 1:
        raise BadInput(f"the likeliest {top} classes cannot be shown: name a number from 1.")
    classifier = load_classifier(model, options.registry())
    estimator, backbone = get_estimator(classifier), get_backbone(classifier)
    if not sources:
        raise BadInput("there are no examples to classify: give files of pictures, or of features.")
    with open_with_features(sources, backbone, options.open_cache(), options.layout, "classifying") as examples:
        if not examples.items:
            message = "none of the pictures could be read" if examples.skipped else "there are no pictures to classify"
            raise BadInput(f"{message}.")
        check_size(estimator, examples, " ".join(map(str, sources)))
        answers = list(_answer(estimator, examples.names, examples.features, top))
    match format:
        case "table":
            text = _to_table(answers, "example" if backbone is None else "image")
        case "csv":
            text = _to_csv(answers)
        case "json":
            text = json.dumps(answers, indent=2, ensure_ascii=False) + "\n"
    if out is None:
        return text
    write_text(out, text)
    return f"{out}: {count_noun(len(answers), 'answer')}.\n"


def _answer(classifier: FewShotClassifier, names: Sequence[str], features: np.ndarray, top: int) -> Iterator[Answer]:
    """Yield an answer per example; every format shows the same ones.

    `nearest` is the likeliest class. Where the example looks like one of the classes (`is_known`), `class` is the same
    and `probability` its probability; otherwise both are None, because probabilities only compare the classes with each
    other. `best` holds the likeliest classes with these probabilities.
    """
    columns = *classifier.top(features, top), classifier.is_known(features)
    for name, labels, probabilities, is_known in zip(names, *(column.tolist() for column in columns), strict=True):
        pairs = zip(labels, probabilities, strict=True)
        best = [{"class": label, "probability": round(probability, 6)} for label, probability in pairs]
        first = best[0] if is_known else {"class": None, "probability": None}
        yield {"image": name, **first, "is_known": is_known, "nearest": best[0]["class"], "best": best}


def _to_table(answers: Sequence[Answer], noun: str) -> str:
    """Return the answers for people; `noun` heads the column of names."""
    table = Table(noun, "class", "probability", "then")
    for answer in answers:
        others = ", ".join(f"{one['class']} {one['probability']:.1%}" for one in answer["best"][1:])
        cells = answer["image"], str(answer["class"]), f"{answer['probability'] or 0:.1%}", others
        if not answer["is_known"]:
            nearest = ", ".join(str(one["class"]) for one in answer["best"])
            cells = answer["image"], "none of these", "-", f"nearest: {nearest}"
        table.add_row(*map(to_one_line, cells))
    out = io.StringIO()
    width = None if sys.stdout.isatty() else 160
    Console(file=out, width=width, markup=False, emoji=False).print(table)  # a class may be called [/red] or :cat:
    return out.getvalue()


def _to_csv(answers: Sequence[Answer]) -> str:
    """Return one line per answer; further classes are columns, and what is None is an empty cell."""
    columns = ["image", "class", "probability", "is_known", "nearest"]
    most = max((len(answer["best"]) for answer in answers), default=1)
    further = [f"{column}_{place}" for place in range(2, most + 1) for column in ("class", "probability")]
    lines = [[*columns, *further]]
    for answer in answers:
        cells = ["" if answer[column] is None else answer[column] for column in columns]
        lines.append([*cells, *(value for one in answer["best"][1:] for value in one.values())])
    return to_csv(lines)


# ------------------------------------------------------------------------------------------------------- test, advise


def measure_classifier(
    model: Path, source: Path, options: ReadOptions, as_json: bool, out: Path | None, split: Sequence[str]
) -> str:
    """Measure a classifier on labelled examples; the arguments are those of the verb."""
    classifier = load_classifier(model, options.registry())
    choose, backbone = partial(select_splits, wanted=split, for_test=True), get_backbone(classifier)
    jpegs: dict[int, bytes] = {}
    with open_examples(source, options.layout, choose, print_message) as examples:
        check_content(examples, source, has_features=backbone is None)
        if backbone is not None:
            title = f"classifying {len(examples.items)} pictures"
            examples = embed_pictures(backbone, examples.items, options.open_cache(), title, print_message)
            if not examples.has_features:
                raise BadInput("none of the pictures could be read.")
        check_size(get_estimator(classifier), examples, str(source))
        result = measure_holdout(get_estimator(classifier), examples.features, examples.labels, examples.names)
        if backbone is not None and out is not None:
            mistakes = [mistake.place for mistake in result.mistakes[:MOST_MISTAKES]]
            jpegs = make_thumbnails(make_picture_reader(examples, backbone), mistakes)
    text = result.to_text()
    if out is not None:
        write_json(out / "test.json", result.to_dict())
        write_text(out / "test.txt", text + "\n")
        write_text(out / "test.html", render_test(result, jpegs, f"{model.name}, tested with {source.name}"))
        print_message(f"open {out / 'test.html'}")
    return json.dumps(result.to_dict(), indent=2, ensure_ascii=False) if as_json else to_printable(text)


def advise_source(
    source: Path,
    curve: CurveOptions,
    options: ReadOptions,
    selection: ExampleOptions,
    model: str,
    holdout: Path | None,
    unlabelled: Path | None,
    out: Path | None,
) -> str:
    """Give advice for features, a store or a folder of pictures; the arguments are those of the verb."""
    registry = options.registry()
    way: int | Literal["all"] = parse_way(curve.way) or "all"
    embedder = None
    if has_features(source, options.layout):
        trained = load_features_model(source, model, registry)
    else:
        embedder = load_embedder(model or DEFAULT_EMBEDDER, registry=registry)
        trained = embedder.model
    for other in (holdout, unlabelled):
        if other is not None and has_features(other, options.layout) != (embedder is None):
            raise BadInput(f"{other} must be of the same kind as {source}: both pictures, or both features.")
    examples, held_out = _read(source, options, selection, holdout, embedder)
    with _open_unlabelled(unlabelled, examples, embedder, options) as pool:
        examples = apply_tables(examples, selection.corrections)
        settings: AdviceOptions = {"names": examples.names, "groups": examples.groups, "registry": registry}
        settings["is_confirmed"] = [item.is_confirmed for item in examples.items]
        if held_out is not None:
            settings["holdout"] = held_out.features, held_out.labels
        default_heads = choose_default_heads(examples.features)
        if trained is not None:
            recipe = trained.recipe
            settings["parameters"] = {recipe.head: trained.bound_head.parameters}
            settings["embed"] = {recipe.head: recipe.embed} if recipe.embed else {}
            default_heads = list(dict.fromkeys([recipe.head, *default_heads]))
        if embedder is not None:
            settings = add_picture_options(examples, embedder, settings, options.open_cache())
        heads = curve.heads or default_heads
        with progress("comparing heads and shots", 1.0) as advance, release_large_blocks():
            settings["progress"] = advance
            advice = advise(
                examples.features, examples.labels, heads, curve.shots, way, curve.episodes, curve.seed, **settings
            )
        if out is not None:
            _write_advice(advice, source, out)
        text = advice.to_text()
        if pool is not None:
            text += f"\n\n{_rank(pool, str(unlabelled), advice, embedder, out)}"
        return to_printable(text)


def _write_advice(advice: Advice, source: Path, out: Path) -> None:
    """Write the advice as a page, as Markdown and as JSON."""
    jpegs = make_thumbnails(advice.case.picture, advice.pictures)
    write_json(out / "advice.json", advice.to_dict())
    write_text(out / "advice.md", advice.to_markdown())
    write_text(out / "advice.html", render_advice(advice, jpegs, str(source)))
    print_message(f"open {out / 'advice.html'}")


@contextmanager
def _open_unlabelled(
    path: Path | None, labelled: Source, embedder: Embedder | None, options: ReadOptions
) -> Iterator[Source | None]:
    """Open unlabelled examples with their features; None where none are named."""
    if path is None:
        yield None
        return
    with open_with_features([path], embedder, options.open_cache(), options.layout) as examples:
        if not examples.items:
            raise BadInput(f"{path} has no picture that can be read.")
        check_same_shape(labelled.features.shape, examples.features.shape)
        yield examples


def _rank(examples: Source, unlabelled: str, advice: Advice, embedder: Embedder | None, out: Path | None) -> str:
    """Rank unlabelled examples, and write the table and the page of them."""
    case, names = advice.case, [name.removeprefix(f"{unlabelled}/") for name in examples.names]
    labels = np.array(case.class_names)[case.labels]
    ranking = rank_unlabelled(case.features, labels, examples.features, classifier=case.fit(advice.best))
    if out is not None:
        columns = "rank", "path", "likeliest", "probability", "is_known"
        cells = [(place, names[one.example], *one[1:]) for place, one in enumerate(ranking, 1)]
        rows = [dict(zip(columns, row, strict=True)) for row in cells]
        read = None if embedder is None else make_picture_reader(examples, embedder)
        jpegs = make_thumbnails(read, [one.example for one in ranking])
        write_table(out / "label-next.csv", [round_row(row) for row in rows])
        page = render_ranking(ranking, names, case.class_names, jpegs, unlabelled, is_features=embedder is None)
        write_text(out / "label-next.html", page)
        print_message(f"open {out / 'label-next.html'}")
    return as_text("", [describe_ranking(ranking, names)]).lstrip()


def _read(
    source: Path, options: ReadOptions, selection: ExampleOptions, holdout: Path | None, embedder: Embedder | None
) -> tuple[Source, Source | None]:
    """Return the examples that advice is taken from, and those held out: by default the test folder of the source."""
    everything = read_examples(source, embedder, options.open_cache(), options.layout, say=print_message)
    layout = replace(options.layout, group_depth=0, group_column="")  # examples held out need no groups
    rows, summary = select_splits(everything.splits, selection.split, for_test=False)
    print_message(f"  {summary}." if summary else "")
    examples, held_out = everything.select(rows), None
    if holdout is not None:
        choose = partial(select_splits, wanted=(), for_test=True)
        held_out = read_examples(holdout, embedder, options.open_cache(), layout, choose, print_message)
    elif "test" in everything.splits and "test" not in selection.split:
        held_out = everything.select([row for row, split in enumerate(everything.splits) if split == "test"])
    return examples, held_out
