"""FewShotClassifier as classes grow, beside scikit-learn's and faiss: generated classes of 384-d features, one run.

    pip install -e '.[index]'
    python benchmarks/classifier.py                                        100 to 100,000 classes
    python benchmarks/classifier.py --classes 1000000 --only anyshot       needs 8 GB
    python benchmarks/classifier.py --table growth.csv --chart docs/images/growth.png
                                                                           adds to a table, and draws all of it

Times are CPU time (of all threads), so that a busy machine changes them little, but for those of saving and loading.
Memory is what the process holds more than before, over that of the sums (float64): at rest, and at most meanwhile.
Fits of few classes are repeated in turns with NearestCentroid's, and the median counts. Peers stop where they would
take longer than all others together. Recall is that of `index=True` against the exact answer on the same queries.
"""

import anyshot as package  # noqa: F401, I001 (before faiss and torch: it chooses how threads wait)

import argparse
import csv
import gc
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import altair as alt
import faiss
import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier, NearestCentroid

from anyshot import FewShotClassifier
from anyshot.show import figures

D, EACH, BATCH = 384, 5, 10_000
SPREAD = (1 / np.sqrt(1 + np.arange(D) / 8)).astype(np.float32)  # variances fall off, as those of features do
REPEATS = 5
ROWS: list[dict[str, Any]] = []


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


def say(name: str, classes: int, what: str, value: float, unit: str) -> None:
    ROWS.append({"who": name, "classes": classes, "what": what, "value": value})
    print(f"{classes:9,} {name:28} {what:26} {value:12.4g} {unit}", flush=True)


def anyshot(classes: int, data: Data, queries: np.ndarray, many: np.ndarray, head: str, index: bool) -> None:
    name, fitted = f"anyshot {head}", FewShotClassifier(head)
    batches = data.batches()
    first = next(batches)
    FewShotClassifier(head).fit(first[0][:50], first[1][:50])  # what is loaded and looked up once
    memory, spent = Memory(), 0.0  # with a batch: that is the caller's
    for X, y in chain([first], batches):
        spent += memory.during("fit", lambda X=X, y=y: fitted.partial_fit(X, y))
    say(name, classes, "fit", spent, "s")
    sums = fitted.ledger_.sums.nbytes
    say(name, classes, "memory at rest, fit", memory.rest() / sums, "x")
    one = data.draw(np.arange(50) % classes)
    fitted.partial_fit(one[:1], [0])
    spent = cpu(lambda: [fitted.partial_fit(row[None], [label % classes]) for label, row in enumerate(one)])
    say(name, classes, "add one", 1000 * spent / len(one), "ms")
    say(name, classes, "first answer", memory.during("predict", lambda: fitted.predict(queries[:1])), "s")
    spent = memory.during("predict", lambda: [fitted.predict(row[None]) for row in queries[:20]])
    say(name, classes, "predict one", 1000 * spent / 20, "ms")
    say(name, classes, f"predict {len(many):,}", memory.during("predict", lambda: fitted.predict(many)), "s")
    say(name, classes, "memory at rest, predict", memory.rest() / sums, "x")
    say(name, classes, "calibrate", memory.during("calibrate", lambda: fitted.coverage_), "s")
    if index:
        exact = fitted.predict(queries)
        fitted.set_params(index=True).partial_fit(one[:1], [0])
        say(f"{name}, index", classes, "first answer", memory.during("index", lambda: fitted.predict(queries[:1])), "s")
        spent = memory.during("index", lambda: [fitted.predict(row[None]) for row in queries[:200]])
        say(f"{name}, index", classes, "predict one", 1000 * spent / 200, "ms")
        again = fitted.predict(queries)
        say(f"{name}, index", classes, "recall@1", float((again == exact).mean()), "")
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "c"
        say(name, classes, "save, wall time", wall(lambda: memory.during("save", lambda: fitted.save(place))), "s")
        for doing, most in memory.most.items():
            say(name, classes, f"memory at most, {doing}", most / sums, "x")
        fitted = None  # two of a million classes are more than many machines hold
        memory = Memory()
        spent = wall(lambda: memory.during("load", lambda: FewShotClassifier.load(place)))
        say(name, classes, "load, wall time", spent, "s")
        say(name, classes, "memory at most, load", memory.most["load"] / sums, "x")


def peer(name: str, classes: int, data: Data, model: Any, queries: np.ndarray, many: np.ndarray) -> None:
    if isinstance(model, Flat):
        spent = sum(cpu(lambda X=X: model.add(X)) for X, _ in data.batches())
        say(name, classes, "fit", spent, "s")
    else:
        X = data.draw(data.labels)
        say(name, classes, "fit", cpu(lambda: model.fit(X, data.labels)), "s")
    say(name, classes, "predict one", 1000 * cpu(lambda: [model.predict(row[None]) for row in queries[:20]]) / 20, "ms")
    say(name, classes, f"predict {len(many):,}", cpu(lambda: model.predict(many)), "s")


def in_turns(classes: int, data: Data, head: str) -> None:
    """One fit on all examples, ours and NearestCentroid's in turns."""
    X, y = data.draw(data.labels), data.labels
    turns = [
        (cpu(lambda: FewShotClassifier(head).fit(X, y)), cpu(lambda: NearestCentroid().fit(X, y)))
        for _ in range(REPEATS)
    ]
    ours, theirs = (statistics.median(column) for column in zip(*turns, strict=True))
    say(f"anyshot {head}", classes, "fit, in turns", ours, "s")
    say("NearestCentroid", classes, "fit, in turns", theirs, "s")
    say(f"anyshot {head}", classes, "fit / NearestCentroid's", ours / theirs, "x")


class Flat:
    """The means of classes in faiss, compared one by one."""

    def __init__(self) -> None:
        self.index = faiss.IndexFlatIP(D)

    def add(self, X: np.ndarray) -> None:
        means = X.reshape(-1, EACH, D).mean(1)
        self.index.add(means / np.linalg.norm(means, axis=1, keepdims=True))

    def predict(self, X: np.ndarray) -> np.ndarray:
        return self.index.search(X, 1)[1][:, 0]


PEERS: dict[str, tuple[Callable[[], Any], int]] = {
    "NearestCentroid": (NearestCentroid, 100_000),
    "k nearest neighbours": (lambda: KNeighborsClassifier(1), 100_000),
    "faiss flat, means": (Flat, 1_000_000),
    "logistic regression": (lambda: LogisticRegression(max_iter=20), 1000),
}


def chart(path: Path) -> None:
    """What grows, and how."""
    shown = {"fit": "fit: CPU s", "add one": "add one: CPU ms", "predict one": "predict one: CPU ms"}
    values = [{**row, "figure": shown[row["what"]]} for row in ROWS if row["what"] in shown]
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
    figures.save(lines, path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--classes", type=int, nargs="*", default=[100, 1000, 10_000, 100_000])
    parser.add_argument("--heads", nargs="+", default=["cosine-proto"])
    parser.add_argument("--only", default="", help="anyshot, or the name of a peer")
    parser.add_argument("--no-index", action="store_true")
    parser.add_argument("--many", type=int, default=10_000)
    parser.add_argument("--table", type=Path, help="CSV file that rows are added to")
    parser.add_argument("--chart", type=Path)
    options = parser.parse_args()
    if options.table and options.table.exists():
        with options.table.open(newline="") as file:
            for row in csv.DictReader(file):
                ROWS.append({**row, "classes": int(row["classes"]), "value": float(row["value"])})
    for classes in options.classes:
        data = Data(classes)
        many = data.draw(data.rng.integers(classes, size=options.many))
        queries = many[:1000]
        if options.only in ("", "anyshot"):
            for head in options.heads:
                anyshot(classes, data, queries, many, head, not options.no_index and classes >= 10_000)
        for name, (make, most) in PEERS.items():
            if options.only in ("", name) and classes <= most:
                peer(name, classes, data, make(), queries, many)
        if not options.only and classes <= 10_000:
            for head in options.heads:
                in_turns(classes, data, head)
        if options.table:
            with options.table.open("w", newline="") as file:
                writer = csv.DictWriter(file, ["who", "classes", "what", "value"])
                writer.writeheader()
                writer.writerows(ROWS)
    if options.chart:
        chart(options.chart)


if __name__ == "__main__":
    main()
