"""The evaluation engine beside easyfsl and plain per-episode loops: same features, same machine, same run.

    pip install --no-deps easyfsl tqdm
    python benchmarks/evaluation.py            about 15 minutes on two cores; --quick for three
    python benchmarks/evaluation.py --resnet   ResNet-12 features too
    python benchmarks/evaluation.py --chart docs/images/evaluation.png
    python benchmarks/evaluation.py --beside   beside a busy process, and nothing else; a minute

Conv-4 features of 20 classes x 600 images, 5-way, 16 queries, test shots 1..32. Contenders take turns and the median of
the repeats counts; every figure is milliseconds of wall time per six-shot trial unless it says otherwise.
"""

import anyshot  # noqa: F401, I001 (before torch, as the command line: it chooses how threads wait)

import argparse
import contextlib
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import altair as alt
import numpy as np
import torch
from peers import easyfsl_row, loop_row

from anyshot.machine import count_free_cores, keep_freed_memory
from anyshot.measure.engine import compute_recalls, compute_vectors
from anyshot.measure.plan import Plan
from anyshot.models.gram import gram
from anyshot.models.heads import HEADS
from anyshot.models.law import Embed, BoundHead
from anyshot.models.model import Model
from anyshot.models.registry import BUILTIN
from anyshot.recipe import Recipe
from anyshot.show import figures
from anyshot.train.training import Learner

HERE = Path(__file__).resolve().parent
SHOTS = (1, 2, 4, 8, 16, 32)
LABELS = np.repeat(np.arange(20), 600)
PAIR = ["proto", "cosine-proto"]
RECIPE = Recipe(data="benchmark", head="frn", train_shot=4, way=5)


SPEED: list[dict[str, object]] = []  # what the chart shows


def maps(positions: int, channels: int) -> torch.Tensor:
    """Non-negative features with a class in them, as a ReLU network's."""
    generator = torch.Generator().manual_seed(0)
    kinds = torch.rand(20, positions, channels, generator=generator).repeat_interleave(600, 0)
    noise = torch.randn(len(LABELS), positions, channels, generator=generator)
    return (kinds + 1.5 * noise).relu_()


def ours(features: torch.Tensor, names: list[str], episodes: int, shots: tuple[int, ...] = SHOTS) -> np.ndarray:
    """From cached features to recalls: embedding into vectors, drawing episodes, everything."""
    return read(features, names, HEADS[names[0]].embed, Plan(LABELS, shot=max(shots), episodes=episodes), shots)


def read(features: torch.Tensor, names: list[str], embed: Embed, plan: Plan, shots: tuple[int, ...]) -> np.ndarray:
    vectors = compute_vectors(features, embed, {})
    readings = [BoundHead(HEADS[name], HEADS[name].parameters(features[:1], RECIPE)) for name in names]
    return compute_recalls(vectors, readings, plan, shots)


def seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def versus(name: str, peer: Callable[[], object], trials: int, us: Callable[[], object], episodes: int, repeats: int):
    """Take turns; print the medians and their ratio."""
    times = [(seconds(peer) / trials, seconds(us) / episodes) for _ in range(repeats)]
    theirs, mine = (1000 * statistics.median(column) for column in zip(*times, strict=True))
    SPEED.append({"what": name, "times faster": theirs / mine})
    print(f"{name:62} {theirs:9.2f} {mine:9.3f} {theirs / mine:8.1f}x", flush=True)


def cached(scale: int, repeats: int) -> None:
    features = maps(25, 64)
    print(f"{'on cached features, ms per six-shot trial':62} {'peer':>9} {'anyshot':>9} {'ratio':>9}")
    methods = ["PrototypicalNetworks", "SimpleShot"]
    plan = Plan(LABELS, episodes=8 * scale)
    draw = plan.draw(0, 4 * scale)
    easyfsl_row(features.flatten(1), LABELS, methods, (1,), 1)  # its imports
    versus(
        "proto and cosine-proto, 1600-d, against easyfsl",
        lambda: easyfsl_row(features.flatten(1), LABELS, methods, SHOTS, 4 * scale),
        4 * scale,
        lambda: ours(features, ["proto", "cosine-proto"], 2500 * scale),
        2500 * scale,
        repeats,
    )
    for name, loop in (
        ("cosine-frn", "FRN's own form"),
        ("cosine-frn", "cosine-frn, a class at a time"),
        ("cosine-frn", "cosine-frn, tight"),
        ("frn", "FRN's own form"),
        ("frn", "frn, a class at a time"),
    ):
        versus(
            f"{name}, 25 x 64, against a loop ({loop})",
            lambda loop=loop: loop_row(features, draw, SHOTS, loop),
            4 * scale,
            lambda name=name: ours(features, [name], 2500 * scale),
            2500 * scale,
            repeats,
        )


def everything() -> None:
    features = maps(25, 64)
    banks = (["proto", "cosine-proto"], ["feat", "cosine-feat"], ["frn", "cosine-frn"])
    spent = seconds(lambda: [ours(features, names, 10_000) for names in banks])
    print(f"all six heads x six shots x 10,000 episodes: {spent:.1f} s")


def nesting(scale: int, repeats: int) -> None:
    features = maps(25, 64)
    pair = ["proto", "cosine-proto"]
    turns = [
        seconds(lambda: ours(features, pair, 1250 * scale)) / seconds(lambda: ours(features, pair, 1250 * scale, (32,)))
        for _ in range(3 * repeats)
    ]
    print(f"six test shots cost {statistics.median(turns):.2f} times the 32-shot row alone", end=" ")
    print(f"(turns: {min(turns):.2f} to {max(turns):.2f})")


def growth(scale: int) -> None:
    features = maps(25, 64)
    ours(features, ["proto", "cosine-proto"], 1000)
    for episodes in (1000, 10_000, 100_000 if scale > 1 else 30_000):
        spent = seconds(lambda episodes=episodes: ours(features, ["proto", "cosine-proto"], episodes))
        print(f"{episodes:7} episodes of proto and cosine-proto: {spent:6.2f} s, {1e6 * spent / episodes:.0f} us each")


def memory() -> None:
    """Peak memory above the features, in a process of its own."""
    code = "import evaluation as e; e.keep_memory(); f = e.maps(25, 64); before = e.resident()\n"
    code += "for n in (['proto', 'cosine-proto'], ['frn'], ['cosine-frn']): e.ours(f, n, 500)\n"
    code += "print(f'peak memory above the features: at most {e.peak() - before:.2f} GB')"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=HERE)


def peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6


def resident() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 1e9


def from_images(repeats: int) -> None:
    """The full row of 10,000 episodes with the embedding; easyfsl embeds anew in every trial, in a process of its own
    with the allocator as its users have it. (Were a Conv-4 as fast for easyfsl as for us, it could at most be the 795
    images of a six-shot trial x 10,000 against 12,000: 662 times.)"""
    model = Model(Recipe(data="benchmark", head="proto", train_shot=4, way=5), 3).eval()
    pixels = torch.randint(0, 256, (1200, 84, 84, 3), dtype=torch.uint8).numpy()
    features = maps(25, 64)

    def theirs(backbone: str) -> float:
        code = f"import peers; print(peers.time_from_images({SHOTS}, peers.{backbone}()))"
        return 1e4 * float(
            subprocess.run([sys.executable, "-c", code], check=True, cwd=HERE, capture_output=True).stdout
        )

    turns = [
        (
            theirs("plain_conv4"),
            theirs("our_conv4"),
            10 * seconds(lambda: model.features(pixels)),
            seconds(lambda: ours(features, ["proto"], 10_000)),
        )
        for _ in range(repeats)
    ]
    plain, with_ours, embedding, row = (statistics.median(column) for column in zip(*turns, strict=True))
    mine = embedding + row
    print(
        f"from 84x84 images, proto, six shots x 10,000 episodes: {mine:.0f} s, {embedding:.0f} of them to embed 12,000"
    )
    print("images (extrapolated from 1,200); easyfsl, extrapolated from one trial per shot:")
    contenders = (("a plain Conv-4", plain), ("our Conv-4 and allocator settings", with_ours))
    for place, (name, time_) in enumerate(contenders):
        ratios = sorted(turn[place] / (turn[2] + turn[3]) for turn in turns)
        print(
            f"  with {name}: {time_:.0f} s, {time_ / mine:.0f}x (turns: {ratios[0]:.0f} to {ratios[-1]:.0f})",
            flush=True,
        )
    SPEED.append({"what": "proto from images, against easyfsl", "times faster": plain / mine})


def beside(repeats: int) -> None:
    """Evaluation and an update of a model, alone and beside a busy process, in turns. `anyshot evaluate` takes as many
    threads as are free; a study trains a model per core, with a thread each."""
    vectors = compute_vectors(maps(25, 64), HEADS["proto"].embed, {})
    images = torch.randint(0, 256, (128, 32, 32, 3), dtype=torch.uint8).numpy()
    readings = [BoundHead(HEADS[name], HEADS[name].parameters(vectors[:1, None], RECIPE)) for name in PAIR]
    plan = Plan(LABELS, shot=max(SHOTS), episodes=500)
    learner = Learner(Recipe(data="benchmark", head="proto", train_shot=16, way=8, size=32), BUILTIN, 3, "cpu")
    learner.model.train()
    target = torch.arange(8).repeat_interleave(16)
    works = {
        "evaluation, proto and cosine-proto": lambda: compute_recalls(vectors, readings, plan, SHOTS),
        "an update of Conv-4, 128 images": lambda: learner.update(images, target, 16, 0, 1e-6),
    }
    load = "/".join(f"{value:.1f}" for value in os.getloadavg())
    print(f"ms of wall time; load of the machine before: {load}, cores: {len(os.sched_getaffinity(0))}")
    print(f"{'':36} {'threads':>7} {'alone':>8}, beside a busy process: {'threads':>7} {'':>8} {'speed kept':>11}")
    every = torch.get_num_threads()
    with busy_process():
        free = count_free_cores()
    choices = {next(iter(works)): [(every, every), (every, free)], list(works)[1]: [(every, every), (1, 1)]}
    for name, work in works.items():
        for alone_on, beside_on in choices[name]:
            turns = [(timed(work, alone_on), busily(work, beside_on)) for _ in range(repeats)]
            alone, busy = (1000 * statistics.median(column) for column in zip(*turns, strict=True))
            print(
                f"{name:36} {alone_on:7} {alone:8.1f} {'':24} {beside_on:7} {busy:8.1f} {alone / busy:11.0%}",
                flush=True,
            )


def timed(work: Callable[[], object], threads: int) -> float:
    """Seconds of work with so many threads, after a first time."""
    torch.set_num_threads(threads)
    work()
    return seconds(work)


@contextlib.contextmanager
def busy_process() -> Iterator[None]:
    """A process that keeps one core busy."""
    other = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        time.sleep(0.1)
        yield
    finally:
        other.kill()
        other.wait()


def busily(work: Callable[[], object], threads: int) -> float:
    """Seconds of work beside it."""
    with busy_process():
        return timed(work, threads)


def chart(path: Path) -> None:
    """How many times faster than the peer, one bar per comparison."""
    scale = alt.Scale(type="log", domain=[1, 10_000])
    base = alt.Chart(alt.InlineData(values=SPEED)).encode(
        alt.X("times faster:Q", title="times faster than the peer in the same run", scale=scale),
        alt.Y("what:N", title=None, sort=None, axis=alt.Axis(labelLimit=400)),
    )
    bars = base.mark_bar(color=figures.BLUE).encode(x2=alt.X2Datum(1))
    labels = base.mark_text(align="left", dx=4).encode(alt.Text("times faster:Q", format=".0f"))
    figures.save_chart(figures.apply_theme((bars + labels).properties(width=420)), path)


def resnet() -> None:
    features = maps(25, 640)[:: 600 // 50].contiguous()
    labels = LABELS[:: 600 // 50]
    for names, how, episodes in (
        (["proto", "cosine-proto"], "mean", 5000),
        (["cosine-frn"], gram, 500),
        (["frn"], gram, 8),
    ):
        plan = Plan(labels, shot=32, episodes=episodes)
        turns = [seconds(lambda n=names, h=how, p=plan: read(features, n, h, p, SHOTS)) for _ in range(3)]
        spent = 1000 * statistics.median(turns) / episodes
        print(f"ResNet-12 features, 20 x 50 images, {' and '.join(names)}: {spent:.2f} ms per six-shot trial")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--resnet", action="store_true")
    parser.add_argument("--chart", type=Path)
    parser.add_argument("--beside", action="store_true")
    options = parser.parse_args()
    keep_freed_memory()
    if options.beside:
        beside(5)
        sys.exit()
    size, turns = (1, 3) if options.quick else (4, 5)
    every = torch.get_num_threads()
    for threads in (1, every):
        torch.set_num_threads(threads)
        print(f"torch {torch.__version__}, threads: {threads}")
        SPEED.clear()
        cached(size, turns)
    nesting(size, turns)
    everything()
    growth(size)
    memory()
    from_images(turns)
    if options.chart:
        chart(options.chart)
    if options.resnet:
        resnet()
