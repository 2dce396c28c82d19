"""Many clients at once against `anyshot serve` on loopback: requests, errors, times, growth of memory.

    python benchmarks/serving.py                   50 clients, 30 seconds
    python benchmarks/serving.py --seconds 3       a short one

A small untrained Conv-4 is served: what is measured is the server, not the accuracy. One request in fifty adds an
example, so that the classifier changes while the others read it; its classes have all the examples that are kept from
the start, so that it does not grow. Memory is that of the server's process, after a
warm-up of a sixth of the time and at the end.
"""

import argparse
import asyncio
import io
import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import numpy as np
from PIL import Image

from anyshot.classify.images import ImageClassifier
from anyshot.models.model import Model
from anyshot.recipe import Recipe


def picture(channel: int, seed: int = 0) -> bytes:
    rng = np.random.default_rng([channel, seed])
    pixels = rng.integers(0, 90, (120, 160, 3))
    pixels[..., channel] += 120
    file = io.BytesIO()
    Image.fromarray(pixels.astype(np.uint8)).save(file, "JPEG")
    return file.getvalue()


def make_model(folder: Path, size: int = 84) -> None:
    recipe = Recipe(data="none", head="cosine-proto", train_shot=4, way=4, size=size)
    images = [
        (picture(channel, seed), name) for channel, name in enumerate(("red", "green", "blue")) for seed in range(32)
    ]
    ImageClassifier(Model(recipe, 3).eval()).fit(*zip(*images, strict=True)).save(folder)


def memory(pid: int) -> float:
    """Resident megabytes of a process; NaN where the system does not tell."""
    status = Path(f"/proc/{pid}/status")
    resident = re.search(r"VmRSS:\s+(\d+) kB", status.read_text()) if status.exists() else None
    return int(resident[1]) / 1000 if resident else float("nan")


async def load(url: str, clients: int, seconds: float, pid: int) -> dict[str, float]:
    """Requests of all clients until the time is over."""
    took: list[float] = []
    wrong: list[str] = []
    stop = time.monotonic() + seconds
    images = [picture(number % 3, number) for number in range(30)]
    kind = {"Content-Type": "image/jpeg"}

    async def client(number: int) -> None:
        async with httpx.AsyncClient(base_url=url, timeout=60) as http:
            turn = number
            while time.monotonic() < stop:
                turn += 1
                start = time.perf_counter()
                try:
                    if turn % 50 == 0:
                        name = ("red", "green", "blue")[turn % 3]
                        path = f"/api/classes/examples?name={name}"
                        answer = await http.post(path, content=picture(turn % 3, turn), headers=kind)
                    else:
                        answer = await http.post("/api/classify", content=images[turn % 30], headers=kind)
                    if answer.status_code != 200:
                        wrong.append(answer.text)
                except httpx.HTTPError as error:
                    wrong.append(repr(error))
                took.append(time.perf_counter() - start)

    async def watch() -> list[float]:
        seen = []
        for wait in (seconds / 6, seconds / 3):
            await asyncio.sleep(wait)
            seen.append(memory(pid))
        return seen

    (warm, half), *_ = await asyncio.gather(watch(), *(client(number) for number in range(clients)))
    return {
        "clients": clients,
        "seconds": seconds,
        "requests": len(took),
        "requests_per_second": round(len(took) / seconds, 1),
        "errors": len(wrong),
        "median_ms": round(1000 * float(np.median(took)), 1),
        "p99_ms": round(1000 * float(np.quantile(took, 0.99)), 1),
        "memory_mb_after_warm_up": round(warm, 1),
        "memory_mb_half_way": round(half, 1),
        "memory_mb_at_the_end": round(memory(pid), 1),
    }


@contextmanager
def served(size: int = 84) -> Iterator[tuple[str, int]]:
    """A server of its own, started by the command line: its address and the id of its process."""
    with tempfile.TemporaryDirectory() as folder:
        make_model(Path(folder) / "model", size)
        command = [sys.executable, "-m", "anyshot", "serve", str(Path(folder) / "model"), "--port", "0"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
            try:
                assert server.stdout is not None
                address = re.search(r"http://\S+", server.stdout.readline())
                assert address, "the server did not start"
                yield address[0], server.pid
            finally:
                server.terminate()


def measure(clients: int, seconds: float, size: int = 84) -> dict[str, float]:
    """Start a server, load it, end it."""
    with served(size) as (url, pid):
        return asyncio.run(load(url, clients, seconds, pid))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=30)
    asked = parser.parse_args()
    print(json.dumps(measure(asked.clients, asked.seconds), indent=2))
