"""Which classifier to use on given features: ours beside what people would use instead, at equal and unequal shots.

    python benchmarks/heads.py --data FOLDER [--out results/heads] [--sets groceries,birds,birds-conv4,things]

FOLDER has cub84.npz, cub32.npz, mini32.npz and grocery.zip (docs/data.md says where the images come from). Pictures are
embedded once, by efficientnet-lite0, into a cache; `birds-conv4` are features of the Conv-4 that comes with us. Every
classifier meets the same supports and queries: 5 classes drawn anew for every episode, and all classes of
the set at once. `step` gives half of the classes 1 image and the others 16, `tail` falls from 16 to 1, `natural` is the
set's own training folder against photos of other days. Nothing is tuned on the classes of the test: the C of logistic
regression and the shrinkages of a base are chosen on base classes.

Writes heads.csv, one row per set, way, support and classifier: accuracy, its gain over cosine-proto and how far it is
behind the best (each with a paired 95 % interval over episodes), accuracy on rare classes (1 or 2 images), expected
calibration error, log-loss, AUROC of unknown classes, CPU seconds of fit and predict; and README.md, which shows it and
lists where the posterior is not among the best. Cells that heads.csv has are not computed again.
"""

import argparse
import time
import warnings
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy.special import softmax
from scipy.stats import t as student
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
from anyshot.files import write_text
from anyshot.models.embedders import embedder
from anyshot.progress import progress
from anyshot.rows import read_table, show_table, write_table

SHOTS = (1, 2, 4, 8, 16, 32)
QUERIES = 8


@dataclass
class Set:
    """Features and classes to be told apart; base classes of the same kind, and of another."""

    x: np.ndarray
    y: np.ndarray
    base: tuple[np.ndarray, np.ndarray] | None
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


def tuned_c(base: tuple[np.ndarray, np.ndarray], way: int) -> float:
    """The C of logistic regression that tells base classes apart best, so many at a time, from 1 to 16 images."""
    rng = np.random.default_rng(0)
    right: dict[float, list[float]] = {}
    for trial in range(30 if way == 5 else 6):
        classes = rng.choice(np.unique(base[1]), min(way, len(np.unique(base[1]))), replace=False)
        rows = [rng.permutation(np.flatnonzero(base[1] == c)) for c in classes]
        shot = (1, 4, 16)[trial % 3]
        rows = [row for row in rows if len(row) > shot]
        x = normalize(base[0][np.concatenate([row[:shot] for row in rows])])
        query = normalize(base[0][np.concatenate([row[shot:][:QUERIES] for row in rows])])
        answer = np.repeat(np.arange(len(rows)), [len(row[shot:][:QUERIES]) for row in rows])
        for c in (0.1, 1.0, 10.0, 100.0, 1000.0):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ConvergenceWarning)
                fitted = LogisticRegression(C=c, max_iter=300).fit(x, np.repeat(np.arange(len(rows)), shot))
            right.setdefault(c, []).append(float((fitted.predict(query) == answer).mean()))
    return max(right, key=lambda c: float(np.mean(right[c])))


def methods(of: Set, way: int) -> dict[str, Method]:
    """Every classifier by name; those that need base classes of the kind only where there are such."""
    few = (of.x[:9], np.arange(9) // 3)  # to have the base fitted once

    def prepared(base: tuple[np.ndarray, np.ndarray], **arguments: str) -> dict[str, np.ndarray]:
        return dict(FewShotClassifier(base=base, **arguments).fit(*few).fitted_)

    c = tuned_c(of.base or of.foreign, way)
    entrants = {
        "proto": ours("proto"),
        "cosine-proto": ours("cosine-proto"),
        "posterior": ours("posterior"),
        "posterior (foreign base)": ours("posterior", base=prepared(of.foreign, head="posterior")),
        "logistic regression": theirs(lambda: LogisticRegression(C=c, max_iter=300)),
        "logistic regression, balanced": theirs(lambda: LogisticRegression(C=c, max_iter=300, class_weight="balanced")),
        "LDA, shrinkage": theirs(lambda: LinearDiscriminantAnalysis(solver="lsqr", shrinkage="auto")),
        "nearest neighbour": theirs(lambda: KNeighborsClassifier(1)),
        "NearestCentroid": theirs(NearestCentroid),
    }
    if of.base is not None:
        lda = LdaOfBase(of.base)
        entrants |= {
            "posterior (base)": ours("posterior", base=prepared(of.base, head="posterior")),
            "est60 (base)": ours("proto", readout="est60", base=prepared(of.base, head="proto", readout="est60")),
            "LDA (base)": theirs(lambda: lda),
        }
    return entrants


def counts_of(support: str, way: int, rng: np.random.Generator) -> np.ndarray:
    """How many images each class has."""
    if support == "step":
        return rng.permutation(np.where(np.arange(way) < way // 2, 1, 16))
    if support == "tail":
        return rng.permutation(np.geomspace(16, 1, way).round().astype(int))
    return np.full(way, int(support))


def contest(
    name: str, of: Set, way: int, support: str, episodes: int, entrants: dict[str, Method]
) -> list[dict[str, object]]:
    """Rows of one set, way and support."""
    rng = np.random.default_rng([way, len(support), sum(map(ord, name + support))])
    labels, most = np.unique(of.y), np.bincount(of.y)
    measured: dict[str, list[tuple[float, ...]]] = {}
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
            measured.setdefault(title, []).append((by_class, few, error, loss, auroc, said.fit, said.predict))
    accuracies = {title: 100 * np.array([row[0] for row in rows]) for title, rows in measured.items()}
    best = max(accuracies.values(), key=lambda accuracy: accuracy.mean())
    out = []
    for title, rows in measured.items():
        values, accuracy = np.array(rows), accuracies[title]
        gain, behind = accuracy - accuracies["cosine-proto"], best - accuracy
        row = {"set": name, "way": way, "support": support, "classifier": title, "accuracy": accuracy.mean()}
        row |= {"ci95": half_width(accuracy), "gain": gain.mean(), "gain_ci95": half_width(gain)}
        row |= {"behind": behind.mean(), "behind_ci95": half_width(behind), "rare": 100 * values[:, 1].mean()}
        row |= {"calibration_error": 100 * values[:, 2].mean(), "log_loss": values[:, 3].mean()}
        row |= {"auroc_unknown": values[:, 4].mean(), "fit_seconds": values[:, 5].mean()}
        row |= {"predict_seconds": values[:, 6].mean(), "episodes": len(rows)}
        out.append({key: f"{value:.4g}" if isinstance(value, float) else value for key, value in row.items()})
    return out


def half_width(values: np.ndarray) -> float:
    """Of a 95 % interval about a mean over episodes."""
    n = len(values)
    return float(student.ppf(0.975, n - 1) * values.std(ddof=1) / n**0.5) if n > 1 else float("nan")


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
        sets["groceries, all classes"] = Set(*days["train"], None, cub["train"], days["test"])
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


SHOWN = ("cosine-proto", "posterior", "posterior (base)", "logistic regression", "LDA (base)")


def page(rows: Sequence[dict[str, object]]) -> str:
    """What heads.csv says, for people."""
    lines = [
        "# Which classifier to use on given features",
        "",
        "Made by `python benchmarks/heads.py`; all columns are in [heads.csv](heads.csv). Accuracy in %, the best of a",
        "column in bold; `step`: half of the classes have 1 image and half 16; `tail`: 16 falling to 1; `natural`: the",
        "set's own folder of photos against photos of other days. (base): fitted on other classes of the same kind;",
        "(foreign base): on classes of another kind.",
    ]
    cells = list(dict.fromkeys((row["set"], row["way"]) for row in rows))
    for name, way in cells:
        here = [row for row in rows if (row["set"], row["way"]) == (name, way)]
        supports = list(dict.fromkeys(row["support"] for row in here))
        lines += ["", f"## {name}, {way} classes at a time ({here[0]['episodes']} draws)", ""]
        lines += ["| |" + " | ".join(map(str, supports)) + " |", "|---|" + "---:|" * len(supports)]
        of = {(row["classifier"], row["support"]): row for row in here}
        for title in dict.fromkeys(row["classifier"] for row in here):
            said = [_shown(of.get((title, support))) for support in supports]
            lines.append(f"| {title} | " + " | ".join(said) + " |")
    lines += ["", "## Where no posterior is among the best", ""]
    lines += [
        "Cells in which every posterior (also the one with a base) is behind the best beyond its paired interval:",
        "",
    ]
    lines += _lost(rows) or ["- none"]
    lines += ["", "## Where a posterior is more than half a point below the cosine", ""]
    lines += _unsafe(rows) or ["- none"]
    lines += ["", "## Probabilities and strangers (5 classes at a time)", ""]
    lines += ["Expected calibration error in % / AUROC of unknown classes:", ""]
    columns = ("1", "4", "16", "step")
    lines += ["| set | classifier | " + " | ".join(columns) + " |", "|---|---|" + "---:|" * len(columns)]
    of_all = {(r["set"], r["classifier"], r["support"]): r for r in rows if str(r["way"]) == "5"}
    for name in dict.fromkeys(row["set"] for row in rows):
        for title in SHOWN:
            cell = [of_all.get((name, title, support)) for support in columns]
            if any(cell):
                both = [
                    f"{float(c['calibration_error']):.0f} / {float(c['auroc_unknown']):.2f}" if c else "" for c in cell
                ]
                lines.append(f"| {name} | {title} | " + " | ".join(both) + " |")
    return "\n".join(lines) + "\n"


def _shown(row: dict[str, object] | None) -> str:
    if row is None:
        return ""
    return f"**{float(row['accuracy']):.1f}**" if float(row["behind"]) == 0 else f"{float(row['accuracy']):.1f}"


def _probable(row: dict[str, object] | None) -> str:
    return f"{float(row['calibration_error']):.0f} / {float(row['auroc_unknown']):.2f}" if row else ""


def _lost(rows: Sequence[dict[str, object]]) -> list[str]:
    lines = []
    for cell in dict.fromkeys((row["set"], row["way"], row["support"]) for row in rows):
        here = [row for row in rows if (row["set"], row["way"], row["support"]) == cell]
        ours = [row for row in here if str(row["classifier"]).startswith("posterior")]
        near = min(ours, key=lambda row: float(row["behind"]))
        best = min(here, key=lambda row: float(row["behind"]))
        if float(near["behind"]) > (float(near["behind_ci95"]) if near["behind_ci95"] != "nan" else 0.0):
            gap = f"{float(near['behind']):.1f} ± {float(near['behind_ci95']):.1f}"
            lines.append(f"- {cell[0]}, {cell[1]} classes, {cell[2]}: {gap} behind {best['classifier']}")
    return lines


def _unsafe(rows: Sequence[dict[str, object]]) -> list[str]:
    low = [r for r in rows if str(r["classifier"]).startswith("posterior") and float(r["gain"]) < -0.5]
    return [
        f"- {r['set']}, {r['way']} classes, {r['support']}, {r['classifier']}: "
        f"{float(r['gain']):+.1f} ± {float(r['gain_ci95']):.1f}"
        for r in low
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--cache", type=Path, default=Path("runs/heads"))
    parser.add_argument("--out", type=Path, default=Path("results/heads"))
    parser.add_argument("--sets", default="groceries,birds,birds-conv4,things")
    parser.add_argument("--episodes", type=int, default=100)
    parser.add_argument("--draws", type=int, default=5, help="of all classes at once")
    arguments = parser.parse_args()
    sets = read_sets(arguments.data, arguments.cache, arguments.sets.split(","))
    table = arguments.out / "heads.csv"
    rows: list[dict[str, object]] = list(read_table(table)) if table.exists() else []
    done = {(row["set"], str(row["way"]), row["support"]) for row in rows}
    with progress("contests", float(len(sets) * (2 * len(SHOTS) + 5))) as advance:
        for name, of in sets.items():
            every = int((np.bincount(of.y) >= 16 + QUERIES).sum())
            several = [*map(str, SHOTS), "step", "tail"]
            cells = [(5, support, arguments.episodes) for support in several]
            cells += [(every, support, arguments.draws) for support in several]
            if of.base is None:
                cells = []
            if of.later is not None:
                cells += [(len(np.unique(of.y)), "natural", 1)]
            for way in dict.fromkeys(way for way, _, _ in cells):
                missing = [c for c in cells if c[0] == way and (name, str(way), c[1]) not in done]
                entrants = methods(of, way) if missing else {}
                for _, support, episodes in missing:
                    rows += contest(name, of, way, support, episodes, entrants)
                    write_table(table, rows)
                    advance(1.0, f"{name}, {way}-way, {support}")
    write_text(arguments.out / "README.md", page(rows))
    print(show_table([{k: row[k] for k in list(row)[:9]} for row in rows]))


if __name__ == "__main__":
    main()
