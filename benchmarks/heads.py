"""Which classifier to use on given features: ours beside what people would use instead, at equal and unequal shots.

    python benchmarks/heads.py --data FOLDER [--out results/heads] [--sets groceries,birds,birds-conv4,things]

FOLDER has cub84.npz, cub32.npz, mini32.npz and grocery.zip (docs/data.md says where the images come from). Pictures are
embedded once, by efficientnet-lite0, into a cache; `birds-conv4` are features of the Conv-4 that comes with us. Every
classifier meets the same supports and queries: 5 classes drawn anew for every episode, and all classes of
the set at once. `step` gives half of the classes 1 image and the others 16, `tail` falls from 16 to 1, `natural` is the
set's own training folder against photos of other days. Nothing is tuned on the classes of the test: the C of logistic
regression and the shrinkages of a base are chosen on base classes.

Writes one row per set, way, support and classifier: accuracy and its gain over cosine-proto with paired 95 % intervals
over episodes, accuracy on rare classes (1 or 2 images), expected calibration error, log-loss, AUROC of unknown classes,
CPU seconds of fit and predict.
"""

import argparse
import time
import warnings
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy.special import softmax
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.neighbors import KNeighborsClassifier, NearestCentroid
from sklearn.preprocessing import normalize

from anyshot import FewShotClassifier
from anyshot.data.npz import read_npz
from anyshot.data.pictures import picture
from anyshot.deploy.calibration import calibration_error
from anyshot.models.embedders import embedder
from anyshot.progress import progress
from anyshot.rows import show_table, write_table

SHOTS = (1, 2, 4, 8, 16, 32)
QUERIES = 8


@dataclass
class Set:
    """Features and classes to be told apart; base classes of the same kind, and of another."""

    x: np.ndarray
    y: np.ndarray
    base: tuple[np.ndarray, np.ndarray]
    foreign: tuple[np.ndarray, np.ndarray]
    later: tuple[np.ndarray, np.ndarray] | None = None
    """Images of the same classes, taken on other days."""


@dataclass
class Answer:
    probabilities: np.ndarray
    known: np.ndarray
    """How much speaks for one of the classes: of the queries, and of images of unknown classes."""
    unknown: np.ndarray
    fit: float
    predict: float


Method = Callable[[np.ndarray, np.ndarray, np.ndarray, np.ndarray], Answer]


def ours(head: str, **arguments: object) -> Method:
    def method(x: np.ndarray, y: np.ndarray, query: np.ndarray, strange: np.ndarray) -> Answer:
        began = time.process_time()
        fitted = FewShotClassifier(head, **arguments).fit(x, y)
        middle = time.process_time()
        vectors = fitted.vectors(query)
        probabilities = softmax(fitted.logits_of(vectors), axis=1)
        ended = time.process_time()
        far = fitted.evidence_of(fitted.vectors(strange)) if len(strange) else np.zeros(0)
        if head == "posterior":
            return Answer(probabilities, fitted.evidence_of(vectors), far, middle - began, ended - middle)
        far = fitted.predict_proba(strange).max(1) if len(strange) else far
        return Answer(probabilities, probabilities.max(1), far, middle - began, ended - middle)

    return method


def theirs(make: Callable[[], object], scale: bool = True) -> Method:
    def method(x: np.ndarray, y: np.ndarray, query: np.ndarray, strange: np.ndarray) -> Answer:
        prepare = normalize if scale else np.asarray
        began = time.process_time()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            warnings.simplefilter("ignore", UserWarning)
            fitted = make().fit(prepare(x), y)
        middle = time.process_time()
        probabilities = _probabilities(fitted, prepare(query), len(np.unique(y)))
        ended = time.process_time()
        far = _probabilities(fitted, prepare(strange), len(np.unique(y))).max(1) if len(strange) else np.zeros(0)
        return Answer(probabilities, probabilities.max(1), far, middle - began, ended - middle)

    return method


def _probabilities(fitted: object, x: np.ndarray, way: int) -> np.ndarray:
    if hasattr(fitted, "predict_proba"):
        return fitted.predict_proba(x)
    return np.eye(way)[fitted.predict(x)]


class LdaOfBase:
    """LDA with the covariance of base classes (shrunk by Ledoit and Wolf) and the means of the support."""

    def __init__(self, base: tuple[np.ndarray, np.ndarray]) -> None:
        lda = LinearDiscriminantAnalysis(solver="lsqr", shrinkage="auto").fit(normalize(base[0]), base[1])
        self.half = np.linalg.inv(np.linalg.cholesky(lda.covariance_)).T

    def fit(self, x: np.ndarray, y: np.ndarray) -> "LdaOfBase":
        self.means = np.stack([(x[y == c] @ self.half).mean(0) for c in np.unique(y)])
        return self

    def predict_proba(self, x: np.ndarray) -> np.ndarray:
        z = x @ self.half
        return softmax(z @ self.means.T - (self.means**2).sum(1) / 2, axis=1)


def tuned_c(base: tuple[np.ndarray, np.ndarray]) -> float:
    """The C of logistic regression that tells base classes apart best, 5 at a time, from 1 to 16 images."""
    rng = np.random.default_rng(0)
    right: dict[float, list[float]] = {}
    for trial in range(30):
        classes = rng.choice(np.unique(base[1]), 5, replace=False)
        rows = [rng.permutation(np.flatnonzero(base[1] == c)) for c in classes]
        shot = (1, 4, 16)[trial % 3]
        x, y = normalize(base[0][np.concatenate([r[:shot] for r in rows])]), np.repeat(np.arange(5), shot)
        q = normalize(base[0][np.concatenate([r[shot:][:QUERIES] for r in rows])])
        answer = np.repeat(np.arange(5), [len(r[shot:][:QUERIES]) for r in rows])
        for c in (1.0, 10.0, 100.0, 1000.0):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ConvergenceWarning)
                fitted = LogisticRegression(C=c, max_iter=300).fit(x, y)
            right.setdefault(c, []).append(float((fitted.predict(q) == answer).mean()))
    return max(right, key=lambda c: float(np.mean(right[c])))


def methods(of: Set) -> dict[str, Method]:
    c, lda = tuned_c(of.base), LdaOfBase(of.base)
    fitted = {
        name: dict(FewShotClassifier("posterior", base=base).fit(of.x[:9], np.arange(9) // 3).fitted_)
        for name, base in (("base", of.base), ("foreign", of.foreign))
    }
    basis = dict(FewShotClassifier("proto", readout="est60", base=of.base).fit(of.x[:9], np.arange(9) // 3).fitted_)
    return {
        "proto": ours("proto"),
        "cosine-proto": ours("cosine-proto"),
        "est60 (base)": ours("proto", readout="est60", base=basis),
        "posterior": ours("posterior"),
        "posterior (base)": ours("posterior", base=fitted["base"]),
        "posterior (foreign base)": ours("posterior", base=fitted["foreign"]),
        f"logistic regression, C={c:g}": theirs(lambda: LogisticRegression(C=c, max_iter=300)),
        "logistic regression, balanced": theirs(lambda: LogisticRegression(C=c, max_iter=300, class_weight="balanced")),
        "LDA, shrinkage": theirs(lambda: LinearDiscriminantAnalysis(solver="lsqr", shrinkage="auto")),
        "LDA, covariance of the base": theirs(lambda: lda),
        "nearest neighbour": theirs(lambda: KNeighborsClassifier(1)),
        "NearestCentroid": theirs(NearestCentroid),
    }


def counts_of(support: str, way: int, rng: np.random.Generator) -> np.ndarray:
    """How many images each class has."""
    if support == "step":
        return rng.permutation(np.where(np.arange(way) < way // 2, 1, 16))
    if support == "tail":
        return rng.permutation(np.geomspace(16, 1, way).round().astype(int))
    return np.full(way, int(support))


def contest(name: str, of: Set, way: int, support: str, episodes: int) -> list[dict[str, object]]:
    """Rows of one set, way and support."""
    rng = np.random.default_rng([way, len(support), sum(map(ord, name + support))])
    labels, most = np.unique(of.y), np.bincount(of.y)
    found: dict[str, list[tuple[float, ...]]] = {}
    entrants = METHODS[name]
    for _ in range(episodes):
        if support == "natural":
            x, y, query, answer, strange = of.x, of.y, *of.later, of.x[:0]  # type: ignore[misc]
            counts = most
        else:
            chosen = rng.permutation(labels)
            counts = counts_of(support, way, rng)
            fit = most[chosen] >= counts.max() + QUERIES
            chosen, others = chosen[fit][:way], chosen[fit][way : 2 * way]
            if len(chosen) < way:
                return []
            rows = [rng.permutation(np.flatnonzero(of.y == label)) for label in chosen]
            x = of.x[np.concatenate([row[:k] for row, k in zip(rows, counts, strict=True)])]
            y = np.repeat(np.arange(way), counts)
            query = of.x[np.concatenate([row[-QUERIES:] for row in rows])]
            answer = np.repeat(np.arange(way), QUERIES)
            far = [np.flatnonzero(of.y == label)[:QUERIES] for label in others]
            strange = of.x[np.concatenate(far)] if far else x[:0]
        rare = counts[answer] <= 2
        for title, method in entrants.items():
            if title in ("LDA, shrinkage", "NearestCentroid") and counts.max() == 1:
                continue  # they estimate a variance within classes
            said = method(x, y, query, strange)
            right = said.probabilities.argmax(1) == answer
            loss = -np.log(said.probabilities[np.arange(len(answer)), answer].clip(1e-12)).mean()
            auroc = np.nan
            if len(said.unknown):
                both = np.concatenate([said.known, said.unknown])
                auroc = roc_auc_score(np.arange(len(both)) < len(said.known), both)
            by_class = np.mean([right[answer == c].mean() for c in np.unique(answer)])
            few = right[rare].mean() if rare.any() else np.nan
            error = calibration_error(said.probabilities, answer)
            found.setdefault(title, []).append((by_class, few, error, loss, auroc, said.fit, said.predict))
    base = 100 * np.array([row[0] for row in found["cosine-proto"]])
    out = []
    for title, rows in found.items():
        values = np.array(rows)
        accuracy = 100 * values[:, 0]
        gain = accuracy - base
        half = 1.96 / len(rows) ** 0.5
        out.append(
            {
                "set": name,
                "way": way,
                "support": support,
                "classifier": title,
                "accuracy": round(float(accuracy.mean()), 2),
                "ci95": round(half * float(accuracy.std(ddof=1)), 2) if len(rows) > 1 else float("nan"),
                "gain": round(float(gain.mean()), 2),
                "gain_ci95": round(half * float(gain.std(ddof=1)), 2) if len(rows) > 1 else float("nan"),
                "rare": round(100 * float(values[:, 1].mean()), 2),
                "calibration_error": round(100 * float(values[:, 2].mean()), 2),
                "log_loss": round(float(values[:, 3].mean()), 3),
                "auroc_unknown": round(float(values[:, 4].mean()), 3),
                "fit_seconds": round(float(values[:, 5].mean()), 4),
                "predict_seconds": round(float(values[:, 6].mean()), 4),
                "episodes": len(rows),
            }
        )
    return out


# ------------------------------------------------------------------------------------------------------------- features


def embedded(cache: Path, name: str, model: str, images: Callable[[], tuple[np.ndarray, np.ndarray]]) -> tuple:
    """Features and labels, embedded once."""
    path = cache / f"{name}.npz"
    if not path.exists():
        x, y = images()
        embeds = embedder(model)
        if isinstance(x, list):  # files
            x = np.stack([embeds.square(data) for data in x])
        with progress(f"embedding {name}", float(len(x))) as advance:
            features = embeds.features(x, advance)
        cache.mkdir(parents=True, exist_ok=True)
        np.savez(path, features=features.reshape(len(features), -1), labels=y)
    with np.load(path, allow_pickle=False) as file:
        return file["features"], file["labels"]


def images_of(path: Path, split: str, most_classes: int = 10**6, most: int = 10**6) -> Callable:
    """Images of a split of a packed file, and their classes counted from 0; at most so many classes and images each."""

    def read() -> tuple[np.ndarray, np.ndarray]:
        by_class: dict[str, list] = {}
        for item in read_npz(path).items:
            if item.split == split:
                by_class.setdefault(item.class_name, []).append(item)
        classes = [items[:most] for items in by_class.values()][:most_classes]
        images = np.stack([picture(item.read(), None, "crop") for items in classes for item in items])
        return images, np.repeat(np.arange(len(classes)), [len(items) for items in classes])

    return read


def groceries(path: Path, part: str) -> Callable:
    def read() -> tuple[list[bytes], np.ndarray]:
        with zipfile.ZipFile(path) as archive:
            names = sorted(n for n in archive.namelist() if n.startswith(f"{part}/") and not n.endswith("/"))
            classes = sorted({n.split("/")[1] for n in archive.namelist() if n.count("/") > 1})
            return [archive.read(n) for n in names], np.array([classes.index(n.split("/")[1]) for n in names])

    return read


def read_sets(data: Path, cache: Path, wanted: list[str]) -> dict[str, Set]:
    lite0 = "efficientnet-lite0"
    cub = {s: embedded(cache, f"cub84-{s}", lite0, images_of(data / "cub84.npz", s)) for s in ("train", "test")}
    days = {s: embedded(cache, f"grocery-{s}", lite0, groceries(data / "grocery.zip", s)) for s in ("train", "test")}
    sets: dict[str, Set] = {}
    if "groceries" in wanted:
        # Half of the classes are asked for, the others are the base of the same kind.
        sets["groceries"] = halves(days["train"], days["test"], cub["train"])
    if "birds" in wanted:
        sets["birds"] = Set(*cub["test"], cub["train"], days["train"])
    if "birds-conv4" in wanted:
        model = "cub32-conv4-cosine-proto-16shot"
        conv = {s: embedded(cache, f"cub32-{s}", model, images_of(data / "cub32.npz", s)) for s in ("train", "test")}
        mini = embedded(cache, "mini32-conv4", model, images_of(data / "mini32.npz", "train", 40, 60))
        sets["birds-conv4"] = Set(*conv["test"], conv["train"], mini)
    if "things" in wanted:
        test = embedded(cache, "mini32-test", lite0, images_of(data / "mini32.npz", "test", 20, 60))
        train = embedded(cache, "mini32-train", lite0, images_of(data / "mini32.npz", "train", 40, 60))
        sets["things"] = Set(*test, train, cub["train"])
    return sets


def halves(train: tuple, test: tuple, foreign: tuple) -> Set:
    """Even classes are asked for; odd ones are the base."""
    parts = []
    for x, y in (train, test):
        even = y % 2 == 0
        parts.append(((x[even], y[even] // 2), (x[~even], y[~even] // 2)))
    (asked, base), (later, _) = parts
    return Set(*asked, base, foreign, later)


METHODS: dict[str, dict[str, Method]] = {}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--cache", type=Path, default=Path("runs/heads"))
    parser.add_argument("--out", type=Path, default=Path("results/heads"))
    parser.add_argument("--sets", default="groceries,birds,birds-conv4,things")
    parser.add_argument("--episodes", type=int, default=60)
    parser.add_argument("--draws", type=int, default=3, help="of all classes at once")
    arguments = parser.parse_args()
    sets = read_sets(arguments.data, arguments.cache, arguments.sets.split(","))
    rows: list[dict[str, object]] = []
    supports = [*map(str, SHOTS), "step", "tail"]
    with progress("contests", float(len(sets) * (2 * len(supports) + 1))) as advance:
        for name, of in sets.items():
            METHODS[name] = methods(of)
            every = int((np.bincount(of.y) >= 16 + QUERIES).sum())
            for way, episodes in ((5, arguments.episodes), (every, arguments.draws)):
                for support in supports:
                    rows += contest(name, of, way, support, episodes)
                    write_table(arguments.out / "heads.csv", rows)
                    advance(1.0, f"{name}, {way}-way, {support}")
            if of.later is not None:
                rows += contest(name, of, len(np.unique(of.y)), "natural", 1)
                write_table(arguments.out / "heads.csv", rows)
    print(show_table([{k: row[k] for k in list(row)[:8]} for row in rows]))


if __name__ == "__main__":
    main()
