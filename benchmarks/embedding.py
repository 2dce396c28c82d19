"""Images per second of EfficientNet-Lite0: our folded form, timm's eager model, ONNX Runtime with the same network.

    pip install --no-deps timm torchvision                  without them, the plain eager network stands in for timm's
    python benchmarks/embedding.py                          224 and 160 px, one and two threads
    python benchmarks/embedding.py --library                as in a user's own process, which does not keep its memory

Same weights, same pictures, features checked to be equal; contenders alternate in one run, the best of the rounds
counts, and each has the batch size that suits it. Rates are images per second of CPU time, times threads: what a clock
would show on a quiet machine, where no thread waits; a busy one disturbs it little. The clock's own are beside them.
With two threads ours works as a pass over files does, with images of its own for each thread; ONNX Runtime is measured
like that and with its own threads, which share every layer. Goal: ours ahead of all. Takes some five minutes.
"""

import argparse
import logging
import os
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import onnxruntime
import torch
from torch import Tensor, nn

from anyshot.models.efficientnet import EfficientNetLite0, FoldedLite0, read_lite0_weights

Run = Callable[[Tensor], Tensor]
IMAGES, BATCHES = 64, (4, 16, 64)
ALLOCATOR = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(1 << 40), "MALLOC_ARENA_MAX": "1"}
TORCHVISION = torch.library.Library("torchvision", "FRAGMENT")


def timm_network(weights: dict[str, Tensor]) -> nn.Module:
    """timm's model with the same weights."""
    # PyPI's torchvision, which timm imports, misses operators of its own beside a CPU build of torch; none is used.
    for name in ("nms", "qnms"):
        if not hasattr(torch.ops.torchvision, name):
            TORCHVISION.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    import timm

    names = {"convs.0": "conv_stem", "norms.0": "bn1", "convs.1": "conv_head", "norms.1": "bn2"}
    network = timm.create_model("tf_efficientnet_lite0", num_classes=0).eval()
    stages = [(stage, place) for stage, blocks in enumerate(network.blocks) for place in range(len(blocks))]
    for index, (stage, place) in enumerate(stages):
        layers = ("conv_pw", "conv_dw", "conv_pwl") if index else ("conv_dw", "conv_pw")
        for number, name in enumerate(layers):
            names[f"blocks.{index}.convs.{number}"] = f"blocks.{stage}.{place}.{name}"
            names[f"blocks.{index}.norms.{number}"] = f"blocks.{stage}.{place}.bn{number + 1}"
    renamed = {}
    for name, value in weights.items():
        layer, _, kind = name.rpartition(".")
        renamed[f"{names[layer]}.{kind}"] = value
    network.load_state_dict(renamed)
    return network


def onnx_file(network: nn.Module, size: int, folder: Path) -> Path:
    """The network as ONNX; the runtime folds batch norms and padding into the convolutions by itself."""
    path = folder / f"{size}.onnx"
    if not path.exists():
        logging.getLogger("torch.onnx").setLevel(logging.ERROR)
        example, free = torch.zeros(2, 3, size, size), {0: torch.export.Dim("image")}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the exporter about itself
            torch.onnx.export(
                network, (example,), path, dynamo=True, dynamic_shapes=(free,), external_data=False, verbose=False
            )
    return path


def onnx_session(path: Path, threads: int) -> Run:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    return lambda images: torch.from_numpy(session.run(None, {name: images.numpy()})[0])


def in_parts(run: Run, pool: ThreadPoolExecutor, parts: int, images: Tensor) -> Tensor:
    """A thread and some of the images for each part."""

    def one(part: Tensor) -> Tensor:
        with torch.inference_mode():  # a thread's own affair
            return run(part)

    return torch.cat(list(pool.map(one, images.chunk(parts))))


def rates(runs: dict[str, Run], size: int, threads: int, rounds: int) -> dict[str, tuple[float, float, int]]:
    """By contender: images per second of CPU time times threads, by the clock, and the batch size that suits."""
    images = torch.randn(IMAGES, 3, size, size, generator=torch.Generator().manual_seed(0))
    expected = runs["ours"](images[:4]).flatten(1)
    for name, run in runs.items():
        assert torch.allclose(run(images[:4]).flatten(1), expected, atol=1e-3), f"{name} has other features"

    def rate(name: str, batch: int) -> tuple[float, float]:
        cpu, clock = time.process_time(), time.perf_counter()
        for part in images.split(batch):
            runs[name](part)
        return IMAGES * threads / (time.process_time() - cpu), IMAGES / (time.perf_counter() - clock)

    tried = {name: {batch: max(rate(name, batch), rate(name, batch)) for batch in BATCHES} for name in runs}
    batches = {name: max(rate_of, key=rate_of.__getitem__) for name, rate_of in tried.items()}
    measured = [{name: rate(name, batch) for name, batch in batches.items()} for _ in range(rounds)]
    best = {name: [max(column) for column in zip(*(row[name] for row in measured), strict=True)] for name in runs}
    return {name: (best[name][0], best[name][1], batches[name]) for name in runs}


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", action="store_true")
    parser.add_argument("--sizes", type=int, nargs="+", default=[224, 160])
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=8)
    asked = parser.parse_args()
    if not asked.library and not ALLOCATOR.items() <= os.environ.items():  # as in the processes of the command line
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **ALLOCATOR})
    weights, network, ahead = read_lite0_weights(), EfficientNetLite0(), True
    network.load_state_dict(weights)
    ours = FoldedLite0(network.eval())
    try:
        peer, eager = "timm", timm_network(weights)
    except ImportError:
        peer, eager = "plain eager network", network
    with tempfile.TemporaryDirectory() as folder:
        for threads in asked.threads:
            torch.set_num_threads(threads)
            for size in asked.sizes:
                path = onnx_file(network, size, Path(folder))
                runs: dict[str, Run] = {"ours": ours, peer: eager, "ONNX Runtime": onnx_session(path, threads)}
                if threads > 1:
                    pool = ThreadPoolExecutor(threads, initializer=partial(torch.set_num_threads, 1))
                    runs["ours"] = partial(in_parts, ours, pool, threads)
                    runs["ours, layers shared"] = ours
                    runs["ONNX Runtime, in parts"] = partial(in_parts, onnx_session(path, 1), pool, threads)
                measured = rates(runs, size, threads, asked.rounds)
                mine = measured["ours"][0]
                ahead &= all(mine > rate for name, (rate, _, _) in measured.items() if not name.startswith("ours"))
                print(f"{size} px, {threads} thread{'s' if threads > 1 else ''}")
                for name, (rate, clock, batch) in measured.items():
                    print(f"  {name:24} {rate:6.1f} images/s (clock {clock:6.1f}), batches of {batch:2}", end="   ")
                    print(f"ours is {mine / rate:.2f}x")
                sys.stdout.flush()
    sys.exit(0 if ahead else 1)


if __name__ == "__main__":
    main()
