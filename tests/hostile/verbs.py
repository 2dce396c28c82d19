"""Verbs that change a classifier or test one, that advise and embed; and what they read: shards, labels of many
classes, what an ONNX file says of its pictures."""

import io
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from helpers import image_files
from helpers.classifier_folders import path_of

from hostile import archives, arrays, spoil
from hostile import good as goods
from hostile.corpus import Case
from hostile.good import Good

ADVISE = ["advise", "features.npz", "--episodes", "20", "--shots", "1", "2", "--heads", "proto"]
EMBED = ["--model", "backbone.onnx", "-o", "made"]


def command(good: Good, words: str, *line: str, how: Callable[[Path], Any] | None = None, may_do: bool = False) -> Case:
    """A command line beside all good things that it names, with something done to them."""

    def make(folder: Path) -> list[str]:
        for name in NAMES:
            if any(name == word.partition("/")[0] for word in line):
                good.copy(name, folder)
        if how is not None:
            how(folder)
        return list(line)

    return Case(f"{line[0]}: {words}", make, may_do)


NAMES = (
    "photos", "photos.zip", "photos.tar", "features.npz", "pairs.npz", "images.npz", "of-features", "of-pictures",
    "of-maps", "of-onnx", "of-many", "model", "backbone.onnx", "shards", "table.csv", "run", "study.py",
    "feature-store",
)  # fmt: skip


def cases(good: Good) -> Iterator[Case]:
    yield from _classifiers(good)
    yield from _sources(good)
    yield from _commands(good)
    yield from _advice(good)
    yield from _embedding(good)
    yield from _shards(good)
    yield from _many(good)
    yield from _said(good)


def _write(path: Path, change: spoil.Spoil) -> None:
    path.write_bytes(change(path.read_bytes()))


def _classifiers(good: Good) -> Iterator[Case]:
    """A damaged classifier, given to each verb that reads one; the classifier must stay as it is."""
    lines = {
        "add": ["add", "of-features", "features.npz"],
        "add to": ["add", "of-features", "features.npz", "--to", "new"],
        "remove": ["remove", "of-features", "ant"],
        "merge": ["merge", "of-maps", "of-features", "-o", "made"],
        "test": ["test", "of-features", "features.npz", "-o", "made"],
        "export": ["export", "of-features", "-o", "made.onnx"],
    }
    for line in lines.values():
        for file in ("config.json", "classifier.safetensors"):
            for words in ("empty", "cut in half", "a text"):
                how = lambda folder, f=file, w=words: _write(path_of(folder / "of-features", f), spoil.BROKEN[w])  # noqa: E731
                yield command(good, f"{file} is {words} ({' '.join(line)})", *line, how=how)
            for words in ("gone", "a folder", "a pipe", "a link to an endless file"):
                how = lambda folder, f=file, w=words: spoil.replaced(  # noqa: E731
                    path_of(folder / "of-features", f), spoil.PLACES[w]
                )
                yield command(good, f"{file} is {words} ({' '.join(line)})", *line, how=how)


def _sources(good: Good) -> Iterator[Case]:
    """Damaged features, pictures and archives, given to the verbs that learn from them or test with them."""
    for verb in ("add", "test"):
        for words in ("empty", "cut in half", "zeros", "a picture"):
            how = lambda folder, w=words: _write(folder / "features.npz", spoil.BROKEN[w])  # noqa: E731
            yield command(good, f"features that are {words}", verb, "of-features", "features.npz", how=how)
    for words, data in arrays.feature_faults():
        how = lambda folder, data=data: (folder / "features.npz").write_bytes(arrays.bundle(data))  # noqa: E731
        yield command(good, f"features, {words}", "add", "of-features", "features.npz", how=how, may_do=True)
        yield command(good, f"features, {words}", "test", "of-features", "features.npz", how=how, may_do=True)
    for verb in ("add", "test", "predict"):
        line = (verb, "of-pictures", "photos.zip")
        for words in ("empty", "cut in half", "zeros", "a text"):
            how = lambda folder, w=words: _write(folder / "photos.zip", spoil.BROKEN[w])  # noqa: E731
            yield command(good, f"an archive that is {words}", *line, how=how)
        for words, name in archives.NAMES.items():
            data = archives.zipped({"ant/a.png": image_files.encoded(1), name: b"x"})
            how = lambda folder, data=data: (folder / "photos.zip").write_bytes(data)  # noqa: E731
            yield command(
                good, f"an archive with {words}", *line, how=how, may_do="zero" in words
            )  # the name ends there
        yield command(good, "only pictures that are none", verb, "of-pictures", "photos", how=_spoil_photos)


def _spoil_photos(folder: Path) -> None:
    for path in (folder / "photos").rglob("*.png"):
        path.write_bytes(b"no picture")


def _commands(good: Good) -> Iterator[Case]:
    for words, line in {
        "a class that is none": ["remove", "of-features", "zzz"],
        "all classes": ["remove", "of-features", "ant", "bee", "cat", "dog", "elk"],
        "no class": ["remove", "of-features"],
        "from what is not there": ["remove", "zzz", "ant"],
        "into a file": ["remove", "of-features", "ant", "-o", "of-features/config.json"],
        "into another folder": ["remove", "of-features", "ant", "-o", "photos"],
        "nothing": ["add", "of-features"],
        "what is not there": ["add", "of-features", "zzz.npz"],
        "pictures to features": ["add", "of-features", "photos"],
        "features to pictures": ["add", "of-pictures", "features.npz"],
        "features of another width": ["add", "of-features", "images.npz", "--to", "x"],
        "a folder that is no class": ["add", "of-pictures", "model"],
        "from a split that is none": ["add", "of-pictures", "photos", "--split", "val"],
        "below a file": ["add", "of-features", "features.npz", "--to", "x", "-o", "features.npz/made"],
        "one alone": ["merge", "of-features", "-o", "made"],
        "none": ["merge", "-o", "made"],
        "other heads": ["merge", "of-features", "of-maps", "-o", "made"],
        "other backbones": ["merge", "of-pictures", "of-onnx", "-o", "made"],
        "features and pictures": ["merge", "of-pictures", "of-features", "-o", "made"],
        "what is no classifier": ["merge", "of-pictures", "photos", "-o", "made"],
        "into another folder ": ["merge", "of-features", "of-features", "-o", "photos"],
        "nothing to test with": ["test", "of-features"],
        "what is not there ": ["test", "of-features", "zzz.npz"],
        "pictures for features": ["test", "of-features", "photos"],
        "features for pictures": ["test", "of-pictures", "features.npz"],
        "into a file ": ["test", "of-features", "features.npz", "-o", "features.npz"],
        "into a device": ["test", "of-features", "features.npz", "-o", "/dev/null"],
        "an option that is none": ["fit", "features.npz", "--out", "made", "--zzz", "3"],
        "no place": ["fit", "features.npz"],
        "a number that is none": ["evaluate", "feature-store", "--episodes", "many"],
        "a device that is none": ["fit", "photos", "--out", "made", "--device", "zzz"],
        "added to nothing": ["publish", "study.py", "--run", "run", "--add", "-o", "made"],
        "added to something else": ["publish", "study.py", "--run", "run", "--add", "-o", "photos"],
        "ready models that are none": ["publish", "study.py", "--run", "run", "--ready", "zzz", "-o", "made"],
    }.items():
        yield command(good, words.strip(), *line)


def _advice(good: Good) -> Iterator[Case]:
    for words, more in {
        "of 0 shots": ["--shots", "0"],
        "of negative shots": ["--shots", "-1"],
        "of too many shots": ["--shots", "1000"],
        "of 1 way": ["--way", "1"],
        "of a way that is none": ["--way", "x"],
        "of 100 ways": ["--way", "100"],
        "of no episodes": ["--episodes", "0"],
        "of a negative seed": ["--seed", "-1"],
        "of a head that is none": ["--heads", "zzz"],
        "of a split that is none": ["--split", "val"],
        "with a model": ["--model", "model"],
        "tested with what is not there": ["--holdout", "zzz.npz"],
        "tested with pictures": ["--holdout", "photos"],
        "tested with features of another kind": ["--holdout", "images.npz"],
        "into a file": ["-o", "features.npz"],
        "into a device": ["-o", "/dev/null"],
    }.items():
        yield command(good, words, *ADVISE, *more, may_do=words == "of too many shots")  # which it says
    for words in ("empty", "cut in half", "zeros", "a text"):
        how = lambda folder, w=words: (folder / "other.npz").write_bytes(  # noqa: E731
            spoil.BROKEN[w]((folder / "features.npz").read_bytes())
        )
        yield command(good, f"tested with features that are {words}", *ADVISE, "--holdout", "other.npz", how=how)
    X, y = goods.features()
    for words, arrays_ in {
        "of other classes": {"features": X, "labels": y + 100},
        "of another width": {"features": X[:, :3], "labels": y},
        "that are no numbers": {"features": X * np.nan, "labels": y},
    }.items():
        how = lambda folder, a=arrays_: np.savez(folder / "other.npz", **a)  # noqa: E731
        yield command(good, f"tested with features {words}", *ADVISE, "--holdout", "other.npz", how=how)


def _embedding(good: Good) -> Iterator[Case]:
    whole = (good / "photos.tar").read_bytes()
    for words, data in {
        **{words: spoil.BROKEN[words](whole) for words in ("empty", "cut in half", "zeros", "a text", "an archive")},
        "cut between two files": whole[: archives._second_member(whole)],
        "without its end": whole.rstrip(b"\0"),
        "with a damaged head": archives._damaged_head(whole),
        "without classes": archives.tarred({"a.png": image_files.encoded(1)}),
        "without pictures": archives.tarred({"ant/read.txt": b"hello"}),
        "of links": archives._links(),
        "of a picture of a terabyte": _sparse_tar(),
    }.items():
        how = lambda folder, data=data: (folder / "a.tar").write_bytes(data)  # noqa: E731
        yield command(good, f"a tar file {words}", "embed", "a.tar", *EMBED, how=how, may_do=words == "without its end")
    for words, more in {
        "what is not there": ["zzz", *EMBED],
        "a file of something else": ["features.npz", *EMBED],
        "a folder without pictures": ["model", *EMBED],
        "with a model that is none": ["photos", "--model", "zzz", "-o", "made"],
        "with a network that is none": ["photos", "--model", "features.npz", "-o", "made"],
        "into a folder of something else": ["photos", "--model", "backbone.onnx", "-o", "model"],
        "into a file": ["photos", "--model", "backbone.onnx", "-o", "backbone.onnx"],
        "below a file": ["photos", "--model", "backbone.onnx", "-o", "features.npz/made"],
        "into a device": ["photos", "--model", "backbone.onnx", "-o", "/dev/null"],
        "into shards of other pictures": ["photos", "--model", "backbone.onnx", "-o", "shards"],
        "on a place that is none": ["photos", *EMBED, "--on", "moon"],
    }.items():
        how = _other_picture if "other pictures" in words else None
        yield command(good, words, "embed", *more, how=how)
    for words in ("empty", "cut in half", "zeros", "a text"):
        how = lambda folder, w=words: (folder / "a.parquet").write_bytes(  # noqa: E731
            spoil.BROKEN[w]((good / "table.parquet").read_bytes())
        )
        yield command(good, f"a Parquet file that is {words}", "embed", "a.parquet", *EMBED, how=how)
    for words, images in {
        "of texts": ["hello", "hello"],
        "of nothing": [None, None],
        "of numbers": [b"1", b"2"],
        "of lists": [[1, 2], [3]],
        "of objects without bytes": [{"path": "x"}, {"path": "y"}],
    }.items():
        how = lambda folder, images=images: _parquet(folder / "a.parquet", images)  # noqa: E731
        # (each is named in the store as one that could not be read)
        yield command(good, f"a Parquet file of pictures {words}", "embed", "a.parquet", *EMBED, how=how, may_do=True)


def _other_picture(folder: Path) -> None:
    image_files.write(folder / "photos" / "ant" / "new.png", seed=77)


def _sparse_tar() -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        member = tarfile.TarInfo("ant/a.png")
        member.size = 1 << 40
        out.write(member.tobuf(tarfile.GNU_FORMAT) + bytes(2048))
        archive.offset = out.tell()
    return out.getvalue()


def _parquet(path: Path, images: list) -> None:
    import pyarrow
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.table({"image": images, "label": ["ant", "bee"]}), path)


def _shards(good: Good) -> Iterator[Case]:
    """Shards of features that are damaged, or that do not fit together."""
    line = ("fit", "shards", "--out", "made")
    first = Path("shards", "shard-00000.safetensors")

    def spoiled(words: str, name: Path | str, change: Callable[[Path], Any], may_do: bool = False) -> Case:
        return command(good, f"shards, {words}", *line, how=lambda folder: change(folder / name), may_do=may_do)

    about = Path("shards", "shards.json")
    for words, data in spoil.JSONS.items():
        yield spoiled(f"shards.json is {words}", about, lambda path, data=data: path.write_bytes(data))
    for words, how in spoil.changed_keys(good / about):
        yield spoiled(f"shards.json {words}", about, how, may_do=not words.endswith("shards"))
    for name in (about, first):
        for words in ("empty", "cut in half", "zeros", "random bytes", "a text"):
            yield spoiled(f"{name.name} is {words}", name, lambda path, words=words: _write(path, spoil.BROKEN[words]))
        for words, place in spoil.PLACES.items():
            yield spoiled(f"{name.name} is {words}", name, lambda path, place=place: spoil.replaced(path, place))
    for tensor in ("features", "labels", "names", "splits", "skipped"):
        yield spoiled(
            f"without {tensor}",
            first,
            lambda p, n=tensor: spoil.edit_tensors(p, lambda t: t.pop(n)),
            may_do=tensor == "skipped",  # which nobody reads any more
        )
        if tensor in ("features", "labels", "names"):
            yield spoiled(
                f"{tensor} cut",
                first,
                lambda p, n=tensor: spoil.edit_tensors(p, lambda t: t.update({n: t[n][: len(t[n]) // 2]})),
            )
        yield spoiled(
            f"{tensor} as one number",
            first,
            lambda p, n=tensor: spoil.edit_tensors(p, lambda t: t.update({n: torch.tensor(3.0)})),
            may_do=tensor in ("splits", "skipped"),
        )
    for words, change in {
        "features of whole numbers": lambda t: t.update(features=t["features"].long()),
        "features in two dimensions": lambda t: t.update(features=t["features"][:, 0]),
        "features that are not numbers": lambda t: t["features"].fill_(torch.nan),
        "labels that are no text": lambda t: t["labels"].fill_(0xFF),
    }.items():
        yield spoiled(words, first, lambda path, change=change: spoil.edit_tensors(path, change))


def _many(good: Good) -> Iterator[Case]:
    """A classifier of many classes in an earlier format, whose labels are tensors."""

    def changed(words: str, change: Callable[[dict], Any], **config: Any) -> Case:
        def how(folder: Path) -> None:
            spoil.edit_tensors(folder / "of-many" / "classifier.safetensors", change)
            spoil.edit_json(folder / "of-many" / "config.json", **config)

        return command(good, f"of many classes, {words}", "predict", "of-many", "pairs.npz", how=how)

    for name in ("labels", "ends"):
        yield changed(f"without {name}", lambda t, n=name: t.pop(n))
        yield changed(f"{name} cut", lambda t, n=name: t.update({n: t[n][:-3]}))
        yield changed(f"{name} of another type", lambda t, n=name: t.update({n: t[n].float()}))
        yield changed(f"{name} in two dimensions", lambda t, n=name: t.update({n: t[n][None]}))
    yield changed("ends out of order", lambda t: t.update(ends=t["ends"].flip(0)))
    yield changed("ends before the start", lambda t: t["ends"][:1].fill_(-1))
    yield changed("ends all alike", lambda t: t.update(ends=torch.full_like(t["ends"], len(t["labels"]))))
    yield changed("labels that are no text", lambda t: t["labels"].fill_(0xFF))
    yield changed("labels longer than they say", lambda t: None, label_type="<U1")
    yield changed("labels 400 million wide", lambda t: None, label_type="<U400000000")
    yield changed("labels of whole numbers", lambda t: None, label_type="<i8")


def _said(good: Good) -> Iterator[Case]:
    """What an ONNX file says of its pictures."""
    for key, values in {
        "side": ("0", "-1", "1e9", "nan", "x", "", "9" * 5000),
        "margin": ("0", "-1", "nan", "1e9", "x", "inf"),
        "resample": ("zzz", ""),
        "mean": ("1", "x y z", "nan nan nan", "1 2 3 4"),
        "deviation": ("0 0 0", "-1 -1 -1", "x", "nan nan nan"),
        "output": ("zzz", ""),
    }.items():
        for value in values:
            how = lambda folder, key=key, value=value: _tell(folder / "backbone.onnx", key, value)  # noqa: E731
            may = key == "side" or (key, value[:2]) == ("deviation", "-1")  # the network knows its own side
            line = ("fit", "photos", "--model", "backbone.onnx", "--out", "made", "--no-cache")
            yield command(good, f"an ONNX file that says {key} {value[:20]!r}", *line, how=how, may_do=may)


def _tell(path: Path, key: str, value: str) -> None:
    import onnx

    network = onnx.load(path)
    words = {"mean": "1 2 3", "deviation": "1 1 1"} | {key: value}
    onnx.helper.set_model_props(network, {f"anyshot.{name}": text for name, text in words.items()})
    onnx.save(network, path)
