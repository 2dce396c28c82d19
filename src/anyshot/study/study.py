"""A study as a value: recipes, stores, readouts and a protocol; how it is loaded, and how its models are selected.

A study is a Python file with a function `study(heads) -> Study`. The package's own are in `studies/`; others are
named by their path. `runner` trains and tests its models.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from anyshot.data.augmentation import NAMES
from anyshot.data.pack import pack
from anyshot.data.pictures import Fit
from anyshot.data.store import Store, open_store
from anyshot.errors import BadInput, check_names, describe_unknown_name, look_up
from anyshot.files import builtin_study_folders
from anyshot.measure.plan import Protocol
from anyshot.models.cache import FeatureCache
from anyshot.models.embedders import DEFAULT_EMBEDDER, load_embedder
from anyshot.models.features import as_packing_embedding
from anyshot.models.heads import HEADS
from anyshot.models.registry import BUILTIN, Registry, run_python_file, user_code_errors
from anyshot.progress import OnMessage
from anyshot.recipe import Recipe


@dataclass(frozen=True, kw_only=True)
class Study:
    """What to train, on which stores, and how to read and test it."""

    recipes: Sequence[Recipe]
    """The models to train."""
    stores: Mapping[str, Callable[[Path], Store]]
    """By the name that recipes use: a function that opens the store in the folder of data, or makes it there."""
    readouts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Readouts of each head besides `own`."""
    protocol: Protocol = field(default_factory=Protocol)
    """Shots and episodes that all its models are tested on."""
    adds: Registry = field(default_factory=Registry)
    """The study's own heads, backbones and readouts."""
    train_images: Mapping[str, int | tuple[int, int, int]] = field(default_factory=dict)
    """Training images of each data set, or those for training, validation and test, to estimate the cost before its
    store is made."""

    @property
    def registry(self) -> Registry:
        """The registry that recipes and readouts are looked up in."""
        return BUILTIN | self.adds

    def store(self, name: str, data: Path) -> Store:
        """Open the store of this name in the folder of data, or make it."""
        opens = look_up("store in this study", name, self.stores)
        with user_code_errors(Path(self.adds.file)):
            store = opens(data)
        if not isinstance(store, Store):
            raise BadInput(
                f"the function that opens {name} in {self.adds.file} returned a {type(store).__name__}, not a Store."
            )
        return store

    def readouts_of(self, recipe: Recipe) -> tuple[str, ...]:
        """Return the readouts that a model is tested with."""
        return ("own", *self.readouts.get(recipe.head, ()))

    def result(self, recipe: Recipe, folder: Path) -> Path:
        """Return the file that says a model is done: its recalls under this protocol, or a pretrained model itself."""
        if recipe.batch:
            return folder / "model.safetensors"
        tested: dict[str, Any] = asdict(self.protocol) | {"readouts": self.readouts_of(recipe)}
        return folder / f"recalls-{sha256(json.dumps(tested, sort_keys=True).encode()).hexdigest()[:8]}.npz"


@dataclass(frozen=True)
class StudySource:
    """The file of a study and the heads chosen: small enough to send to another process, which loads it there."""

    path: Path
    heads: tuple[str, ...] | None = None
    episodes: int = 0  # in place of those of the study's protocol, where not 0

    def load(self) -> Study:
        """Run the study's file and return the study, after a check of all names."""
        module = run_python_file(self.path)
        if not callable(getattr(module, "study", None)):
            raise BadInput(f"{self.path} is not a study: it must define a function study(heads) that returns a Study.")
        with user_code_errors(self.path):
            study: Study = module.study(tuple(HEADS) if self.heads == ("all",) else self.heads)
        _check(study, self.path)
        protocol = replace(study.protocol, episodes=self.episodes or study.protocol.episodes)
        study = replace(study, adds=replace(study.adds, file=self.path.name), protocol=protocol)
        for recipe in [*study.recipes, *list_pretrainings(study.recipes)]:
            if not recipe.frozen:
                study.registry.backbone(recipe.backbone)
            look_up("store in this study", recipe.data, study.stores)
            check_names("augmentation", recipe.augment, NAMES)
            for readout in study.readouts_of(recipe):
                study.registry.check_readout(readout, recipe.head)
        return study


def _has_valid_numbers(protocol: Protocol) -> bool:
    numbers = (protocol.way, protocol.queries, protocol.episodes, protocol.seed, *protocol.shots)
    return bool(protocol.shots) and all(type(number) is int and number >= 0 for number in numbers)


def _check(study: Any, path: Path) -> None:
    """Raise BadInput where a user's function did not return a Study with parts of the right types."""
    if not isinstance(study, Study):
        raise BadInput(f"study(heads) of {path} returns a {type(study).__name__}: it must return a Study.")
    parts = {
        "recipes": isinstance(study.recipes, Sequence) and all(isinstance(one, Recipe) for one in study.recipes),
        "stores": isinstance(study.stores, Mapping) and all(callable(opens) for opens in study.stores.values()),
        "readouts": isinstance(study.readouts, Mapping) and all(isinstance(v, tuple) for v in study.readouts.values()),
        "protocol": isinstance(study.protocol, Protocol) and _has_valid_numbers(study.protocol),
        "adds": isinstance(study.adds, Registry),
        "train_images": isinstance(study.train_images, Mapping),
    }
    for name, fits in parts.items():
        if not fits:
            raise BadInput(f"{name} of the study in {path} cannot be {str(getattr(study, name))[:80]!r}.")
    if not study.recipes:
        raise BadInput(f"the study in {path} has no recipes.")


def find_study(name: str) -> Path:
    """Return the file of a study, given its path or the name of one of the package's own."""
    if name.endswith(".py"):
        if not Path(name).is_file():
            raise BadInput(f"there is no study file {name}.")
        return Path(name).resolve()
    ours = {path.stem: path for folder in builtin_study_folders() for path in sorted(folder.glob("[a-z]*.py"))}
    if name not in ours:
        raise BadInput(describe_unknown_name("study", name, ours) + " The path of a .py file works too.")
    return ours[name]


@dataclass(frozen=True)
class Packed:
    """A store in a folder of data that `anyshot pack` makes from images; see `packed`."""

    name: str
    kind: str
    size: int | None
    fit: Fit | None
    embed: str
    options: Mapping[str, Any]

    def __call__(self, data: Path) -> Store:
        """Open the store, or raise BadInput with the command that makes it."""
        path = data / self.name
        if not self.is_in(data):
            options = {**self.options, "size": self.size, "fit": self.fit, "embed": self.embed}
            words = [f"--{name.replace('_', '-')} {value}" for name, value in options.items() if value]
            words = [word.removesuffix(" True").removesuffix(f" {DEFAULT_EMBEDDER}") for word in words]
            make = " ".join(["anyshot pack", self.kind, "SOURCE", *words, "-o", str(path)])
            raise BadInput(f"there is no store {path}: name what it is made of, --images SOURCE, or make it: `{make}`.")
        return open_store(path)

    def is_in(self, data: Path) -> bool:
        """Return whether the store has been made."""
        return (data / self.name / "store.json").is_file()

    def make(self, data: Path, images: Path, say: OnMessage) -> None:
        """Make the store from images: a source of its kind, or the same images as one .npz, which are cut already."""
        if not images.exists():
            raise BadInput(f"there is no {images} to make the store {data / self.name} of.")
        is_npz = images.suffix.lower() == ".npz"
        kind, options = ("npz", {}) if is_npz else (self.kind, dict(self.options))
        features = as_packing_embedding(load_embedder(self.embed), FeatureCache()) if self.embed else None
        pack(kind, images, data / self.name, self.size, self.fit, embedding=features, say=say, **options)


def packed(
    name: str, kind: str, size: int | None = None, embed: str = "", fit: Fit | None = None, **options: Any
) -> Packed:
    """Return an entry of `Study.stores`: a store that is opened, or made from what `anyshot study --images` names.

    Args:
        name: Name of the store.
        kind: Kind of source that `anyshot pack` makes it from.
        size: Side of the stored square, or shorter side of stored frames.
        embed: Name of a network whose features are stored instead of images.
        fit: How an image becomes what is stored, as in `anyshot pack --fit`.
        options: Further options of `anyshot pack` for this kind, such as `box=True`.
    """
    return Packed(name, kind, size, fit, embed, options)


def pack_missing(study: Study, recipes: Sequence[Recipe], data: Path, images: Path, say: OnMessage) -> None:
    """Make the missing store of these recipes from images."""
    stores = [study.stores[name] for name in dict.fromkeys(recipe.data for recipe in recipes)]
    missing = [store for store in stores if isinstance(store, Packed) and not store.is_in(data)]
    if len(missing) > 1:
        names = ", ".join(store.name for store in missing)
        raise BadInput(f"{images} cannot be all of {names}: choose one (--only), or make each with `anyshot pack`.")
    if not missing:
        say(f"The stores of this study are in {data}: {images} is not needed.")
    for store in missing:
        store.make(data, images, say)


def list_pretrainings(recipes: Sequence[Recipe]) -> list[Recipe]:
    """Return the pretrainings that recipes start from, each once."""
    return list(dict.fromkeys(recipe.start for recipe in recipes if isinstance(recipe.start, Recipe)))


def select_recipes(recipes: Sequence[Recipe], only: str) -> list[Recipe]:
    """Return the recipes that match a selection.

    Args:
        recipes: All recipes of a study.
        only: Words of a model's path (data, backbone, head, 4-shot, seed-0) joined by slashes, all of which must match,
            such as cub/conv4/frn; several selections are separated by commas. Empty selects all.
    """
    wanted = [name.split("/") for name in only.split(",") if name]
    words = sorted({word for recipe in recipes for word in recipe.path})
    check_names("word to select models by", (word for name in wanted for word in name), words)
    chosen = [recipe for recipe in recipes if not wanted or any(set(name) <= set(recipe.path) for name in wanted)]
    if not chosen:
        raise BadInput(f"no model of the study matches {only!r}: models are named like {'/'.join(recipes[0].path)!r}.")
    return chosen
