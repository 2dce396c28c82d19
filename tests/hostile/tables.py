"""Tables of images and the text files of benchmarks; given to `pack table` and `pack cub`."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from hostile import spoil
from hostile.corpus import Case
from hostile.good import Good

ROW = "photos/ant/0.png,ant\n"
TABLES: dict[str, str | bytes] = {
    "no rows": "path,label\n",
    "no columns of these names": "a,b\n1,2\n",
    "a column too few in a row": "path,label\n" + ROW + "photos/ant/1.png\n",
    "a column too many in a row": "path,label\n" + ROW + "photos/ant/1.png,ant,x\n",
    "two columns of one name": "path,path,label\na,b,c\n",
    "an open quote": 'path,label\n"photos/ant/0.png,ant\n',
    "a quote in the middle": 'path,label\nphotos/"ant"/0.png,"ant"x\n',
    "a zero byte": b"path,label\nphotos/ant/\0.png,ant\n",
    "Latin-1": "path,label\nphotos/ant/0.png,fourmi géante\n".encode("latin1"),
    "UTF-16": "path,label\nphotos/ant/0.png,ant\n".encode("utf-16"),
    "empty labels": "path,label\nphotos/ant/0.png,\n",
    "a path out of its folder": "path,label\n../../../etc/passwd,ant\n",
    "an absolute path": "path,label\n/etc/passwd,ant\n",
    "files that are not there": "path,label\nphotos/none.png,ant\n",
    "a folder for a file": "path,label\nphotos/ant,ant\n",
    "a pipe for a file": "path,label\npipe.png,ant\n",
    "an endless file": "path,label\nendless.png,ant\n",
    "a split that is none": "path,label,split\nphotos/ant/0.png,ant,zzz\n",
    "a field of a megabyte": "path,label\nphotos/ant/0.png," + "x" * 1_000_000 + "\n",
    "a row of 100,000 columns": ",".join(map(str, range(100_000))) + "\n" + ",".join("x" * 100_000) + "\n",
    "nothing but commas": "," * 1000 + "\n" + "," * 1000 + "\n",
    "a web page": "<!doctype html>\n<html><body>not, found</body></html>\n",
}
MAY = ("a field of a megabyte",)


def table(
    good: Good, words: str, name: str, data: str | bytes, more: tuple[str, ...] = (), may_do: bool = False
) -> Case:
    def make(folder: Path) -> list[str]:
        good.copy("photos", folder)
        os.mkfifo(folder / "pipe.png")
        (folder / "endless.png").symlink_to("/dev/zero")
        (folder / name).write_bytes(data.encode() if isinstance(data, str) else data)
        return ["pack", "table", name, "-o", "store", "--no-doctor", *more]

    return Case(f"{name}: {words}", make, may_do)


def cases(good: Good) -> Iterator[Case]:
    for words, data in TABLES.items():
        yield table(good, words, "table.csv", data, may_do=words in MAY)
    for words in ("no rows", "a column too few in a row", "empty labels", "a path out of its folder", "UTF-16"):
        data = TABLES[words]
        tabs = data.replace(b",", b"\t") if isinstance(data, bytes) else data.replace(",", "\t")
        yield table(good, words, "table.tsv", tabs)
    for name in ("table.csv", "table.tsv", "table.parquet"):
        whole = (good / name).read_bytes()
        for words in ("empty", "one byte", "zeros", "all ones", "random bytes", "a text", "a picture", "an archive"):
            yield table(good, words, name, spoil.BROKEN[words](whole))
        for words, change in spoil.CHANGED.items():
            yield table(good, words, name, change(whole), may_do=True)
        for words, place in spoil.PLACES.items():
            yield Case(f"{name}: {words}", lambda folder, name=name, place=place: _placed(good, folder, name, place))
    whole = (good / "table.csv").read_text()
    for words, more in {
        "a column that is none": ("--path-column", "zzz"),
        "a label column that is none": ("--label-column", "zzz"),
        "a split column that is none": ("--split-column", "zzz"),
        "labels for splits": ("--split-column", "label"),
        "a root that is none": ("--root", "zzz"),
        "a root that is a file": ("--root", "photos/ant/0.png"),
    }.items():
        yield table(good, words, "table.csv", whole, more)
    yield from _cub(good)


def _placed(good: Good, folder: Path, name: str, place: Callable[[Path], Any]) -> list[str]:
    good.copy("photos", folder)
    place(folder / name)
    return ["pack", "table", name, "-o", "store", "--no-doctor"]


def _cub(good: Good) -> Iterator[Case]:
    """The text files of CUB."""

    def cub(words: str, name: str, change: Callable[[bytes], bytes]) -> Case:
        def make(folder: Path) -> list[str]:
            copy = good.copy("cub", folder)
            (copy / name).write_bytes(change((copy / name).read_bytes()))
            return ["pack", "cub", "cub", "--box", "-o", "store", "--no-doctor"]

        return Case(f"{name}: {words}", make)

    names = ("images.txt", "image_class_labels.txt", "bounding_boxes.txt")
    for name in names:
        for words in ("empty", "zeros", "random bytes", "a picture", "cut in half"):
            yield cub(words, name, spoil.BROKEN[words])
        yield cub("lines of one word", name, lambda data: b"\n".join(line.split()[0] for line in data.splitlines()))
        for words, place in spoil.PLACES.items():

            def make(folder: Path, name: str = name, place: Callable[[Path], Any] = place) -> list[str]:
                spoil.replaced(good.copy("cub", folder) / name, place)
                return ["pack", "cub", "cub", "--box", "-o", "store", "--no-doctor"]

            yield Case(f"{name}: {words}", make)
    yield cub("a path out of its folder", "images.txt", lambda data: data.replace(b"001.bird", b"../../../.."))
    yield cub("labels of text", "image_class_labels.txt", lambda data: data.replace(b" 7\n", b" x\n"))
    yield cub("boxes of text", "bounding_boxes.txt", lambda data: data.replace(b"8.0", b"x"))
    yield cub("boxes of three numbers", "bounding_boxes.txt", lambda data: data.replace(b" 8.0", b""))
    yield cub("boxes that are not numbers", "bounding_boxes.txt", lambda data: data.replace(b"8.0", b"nan"))
