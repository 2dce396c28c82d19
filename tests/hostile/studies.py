"""Studies: Python files that raise, return something else, or name what is not there; for `study` and `publish`."""

from collections.abc import Iterator
from pathlib import Path

from hostile.corpus import Case
from hostile.good import Good

FILES: dict[str, str] = {
    "empty": "",
    "without a study": "x = 1\n",
    "with a study that is no function": "study = 7\n",
    "that does not parse": "def study(:\n",
    "with tabs and blanks mixed": "def study(heads=None):\n\tif True:\n        return 1\n",
    "that raises": "raise RuntimeError('no [/red] way')\n",
    "that ends the program": "import sys\nsys.exit(7)\n",
    "that imports what is not there": "import zzz_not_there\n",
    "that divides by zero": "def study(heads=None):\n    return 1 / 0\n",
    "that calls itself for ever": "def study(heads=None):\n    return study(heads)\n",
    "that takes no heads": "def study():\n    return None\n",
    "that returns nothing": "def study(heads=None):\n    return None\n",
    "that returns a list": "def study(heads=None):\n    return []\n",
}
# A good study, but for one thing.
CHANGED = {
    "without recipes": "recipes=[]",
    "with recipes that are none": "recipes=[1, 2]",
    "with recipes that are a number": "recipes=7",
    "without stores": "stores={}",
    "with stores that are none": "stores={'tiny': 7}",
    "with a store that raises": "stores={'tiny': lambda data: 1 / 0}",
    "with a store that is nothing": "stores={'tiny': lambda data: None}",
    "with a readout that is none": "readouts={'proto': ('zzz',)}",
    "with readouts that are a number": "readouts={'proto': 7}",
    "with a protocol that is none": "protocol=None",
    "with a protocol of too many shots": "protocol=replace(good().protocol, shots=(1, 10**6))",
    "with a protocol of no shots": "protocol=replace(good().protocol, shots=())",
    "with a protocol of text": "protocol=replace(good().protocol, episodes='x')",
    "that adds nothing": "adds=None",
    "with a head that is none": "recipes=[recipe('zzz')]",
}
# And with a recipe that has one thing wrong.
RECIPES = {
    "with a name that leads out": "data='../../x'",
    "with an optimiser that is none": "optimiser='zzz'",
    "with a schedule that is none": "schedule='zzz'",
    "with a backbone that is none": "backbone='zzz'",
    "with an augmentation that is none": "augment=('zzz',)",
    "with a width of a million": "width=10**6",
    "with a width of text": "width='x'",
    "with no epochs": "epochs=0",
    "with a learning rate that is no number": "lr=float('nan')",
    "with more classes than there are": "way=1000",
}


def files() -> dict[str, str]:
    """All of them, as the text of a Python file."""
    head = "from dataclasses import replace\nfrom helpers.own_study import recipe, study as good\n\n"
    head += "def study(heads=None):\n"
    wrong = {**CHANGED, **{words: f"recipes=[recipe('proto', {change})]" for words, change in RECIPES.items()}}
    return FILES | {words: f"{head}    return replace(good(), {change})\n" for words, change in wrong.items()}


RAW = {
    "of random bytes": bytes(range(256)),
    "in Latin-1": "# é\nstudy = 'ü'\n".encode("latin1"),
    "with zeros": b"x = 1\0\n",
}
COMMANDS = {
    "of a name that is none": ["study", "zzz"],
    "of a file that is not there": ["study", "zzz.py"],
    "of a folder": ["study", "folder.py"],
    "of heads that are none": ["study", "study.py", "--heads", "zzz", "--out", "out", "--data", "data"],
    "of models that are none": ["study", "study.py", "--only", "zzz", "--out", "out", "--data", "data"],
    "on a place that is none": ["study", "study.py", "--on", "zzz", "--out", "out", "--data", "data"],
    "with negative workers": ["study", "study.py", "--workers", "-1", "--out", "out", "--data", "data"],
    "that has no models ready": ["study", "study.py", "--ready", "--out", "out"],
}
PUBLISH = {
    "of a study that was not run": ["publish", "study.py", "--run", "zzz", "--out", "made"],
    "of a run that is another": ["publish", "study.py", "--run", "run", "--out", "made"],
    "over something else": ["publish", "study.py", "--run", "run", "--out", "photos"],
    "of models that are none": ["publish", "study.py", "--run", "run", "--only", "zzz", "--out", "made"],
}


def cases(good: Good) -> Iterator[Case]:
    for verb, more in (("study", ["--out", "out", "--data", "data"]), ("dry run", ["--dry-run", "--data", "data"])):
        for words, text in files().items():
            # A store is made where the data lie before it is known that a model does not fit: that is no fault.
            yield _study(good, f"a study {words} ({verb})", text.encode(), more, may_do=verb == "dry run")
    for words, data in RAW.items():
        yield _study(good, f"a study {words}", data, ["--out", "out", "--data", "data"])
    for words, command in {**COMMANDS, **PUBLISH}.items():

        def make(folder: Path, command: list[str] = command) -> list[str]:
            (folder / "folder.py").mkdir()
            for name in ("study.py", "run", "photos"):
                good.copy(name, folder)
            _data(good, folder)
            return command

        yield Case(f"a study {words}", make)


def _study(good: Good, name: str, data: bytes, more: list[str], may_do: bool = False) -> Case:
    def make(folder: Path) -> list[str]:
        (folder / "bad.py").write_bytes(data)
        _data(good, folder)
        return ["study", "bad.py", "--workers", "1", *more]

    return Case(name, make, may_do)


def _data(good: Good, folder: Path) -> None:
    """The store of glyphs that good studies make, made already: what is refused then leaves nothing behind."""
    good.copy("data", folder)
