"""Arrays: .npz of images and of features, .npy, .safetensors, Parquet; given to `pack`, `fit`, `evaluate`."""

import io
import struct
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from hostile import good as goods
from hostile import spoil
from hostile.corpus import Case
from hostile.good import Good

X, Y = goods.features()


def npy(descr: str, shape: str, data: bytes = b"", order: str = "False") -> bytes:
    """A header as it is written here, and bytes after it."""
    head = f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}, }}".encode()
    head = head.ljust(117) + b"\n"
    return b"\x93NUMPY\1\0" + struct.pack("<H", len(head)) + head + data


# Headers that lie, or that ask for what is never read.
HEADERS = {
    "says a terabyte": npy("'<f4'", "(1000000, 250000)", bytes(64)),
    "says 2^62 values": npy("'<f4'", f"({1 << 62},)", bytes(64)),
    "says more rows than there are": npy("'<f4'", "(100, 6)", bytes(64)),
    "has more bytes than it says": npy("'<f4'", "(2, 2)", bytes(640)),
    "has a negative side": npy("'<f4'", "(-1, 6)", bytes(64)),
    "has text 400 million wide": npy("'<U400000000'", "(1,)", bytes(64)),
    "has Python objects": npy("'|O'", "(3,)", b"\x80\4]\x94."),
    "has a nested type": npy("[('a', '<f4', (1000000,))]", "(3,)", bytes(64)),
    "has no type": npy("'zzz'", "(3,)", bytes(64)),
    "has a shape of text": npy("'<f4'", "'x'", bytes(64)),
    "is no dictionary": npy("'<f4'}", "(3,)", bytes(64)),
    "calls a function": npy("__import__('os').mkdir('ran')", "(3,)", bytes(64)),
    "is of an unknown version": b"\x93NUMPY\7\0" + bytes(200),
    "is cut": npy("'<f4'", "(3,)")[:40],
    "holds nothing": npy("'<f4'", "(0, 6)"),
    "holds dates": npy("'<M8[s]'", "(8, 2)", bytes(128)),
    "holds complex numbers": npy("'<c8'", "(8, 2)", bytes(128)),
}


def bundle(arrays: dict[str, Any]) -> bytes:
    """An .npz of arrays, or of bytes in an array's place."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, value in arrays.items():
            if not isinstance(value, bytes):
                file = io.BytesIO()
                np.lib.format.write_array(file, np.asarray(value))
                value = file.getvalue()
            archive.writestr(f"{name}.npy", value)
    return out.getvalue()


def without(arrays: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in arrays.items() if key != name}


def image_faults() -> Iterator[tuple[str, dict[str, Any]]]:
    """Sets of images that do not fit together."""
    raw, jpegs, mosaic = goods.images(), goods.jpegs(), goods.mosaic()
    for name in raw:
        yield f"without {name}", without(raw, name)
    labels = raw["labels"]
    yield "a label of -1", raw | {"labels": np.where(labels == 2, -1, labels)}
    yield "a label too large", raw | {"labels": np.where(labels == 2, 3, labels)}
    yield "labels of numbers with a point", raw | {"labels": labels + 0.5}
    yield "labels as a table", raw | {"labels": labels[:, None]}
    yield "one label too few", raw | {"labels": labels[:-1]}
    yield "labels of text", raw | {"labels": labels.astype(str)}
    yield "a split that is none", raw | {"class_split": np.array(["train", "val", "holdout"])}
    yield "integers as splits", raw | {"class_split": np.array([0, 1, 2])}
    yield "numbers as class names", raw | {"class_names": np.array([1.5, 2.5, 3.5])}
    yield "one class name too few", raw | {"class_names": np.array(["ant", "bee"])}
    yield "names as a table", raw | {"class_names": np.array([["ant"], ["bee"], ["cat"]])}
    yield "images of numbers with a point", raw | {"images": raw["images"] / 255}
    yield "images of five channels", raw | {"images": np.zeros((12, 8, 8, 5), np.uint8)}
    yield "images without pixels", raw | {"images": np.zeros((12, 0, 8, 3), np.uint8)}
    yield "images as a row", raw | {"images": np.zeros(12, np.uint8)}
    yield "no images", raw | {"images": np.zeros((0, 8, 8, 3), np.uint8), "labels": np.zeros(0, int)}
    yield "an unknown encoding", raw | {"encoding": np.array("tiff")}
    yield "an encoding that is a number", raw | {"encoding": np.array(7)}
    offsets = jpegs["offsets"]
    yield "jpeg: offsets out of order", jpegs | {"offsets": offsets[::-1]}
    yield "jpeg: offsets beyond the end", jpegs | {"offsets": offsets * 100}
    yield "jpeg: negative offsets", jpegs | {"offsets": offsets - 50}
    yield "jpeg: no offsets", jpegs | {"offsets": offsets[:0]}
    yield "jpeg: offsets of text", jpegs | {"offsets": np.array(["a"] * 13)}
    yield "jpeg: a blob of numbers", jpegs | {"blob": jpegs["blob"].astype(float)}
    yield "jpeg: nothing but zeros", jpegs | {"blob": np.zeros_like(jpegs["blob"])}
    yield "mosaic: no tile", mosaic | {"tile": np.array(0)}
    yield "mosaic: a tile too large", mosaic | {"tile": np.array(1000)}
    yield "mosaic: a negative tile", mosaic | {"tile": np.array(-8)}
    yield "mosaic: no columns", mosaic | {"columns": np.array(0)}
    yield "mosaic: a billion images", mosaic | {"counts": np.array([1 << 40, 4, 4])}
    yield "mosaic: negative counts", mosaic | {"counts": np.array([-4, 8, 8])}
    yield "mosaic: counts of text", mosaic | {"counts": np.array(["a", "b", "c"])}
    yield "mosaic: columns of text", mosaic | {"columns": np.array("x")}


def feature_faults() -> Iterator[tuple[str, dict[str, Any]]]:
    """Features that are none, or that their labels do not fit."""
    nan, inf = X.copy(), X.copy()
    nan[3, 2], inf[3, 2] = np.nan, np.inf
    yield "without labels", {"features": X}
    yield "without features", {"labels": Y}
    yield "a label too few", {"features": X, "labels": Y[:-1]}
    yield "not a number among the features", {"features": nan, "labels": Y}
    yield "an infinity among the features", {"features": inf, "labels": Y}
    yield "too large for 32 bits", {"features": X.astype(np.float64) * 1e300, "labels": Y}
    yield "features of text", {"features": X.astype(str), "labels": Y}
    yield "complex features", {"features": X.astype(complex), "labels": Y}
    yield "features in five dimensions", {"features": X.reshape(8, 5, 1, 6, 1), "labels": Y[:8]}
    yield "features of no width", {"features": X[:, :0], "labels": Y}
    yield "no features", {"features": X[:0], "labels": Y[:0]}
    yield "empty labels", {"features": X, "labels": np.full(len(X), "")}
    yield "one number", {"features": np.array(1.0), "labels": np.array(1)}
    yield "a split that is none", {"features": X, "labels": Y, "split": np.full(len(X), "x")}


def cases(good: Good) -> Iterator[Case]:
    for words, arrays in image_faults():
        yield given(f"images: {words}", "a.npz", bundle(arrays), "npz")
    for words, arrays in feature_faults():
        yield given(f"features: {words}", "a.npz", bundle(arrays), "features")
    for words, header in HEADERS.items():
        yield given(f"an .npy that {words}", "a.npy", header, "features")
        yield given(f"an .npz whose array {words}", "a.npz", bundle({"features": header, "labels": Y}), "features")
    yield Case("an .npz with a wrong checksum", lambda folder: _checksum(good, folder))
    yield given("an .npz that unpacks to gigabytes", "a.npz", _bomb(), "features")
    for name, kind in (
        ("images.npz", "npz"),
        ("features.npz", "features"),
        ("features.npy", "features"),
        ("features.safetensors", "features"),
        ("features.parquet", "features"),
    ):
        whole = (good / name).read_bytes()
        for words in ("empty", "cut in half", "zeros", "random bytes", "a text", "a picture", "an archive"):
            yield given(f"{name}: {words}", name, spoil.BROKEN[words](whole), kind)
        for seed in range(3):
            yield given(f"{name}: bytes changed ({seed})", name, spoil.flips(seed, 4)(whole), kind, may_do=True)
    for words, how in spoil.PLACES.items():
        yield Case(f"features: {words}", lambda folder, how=how: _placed(folder, how, "a.npz"))
        yield Case(f"labels: {words}", lambda folder, how=how: _labels(good, folder, how))
    for words, change in SAFETENSORS.items():
        yield Case(f"safetensors: {words}", lambda folder, change=change: _header(good, folder, change))
    yield Case("Parquet: a billion equal rows", _many_rows)
    yield Case(
        "Parquet: vectors of different lengths",
        lambda folder: _parquet(folder, {"embedding": [[1.0], [1.0, 2.0]], "label": ["a", "b"]}),
    )
    yield Case(
        "Parquet: missing vectors",
        lambda folder: _parquet(folder, {"embedding": [[1.0, 2.0], None], "label": ["a", "b"]}),
    )
    yield Case(
        "Parquet: missing labels", lambda folder: _parquet(folder, {"embedding": [[1.0], [2.0]], "label": ["a", None]})
    )
    yield Case(
        "Parquet: vectors of text", lambda folder: _parquet(folder, {"embedding": ["x", "y"], "label": ["a", "b"]})
    )
    yield Case("Parquet: nothing", lambda folder: _parquet(folder, {"embedding": [], "label": []}))
    for verb in ("fit", "evaluate", "advise"):
        for words in ("not a number among the features", "without labels", "a label too few"):
            data = bundle(dict(feature_faults())[words])
            yield Case(f"{verb}: {words}", lambda folder, verb=verb, data=data: _used(folder, verb, data))


def given(name: str, file: str, data: bytes, kind: str, may_do: bool = False) -> Case:
    def make(folder: Path) -> list[str]:
        (folder / file).write_bytes(data)
        (folder / "labels.txt").write_text("".join(f"{label}\n" for label in Y))
        more = ["--labels", "labels.txt"] if file.endswith(".npy") else []
        return ["pack", kind, file, "-o", "store", "--no-doctor", *more]

    return Case(name, make, may_do)


def _checksum(good: Good, folder: Path) -> list[str]:
    data = bytearray((good / "features.npz").read_bytes())
    data[data.find(b"NUMPY") + 300] ^= 255
    (folder / "a.npz").write_bytes(data)
    return ["pack", "features", "a.npz", "-o", "store"]


def _bomb() -> bytes:
    return bundle({"features": npy("'<f4'", "(1000, 100000)", bytes(400_000_000)), "labels": np.zeros(1000, int)})


def _placed(folder: Path, how: Callable[[Path], Any], name: str) -> list[str]:
    how(folder / name)
    return ["pack", "features", name, "-o", "store"]


def _labels(good: Good, folder: Path, how: Callable[[Path], Any]) -> list[str]:
    good.copy("features.npy", folder)
    how(folder / "labels.npy")
    return ["pack", "features", "features.npy", "--labels", "labels.npy", "-o", "store"]


def _used(folder: Path, verb: str, data: bytes) -> list[str]:
    (folder / "a.npz").write_bytes(data)
    return [verb, "a.npz", *(["--out", "made"] if verb == "fit" else [])]


SAFETENSORS: dict[str, Callable[[dict], Any]] = {
    "an unknown type": lambda head: head["features"].update(dtype="F99"),
    "a shape too large": lambda head: head["features"].update(shape=[1 << 40, 1 << 40]),
    "a negative shape": lambda head: head["features"].update(shape=[-1, 6]),
    "offsets beyond the end": lambda head: head["features"].update(data_offsets=[0, 1 << 50]),
    "offsets that overlap": lambda head: head["features"].update(data_offsets=head["labels"]["data_offsets"]),
    "half floats of the brain": lambda head: head["features"].update(dtype="BF16", shape=[40, 12]),
    "words that are none": lambda head: head.update(__metadata__=[1, 2]),
}


def _header(good: Good, folder: Path, change: Callable[[dict], Any]) -> list[str]:
    path = good.copy("features.safetensors", folder)
    spoil.edit_header(path, change)
    return ["pack", "features", path.name, "-o", "store"]


def _parquet(folder: Path, columns: dict[str, Any]) -> list[str]:
    import pyarrow
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.table(columns), folder / "a.parquet")
    return ["pack", "features", "a.parquet", "-o", "store"]


def _many_rows(folder: Path) -> list[str]:
    import pyarrow
    import pyarrow.parquet

    one = pyarrow.table(
        {"embedding": pyarrow.array([1.0]).take(pyarrow.array([0] * 4_000_000)), "label": ["a"] * 4_000_000}
    )
    with pyarrow.parquet.ParquetWriter(folder / "a.parquet", one.schema) as writer:
        for _ in range(3):
            writer.write_table(one)
    return ["pack", "features", "a.parquet", "-o", "store"]
