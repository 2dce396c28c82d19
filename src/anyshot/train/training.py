"""Training by batch folding (Sec. 4.1): a recipe and a store in, a checkpoint and its history out.

All randomness of an update is a pure function of the seed, the epoch and the update's number, and the state is kept
whole between two updates, so a run killed at any moment resumes and ends with the same weights as an undisturbed one.
The weights are the same for the same recipe, kind of machine, torch and number of threads; `run.json` records what was
used, and a resumed run goes on with the threads it began with.

A run's folder: recipe.json, run.json, history.csv (a row an epoch), state.safetensors while it runs, model.safetensors
when it is done.
"""

import json
import math
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int, Shaped
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from anyshot.data.augmentation import augment, cut_frames
from anyshot.data.frames import Frames
from anyshot.data.store import Store, StoreSplit
from anyshot.errors import BadInput
from anyshot.files import read_json, write_json
from anyshot.measure.engine import compute_recalls
from anyshot.measure.plan import Plan
from anyshot.models.cache import FeatureCache
from anyshot.models.devices import has_bfloat16, training_device, use_threads
from anyshot.models.embedders import load_embedder
from anyshot.models.gram import class_overlap, gram
from anyshot.models.heads import class_logits
from anyshot.models.law import contrastive_logits, fold_logits
from anyshot.models.model import Model, load_model, read_tensors, write_tensors
from anyshot.models.registry import BUILTIN, Registry
from anyshot.progress import progress
from anyshot.recipe import Recipe
from anyshot.tables import write_table
from anyshot.train.batches import pretraining_batches, training_batches
from anyshot.train.parallel import count_processes, gather_batch, is_first, local_share, synchronise_norms, wait_for_all

SAVE_EVERY = 10.0  # seconds between kept states
TELL_EVERY = 1.0  # seconds between writings of the history
CHECK_EVERY = 20  # updates between looks at the loss: looking makes a GPU wait


def train(recipe: Recipe, store: Store, folder: Path, registry: Registry = BUILTIN, device: str | None = None) -> Model:
    """Train what the recipe says into `folder`, going on from what is there; returns the best model."""
    registry.head(recipe.head)  # before the work, to say early what is misspelt
    _batches(recipe, store.part("train").labels, 0)  # what does not fit is said before anything is written
    _claim(folder, recipe)
    with torch.random.fork_rng():
        if not (folder / "model.safetensors").exists():
            start = None
            if isinstance(recipe.start, str):
                start = load_model(Path(recipe.start), registry)
            elif recipe.start is not None:
                start = train(recipe.start, store, folder.parent / recipe.start.name, registry, device)
            device = device or training_device()
            with use_threads(_record(folder, device)):
                _Run(recipe, store, folder, registry, device, start).to_the_end()
        return load_model(folder, registry)


def open_training_features(recipe: Recipe, store: Store, registry: Registry = BUILTIN) -> Store:
    """The store that a recipe reads: of images, or of features where its backbone is frozen. Those of a store of images
    are computed once; after that they come from the cache."""
    if recipe.frozen == store.is_features:
        return store
    if not recipe.frozen:
        raise BadInput(f"{store.path} holds features: a recipe for them must be frozen, which {recipe.name} is not.")
    embeds = load_embedder(recipe.backbone, registry=registry)
    with progress(f"embedding {store.path.name}", float(len(store.items))) as advance:
        features = embeds.features(store.items, advance, FeatureCache())
    about = {**store.about, "content": embeds.content}  # what the backbone is known by, as in a store of its features
    return replace(store, items=features if features.ndim == 3 else features[:, None], about=about)


def _batches(recipe: Recipe, labels: Int[np.ndarray, " image"], epoch: int) -> list[np.ndarray]:
    """The batches of one epoch."""
    if recipe.batch:
        return pretraining_batches(labels, recipe.batch, recipe.seed, epoch)
    return training_batches(labels, recipe.way, recipe.train_shot, recipe.seed, epoch, recipe.mixed)


def _claim(folder: Path, recipe: Recipe) -> None:
    """Make `folder` the recipe's own, or say that it belongs to another."""
    theirs = folder / "recipe.json"
    mine = json.loads(recipe.to_json())
    if theirs.exists():
        other = read_json(theirs)
        if other != mine:
            differ = ", ".join(key for key in mine if other.get(key) != mine[key]) or "unknown fields"
            raise BadInput(f"{folder} holds a model of another recipe (it differs in {differ}): choose another folder.")
    elif is_first():
        write_json(theirs, mine)
    wait_for_all()


def _record(folder: Path, device: str) -> int:
    """Keep what the weights depend on besides the recipe; the number of threads to use."""
    path = folder / "run.json"
    if not path.exists() and is_first():
        threads = torch.get_num_threads()
        about = {"device": device, "threads": threads, "processes": count_processes(), "torch": torch.__version__}
        write_json(path, about)
    wait_for_all()
    return int(read_json(path)["threads"])


def _seed(*parts: int) -> int:
    """One seed from several numbers."""
    return int(np.random.SeedSequence(parts).generate_state(1)[0])


class Learner:
    """A model and its optimiser: all that an update reads and changes."""

    def __init__(
        self,
        recipe: Recipe,
        registry: Registry,
        channels: int,
        device: str,
        start: Model | None = None,
        positions: int = 1,
    ) -> None:
        self.recipe, self.device = recipe, device
        if recipe.amp and torch.device(device).type == "cpu" and not has_bfloat16():
            raise BadInput(f"{recipe.name} asks for bfloat16 (amp), which this CPU cannot multiply: leave amp out.")
        torch.manual_seed(recipe.seed)
        self.model = Model(recipe, channels, registry, positions)
        self.head = self.model.head
        if recipe.overlap and self.model.embed is not gram:
            raise BadInput(f"overlap is a term of heads that embed Gram matrices (frn), not of {recipe.head}.")
        if start is not None:
            self._begin(start)
        self.model.to(device)
        if recipe.compile:
            self.model.backbone.compile()
        self.optimiser = _optimiser(recipe, self.model)
        self.network: torch.nn.Module = self.model
        if count_processes() > 1:
            synchronise_norms(self.model)
            self.network = DistributedDataParallel(self.model)

    def _begin(self, start: Model) -> None:
        """With the backbone of another model, which must be like ours."""
        mine, theirs = (model.backbone.state_dict() for model in (self.model, start))
        if {key: value.shape for key, value in mine.items()} != {key: value.shape for key, value in theirs.items()}:
            other = start.recipe
            raise BadInput(
                f"{self.recipe.name} cannot begin with {other.name}: backbone, width and channels must be the same; "
                f"{other.backbone} of width {other.width} for {start.channels} channels is another."
            )
        self.model.backbone.load_state_dict(theirs)

    def update(
        self, images: Shaped[np.ndarray, "image ..."] | Frames, target: Tensor, shot: int, seed: int, pace: float
    ) -> Float[Tensor, " 2"]:
        """One step at `pace` times the learning rate; its loss and the number of right predictions, left on the device.

        `images` are features where the backbone is frozen. `target` is the class of each image; in batch folding the
        images lie class by class, `shot` of each."""
        recipe = self.recipe
        torch.manual_seed(seed)  # dropout
        draws = torch.Generator().manual_seed(seed + 1)  # augmentation: the same on every device
        for group in self.optimiser.param_groups:
            group["lr"] = group["base"] * pace
        kind, boxes = self.model.kind, None
        if isinstance(images, Frames):
            images, boxes = cut_frames(images, recipe.augment, draws)
        batch = torch.from_numpy(np.ascontiguousarray(images)).to(self.device)
        if not recipe.frozen:
            batch = augment(batch, recipe.augment, draws, recipe.size, kind.margin, kind.moments, boxes)
        with torch.autocast(torch.device(self.device).type, torch.bfloat16, enabled=recipe.amp):
            maps = self.network(batch[local_share(len(batch))])
        vectors = gather_batch(self.model.embed(maps.float(), dict(self.model.learned.items())), len(images))
        loss, logits = self._loss(vectors, target, shot)
        self.optimiser.zero_grad()
        loss.backward()
        self.optimiser.step()
        with torch.no_grad():
            return torch.stack([loss, (logits.argmax(1) == target).sum()])

    def _loss(self, vectors: Float[Tensor, "image d"], target: Tensor, shot: int) -> tuple[Tensor, Tensor]:
        learned = dict(self.model.learned.items())
        if self.recipe.batch:
            logits = class_logits(self.head, learned, vectors)
            return F.cross_entropy(logits, target), logits
        classes = vectors.unflatten(0, (-1, shot))
        logits = fold_logits(self.head, learned, classes)
        loss = F.cross_entropy(logits, target)
        if self.recipe.contrastive and self.head.couples:
            aside = contrastive_logits(self.head, learned, classes)
            loss = loss + self.recipe.contrastive * F.cross_entropy(aside, target)
        if self.recipe.overlap:
            loss = loss + self.recipe.overlap * class_overlap(classes.mean(1))
        return loss, logits


def _optimiser(recipe: Recipe, model: Model) -> torch.optim.Optimizer:
    """Of the backbone and of what the head learns, each at its own rate."""
    rates = {model.backbone: recipe.lr, model.learned: recipe.head_lr or recipe.lr}
    groups = [{"params": list(part.parameters()), "base": rate} for part, rate in rates.items()]
    sgd = partial(torch.optim.SGD, momentum=0.9, nesterov=True)
    kind: Any = sgd if recipe.optimiser == "sgd" else torch.optim.Adam
    return kind(groups, recipe.lr, weight_decay=recipe.weight_decay)


class _Run:
    """A training run between two updates: everything that must be kept to go on."""

    def __init__(
        self, recipe: Recipe, store: Store, folder: Path, registry: Registry, device: str, start: Model | None
    ) -> None:
        self.recipe, self.folder = recipe, folder
        store = open_training_features(recipe, store, registry)
        self.train: StoreSplit = store.part("train")
        self.val: StoreSplit | None = store.part("val") if recipe.validate_every else None
        if recipe.batch and recipe.way != len(self.train.class_names):
            raise BadInput(
                f"pretraining tells all {len(self.train.class_names)} training classes of {store.path} apart: its "
                f"recipe must have as many ways, not {recipe.way}."
            )
        shape = self.train.items.shape
        self.learner = Learner(recipe, registry, shape[-1], device, start, shape[1])
        self.learner.model.content = str(store.about.get("content", "")) if recipe.frozen else ""
        self.epoch = self.step = 0
        self.seen: list[Float[Tensor, " 2"]] = []  # loss and right predictions of this epoch's updates
        self.best: tuple[float, dict[str, Tensor]] = (-math.inf, {})
        self.history: list[dict[str, Any]] = []
        self.saved = self.written = time.monotonic()
        if (folder / "state.safetensors").exists():
            self._resume()

    def to_the_end(self) -> None:
        while self.epoch < self.recipe.epochs:
            self._one_epoch()
        model = self.learner.model
        if is_first():
            if self.best[1]:
                model.load_state_dict(self.best[1])
            self._tell()
            model.cpu().save(self.folder / "model.safetensors")
            (self.folder / "state.safetensors").unlink(missing_ok=True)
        wait_for_all()

    def _one_epoch(self) -> None:
        recipe = self.recipe
        batches = _batches(recipe, self.train.labels, self.epoch)
        self.learner.model.train()
        while self.step < len(batches):
            batch = batches[self.step]
            shot = 1 if recipe.batch else batch.shape[1]
            labels = self.train.labels[batch] if recipe.batch else np.arange(len(batch)).repeat(shot)
            images = self.train.items[batch.ravel()]
            target = torch.from_numpy(labels).long().to(self.learner.device)
            seed = _seed(recipe.seed, self.epoch, self.step)
            pace = recipe.learning_rate((self.epoch + self.step / len(batches)) / recipe.epochs)
            self.seen.append(self.learner.update(images, target, shot, seed, pace))
            self.step += 1
            if self.step % CHECK_EVERY == 0:
                self._check()
            if time.monotonic() - self.saved > SAVE_EVERY:
                self._save()
        self._close_epoch()

    def _close_epoch(self) -> None:
        self._check()
        loss, right = torch.stack(self.seen).cpu().double().mean(0).tolist()
        self.epoch, self.step, self.seen = self.epoch + 1, 0, []
        row: dict[str, Any] = {"epoch": self.epoch, "loss": round(loss, 5)}
        row["train_accuracy"] = round(100 * right / self.recipe.images, 3)
        row["val_accuracy"] = round(self._validate(), 3) if self._is_validated() else ""
        self.history.append(row)
        if is_first() and time.monotonic() - self.written > TELL_EVERY:
            self._tell()

    def _is_validated(self) -> bool:
        every = self.recipe.validate_every
        return is_first() and self.val is not None and (self.epoch % every == 0 or self.epoch == self.recipe.epochs)

    def _validate(self) -> float:
        """Accuracy on the validation classes at the train shot; the best model so far is kept."""
        recipe, val, model = self.recipe, self.val, self.learner.model
        assert val is not None
        tested = {"queries": recipe.validation_queries, "episodes": recipe.validation_episodes, "seed": recipe.seed}
        plan = Plan(val.labels, shot=recipe.train_shot, class_names=val.class_names, **tested)
        vectors = model.vectors(model.features(val.items))
        accuracy = 100 * float(compute_recalls(vectors, [model.reading], plan, [recipe.train_shot]).mean())
        if accuracy > self.best[0]:
            self.best = accuracy, {name: value.detach().clone() for name, value in model.state_dict().items()}
        return accuracy

    def _check(self) -> None:
        """Stop where the loss is not a number; nothing that came after is ever kept."""
        if not self.seen:
            return
        losses = torch.stack(self.seen)[:, 0].cpu()
        if not losses.isfinite().all():
            step = int((~losses.isfinite()).nonzero()[0])
            state = "the last good state is kept in" if (self.folder / "state.safetensors").exists() else "see"
            raise BadInput(
                f"the loss of {self.recipe.name} became {losses[step]:.0f} at step {step + 1} of epoch "
                f"{self.epoch + 1}: {state} {self.folder}; a smaller learning rate than {self.recipe.lr} may help."
            )

    def _tell(self) -> None:
        write_table(self.folder / "history.csv", self.history)
        self.written = time.monotonic()

    def _save(self) -> None:
        self._check()
        self.saved = time.monotonic()
        if not is_first():
            return
        model, optimiser = self.learner.model, self.learner.optimiser
        tensors = {f"model.{name}": value for name, value in model.state_dict().items()}
        tensors |= {f"best.{name}": value for name, value in self.best[1].items()}
        for index, state in optimiser.state_dict()["state"].items():
            tensors |= {f"optimiser.{index}.{key}": value for key, value in state.items() if value is not None}
        if self.seen:
            tensors["seen"] = torch.stack(self.seen)
        about = {"epoch": self.epoch, "step": self.step, "best": self.best[0], "history": self.history}
        write_tensors(self.folder / "state.safetensors", tensors, {"run": json.dumps(about)})

    def _resume(self) -> None:
        tensors, words = read_tensors(self.folder / "state.safetensors")
        about = json.loads(words["run"])
        parts: dict[str, dict[str, Tensor]] = {"model": {}, "best": {}, "optimiser": {}, "seen": {}}
        for name, value in tensors.items():
            part, _, rest = name.partition(".")
            parts[part][rest] = value
        self.learner.model.load_state_dict(parts["model"])
        state = self.learner.optimiser.state_dict()
        for name, value in parts["optimiser"].items():
            index, _, key = name.partition(".")
            state["state"].setdefault(int(index), {})[key] = value
        self.learner.optimiser.load_state_dict(state)
        self.seen = [seen.to(self.learner.device) for seen in parts["seen"].get("", torch.empty(0, 2))]
        self.best = about["best"], parts["best"]
        self.epoch, self.step, self.history = about["epoch"], about["step"], about["history"]
