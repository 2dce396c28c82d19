"""Read a pickle from the internet: lists, dicts, strings, bytes, numbers and numpy arrays; nothing else can be built.

A pickle is a program. Here every name it asks for that is not on a short list ends the reading, and the names on the
list lead to inert stand-ins: an array is put together afterwards from its shape, its type and its bytes.
"""

import pickle
from pathlib import Path
from typing import Any

import numpy as np

from anyshot.errors import BadInput


class _Refused(Exception):
    """The pickle asks for something that is not on the list."""


class _Type:
    """Stands for numpy.dtype: a kind and a byte order, both plain text."""

    def __init__(self, code: Any = "", *_: Any) -> None:
        self.code, self.order = code, "="

    def __setstate__(self, state: Any) -> None:
        self.order = state[1]

    def build(self) -> np.dtype:
        code, order = (text.decode("ascii") if isinstance(text, bytes) else text for text in (self.code, self.order))
        dtype = np.dtype(code)
        if order == ">":
            dtype = dtype.newbyteorder(">")
        if dtype.kind not in "biufSU" or dtype.shape:
            raise _Refused(f"an array of type {code!r}")
        return dtype


class _Array:
    """Stands for numpy.ndarray, in the three ways that numpy writes one."""

    def __init__(self, *_: Any) -> None:
        self.state: Any = None

    def __setstate__(self, state: Any) -> None:
        self.state = state[-4:]  # shape, type, whether columns come first, bytes

    def build(self) -> np.ndarray:
        shape, dtype, fortran, raw = self.state
        if isinstance(raw, str):
            raw = raw.encode("latin1")
        flat = np.frombuffer(raw, dtype.build())
        return flat.reshape(shape, order="F" if fortran else "C")


def _array_from_buffer(raw: Any, dtype: _Type, shape: Any, order: Any) -> _Array:
    array = _Array()
    array.state = (shape, dtype, order == "F", bytes(raw))
    return array


def _scalar(dtype: _Type, raw: Any) -> _Array:
    array = _Array()
    array.state = ((), dtype, False, raw)
    return array


def _encode(text: str, encoding: str) -> bytes:
    """Stands for codecs.encode, by which Python 3 writes bytes in old protocols."""
    if encoding != "latin1":
        raise _Refused(f"the encoding {encoding!r}")
    return text.encode("latin1")


def _empty_bytes() -> bytes:
    """Stands for bytes, by which Python 3 writes empty bytes in old protocols."""
    return b""


_MODULES = ("numpy", "numpy.core.multiarray", "numpy._core.multiarray", "numpy.core.numeric", "numpy._core.numeric")
_NAMES = {
    "ndarray": _Array,
    "dtype": _Type,
    "_reconstruct": _Array,
    "scalar": _scalar,
    "_frombuffer": _array_from_buffer,
}


class _Reader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if module in _MODULES and name in _NAMES:
            return _NAMES[name]
        if (module, name) == ("_codecs", "encode"):
            return _encode
        if (module, name) in (("__builtin__", "bytes"), ("builtins", "bytes")):
            return _empty_bytes
        raise _Refused(f"{module}.{name}")


def unpickle(path: Path) -> Any:
    """The contents of a pickle; text of Python 2 comes as bytes."""
    try:
        with path.open("rb") as file:
            return _build(_Reader(file, encoding="bytes").load(), {})
    except FileNotFoundError:
        raise BadInput(f"there is no file {path}.") from None
    except _Refused as error:
        raise BadInput(
            f"{path} was not read: it asks for {error}, and only plain lists and arrays are allowed."
        ) from None
    except MemoryError:
        raise BadInput(f"{path} needs more memory than there is.") from None
    except Exception as error:  # a broken pickle can fail in any way
        raise BadInput(f"{path} is not a pickle that can be read ({error or type(error).__name__}).") from None


def _build(value: Any, done: dict[int, Any]) -> Any:
    """The value with arrays in place of their stand-ins; parts that are shared stay shared."""
    if isinstance(value, (_Array, _Type, list, dict, tuple)) and id(value) not in done:
        if isinstance(value, (_Array, _Type)):
            built: Any = value.build()
        elif isinstance(value, dict):
            built = {key: _build(part, done) for key, part in value.items()}
        else:
            built = type(value)(_build(part, done) for part in value)
        done[id(value)] = built
    return done.get(id(value), value)
