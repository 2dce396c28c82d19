"""A model: a backbone, a head and its learned parameters, with the recipe that made it; saved as safetensors."""

import copy
import json
import re
from collections.abc import Callable, Container, Mapping
from functools import partial
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Shaped, UInt8
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from anyshot.data.augmentation import convert_channels, prepare_evaluation
from anyshot.data.pictures import evaluation_square
from anyshot.data.store import Frames
from anyshot.errors import BadInput, as_bad_input, look_up
from anyshot.files import atomic_write, check_file, find_builtin_models
from anyshot.models.authors import SUFFIXES, read_authors_file
from anyshot.models.backbones import Backbone, Maps
from anyshot.models.efficientnet import fold_norms
from anyshot.models.heads import EMBEDS
from anyshot.models.law import BoundHead, Vectors
from anyshot.models.registry import BUILTIN, Registry
from anyshot.recipe import Recipe

EMBED_BATCH = 64
FROZEN = Backbone(lambda channels, recipe: nn.Identity())  # features in, features out
FeatureMaps = Float[np.ndarray, "image position channel"]


class Model(nn.Module):
    """A backbone, a head and the head's learned parameters: images in, features out.

    A frozen backbone is not part of the model, which then takes features.

    Args:
        recipe: What the model is made by.
        channels: Channels of the images, or of features.
        registry: What the recipe's head and backbone are looked up in.
        positions: Positions of features, where the backbone is frozen.
        blank: Whether all weights are loaded next, so that a backbone need not bring its own.
    """

    def __init__(
        self, recipe: Recipe, channels: int, registry: Registry = BUILTIN, positions: int = 1, blank: bool = False
    ) -> None:
        super().__init__()
        self.recipe, self.channels, self.positions = recipe, channels, positions
        self.fingerprint = ""
        """Identifies a frozen backbone (`Embedder.fingerprint`); empty where it is not known."""
        if recipe.frozen and (recipe.feature_scale != 1 or recipe.augment or recipe.start is not None):
            raise BadInput(
                "features of a frozen backbone are used as they are: its recipe has no feature_scale, augment or start."
            )
        self.head = registry.head(recipe.head)
        self.kind = FROZEN if recipe.frozen else registry.backbone(recipe.backbone)
        self.embed = look_up("embed", recipe.embed, EMBEDS) if recipe.embed else self.head.embed
        self.made_with = "" if BUILTIN.offers(recipe) else registry.file
        make = self.kind.blank if blank and self.kind.blank is not None else self.kind.make
        self.backbone: nn.Module = make(channels, recipe)
        with torch.no_grad():
            side = (positions, channels) if recipe.frozen else (channels, recipe.size, recipe.size)
            features = copy.deepcopy(self.backbone).eval()(torch.zeros(1, *side))
        start = {"scale": torch.tensor(float(recipe.temperature)), **self.head.parameters(features, recipe)}
        self.learned = nn.ParameterDict({name: nn.Parameter(value) for name, value in start.items()})

    def forward(self, images: Float[Tensor, "image ..."]) -> Maps:
        """Return the features of prepared images."""
        return self.backbone(images) * self.recipe.feature_scale

    def features(self, images: Shaped[np.ndarray, "image ..."] | Frames) -> FeatureMaps:
        """Return features of stored images, with the evaluation transform; features are returned as they are."""
        return self.reader()(images)

    def reader(self, device: str | None = None) -> Callable[..., FeatureMaps]:
        """Return `features` as a function of the current weights, for repeated calls.

        Batch norm is folded into the convolutions. The function runs on `device`, or where the model is.
        """
        recipe, kind = self.recipe, self.kind
        if recipe.frozen:
            return partial(_return_features, recipe)
        place = torch.device(device or next(self.parameters()).device)
        backbone = copy.deepcopy(self.backbone).to(place).eval()
        for part in backbone.modules():
            if isinstance(getattr(part, "convs", None), nn.ModuleList):
                part.convs = nn.ModuleList(fold_norms(part))
                part.norms = nn.ModuleList(nn.Identity() for _ in part.convs)

        @torch.inference_mode()
        def read(images: UInt8[np.ndarray, "image height width colour"] | Frames) -> FeatureMaps:
            out = None
            for start in range(0, len(images), EMBED_BATCH):
                batch = images[start : start + EMBED_BATCH]
                if isinstance(batch, Frames):
                    batch = [evaluation_square(frame, recipe.size, kind.margin) for frame in batch]
                batch = convert_channels(np.array(batch), self.channels)
                pixels = prepare_evaluation(torch.from_numpy(batch).to(place), recipe.size, kind.margin, kind.moments)
                maps = (backbone(pixels) * recipe.feature_scale).float().cpu().numpy()
                out = np.empty((len(images), *maps.shape[1:]), np.float32) if out is None else out
                out[start : start + len(maps)] = maps
            assert out is not None
            return out

        return read

    @property
    def bound_head(self) -> BoundHead:
        """The head with its learned parameters."""
        return BoundHead(self.head, {name: value.detach().cpu() for name, value in self.learned.items()})

    def vectors(self, features: FeatureMaps) -> Vectors:
        """Return the vectors of features; a class is the mean of its images' vectors."""
        with torch.no_grad():
            return self.embed(torch.from_numpy(features), self.bound_head.parameters)

    def save(self, path: Path) -> None:
        """Write weights and recipe as safetensors, with the name of the user's file that has its head or backbone."""
        about = {"recipe": self.recipe.to_json(), "channels": str(self.channels)}
        about |= {"positions": str(self.positions), "content": self.fingerprint} if self.recipe.frozen else {}
        write_tensors(path, self.state_dict(), about | ({"made_with": self.made_with} if self.made_with else {}))


def find_model(path: Path, hint: str = "", example: str = "cub32-conv4-cosine-proto-16shot") -> Path:
    """Return the file or folder of a trained model.

    Args:
        path: Where it is, or the name of a model that comes with anyshot, with or without its id.
        hint: What the error message adds where there is none.
        example: The model that it names.
    """
    if path.is_file() or (path / "model.safetensors").is_file():
        return path
    for file in path.glob("version-*/model.safetensors"):  # of a classifier that brings its model along
        return file.parent
    builtin = find_builtin_models()
    if path.name in builtin and (path.is_dir() or path.name == str(path)):  # a run of --ready keeps no weights
        return builtin[path.name]
    names = f"its folder, or one that comes with anyshot, such as {example}{hint}"
    if path.exists():
        names = "a folder that `anyshot fit` made, or that of a trained model"
    raise BadInput(f"there is neither a classifier nor a trained model {path}: name {names}.")


def _read_count(path: Path, about: Mapping[str, str], name: str, allowed: Container[int]) -> int:
    """Return a number of the metadata of a model's file."""
    text = about.get(name, "")
    number = int(text) if re.fullmatch("[0-9]{1,6}", text) else 0
    if number not in allowed:
        expected = "1 or 3" if isinstance(allowed, tuple) else "a number"
        raise BadInput(f"{path} says that its input has {about.get(name)!r} {name}: {expected} was expected.")
    return number


def load_model(path: Path, registry: Registry = BUILTIN) -> Model:
    """Load a trained model.

    Args:
        path: Its file, the folder that holds it, the name of one that comes with anyshot, or a file of weights that the
            authors of FRN or FEAT published (`authors`).
        registry: What its head and backbone are looked up in; for those of a user's file, that of `load_registry`.

    Raises:
        BadInput: Where there is no such model, or its file is damaged or needs another registry.
    """
    path = find_model(path)
    models = sorted(path.glob("*/model.safetensors"))
    if models and not (path / "model.safetensors").exists():
        raise BadInput(f"{path} is the folder of a study: name that of one of its models, such as {models[0].parent}.")
    path = path / "model.safetensors" if path.is_dir() else path
    state, about = (read_authors_file if path.suffix in SUFFIXES else read_tensors)(path)
    if "recipe" not in about:
        raise BadInput(f"{path} carries no recipe: it was not written by anyshot.")
    with as_bad_input(BadInput, f"{path} cannot be loaded", "."):
        recipe = Recipe.from_json(about["recipe"])
    if (file := about.get("made_with")) and not registry.offers(recipe):
        raise BadInput(f"{path} was made with {file}, which has its head or backbone: name that file, --using {file}.")
    channels = _read_count(path, about, "channels", range(1, 10**6) if recipe.frozen else (1, 3))
    positions = _read_count(path, about, "positions", range(1, 10**4 + 1)) if recipe.frozen else 1
    model = Model(recipe, channels, registry, positions, blank=True)
    model.fingerprint = about.get("content", "")
    _check_weights(path, state, model.state_dict())
    state = {name: value.float() if value.is_floating_point() else value for name, value in state.items()}
    model.load_state_dict(state)
    return model.eval()


def _check_weights(path: Path, state: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    """Raise BadInput where a file does not hold the weights of its recipe, all of them finite."""
    shapes = {name: (value.shape, value.is_floating_point()) for name, value in expected.items()}
    for name in sorted(shapes.keys() | state.keys()):
        value = state.get(name)
        if value is None or (value.shape, value.is_floating_point()) != shapes.get(name):
            raise BadInput(f"{path} does not hold the weights of its recipe: {name} is missing, or of another shape.")
        if not torch.isfinite(value).all():
            raise BadInput(f"{path} has weights that are not finite, in {name}.")


def write_tensors(path: Path, tensors: Mapping[str, Tensor], about: dict[str, str] | None = None) -> None:
    """Write tensors and metadata to a safetensors file, atomically and without a copy in memory."""
    with atomic_write(path) as temporary:
        temporary.touch()
        mode = temporary.stat().st_mode
        try:
            save_file({name: value.cpu().contiguous() for name, value in tensors.items()}, temporary, about)
        except SafetensorError as error:  # a full disk, say
            raise OSError(str(error)) from None
        temporary.chmod(mode)  # safetensors replaces the file by one that nobody else may read
        if about:
            _sort_metadata(temporary)


def _sort_metadata(path: Path) -> None:
    """Sort the metadata of a file: safetensors writes it in any order, and equal models should be equal bytes."""
    with path.open("r+b") as file:
        size = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(size))
        header = {"__metadata__": dict(sorted(header.pop("__metadata__").items())), **header}
        text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode().ljust(size)
        assert len(text) == size
        file.seek(8)
        file.write(text)


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return the tensors and the metadata of a safetensors file; no code of it runs."""
    check_file(path)
    damaged, again = (SafetensorError, json.JSONDecodeError, OSError), ": remove it and run the same command again."
    with as_bad_input(damaged, f"{path} is damaged or cut short", again), safe_open(path, framework="pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}, dict(file.metadata() or {})  # noqa: SIM118


def _return_features(recipe: Recipe, features: Float[np.ndarray, "image ..."]) -> FeatureMaps:
    if features.dtype == np.uint8:
        raise BadInput(f"{recipe.name} reads the features of {recipe.backbone}: embed images first.")
    maps = np.asarray(features, np.float32)
    return maps if maps.ndim == 3 else maps[:, None]
