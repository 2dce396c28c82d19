"""What runs leave behind, spoiled: tables, recipes, histories, recalls; given to `report` and `experiment compare`."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from hostile import spoil
from hostile.corpus import Case
from hostile.good import Good

FILES = {
    "table.csv": False,
    "sensitivity.csv": True,
    "about.json": True,
    "model-0/recipe.json": True,
    "model-0/history.csv": True,
    "model-0/recalls-12345678.npz": True,  # a report does without: its intervals are wider then
}
COLUMNS = b"data,backbone,head,readout,train_shot,seed,test_shot,accuracy\n"
TABLES: dict[str, bytes] = {
    "no rows": COLUMNS,
    "other columns": b"a,b\n1,2\n",
    "a row too short": COLUMNS + b"x,c,proto\n",
    "a row too long": COLUMNS + b"x,c,proto,own,1,0,1,50,9,9\n",
    "accuracies of text": COLUMNS + b"x,c,proto,own,1,0,1,high\n",
    "accuracies that are no numbers": COLUMNS + b"x,c,proto,own,1,0,1,nan\n",
    "shots of text": COLUMNS + b"x,c,proto,own,few,0,many,50\n",
    "Latin-1": "data,head,test_shot,accuracy\né,proto,1,50\n".encode("latin1"),
    "a zero byte": b"data,head,test_shot,accuracy\n\0,proto,1,50\n",
    "an open quote": b'data,head,test_shot,accuracy\n"x,proto,1,50\n',
    "a field of a megabyte": b"data,head,test_shot,accuracy\n" + b"x" * 1_000_000 + b",proto,1,50\n",
    "two columns of one name": b"data,head,head,test_shot,accuracy\nx,proto,proto,1,50\n",
    "a number of 10,000 digits": b"data,head,test_shot,accuracy\nx,proto," + b"9" * 10_000 + b",50\n",
}
SKIP = ("backbone", "way", "epochs", "optimiser", "lr", "schedule")  # treated as the others are
MAY = (
    "shots of text",
    "two columns of one name",
    "a zero byte",
    "an open quote",
    "a field of a megabyte",
    "a row too long",
    "a number of 10,000 digits",
)


def run(good: Good, words: str, how: Callable[[Path], Any], may_do: bool = False, text: bool = False) -> Case:
    def make(folder: Path) -> list[str]:
        how(good.copy("run", folder))
        return ["report", "run", *(["--text"] if text else ["-o", "page.html"])]

    return Case(f"a report: {words}", make, may_do)


def cases(good: Good) -> Iterator[Case]:
    for name, may in FILES.items():
        for words in ("empty", "cut in half", "zeros", "random bytes", "a text", "a picture"):
            may_be_cut = may or words == "cut in half"
            yield run(good, f"{name} is {words}", _file(name, spoil.BROKEN[words]), may_be_cut)
        for seed in range(2):
            yield run(good, f"{name} with bytes changed ({seed})", _file(name, spoil.flips(seed, 3)), True)
        for words, place in spoil.PLACES.items():
            how = lambda folder, name=name, place=place: spoil.replaced(folder / name, place)  # noqa: E731
            yield run(good, f"{name} is {words}", how, may)
    for words, data in TABLES.items():
        yield run(good, f"a table of {words}", _file("table.csv", lambda _, data=data: data), words in MAY)
        yield run(
            good, f"a table of {words}, as text", _file("table.csv", lambda _, data=data: data), words in MAY, True
        )
        yield run(good, f"sensitivities of {words}", _file("sensitivity.csv", lambda _, data=data: data), True)
    for words, data in spoil.JSONS.items():
        for name in ("about.json", "model-0/recipe.json"):
            yield run(good, f"{name} is {words}", _file(name, lambda _, data=data: data), True)
        yield run(good, f"recipes.json is {words}", _published("recipes.json", lambda _, data=data: data), True)
        wrapped = b'{"model-9": ' + data + b"}"
        yield run(
            good, f"a recipe of recipes.json is {words}", _published("recipes.json", lambda _, w=wrapped: w), True
        )
    for name in ("recipes.json", "histories.csv"):
        for words in ("empty", "cut in half", "zeros", "random bytes", "a text"):
            yield run(good, f"{name} is {words}", _published(name, spoil.BROKEN[words]), True)
    for words, data in TABLES.items():
        yield run(good, f"histories of {words}", _published("histories.csv", lambda _, data=data: data), True)
    for words, how in spoil.changed_keys(good / "run" / "model-0" / "recipe.json", SKIP):
        yield run(good, f"a recipe {words}", lambda f, how=how: how(f / "model-0" / "recipe.json"), True)
    for words, name in {
        "[/red] as a head": "[/red]",
        "a script": "</script><script>alert(1)</script>",
        "an escape": "\\x1b[2J",
    }.items():
        change = lambda data, name=name: data.replace(b"cosine-proto", name.encode())  # noqa: E731
        yield run(good, f"{words}, as text", _file("table.csv", change), True, text=True)
        yield run(good, words, _file("table.csv", change), True)
    for words, command in {
        "of nothing": ["report"],
        "of a folder that is not there": ["report", "zzz"],
        "into a folder": ["report", "run", "-o", "run"],
        "into a device": ["report", "run", "-o", "/dev/full"],
        "below a file": ["report", "run", "-o", "run/table.csv/x.html"],
    }.items():
        yield Case(f"a report {words}", lambda folder, command=command: [good.copy("run", folder) and "", *command][1:])
    for words, command in {
        "of a kind that is none": ["zzz", "run"],
        "of a folder that is not there": ["gains", "zzz"],
        "drawn as another kind of file": ["gains", "run", "--figure", "x.doc"],
        "drawn into nowhere": ["gains", "run", "--figure", "run/table.csv/x.svg"],
    }.items():
        yield Case(
            f"a comparison {words}",
            lambda folder, command=command: [good.copy("run", folder) and "", "experiment", "compare", *command][1:],
        )


def _file(name: str, change: spoil.Spoil) -> Callable[[Path], Any]:
    return lambda folder: (folder / name).write_bytes(change((folder / name).read_bytes()))


def _published(name: str, change: spoil.Spoil) -> Callable[[Path], Any]:
    """A run with the files of a published study beside its own, one of them spoiled."""

    def how(folder: Path) -> None:
        recipe = (folder / "model-0" / "recipe.json").read_bytes()
        (folder / "recipes.json").write_bytes(b'{"model-9": ' + recipe + b"}")
        (folder / "histories.csv").write_bytes(b"model,epoch,loss\nmodel-9,1,3.5\n")
        _file(name, change)(folder)

    return how
