"""Classifiers and models from anyone: their JSON, tensors and networks spoiled; given to `predict` and `fit`."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from helpers import image_files
from helpers.classifier_folders import path_of, sign_folder, version_of

from hostile import spoil
from hostile.corpus import Case
from hostile.good import Good

HARMLESS = ("reject", "feature_names", "made_with")  # a wrong one of these may do no harm
FILES = {
    "of-features": ("config.json", "classifier.safetensors"),
    "of-pictures": (
        "config.json",
        "classifier.safetensors",
        "backbone.json",
        "model.safetensors",
        "thumbnails.safetensors",
    ),
    "of-onnx": ("backbone.onnx",),
}
MAY_BE_GONE = ("thumbnails.safetensors",)


def predicting(folder: Path, name: str) -> list[str]:
    """The command that uses a classifier of this name."""
    if name in ("of-features", "of-maps"):
        return ["predict", name, "features.npz"]
    image_files.write(folder / "a.png", seed=3)
    return ["predict", name, "a.png"]


def spoiled(good: Good, words: str, name: str, how: Callable[[Path], Any], may_do: bool = False) -> Case:
    """A classifier with something done to its folder."""

    def make(folder: Path) -> list[str]:
        copy = good.copy(name, folder)
        good.copy("features.npz", folder)
        how(copy)
        return predicting(folder, name)

    return Case(f"{name}: {words}", make, may_do)


def cases(good: Good) -> Iterator[Case]:
    yield from _files(good)
    yield from _configs(good)
    yield from _tensors(good)
    yield from _models(good)
    yield from _networks(good)
    yield from _commands(good)


def _files(good: Good) -> Iterator[Case]:
    for name, files in FILES.items():
        for file in files:
            for words in ("empty", "cut in half", "zeros", "a text", "a picture"):
                how = lambda copy, file=file, words=words: _write(path_of(copy, file), spoil.BROKEN[words])  # noqa: E731
                yield spoiled(good, f"{file} is {words}", name, how, may_do=file in MAY_BE_GONE)
            for seed in range(2):
                how = lambda copy, file=file, seed=seed: _write(path_of(copy, file), spoil.flips(seed, 3))  # noqa: E731
                yield spoiled(good, f"{file} with bytes changed ({seed})", name, how, may_do=True)
            for words, place in spoil.PLACES.items():
                how = lambda copy, file=file, place=place: spoil.replaced(path_of(copy, file), place)  # noqa: E731
                yield spoiled(good, f"{file} is {words}", name, how, may_do=file in MAY_BE_GONE)


def _write(path: Path, change: spoil.Spoil) -> None:
    path.write_bytes(change(path.read_bytes()))


def _configs(good: Good) -> Iterator[Case]:
    for name, file in (("of-features", "config.json"), ("of-pictures", "backbone.json")):
        for words, data in spoil.JSONS.items():
            yield spoiled(
                good, f"{file} is {words}", name, lambda copy, f=file, d=data: path_of(copy, f).write_bytes(d)
            )
    for words, how in spoil.changed_keys(good / "of-features" / "config.json"):
        may = words.rpartition(" ")[2] in HARMLESS or words in MAY
        yield spoiled(good, f"config.json {words}", "of-features", lambda copy, how=how: how(copy / "config.json"), may)
    for words, how in spoil.changed_keys(
        version_of(good / "of-pictures") / "backbone.json", skip=("backbone", "sensitivity")
    ):
        may = words.endswith(("name", "content"))
        yield spoiled(
            good,
            f"backbone.json {words}",
            "of-pictures",
            lambda copy, how=how: how(path_of(copy, "backbone.json")),
            may,
        )
    for words, changes in CONFIGS.items():
        yield spoiled(good, words, "of-features", lambda copy, c=changes: _edit_config(copy, c))
    for words, changes in BACKBONES.items():
        yield spoiled(good, words, "of-pictures", lambda copy, c=changes: _edit_backbone(copy, c))


def _edit_config(copy: Path, changes: dict[str, Any]) -> None:
    spoil.edit_json(copy / "config.json", **changes)
    sign_folder(copy)  # as anyone can


def _edit_backbone(copy: Path, changes: dict[str, Any]) -> None:
    spoil.edit_json(path_of(copy, "backbone.json"), **changes)
    sign_folder(copy)


MAY = (
    "null as embed", "a text as head", "null as scale", "without library",
    "a huge number as keep", "null as made_with", "a huge number as scale",
)  # fmt: skip
CONFIGS: dict[str, dict[str, Any]] = {
    "labels of objects": {"label_type": "|O"},
    "labels 400 million wide": {"label_type": "<U400000000"},
    "labels of nested types": {"label_type": "(1000,1000)f8"},
    "labels of dates": {"label_type": "<M8[s]"},
    "a label twice": {"labels": ["ant", "ant", "cat", "dog", "elk"]},
    "a label too few": {"labels": ["ant", "bee", "cat", "dog"]},
    "labels longer than their type": {"labels": ["antelope", "bee", "cat", "dog", "elk"]},
    "labels in lists": {"labels": [["ant"], ["bee"], ["cat"], ["dog"], ["elk"]]},
    "a head that is none": {"head": "zzz"},
    "a head that must be trained": {"head": "feat"},
    "a readout that is none": {"readout": "zzz"},
    "a readout of 10^12 dimensions": {"readout": "pca1000000000000"},
    "an embed that is none": {"embed": "zzz"},
    "a scale of 0": {"scale": 0},
    "a scale of minus one": {"scale": -1.0},
    "an infinite scale": {"scale": float("inf")},
    "a scale that is not a number": {"scale": float("nan")},
    "reject at 2": {"reject": 2.0},
    "keep at 0": {"keep": 0},
    "a format of the future": {"format": 99},
    "positions that do not divide": {"positions": 4},
    "a million positions": {"positions": 10**6, "features": 10**6},
    "more features than there are": {"features": 12},
    "a trillion features": {"features": 10**12},
    "names of features, too few": {"feature_names": ["a"]},
    "a file that it was made with": {"head": "mine", "made_with": "../../evil.py"},
}
BACKBONES: dict[str, dict[str, Any]] = {
    "a backbone on the internet": {"name": "http://example.invalid/x.onnx"},
    "a hub": {"name": "timm:hf_hub:evil/model"},
    "a model of timm that is not here": {"name": "timm:resnet18"},
    "a backbone outside its folder": {"name": "../../model"},
    "a side of 0": {"side": 0},
    "a side of a million": {"side": 10**6},
    "a side with a point": {"side": 16.5},
    "a side that is true": {"side": True},
    "another content": {"name": "efficientnet-lite0", "content": "00" * 32},
    "lite0 of a million pixels": {"name": "efficientnet-lite0:1000000"},
}


def _tensors(good: Good) -> Iterator[Case]:
    file = "classifier.safetensors"

    def changed(words: str, change: Callable[[dict], Any], name: str = "of-features", may_do: bool = False) -> Case:
        def how(copy: Path) -> None:
            spoil.edit_tensors(path_of(copy, file), change)
            sign_folder(copy)  # as anyone can

        return spoiled(good, words, name, how, may_do)

    for name in ("sums", "counts", "kept", "owner", "keys"):
        yield changed(f"without {name}", lambda t, name=name: t.pop(name))
        yield changed(f"{name} of another shape", lambda t, name=name: t.update({name: t[name][:-1]}))
        yield changed(f"{name} in one more dimension", lambda t, name=name: t.update({name: t[name][None]}))
        yield changed(f"{name} of another type", lambda t, name=name: t.update({name: t[name].to(torch.float16)}))
        yield changed(f"{name} of nothing", lambda t, name=name: t.update({name: t[name][:0]}))
    for name in ("sums", "kept"):
        for words, value in (("not a number", torch.nan), ("infinite", torch.inf)):
            yield changed(f"{name} that are {words}", lambda t, n=name, v=value: t[n].view(-1)[0].fill_(v))
    yield changed("an owner that is no class", lambda t: t["owner"][-1:].fill_(99))
    yield changed("an owner of -1", lambda t: t["owner"][:1].fill_(-1))
    yield changed("owners out of order", lambda t: t.update(owner=t["owner"].flip(0)))
    yield changed("a count of 0", lambda t: t["counts"][:1].fill_(0))
    yield changed("a count of -1", lambda t: t["counts"][:1].fill_(-1))
    for words, value in (("not a number", torch.nan), ("infinite", torch.inf)):
        moment = lambda t, v=value: t.update(moment=torch.full(2 * t["sums"].shape[1:], v).double())  # noqa: E731
        yield changed(f"a moment that is {words}", moment)
    yield changed("a moment of another shape", lambda t: t.update(moment=torch.zeros(2, 2).double()))
    yield changed("a key too few", lambda t: t.update(example_keys=t["example_keys"][1:]))
    yield changed("more keys than examples", lambda t: t["example_counts"][:1].fill_(999))
    yield changed("groups of another type", lambda t: t.update(groups=t["groups"].float()))
    yield changed("a negative freedom", lambda t: t.update(freedom=torch.tensor(-1)))
    yield changed("a freedom of many", lambda t: t.update(freedom=torch.arange(4)))
    yield changed("a parameter that is not a number", lambda t: t["parameters.alpha"].fill_(torch.nan), "of-maps")
    yield changed("a parameter of another shape", lambda t: t.update({"parameters.alpha": torch.ones(7)}), "of-maps")
    yield changed("a parameter that is not known", lambda t: t.update({"parameters.zzz": torch.ones(7)}), may_do=True)
    yield changed("sums of 1e308", lambda t: t["sums"].fill_(1e308), may_do=True)


def _models(good: Good) -> Iterator[Case]:
    """A trained model as a backbone of `fit` and `evaluate`."""

    def model(words: str, how: Callable[[Path], Any], may_do: bool = False) -> Case:
        def make(folder: Path) -> list[str]:
            copy = good.copy("model", folder)
            good.copy("photos", folder)
            how(copy / "model.safetensors")
            return ["fit", "photos", "--model", "model", "--out", "made", "--no-cache"]

        return Case(f"a model: {words}", make, may_do)

    for words in ("empty", "cut in half", "zeros", "random bytes", "a text"):
        yield model(words, lambda path, words=words: _write(path, spoil.BROKEN[words]))
    for seed in range(3):
        yield model(f"bytes changed ({seed})", lambda path, seed=seed: _write(path, spoil.flips(seed, 3)), True)
    for words, place in spoil.PLACES.items():
        yield model(words, lambda path, place=place: spoil.replaced(path, place))
    for words, changes in RECIPES.items():
        yield model(f"a recipe with {words}", lambda path, c=changes: _recipe(path, c))
    for words, text in {"null": "null", "a list": "[]", "no JSON": "{", "nested": "[" * 100_000, "empty": "{}"}.items():
        yield model(f"a recipe that is {words}", lambda path, text=text: _words(path, recipe=text))
    for words, text in {"0": "0", "2": "2", "a word": "x", "a million": "1000000"}.items():
        yield model(f"{words} as channels", lambda path, text=text: _words(path, channels=text))
    yield model("no words at all", lambda path: spoil.edit_header(path, lambda head: head.pop("__metadata__")))
    first = next(iter(_tensors_of(good / "model" / "model.safetensors")))
    yield model("a weight too few", lambda path: spoil.edit_tensors(path, lambda t: t.pop(first)))
    yield model("a weight more", lambda path: spoil.edit_tensors(path, lambda t: t.update(zzz=torch.ones(3))))
    yield model(
        "a weight of another shape", lambda path: spoil.edit_tensors(path, lambda t: t.update({first: torch.ones(7)}))
    )
    yield model("weights that are not numbers", lambda path: spoil.edit_tensors(path, _nan))
    yield model(
        "weights of whole numbers", lambda path: spoil.edit_tensors(path, lambda t: t.update({first: t[first].long()}))
    )
    for words, change in {
        "a length of 2^63": lambda data: (1 << 63).to_bytes(8, "little") + data[8:],
        "a length of 0": lambda data: bytes(8) + data[8:],
        "a length beyond the end": lambda data: (len(data) * 2).to_bytes(8, "little") + data[8:],
    }.items():
        yield model(words, lambda path, change=change: _write(path, change))


def _nan(tensors: dict) -> None:
    for value in tensors.values():
        if value.is_floating_point():
            value.fill_(torch.nan)


def _tensors_of(path: Path) -> list[str]:
    from safetensors import safe_open

    with safe_open(path, framework="pt") as file:
        return list(file.keys())


def _words(path: Path, **words: str) -> None:
    spoil.edit_header(path, lambda head: head["__metadata__"].update(words))


def _recipe(path: Path, changes: dict[str, Any]) -> None:
    spoil.edit_header(
        path,
        lambda head: head["__metadata__"].update(
            recipe=json.dumps({**json.loads(head["__metadata__"]["recipe"]), **changes})
        ),
    )


RECIPES: dict[str, dict[str, Any]] = {
    "a head that is none": {"head": "zzz"},
    "a backbone that is none": {"backbone": "zzz"},
    "an optimiser that is none": {"optimiser": "zzz"},
    "a schedule that is none": {"schedule": "zzz"},
    "a width of a million": {"width": 10**6},
    "a width of 0": {"width": 0},
    "a width of -1": {"width": -1},
    "a width of text": {"width": "x"},
    "a size of a million": {"size": 10**6},
    "a size of 0": {"size": 0},
    "a way of 1": {"way": 1},
    "a shot of -4": {"train_shot": -4},
    "no number as learning rate": {"lr": float("nan")},
    "an infinite temperature": {"temperature": float("inf")},
    "null as head": {"head": None},
    "a list as head": {"head": ["proto"]},
    "a name that leads out": {"data": "../../x"},
    "an unknown field": {"zzz": 1},
    "a start that is a number": {"start": 7},
    "a seed of 10^30": {"seed": 10**30},
    "an embed that is none": {"embed": "zzz"},
}


def _networks(good: Good) -> Iterator[Case]:
    """ONNX files as a backbone."""

    def network(words: str, how: Callable[[Path], Any], may_do: bool = False) -> Case:
        def make(folder: Path) -> list[str]:
            copy = good.copy("backbone.onnx", folder)
            good.copy("photos", folder)
            how(copy)
            return ["fit", "photos", "--model", "backbone.onnx", "--out", "made", "--no-cache"]

        return Case(f"an ONNX file: {words}", make, may_do)

    for words in ("empty", "one byte", "cut in half", "zeros", "random bytes", "a text", "a picture", "an archive"):
        yield network(words, lambda path, words=words: _write(path, spoil.BROKEN[words]))
    for seed in range(4):
        yield network(f"bytes changed ({seed})", lambda path, seed=seed: _write(path, spoil.flips(seed, 2)), True)
    for words, place in spoil.PLACES.items():
        yield network(words, lambda path, place=place: spoil.replaced(path, place))
    for words, shape in SHAPES.items():
        yield network(f"an input of {words}", lambda path, shape=shape: _onnx_of(path, shape))
    yield network("an unknown operation", lambda path: _onnx_of(path, ["n", 3, 16, 16], "Zzz"))
    yield network("weights in a file outside", _external)


SHAPES: dict[str, list] = {
    "no side": ["n", 3, 0, 0],
    "a side of a million": ["n", 3, 10**6, 10**6],
    "five channels": ["n", 5, 16, 16],
    "a vector": ["n", 3],
    "no dimensions": [],
}


def _onnx_of(path: Path, shape: list, operation: str = "ReduceMean") -> None:
    import onnx
    from onnx import TensorProto, helper

    into, out = (helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in (("x", shape), ("y", ["n", "c"])))
    more = {"axes": [2, 3], "keepdims": 0} if operation == "ReduceMean" else {}
    graph = helper.make_graph([helper.make_node(operation, ["x"], ["y"], **more)], "g", [into], [out])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), path)


def _external(path: Path) -> None:
    from onnx import TensorProto, helper

    weight = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[4], data_location=TensorProto.EXTERNAL)
    for key, value in (("location", "../../../etc/passwd"), ("offset", "0"), ("length", "16")):
        weight.external_data.add(key=key, value=value)
    into, out = (helper.make_tensor_value_info(n, TensorProto.FLOAT, ["n", 3, 4, 4]) for n in ("x", "y"))
    graph = helper.make_graph([helper.make_node("Add", ["x", "w"], ["y"])], "g", [into], [out], [weight])
    path.write_bytes(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)]).SerializeToString())


def _commands(good: Good) -> Iterator[Case]:
    """Classifiers that are whole, used wrongly."""
    uses = {
        "fit over something else": ["fit", "photos", "--model", "model", "--out", "photos", "--no-cache"],
        "fit with reject 2": ["fit", "features.npz", "--reject", "2", "--out", "made"],
        "fit with reject nan": ["fit", "features.npz", "--reject", "nan", "--out", "made"],
        "fit with keep 1": ["fit", "features.npz", "--keep", "1", "--out", "made"],
        "fit with a head that is none": ["fit", "features.npz", "--head", "zzz", "--out", "made"],
        "fit with a model on features": ["fit", "features.npz", "--model", "model", "--out", "made"],
        "fit below a file": ["fit", "features.npz", "--out", "features.npz/made"],
        "fit to a device": ["fit", "features.npz", "--out", "/dev/null"],
        "features to a classifier of pictures": ["predict", "of-pictures", "features.npz"],
        "pictures to a classifier of features": ["predict", "of-features", "photos"],
        "features of another width": ["predict", "of-features", "images.npz"],
        "test on classes that are not there": ["test", "of-pictures", "model"],
        "export to a folder": ["export", "of-features", "-o", "photos"],
        "serve on a port that is none": ["serve", "of-pictures", "--port", "99999"],
        "serve on an address that is none": ["serve", "of-pictures", "--host", "no.such.address.invalid"],
        "serve a classifier of features": ["serve", "of-features"],
        "a verb that is none": ["zzz"],
        "a model that is none": ["fit", "photos", "--model", "zzz", "--out", "made"],
        "lite0 of 0 pixels": ["fit", "photos", "--model", "efficientnet-lite0:0", "--out", "made"],
        "a file of one's own that is none": ["fit", "photos", "--using", "features.npz", "--out", "made"],
    }
    for words, command in uses.items():

        def make(folder: Path, command: list[str] = command) -> list[str]:
            for name in ("photos", "features.npz", "images.npz", "of-features", "of-pictures", "model"):
                if any(name in word for word in command):
                    good.copy(name, folder)
            return command

        yield Case(words, make)
