"""Pictures by the million to features: shard by shard, on one machine or on Ray; interrupted, it ends the same.

What a shard holds depends on its own pictures alone, and a shard appears whole or not at all (`anyshot.data.shards`):
the same command goes on with those that are missing, and any number of workers end with the same files.
"""

import hashlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save

from anyshot.data.packer import FileBytes, Item
from anyshot.data.shards import is_shard, list_items, read_shards, shard_path
from anyshot.errors import BadInput
from anyshot.files import atomic_write, locked, read_json, remove_leftovers, write_json
from anyshot.models.embedders import Embedder, embed_items, load_embedder
from anyshot.models.registry import load_registry
from anyshot.progress import progress

ROWS = 1024  # pictures of a shard


def embed_source(
    source: Path, out: Path, model: str, on: str = "here", workers: int = 0, using: Path | None = None
) -> str:
    """The `embed` verb: make the shards that are missing; says what there is."""
    if on not in ("here", "ray") and not on.startswith("ray://"):
        raise BadInput(f"pictures are embedded here, on ray or on ray://ADDRESS, not on {on!r}.")
    items = list_items(source)
    if not items:
        raise BadInput(f"there are no pictures in {source}.")
    embeds = load_embedder(model, registry=load_registry(using))
    about = {
        "format": 1,
        "backbone": embeds.about["backbone"],
        "content": embeds.content,
        "pictures": len(items),
        "shards": -(-len(items) // ROWS),
        "source": _fingerprint(items),
    }
    out.mkdir(parents=True, exist_ok=True)
    with locked(out):
        remove_leftovers(out)  # one who was killed may have begun to write shards.json
        if (out / "shards.json").is_file() and read_json(out / "shards.json") != about:
            raise BadInput(f"{out} holds features of other pictures, or of another model: choose another folder.")
        if any(out.iterdir()) and not (out / "shards.json").is_file():
            raise BadInput(f"{out} has other things in it: choose another folder.")
        write_json(out / "shards.json", about)
        missing = [number for number in range(about["shards"]) if not is_shard(shard_path(out, number))]
        with progress(f"embedding {len(items)} pictures", float(len(items))) as advance:
            advance(float(ROWS * (about["shards"] - len(missing))))
            tasks = [(number, items[number * ROWS : (number + 1) * ROWS]) for number in missing]
            for rows in _run(on, tasks, out, embeds, model, workers, using):
                advance(float(rows))
    skipped = sum(len(shard.skipped) for shard in read_shards(out))
    words = f"; {skipped} could not be read, and are named in the shards" if skipped else ""
    return f"{out}: {len(items) - skipped} pictures in {about['shards']} shards{words}."


def _run(
    on: str,
    tasks: Sequence[tuple[int, Sequence[Item]]],
    out: Path,
    embeds: Embedder,
    model: str,
    workers: int,
    using: Path | None,
) -> Iterator[int]:
    if on == "here":
        for number, items in tasks:
            yield write_shard(embeds, items, shard_path(out, number))
    else:
        yield from _on_ray(on, tasks, out.resolve(), model, workers, using)


class _Worker:
    """An embedder in a process of Ray's."""

    def __init__(self, model: str, using: Path | None, out: Path) -> None:
        self.embeds, self.out = load_embedder(model, registry=load_registry(using)), out

    def __call__(self, row: dict[str, Any]) -> dict[str, int]:
        number, items = row["item"]
        return {"rows": write_shard(self.embeds, items, shard_path(self.out, number))}


def _on_ray(
    on: str, tasks: Sequence[tuple[int, Sequence[Item]]], out: Path, model: str, workers: int, using: Path | None
) -> Iterator[int]:
    try:
        import ray
        import ray.data
    except ImportError:
        raise BadInput("`--on ray` needs the extra: pip install 'anyshot[ray]' 'ray[data]'.") from None
    started = not ray.is_initialized()
    if started:
        ray.init(None if on == "ray" else on, log_to_driver=False, logging_level="warning")
    try:
        many = workers or int(ray.cluster_resources().get("CPU", 1))
        ray.data.DataContext.get_current().enable_progress_bars = False
        shards = ray.data.from_items(list(tasks), override_num_blocks=max(1, len(tasks))) if tasks else None
        if shards is not None:
            arguments = {"model": model, "using": using, "out": out}
            done = shards.map(_Worker, fn_constructor_kwargs=arguments, concurrency=min(many, len(tasks)))
            for row in done.iter_rows():
                yield int(row["rows"])
    finally:
        if started:
            ray.shutdown()


def write_shard(embeds: Embedder, items: Sequence[Item], path: Path) -> int:
    """Embed the pictures of one shard; returns how many there were."""
    rows, read, skipped = [], [], []
    for part in embed_items(embeds, items):
        for one in part:
            if one.features is None:
                skipped.append(f"{one.item.name}: {one.why}")
            else:
                rows.append(np.atleast_2d(one.features).astype(np.float32))
                read.append(one.item)
    features = np.stack(rows) if rows else np.zeros((0, 1, 1), np.float32)
    tensors = {"features": features, "skipped": _text(skipped)}
    tensors |= {
        "labels": _text([item.class_name for item in read]),
        "names": _text([item.name for item in read]),
        "splits": _text([item.split or "" for item in read]),
    }
    with atomic_write(path) as aside:
        aside.write_bytes(save(tensors))
    return len(items)


def _text(words: Sequence[str]) -> np.ndarray:
    """Texts as the bytes of lines; a line inside a text is written as a space."""
    lines = "\n".join(" ".join(word.splitlines()) for word in words)
    return np.frombuffer(lines.encode("utf-8", "surrogatepass"), np.uint8)


def _fingerprint(items: Sequence[Item]) -> str:
    digest = hashlib.sha256()
    for item in items:
        size = os.path.getsize(item.read.path) if isinstance(item.read, FileBytes) and item.read.path.is_file() else 0
        digest.update(repr((item.name, item.class_name, item.split, size)).encode("utf-8", "backslashreplace"))
    return digest.hexdigest()[:32]
