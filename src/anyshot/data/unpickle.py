"""Read a pickle from the internet: lists, dicts, strings, bytes, numbers and numpy arrays; nothing else can be built.

This is the standard library's unpickler with fewer instructions. A name that a pickle asks for must be on a short list,
and even those names lead to inert stand-ins, of which arrays are put together afterwards: a shape, a type and bytes.

It is the unpickler that is written in Python, because the one in C cannot be held to three limits (measured with the
programs of `tests/hostile/pickles.py`): a dictionary key of tuples in tuples is hashed for ever, a memo index of 2^27
fills 2 GB, and a byte of the file may become an object of 56 bytes.
"""

import mmap
import pickle
import pickletools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from anyshot.errors import BadInput, first_line
from anyshot.files import check_file

FREE_READS, BYTES_PER_READ = 1 << 22, 32  # reads of the file that are allowed: images take two per hundred bytes
MAX_DEPTH = 200  # of lists in lists
INSTRUCTIONS = {
    "PROTO", "STOP", "INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT", "STRING",
    "BINSTRING", "SHORT_BINSTRING", "UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8", "BINBYTES",
    "SHORT_BINBYTES", "BINBYTES8", "NONE", "NEWTRUE", "NEWFALSE", "EMPTY_LIST", "EMPTY_DICT",
    "EMPTY_TUPLE", "LIST", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "APPEND", "APPENDS", "PUT", "BINPUT", "LONG_BINPUT",
    "MEMOIZE", "GET", "BINGET", "LONG_BINGET", "MARK", "POP", "POP_MARK", "DUP", "GLOBAL", "STACK_GLOBAL", "REDUCE",
}  # fmt: skip
"""Instructions of the standard unpickler, by their names in `pickletools`; `_Unpickler` has its own for six more."""


class _RefusedError(Exception):
    """The pickle asks for something that is not on the list."""


class _Type:
    """Stands for numpy.dtype: a kind and a byte order, both plain text."""

    def __init__(self, code: Any = "", *_: Any) -> None:
        self.code, self.order = code, "="

    def set_state(self, state: Any) -> None:
        self.order = state[1]

    def build(self) -> np.dtype:
        code, order = (text.decode("ascii") if isinstance(text, bytes) else text for text in (self.code, self.order))
        dtype = np.dtype(code)
        if order == ">":
            dtype = dtype.newbyteorder(">")
        if dtype.kind not in "biufSU" or dtype.shape:
            raise _RefusedError(f"an array of type {code!r}")
        return dtype


class _Array:
    """Stands for numpy.ndarray, in the three ways that numpy writes one."""

    def __init__(self, *_: Any) -> None:
        self.state: Any = None

    def set_state(self, state: Any) -> None:
        self.state = state[-4:]  # shape, type, whether columns come first, bytes

    def build(self) -> np.ndarray:
        shape, dtype, fortran, raw = self.state
        if isinstance(raw, str):
            raw = raw.encode("latin1")
        flat = np.frombuffer(raw, dtype.build())
        return flat.reshape(shape, order="F" if fortran else "C")


def _array_from_buffer(raw: Any, dtype: _Type, shape: Any, order: Any) -> _Array:
    array = _Array()
    array.state = (shape, dtype, order == "F", bytes(raw) if isinstance(raw, bytes | bytearray) else b"")
    return array


def _scalar(dtype: _Type, raw: Any) -> _Array:
    array = _Array()
    array.state = ((), dtype, False, raw)
    return array


def _encode(text: str, encoding: str) -> bytes:
    """Stand for codecs.encode, by which Python 3 writes bytes in old protocols."""
    if encoding != "latin1":
        raise _RefusedError(f"the encoding {encoding!r}")
    return text.encode("latin1")


_NUMPY = ("numpy", "numpy.core.multiarray", "numpy._core.multiarray", "numpy.core.numeric", "numpy._core.numeric")
_NUMPY_NAMES: dict[str, Callable[..., Any]] = {
    "ndarray": _Array,
    "dtype": _Type,
    "_reconstruct": _Array,
    "scalar": _scalar,
    "_frombuffer": _array_from_buffer,
}
_ALLOWED: dict[tuple[str, str], Callable[..., Any]] = {
    **{(module, name): make for module in _NUMPY for name, make in _NUMPY_NAMES.items()},
    ("_codecs", "encode"): _encode,
    ("__builtin__", "bytes"): lambda: b"",  # by which Python 3 writes empty bytes in old protocols
    ("builtins", "bytes"): lambda: b"",
}


class _File:
    """The bytes of a pickle; counts how often they are read, which bounds the number of objects."""

    def __init__(self, data: mmap.mmap) -> None:
        self._data, self._reads = data, FREE_READS + len(data) // BYTES_PER_READ

    def read(self, size: int) -> bytes:
        self._count()
        return self._data.read(size)

    def readline(self) -> bytes:
        self._count()
        return self._data.readline()

    def _count(self) -> None:
        self._reads -= 1
        if self._reads < 0:
            raise ValueError("it has too many instructions for its size")


_PythonUnpickler: Any = pickle._Unpickler


class _Unpickler(_PythonUnpickler):
    """The standard unpickler in Python, with the instructions of the list only."""

    def find_class(self, module: str, name: str) -> Any:
        """Return the stand-in for a name."""
        if (module, name) not in _ALLOWED:
            raise _RefusedError(f"{module}.{name}")
        return _ALLOWED[module, name]

    def read_bytearray(self) -> None:
        """Read mutable bytes as bytes."""
        self.append(self.read(int.from_bytes(self.read(8), "little")))

    def set_item(self) -> None:
        """Set one item of a dictionary."""
        value, key = self.stack.pop(), self.stack.pop()
        self._update([key, value])

    def set_items(self) -> None:
        """Set the items above the mark."""
        self._update(self.pop_mark())

    def make_dict(self) -> None:
        """Make a dictionary of the items above the mark."""
        items = self.pop_mark()
        self.append({})
        self._update(items)

    def build(self) -> None:
        """Complete an array or a type; nothing else can be changed."""
        state = self.stack.pop()
        if not isinstance(self.stack[-1], _Array | _Type):
            raise _RefusedError("a changed object")
        self.stack[-1].set_state(state)

    def _update(self, items: list[Any]) -> None:
        for key in items[::2]:
            if not isinstance(key, str | bytes | int | float | None):  # the hash of nested tuples may take for ever
                raise TypeError(f"a {type(key).__name__} is the key of a dictionary")
        if type(self.stack[-1]) is not dict:
            raise TypeError("an item is set of what is no dictionary")
        self.stack[-1].update(zip(items[::2], items[1::2], strict=True))

    dispatch = {  # noqa: RUF012 (as in the class above it)
        **{
            ord(one.code): _PythonUnpickler.dispatch[ord(one.code)]
            for one in pickletools.opcodes
            if one.name in INSTRUCTIONS
        },
        pickle.FRAME[0]: lambda self: self.read(8),  # a size that the reader need not know
        pickle.BYTEARRAY8[0]: read_bytearray,
        pickle.SETITEM[0]: set_item,
        pickle.SETITEMS[0]: set_items,
        pickle.DICT[0]: make_dict,
        pickle.BUILD[0]: build,
    }


def unpickle(path: Path) -> Any:
    """Return the contents of a pickle; text of Python 2 comes as bytes.

    Raises:
        BadInput: The pickle is damaged, or asks for something that is not on the list.
    """
    check_file(path)
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _build(_Unpickler(_File(data), fix_imports=False, encoding="bytes").load(), {}, 0)
    except _RefusedError as error:
        raise BadInput(
            f"{path} was not read: it asks for {error}, and only plain lists and arrays are allowed."
        ) from None
    except MemoryError:
        raise BadInput(f"{path} needs more memory than there is.") from None
    except KeyError as error:
        raise BadInput(f"{path} was not read: its instruction {error} is not one of plain lists and arrays.") from None
    except (IndexError, EOFError):
        raise BadInput(f"{path} is not a pickle that can be read (it is cut short).") from None
    except Exception as error:  # a broken pickle can fail in any way
        raise BadInput(f"{path} is not a pickle that can be read ({first_line(error)}).") from None


def _build(value: Any, done: dict[int, Any], depth: int) -> Any:
    """Return the value with arrays in place of their stand-ins; parts that are shared stay shared."""
    if depth > MAX_DEPTH:
        raise ValueError("it is nested too deeply")
    if callable(value):
        raise _RefusedError("a name that is not called")
    if isinstance(value, (_Array, _Type, list, dict, tuple)) and id(value) not in done:
        if isinstance(value, (_Array, _Type)):
            built: Any = value.build()
        elif isinstance(value, dict):
            built = {key: _build(part, done, depth + 1) for key, part in value.items()}
        else:
            built = type(value)(_build(part, done, depth + 1) for part in value)
        done[id(value)] = built
    return done.get(id(value), value)
