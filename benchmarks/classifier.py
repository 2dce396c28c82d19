"""FewShotClassifier as classes grow, beside scikit-learn's and faiss: generated classes of 384-d features, one run.

    pip install -e '.[index]'
    python benchmarks/classifier.py                                        100 to 1,000,000 classes; needs 16 GB
    python benchmarks/classifier.py --classes 100 1000 --who "anyshot proto" NearestCentroid
    python benchmarks/classifier.py --out results/growth --chart docs/images/growth.png
                                                                           writes the table, its page and the figure
    python benchmarks/classifier.py --classes --out results/growth --chart docs/images/growth.png
                                                                           draws them again

Each who of each number of classes is a process of its own, which is stopped after `--limit` seconds or where memory
ends; the table says so. Times are CPU time (of all threads), so that a busy machine changes them little, but for those
of saving and loading. Memory is what the process holds more than before, at most meanwhile, in MB and over that of the
sums (float64): libraries were loaded before, by a small classifier that did the same. Fits of few classes are repeated
in turns with NearestCentroid's, and the median counts. Recall is that of `index=True` against the exact answer.
"""

import anyshot as package  # noqa: F401, I001 (before faiss and torch: it chooses how threads wait)

import argparse
import csv
import gc
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import altair as alt
import faiss
import numpy as np
from growth_page import page
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier, NearestCentroid

from anyshot import FewShotClassifier
from anyshot.show import figures

D, EACH, BATCH = 384, 5, 10_000
SPREAD = (1 / np.sqrt(1 + np.arange(D) / 8)).astype(np.float32)  # variances fall off, as those of features do
REPEATS = 5
IN_TURNS = {5: 10_000, 20: 2_000}  # classes of so many examples up to which fits are repeated
HEADS = ("cosine-proto", "proto", "posterior")
COLUMNS = ("who", "classes", "what", "value", "unit")


class Data:
    """Examples of so many classes, made when they are asked for."""

    def __init__(self, classes: int) -> None:
        self.rng = np.random.default_rng(0)
        self.centres = self.rng.standard_normal((classes, D), dtype=np.float32) * SPREAD
        self.labels = np.repeat(np.arange(classes), EACH)

    def draw(self, labels: np.ndarray) -> np.ndarray:
        examples = self.rng.standard_normal((len(labels), D), dtype=np.float32)
        examples *= SPREAD
        examples += self.centres[labels]
        return examples

    def batches(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        for start in range(0, len(self.labels), BATCH):
            labels = self.labels[start : start + BATCH]
            yield self.draw(labels), labels


def cpu(work: Callable[[], object]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


def wall(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


class Memory:
    """What the process holds more than when this was made, in bytes (Linux)."""

    def __init__(self) -> None:
        self.most: dict[str, float] = {}
        self.before = self._status("VmRSS")

    def during(self, doing: str, work: Callable[[], object]) -> float:
        """CPU time of work; its largest memory counts."""
        Path("/proc/self/clear_refs").write_text("5")  # the high-water mark falls to what is held now
        spent = cpu(work)
        self.most[doing] = max(self.most.get(doing, 0.0), self._status("VmHWM") - self.before)
        return spent

    def rest(self) -> float:
        gc.collect()
        return self._status("VmRSS") - self.before

    @staticmethod
    def _status(name: str) -> float:
        lines = Path("/proc/self/status").read_text().splitlines()
        return 1024.0 * next(int(line.split()[1]) for line in lines if line.startswith(name))


def say(who: str, classes: int, what: str, value: float, unit: str) -> None:
    """One row, for whoever started this process."""
    print(json.dumps(dict(zip(COLUMNS, (who, classes, what, value, unit), strict=True))), flush=True)


def warm_up(head: str) -> None:
    """Load and look up what is loaded and looked up once."""
    X, y = np.random.default_rng(1).normal(size=(10_000, 32)), np.arange(10_000) % 5000
    small = FewShotClassifier(head, index=True).fit(X, y)
    with tempfile.TemporaryDirectory() as folder:
        small.predict(X[:100]), small.top(X[:100]), small.coverage_, small.save(Path(folder) / "c")
        FewShotClassifier.load(Path(folder) / "c")


def anyshot(classes: int, data: Data, queries: np.ndarray, many: np.ndarray, head: str) -> None:
    who, fitted = f"anyshot {head}", FewShotClassifier(head)
    warm_up(head)
    X, y = data.draw(data.labels[:BATCH]), data.labels[:BATCH]
    gc.collect()
    memory, spent = Memory(), 0.0  # with a batch, which is the caller's
    for start in range(0, len(data.labels), BATCH):
        y = data.labels[start : start + BATCH]
        X[: len(y)] = data.draw(y)
        spent += memory.during("fit", lambda y=y: fitted.partial_fit(X[: len(y)], y))
    say(who, classes, "fit", spent, "s")
    sums = fitted.support_.sums.nbytes
    say(who, classes, "memory of the sums", sums / 1e6, "MB")
    say(who, classes, "memory at rest, fit", memory.rest() / 1e6, "MB")
    one = data.draw(np.arange(50) % classes)
    fitted.partial_fit(one[:1], [0])
    spent = cpu(lambda: [fitted.partial_fit(row[None], [label % classes]) for label, row in enumerate(one)])
    say(who, classes, "add one", 1000 * spent / len(one), "ms")
    say(who, classes, "first answer", memory.during("predict", lambda: fitted.predict(queries[:1])), "s")
    spent = memory.during("predict", lambda: [fitted.predict(row[None]) for row in queries[:20]])
    say(who, classes, "predict one", 1000 * spent / 20, "ms")
    say(who, classes, f"predict {len(many):,}", memory.during("predict", lambda: fitted.predict(many)), "s")
    say(who, classes, "memory at rest, predict", memory.rest() / 1e6, "MB")
    say(who, classes, "calibrate", memory.during("calibrate", lambda: fitted.coverage_), "s")
    if classes >= 10_000:
        exact = fitted.predict(queries)
        fitted.set_params(index=True).partial_fit(one[:1], [0])
        say(f"{who}, index", classes, "first answer", memory.during("index", lambda: fitted.predict(queries[:1])), "s")
        spent = memory.during("index", lambda: [fitted.predict(row[None]) for row in queries[:200]])
        say(f"{who}, index", classes, "predict one", 1000 * spent / 200, "ms")
        again = fitted.predict(queries)
        say(f"{who}, index", classes, "recall@1", float((again == exact).mean()), "")
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "c"
        say(who, classes, "save, wall time", wall(lambda: memory.during("save", lambda: fitted.save(place))), "s")
        fitted = None  # two of a million classes are more than many machines hold
        gc.collect()
        most, memory = memory.most, Memory()
        spent = wall(lambda: memory.during("load", lambda: FewShotClassifier.load(place)))
        say(who, classes, "load, wall time", spent, "s")
    for doing, held in {**most, **memory.most}.items():
        say(who, classes, f"memory at most, {doing}", held / 1e6, "MB")
        say(who, classes, f"memory at most, {doing}, over the sums", held / sums, "x")


def peer(classes: int, data: Data, queries: np.ndarray, many: np.ndarray, who: str) -> None:
    model = PEERS[who]()
    if isinstance(model, Flat):
        say(who, classes, "fit", sum(cpu(lambda X=X: model.add(X)) for X, _ in data.batches()), "s")
    else:
        X = data.draw(data.labels)
        say(who, classes, "fit", cpu(lambda: model.fit(X, data.labels)), "s")
    say(who, classes, "predict one", 1000 * cpu(lambda: [model.predict(row[None]) for row in queries[:20]]) / 20, "ms")
    say(who, classes, f"predict {len(many):,}", cpu(lambda: model.predict(many)), "s")
    if who == "NearestCentroid":
        for each in (each for each, most in IN_TURNS.items() if classes <= most):
            for head in HEADS:
                in_turns(classes, each, data, head)


def in_turns(classes: int, each: int, data: Data, head: str) -> None:
    """One fit on all examples, and the first answer after it: ours and NearestCentroid's in turns."""
    y = np.repeat(np.arange(classes), each)
    X, turns = data.draw(y), []
    for _ in range(REPEATS):
        both = FewShotClassifier(head), NearestCentroid()
        turns.append([cpu(lambda m=m: m.fit(X, y)) for m in both] + [cpu(lambda m=m: m.predict(X[:1])) for m in both])
    ours, theirs, our_answer, their_answer = (statistics.median(column) for column in zip(*turns, strict=True))
    say(f"anyshot {head}", classes, f"fit, {each} examples each", 1000 * ours, "ms")
    say("NearestCentroid", classes, f"fit, {each} examples each", 1000 * theirs, "ms")
    say(f"anyshot {head}", classes, f"fit / NearestCentroid's, {each} examples each", ours / theirs, "x")
    whole = (ours + our_answer) / (theirs + their_answer)
    say(f"anyshot {head}", classes, f"fit and first answer / NearestCentroid's, {each} examples each", whole, "x")


class Flat:
    """The means of classes in faiss, compared one by one."""

    def __init__(self) -> None:
        self.index = faiss.IndexFlatIP(D)

    def add(self, X: np.ndarray) -> None:
        means = X.reshape(-1, EACH, D).mean(1)
        self.index.add(means / np.linalg.norm(means, axis=1, keepdims=True))

    def predict(self, X: np.ndarray) -> np.ndarray:
        return self.index.search(X, 1)[1][:, 0]


PEERS: dict[str, Callable[[], Any]] = {
    "NearestCentroid": NearestCentroid,
    "k nearest neighbours": lambda: KNeighborsClassifier(1),
    "faiss flat, means": Flat,
    "logistic regression": lambda: LogisticRegression(max_iter=20),
}
WHO = (*(f"anyshot {head}" for head in HEADS), *PEERS)


def measure(who: str, classes: int, most_queries: int) -> None:
    """In this process; its rows are printed."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))  # else the machine would be at its end
    try:
        data = Data(classes)
        many = data.draw(data.rng.integers(classes, size=most_queries))
        if who in PEERS:
            peer(classes, data, many[:1000], many, who)
        else:
            anyshot(classes, data, many[:1000], many, who.removeprefix("anyshot "))
    except MemoryError:
        say(who, classes, "stopped: memory", memory / 1e9, "GB")


def started(who: str, classes: int, most_queries: int, limit: int) -> list[dict[str, Any]]:
    """The rows of a process of its own."""
    again = [sys.executable, __file__, "--only", who, "--classes", str(classes), "--many", str(most_queries)]
    with subprocess.Popen(again, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            words = process.communicate(timeout=limit)[0]
        except subprocess.TimeoutExpired:
            process.kill()
            stopped = dict(zip(COLUMNS, (who, classes, "stopped: time", limit, "s"), strict=True))
            words = process.communicate()[0] + json.dumps(stopped)
    return [json.loads(line) for line in words.splitlines()]


def chart(rows: list[dict[str, Any]], path: Path) -> None:
    """What grows, and how."""
    shown = {"fit": "fit: CPU s", "add one": "add one: CPU ms", "predict one": "predict one: CPU ms"}
    values = [{**row, "figure": shown[row["what"]]} for row in rows if row["what"] in shown]
    lines = (
        alt.Chart(alt.Data(values=values), width=260, height=220)
        .mark_line(point=True)
        .encode(
            x=alt.X("classes:Q", scale=alt.Scale(type="log"), title="classes"),
            y=alt.Y("value:Q", scale=alt.Scale(type="log"), title=None),
            color=alt.Color("who:N", title=None),
        )
        .facet(column=alt.Column("figure:N", title=None))
        .resolve_scale(y="independent")
    )
    figures.save_chart(lines, path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--classes", type=int, nargs="*", default=[100, 1000, 10_000, 100_000, 1_000_000])
    parser.add_argument("--who", nargs="+", default=WHO, choices=WHO)
    parser.add_argument("--limit", type=int, default=240, help="seconds that each of them may take")
    parser.add_argument("--many", type=int, default=10_000, help="queries at once; of a million classes a tenth")
    parser.add_argument("--out", type=Path, help="folder of the table and its page; other rows in it stay")
    parser.add_argument("--chart", type=Path)
    parser.add_argument("--only", choices=WHO, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.only:
        measure(options.only, options.classes[0], options.many)
        return
    rows = read(options.out / "growth.csv") if options.out else []
    stopped: set[str] = set()
    for classes in sorted(options.classes):
        for who in options.who:
            if who in stopped:  # of fewer classes: of more it would be too
                continue
            new = started(who, classes, options.many if classes < 1_000_000 else options.many // 10, options.limit)
            for row in new:
                print(f"{classes:9,} {row['who']:28} {row['what']:40} {row['value']:12.4g} {row['unit']}", flush=True)
            if any(row["what"].startswith("stopped") for row in new):
                stopped.add(who)
            gone = {(row["who"], row["classes"], row["what"]) for row in new} | {(who, classes, "stopped: time")}
            rows = [row for row in rows if (row["who"], row["classes"], row["what"]) not in gone] + new
            if options.out:
                write(options.out, rows)
    if options.out:
        write(options.out, rows)
    if options.chart:
        chart(rows, options.chart)


def read(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return [{**row, "classes": int(row["classes"]), "value": float(row["value"])} for row in csv.DictReader(file)]


def write(folder: Path, rows: list[dict[str, Any]]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    rows = sorted(rows, key=lambda row: row["classes"])
    with (folder / "growth.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows({**row, "value": f"{row['value']:.4g}"} for row in rows)
    (folder / "README.md").write_text(page(rows))


if __name__ == "__main__":
    main()
