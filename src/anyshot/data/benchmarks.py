"""Read the four benchmarks of the paper from the files that people download, with its splits (Section 5, "Datasets").

A copy with another number of classes is refused; another number of images is noted in the store.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from anyshot.data.archives import VALUE_ERRORS, safe_join
from anyshot.data.folders import check_folder, read_folder
from anyshot.data.layout import PackOptions
from anyshot.data.pictures import FileBytes
from anyshot.data.source import Item, Source
from anyshot.data.store import SPLITS
from anyshot.data.tables import decode_text, read_columns
from anyshot.data.unpickle import unpickle
from anyshot.errors import BadInput, as_bad_input
from anyshot.files import MAX_JSON_BYTES, check_file, read_json, read_text

# Published numbers of classes and of images of each split.
PUBLISHED = {
    "cub": {"train": (100, 5903), "val": (50, 2927), "test": (50, 2958)},
    "mini": {"train": (64, 38400), "val": (16, 9600), "test": (20, 12000)},
    "tiered": {"train": (351, 448695), "val": (97, 124261), "test": (160, 206209)},
    "meta-inat": {"train": (908, 192270), "val": (0, 0), "test": (227, 51716)},
}


def read_cub(path: Path, options: PackOptions, labelled: bool) -> Source:
    """List CUB-200-2011. Class number i: even is train, 1 modulo 4 is val, 3 modulo 4 is test."""
    root = _find_folder(path, "images.txt")
    files, classes = (_read_numbered(root / name) for name in ("images.txt", "image_class_labels.txt"))
    boxes = _read_numbered(root / "bounding_boxes.txt") if options.box else {}
    items = []
    for number, name in files.items():
        file = safe_join(root / "images", name, root / "images.txt")
        box = None
        with as_bad_input(VALUE_ERRORS, f"image {number} of {root}/images.txt has no valid class or box."):
            split = ("train", "val", "train", "test")[int(classes[number]) % 4]
            if options.box:
                left, top, width, height = map(float, boxes[number].split())
                box = (left, top, left + width, top + height)
        items.append(Item(name, Path(name).parent.name, split, FileBytes(file), box))
    return _check_classes("cub", Source(items), root)


def read_mini(path: Path, options: PackOptions, labelled: bool) -> Source:
    """List mini-ImageNet (Ravi's split): class folders, train.csv with a folder of images, or pickled caches."""
    if pickles := _find_pickles(path):
        items = [item for split, file in pickles.items() for item in _read_cache(file, split)]
        return _check_classes("mini", Source(items, size=None), path)
    root = _find_folder(path, "train.csv", needed=False)
    items = _read_csv_lists(root) if root is not None else _list_wordnet_folders("mini", path)
    return _check_classes("mini", Source(items), path)


def read_tiered(path: Path, options: PackOptions, labelled: bool) -> Source:
    """List tiered-ImageNet: SPLIT_images_png.pkl and SPLIT_labels.pkl, or class folders; images are 84x84 already."""
    root = _find_folder(path, "train_images_png.pkl", needed=False)
    if root is None:
        items = _list_wordnet_folders("tiered", path)
    else:
        items = [item for split in SPLITS for item in _read_tiered_split(root, split)]
    return _check_classes("tiered", Source(items, size=84, fit="squash"), path)


def read_meta_inat(path: Path, options: PackOptions, labelled: bool) -> Source:
    """List meta-iNat: categories of iNat2017 with 50 to 1000 images that have a box, whole images squashed to 84x84."""
    if options.train_ids is None and options.test_ids is None:
        raise BadInput("meta-inat needs the published list of category ids: give --train-ids or --test-ids (or both).")
    root = _find_folder(path, "train_2017_bboxes.json")
    listed = root / "train_2017_bboxes.json"
    boxes = read_json(listed, 1 << 29)
    message = f"{listed} does not have what is expected of images, categories and annotations"
    with as_bad_input(VALUE_ERRORS, message, "."):
        files = {image["id"]: image["file_name"] for image in boxes["images"]}
        names = {category["id"]: f"{category['id']} {category['name']}" for category in boxes["categories"]}
        images = defaultdict(set)
        for annotation in boxes["annotations"]:
            images[annotation["category_id"]].add(annotation["image_id"])
        eligible = {category: sorted(ids) for category, ids in sorted(images.items()) if 50 <= len(ids) <= 1000}
        split = _split_categories(set(eligible), options.train_ids, options.test_ids)
        items = [
            Item(files[image], names[category], split[category], FileBytes(safe_join(root, files[image], listed)))
            for category, ids in eligible.items()
            if category in split
            for image in ids
        ]
    return _check_classes("meta-inat", Source(items, size=84, fit="squash"), root)


def _check_classes(benchmark: str, source: Source, where: Path) -> Source:
    """Refuse a source with another number of classes than the benchmark; note another number of images."""
    classes = Counter(split for split, _ in {(str(item.split), item.class_name) for item in source.items})
    for split, (expected, _) in PUBLISHED[benchmark].items():
        if classes[split] != expected:
            raise BadInput(f"{where} has {classes[split]} {split} classes: the benchmark has {expected}.")
    images = dict(Counter(str(item.split) for item in source.items))
    published = {split: count for split, (_, count) in PUBLISHED[benchmark].items() if count}
    notes = () if images == published else (f"{benchmark} has {published} images, this copy {images}",)
    return replace(source, notes=notes, about={"benchmark": benchmark})


def published_splits(benchmark: str) -> dict[str, str]:
    """Return the split of each class of `mini` or `tiered`, by WordNet id."""
    folder = files("anyshot.data") / "splits"
    return {
        wnid: split
        for split in SPLITS
        for wnid in (folder / f"{benchmark}_{split}_wnids.txt").read_text(encoding="ascii").split()
    }


def _find_folder(path: Path, name: str, needed: bool = True) -> Any:
    """Return the folder that holds a file of this name, at most two levels below the path; None if there is none."""
    check_folder(path)
    files = (file for pattern in (name, f"*/{name}", f"*/*/{name}") for file in sorted(path.glob(pattern)))
    first = next(files, None)
    if first is None and needed:
        raise BadInput(f"{path} has no {name}: give the folder (or archive) that was downloaded.")
    return first and first.parent


def _read_numbered(path: Path) -> dict[str, str]:
    """Read lines of a number and a value, as in CUB's text files."""
    lines = read_text(path).splitlines()
    with as_bad_input(ValueError, f"{path} should have a number and a value on every line."):
        return dict(line.split(" ", 1) for line in lines if line.strip())


def _list_wordnet_folders(benchmark: str, path: Path) -> list[Item]:
    """List the images below folders that are named by WordNet id."""
    split = published_splits(benchmark)
    items = []
    for item in read_folder(path, PackOptions(), labelled=False).items:
        name = Path(item.name).relative_to(path)
        if wnids := [part for part in name.parts[:-1] if part in split]:
            items.append(replace(item, name=name.as_posix(), class_name=wnids[0], split=split[wnids[0]]))
    return items


def _read_csv_lists(root: Path) -> list[Item]:
    """Read rows of a file name and a WordNet id; the images lie in images/ beside the lists, or beside them."""
    folder = root / "images" if (root / "images").is_dir() else root
    items = []
    for split in SPLITS:
        path = root / f"{split}.csv"
        columns = read_columns(path)
        if not {"filename", "label"} <= columns.keys() or "" in (*columns["filename"], *columns["label"]):
            raise BadInput(f"{path} should have the columns filename and label, both filled on every row.")
        for name, label in zip(columns["filename"], columns["label"], strict=True):
            items.append(Item(name, label, split, FileBytes(safe_join(folder, name, path))))
    return items


def _find_pickles(path: Path) -> dict[str, Path]:
    """Return the pickled cache of each split, by the split in its name; none unless there is one for every split.

    Of the caches miniImageNet_category_split_train_phase_SPLIT.pickle, those of new images of training classes are left
    out.
    """
    folder = path.parent if path.is_file() else path
    check_folder(folder)
    files = {}
    for file in sorted(file for file in folder.rglob("*") if file.suffix in (".pkl", ".pickle")):
        names = [split for split in SPLITS if split in file.stem.rsplit("phase_", 1)[-1].lower()]
        has_new_images = "train_phase_" in file.stem.replace("train_phase_train", "")
        if len(names) == 1 and not has_new_images and "label" not in file.name:
            files[names[0]] = file
    return files if len(files) == len(SPLITS) else {}


def _decode_keys(value: Any, path: Path) -> dict[str, Any]:
    """Return a dictionary of a pickle with keys as text; those of Python 2 are bytes."""
    if not isinstance(value, dict):
        raise BadInput(f"{path} holds a {type(value).__name__}: a dictionary was expected.")
    return {decode_text(key): part for key, part in value.items()}


def _read_cache(path: Path, split: str) -> list[Item]:
    """Read a pickled cache: image_data with class_dict (class -> numbers of images), or data with labels."""
    cache = _decode_keys(unpickle(path), path)
    images = cache.get("image_data", cache.get("data"))
    if not isinstance(images, np.ndarray) or images.dtype != np.uint8 or images.ndim != 4:
        raise BadInput(f"{path} has no array of images (image_data or data, uint8, image height width channel).")
    with as_bad_input(VALUE_ERRORS, f"{path} has no usable class_dict or labels", "."):
        if "class_dict" in cache:
            members = [(int(number), name) for name, numbers in cache["class_dict"].items() for number in numbers]
        else:
            members = list(enumerate(cache["labels"]))
        if not all(0 <= number < len(images) for number, _ in members):
            raise ValueError("it names images that it does not have")
    return [
        Item(f"{path.name}[{number}]", str(decode_text(name)), split, partial(images.__getitem__, number))
        for number, name in members
    ]


def _read_tiered_split(root: Path, split: str) -> list[Item]:
    """Read a list of encoded PNGs, and the class of each: its WordNet id, or its number where the file has no ids."""
    path = root / f"{split}_labels.pkl"
    images, labels = unpickle(root / f"{split}_images_png.pkl"), _decode_keys(unpickle(path), path)
    with as_bad_input(VALUE_ERRORS, f"{path} has labels that are no numbers, or do not fit its names and images", "."):
        numbers = [int(label) for label in labels.get("label_specific", labels.get("labels", ()))]
        names = labels.get("label_specific_str", range(max(numbers) + 1))
        if min(numbers) < 0:
            raise ValueError("one is negative")
        rows = list(zip(images, [str(decode_text(names[number])) for number in numbers], strict=True))
    return [
        Item(f"{split}[{index}]", name, split, partial(_to_bytes, image)) for index, (image, name) in enumerate(rows)
    ]


def _to_bytes(image: Any) -> bytes:
    """Return the bytes of an encoded image, which the pickles hold as bytes or as an array of them."""
    return image.astype(np.uint8).tobytes() if isinstance(image, np.ndarray) else bytes(image)


def _split_categories(categories: set[int], train_ids: Path | None, test_ids: Path | None) -> dict[int, str]:
    """Return the split of each category; with one list only, all others are the other split."""
    train = read_ids(train_ids) if train_ids else categories - read_ids(test_ids)  # type: ignore[arg-type]
    test = read_ids(test_ids) if test_ids else categories - train
    if unknown := sorted((train | test) - categories):
        raise BadInput(f"categories {unknown[:5]} of the id list do not have 50 to 1000 images with a box.")
    if shared := sorted(train & test):
        raise BadInput(f"categories {shared[:5]} are in both id lists.")
    return {**dict.fromkeys(train, "train"), **dict.fromkeys(test, "test")}


def read_ids(path: Path) -> set[int]:
    """Read ids from a text or JSON file, or from a torch file of the FRN code, loaded with weights_only."""
    check_file(path)
    # torch raises exceptions of many kinds for a damaged file.
    with as_bad_input(Exception, f"{path} is not a list of ids: numbers as text, JSON or a tensor."):
        if path.suffix in (".pth", ".pt"):
            import torch

            loaded = torch.load(path, weights_only=True)
            ids: Iterable[Any] = loaded.tolist() if isinstance(loaded, torch.Tensor) else loaded
        elif path.suffix == ".json":
            ids = json.loads(read_text(path, MAX_JSON_BYTES))
        else:
            ids = read_text(path, MAX_JSON_BYTES).replace(",", " ").split()
        return {int(id_) for id_ in ids}
