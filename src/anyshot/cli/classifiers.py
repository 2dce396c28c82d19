"""The verbs around classifiers: fit, predict, test, add, remove, merge, advise, export, serve."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from cyclopts import Parameter

from anyshot.cli.options import (
    DeviceOptions,
    EmbedOptions,
    ExampleOptions,
    OptionalOut,
    OutOption,
    ReadOptions,
    Splits,
)
from anyshot.cli.paths import check_model, check_paths


def fit(
    source: Path,
    /,
    *,
    out: OutOption,
    options: ReadOptions = ReadOptions(),
    examples: ExampleOptions = ExampleOptions(),
    model: str = "",
    head: str = "",
    reject: float = 0.05,
    keep: int = 256,
) -> None:
    """Make a classifier from a folder of class folders of pictures, or from features of anything.

    Features are the numbers that a network (the model, or backbone) makes of a picture; a head tells classes apart by
    them. Folders called test are never learned from: they are for `anyshot test`.

    Args:
        source: Pictures as CLASS/IMAGE.jpg, also below train, val, test and in folders of folders; a zip or tar of
            such; a table (.csv, .tsv, .parquet) of paths and labels; a store; or features with labels (.npz, .npy,
            .safetensors, .parquet).
        out: Folder for the classifier; `anyshot predict`, `anyshot test` and `anyshot serve` take it.
        options: How sources are read and networks run.
        examples: What is learned from.
        model: What embeds pictures, by default efficientnet-lite0, which comes with anyshot; or the folder or name of a
            trained model, timm:NAME, or an .onnx file.
        head: posterior, logistic, proto, cosine-proto, frn or cosine-frn, or one that has to be trained, with the model
            that was; by default a trained model's own, and the posterior for pretrained features.
        reject: Share of photos like the classes' own examples that may be called none of these. More of the photos of
            other days will be, as `anyshot test` tells; choose a smaller share then.
        keep: Examples per class that are kept for calibration, so that a probability of 0.8 is right in 8 of 10 cases.
            The head logistic fits its weights to these alone.
    """
    check_paths(None, source)
    from anyshot.cli.learning import fit_source

    print(fit_source(source, out, options, examples, model, head, reject=reject, keep=keep))


def predict(
    classifier: Path,
    /,
    *images: Path,
    options: ReadOptions = ReadOptions(),
    format: Literal["table", "csv", "json"] | None = None,
    top: int | None = None,
    out: OptionalOut = None,
) -> None:
    """Classify pictures, or features; those that look like none of the classes are marked.

    Files that cannot be read are skipped and named.

    Args:
        classifier: Folder of a classifier, made by `anyshot fit`.
        images: Picture files; folders and zip or tar files, which are searched for pictures; tables with a column of
            paths; stores. For a classifier of features, files or stores of features.
        options: How sources are read and networks run.
        format: A table for people, CSV or JSON for programs; a table by default, unless --out ends in .csv or .json.
        top: How many of the likeliest classes to show; 3 by default, 1 in CSV, where more are columns of their own.
        out: File to write the answers to; they are printed by default.
    """
    check_paths(classifier, *images)
    from anyshot.cli.answers import predict_sources

    print(predict_sources(classifier, images, options, format, top, out), end="")


def run_test(
    classifier: Path,
    source: Path,
    /,
    *,
    options: ReadOptions = ReadOptions(),
    json: bool = False,
    out: OptionalOut = None,
    split: Splits = (),
) -> None:
    """Say how well a classifier does on labelled examples that it has not learned from, in all and class by class.

    Args:
        classifier: Folder of a classifier, made by `anyshot fit`.
        source: Pictures in class folders, or what else `anyshot fit` reads; features with labels for a classifier of
            such.
        options: How sources are read and networks run.
        json: Print all of it as JSON.
        out: Folder for the page (test.html, with the mistaken pictures), the numbers (test.json) and the text.
        split: What to test with, where the source is divided: test by default, or val where there is no test.
    """
    check_paths(classifier, source)
    from anyshot.cli.answers import measure_classifier

    print(measure_classifier(classifier, source, options, json, out, split))


def add(
    classifier: Path,
    /,
    *sources: Path,
    options: ReadOptions = ReadOptions(),
    examples: ExampleOptions = ExampleOptions(),
    to: str = "",
    out: OptionalOut = None,
) -> None:
    """Add examples to a classifier, of the classes it has or of new ones; nothing is trained.

    Args:
        classifier: Folder of a classifier, made by `anyshot fit`.
        sources: Pictures in class folders, or what else `anyshot fit` reads; with --to, pictures of one class.
        options: How sources are read and networks run.
        examples: What is learned from.
        to: The class that all these pictures are of, old or new.
        out: Folder for the changed classifier; its own by default.
    """
    check_paths(classifier, *sources)
    from anyshot.cli.learning import add_examples

    print(add_examples(classifier, sources, options, examples, to, out))


def remove(
    classifier: Path,
    /,
    *classes: str,
    options: EmbedOptions = EmbedOptions(),
    examples: tuple[Path, ...] = (),
    of: str = "",
    corrections: tuple[Path, ...] = (),
    out: OptionalOut = None,
) -> None:
    """Remove classes, or single examples, from a classifier.

    Args:
        classifier: Folder of a classifier, made by `anyshot fit`.
        classes: Names of classes.
        options: Where networks come from and where they run.
        examples: Instead of classes: pictures that it learned from (files of features, where it learned from such).
        of: The class to take these from, where a picture is an example of two; by default the class that its folder is
            named after.
        corrections: Tables of reviewed labels, as the pages of `anyshot advise` and `anyshot serve` write them: what
            they drop is forgotten, what they relabel moves to the other class. --examples names the pictures that they
            are of.
        out: Folder for the changed classifier; its own by default.
    """
    check_paths(classifier, *examples)
    from anyshot.cli.learning import remove_classes_or_examples

    print(remove_classes_or_examples(classifier, classes, options, examples, of, corrections, out))


def merge(*classifiers: Path, out: OutOption, using: Path | None = None) -> None:
    """Make one classifier of several with the same network and head, as if it had learned from all of their examples.

    Args:
        classifiers: Folders of classifiers, made by `anyshot fit`.
        out: Folder for the new one.
        using: A Python file with heads, backbones or readouts of your own (`registry = anyshot.Registry(...)`).
    """
    for classifier in classifiers:
        check_paths(classifier)
    from anyshot.cli.learning import merge_classifiers

    print(merge_classifiers(classifiers, out, DeviceOptions(using).registry()))


@Parameter(name="*", group="Shot curve")
@dataclass(frozen=True)
class CurveOptions:
    """Shot curve: which heads are compared, on which episodes.

    Attributes:
        heads: Heads to compare; all that need no training, and the model's own, by default.
        shots: Shots you expect in use; the head is chosen for them. All that can be measured by default.
        way: Classes to tell apart at once; 'all' for every class, which is the default.
        episodes: Draws of support and queries.
        seed: Seed of the draws.
    """

    heads: tuple[str, ...] = ()
    shots: tuple[int, ...] = ()
    way: str = "all"
    episodes: int = 400
    seed: int = 0


def advise(
    source: Path,
    /,
    *,
    curve: CurveOptions = CurveOptions(),
    options: ReadOptions = ReadOptions(),
    examples: ExampleOptions = ExampleOptions(),
    model: str = "",
    holdout: Path | None = None,
    unlabelled: Path | None = None,
    out: OptionalOut = None,
) -> None:
    """Say which head to use, what more labelled examples would bring and what looks wrong.

    Args:
        source: Features with labels (.npz, .npy, .safetensors, .parquet), a store, or a folder of class folders.
        curve: What heads are compared on.
        options: How sources are read and networks run.
        examples: What advice is taken from.
        model: What embeds pictures, by default efficientnet-lite0, which comes with anyshot; or the folder or name of a
            trained model, timm:NAME, or an .onnx file.
        holdout: More examples of the same classes, best photos of other days: how accurate it is on them. By default
            the test folder of the source, where it has one.
        unlabelled: Pictures (or features) without labels: which of them to label next, best first.
        out: Folder for the page (advice.html), the numbers (advice.json) and the text (advice.md). On the page labels
            that may be wrong and copies are kept, corrected or dropped with a click, into a table for --corrections.
            With --unlabelled also a page (label-next.html) and a table (label-next.csv).
    """
    check_paths(None, source, holdout, unlabelled)
    from anyshot.cli.answers import advise_source

    print(advise_source(source, curve, options, examples, model, holdout, unlabelled, out))


def export(model: str, /, *, out: OutOption, using: Path | None = None) -> None:
    """Write a classifier as an ONNX file, pictures and prototypes in, logits out, any number of classes; or a backbone.

    Args:
        model: Folder of a classifier, made by `anyshot fit`; or a backbone by its name, such as efficientnet-lite0.
        out: The file.
        using: A Python file with heads, backbones or readouts of your own (`registry = anyshot.Registry(...)`).
    """
    check_model(model)
    from anyshot.cli.learning import export_model

    print(export_model(model, out, DeviceOptions(using).registry()))


def serve(
    model: str = "efficientnet-lite0",
    /,
    *,
    options: DeviceOptions = DeviceOptions(),
    host: str = "127.0.0.1",
    port: int = 8000,
    save: Path | None = None,
) -> None:
    """Open a local web page to add classes, classify pictures and see how the decision depends on the shots.

    Args:
        model: Folder of a classifier, or a backbone without classes yet: efficientnet-lite0, which comes with anyshot,
            a trained model's folder, timm:NAME, or an .onnx file.
        options: Where networks come from and where they run.
        host: Address to listen on; 127.0.0.1 by default. On others than loopback a visitor needs the token of the
            printed address.
        port: Port to listen on; 0 for any that is free.
        save: Folder that the page's Save button writes to; without it nothing is ever written.
    """
    check_model(model)
    registry = options.registry()
    from anyshot.serve.run import serve

    serve(model, host, port, save, registry)
