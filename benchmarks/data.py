"""Our batch path (read from a store, augment, normalise) against a plain loader (Pillow, one image file at a time).

    python benchmarks/data.py

Same pictures, same augmentations, same output (normalised float batches of 256), one thread each, contenders alternated
in one run; CPU time, best of the rounds. The plain loader opens JPEG files of the size that the store holds (raw
photos would take it several times longer); the second ratio spares it even the files and the decoding.
Goals: 6x with crop, flip and jitter and 3x with RandomResizedCrop at 84x84, 20x at 32x32; a store of 60,000 images
opens and gives its first batch in 0.2 s (a batch that must come from the disk is shown beside it: that is the disk's
time); memory does not grow with the store. Takes about a minute and 1.5 GB of disk.
"""

import os
import random
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
import pil_loader

from anyshot.data.augmentation import augment
from anyshot.data.pack import pack
from anyshot.data.store import open_store, write_store

BATCH, IMAGES, ROUNDS = 256, 1024, 12
CROP, RESIZED = ("crop", "flip", "jitter"), ("resized-crop", "flip", "jitter")
CASES = [("84x84", 84, 84, CROP, 6.0), ("84x84", 92, 84, RESIZED, 3.0), ("32x32", 32, 32, CROP, 20.0)]


def photos(folder: Path, side: int) -> list[Path]:
    """JPEG files with some structure: blobs of colour with noise on them."""
    rng = np.random.default_rng(side)
    paths = []
    for index in range(IMAGES):
        blobs = Image.fromarray(rng.integers(0, 256, (6, 6, 3), dtype=np.uint8)).resize(
            (side, side), Image.Resampling.BICUBIC
        )
        noisy = np.clip(np.asarray(blobs) + rng.normal(0, 12, (side, side, 3)), 0, 255).astype(np.uint8)
        paths.append(folder / f"class {index % 16}" / f"{index}.jpg")
        paths[-1].parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(noisy).save(paths[-1], quality=90)
    return paths


def seconds(run) -> float:
    start = time.process_time()
    run()
    return time.process_time() - start


def compare(folder: Path, side: int, size: int, names: tuple[str, ...]) -> tuple[float, float, float]:
    """Microseconds per image: from our store, from files with Pillow, from arrays with Pillow."""
    paths = photos(folder / "photos", side)
    part = pack("folder", folder / "photos", folder / "store", size=side, split=(1, 0, 0)).part("train")
    generator, rng = torch.Generator().manual_seed(0), random.Random(0)
    draw = np.random.default_rng(0)

    def ours() -> None:
        batch = torch.from_numpy(part.items[draw.integers(0, IMAGES, BATCH)])
        augment(batch, names, generator, size)

    def from_files() -> None:
        batch = []
        for path in rng.sample(paths, BATCH):
            with Image.open(path) as image:
                batch.append(pil_loader.augmented(np.asarray(image.convert("RGB")), names, size, rng))
        torch.from_numpy(np.stack(batch))

    def from_arrays() -> None:
        batch = part.items[draw.integers(0, IMAGES, BATCH)]
        torch.from_numpy(np.stack([pil_loader.augmented(image, names, size, rng) for image in batch]))

    runs = (ours, from_files, from_arrays)
    times = [[seconds(run) for run in runs] for _ in range(ROUNDS + 1)][1:]
    ours_, files, arrays = (1e6 / BATCH * min(column) for column in zip(*times, strict=True))
    return ours_, files, arrays


def anonymous_megabytes() -> float:
    """Memory that the process owns, without the pages of mapped files, which the system takes back at will."""
    status = Path("/proc/self/status").read_text()
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith("RssAnon"))) / 1024


def large_store(folder: Path) -> dict[str, float]:
    """Of 60,000 images at 84x84: seconds to open and read a first batch, MB owned after one batch and after 200."""
    rng = np.random.default_rng(0)
    chunks = (rng.integers(0, 256, (1000, 84, 84, 3), dtype=np.uint8) for _ in range(60))
    write_store(folder / "large", chunks, np.arange(60_000) // 600, [str(i) for i in range(100)], ["train"] * 100)

    def first_batch() -> float:
        start = time.perf_counter()
        open_store(folder / "large").part("train").items[rng.integers(0, 60_000, BATCH)]
        return time.perf_counter() - start

    measured = {"open": first_batch(), "first": anonymous_megabytes()}
    part = open_store(folder / "large").part("train")
    for _ in range(200):
        part.items[rng.integers(0, 60_000, BATCH)]
    measured["last"] = anonymous_megabytes()
    del part
    with (folder / "large" / "items.npy").open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return {**measured, "disk": first_batch()}


ALLOCATOR = {"OMP_NUM_THREADS": "1", "MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(1 << 40)}


def main() -> None:
    if not ALLOCATOR.items() <= os.environ.items():  # memory is kept between batches, as in the runs of a study
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **ALLOCATOR})
    torch.set_num_threads(1)
    met = True
    print(f"{'':38} {'ours':>8} {'files':>8} {'arrays':>8}   us per image")
    for label, side, size, names, goal in CASES:
        with tempfile.TemporaryDirectory() as folder:
            ours, files, arrays = compare(Path(folder), side, size, names)
        met &= files / ours >= goal
        title = f"{label} {'+'.join(names)}"
        print(f"{title:38} {ours:8.1f} {files:8.1f} {arrays:8.1f}", end="   ")
        print(f"{1e6 / ours:6.0f} images/s: {files / ours:.1f}x (goal {goal:.0f}x), arrays {arrays / ours:.1f}x")
    with tempfile.TemporaryDirectory() as folder:
        large = large_store(Path(folder))
    met &= large["open"] < 0.2 and large["last"] - large["first"] < 20
    print(
        f"60,000 images: open and first batch {large['open']:.3f} s (goal 0.2), from disk {large['disk']:.3f} s; "
        f"memory {large['first']:.0f} MB after one batch, {large['last']:.0f} MB after 200"
    )
    sys.exit(0 if met else 1)


if __name__ == "__main__":
    main()
