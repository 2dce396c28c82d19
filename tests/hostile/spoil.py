"""Ways to spoil the bytes of any file, what lies in a file's place, a value of JSON, the tensors of safetensors."""

import contextlib
import gzip
import io
import json
import os
import pickle
import shutil
import struct
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from helpers import image_files

Spoil = Callable[[bytes], bytes]


def _zip() -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as file:
        file.writestr("a/b.txt", "hello")
    return out.getvalue()


def _random(data: bytes) -> bytes:
    return np.random.default_rng(len(data)).bytes(max(len(data), 64))


# What is certainly not what it was.
BROKEN: dict[str, Spoil] = {
    "empty": lambda data: b"",
    "one byte": lambda data: data[:1],
    "cut after ten bytes": lambda data: data[:10],
    "cut in half": lambda data: data[: len(data) // 2],
    "zeros": lambda data: bytes(len(data)),
    "all ones": lambda data: b"\xff" * max(len(data), 64),
    "random bytes": _random,
    "a text": lambda data: b"hello, this is some text.\n" * 3,
    "a web page": lambda data: b"<!doctype html><html><body>404 Not Found</body></html>",
    "a picture": lambda data: image_files.encoded(5),
    "an archive": lambda data: _zip(),
    "a gzip file": lambda data: gzip.compress(data),
    "a pickle": lambda data: pickle.dumps({"a": [1, 2, 3]}),
    "a line of zeros before it": lambda data: bytes(64) + data,
}


def flips(seed: int, many: int = 1) -> Spoil:
    """Some bytes changed: what comes of it may be fine."""

    def spoil(data: bytes) -> bytes:
        rng = np.random.default_rng([seed, len(data)])
        spoiled = bytearray(data)
        for place in rng.integers(0, len(data), many):
            spoiled[place] ^= int(rng.integers(1, 256))
        return bytes(spoiled)

    return spoil


# What may be fine, as when a byte that nobody reads has changed.
CHANGED: dict[str, Spoil] = {
    "without its last byte": lambda data: data[:-1],
    "with a byte more": lambda data: data + b"\0",
    "twice": lambda data: data + data,
    "halves swapped": lambda data: data[len(data) // 2 :] + data[: len(data) // 2],
    "a byte left out": lambda data: data[: len(data) // 3] + data[len(data) // 3 + 1 :],
    **{f"a byte changed ({seed})": flips(seed) for seed in range(4)},
    **{f"ten bytes changed ({seed})": flips(seed, 10) for seed in range(2)},
}


def _sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 40)


# What lies where a file was.
PLACES: dict[str, Callable[[Path], Any]] = {
    "gone": lambda path: None,
    "a folder": lambda path: path.mkdir(),
    "a pipe": lambda path: os.mkfifo(path),
    "a link to nowhere": lambda path: path.symlink_to("nowhere"),
    "a link to itself": lambda path: path.symlink_to(path.name),
    "a link to an endless file": lambda path: path.symlink_to("/dev/zero"),
    "a terabyte of nothing": _sparse,
}


def replaced(path: Path, how: Callable[[Path], Any]) -> None:
    """Put something else in a file's place."""
    with contextlib.suppress(FileNotFoundError):
        path.unlink() if not path.is_dir() else shutil.rmtree(path)
    how(path)


DEEP = 200_000
# JSON that is something else than an object with names.
JSONS: dict[str, bytes] = {
    "null": b"null",
    "a number": b"17",
    "a list": b"[1, 2, 3]",
    "a text": b'"hello"',
    "an empty object": b"{}",
    "nested lists": b"[" * DEEP + b"]" * DEEP,
    "nested objects": b'{"a":' * DEEP + b"1" + b"}" * DEEP,
    "a number of 10,000 digits": b'{"format": ' + b"9" * 10_000 + b"}",
    "Latin-1": '{"é": "ü"}'.encode("latin1"),
    "a lone surrogate": b'{"class_names": ["\\ud800"]}',
    "two values": b"{} {}",
    "a comment": b"// hello\n{}",
}
# In place of a value.
VALUES: dict[str, Any] = {
    "null": None,
    "a text": "x",
    "a list": [],
    "an object": {},
    "minus one": -1,
    "a huge number": 10**30,
    "not a number": float("nan"),
    "nested": [[[[1]]]],
}


def changed_keys(path: Path, skip: tuple[str, ...] = ()) -> Iterator[tuple[str, Callable[[Path], None]]]:
    """Each key of a JSON file taken away, or with another value; a name and what does it to a copy."""
    for key in json.loads(path.read_text(encoding="utf-8")):
        if key not in skip:
            yield f"without {key}", lambda copy, key=key: _edit(copy, lambda value: value.pop(key))
            for words, other in VALUES.items():
                yield (
                    f"{words} as {key}",
                    lambda copy, key=key, other=other: _edit(copy, lambda value: value.update({key: other})),
                )


def _edit(path: Path, change: Callable[[dict], Any]) -> None:
    value = json.loads(path.read_text(encoding="utf-8"))
    change(value)
    path.write_text(json.dumps(value), encoding="utf-8")


def edit_json(path: Path, **changes: Any) -> None:
    """Set values in a JSON file."""
    _edit(path, lambda value: value.update(changes))


# ---------------------------------------------------------------------------------------------------------- safetensors


def edit_header(path: Path, change: Callable[[dict], Any]) -> None:
    """Change what the head of a safetensors file says, and nothing else."""
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    change(header)
    words = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(words)) + words + data[8 + size :])


def edit_tensors(path: Path, change: Callable[[dict], Any]) -> None:
    """Change the tensors of a safetensors file, as a dictionary, its words staying."""
    from safetensors import safe_open
    from safetensors.torch import save_file

    with safe_open(path, framework="pt") as file:
        tensors, words = {name: file.get_tensor(name) for name in file.keys()}, file.metadata()  # noqa: SIM118
    change(tensors)
    save_file({name: value.contiguous() for name, value in tensors.items()}, path, words)
