"""The verbs that make and check stores of images or features: pack, embed, doctor."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from anyshot.cli.options import EmbedOptions, OptionalOut, OutOption
from anyshot.cli.paths import check_paths
from anyshot.data.layout import PackOptions, SourceOptions
from anyshot.errors import BadInput


@Parameter(name="*", group="Store")
@dataclass(frozen=True)
class StoreOptions:
    """Store: the size of its pictures and the split of its classes.

    Attributes:
        size: Side of the stored square; 92 for own images, CUB and mini-ImageNet, 84 for the others, npz as it is.
        fit: The central square (crop), the whole image made square (squash), or the whole image as it is, with `size`
            as its shorter side (frame; 256 by default): training then draws its crops from all of the photo.
        split: Shares of the classes for training, for choosing (val) and for testing, where the source does not say.
        seed: Seed of this split.
        workers: Threads that decode; one per core by default.
    """

    size: int | None = None
    fit: Literal["crop", "squash", "frame"] | None = None
    split: tuple[float, float, float] = (0.6, 0.2, 0.2)
    seed: int = 0
    workers: int = 0


def pack(
    kind: str,
    source: Path,
    /,
    *,
    out: OutOption,
    store: StoreOptions = StoreOptions(),
    networks: EmbedOptions = EmbedOptions(),
    layout: Annotated[PackOptions, Parameter(name="*", group="Source")] = PackOptions(),
    embed: tuple[str, ...] | None = None,
    doctor: bool = True,
) -> None:
    """Turn images or embeddings, wherever they are, into a store.

    A store is a folder that training and testing read from; its pictures are squares of one size, or whole photos
    (--fit frame). Interrupted, the same command goes on.

    Args:
        kind: cub, mini, tiered, meta-inat, folder, table, huggingface, features or npz.
        source: The folder, archive or file to read.
        out: The store to make.
        store: What it holds.
        networks: With --embed: where networks come from and where they run.
        layout: How the source is laid out.
        embed: Store features instead of images: of efficientnet-lite0, or of what else is named, as in `fit --model`.
        doctor: Check the store at the end (anyshot doctor).
    """
    from anyshot.data.pack import pack
    from anyshot.inspect.doctor import diagnose_to_folder
    from anyshot.progress import print_message

    embedding = None
    if embed is not None:
        from anyshot.models.embedders import DEFAULT_EMBEDDER, load_embedder
        from anyshot.models.features import as_packing_embedding

        name, *more = embed or (DEFAULT_EMBEDDER,)
        if more:
            raise BadInput(f"--embed takes one name, not {' '.join(embed)}.")
        embedding = as_packing_embedding(load_embedder(name, registry=networks.registry()), networks.open_cache())
    findings: list[str] = []
    examine = (lambda made: findings.append(diagnose_to_folder(made, title=out.name).text)) if doctor else None
    options = {**vars(store), **vars(layout)}
    made = pack(kind, source, out, embedding=embedding, examine=examine, say=print_message, **options)
    frames = "whole images, central squares " if made.about.get("fit") == "frame" else ""
    print(f"{out}: {len(made.items)} items of {frames}shape {'x'.join(map(str, made.items.shape[1:]))}")
    print("\n".join(findings), end="\n" if findings else "")


def embed(
    source: Path,
    /,
    *,
    out: OutOption,
    model: str = "efficientnet-lite0",
    on: str = "here",
    workers: int = 0,
    using: Path | None = None,
    layout: Annotated[SourceOptions, Parameter(name="*", group="Source")] = SourceOptions(),
) -> None:
    """Turn pictures, however many, into a store or plain arrays of features; interrupted, the same command goes on.

    Args:
        source: Labelled pictures: class folders, an archive, a table of paths, a Parquet file of images, a store.
        out: The store to make, or a file (.npz, .parquet) for plain arrays; all verbs that read features take it.
        model: What embeds the pictures, as in `fit --model`; efficientnet-lite0 by default.
        on: Where: here, ray, or ray://ADDRESS.
        workers: With ray: processes; one per core by default.
        using: A Python file with backbones of your own (`registry = anyshot.Registry(...)`).
        layout: How the source is laid out. Groups are kept beside the features.
    """
    from anyshot.machine import limit_threads_to_free_cores

    check_paths(None, source)
    limit_threads_to_free_cores()
    from anyshot.models.features import embed_path

    print(embed_path(source, out, model, on, workers, using, layout))


def doctor(store: Path, /, *, out: OptionalOut = None, verify: bool = False, copies: bool = False) -> None:
    """Say what is in a store and what is wrong with it; draw a contact sheet per split, and one of duplicates.

    Args:
        store: The store to check.
        out: Folder for diagnosis.json and the sheets; STORE/doctor by default.
        verify: Compare every byte with the checksums first.
        copies: Look for pictures that are cropped, turned, mirrored or brighter copies of others, too. It embeds every
            picture, some 20 a second.
    """
    from anyshot.data.store import open_store
    from anyshot.inspect.doctor import diagnose_to_folder

    folder, opened = out or store / "doctor", open_store(store, verify)
    pairs: list[tuple[int, int]] = []
    if copies and not opened.is_features:
        from anyshot.inspect.pictures import find_copies_in_store

        pairs = find_copies_in_store(opened, EmbedOptions().open_cache())
    print(diagnose_to_folder(opened, folder, pairs).text)
    print(f"details in {folder}")
