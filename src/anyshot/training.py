"""Training by batch folding (Sec. 4.1): a recipe and a store in, a checkpoint and its history out.

All randomness of an epoch is a pure function of the seed and the epoch, and the state is kept whole at epoch ends, so a
run killed at any moment resumes and ends with the same weights as an undisturbed one.
"""

import json
import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor

from anyshot.data.augmentation import augment
from anyshot.data.store import Part, Store
from anyshot.engine import Reading, recalls
from anyshot.episodes import Plan, training_batches
from anyshot.errors import BadInput, choose
from anyshot.files import read_json, whole, write_json
from anyshot.heads import HEADS, Head, contrastive, fold
from anyshot.model import Model, load_model, read_tensors
from anyshot.recipe import Recipe
from anyshot.table import write_table

SAVE_EVERY = 10.0  # seconds between kept states


def train(
    recipe: Recipe,
    store: Store,
    folder: Path,
    heads: Mapping[str, Head] = HEADS,
    progress: Callable[[float, str], None] = lambda epochs, note: None,
    device: str | None = None,
) -> Model:
    """Train what the recipe says into `folder`, going on from what is there; returns the best model."""
    claim(folder, recipe)
    head = choose("head", recipe.head, heads)
    if (folder / "model.safetensors").exists():
        progress(recipe.epochs, "")
        return load_model(folder, dict(heads))
    with torch.random.fork_rng():
        run = _Run(recipe, store, folder, head, device or best_device())
        progress(run.epoch, "")
        while run.epoch < recipe.epochs:
            run.one_epoch()
            progress(1, run.note)
        return run.finish()


def claim(folder: Path, recipe: Recipe) -> None:
    """Make `folder` the recipe's own, or say that it belongs to another."""
    theirs = folder / "recipe.json"
    mine = json.loads(recipe.to_json())
    if not theirs.exists():
        write_json(theirs, mine)
    elif (other := read_json(theirs)) != mine:
        differ = ", ".join(key for key in mine if other.get(key) != mine[key]) or "unknown fields"
        raise BadInput(f"{folder} holds a model of another recipe (it differs in {differ}): choose another folder.")


def best_device() -> str:
    """CUDA or MPS where there is one, else the CPU."""
    return "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"


def seed_of(*parts: int) -> int:
    """One seed from several numbers."""
    return int(np.random.SeedSequence(parts).generate_state(1)[0])


class _Run:
    """A training run between two epochs: everything that must be kept to go on."""

    def __init__(self, recipe: Recipe, store: Store, folder: Path, head: Head, device: str) -> None:
        self.recipe, self.folder, self.head, self.device = recipe, folder, head, device
        self.train: Part = store.part("train")
        self.val: Part | None = store.part("val") if recipe.validate_every else None
        torch.manual_seed(recipe.seed)
        self.model = Model(recipe, self.train.items.shape[-1], head).to(device)
        groups: list[dict[str, Any]] = [
            {"params": list(self.model.backbone.parameters()), "base": recipe.lr},
            {"params": list(self.model.learned.parameters()), "base": recipe.head_lr or recipe.lr},
        ]
        if recipe.optimiser == "sgd":
            self.optimiser: torch.optim.Optimizer = torch.optim.SGD(
                groups, recipe.lr, momentum=0.9, weight_decay=recipe.weight_decay, nesterov=True
            )
        else:
            self.optimiser = torch.optim.Adam(groups, recipe.lr, weight_decay=recipe.weight_decay)
        self.epoch, self.note = 0, ""
        self.best: tuple[float, dict[str, Tensor]] = (-math.inf, {})
        self.history: list[dict[str, Any]] = []
        self.saved = time.monotonic()
        if (folder / "state.safetensors").exists():
            self._resume()

    def one_epoch(self) -> None:
        recipe = self.recipe
        torch.manual_seed(seed_of(recipe.seed, self.epoch, 1))  # dropout
        generator = torch.Generator(self.device).manual_seed(seed_of(recipe.seed, self.epoch, 2))  # augmentation
        batches = training_batches(self.train.labels, recipe.way, recipe.train_shot, recipe.seed, self.epoch)
        target = torch.arange(recipe.way, device=self.device).repeat_interleave(recipe.train_shot)
        self.model.train()
        losses, right = [], 0
        for step, batch in enumerate(batches):
            share = recipe.learning_rate((self.epoch + step / len(batches)) / recipe.epochs)
            for group in self.optimiser.param_groups:
                group["lr"] = group["base"] * share
            images = torch.from_numpy(np.ascontiguousarray(self.train.items[batch.ravel()])).to(self.device)
            maps = self.model(augment(images, recipe.augment, generator, recipe.size))
            vectors = self.model.embed(maps).unflatten(0, batch.shape)
            learned = dict(self.model.learned.items())
            logits = fold(self.head, learned, vectors)
            loss = F.cross_entropy(logits, target)
            if recipe.contrastive and self.head.couples:
                aside = contrastive(self.head, learned, vectors)
                loss = loss + recipe.contrastive * F.cross_entropy(aside, target)
            if not math.isfinite(losses_now := loss.item()):
                self._stop(losses_now, step)
            self.optimiser.zero_grad()
            loss.backward()
            self.optimiser.step()
            losses.append(losses_now)
            right += int((logits.argmax(1) == target).sum())
        self.epoch += 1
        row: dict[str, Any] = {"epoch": self.epoch, "loss": round(float(np.mean(losses)), 5)}
        row["train_accuracy"] = round(100 * right / (len(batches) * len(target)), 3)
        row["val_accuracy"] = round(self._validate(), 3) if self._is_validated() else ""
        self.history.append(row)
        if time.monotonic() - self.saved > SAVE_EVERY:
            self._save()

    def finish(self) -> Model:
        if self.best[1]:
            self.model.load_state_dict(self.best[1])
        write_table(self.folder / "history.csv", self.history)
        self.model.cpu().eval().save(self.folder / "model.safetensors")
        (self.folder / "state.safetensors").unlink(missing_ok=True)
        return self.model

    def _is_validated(self) -> bool:
        every = self.recipe.validate_every
        return self.val is not None and (self.epoch % every == 0 or self.epoch == self.recipe.epochs)

    def _validate(self) -> float:
        """Accuracy on the validation classes at the train shot; the best model so far is kept."""
        recipe, val = self.recipe, self.val
        assert val is not None
        plan = Plan(
            val.labels,
            shot=recipe.train_shot,
            queries=recipe.validation_queries,
            episodes=recipe.validation_episodes,
            seed=recipe.seed,
            class_names=val.class_names,
        )
        features = torch.from_numpy(self.model.features(val.items))
        learned = {name: value.detach().cpu() for name, value in self.model.learned.items()}
        reading = Reading(self.head, learned)
        accuracy = 100 * float(recalls(self.model.embed(features), [reading], plan, [recipe.train_shot]).mean())
        if accuracy > self.best[0]:
            self.best = accuracy, {name: value.detach().clone() for name, value in self.model.state_dict().items()}
        self.note = f"{recipe.head} {recipe.train_shot}-shot: {accuracy:.1f} % on validation classes"
        return accuracy

    def _stop(self, loss: float, step: int) -> None:
        raise BadInput(
            f"the loss of {self.recipe.name} became {loss} at step {step} of epoch {self.epoch + 1}: its last good "
            f"state is kept in {self.folder}; a smaller learning rate than {self.recipe.lr} may help."
        )

    def _save(self) -> None:
        state = self.optimiser.state_dict()["state"]
        tensors = {f"model.{name}": value for name, value in self.model.state_dict().items()}
        tensors |= {f"best.{name}": value for name, value in self.best[1].items()}
        tensors |= {f"optimiser.{i}.{key}": v for i, kept in state.items() for key, v in kept.items() if v is not None}
        about = {"epoch": self.epoch, "best": self.best[0], "history": self.history}
        with whole(self.folder / "state.safetensors") as aside:
            save_file({name: v.contiguous() for name, v in tensors.items()}, aside, {"run": json.dumps(about)})
        write_table(self.folder / "history.csv", self.history)
        self.saved = time.monotonic()

    def _resume(self) -> None:
        tensors, words = read_tensors(self.folder / "state.safetensors")
        about = json.loads(words["run"])
        parts: dict[str, dict[str, Tensor]] = {"model": {}, "best": {}, "optimiser": {}}
        for name, value in tensors.items():
            part, _, rest = name.partition(".")
            parts[part][rest] = value
        self.model.load_state_dict(parts["model"])
        kept = self.optimiser.state_dict()
        for name, value in parts["optimiser"].items():
            index, _, key = name.partition(".")
            kept["state"].setdefault(int(index), {})[key] = value
        self.optimiser.load_state_dict(kept)
        self.epoch, self.history = about["epoch"], about["history"]
        self.best = about["best"], parts["best"]
