"""The command line: one function a verb, each importing what it needs when it runs, so that --help answers at once."""

import contextlib
import io
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, is_dataclass
from functools import partial
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn, get_type_hints

import tyro
from tyro.extras import SubcommandApp

from anyshot.data.layout import PackOptions, SourceOptions
from anyshot.errors import BadInput, describe_unknown_name, look_up
from anyshot.text import to_one_line

if TYPE_CHECKING:
    from anyshot.measure.experiments import EmbeddedSplit
    from anyshot.models.cache import FeatureCache
    from anyshot.models.registry import Registry
    from anyshot.tables import Row

app = SubcommandApp()
paper = SubcommandApp()
app.command(paper, name="paper", help="The paper's printed numbers: audit them, draw them, set them in tables.")

Folder = Annotated[Path, tyro.conf.arg(aliases=["-o"], metavar="DIR")]
Target = Annotated[Path, tyro.conf.arg(aliases=["-o"])]
Output = Annotated[Path | None, tyro.conf.arg(aliases=["-o"], metavar="PATH")]
OptionalPath = Annotated[Path | None, tyro.conf.arg(metavar="PATH")]
OptionalNumber = Annotated[int | None, tyro.conf.arg(metavar="INT")]
Splits = tuple[Literal["train", "val", "test"], ...]
Name = Annotated[str, tyro.conf.Positional]
Place = Annotated[Path, tyro.conf.Positional]
Places = Annotated[tuple[Path, ...], tyro.conf.Positional]


@dataclass(frozen=True)
class DeviceOptions:
    """Where networks come from, and where they run."""

    using: OptionalPath = None
    """A Python file with heads, backbones or readouts of your own (`registry = anyshot.Registry(...)`)."""
    device: str = ""
    """Where networks run, as torch names it: cpu, cuda, cuda:1, mps; the CPU by default."""

    def registry(self) -> "Registry":
        """Let networks run on that device from now on; what is offered, ours and that file's."""
        from anyshot.models.devices import use_device
        from anyshot.models.registry import load_registry

        if self.device:
            use_device(self.device)
        return load_registry(self.using)


@dataclass(frozen=True)
class EmbedOptions(DeviceOptions):
    """The same, and whether features are kept."""

    cache: bool = True
    """Keep features of pictures, and take those that were kept."""

    def features(self) -> "FeatureCache | None":
        """The cache of features, where it is wanted."""
        from anyshot.models.cache import FeatureCache

        return FeatureCache() if self.cache else None


@dataclass(frozen=True)
class ReadOptions(EmbedOptions):
    """How sources are read, and networks run."""

    layout: SourceOptions = field(default_factory=SourceOptions)


HowRead = Annotated[ReadOptions, tyro.conf.OmitArgPrefixes]
HowEmbed = Annotated[EmbedOptions, tyro.conf.OmitArgPrefixes]
HowRun = Annotated[DeviceOptions, tyro.conf.OmitArgPrefixes]
READ, EMBED, RUN, KINDS = ReadOptions(), EmbedOptions(), DeviceOptions(), PackOptions()


@paper.command
def audit(json: bool = False, markdown: bool = False, all: bool = False) -> None:
    """Derive the paper's numbers and claims again from its grids, and say which hold.

    Args:
        json: print all checks as a JSON list of objects.
        markdown: print the page docs/paper.md.
        all: show also the table numbers that hold, one line each.
    """
    from anyshot.paper import audit

    checks = audit.run_checks()
    if json:
        print(dumps([asdict(check) for check in checks], indent=2, ensure_ascii=False))
    elif markdown:
        print(audit.markdown(checks), end="")
    else:
        audit.print_audit(checks, everything=all)


@paper.command
def tables(out: Folder, format: Literal["markdown", "latex", "csv"] = "markdown") -> None:
    """Write the paper's tables, each computed again from its grids: sensitivities, gains, and the grids themselves.

    Args:
        out: folder to write to.
        format: how to write them.
    """
    from anyshot.paper import publish

    publish.write_tables(out, format)


@paper.command
def figures(out: Folder, format: Literal["svg", "png", "pdf", "json"] = "svg") -> None:
    """Draw the paper's figures again from its printed numbers, by the code that draws our own studies.

    Args:
        out: folder to write to.
        format: kind of file; json is the Vega-Lite specification.
    """
    from anyshot.paper import publish

    publish.write_figures(out, format)


@app.command
def study(
    name: Name,
    heads: tuple[str, ...] = (),
    only: str = "",
    out: Output = None,
    data: Path = Path("data"),
    on: str = "here",
    workers: int = 0,
    dry_run: bool = False,
    tensorboard: bool = False,
    ready: bool = False,
    device: str = "",
    images: OptionalPath = None,
) -> None:
    """Train and test the models of a study, as far as they are missing, and report.

    A study is a list of models to train (heads, which are ways to tell classes apart, each for some number of shots,
    which are examples of a class) and how to test them.

    Args:
        name: A study of the package (quick, ...) or the path of a Python file with a function study(heads).
        heads: Heads instead of the study's own choice; 'all' for every head.
        only: Only some models, by the words of their names: proto,cosine-proto or cub/conv4/frn or frn/4-shot.
        out: Folder of results; runs/NAME by default. What is done there is skipped.
        data: Folder of stores.
        on: Where models run: here, ray, ray://ADDRESS, or slurm. (Under torchrun: each model over all its processes.)
        workers: Models trained side by side here; by default what is measured to be faster, within cores and memory.
        dry_run: List models, updates, images and the estimated time on this machine, and do nothing.
        tensorboard: Mirror the histories as event files into OUT/tensorboard.
        ready: Train nothing: test the models that come with the study on their features, into runs/NAME-ready.
        device: Where models train, as torch names it: cpu, cuda, cuda:1, mps; a GPU by default, where there is one.
        images: What its store is made of where DATA lacks it: an archive, folder or file as `anyshot pack` takes it.
    """
    from anyshot.models.devices import use_device
    from anyshot.study.runner import plan_study, run_study
    from anyshot.study.study import StudySource, find_study

    use_device(device)
    path = find_study(name)
    source = StudySource(path, heads or None)
    folder = out or Path("runs") / path.stem
    if dry_run:
        print(plan_study(source, folder, data, only, workers, on))
        return
    from anyshot.report import show_report, write_report

    if ready:
        from anyshot.study.ready import run_ready

        folder = out or Path("runs") / f"{path.stem}-ready"
        rows = run_ready(source, folder, only)
    else:
        rows = run_study(source, folder, data, only, workers, on, tensorboard, device, images)
    if rows:
        show_report([folder])
        print(f"open {write_report([folder], folder / 'report.html')}")


@app.command
def publish(
    name: Name,
    out: Folder,
    run: OptionalPath = None,
    data: Path = Path("data"),
    heads: tuple[str, ...] = (),
    only: str = "",
    add: bool = False,
    ready: str = "",
) -> None:
    """Gather what a study found into one folder for others: tables with intervals, side experiments, figures, recipes.

    Args:
        name: The study, as `anyshot study` knows it; it must have been run.
        out: Folder to write: a new one, or one published before, which it replaces.
        run: Folder of its results; runs/NAME by default.
        data: Folder of stores.
        heads: Heads instead of the study's own choice, as in `anyshot study`.
        only: Only some models, as in `anyshot study`.
        add: Add these models to what is published in OUT; what is there stays, and must be the same where both have it.
        ready: Keep these models, and their features of the test classes, beside the study for `--ready`.
    """
    from anyshot.study.publishing import publish
    from anyshot.study.ready import write_ready
    from anyshot.study.study import StudySource, find_study, select_recipes

    source = StudySource(find_study(name), heads or None)
    folder = run or Path("runs") / source.path.stem
    study = source.load()
    chosen = select_recipes(study.recipes, ready) if ready else []  # before the work, to say early what is misspelt
    publish(source, folder, data, out, only, add=add)
    print(f"open {out / 'README.md'}, or make a page of it: anyshot report {out}")
    if chosen:
        print(f"models kept in {write_ready(source, study, chosen, folder, data)}")


@app.command
def report(
    runs: Places = (),
    out: Annotated[Path, tyro.conf.arg(aliases=["-o", "--output"], metavar="FILE")] = Path("report.html"),
    text: bool = False,
    paper: bool = False,
) -> None:
    """Write what runs found as one HTML page that opens without a network, or print it.

    Args:
        runs: Folders that a study or an evaluation wrote; several are shown together.
        out: The page to write.
        text: Print a summary, the sensitivities and a heatmap instead.
        paper: Add what holds in the paper; without runs, a report of the paper's printed grids.
    """
    from anyshot.report import show_report, write_report

    if text:
        show_report(runs, paper)
    else:
        print(f"open {write_report(runs, out, paper)}")


@app.command
def pack(
    kind: Name,
    source: Place,
    out: Target,
    size: OptionalNumber = None,
    fit: Literal["crop", "squash", "frame"] | None = None,
    split: tuple[float, float, float] = (0.6, 0.2, 0.2),
    seed: int = 0,
    workers: int = 0,
    embed: Annotated[tuple[str, ...] | None, tyro.conf.arg(metavar="[NAME]")] = None,
    doctor: bool = True,
    how: HowEmbed = EMBED,
    kinds: Annotated[PackOptions, tyro.conf.OmitArgPrefixes] = KINDS,
) -> None:
    """Turn images or embeddings, wherever they are, into a store: a folder that training and testing read from, where
    pictures are squares of one size. Interrupted, the same command goes on.

    Args:
        kind: cub, mini, tiered, meta-inat, folder, table, huggingface, features or npz.
        source: The folder, archive or file to read.
        out: The store to make.
        size: Side of the stored square; 92 for own images, CUB and mini-ImageNet, 84 for the others, npz as it is.
        fit: The central square (crop), the whole image made square (squash), or the whole image as it is, with `size`
            as its shorter side (frame; 256 by default): training then draws its crops from all of the photo.
        split: Shares of the classes for training, for choosing (val) and for testing, where the source does not say.
        seed: Number that decides this division; the same number, the same division.
        workers: Threads that decode; one a core by default.
        embed: Store features instead of images: of efficientnet-lite0, or of what else is named, as in `fit --model`.
        doctor: Look the store over at the end (anyshot doctor).
        how: With --embed: where networks come from and run.
        kinds: Options of some kinds.
    """
    from anyshot.data.doctor import diagnose_to_folder
    from anyshot.data.pack import pack
    from anyshot.progress import print_message

    embedding = None
    if embed is not None:
        from anyshot.models import embedders

        name, *more = embed or (embedders.DEFAULT_EMBEDDER,)
        if more:
            raise BadInput(f"--embed takes one name, not {' '.join(embed)}.")
        embeds = embedders.load_embedder(name, registry=how.registry())
        embedding = embedders.as_packing_embedding(embeds, how.features())
    store = pack(kind, source, out, size, fit, split, seed, workers, embedding, print_message, **vars(kinds))
    frames = "whole images, central squares " if store.about.get("fit") == "frame" else ""
    print(f"{out}: {len(store.items)} items of {frames}shape {'x'.join(map(str, store.items.shape[1:]))}")
    if doctor:
        print(diagnose_to_folder(store).text)


@app.command
def embed(
    source: Place,
    out: Folder,
    model: str = "efficientnet-lite0",
    on: str = "here",
    workers: int = 0,
    using: OptionalPath = None,
) -> None:
    """Turn pictures, however many, into shards of features; interrupted, the same command goes on.

    Args:
        source: A folder of class folders, a table of paths, a Parquet file of images, a tar file, or a folder of such.
        out: Folder for the shards; `pack features`, `evaluate`, `fit` and `advise` take it.
        model: What embeds the pictures, as in `fit --model`.
        on: Where: here, ray, or ray://ADDRESS.
        workers: With ray: processes; one per core by default.
        using: A Python file with backbones of your own (`registry = anyshot.Registry(...)`).
    """
    from anyshot.machine import limit_threads_to_free_cores

    limit_threads_to_free_cores()
    from anyshot.models.sharding import embed_source

    print(embed_source(source, out, model, on, workers, using))


@app.command
def doctor(
    store: Place,
    out: Output = None,
    verify: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False,
    copies: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False,
) -> None:
    """Say what is in a store and what is wrong with it, and draw a contact sheet a split, and one of duplicates.

    Args:
        store: The store to look over.
        out: Folder for diagnosis.json and the sheets; STORE/doctor by default.
        verify: Compare every byte with the checksums first.
        copies: Look for pictures that are cropped, turned, mirrored or brighter copies of others, too. It embeds every
            picture, some 20 a second.
    """
    from anyshot.data.doctor import diagnose_to_folder
    from anyshot.data.store import open_store

    folder, opened, look = out or store / "doctor", open_store(store, verify), None
    if copies and not opened.is_features:
        from anyshot.inspect.advise_pictures import find_copies_in_store

        look = partial(find_copies_in_store, cache=EMBED.features())
    print(diagnose_to_folder(opened, folder, look).text)
    print(f"details in {folder}")


@app.command
def evaluate(
    store: Place,
    model: Annotated[str | None, tyro.conf.arg(metavar="STR")] = None,
    heads: tuple[str, ...] = (),
    readouts: tuple[str, ...] = ("own",),
    shots: tuple[int, ...] = (),
    unequal: Literal["uniform", "step", "long-tailed"] | None = None,
    way: str = "5",
    queries: int = 16,
    episodes: int = 10_000,
    seed: int = 0,
    split: str = "test",
    dirichlet: Annotated[float | None, tyro.conf.arg(metavar="FLOAT")] = None,
    plan: OptionalPath = None,
    save_plan: OptionalPath = None,
    out: Output = None,
    how: HowRead = READ,
) -> None:
    """Test heads on features, or on a model's features of images.

    A head is a way to tell classes apart by a few examples of each. It is tested in episodes: small tasks with some
    classes (the way), some examples of each to learn from (the shots) and others to recognise (the queries).

    Args:
        store: A store, made by `anyshot pack`; pictures in class folders (or a zip of them, or a table of paths and
            labels); a file of features with labels.
        model: What embeds images, by default efficientnet-lite0, which comes with anyshot; or the folder or name of a
            trained model, timm:NAME, or an .onnx file.
        heads: Heads to test; the model's own, or proto and cosine-proto, by default.
        readouts: Other ways to read the same features: own, swapped (the other score), pcaN and estN (after a
            projection to N numbers); those that do not fit a head are left out.
        shots: Test shots; by default those of 1, 2, 4, 8, 16 and 32 that the smallest class has examples for.
        unequal: Unequal shots between 1 and the largest test shot instead.
        way: Classes an episode; 'all' for every class at once.
        queries: Queries a class.
        episodes: Episodes; the same for all heads and shots.
        seed: Number that decides the episodes; the same number, the same episodes.
        split: Classes to test on: train, val or test.
        dirichlet: Make some classes commoner than others among the queries, by a Dirichlet distribution: the smaller,
            the more unequal.
        plan: Saved plan of episodes, instead of way, queries, episodes and seed.
        save_plan: Where to save the plan of episodes, to share it.
        out: Folder for the table (table.csv) and the recalls of every episode; printed only by default.
        how: How sources are read, and networks run.
    """
    from anyshot.machine import keep_freed_memory, limit_threads_to_free_cores

    limit_threads_to_free_cores()
    registry = how.registry()
    from anyshot.measure.evaluation import run_evaluation
    from anyshot.measure.plan import Protocol

    keep_freed_memory()
    if way != "all" and not way.isdigit():
        raise BadInput(f"way is a number of classes or 'all', not {way!r}.")
    protocol = Protocol(shots, 0 if way == "all" else int(way), queries, episodes, seed)
    asked = store, model, heads, split, protocol, unequal, readouts, dirichlet, plan, save_plan, out
    print(run_evaluation(*asked, registry, how.features(), how.layout))


experiment = SubcommandApp()
app.command(experiment, name="experiment", help="The paper's side experiments, on trained models.")


@dataclass(frozen=True)
class ExperimentOptions:
    """A side experiment on trained models."""

    store: Place
    """Store of images."""
    models: Places
    """Folders of trained models."""
    split: str = "test"
    """Classes to test on."""
    episodes: int = 1000
    """Trials."""
    seed: int = 0
    """Seed of the episodes."""
    out: Output = None
    """CSV file to keep the table in."""
    figure: OptionalPath = None
    """File to draw it to (.svg, .png, .pdf)."""
    how: DeviceOptions = RUN

    def show(self, measure: "Callable[[EmbeddedSplit, int, int], list[Row]]", draw: str) -> None:
        """Measure each model and print the table; keep and draw it where asked."""
        registry = self.how.registry()
        from anyshot.measure.experiments import embed_each
        from anyshot.tables import format_table

        embedded = embed_each(self.store, self.models, self.split, registry)
        rows = [row for one in embedded for row in measure(one, self.episodes, self.seed)]
        if self.figure is not None:
            from anyshot.show import figures

            figures.save_chart(getattr(figures, draw)(rows), self.figure)
        print(format_table(rows, self.out))


OnModels = Annotated[ExperimentOptions, tyro.conf.OmitArgPrefixes]


@experiment.command
def consistency(asked: OnModels) -> None:
    """How many 1-shot predictions stay when only the support is drawn anew: each model (proto, cosine-proto, feat,
    cosine-feat) under both scores (Table 1).

    Args:
        asked: What is measured.
    """
    from anyshot.measure.experiments import model_consistency

    asked.show(model_consistency, "consistency")


@experiment.command
def terms(asked: OnModels) -> None:
    """How nearly FRN's dropped term is proportional to the kept one, in 5-way 5-shot episodes of frn models (Sec. 3.3).

    Args:
        asked: What is measured.
    """
    from anyshot.measure.experiments import model_terms

    asked.show(lambda *of: [model_terms(*of)], "term_ratios")


@experiment.command
def compare(kind: Name, run: Place, out: Output = None, figure: OptionalPath = None) -> None:
    """Comparisons that a study's table already holds (Fig. 4, Fig. 5, Table 4).

    Args:
        kind: gains (by test shot), offsets (by train shot), swapped (predictors) or frn-forms (old against new).
        run: Folder of a study's results, or its table.csv.
        out: CSV file to keep the comparison in.
        figure: File to draw it to (.svg, .png, .pdf).
    """
    from anyshot.show.comparisons import run_comparison

    print(run_comparison(kind, run, out, figure))


@app.command
def fit(
    source: Place,
    out: Target,
    model: str = "",
    head: str = "",
    reject: float = 0.05,
    keep: int = 32,
    split: Splits = (),
    how: HowRead = READ,
) -> None:
    """Make a classifier from a folder of class folders of pictures, or from features of anything.

    Features are the numbers that a network (the model, or backbone) makes of a picture; a head tells classes apart by
    them. Folders called test are never learned from: they are for `anyshot test`.

    Args:
        source: Pictures as CLASS/IMAGE.jpg, also below train, val, test and in folders of folders; a zip or tar of
            such; a table (.csv, .tsv, .parquet) of paths and labels; a store; or features with labels (.npz, .npy,
            .safetensors, .parquet).
        out: Folder for the classifier; `anyshot predict`, `anyshot test` and `anyshot serve` take it.
        model: What embeds pictures, by default efficientnet-lite0, which comes with anyshot; or the folder or name of a
            trained model, timm:NAME, or an .onnx file.
        head: posterior, proto, cosine-proto, frn or cosine-frn, or one that has to be trained, with the model that was;
            by default a trained model's own, and the posterior for pretrained features.
        reject: Share of the classes' own examples that may be called none of these: of photos like those at hand. Of
            other days it is more, as `anyshot test` tells; then take less.
        keep: Examples per class that are kept for calibration, so that a probability of 0.8 is right in 8 of 10 cases.
        split: What to learn from, where the source is divided: train by default.
        how: How sources are read, and networks run.
    """
    registry = how.registry()
    from anyshot.cli.verbs import fit_source

    print(fit_source(source, model, out, head, reject, keep, registry, how.features(), split, how.layout))


@app.command
def predict(
    model: Place,
    images: Places,
    format: Literal["table", "csv", "json"] = "table",
    top: OptionalNumber = None,
    out: Output = None,
    how: HowRead = READ,
) -> None:
    """Classify pictures, or features; those that look like none of the classes are marked. Files that cannot be read
    are left out and named.

    Args:
        model: Folder of a classifier, made by `anyshot fit`.
        images: Picture files; folders and zip or tar files, which are searched for pictures; tables with a column of
            paths; stores. For a classifier of features, files or stores of features.
        format: A table for people, CSV or JSON for programs.
        top: How many of the likeliest classes to show; 3 by default, 1 in CSV, where more are columns of their own.
        out: File to write the answers to; they are printed by default.
        how: How sources are read, and networks run.
    """
    registry = how.registry()
    from anyshot.cli.predict import predict_sources
    from anyshot.cli.verbs import open_classifier
    from anyshot.progress import print_message

    asked = format, top, out, how.layout, how.features(), print_message
    print(predict_sources(open_classifier(model, registry), images, *asked), end="")


@app.command(name="test")
def run_test(
    model: Place,
    source: Place,
    json: bool = False,
    out: Output = None,
    split: Splits = (),
    how: HowRead = READ,
) -> None:
    """Say how well a classifier does on labelled examples that it has not learned from, in all and class by class.

    Args:
        model: Folder of a classifier, made by `anyshot fit`.
        source: Pictures in class folders, or what else `anyshot fit` reads; features with labels for a classifier of
            such.
        json: Print all of it as JSON.
        out: Folder for the page (test.html, with the mistaken pictures), the numbers (test.json) and the text.
        split: What to test with, where the source is divided: test by default, or val where there is no test.
        how: How sources are read, and networks run.
    """
    registry = how.registry()
    from anyshot.cli.verbs import measure_source

    print(measure_source(model, source, json, out, split, how.layout, registry, how.features()))


@app.command
def add(
    model: Place,
    sources: Places,
    to: str = "",
    out: Output = None,
    split: Splits = (),
    how: HowRead = READ,
) -> None:
    """Teach a classifier more examples, of the classes it has or of new ones; nothing is learned anew.

    Args:
        model: Folder of a classifier, made by `anyshot fit`.
        sources: Pictures in class folders, or what else `anyshot fit` reads; with --to, pictures of one class.
        to: The class that all these pictures are of, old or new.
        out: Folder for the changed classifier; its own by default.
        split: What to learn from, where a source is divided: train by default.
        how: How sources are read, and networks run.
    """
    registry = how.registry()
    from anyshot.cli.verbs import add_examples

    print(add_examples(model, sources, to, out, split, how.layout, registry, how.features()))


@app.command
def remove(
    model: Place,
    classes: Annotated[tuple[str, ...], tyro.conf.Positional] = (),
    examples: tuple[Path, ...] = (),
    of: str = "",
    out: Output = None,
    how: HowEmbed = EMBED,
) -> None:
    """Make a classifier forget classes, or single examples.

    Args:
        model: Folder of a classifier, made by `anyshot fit`.
        classes: Names of classes.
        examples: Instead of classes: pictures that it learned from (files of features, where it learned from such).
        of: The class to take these from, where a picture is an example of two.
        out: Folder for the changed classifier; its own by default.
        how: Where networks come from and run, and whether features are kept.
    """
    registry = how.registry()
    from anyshot.cli.verbs import remove_from

    print(remove_from(model, classes, examples, of, out, registry, how.features()))


@app.command
def merge(models: Places, out: Folder, using: OptionalPath = None) -> None:
    """Make one classifier of several with the same model and head, as if it had learned from all of their examples.

    Args:
        models: Folders of classifiers, made by `anyshot fit`.
        out: Folder for the new one.
        using: A Python file with heads, backbones or readouts of your own (`registry = anyshot.Registry(...)`).
    """
    from anyshot.cli.verbs import merge_classifiers

    print(merge_classifiers(models, out, DeviceOptions(using).registry()))


@app.command
def advise(
    source: Place,
    model: str = "",
    heads: tuple[str, ...] = (),
    shots: tuple[int, ...] = (),
    way: str = "all",
    episodes: int = 400,
    seed: int = 0,
    holdout: OptionalPath = None,
    split: Splits = (),
    out: Output = None,
    how: HowRead = READ,
) -> None:
    """Say which head to use, what more labelled examples would bring and what looks wrong, from those that are there.

    Args:
        source: Features with labels (.npz, .npy, .safetensors, .parquet), a store, or a folder of class folders.
        model: What embeds pictures, by default efficientnet-lite0, which comes with anyshot; or the folder or name of a
            trained model, timm:NAME, or an .onnx file.
        heads: Heads to compare; all that need no training, and the model's own, by default.
        shots: Shots you expect in use; the head is chosen for them. All that can be measured by default.
        way: Classes to tell apart at once; 'all' for every class.
        episodes: Draws of support and queries.
        seed: Seed of the draws.
        holdout: More examples of the same classes, best photos of other days: how accurate it is on them. By default
            the test folder of the source, where it has one.
        split: What to take advice from, where the source is divided: train by default.
        out: Folder for the page (advice.html), the numbers (advice.json) and the text (advice.md).
        how: How sources are read, and networks run.
    """
    registry = how.registry()
    from anyshot.cli.verbs import advise_source

    where = registry, how.features(), how.layout, holdout, split
    print(advise_source(source, model, heads, shots, way, episodes, seed, out, *where))


@app.command
def export(model: Name, out: Target, using: OptionalPath = None) -> None:
    """Write a classifier as an ONNX file, pictures and prototypes in, logits out, any number of classes; or a backbone.

    Args:
        model: Folder of a classifier, made by `anyshot fit`; or a backbone by its name, such as efficientnet-lite0.
        out: The file.
        using: A Python file with heads, backbones or readouts of your own (`registry = anyshot.Registry(...)`).
    """
    from anyshot.cli.verbs import export

    print(export(model, out, DeviceOptions(using).registry()))


@app.command
def serve(
    model: Name = "efficientnet-lite0",
    host: str = "127.0.0.1",
    port: int = 8000,
    save: OptionalPath = None,
    how: HowRun = RUN,
) -> None:
    """Open a local web page to add classes, classify pictures and see how the decision depends on the shots.

    Args:
        model: Folder of a classifier, or a backbone without classes yet: efficientnet-lite0, which comes with anyshot,
            a trained model's folder, timm:NAME, or an .onnx file.
        host: Address to listen on; on others than loopback whoever comes needs the token of the printed address.
        port: Port to listen on; 0 for any that is free.
        save: Folder that the page's Save button writes to; without it nothing is ever written.
        how: Where networks come from, and run.
    """
    registry = how.registry()
    from anyshot.serve.run import serve as run

    run(model, host, port, save, registry)


def find_verb(app: SubcommandApp, words: Sequence[str], name: str = "anyshot") -> tuple[str, object]:
    """The verb that is meant, by its whole name; the nearest is offered in place of one that there is not. All that
    follows a verb is for tyro to judge."""
    if not words or words[0].startswith("-"):
        return name, app
    verb, name = look_up("verb", words[0], app._subcommands).target, f"{name} {words[0]}"
    return find_verb(verb, words[1:], name) if isinstance(verb, SubcommandApp) else (name, verb)


@contextlib.contextmanager
def friendly_parse_errors(name: str, verb: object) -> Iterator[None]:
    """While it lasts, words that tyro cannot place are bad input, in a sentence. (Where tyro cannot tell, in a box.)"""
    errors: Any = getattr(tyro, "_errors", None)

    def refuse(event: Any) -> None:
        options = _options(verb)
        given = [word.partition("=")[0] for word in sys.argv[1:] if word.startswith("--")]
        strange = [word for word in given if word.replace("--no-", "--") not in (*options, "--help", "--")]
        match event:
            case errors.MissingArgs() | errors.UnrecognizedArgs() if strange:
                problem = describe_unknown_name("option", strange[0], options).rstrip(".")
            case errors.MissingArgs(missing_arguments=missing):
                problem = f"{name} needs {', '.join(dict.fromkeys(_written(one.arg) for one in missing))}"
            case errors.UnrecognizedArgs(tokens=words):
                problem = f"{name} does not take {' '.join(words)}"
            case errors.InvalidChoice(argument=argument, value=value, choices=choices):
                problem = f"{_written(argument)} is one of {', '.join(choices)}, not {value!r}"
            case errors.BadValue(argument=argument) | errors.InstantiationFailure(argument=argument) if argument:
                problem = f"{_written(argument)} needs {argument.lowered.metavar}, and is given something else"
            case errors.MissingSubcommand(subcommand_spec=verbs):
                problem = f"{name} needs a verb: {', '.join(verbs.parser_from_name)}"
            case _:
                return  # of what we do not know it tells itself
        raise BadInput(f"{problem} (`{name} --help` says more).")

    with errors.on_parse_error(refuse) if hasattr(errors, "on_parse_error") else contextlib.nullcontext():
        yield


def _written(argument: Any) -> str:
    """An argument as one writes it."""
    return str(argument.field.extern_name.upper() if argument.is_positional() else argument.lowered.name_or_flags[-1])


def _options(of: Any) -> list[str]:
    """What a verb can be told by name, also what it shares with others."""
    if isinstance(of, SubcommandApp):
        return ["--help", "--version", "--debug"]
    options = []
    for name, kind in get_type_hints(of, include_extras=True).items():
        shared = getattr(kind, "__origin__", kind)
        if is_dataclass(shared):
            options += _options(shared)
        elif name != "return" and tyro.conf.Positional not in getattr(kind, "__metadata__", ()):
            options.append(f"--{name.replace('_', '-')}")
    return options


ABOUT = (
    "Few-shot image classification that holds at any shot: from a few labelled pictures of each class (the shots) to a "
    "classifier. Begin with `anyshot fit PHOTOS --out CLASSIFIER`. --version says which anyshot this is; --debug, "
    "anywhere, shows where an error arose."
)


def main() -> None:
    """Run a verb; bad input is one sentence and exit code 2, and so is what was not foreseen, with exit code 1.

    `--debug`, anywhere, shows the traceback instead.
    """
    if sys.argv[1:] == ["--version"]:
        from anyshot import __version__

        print(f"anyshot {__version__}")
        return
    debug = "--debug" in sys.argv
    sys.argv = [word for word in sys.argv if word != "--debug"]
    if isinstance(sys.stdout, io.TextIOWrapper):  # a name that the terminal cannot show is shown by its code
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        with warnings.catch_warnings(), friendly_parse_errors(*find_verb(app, sys.argv[1:])):
            warnings.showwarning = _show_warning
            app.cli(prog="anyshot", description=ABOUT)
        sys.stdout.flush()
    except BrokenPipeError:  # as `anyshot ... | head` does, which is no fault
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except KeyboardInterrupt:
        _end("interrupted; the same command goes on where it stopped.", 130)
    except Exception as error:
        if debug:
            raise
        _end(*_error_message(error))


def _error_message(error: Exception) -> tuple[str, int]:
    """The sentence for an error, and the exit code."""
    match error:
        case BadInput():
            return to_one_line(error), 2
        case OSError() | MemoryError():  # a file that may not be read, a full disk: not the program's
            where = getattr(error, "filename", None)
            words = getattr(error, "strerror", None) or str(error) or "it needs more memory than there is"
            return to_one_line(f"could not use {where}: {words}." if where else f"could not go on: {words}."), 2
    what = to_one_line(f"{type(error).__name__}: {error}" if str(error) else type(error).__name__)[:500]
    ask = "please report it to anyshot's issues, with what the same command shows with --debug."
    return f"this was not foreseen ({what}): {ask}", 1


def _end(words: str, code: int) -> NoReturn:
    try:
        sys.stdout.flush()
    except OSError:  # it is full or closed, and Python would try once more as it ends
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    with contextlib.suppress(OSError):
        print(f"anyshot: {words}", file=sys.stderr, flush=True)
    sys.exit(code)


def _show_warning(message: Warning | str, *_: object, **__: object) -> None:
    print(f"anyshot: {to_one_line(str(message))}", file=sys.stderr)


if __name__ == "__main__":
    main()
