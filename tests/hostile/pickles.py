"""Pickles: programs that ask for code, memory or time, in the caches of mini-ImageNet; given to `pack mini`."""

import os
import pickle
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from hostile import good as goods
from hostile import spoil
from hostile.corpus import Case
from hostile.good import Good

CACHE = "mini/mini-imagenet-cache-train.pkl"


class Call:
    """Unpickled by the standard reader, this calls a function."""

    def __init__(self, call: Any, *arguments: Any) -> None:
        self.call, self.arguments = call, arguments

    def __reduce__(self) -> tuple:
        return self.call, self.arguments


CALLS = {
    "makes a folder": (os.mkdir, "ran"),
    "runs a command": (os.system, "mkdir ran"),
    "starts a process": (subprocess.call, ["mkdir", "ran"]),
    "evaluates": (eval, "__import__('os').mkdir('ran')"),
    "opens a file": (open, "ran", "w"),
    "reads an array from a file": (np.fromfile, "/etc/passwd"),
    "loads an array": (np.load, "x.npy", None, True),
    "asks for an attribute": (getattr, "x", "upper"),
    "unpickles once more": (pickle.loads, pickle.dumps(1)),
}


def machine() -> dict[str, bytes]:
    """Programs for the small machine that a pickle is."""
    deep_tuple = b"\x80\4)" + b"\x85" * 100_000 + b"."
    shared = b"\x80\4)" + b"2\x86" * 60 + b"."  # a tuple of itself twice, sixty times: 2^60 parts
    doubled_list = (
        b"\x80\4]\x94"
        + b"(h\0h\0l\x94"
        + b"".join(b"(h" + bytes([n]) + b"h" + bytes([n]) + b"l\x94" for n in range(1, 60))
        + b"."
    )
    return {
        "nothing but a stop": b".",
        "no stop": b"\x80\4]",
        "an empty stack": b"\x80\0040.",
        "a long that is 2^31 bytes long": b"\x80\2\x8b" + struct.pack("<i", (1 << 31) - 1) + b"x.",
        "a long of negative length": b"\x80\2\x8b" + struct.pack("<i", -5) + b"x.",
        "bytes of 2^60": b"\x80\4\x8e" + struct.pack("<Q", 1 << 60) + b"x.",
        "a bytearray of 2^63": b"\x80\5\x96" + struct.pack("<Q", 1 << 63) + b"x.",
        "text of 2^40": b"\x80\4\x8d" + struct.pack("<Q", 1 << 40) + b"x.",
        "a frame of 2^62": b"\x80\4\x95" + struct.pack("<Q", 1 << 62) + b"N.",
        "a place in the memo at 2^31": b"\x80\4Nr" + struct.pack("<I", (1 << 31) - 1) + b".",
        "a place in the memo at 10^18": b"N" + b"p1000000000000000000\n.",
        "a negative place in the memo": b"Np-1\n.",
        "a place that is not there": b"\x80\4h\x07.",
        "a tuple 100,000 deep": deep_tuple,
        "a list 100,000 deep": b"\x80\4" + b"]" * 100_000 + b"a" * 99_999 + b".",
        "a million marks": b"\x80\4" + b"(" * 1_000_000 + b".",
        "a tuple shared sixty times": shared,
        "lists shared sixty times": doubled_list,
        "a dictionary with a tuple as key": b"\x80\4}" + b")" + b"2\x86" * 60 + b"Ns.",
        "a list that holds itself": b"\x80\4]\x94h\0a.",
        "a dictionary of half a pair": b"\x80\4}(K\1u.",
        "an append to a number": b"\x80\4K\1K\2a.",
        "a call of a number": b"\x80\4K\1)R.",
        "a name called with a number": b"\x80\2cnumpy\nndarray\nK\1R.",
        "a build of a list": b"\x80\4]K\1b.",
        "an array of 2^62": _array((1 << 62,), "f8", b""),
        "an array of negative sides": _array((-1, 3), "f8", bytes(24)),
        "an array of too few bytes": _array((100, 100), "f8", bytes(24)),
        "an array of objects": _array((3,), "O", bytes(24)),
        "an array of an unknown type": _array((3,), "zzz", bytes(24)),
        "an array of text 400 million wide": _array((1,), "U400000000", bytes(24)),
        "an array of nested types": _array((1,), "(1000,1000)f8", bytes(24)),
        "a type with fields": b"\x80\2cnumpy\ndtype\n(]U\1aU\2f8\x86aK\0K\1tR.",
        "a persistent id": b"\x80\2K\1Q.",
        "an extension": b"\x80\2\x82\1.",
        "a new object": b"\x80\2cnumpy\nndarray\n)\x81.",
        "an instance": b"(icollections\nOrderedDict\n.",
        "a set": b"\x80\4\x8f.",
        "a number of 5,000 digits": b"L" + b"9" * 5_000 + b"L\n.",
        "a number of 10,000,000 digits": b"I" + b"9" * 10_000_000 + b"\n.",
        "a text with an unfinished quote": b"S'abc\n.",
        "a text that calls": b"S__import__('os').mkdir('ran')\n.",
        "text that is no UTF-8": b"\x80\4\x8c\2\xff\xfe.",
        "ten million instructions": b"\x80\4" + b"N0" * 5_000_000 + b"N.",
    }


def _array(shape: tuple[int, ...], kind: str, data: bytes) -> bytes:
    """An array of any shape and type, as numpy writes it."""
    sides = b"(" + b"".join(b"L%dL\n" % side for side in shape) + b"t"
    dtype = b"cnumpy\ndtype\nU" + bytes([len(kind)]) + kind.encode() + b"K\0K\1\x87R"
    state = b"(K\1" + sides + dtype + b"\x89U" + bytes([len(data)]) + data + b"tb"
    return b"\x80\2cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\0\x85U\1b\x87R" + state + b"."


def structures() -> dict[str, Any]:
    """Plain values that are no cache."""
    cache = goods.mini_cache("train", 64)
    images, numbers = cache["image_data"], cache["class_dict"]
    return {
        "a list": [1, 2, 3],
        "a number": 7,
        "an empty dictionary": {},
        "no classes": {"image_data": images},
        "no images": {"class_dict": numbers},
        "images as a list": {"image_data": images.tolist(), "class_dict": numbers},
        "images of numbers with a point": {"image_data": images / 255, "class_dict": numbers},
        "images in three dimensions": {"image_data": images[..., 0], "class_dict": numbers},
        "classes as a list": {"image_data": images, "class_dict": [1, 2]},
        "an image that is not there": {"image_data": images, "class_dict": {**numbers, "train0": [10**6]}},
        "a negative image": {"image_data": images, "class_dict": {**numbers, "train0": [-1]}},
        "numbers of text": {"image_data": images, "class_dict": {**numbers, "train0": ["x"]}},
        "numbers that are no list": {"image_data": images, "class_dict": {**numbers, "train0": 5}},
        "numbers that are infinite": {"image_data": images, "class_dict": {**numbers, "train0": [float("inf")]}},
        "a class too few": {"image_data": images, "class_dict": dict(list(numbers.items())[1:])},
        "labels as a number": {"data": images, "labels": 5},
        "labels of lists": {"data": images, "labels": [[1]] * len(images)},
        "too many labels": {"data": images, "labels": list(range(len(images))) * 2},
    }


def cases(good: Good) -> Iterator[Case]:
    for words, (call, *arguments) in CALLS.items():
        for protocol in (0, 2, 4):
            value = {"image_data": Call(call, *arguments), "class_dict": {}}
            yield cached(good, f"a pickle that {words} (protocol {protocol})", pickle.dumps(value, protocol))
    for words, program in machine().items():
        yield cached(good, f"a pickle of {words}", program)
    for words, value in structures().items():
        yield cached(good, f"a cache that is {words}", pickle.dumps(value, 2))
    whole = (good / CACHE).read_bytes()
    for words in ("empty", "one byte", "cut in half", "zeros", "random bytes", "a text", "a picture", "an archive"):
        yield cached(good, f"a cache: {words}", spoil.BROKEN[words](whole))
    for words, change in spoil.CHANGED.items():
        yield cached(good, f"a cache: {words}", change(whole), may_do=True)
    for words, how in spoil.PLACES.items():
        yield Case(f"a cache: {words}", lambda folder, how=how: _placed(good, folder, how))


def cached(good: Good, name: str, data: bytes, may_do: bool = False) -> Case:
    def make(folder: Path) -> list[str]:
        good.copy("mini", folder)
        (folder / CACHE).write_bytes(data)
        return ["pack", "mini", "mini", "-o", "store", "--no-doctor"]

    return Case(name, make, may_do)


def _placed(good: Good, folder: Path, how) -> list[str]:
    good.copy("mini", folder)
    spoil.replaced(folder / CACHE, how)
    return ["pack", "mini", "mini", "-o", "store", "--no-doctor"]
