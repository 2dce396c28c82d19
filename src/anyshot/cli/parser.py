"""Turn a function into a command line: its signature gives the arguments, its docstring the help.

Positional-only parameters (those before the `/`) are positional arguments, all others are options; `out` can also be
written `-o`. A parameter whose type is a dataclass stands for the options that are its fields, which the section
`Attributes` of its docstring describes.
"""

import argparse
import inspect
import re
import shutil
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from functools import partial
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from anyshot.errors import BadInput, describe_unknown_name, look_up

Verb = Callable[..., None]
ALIASES = {"out": ("-o", "--output")}
TYPE_NAMES = {int: "INT", float: "FLOAT", str: "TEXT", Path: "PATH"}


@dataclass(frozen=True)
class Group:
    """Verbs that share a first word.

    Attributes:
        description: What they are about.
        verbs: Functions, or further groups, by name.
    """

    description: str
    verbs: "Mapping[str, Verb | Group]"


@dataclass(frozen=True)
class Argument:
    """One argument of a verb.

    Attributes:
        name: The parameter.
        type: Its type without `None`; of a tuple, the type of its items.
        count: How many words it takes, as argparse's `nargs` says it.
        is_positional: Whether it is given by its place instead of its name.
        default: The parameter's default; `inspect.Parameter.empty` where it is required.
        help: The sentence that describes it.
        group: The heading of the help that it stands below.
    """

    name: str
    type: Any
    count: int | str | None
    is_positional: bool
    default: Any
    help: str
    group: str

    @property
    def flag(self) -> str:
        """The argument as a user writes it."""
        return self.name.upper() if self.is_positional else f"--{self.name.replace('_', '-')}"

    @property
    def choices(self) -> tuple[str, ...]:
        """The words it can be, where these are few."""
        return get_args(self.type) if get_origin(self.type) is Literal else ()

    @property
    def metavar(self) -> str:
        """What it stands for in a help text."""
        return f"{{{','.join(self.choices)}}}" if self.choices else TYPE_NAMES[self.type]

    def convert(self, word: str) -> Any:
        """Return the value of a word."""
        if word is ABSENT:  # argparse converts the default of a positional argument, too
            return word
        if self.choices and word not in self.choices:
            raise argparse.ArgumentTypeError(f"is one of {', '.join(self.choices)}, not {word!r}")
        try:
            return word if self.choices else self.type(word)
        except ValueError:
            raise argparse.ArgumentTypeError(f"needs {self.metavar}, not {word!r}") from None

    def add_to(self, parser: Any) -> None:
        """Declare the argument to argparse."""
        help = self.help.replace("%", "%%")
        if isinstance(self.default, int | float) and self.type is not bool:
            help += f" (default: {self.default})"
        if self.is_positional:  # `?`, because a missing one is reported together with missing options
            parser.add_argument(
                self.name, nargs=self.count or "?", metavar=self.flag, type=self.convert, help=help, default=ABSENT
            )
            return
        flags = (*ALIASES.get(self.name, ()), self.flag)
        if self.type is bool:
            action: Any = argparse.BooleanOptionalAction
            parser.add_argument(*flags, dest=self.name, action=action, help=help, default=ABSENT)
        else:
            parser.add_argument(
                *flags, dest=self.name, nargs=self.count, metavar=self.metavar, type=self.convert, help=help,
                default=ABSENT,
            )  # fmt: skip


ABSENT = argparse.SUPPRESS  # an argument that is not given is not in the result: the function has the default


def list_arguments(verb: Callable[..., Any], group: str = "options") -> Iterator[Argument]:
    """Yield the arguments of a function, and of the dataclasses among its parameters."""
    hints, descriptions = get_type_hints(verb), _read_descriptions(verb)
    for name, parameter in inspect.signature(verb).parameters.items():
        if is_dataclass(hints[name]):
            options: Any = hints[name]
            yield from list_arguments(options, inspect.cleandoc(options.__doc__).partition("\n")[0].rstrip("."))
        else:
            is_positional = parameter.kind is parameter.POSITIONAL_ONLY
            described = descriptions.get(name, "")
            yield Argument(name, *_split_type(hints[name]), is_positional, parameter.default, described, group)


def _split_type(hint: Any) -> tuple[Any, int | str | None]:
    """Return the type of an argument's words, and how many words it takes."""
    if get_origin(hint) in (Union, UnionType):
        (hint,) = (option for option in get_args(hint) if option is not NoneType)
    if get_origin(hint) is tuple:
        first, *others = get_args(hint)
        return first, "*" if others == [...] else 1 + len(others)
    return hint, None


def _read_descriptions(target: Callable[..., Any]) -> dict[str, str]:
    """Read the sections Args and Attributes of a docstring, and those of the classes it inherits from."""
    descriptions = {}
    for each in reversed(target.__mro__) if isinstance(target, type) else [target]:
        section = re.search(r"^(?:Args|Attributes):\n((?: {4}.*\n?)+)", inspect.cleandoc(each.__doc__ or ""), re.M)
        for name, words in re.findall(r"^ {4}(\w+): (.*(?:\n {8}.*)*)", section[1] if section else "", re.M):
            descriptions[name] = " ".join(words.split())
    return descriptions


def make_parser(verb: Verb | Group, prog: str) -> argparse.ArgumentParser:
    """Make an argparse parser that knows the arguments of a verb, or lists the verbs of a group."""
    if isinstance(verb, Group):
        parser = _make_empty_parser(prog, f"{{{','.join(verb.verbs)}}}", verb.description)
        listed = parser.add_argument_group("verbs")
        for name, each in verb.verbs.items():
            text = each.description if isinstance(each, Group) else _describe(each).partition("\n\n")[0]
            listed.add_argument(name, help=" ".join(text.split()).replace("%", "%%"))
        return parser
    arguments = list(list_arguments(verb))
    words = [one.flag if one.is_positional else f"{one.flag} {one.metavar}" for one in arguments if _is_required(one)]
    words += [f"[{one.flag} ...]" for one in arguments if one.is_positional and not _is_required(one)]
    parser = _make_empty_parser(prog, " ".join([*words, "[options]"]), _describe(verb))
    groups = {one.group: parser.add_argument_group(one.group) for one in arguments if one.group != "options"}
    for one in arguments:
        one.add_to(groups.get(one.group, parser))
    return parser


def _make_empty_parser(prog: str, usage: str, about: str) -> argparse.ArgumentParser:
    width = min(100, shutil.get_terminal_size().columns) - 2
    return argparse.ArgumentParser(
        prog=prog,
        usage=f"{prog} [-h] {usage}",
        description="\n\n".join(textwrap.fill(" ".join(part.split()), width) for part in about.split("\n\n")),
        formatter_class=partial(argparse.RawDescriptionHelpFormatter, max_help_position=24, width=width),
        allow_abbrev=False,
        exit_on_error=False,
    )


def _describe(verb: Verb) -> str:
    return inspect.cleandoc(verb.__doc__ or "").partition("\n\nArgs:")[0]


def _is_required(argument: Argument) -> bool:
    return argument.default is inspect.Parameter.empty


def find_verb(app: Group, words: Sequence[str], prog: str) -> tuple[Verb | Group, str, list[str]]:
    """Return the verb that the first words name, the words so far, and the words that follow them.

    Raises:
        BadInput: Where there is no such verb; the nearest one is offered.
    """
    verb: Verb | Group = app
    words = list(words)
    while isinstance(verb, Group) and words and not words[0].startswith("-"):
        prog, verb = f"{prog} {words[0]}", look_up("verb", words.pop(0), verb.verbs)
    return verb, prog, words


def parse_words(verb: Verb | Group, words: Sequence[str], prog: str) -> Callable[[], None]:
    """Return a call of the verb with the arguments that these words say.

    Raises:
        BadInput: Where they do not fit the verb: one sentence that says what would.
        SystemExit: After `--help` has printed the help.
    """
    parser = make_parser(verb, prog)
    words = [re.sub(r"^--[^=]+", lambda flag: flag[0].replace("_", "-"), word) for word in words]
    if isinstance(verb, Group):
        if words[:1] in (["-h"], ["--help"]):
            parser.parse_args(words[:1])
        _check_options(words, ["--help", "--version", "--debug"], prog)
        raise _as_bad_input(f"{prog} needs a verb: {', '.join(verb.verbs)}", prog)
    arguments = {one.name: one for one in list_arguments(verb)}
    values, unknown = _parse(parser, words, arguments, prog)
    _check_options(unknown, [one.flag for one in arguments.values() if not one.is_positional], prog)
    if missing := [one.flag for name, one in arguments.items() if _is_required(one) and name not in values]:
        raise _as_bad_input(f"{prog} needs {', '.join(missing)}", prog)
    if unknown:
        raise _as_bad_input(f"{prog} does not take {' '.join(unknown)}", prog)
    return partial(_call, verb, values)


def _parse(
    parser: argparse.ArgumentParser, words: Sequence[str], arguments: Mapping[str, Argument], prog: str
) -> tuple[dict[str, Any], list[str]]:
    """Let argparse sort the words; return the values of the arguments that are given, and the words left over."""
    try:
        values, unknown = parser.parse_known_intermixed_args(words)
    except argparse.ArgumentError as error:
        flag = str(error.argument_name).rpartition("/")[2]
        if isinstance(error.__context__, argparse.ArgumentTypeError):
            raise _as_bad_input(f"{flag} {error.__context__}", prog) from None
        (argument,) = (one for one in arguments.values() if one.flag == flag)
        count = argument.count if isinstance(argument.count, int) else 1
        raise _as_bad_input(f"{flag} needs {' '.join([argument.metavar] * count)}", prog) from None
    return {name: tuple(value) if isinstance(value, list) else value for name, value in vars(values).items()}, unknown


def _check_options(unknown: Sequence[str], flags: Sequence[str], prog: str) -> None:
    """Refuse the first of the unknown words that looks like an option, and offer the nearest one."""
    for word in unknown:
        if word.startswith("-"):
            raise _as_bad_input(describe_unknown_name("option", word.partition("=")[0], flags).rstrip("."), prog)


def _as_bad_input(problem: str, prog: str) -> BadInput:
    return BadInput(f"{problem} (`{prog} --help` says more).")


def _call(target: Callable[..., Any], values: Mapping[str, Any]) -> Any:
    """Call a function, or make a dataclass, with those of the values that it has parameters for."""
    hints = get_type_hints(target)
    positional, named = [], {}
    for name, parameter in inspect.signature(target).parameters.items():
        value = _call(hints[name], values) if is_dataclass(hints[name]) else values.get(name, parameter.default)
        if parameter.kind is parameter.POSITIONAL_ONLY:
            positional.append(value)
        else:
            named[name] = value
    return target(*positional, **named)
