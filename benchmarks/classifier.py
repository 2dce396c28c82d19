"""FewShotClassifier as classes grow, beside scikit-learn's and faiss: generated classes of 384-d features, one run.

    pip install -e '.[index]'
    python benchmarks/classifier.py --chart docs/images/growth.png         100 to 100,000 classes
    python benchmarks/classifier.py --classes 1000000 --only anyshot       needs 8 GB

Every figure is CPU time (of all threads), so that a busy machine changes it little; memory is what the process holds
more than before. Peers stop where they would take longer than all others together. Recall is that of `index=True`
against the exact answer on the same queries.
"""

import argparse
import resource
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import altair as alt
import faiss
import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier, NearestCentroid

from anyshot import FewShotClassifier
from anyshot.show import figures

D, EACH, BATCH = 384, 5, 50_000
SPREAD = (1 / np.sqrt(1 + np.arange(D) / 8)).astype(np.float32)  # variances fall off, as those of features do
ROWS: list[dict[str, Any]] = []


class Data:
    """Examples of so many classes, made when they are asked for."""

    def __init__(self, classes: int) -> None:
        self.rng = np.random.default_rng(0)
        self.centres = self.rng.standard_normal((classes, D), dtype=np.float32) * SPREAD
        self.labels = np.repeat(np.arange(classes), EACH)

    def draw(self, labels: np.ndarray) -> np.ndarray:
        return self.centres[labels] + self.rng.standard_normal((len(labels), D), dtype=np.float32) * SPREAD

    def batches(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        for start in range(0, len(self.labels), BATCH):
            labels = self.labels[start : start + BATCH]
            yield self.draw(labels), labels


def cpu(work: Callable[[], object]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


def resident() -> float:
    """Bytes that the process holds."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def say(name: str, classes: int, what: str, value: float, unit: str) -> None:
    ROWS.append({"who": name, "classes": classes, "what": what, "value": value})
    print(f"{classes:9,} {name:28} {what:22} {value:12.4g} {unit}", flush=True)


def anyshot(classes: int, data: Data, queries: np.ndarray, many: np.ndarray, head: str, index: bool) -> None:
    name, before = f"anyshot {head}", resident()
    fitted = FewShotClassifier(head)
    spent = 0.0
    for X, y in data.batches():
        spent += cpu(lambda X=X, y=y: fitted.partial_fit(X, y))
    del X, y
    say(name, classes, "fit", spent, "s")
    one = data.draw(np.arange(50) % classes)
    fitted.partial_fit(one[:1], [0])
    spent = cpu(lambda: [fitted.partial_fit(row[None], [label % classes]) for label, row in enumerate(one)])
    say(name, classes, "add one", 1000 * spent / len(one), "ms")
    say(name, classes, "first answer", cpu(lambda: fitted.predict(queries[:1])), "s")
    spent = cpu(lambda: [fitted.predict(row[None]) for row in queries[:20]])
    say(name, classes, "predict one", 1000 * spent / 20, "ms")
    say(name, classes, f"predict {len(many):,}", cpu(lambda: fitted.predict(many)), "s")
    say(name, classes, "memory over sums", (resident() - before) / fitted.ledger_.sums.nbytes, "x")
    say(name, classes, "calibrate", cpu(lambda: fitted.coverage_), "s")
    if index:
        exact = fitted.predict(queries)
        fitted.set_params(index=True).partial_fit(one[:1], [0])
        say(f"{name}, index", classes, "first answer", cpu(lambda: fitted.predict(queries[:1])), "s")
        spent = cpu(lambda: [fitted.predict(row[None]) for row in queries[:100]])
        say(f"{name}, index", classes, "predict one", 1000 * spent / 100, "ms")
        again = FewShotClassifier.predict(fitted, queries)
        say(f"{name}, index", classes, "recall@1", float((again == exact).mean()), "")
    with tempfile.TemporaryDirectory() as folder:
        say(name, classes, "save", cpu(lambda: fitted.save(Path(folder) / "c")), "s")
        del fitted  # two of a million classes are more than many machines hold
        say(name, classes, "load", cpu(lambda: FewShotClassifier.load(Path(folder) / "c")), "s")
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    say(name, classes, "most memory so far", most / 1e9, "GB")


def peer(name: str, classes: int, data: Data, model: Any, queries: np.ndarray, many: np.ndarray) -> None:
    X = data.draw(data.labels)
    say(name, classes, "fit", cpu(lambda: model.fit(X, data.labels)), "s")
    say(name, classes, "predict one", 1000 * cpu(lambda: [model.predict(row[None]) for row in queries[:20]]) / 20, "ms")
    say(name, classes, f"predict {len(many):,}", cpu(lambda: model.predict(many)), "s")


class Flat:
    """The means of classes in faiss, compared one by one."""

    def fit(self, X: np.ndarray, y: np.ndarray) -> None:
        means = X.reshape(-1, EACH, D).mean(1)
        self.index = faiss.IndexFlatIP(D)
        self.index.add(means / np.linalg.norm(means, axis=1, keepdims=True))

    def predict(self, X: np.ndarray) -> np.ndarray:
        return self.index.search(X, 1)[1][:, 0]


PEERS: dict[str, tuple[Callable[[], Any], int]] = {
    "NearestCentroid": (NearestCentroid, 10_000),
    "k nearest neighbours": (lambda: KNeighborsClassifier(1), 10_000),
    "faiss flat, means": (Flat, 100_000),
    "logistic regression": (lambda: LogisticRegression(max_iter=20), 100),
}


def chart(path: Path) -> None:
    """What grows, and how."""
    shown = ["fit", "add one", "predict one"]
    units = {"fit": "fit: CPU s", "add one": "add one: CPU ms", "predict one": "predict one: CPU ms"}
    values = [{**row, "figure": units[row["what"]]} for row in ROWS if row["what"] in shown]
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
    parser.add_argument("--classes", type=int, nargs="+", default=[100, 1000, 10_000, 100_000])
    parser.add_argument("--heads", nargs="+", default=["cosine-proto"])
    parser.add_argument("--only", default="")
    parser.add_argument("--no-index", action="store_true")
    parser.add_argument("--many", type=int, default=10_000)
    parser.add_argument("--chart", type=Path)
    options = parser.parse_args()
    for classes in options.classes:
        data = Data(classes)
        many = data.draw(data.rng.integers(classes, size=options.many))
        queries = many[:1000]
        for head in options.heads:
            anyshot(classes, data, queries, many, head, not options.no_index and classes >= 10_000)
        for name, (make, most) in PEERS.items():
            if not options.only and classes <= most:
                peer(name, classes, data, make(), queries, many)
    if options.chart:
        chart(options.chart)


if __name__ == "__main__":
    main()
