"""Read untrusted pickles that hold only lists, dicts, strings, bytes, numbers and numpy arrays.

This is the standard library's unpickler with fewer instructions. A pickle may ask for a few names of numpy only, and
gets functions of this module for them, which make plain arrays and nothing else.

The base class is the unpickler written in Python, because the one in C cannot be protected from three attacks (programs
in `tests/hostile/pickles.py`): it hashes a dictionary key of nested tuples for ever, fills 2 GB for a memo index of
2^27, and makes an object of 56 bytes of each byte of the file.
"""

import mmap
import pickle
import pickletools
from collections.abc import Callable
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from anyshot.errors import as_bad_input
from anyshot.files import check_file

# A pickle may be read FREE_READS times, and once more for each BYTES_PER_READ bytes: an instruction takes one or two
# reads, and a pickle of images has one per 50 bytes. This limits the number of objects.
FREE_READS, BYTES_PER_READ = 1 << 22, 32
MAX_DEPTH = 200  # of lists in lists
INSTRUCTIONS = {
    "PROTO", "STOP", "INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT", "STRING",
    "BINSTRING", "SHORT_BINSTRING", "UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8", "BINBYTES",
    "SHORT_BINBYTES", "BINBYTES8", "NONE", "NEWTRUE", "NEWFALSE", "EMPTY_LIST", "EMPTY_DICT",
    "EMPTY_TUPLE", "LIST", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "APPEND", "APPENDS", "PUT", "BINPUT", "LONG_BINPUT",
    "MEMOIZE", "GET", "BINGET", "LONG_BINGET", "MARK", "POP", "POP_MARK", "DUP", "GLOBAL", "STACK_GLOBAL", "REDUCE",
}  # fmt: skip
"""Instructions of the standard unpickler that are used as they are, by their names in `pickletools`."""


class _RefusedError(Exception):
    """The pickle asks for something that is not on the list."""


def _make_dtype(code: Any, *_: Any) -> np.dtype:
    """Do as numpy.dtype, for plain types only; the byte order is set later."""
    code = code.decode("ascii") if isinstance(code, bytes) else code
    dtype = np.dtype(code, copy=True)
    if dtype.kind not in "biufSU" or dtype.shape:
        raise _RefusedError(f"an array of type {code!r}")
    return dtype


def _make_array(raw: Any, dtype: np.dtype, shape: Any, order: Any = "C") -> np.ndarray:
    """Make an array of bytes; a ValueError where they are not as many as the shape and the type need."""
    return np.frombuffer(raw, dtype).reshape(shape, order=order)


def _encode(text: str, encoding: str) -> bytes:
    """Do as codecs.encode, with which Python 3 writes bytes in old protocols."""
    if encoding != "latin1":
        raise _RefusedError(f"the encoding {encoding!r}")
    return text.encode("latin1")


_NUMPY = ("numpy", "numpy.core.multiarray", "numpy._core.multiarray", "numpy.core.numeric", "numpy._core.numeric")
_NUMPY_NAMES: dict[str, Callable[..., Any] | None] = {
    "ndarray": None,  # only an argument of _reconstruct
    "dtype": _make_dtype,
    "_reconstruct": lambda *_: np.empty(0),  # its state is set later
    "scalar": lambda dtype, raw: _make_array(raw, dtype, ())[()],
    "_frombuffer": _make_array,
}
_ALLOWED: dict[tuple[str, str], Callable[..., Any] | None] = {
    **{(module, name): make for module in _NUMPY for name, make in _NUMPY_NAMES.items()},
    ("_codecs", "encode"): _encode,
    ("__builtin__", "bytes"): lambda: b"",  # with which Python 3 writes empty bytes in old protocols
    ("builtins", "bytes"): lambda: b"",
}


def _limit_reads(data: mmap.mmap) -> Any:
    """Return a file of these bytes that can be read a limited number of times."""
    allowed, counter = FREE_READS + len(data) // BYTES_PER_READ, count(1)

    def limit(read: Callable[..., bytes]) -> Callable[..., bytes]:
        def read_counted(*size: int) -> bytes:
            if next(counter) > allowed:
                raise ValueError("it has too many instructions for its size")
            return read(*size)

        return read_counted

    return SimpleNamespace(read=limit(data.read), readline=limit(data.readline))


_PythonUnpickler: Any = pickle._Unpickler


class _Unpickler(_PythonUnpickler):
    """The standard unpickler in Python, with `INSTRUCTIONS` and the six of its own below only."""

    def find_class(self, module: str, name: str) -> Any:
        """Return the function for a name."""
        if (module, name) not in _ALLOWED:
            raise _RefusedError(f"{module}.{name}")
        return _ALLOWED[module, name]

    def read_bytearray(self) -> None:
        """Read a bytearray as bytes."""
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
        """Set the byte order of a type, or the contents of an empty array; no other object has a state."""
        state, target = self.stack.pop(), self.stack[-1]
        is_empty_array = isinstance(target, np.ndarray) and not target.size
        if issubclass(type(target), np.dtype):
            sizes = (target.itemsize, target.alignment) if target.kind in "SU" else (-1, -1)
            order = state[1].decode("ascii") if isinstance(state[1], bytes) else state[1]
            target.__setstate__((3, order, None, None, None, *sizes, 0))
        elif is_empty_array:
            shape, dtype, is_fortran, raw = state[-4:]  # a version comes first
            raw = raw.encode("latin1") if isinstance(raw, str) else raw
            array = _make_array(raw, dtype, shape)
            native = array.dtype.newbyteorder("=")  # with another order, the bytes would be swapped here
            target.__setstate__((1, array.shape, native, bool(is_fortran), raw))
            target.dtype = array.dtype
        else:
            raise _RefusedError("a changed object")

    def _update(self, items: list[Any]) -> None:
        for key in items[::2]:
            if not isinstance(key, str | bytes | int | float | None):  # hashing nested tuples may take for ever
                raise TypeError(f"a {type(key).__name__} is the key of a dictionary")
        if type(self.stack[-1]) is not dict:
            raise TypeError("an item is set in something that is no dictionary")
        self.stack[-1].update(zip(items[::2], items[1::2], strict=True))

    dispatch = {  # noqa: RUF012 (as in the class above it)
        **{
            ord(one.code): _PythonUnpickler.dispatch[ord(one.code)]
            for one in pickletools.opcodes
            if one.name in INSTRUCTIONS
        },
        pickle.FRAME[0]: lambda self: self.read(8),  # the size of a frame, which only speeds up reading
        pickle.BYTEARRAY8[0]: read_bytearray,
        pickle.SETITEM[0]: set_item,
        pickle.SETITEMS[0]: set_items,
        pickle.DICT[0]: make_dict,
        pickle.BUILD[0]: build,
    }


def unpickle(path: Path) -> Any:
    """Return the contents of a pickle; strings of Python 2 become bytes.

    Raises:
        BadInput: The pickle is damaged, or asks for something that is not on the list.
    """
    check_file(path)
    beyond = f"{path} was not read: it asks for a name or an instruction beyond plain lists and arrays"
    with (
        as_bad_input(Exception, f"{path} is not a pickle that can be read", "."),  # a broken one can fail in any way
        as_bad_input((IndexError, EOFError), f"{path} is not a pickle that can be read (it is cut short)."),
        as_bad_input(MemoryError, f"{path} needs more memory than there is."),
        as_bad_input((_RefusedError, KeyError), beyond, "."),
        path.open("rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data,
    ):
        value = _Unpickler(_limit_reads(data), fix_imports=False, encoding="bytes").load()
        _check_depth(value, set(), 0)
        return value


def _check_depth(value: Any, done: set[int], depth: int) -> None:
    """Raise a ValueError for lists that are nested too deeply, or hold themselves; `done` are those that are not."""
    if isinstance(value, list | dict | tuple) and id(value) not in done:
        if depth > MAX_DEPTH:
            raise ValueError("it is nested too deeply")
        for part in value.values() if isinstance(value, dict) else value:
            _check_depth(part, done, depth + 1)
        done.add(id(value))
