"""The verbs of people who deploy: fit, predict, advise, export, serve."""

from pathlib import Path
from typing import Annotated, Literal

import tyro


def fit(
    folder: Annotated[Path, tyro.conf.Positional],
    /,
    model: str,
    out: Annotated[Path, tyro.conf.arg(aliases=["-o"])],
    head: str = "",
    reject: float = 0.05,
    keep: int = 32,
) -> None:
    """Make a classifier from a folder of class folders of pictures.

    Args:
        folder: Pictures as CLASS/IMAGE.jpg.
        model: Folder of a trained model, or timm:NAME.
        out: Folder for the classifier; `anyshot predict` and `anyshot serve` take it.
        head: Another head than the model's own (proto, cosine-proto, frn, cosine-frn).
        reject: Share of the classes' own pictures that may be called none of these.
        keep: Examples a class that are kept for calibration.
    """
    from anyshot.deploy import fit_folder

    print(fit_folder(folder, model, out, head, reject, keep))


def predict(
    model: Annotated[Path, tyro.conf.Positional],
    images: Annotated[tuple[Path, ...], tyro.conf.Positional],
    /,
    format: Literal["table", "csv", "json"] = "table",
    top: int = 3,
) -> None:
    """Classify pictures; those that look like none of the classes are marked.

    Args:
        model: Folder of a classifier, made by `anyshot fit`.
        images: Files, or folders that are searched for pictures.
        format: A table for people, CSV or JSON for programs.
        top: How many of the likeliest classes to show.
    """
    from anyshot.deploy import predict_images

    print(predict_images(model, images, format, top), end="")


def advise(
    source: Annotated[Path, tyro.conf.Positional],
    /,
    model: str = "",
    heads: tuple[str, ...] = (),
    shots: tuple[int, ...] = (),
    way: str = "all",
    episodes: int = 400,
    seed: int = 0,
    out: Path | None = None,
) -> None:
    """Say which head to use and what more labelled images would bring, from those that are there.

    Args:
        source: Features with labels (.npz, .npy, .safetensors, .parquet), a store, or a folder of class folders.
        model: Folder of a trained model, or timm:NAME; needed for pictures.
        heads: Heads to compare; all that need no training, and the model's own, by default.
        shots: Shots you expect in use; the head is chosen for them. All that can be measured by default.
        way: Classes to tell apart at once; 'all' for every class.
        episodes: Draws of support and queries.
        seed: Seed of the draws.
        out: Folder for the page (advice.html), the numbers (advice.json) and the text (advice.md).
    """
    from anyshot.deploy import advise_source

    print(advise_source(source, model, heads, shots, way, episodes, seed, out))


def export(
    model: Annotated[Path, tyro.conf.Positional], /, out: Annotated[Path, tyro.conf.arg(aliases=["-o"])]
) -> None:
    """Write a classifier as an ONNX file: pictures and prototypes in, logits out; any number of classes.

    Args:
        model: Folder of a classifier, made by `anyshot fit`.
        out: The file.
    """
    from anyshot.image_classifier import ImageClassifier

    ImageClassifier.load(model).to_onnx(out)
    print(f"{out}: images and prototypes in, logits and vectors out.")


def serve(
    model: Annotated[str, tyro.conf.Positional],
    /,
    host: str = "127.0.0.1",
    port: int = 8000,
    save: Path | None = None,
) -> None:
    """Open a local web page to add classes, classify pictures and see how the decision depends on the shots.

    Args:
        model: Folder of a classifier, or a backbone without classes yet: a trained model's folder, or timm:NAME.
        host: Address to listen on; others than loopback let everyone in who can reach it.
        port: Port to listen on; 0 for any that is free.
        save: Folder that the page's Save button writes to; without it nothing is ever written.
    """
    from anyshot.serving.run import serve as run

    run(model, host, port, save)


VERBS = (fit, predict, advise, export, serve)
