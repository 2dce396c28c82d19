"""Training by batch folding (Sec. 4.1 of the paper): a recipe and a store in, a model and its history out.

All randomness of an update is a function of the seed, the epoch and the update's number, and the state is saved between
two updates. A run that is killed at any moment therefore resumes and ends with the weights of an undisturbed one.
Weights are the same for the same recipe, kind of machine, torch and number of threads; `run.json` records these, and a
resumed run uses the number of threads it began with.

The folder of a run: recipe.json, run.json, history.csv (a row per epoch), state.safetensors while it runs,
model.safetensors when it is done.
"""

import json
import math
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int, Shaped
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from anyshot.concurrency import map_in_order
from anyshot.data.augmentation import augment, cut_frames
from anyshot.data.store import Frames, Store, StoreSplit
from anyshot.errors import BadInput, as_bad_input
from anyshot.files import read_json, write_json
from anyshot.measure.engine import compute_recalls, compute_vectors
from anyshot.measure.plan import Protocol
from anyshot.models.cache import FeatureCache
from anyshot.models.devices import CHOICE, has_bfloat16, to_gpu, training_device, use_threads
from anyshot.models.embedders import load_embedder
from anyshot.models.heads import overlap_loss
from anyshot.models.law import fold_logits
from anyshot.models.model import Model, load_model, read_tensors, write_tensors
from anyshot.models.registry import BUILTIN, Registry
from anyshot.progress import progress
from anyshot.recipe import Recipe
from anyshot.tables import write_table
from anyshot.train.batches import pretraining_batches, training_batches
from anyshot.train.parallel import count_processes, gather_batch, is_first, local_share, synchronise_norms, wait_for_all

SAVE_EVERY = 10.0  # seconds between saved states
WRITE_HISTORY_EVERY = 1.0  # seconds
PREFETCHED = 2  # batches that are read while another is trained on


def train(recipe: Recipe, store: Store, folder: Path, registry: Registry = BUILTIN, device: str | None = None) -> Model:
    """Train a model into a folder, resuming from what is there.

    Args:
        recipe: What to train.
        store: Images, or features for a recipe with a frozen backbone.
        folder: Folder of the run.
        registry: What the recipe's head and backbone are looked up in.
        device: Where to train; that of `--device`, or the best there is, where None.

    Returns:
        The best model on the validation classes, or the last where the recipe does not validate.

    Raises:
        BadInput: Where the recipe does not suit the store, or the folder holds another recipe.
    """
    check_recipe(recipe, store, registry)  # before anything is written
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
                store = open_training_features(recipe, store, registry)
                _Run(recipe, store, folder, registry, device, start).finish()
        return load_model(folder, registry)


def check_recipe(recipe: Recipe, store: Store, registry: Registry = BUILTIN) -> None:
    """Raise BadInput where there is no such head, or the store has too few images for a batch."""
    registry.head(recipe.head)
    _draw_batches(recipe, store.part("train").labels, 0)


def open_training_features(recipe: Recipe, store: Store, registry: Registry = BUILTIN) -> Store:
    """Return the store that a recipe trains on: of images, or of features where its backbone is frozen.

    Features of a store of images are computed once; after that they come from the cache.
    """
    if recipe.frozen == store.is_features:
        return store
    if not recipe.frozen:
        raise BadInput(f"{store.path} holds features: a recipe for them must be frozen, which {recipe.name} is not.")
    embeds = load_embedder(recipe.backbone, registry=registry)
    with progress(f"embedding {store.path.name}", float(len(store.items))) as advance:
        features = embeds.features(store.items, advance, FeatureCache())
    about = {**store.about, "content": embeds.fingerprint}  # identifies the backbone, as in a packed store of features
    return replace(store, items=features if features.ndim == 3 else features[:, None], about=about)


def _draw_batches(recipe: Recipe, labels: Int[np.ndarray, " image"], epoch: int) -> list[np.ndarray]:
    """Return the batches of one epoch, as indices of images."""
    if recipe.batch:
        return pretraining_batches(labels, recipe.batch, recipe.seed, epoch)
    return training_batches(labels, recipe.way, recipe.train_shot, recipe.seed, epoch, recipe.mixed)


def _claim(folder: Path, recipe: Recipe) -> None:
    """Write the recipe into its folder, or raise BadInput where the folder holds another."""
    path = folder / "recipe.json"
    wanted = json.loads(recipe.to_json())
    if path.exists():
        present = read_json(path)
        if present != wanted:
            differ = ", ".join(key for key in wanted if present.get(key) != wanted[key]) or "unknown fields"
            raise BadInput(f"{folder} holds a model of another recipe (it differs in {differ}): choose another folder.")
    elif is_first():
        write_json(path, wanted)
    wait_for_all()


def _record(folder: Path, device: str) -> int:
    """Record what the weights depend on besides the recipe, and return the number of threads to use."""
    path = folder / "run.json"
    if not path.exists() and is_first():
        threads = torch.get_num_threads()
        about = {"device": device, "threads": threads, "processes": count_processes(), "torch": torch.__version__}
        write_json(path, about | ({"amp": True} if CHOICE.amp else {}))
    wait_for_all()
    return int(read_json(path)["threads"])


def _seed(*parts: int) -> int:
    """Return one seed from several numbers."""
    return int(np.random.SeedSequence(parts).generate_state(1)[0])


Images = Shaped[np.ndarray, "image ..."] | Frames


class Batch(NamedTuple):
    """Images of a batch, boxes to cut out of them where these are drawn already, and the numbers of augmentation."""

    pixels: Tensor
    boxes: Tensor | None
    draws: torch.Generator


class Learner:
    """A model and its optimiser: everything that an update reads and changes.

    Args:
        recipe: What is trained.
        registry: What its head and backbone are looked up in.
        channels: Channels of the images, or of features.
        device: Where it trains.
        start: The model whose backbone it begins with, if any.
        positions: Positions of features, where the backbone is frozen.
    """

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
        self.amp = recipe.amp or CHOICE.amp
        if self.amp and torch.device(device).type == "cpu" and not has_bfloat16():
            raise BadInput(f"{recipe.name} asks for bfloat16 (amp), which this CPU cannot multiply: leave amp out.")
        torch.manual_seed(recipe.seed)
        self.model = Model(recipe, channels, registry, positions)
        self.head = self.model.head
        if recipe.overlap and self.head.auxiliary is not overlap_loss:
            raise BadInput(f"overlap is a term of heads that embed Gram matrices (frn), not of {recipe.head}.")
        if recipe.batch and self.head.class_logits is None:
            raise BadInput(f"{recipe.head} cannot be pretrained (batch={recipe.batch}): it has no class_logits.")
        if start is not None:
            self._load_backbone(start)
        self.model.to(device)
        backbone: Any = self.model.backbone
        backbone.recompute = CHOICE.low_memory
        self.is_cuda = torch.device(device).type == "cuda"
        if self.is_cuda:
            torch.backends.cudnn.benchmark = True  # batches have one shape: the search for kernels pays
            backbone.to(memory_format=torch.channels_last)
        if recipe.compile:
            backbone.compile()
        self.optimiser = _optimiser(recipe, self.model)
        self.network: torch.nn.Module = self.model
        if count_processes() > 1:
            synchronise_norms(self.model)
            self.network = DistributedDataParallel(self.model)

    def _load_backbone(self, start: Model) -> None:
        """Load the backbone of another model, which must have the same shape, and its temperature where asked for."""
        other = start.recipe
        another = f"{other.backbone} of width {other.width} for {start.channels} channels is another"
        same = "backbone, width and channels must be the same"
        with as_bad_input(RuntimeError, f"{self.recipe.name} cannot begin with {other.name}: {same}; {another}."):
            self.model.backbone.load_state_dict(start.backbone.state_dict())
        for name, value in self.model.backbone.named_buffers():
            if name.endswith("num_batches_tracked"):
                value.zero_()  # DropBlock grows with the batches of this training, as in the code of FEAT's authors
        if self.recipe.start_scale:
            with torch.no_grad():
                self.model.learned["scale"].copy_(start.learned["scale"])

    def read_batch(self, images: Images, seed: int) -> Batch:
        """Return images as an update takes them; this may run in another thread, ahead of the updates."""
        draws = torch.Generator().manual_seed(seed + 1)  # of augmentation: the same on every device
        boxes = None
        if isinstance(images, Frames):
            images, boxes = cut_frames(images, self.recipe.augment, draws)
        pixels = torch.from_numpy(np.ascontiguousarray(images))
        return Batch(pixels.pin_memory() if self.is_cuda else pixels, boxes, draws)

    def update(self, images: Images | Batch, target: Tensor, shot: int, seed: int, pace: float) -> Float[Tensor, " 2"]:
        """Make one step of the optimiser.

        Args:
            images: A batch of images, or of features where the backbone is frozen. In batch folding they are ordered by
                class, `shot` of each. They may have been read before (`read_batch`, with the same seed).
            target: The class of each image.
            shot: Images per class.
            seed: Seed of dropout and augmentation.
            pace: What the learning rates are multiplied by.

        Returns:
            The loss and the number of correct predictions, left on the device.
        """
        recipe, kind = self.recipe, self.model.kind
        ready = images if isinstance(images, Batch) else self.read_batch(images, seed)
        torch.manual_seed(seed)  # dropout
        for group in self.optimiser.param_groups:
            group["lr"] = group["base"] * pace
        batch = ready.pixels.to(self.device, non_blocking=True)
        if not recipe.frozen:
            batch = augment(batch, recipe.augment, ready.draws, recipe.size, kind.margin, kind.moments, ready.boxes)
        with torch.autocast(torch.device(self.device).type, torch.bfloat16, enabled=self.amp):
            maps = self.network(batch[local_share(len(batch))])
        vectors = gather_batch(self.model.embed(maps.float(), dict(self.model.learned.items())), len(batch))
        loss, logits = self._loss(vectors, target, shot)
        self.optimiser.zero_grad()
        loss.backward()
        self.optimiser.step()
        with torch.no_grad():
            return torch.stack([loss, (logits.argmax(1) == target).sum()])

    def _loss(self, vectors: Float[Tensor, "image d"], target: Tensor, shot: int) -> tuple[Tensor, Tensor]:
        learned = dict(self.model.learned.items())
        if self.head.class_logits is not None and self.recipe.batch:
            logits = self.head.class_logits(learned, vectors)
            return F.cross_entropy(logits, target), logits
        classes = vectors.unflatten(0, (-1, shot))
        logits = fold_logits(self.head, learned, classes)
        loss = F.cross_entropy(logits, target)
        if self.head.auxiliary is not None:
            term = self.head.auxiliary(self.head, learned, classes, self.recipe)
            loss = loss if term is None else loss + term
        return loss, logits


def _optimiser(recipe: Recipe, model: Model) -> torch.optim.Optimizer:
    """Return the optimiser of the backbone and of the head's parameters, each with its own learning rate."""
    rates = {model.backbone: recipe.lr, model.learned: recipe.head_lr or recipe.lr}
    groups = [{"params": list(part.parameters()), "base": rate} for part, rate in rates.items()]
    sgd = partial(torch.optim.SGD, momentum=0.9, nesterov=True)
    kind: Any = sgd if recipe.optimiser == "sgd" else torch.optim.Adam
    return kind(groups, recipe.lr, weight_decay=recipe.weight_decay)


class _Run:
    """A training run between two updates: everything that must be saved to resume."""

    def __init__(
        self, recipe: Recipe, store: Store, folder: Path, registry: Registry, device: str, start: Model | None
    ) -> None:
        self.recipe, self.folder = recipe, folder
        self.train: StoreSplit = store.part("train")
        self.val: StoreSplit | None = store.part("val") if recipe.validate_every else None
        if recipe.batch and recipe.way != len(self.train.class_names):
            raise BadInput(
                f"pretraining classifies among all {len(self.train.class_names)} training classes of {store.path}: its "
                f"recipe must have as many ways, not {recipe.way}."
            )
        shape = self.train.items.shape
        self.learner = Learner(recipe, registry, shape[-1], device, start, shape[1])
        self.learner.model.fingerprint = str(store.about.get("content", "")) if recipe.frozen else ""
        self.epoch = self.step = 0
        self.results: list[Float[Tensor, " 2"]] = []  # loss and correct predictions of this epoch's updates
        self.best: tuple[float, dict[str, Tensor]] = (-math.inf, {})
        self.history: list[dict[str, Any]] = []
        self.last_save = self.last_history = time.monotonic()
        if (folder / "state.safetensors").exists():
            self._resume()

    def finish(self) -> None:
        """Train the remaining epochs and write the model."""
        while self.epoch < self.recipe.epochs:
            self._train_epoch()
        model = self.learner.model
        if is_first():
            if self.best[1]:
                model.load_state_dict(self.best[1])
            self._write_history()
            model.cpu().save(self.folder / "model.safetensors")
            (self.folder / "state.safetensors").unlink(missing_ok=True)
        wait_for_all()

    def _train_epoch(self) -> None:
        recipe = self.recipe
        batches = _draw_batches(recipe, self.train.labels, self.epoch)
        self.learner.model.train()
        seeds = [_seed(recipe.seed, self.epoch, step) for step in range(len(batches))]

        def read(step: int) -> Batch:
            return self.learner.read_batch(self.train.items[batches[step].ravel()], seeds[step])

        for images in map_in_order(ThreadPoolExecutor(1), read, range(self.step, len(batches)), PREFETCHED):
            batch = batches[self.step]
            shot = 1 if recipe.batch else batch.shape[1]
            labels = self.train.labels[batch] if recipe.batch else np.arange(len(batch)).repeat(shot)
            target = torch.from_numpy(labels).long().to(self.learner.device)
            pace = recipe.learning_rate((self.epoch + self.step / len(batches)) / recipe.epochs)
            self.results.append(self.learner.update(images, target, shot, seeds[self.step], pace))
            self.step += 1
            if time.monotonic() - self.last_save > SAVE_EVERY:
                self._save()
        self._close_epoch()

    def _close_epoch(self) -> None:
        self._check()
        loss, correct = torch.stack(self.results).cpu().double().mean(0).tolist()
        self.epoch, self.step, self.results = self.epoch + 1, 0, []
        row: dict[str, Any] = {"epoch": self.epoch, "loss": round(loss, 5)}
        row["train_accuracy"] = round(100 * correct / self.recipe.images, 3)
        row["val_accuracy"] = round(self._validate(), 3) if self._is_validated() else ""
        self.history.append(row)
        if is_first() and time.monotonic() - self.last_history > WRITE_HISTORY_EVERY:
            self._write_history()

    def _is_validated(self) -> bool:
        period = self.recipe.validate_every
        return is_first() and self.val is not None and (self.epoch % period == 0 or self.epoch == self.recipe.epochs)

    def _validate(self) -> float:
        """Return the accuracy on the validation classes at the train shot, and keep the best model so far."""
        recipe, val, model = self.recipe, self.val, self.learner.model
        assert val is not None
        sizes = {"queries": recipe.validation_queries, "episodes": recipe.validation_episodes, "seed": recipe.seed}
        plan = Protocol((recipe.train_shot,), **sizes).plan(val.labels, val.class_names)
        features = to_gpu(torch.from_numpy(model.features(val.items)), self.learner.device)
        vectors = compute_vectors(features, model.embed, model.bound_head.parameters)  # Gram matrices only as needed
        accuracy = 100 * float(compute_recalls(vectors, [model.bound_head], plan, [recipe.train_shot]).mean())
        if accuracy > self.best[0]:
            self.best = accuracy, {name: value.detach().clone() for name, value in model.state_dict().items()}
        return accuracy

    def _check(self) -> None:
        """Raise BadInput where a loss is not finite, before such a state is saved or an epoch ends."""
        losses = torch.stack(self.results)[:, 0].cpu()
        if not losses.isfinite().all():
            step = int((~losses.isfinite()).nonzero()[0])
            state = "the last good state is kept in" if (self.folder / "state.safetensors").exists() else "see"
            raise BadInput(
                f"the loss of {self.recipe.name} became {losses[step]:.0f} at step {step + 1} of epoch "
                f"{self.epoch + 1}: {state} {self.folder}; a smaller learning rate than {self.recipe.lr} may help."
            )

    def _write_history(self) -> None:
        write_table(self.folder / "history.csv", self.history)
        self.last_history = time.monotonic()

    def _save(self) -> None:
        self._check()
        self.last_save = time.monotonic()
        if not is_first():
            return
        model, optimiser = self.learner.model, self.learner.optimiser
        tensors = {f"model.{name}": value for name, value in model.state_dict().items()}
        tensors |= {f"best.{name}": value for name, value in self.best[1].items()}
        for index, state in optimiser.state_dict()["state"].items():
            tensors |= {f"optimiser.{index}.{key}": value for key, value in state.items() if value is not None}
        tensors["seen"] = torch.stack(self.results)
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
        self.results = [result.to(self.learner.device) for result in parts["seen"].get("", torch.empty(0, 2))]
        self.best = about["best"], parts["best"]
        self.epoch, self.step, self.history = about["epoch"], about["step"], about["history"]
