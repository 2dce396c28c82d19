"""`python -m hostile`: see the package."""

import argparse
import gc
import importlib
import os
import pkgutil
import random
import subprocess
import sys
import tempfile
import time
from itertools import zip_longest
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"  # what is forked must not wait for threads that are not there
os.environ["COLUMNS"] = "200"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", help="promises, corpus, crashes, kills; all by default")
    parser.add_argument("--sample", type=int, nargs="+", default=(), help="cases of each part; all by default")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="only cases whose name has these words")
    parser.add_argument("--share", type=int, nargs=2, default=(0, 1), help="I N: every N-th case, from the I-th on")
    parser.add_argument("--verbose", action="store_true", help="print what every case said")
    asked = parser.parse_args()
    from anyshot.progress import progress
    from hostile import crashes, good

    with tempfile.TemporaryDirectory(prefix="hostile-") as name:
        folder = Path(name)
        os.environ["ANYSHOT_CACHE"] = str(folder / "cache")
        (folder / "good").mkdir()
        preload()
        made = good.make(folder / "good")
        quick = bool(asked.sample)
        parts = {
            "promises": promises,
            "corpus": lambda: corpus_cases(made, folder),
            "crashes": lambda: crashes.points(made, folder, quick, asked.only),
            "kills": lambda: crashes.kills(made, folder, asked.seed, quick, asked.only),
        }
        tried = failed = 0
        for part, sample in zip_longest(asked.parts or parts, asked.sample, fillvalue=0):
            start = time.monotonic()
            first, step = asked.share
            cases = [case for case in parts[part]() if asked.only in case[0]][first::step]
            if 0 < sample < len(cases):
                cases = random.Random(asked.seed).sample(cases, sample)
            wrong = 0
            with progress(part, float(len(cases)), every=30) as advance:
                for words, attempt in cases:
                    what, said = attempt()
                    wrong += bool(what)
                    advance(1.0)
                    if what or asked.verbose:
                        print(f"{'FAILED' if what else 'ok'}  {words}\n    {what or said}", flush=True)
            print(f"{part}: tried {len(cases)}, failed {wrong}, in {time.monotonic() - start:.0f} s", flush=True)
            tried, failed = tried + len(cases), failed + wrong
        print(f"tried {tried}, failed {failed}", flush=True)
    return 1 if failed else 0


def promises():
    """The tests that docs/promises.md names, each in a process of its own, with many rounds and orders."""
    from test_promises import ROOT, TESTS

    def attempt(test):
        command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", test]
        environment = {**os.environ, "ANYSHOT_ROUNDS": "200", "ANYSHOT_EXAMPLES": "250"}
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
        return ("" if done.returncode == 0 else done.stdout[-3000:]), done.stdout[-200:]

    for test in TESTS:
        yield test, lambda test=test: attempt(test)


def preload() -> None:
    """Import all of anyshot and what its commands import, once: what is forked has it already."""
    import anyshot
    from hostile import forks

    for module in pkgutil.walk_packages(anyshot.__path__, "anyshot."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    for name in ("pyarrow.parquet", "onnxruntime", "uvicorn", "vl_convert"):
        importlib.import_module(name)
    forks.warm()
    gc.freeze()


def corpus_cases(made, folder):
    """The cases of the corpus, each by its name as what is to be called."""
    from hostile import corpus

    for part, case in corpus.everything(made):
        yield f"{part}: {case.name}", lambda case=case: corpus.try_case(case, folder / "case")


if __name__ == "__main__":
    sys.exit(main())
