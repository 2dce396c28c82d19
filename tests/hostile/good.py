"""The good things that the cases spoil, made once: small, and of every kind that a command reads."""

import csv
import io
import pickle
import shutil
import tarfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from helpers import image_files, own_study

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Good:
    """A folder with good things in it, by their names."""

    folder: Path

    def copy(self, name: str, folder: Path) -> Path:
        """One of them, copied into a case's folder."""
        source, target = self.folder / name, folder / name
        if source.is_dir():
            shutil.copytree(source, target, symlinks=True)
        else:
            shutil.copyfile(source, target)
        return target

    def __truediv__(self, name: str) -> Path:
        return self.folder / name


def make(folder: Path) -> Good:
    """All of them."""
    image_files.class_folders(folder / "photos", ("ant", "bee", "cat"), many=4)
    _archives(folder)
    _arrays(folder)
    _tables(folder)
    _stores(folder)
    _classifiers(folder)
    _benchmarks(folder)
    _run(folder)
    shutil.copyfile(HERE.parent / "helpers" / "own_study.py", folder / "study.py")
    own_study.store(folder / "data")
    return Good(folder)


def _archives(folder: Path) -> None:
    with zipfile.ZipFile(folder / "photos.zip", "w") as zipped:
        for file in sorted((folder / "photos").rglob("*.png")):
            zipped.write(file, file.relative_to(folder / "photos"))
    for kind, name in (
        ("w", "photos.tar"),
        ("w:gz", "photos.tgz"),
        ("w:bz2", "photos.tar.bz2"),
        ("w:xz", "photos.tar.xz"),
    ):
        with tarfile.open(folder / name, kind) as tar:
            tar.add(folder / "photos", ".")


def features(way: int = 5, many: int = 8, channel: int = 6) -> tuple[np.ndarray, np.ndarray]:
    """Vectors that can be told apart, and their labels."""
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(way), many)
    centres = rng.normal(size=(way, channel)) * 3
    return (centres[labels] + rng.normal(size=(len(labels), channel))).astype(np.float32), labels


def images() -> dict[str, np.ndarray]:
    """A set in the form of one .npz."""
    pixels = np.stack([image_files.pixels(seed, 8, 8) for seed in range(12)])
    return {
        "images": pixels,
        "labels": np.repeat(np.arange(3), 4),
        "class_names": np.array(["ant", "bee", "cat"]),
        "class_split": np.array(["train", "val", "test"]),
    }


def jpegs() -> dict[str, np.ndarray]:
    """The same, as one JPEG after another."""
    files = [image_files.encoded(seed, 8, 8, "JPEG") for seed in range(12)]
    offsets = np.cumsum([0, *map(len, files)])
    rest = {name: value for name, value in images().items() if name != "images"}
    return {"encoding": np.array("jpeg"), "blob": np.frombuffer(b"".join(files), np.uint8), "offsets": offsets, **rest}


def mosaic() -> dict[str, np.ndarray]:
    """The same, as one sheet per class."""
    sheets = [image_files.encoded(seed, 16, 16, "JPEG") for seed in range(3)]
    offsets = np.cumsum([0, *map(len, sheets)])
    rest = {name: value for name, value in images().items() if name != "images"}
    more = {"tile": np.array(8), "columns": np.array(2), "counts": np.array([4, 4, 4]), "offsets": offsets}
    return {"encoding": np.array("mosaic"), "blob": np.frombuffer(b"".join(sheets), np.uint8), **more, **rest}


def _arrays(folder: Path) -> None:
    import pyarrow
    import pyarrow.parquet
    from safetensors.numpy import save_file

    X, y = features()
    np.savez(folder / "features.npz", features=X, labels=y)
    np.savez(folder / "pairs.npz", features=X[:, :2], labels=y)
    np.save(folder / "features.npy", X)
    np.save(folder / "labels.npy", y)
    save_file({"features": X, "labels": y}, folder / "features.safetensors")
    table = pyarrow.table({"embedding": list(X), "label": y})
    pyarrow.parquet.write_table(table, folder / "features.parquet")
    np.savez(folder / "images.npz", **images())
    np.savez(folder / "jpegs.npz", **jpegs())
    np.savez(folder / "mosaic.npz", **mosaic())


def _tables(folder: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    rows = [
        (f"photos/{file.parent.name}/{file.name}", file.parent.name)
        for file in sorted((folder / "photos").rglob("*.png"))
    ]
    for name, mark in (("table.csv", ","), ("table.tsv", "\t")):
        out = io.StringIO()
        writer = csv.writer(out, delimiter=mark, lineterminator="\n")
        writer.writerows([("path", "label"), *rows])
        (folder / name).write_text(out.getvalue())
    paths, labels = zip(*rows, strict=True)
    pyarrow.parquet.write_table(pyarrow.table({"path": paths, "label": labels}), folder / "table.parquet")


def _stores(folder: Path) -> None:
    from anyshot.data.pack import pack

    pack("features", folder / "features.npz", folder / "feature-store", split=(0.4, 0.2, 0.4))
    pack("npz", folder / "images.npz", folder / "image-store")


def _classifiers(folder: Path) -> None:
    from anyshot import FewShotClassifier, ImageClassifier
    from anyshot.models.model import Model
    from anyshot.recipe import Recipe

    X, y = features()
    names = np.array(["ant", "bee", "cat", "dog", "elk"])
    FewShotClassifier("posterior").fit(X, names[y]).save(folder / "of-features")
    FewShotClassifier("frn", positions=2).fit(X, names[y]).save(folder / "of-maps")
    torch.manual_seed(0)
    recipe = Recipe(data="tiny", head="cosine-proto", train_shot=4, way=4, size=16, width=8)
    (folder / "model").mkdir()
    Model(recipe, 3).eval().save(folder / "model" / "model.safetensors")
    ImageClassifier(folder / "model").fit(folder / "photos").save(folder / "of-pictures")
    shutil.copytree(HERE.parent / "fixtures" / "v0.1" / "classifiers" / "many", folder / "of-many")
    _onnx(folder / "backbone.onnx")
    ImageClassifier(folder / "backbone.onnx").fit(folder / "photos").save(folder / "of-onnx")
    shutil.copytree(HERE.parent / "fixtures" / "v0.1" / "shards", folder / "shards")


def _onnx(path: Path) -> None:
    """The mean of each channel, as a network."""
    import onnx
    from onnx import TensorProto, helper

    shapes = {"pixels": ["image", 3, 16, 16], "features": ["image", 3]}
    values = {name: helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in shapes.items()}
    node = helper.make_node("ReduceMean", ["pixels"], ["features"], axes=[2, 3], keepdims=0)
    graph = helper.make_graph([node], "means", [values["pixels"]], [values["features"]])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), path)


def mini_cache(split: str, classes: int) -> dict:
    """A pickled cache of mini-ImageNet, with two images a class."""
    names = [f"{split}{number}" for number in range(classes)]
    numbers = {name: [2 * index, 2 * index + 1] for index, name in enumerate(names)}
    return {"image_data": np.zeros((2 * classes, 8, 8, 3), np.uint8), "class_dict": numbers}


MINI = {"train": 64, "val": 16, "test": 20}


def _benchmarks(folder: Path) -> None:
    (folder / "mini").mkdir()
    for split, classes in MINI.items():
        path = folder / "mini" / f"mini-imagenet-cache-{split}.pkl"
        path.write_bytes(pickle.dumps(mini_cache(split, classes), 2))
    cub = folder / "cub"
    for number in range(1, 201):
        image_files.write(cub / "images" / f"{number:03}.bird" / "a.png", seed=number)
    lines = {
        "images.txt": lambda number: f"{number:03}.bird/a.png",
        "image_class_labels.txt": str,
        "bounding_boxes.txt": lambda number: "1.0 1.0 8.0 8.0",
    }
    for name, value in lines.items():
        (cub / name).write_text("".join(f"{number} {value(number)}\n" for number in range(1, 201)))


def _run(folder: Path) -> None:
    from helpers import report_runs

    from anyshot.measure.recalls import Recalls, write_recalls

    run = report_runs.write_run(folder / "run", report_runs.rows())
    plan = {"way": 2, "queries": 3, "episodes": 4, "seed": 0, "id": "x"}
    of = {"data": "glyphs", "backbone": "conv4", "head": "proto", "readout": "own", "train_shot": 4, "seed": 0}
    of |= {"model": "proto-4", "learner": "proto", "score": "proto", "mixed": ""}
    one = Recalls(of, plan, (1, 2), np.tile([0, 1], (4, 1)), np.full((2, 4, 2), 0.5))
    write_recalls(run / "model-0" / "recalls-12345678.npz", [one])
