"""Two revisions of the source beside each other: did a change slow anything down?

    git worktree add ../before v0.1.0
    python benchmarks/revisions.py --old ../before/src          a Markdown table; some five minutes of one core

Processes with the old and the new source take turns, and the smallest CPU time of all rounds counts, so that other
programs on the machine matter little. One thread. Names that a revision does not have yet, or no more, are looked up in
both of their places.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

NEW = Path(__file__).resolve().parents[1] / "src"


def measure() -> dict[str, float]:
    """Return CPU seconds of each task, with the source that is on the path."""
    import numpy as np
    import torch

    from anyshot import FewShotClassifier, evaluate
    from anyshot.models import embedders, registry
    from anyshot.recipe import Recipe
    from anyshot.train.training import Learner

    torch.set_num_threads(1)
    builtin = getattr(registry, "BUILTIN", None) or getattr(registry, "PACKAGE")  # noqa: B009
    rng = np.random.default_rng(0)
    taken: dict[str, float] = {}

    def clock(name: str, work: Callable[[], Any], times: int = 3) -> None:
        work()
        for _ in range(times):
            began = time.process_time()
            work()
            taken[name] = min(taken.get(name, np.inf), time.process_time() - began)

    maps = rng.normal(size=(20 * 60, 5, 64)).astype(np.float32)
    labels, target = np.repeat(np.arange(20), 60), torch.arange(64) // 4
    for head in ("proto", "cosine-proto", "frn", "cosine-frn"):
        clock(f"evaluate {head}", lambda head=head: evaluate(maps, labels, [head], (1, 2, 4, 8, 16, 32), episodes=400))
    images = rng.integers(0, 256, (64, 32, 32, 3), dtype=np.uint8)
    for head in ("proto", "cosine-frn"):
        recipe = Recipe(data="none", head=head, train_shot=4, way=16, size=32, augment=("crop", "flip", "jitter"))
        learner = Learner(recipe, builtin, 3, "cpu")
        learner.model.train()
        clock(f"update {head}", lambda learner=learner: learner.update(images, target, 4, 0, 0.0))
    embedder = getattr(embedders, "load_embedder", None) or getattr(embedders, "embedder")  # noqa: B009
    network = embedder("efficientnet-lite0:160")
    pictures = rng.integers(0, 256, (16, 160, 160, 3), dtype=np.uint8)
    clock("embed 16 pictures", lambda: network.features(pictures))
    X = rng.normal(size=(1000, 384)) + rng.normal(size=(50, 384))[np.repeat(np.arange(50), 20)]
    y = np.repeat(np.arange(50), 20)
    for head in ("proto", "posterior"):
        clock(f"fit {head}", lambda head=head: FewShotClassifier(head).fit(X, y))
        clock(f"fit and predict {head}", lambda head=head: FewShotClassifier(head).fit(X, y).predict_proba(X[:100]))
    return taken


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--old", type=Path, help="the folder src of another revision")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    if arguments.old is None:
        print(json.dumps(measure()))
        return
    best: dict[str, dict[str, float]] = {"old": {}, "new": {}}
    for _ in range(arguments.rounds):
        for name, source in (("old", arguments.old.resolve()), ("new", NEW)):
            environment = {**os.environ, "PYTHONPATH": str(source), "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
            words = [sys.executable, __file__]
            done = subprocess.run(words, env=environment, check=True, capture_output=True, text=True)
            for task, seconds in json.loads(done.stdout.splitlines()[-1]).items():
                best[name][task] = min(best[name].get(task, seconds), seconds)
    print("| task | old, ms | new, ms | new over old |\n|---|---:|---:|---:|")
    for task, seconds in best["new"].items():
        before = best["old"][task]
        print(f"| {task} | {1000 * before:.1f} | {1000 * seconds:.1f} | {seconds / before:.2f} |")


if __name__ == "__main__":
    main()
