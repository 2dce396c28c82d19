"""What a model of a study is made from: the data and the user's own code, as hashes in the model's `inputs.json`.

A finished model counts as done only while its inputs are unchanged. Folders of version 0.1 have no such file: nothing
is known of their inputs, and they count as done.
"""

import dataclasses
import hashlib
import inspect
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import CodeType
from typing import Any

from anyshot.data.store import Store, hash_file
from anyshot.errors import BadInput
from anyshot.files import read_json, write_json
from anyshot.models.readouts import split_readout_name
from anyshot.models.registry import BUILTIN
from anyshot.recipe import Recipe
from anyshot.study.study import Study

FILE = "inputs.json"
NAMES = {"data": "the images or labels of its store", "code": "the code of its head, backbone or readouts"}


def describe_inputs(
    study: Study, recipes: Sequence[Recipe], stores: Mapping[str, Store]
) -> dict[Recipe, dict[str, str]]:
    """Return the hashes of what each model is made from: its store, and code that is not the package's own."""
    data = {name: hash_store(store) for name, store in stores.items()}
    return {recipe: {"data": data[recipe.data]} | _describe_code(study, recipe) for recipe in recipes}


def hash_store(store: Store) -> str:
    """Return a hash of the items and labels of a store, from the bytes of its files."""
    files = [name for name in ("items.npy", "sides.npy", "labels.npy") if (store.path / name).is_file()]
    parts = [*(hash_file(store.path / name) for name in files), store.class_names, store.class_split]
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def check_inputs(models: Iterable[tuple[Path, Mapping[str, str]]]) -> None:
    """Raise BadInput where models below a folder were made from other data or code than there is now."""
    changed = []
    for folder, inputs in models:
        before = read_json(folder / FILE) if inputs and (folder / FILE).is_file() else inputs
        if names := [name for name in NAMES if before.get(name, "") != inputs.get(name, "")]:
            changed.append((folder, names))
    if changed:
        folder, names = changed[0]
        others = f" (and {len(changed) - 1} more models)" if len(changed) > 1 else ""
        raise BadInput(
            f"{folder}{others}: {' and '.join(NAMES[name] for name in names)} changed since it was made. Delete the "
            "folder to make it anew, or name another folder of results (--out)."
        )


def record_inputs(folder: Path, inputs: Mapping[str, str]) -> None:
    """Write what a model is made from, before it is made."""
    if inputs and not (folder / FILE).exists():
        write_json(folder / FILE, dict(inputs))


def _describe_code(study: Study, recipe: Recipe) -> dict[str, str]:
    """Return the hash of the source of a model's head, backbone and readouts, where they are a user's."""
    registry = study.registry
    readouts = (
        name if name in registry.readouts else split_readout_name(name)[0] for name in study.readouts_of(recipe)
    )
    used = [
        (registry.heads.get(recipe.head), BUILTIN.heads.get(recipe.head)),
        (registry.backbones.get(recipe.backbone), BUILTIN.backbones.get(recipe.backbone)),
        *((registry.readouts.get(name), BUILTIN.readouts.get(name)) for name in readouts),
    ]
    sources: dict[str, str] = {}
    for entry, builtin in used:
        if entry is not None and entry is not builtin:
            for slot in dataclasses.fields(entry):
                _add_source(getattr(entry, slot.name), f"{type(entry).__name__}.{slot.name}", sources)
    return {"code": hashlib.sha256(repr(sorted(sources.items())).encode()).hexdigest()} if sources else {}


def _add_source(value: Any, name: str, sources: dict[str, str]) -> None:
    """Add the source of a function or class, and of what it names in its own module, to `sources`."""
    value = inspect.unwrap(value) if callable(value) else value
    if not callable(value):
        sources[name] = repr(value)
        return
    if isinstance(value, partial):
        _add_source((value.args, sorted(value.keywords.items())), f"{name}()", sources)
        value = value.func
    module = getattr(value, "__module__", None) or ""
    key = f"{module}.{getattr(value, '__qualname__', name)}"
    if key in sources or module.startswith("anyshot."):
        return
    try:
        sources[key] = inspect.getsource(value)
    except (OSError, TypeError):  # made at run time, or an object with __call__
        sources[key] = ""
    members = vars(value).values() if isinstance(value, type) else [value]
    for function in filter(inspect.isfunction, members):
        for number, cell in enumerate(function.__closure__ or ()):
            _add_source(cell.cell_contents, f"{key}:{number}", sources)
        for global_name in _global_names(function.__code__) & function.__globals__.keys():
            named = function.__globals__[global_name]
            if getattr(named, "__module__", None) == module or isinstance(named, int | float | str | tuple):
                _add_source(named, f"{key}:{global_name}", sources)


def _global_names(code: CodeType) -> set[str]:
    """Return the global names that a function uses, also in functions inside it."""
    inner = (one for one in code.co_consts if isinstance(one, CodeType))
    return set(code.co_names).union(*map(_global_names, inner))
