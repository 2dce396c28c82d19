"""Read a pickle from the internet: lists, dicts, strings, bytes, numbers and numpy arrays; nothing else can be built.

A pickle is a program for a small machine with a stack. Here is that machine without the instructions that load code
(Python's `pickletools` reads each instruction and what follows it, and runs none):
every name that a pickle asks for and that is not on a short list ends the reading, and the names on the list lead to
inert stand-ins, from which an array is put together afterwards: its shape, its type and its bytes. Nothing is believed:
lengths are compared with what is left of the file, keys are plain, and there is an end to instructions and nesting.
"""

import codecs
import mmap
import pickletools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from anyshot.errors import BadInput
from anyshot.files import check_file

FREE_STEPS, BYTES_PER_STEP = 1 << 22, 64  # instructions: images take one per hundred bytes
MOST_MARKS = 1000
MOST_DEPTH = 200  # of lists in lists


class _Refused(Exception):
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
            raise _Refused(f"an array of type {code!r}")
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
    """Stands for codecs.encode, by which Python 3 writes bytes in old protocols."""
    if encoding != "latin1":
        raise _Refused(f"the encoding {encoding!r}")
    return text.encode("latin1")


def _empty_bytes() -> bytes:
    """Stands for bytes, by which Python 3 writes empty bytes in old protocols."""
    return b""


_NUMPY = ("numpy", "numpy.core.multiarray", "numpy._core.multiarray", "numpy.core.numeric", "numpy._core.numeric")
_NUMPY_NAMES: dict[str, Callable[..., Any]] = {
    "ndarray": _Array,
    "dtype": _Type,
    "_reconstruct": _Array,
    "scalar": _scalar,
    "_frombuffer": _array_from_buffer,
}
_OTHERS: dict[tuple[str, str], Callable[..., Any]] = {
    ("_codecs", "encode"): _encode,
    ("__builtin__", "bytes"): _empty_bytes,
    ("builtins", "bytes"): _empty_bytes,
}


class _Name:
    """A name from the list, on the stack. (Not the stand-in itself: the pickle could else change it.)"""

    def __init__(self, module: str, name: str) -> None:
        if module in _NUMPY and name in _NUMPY_NAMES:
            self.make = _NUMPY_NAMES[name]
        elif (module, name) in _OTHERS:
            self.make = _OTHERS[module, name]
        else:
            raise _Refused(f"{module}.{name}")


class _Machine:
    """Runs one pickle, an instruction after the other."""

    def __init__(self, data: Any) -> None:
        self.data = data
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}

    def run(self) -> Any:
        most = FREE_STEPS + len(self.data) // BYTES_PER_STEP
        for _ in range(most):
            code = self.data.read(1)
            if code == b".":
                return self.stack.pop()
            if not code:
                raise IndexError
            if code not in _INSTRUCTIONS:
                raise _Refused(f"the instruction {code!r}")
            action, follows = _INSTRUCTIONS[code]
            action(self, *(() if follows is None else (follows.reader(self.data),)))
        raise ValueError(f"it takes more than {most} instructions")

    def above_mark(self) -> list[Any]:
        start = self.marks.pop()
        above = self.stack[start:]
        del self.stack[start:]
        return above

    # ---------------------------------------------------------------------------------------------------- instructions

    def push(self, value: Any) -> None:
        self.stack.append(value)

    def string(self) -> None:
        self.push(codecs.escape_decode(pickletools.read_stringnl(self.data, decode=False))[0])

    def mark(self) -> None:
        if len(self.marks) >= MOST_MARKS:
            raise ValueError("it is nested too deeply")
        self.marks.append(len(self.stack))

    def memoize(self, index: int | None = None) -> None:
        self.memo[len(self.memo) if index is None else index] = self.stack[-1]

    def recall(self, index: int) -> None:
        self.stack.append(self.memo[index])

    def gather(self, many: int) -> None:
        start = len(self.stack) - many
        if start < 0:
            raise IndexError
        self.stack[start:] = [tuple(self.stack[start:])]

    def append(self) -> None:
        value = self.stack.pop()
        _a(list, self.stack[-1]).append(value)

    def appends(self) -> None:
        values = self.above_mark()
        _a(list, self.stack[-1]).extend(values)

    def set_item(self) -> None:
        value, key = self.stack.pop(), self.stack.pop()
        _a(dict, self.stack[-1])[_key(key)] = value

    def set_items(self) -> None:
        values = self.above_mark()
        _a(dict, self.stack[-1]).update(_pairs(values))

    def stack_name(self) -> None:
        name, module = self.stack.pop(), self.stack.pop()
        self.stack.append(_Name(str(module), str(name)))

    def call(self) -> None:
        arguments, name = self.stack.pop(), self.stack.pop()
        self.stack.append(_a(_Name, name).make(*_a(tuple, arguments)))

    def build(self) -> None:
        state = self.stack.pop()
        if not isinstance(self.stack[-1], _Array | _Type):
            raise _Refused("a changed object")
        self.stack[-1].set_state(_a(tuple, state))


def _a(kind: type, value: Any) -> Any:
    if type(value) is not kind:
        raise TypeError(f"a {type(value).__name__} lies where a {kind.__name__} belongs")
    return value


def _key(key: Any) -> Any:
    """A key of a dictionary; of tuples in tuples a hash may take for ever."""
    if not isinstance(key, str | bytes | int | float | None):
        raise TypeError(f"a {type(key).__name__} is the key of a dictionary")
    return key


def _pairs(values: list[Any]) -> dict[Any, Any]:
    return {_key(key): value for key, value in zip(values[::2], values[1::2], strict=True)}


_NUMBERS = ("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT")
_TEXTS = ("UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8")
_BYTES = ("BINBYTES", "SHORT_BINBYTES", "BINBYTES8")
# What Python's own list of instructions calls them; it also says how to read what follows one.
_ACTIONS: dict[str, Callable[..., Any]] = {
    **dict.fromkeys(("PROTO", "FRAME"), lambda machine, _: None),
    **dict.fromkeys((*_NUMBERS, *_TEXTS, *_BYTES), _Machine.push),
    **dict.fromkeys(("BINSTRING", "SHORT_BINSTRING"), lambda machine, text: machine.push(text.encode("latin1"))),
    "BYTEARRAY8": lambda machine, array: machine.push(bytes(array)),
    "NONE": lambda machine: machine.push(None),
    "NEWTRUE": lambda machine: machine.push(True),
    "NEWFALSE": lambda machine: machine.push(False),
    "EMPTY_LIST": lambda machine: machine.push([]),
    "EMPTY_DICT": lambda machine: machine.push({}),
    "EMPTY_TUPLE": lambda machine: machine.push(()),
    **dict.fromkeys(("PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"), _Machine.memoize),
    **dict.fromkeys(("GET", "BINGET", "LONG_BINGET"), _Machine.recall),
    "TUPLE1": lambda machine: machine.gather(1),
    "TUPLE2": lambda machine: machine.gather(2),
    "TUPLE3": lambda machine: machine.gather(3),
    "MARK": _Machine.mark,
    "POP": lambda machine: machine.stack.pop(),
    "POP_MARK": _Machine.above_mark,
    "DUP": lambda machine: machine.push(machine.stack[-1]),
    "TUPLE": lambda machine: machine.push(tuple(machine.above_mark())),
    "LIST": lambda machine: machine.push(machine.above_mark()),
    "DICT": lambda machine: machine.push(_pairs(machine.above_mark())),
    "APPEND": _Machine.append,
    "APPENDS": _Machine.appends,
    "SETITEM": _Machine.set_item,
    "SETITEMS": _Machine.set_items,
    "GLOBAL": lambda machine, names: machine.push(_Name(*names.split(" ", 1))),
    "STACK_GLOBAL": _Machine.stack_name,
    "REDUCE": _Machine.call,
    "BUILD": _Machine.build,
}
_INSTRUCTIONS: dict[bytes, tuple[Callable[..., Any], Any]] = {
    one.code.encode("latin1"): (_ACTIONS[one.name], one.arg) for one in pickletools.opcodes if one.name in _ACTIONS
}
_INSTRUCTIONS[b"S"] = _Machine.string, None  # between quotes, of bytes that need not be text


def unpickle(path: Path) -> Any:
    """The contents of a pickle; text of Python 2 comes as bytes."""
    check_file(path)
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _build(_Machine(data).run(), {}, 0)
    except _Refused as error:
        raise BadInput(
            f"{path} was not read: it asks for {error}, and only plain lists and arrays are allowed."
        ) from None
    except MemoryError:
        raise BadInput(f"{path} needs more memory than there is.") from None
    except IndexError:
        raise BadInput(f"{path} is not a pickle that can be read (it is cut short).") from None
    except Exception as error:  # a broken pickle can fail in any way
        raise BadInput(f"{path} is not a pickle that can be read ({str(error) or type(error).__name__}).") from None


def _build(value: Any, done: dict[int, Any], depth: int) -> Any:
    """The value with arrays in place of their stand-ins; parts that are shared stay shared."""
    if depth > MOST_DEPTH:
        raise ValueError("it is nested too deeply")
    if isinstance(value, _Name):
        raise _Refused("a name that is not called")
    if isinstance(value, (_Array, _Type, list, dict, tuple)) and id(value) not in done:
        if isinstance(value, (_Array, _Type)):
            built: Any = value.build()
        elif isinstance(value, dict):
            built = {key: _build(part, done, depth + 1) for key, part in value.items()}
        else:
            built = type(value)(_build(part, done, depth + 1) for part in value)
        done[id(value)] = built
    return done.get(id(value), value)
