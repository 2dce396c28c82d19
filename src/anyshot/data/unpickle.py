"""Read a pickle from the internet: lists, dicts, strings, bytes, numbers and numpy arrays; nothing else can be built.

A pickle is a program for a small machine with a stack. Here is that machine without the instructions that load code:
every name that a pickle asks for and that is not on a short list ends the reading, and the names on the list lead to
inert stand-ins, from which an array is put together afterwards: its shape, its type and its bytes. Nothing is believed:
lengths are compared with what is left of the file, keys are plain, and there is an end to instructions and nesting.
"""

import ast
import mmap
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from anyshot.errors import BadInput

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
    """Runs one pickle. Each instruction is a byte; text of Python 2 comes as bytes."""

    def __init__(self, data: mmap.mmap) -> None:
        self.data, self.at = data, 0
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}

    def run(self) -> Any:
        data, stop = self.data, b"."[0]
        most = FREE_STEPS + len(data) // BYTES_PER_STEP
        for _ in range(most):
            code = data[self.at]
            self.at += 1
            if code == stop:
                return self.stack.pop()
            if code not in _ACTIONS:
                raise _Refused(f"the instruction {bytes([code])!r}")
            _ACTIONS[code](self)
        raise ValueError(f"it takes more than {most} instructions")

    # ------------------------------------------------------------------------------------------------------- reading

    def take(self, many: int) -> bytes:
        start, self.at = self.at, self.at + many
        if not start <= self.at <= len(self.data):
            raise IndexError
        return self.data[start : self.at]

    def line(self) -> bytes:
        end = self.data.find(b"\n", self.at)
        if end < 0:
            raise IndexError
        text = self.data[self.at : end]
        self.at = end + 1
        return text

    def number(self, form: struct.Struct) -> Any:
        return form.unpack(self.take(form.size))[0]

    def above_mark(self) -> list[Any]:
        start = self.marks.pop()
        above = self.stack[start:]
        del self.stack[start:]
        return above

    # ---------------------------------------------------------------------------------------------------- instructions

    def mark(self) -> None:
        if len(self.marks) >= MOST_MARKS:
            raise ValueError("it is nested too deeply")
        self.marks.append(len(self.stack))

    def memoize(self) -> None:
        self.memo[len(self.memo)] = self.stack[-1]

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

    def name(self) -> None:
        self.stack.append(_Name(self.line().decode("utf-8"), self.line().decode("utf-8")))

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


def _signed(data: bytes) -> int:
    return int.from_bytes(data, "little", signed=True)


def _whole_number(text: bytes) -> int | bool:
    return {b"00": False, b"01": True}[text] if text in (b"00", b"01") else int(text.removesuffix(b"L"))


def _quoted(text: bytes) -> bytes:
    """The bytes that Python 2 wrote between quotes."""
    if len(text) < 2 or text[:1] not in (b"'", b'"') or text[-1:] != text[:1]:
        raise ValueError("a text is not quoted")
    return ast.literal_eval("b" + "".join(chr(c) if c < 128 else f"\\x{c:02x}" for c in text))


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogatepass")


Action = Callable[[_Machine], Any]


def _push(make: Callable[[], Any]) -> Action:
    return lambda machine: machine.stack.append(make())


def _of_number(form: str) -> Action:
    packed = struct.Struct(form)
    return lambda machine: machine.stack.append(machine.number(packed))


def _of_length(form: str, convert: Callable[[bytes], Any]) -> Action:
    packed = struct.Struct(form)
    return lambda machine: machine.stack.append(convert(machine.take(machine.number(packed))))


def _of_line(convert: Callable[[bytes], Any]) -> Action:
    return lambda machine: machine.stack.append(convert(machine.line()))


def _of_top(many: int) -> Action:
    def gather(machine: _Machine) -> None:
        start = len(machine.stack) - many
        if start < 0:
            raise IndexError
        machine.stack[start:] = [tuple(machine.stack[start:])]

    return gather


def _into_memo(index: Callable[[_Machine], int]) -> Action:
    return lambda machine: machine.memo.__setitem__(index(machine), machine.stack[-1])


def _out_of_memo(index: Callable[[_Machine], int]) -> Action:
    return lambda machine: machine.stack.append(machine.memo[index(machine)])


_BYTE, _WORD = struct.Struct("<B"), struct.Struct("<I")
_INSTRUCTIONS: dict[bytes, Action] = {
    b"\x80": lambda machine: machine.take(1),  # the protocol's number
    b"\x95": lambda machine: machine.take(8),  # the length of a frame, which changes nothing
    b"N": _push(lambda: None),
    b"\x88": _push(lambda: True),
    b"\x89": _push(lambda: False),
    b"]": _push(list),
    b"}": _push(dict),
    b")": _push(tuple),
    b"J": _of_number("<i"),
    b"K": _of_number("<B"),
    b"M": _of_number("<H"),
    b"G": _of_number(">d"),
    b"\x8a": _of_length("<B", _signed),
    b"\x8b": _of_length("<i", _signed),
    b"T": _of_length("<i", bytes),
    b"U": _of_length("<B", bytes),
    b"B": _of_length("<I", bytes),
    b"C": _of_length("<B", bytes),
    b"\x8e": _of_length("<Q", bytes),
    b"\x96": _of_length("<Q", bytes),
    b"X": _of_length("<I", _text),
    b"\x8c": _of_length("<B", _text),
    b"\x8d": _of_length("<Q", _text),
    b"I": _of_line(_whole_number),
    b"L": _of_line(_whole_number),
    b"F": _of_line(float),
    b"S": _of_line(_quoted),
    b"V": _of_line(lambda text: text.decode("raw-unicode-escape")),
    b"p": _into_memo(lambda machine: int(machine.line())),
    b"q": _into_memo(lambda machine: machine.number(_BYTE)),
    b"r": _into_memo(lambda machine: machine.number(_WORD)),
    b"g": _out_of_memo(lambda machine: int(machine.line())),
    b"h": _out_of_memo(lambda machine: machine.number(_BYTE)),
    b"j": _out_of_memo(lambda machine: machine.number(_WORD)),
    b"\x94": _Machine.memoize,
    b"\x85": _of_top(1),
    b"\x86": _of_top(2),
    b"\x87": _of_top(3),
    b"(": _Machine.mark,
    b"0": lambda machine: machine.stack.pop(),
    b"1": _Machine.above_mark,
    b"2": lambda machine: machine.stack.append(machine.stack[-1]),
    b"t": lambda machine: machine.stack.append(tuple(machine.above_mark())),
    b"l": lambda machine: machine.stack.append(machine.above_mark()),
    b"d": lambda machine: machine.stack.append(_pairs(machine.above_mark())),
    b"a": _Machine.append,
    b"e": _Machine.appends,
    b"s": _Machine.set_item,
    b"u": _Machine.set_items,
    b"c": _Machine.name,
    b"\x93": _Machine.stack_name,
    b"R": _Machine.call,
    b"b": _Machine.build,
}
_ACTIONS = {code[0]: action for code, action in _INSTRUCTIONS.items()}


def unpickle(path: Path) -> Any:
    """The contents of a pickle; text of Python 2 comes as bytes."""
    if not path.is_file():
        raise BadInput(f"there is no file {path}.")
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
