"""Which classifier to use on given features: ours beside what people would use instead, at equal and unequal shots.

    python benchmarks/heads.py --data FOLDER                    all of results/heads: an hour of one core
    python benchmarks/heads.py --data FOLDER --split val --out runs/heads-val       on development classes
    python benchmarks/heads.py --features A.npz B.npz --out runs/heads-mine         on features of your own

FOLDER has cub84.npz, cub32.npz, mini32.npz and grocery.zip (docs/data.md says where the images come from). Pictures are
embedded once, by efficientnet-lite0, into a cache (ten more minutes); `birds-conv4` are features of a Conv-4 that comes
with us. Every classifier meets the same supports and queries: 5 classes drawn anew for every episode, and all classes
of the set at once. So that many fits take seconds, features of 1,280 numbers are seen in 320 random directions, the
same for all, but for `natural`, where they are whole. `step` gives half of the classes 1 image and the others 16,
`tail` falls from 16 to 1, `natural` is the set's own training folder. Queries of groceries are photos of other days.
Nothing is tuned on the classes of the test. The C of logistic regression is chosen on each support by three folds (and
is 10 for single images), the shrinkages of a base on base classes; LinearSVC and RidgeClassifier have their default C
and alpha of 1. They have no probabilities: their calibration error and log-loss say nothing.

Writes heads.csv, one row per set, way, support and classifier: accuracy, its gain over cosine-proto and how far it is
behind the best (of those that need no base, if it needs none itself; else of all), its lead over the best of the
others, accuracy on rare classes (1 or 2 images), expected calibration error with its interval, log-loss, AUROC of
unknown classes (by what the classifier offers for it, and by its largest probability), CPU seconds of fit and predict;
and README.md, which shows it. Intervals are paired, 95 %: of 5 classes over episodes, of all classes over classes; that
of the calibration error is over episodes or draws (jackknife). Cells that heads.csv has are not computed again.

Features of your own are files with arrays `features` and `labels`, as `anyshot embed -o features.npz` writes them.
Classifiers that need a base are left out there. With `natural` among the `--supports`, a class has all of its images
but the queries (half of them where it has few).
"""

import argparse
import time
import warnings
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from heads_page import NEEDS_NO_BASE, page
from scipy.special import softmax
from scipy.stats import t as student
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.linear_model import LogisticRegression, RidgeClassifier
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import GridSearchCV, StratifiedKFold
from sklearn.neighbors import KNeighborsClassifier, NearestCentroid
from sklearn.preprocessing import normalize
from sklearn.svm import LinearSVC

from anyshot import FewShotClassifier
from anyshot.classify.calibration import calibration_error
from anyshot.data.layout import PackOptions
from anyshot.data.npz import read_image_npz
from anyshot.data.pictures import decode_picture
from anyshot.files import write_text
from anyshot.models.embedders import load_embedder
from anyshot.models.gaussian import POSTERIOR_HEAD, fit, fit_base, moments_of
from anyshot.models.law import BoundHead, Examples, Parameters
from anyshot.models.law import normalize as unit
from anyshot.progress import progress
from anyshot.tables import format_table, read_table, write_table

SHOTS = (1, 2, 5, 10, 20)
CS = (1.0, 10.0, 100.0, 1000.0)  # that logistic regression chooses among
SUPPORTS = (*map(str, SHOTS), "step", "tail")
QUERIES = 8
DIRECTIONS = 320
NEEDS_TWO = ("LDA, shrinkage", "NearestCentroid")  # they estimate a variance within classes
SHOP = "groceries, all 81 classes"  # asked once, for all photos of the shop
Labelled = tuple[np.ndarray, np.ndarray]


@dataclass
class Set:
    """Features and classes to be told apart; base classes of the same kind, and of another."""

    x: np.ndarray
    y: np.ndarray
    base: Labelled | None = None
    foreign: Labelled | None = None
    later: Labelled | None = None
    """Images of the same classes, taken on other days."""


@dataclass
class Answer:
    probabilities: np.ndarray
    evidence: np.ndarray
    """How much speaks for one of the classes: of the queries, and of images of unknown classes."""
    unknown: np.ndarray
    surest_unknown: np.ndarray
    """The largest probability of images of unknown classes."""
    fit: float
    predict: float


Method = Callable[[np.ndarray, np.ndarray, np.ndarray, np.ndarray], Answer]


# ---------------------------------------------------------------------------------------------------------- classifiers


def ours(head: str, **arguments: Any) -> Method:
    def method(x: np.ndarray, y: np.ndarray, query: np.ndarray, strange: np.ndarray) -> Answer:
        began = time.process_time()
        fitted = FewShotClassifier(head, **arguments).fit(x, y)
        middle = time.process_time()
        probabilities = fitted.predict_proba(query)
        ended = time.process_time()
        far = fitted.predict_proba(strange).max(1) if len(strange) else np.zeros(0)
        return Answer(probabilities, probabilities.max(1), far, far, middle - began, ended - middle)

    return method


def posterior(base: Parameters | None = None) -> Method:
    """FewShotClassifier("posterior"), with a base that is fitted once and not for every support."""

    def method(x: np.ndarray, y: np.ndarray, query: np.ndarray, strange: np.ndarray) -> Answer:
        began = time.process_time()
        examples = Examples(unit(torch.from_numpy(x).double()), torch.from_numpy(y))
        moments = moments_of(examples.vectors, examples.owner)
        bound = BoundHead(POSTERIOR_HEAD, fit(moments, examples, base))
        prototypes = bound.head.refined(moments.prototypes, moments.counts, bound.parameters)

        def ask(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            """Probabilities, and the evidence for the likeliest class over a new one."""
            vectors, scale = unit(torch.from_numpy(rows).double()), float(bound.parameters["scale"])
            scores = bound.score(bound.transform(vectors), prototypes)
            evidence = bound.evidence(vectors, moments.prototypes, moments.counts)
            best = evidence.gather(1, scores.argmax(1, keepdim=True))[:, 0]
            return softmax(scale * scores.numpy(), axis=1), scale * best.numpy()

        middle = time.process_time()
        probabilities, evidence = ask(query)
        ended = time.process_time()
        far, unknown = ask(strange) if len(strange) else (np.zeros((0, 1)), np.zeros(0))
        return Answer(probabilities, evidence, unknown, far.max(1), middle - began, ended - middle)

    return method


def theirs(make: Callable[[], Any]) -> Method:
    """An estimator of scikit-learn on vectors of length one."""

    def method(x: np.ndarray, y: np.ndarray, query: np.ndarray, strange: np.ndarray) -> Answer:
        began = time.process_time()
        fitted = make().fit(normalize(x), y)
        middle = time.process_time()
        probabilities = _probabilities(fitted, normalize(query), int(y.max()) + 1)
        ended = time.process_time()
        far = np.zeros(0)
        if len(strange):
            far = _probabilities(fitted, normalize(strange), int(y.max()) + 1).max(1)
        return Answer(probabilities, probabilities.max(1), far, far, middle - began, ended - middle)

    return method


def _probabilities(fitted: Any, x: np.ndarray, way: int) -> np.ndarray:
    if hasattr(fitted, "predict_proba"):
        return fitted.predict_proba(x)
    return np.eye(way)[fitted.predict(x)]


class LdaOfBase:
    """LDA with the covariance of base classes (shrunk by Ledoit and Wolf) and the means of the support."""

    def __init__(self, base: Labelled) -> None:
        lda = LinearDiscriminantAnalysis(solver="lsqr", shrinkage="auto").fit(normalize(base[0]), base[1])
        self.half = np.linalg.inv(np.linalg.cholesky(lda.covariance_)).T

    def fit(self, x: np.ndarray, y: np.ndarray) -> "LdaOfBase":
        self.means = np.stack([x[y == c].mean(0) for c in np.unique(y)]) @ self.half
        return self

    def predict_proba(self, x: np.ndarray) -> np.ndarray:
        z = x @ self.half
        return softmax(z @ self.means.T - (self.means**2).sum(1) / 2, axis=1)


class SimpleShot:
    """The nearest class mean of centred unit vectors (CL2N, Wang et al. 2019), about a base's or the support's mean."""

    def __init__(self, centre: np.ndarray | None = None) -> None:
        self.centre = centre

    def fit(self, x: np.ndarray, y: np.ndarray) -> "SimpleShot":
        self.centre = x.mean(0) if self.centre is None else self.centre
        self.nearest = KNeighborsClassifier(1)
        z = normalize(x - self.centre)
        self.nearest.fit(np.stack([z[y == c].mean(0) for c in np.unique(y)]), np.unique(y))
        return self

    def predict(self, x: np.ndarray) -> np.ndarray:
        return self.nearest.predict(normalize(x - self.centre))


class Plda:
    """PLDA as speaker-recognition toolkits have it (Kaldi's `plda.cc`): both covariances of a base without shrinkage,
    vectors at their expected length, and the log-likelihood ratio of a mean of k images against a new class."""

    def __init__(self, base: Labelled) -> None:
        x, y = normalize(base[0]), base[1]
        means = np.stack([x[y == c].mean(0) for c in np.unique(y)])
        within = np.cov((x - means[np.unique(y, return_inverse=True)[1]]).T)
        half = np.linalg.inv(np.linalg.cholesky(within + 1e-6 * np.trace(within) * np.eye(len(within)))).T
        values, turn = np.linalg.eigh(np.cov((means @ half).T) - np.eye(len(half)) * np.mean(1 / np.bincount(y)))
        self.centre, self.matrix, self.spread = means.mean(0), half @ turn, values.clip(0)

    def transform(self, x: np.ndarray, counts: np.ndarray) -> np.ndarray:
        z = (x - self.centre) @ self.matrix
        return z / np.sqrt((z**2 / (self.spread + 1 / counts[:, None])).mean(1, keepdims=True))

    def fit(self, x: np.ndarray, y: np.ndarray) -> "Plda":
        counts = np.bincount(y)
        means = self.transform(np.stack([x[y == c].mean(0) for c in range(len(counts))]), counts)
        known = counts[:, None] * self.spread
        self.means, self.variances = known / (known + 1) * means, 1 + self.spread / (known + 1)
        return self

    def predict_proba(self, x: np.ndarray) -> np.ndarray:
        z = self.transform(x, np.ones(len(x)))
        weights = 1 / self.variances
        squares = z**2 @ weights.T - 2 * z @ (self.means * weights).T + (self.means**2 * weights).sum(1)
        return softmax(-0.5 * (squares + np.log(self.variances).sum(1)), axis=1)


def logistic(weight: str | None) -> Method:
    """Logistic regression with the C that tells the support apart best in three folds; C = 10 for single images."""

    def method(x: np.ndarray, y: np.ndarray, query: np.ndarray, strange: np.ndarray) -> Answer:
        folds = min(3, int(np.bincount(y).max()))
        make = partial(LogisticRegression, class_weight=weight, max_iter=300, tol=1e-3)
        if folds < 2:
            return theirs(lambda: make(C=10.0))(x, y, query, strange)
        parts = StratifiedKFold(folds, shuffle=True, random_state=0)
        search = GridSearchCV(make(), {"C": CS}, cv=parts, scoring="balanced_accuracy")
        return theirs(lambda: search)(x, y, query, strange)

    return method


def methods(of: Set) -> dict[str, Method]:
    """Every classifier by name; those that need base classes of the kind only where there are such."""

    def prepared(base: Labelled) -> Parameters:
        return fit_base(torch.from_numpy(base[0]), torch.from_numpy(base[1]))

    entrants = {
        "proto": ours("proto"),
        "cosine-proto": ours("cosine-proto"),
        "posterior": posterior(),
        "logistic regression": logistic(None),
        "logistic regression, balanced": logistic("balanced"),
        "LinearSVC": theirs(LinearSVC),
        "LinearSVC, balanced": theirs(lambda: LinearSVC(class_weight="balanced")),
        "RidgeClassifier": theirs(RidgeClassifier),
        "RidgeClassifier, balanced": theirs(lambda: RidgeClassifier(class_weight="balanced")),
        "LDA, shrinkage": theirs(lambda: LinearDiscriminantAnalysis(solver="lsqr", shrinkage="auto")),
        "SimpleShot": theirs(SimpleShot),
        "nearest neighbour": theirs(lambda: KNeighborsClassifier(1)),
        "NearestCentroid": theirs(NearestCentroid),
    }
    if of.foreign is not None:
        entrants["posterior (foreign base)"] = posterior(prepared(of.foreign))
    if of.base is not None:
        lda, plda, centre = LdaOfBase(of.base), Plda(of.base), normalize(of.base[0]).mean(0)
        est = dict(FewShotClassifier("proto", readout="est60", base=of.base).fit(of.x[:9], np.arange(9) // 3).fitted_)
        entrants |= {
            "posterior (base)": posterior(prepared(of.base)),
            "SimpleShot (base)": theirs(lambda: SimpleShot(centre)),
            "est60 (base)": ours("proto", readout="est60", base=est),
            "LDA (base)": theirs(lambda: lda),
            "PLDA (base)": theirs(lambda: plda),
        }
    return entrants


# ------------------------------------------------------------------------------------------------------------- contests


@dataclass
class Episode:
    """A support and what is asked of it."""

    x: np.ndarray
    y: np.ndarray
    counts: np.ndarray
    query: np.ndarray
    answer: np.ndarray
    strange: np.ndarray
    """Images of classes that are not in the support."""
    classes: np.ndarray
    """Which classes of the set these are."""


def counts_of(support: str, way: int, rng: np.random.Generator) -> np.ndarray:
    """How many images each class has."""
    if support == "step":
        return rng.permutation(np.where(np.arange(way) < way // 2, 1, 16))
    if support == "tail":
        return rng.permutation(np.geomspace(16, 1, way).round().astype(int))
    return np.full(way, int(support))


def draw(of: Set, way: int | None, support: str, rng: np.random.Generator, queries: int = QUERIES) -> Episode | None:
    """An episode of so many classes, or of all that have images enough."""
    if support == "natural":
        return _all_images(of, rng, queries)
    pool, labels = of.later or (of.x, of.y), np.unique(of.y)
    most = 16 if support in ("step", "tail") else int(support)
    enough = np.bincount(of.y) >= most + (0 if of.later else queries)
    enough &= np.bincount(pool[1], minlength=len(labels)) >= queries
    chosen = rng.permutation(labels[enough])
    way = way or len(chosen)
    if len(chosen) < max(way, 2):
        return None
    chosen, others = chosen[:way], chosen[way : 2 * way]
    counts = counts_of(support, way, rng)
    rows = [rng.permutation(np.flatnonzero(of.y == label)) for label in chosen]
    support_rows = np.concatenate([row[:k] for row, k in zip(rows, counts, strict=True)])
    if of.later:
        rows = [rng.permutation(np.flatnonzero(pool[1] == label)) for label in chosen]
    query = np.concatenate([row[-queries:] for row in rows])
    strange = [rng.permutation(np.flatnonzero(pool[1] == label))[:queries] for label in others]
    return Episode(
        of.x[support_rows],
        np.repeat(np.arange(way), counts),
        counts,
        pool[0][query],
        np.repeat(np.arange(way), queries),
        pool[0][np.concatenate(strange)] if strange else of.x[:0],
        chosen,
    )


def _all_images(of: Set, rng: np.random.Generator, queries: int) -> Episode:
    """An episode of all images of all classes, asked with those of other days, or with some that are set apart."""
    x, y, later = of.x, of.y, of.later
    if later is None:
        rank = np.empty(len(y), int)
        for label in np.unique(y):
            rank[y == label] = rng.permutation(np.sum(y == label))
        is_query = rank < np.minimum(queries, np.bincount(y)[y] // 2)
        later, x, y = (x[is_query], y[is_query]), x[~is_query], y[~is_query]
    return Episode(x, y, np.bincount(y), *later, x[:0], np.unique(y))


@dataclass
class Record:
    """What one classifier did in the episodes that it met."""

    recalls: list[np.ndarray] = field(default_factory=list)
    """Of the classes of each episode, in the order of the set's classes where all are asked for."""
    rare: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    aurocs: list[tuple[float, float]] = field(default_factory=list)
    seconds: list[tuple[float, float]] = field(default_factory=list)
    sure: list[np.ndarray] = field(default_factory=list)
    """Probabilities of the two outcomes of an answer, right or wrong, for the calibration of all episodes together."""

    def add(self, said: Answer, of: Episode) -> None:
        right = said.probabilities.argmax(1) == of.answer
        recalls = np.bincount(of.answer, right) / np.bincount(of.answer)
        self.recalls.append(recalls[of.classes.argsort()])
        rare = of.counts <= 2
        self.rare.append(float(recalls[rare].mean()) if 0 < rare.sum() < len(rare) else np.nan)
        own = said.probabilities[np.arange(len(right)), of.answer]
        self.losses.append(float(-np.log(own.clip(1e-12)).mean()))
        surest = said.probabilities.max(1)
        both = ((said.evidence, said.unknown), (surest, said.surest_unknown))
        by_evidence, by_probability = (_auroc(*one) if len(one[1]) else np.nan for one in both)
        self.aurocs.append((by_evidence, by_probability))
        self.seconds.append((said.fit, said.predict))
        self.sure.append(np.stack([surest, right], 1))

    def units(self, by_class: bool) -> np.ndarray:
        """What an interval is over: the accuracy of each episode, or of each class over all episodes."""
        recalls = 100 * np.stack(self.recalls)
        return recalls.mean(0) if by_class else recalls.mean(1)


def _auroc(evidence: np.ndarray, unknown: np.ndarray) -> float:
    both = np.concatenate([evidence, unknown])
    return float(roc_auc_score(np.arange(len(both)) < len(evidence), both))


def contest(
    name: str, of: Set, way: int | None, support: str, episodes: int, entrants: dict[str, Method], queries: int
) -> list[dict[str, object]]:
    """Rows of one set, way and support."""
    rng = np.random.default_rng([way or 0, len(support), sum(map(ord, name + support))])
    records: dict[str, Record] = {}
    for _ in range(episodes):
        episode = draw(of, way, support, rng, queries)
        if episode is None:
            return []
        answers: dict[str, Answer] = {}
        for title, method in entrants.items():
            if title in NEEDS_TWO and episode.counts.max() == 1:
                continue
            plain = title.removesuffix(", balanced")
            if (
                plain == title or episode.counts.min() < episode.counts.max()
            ):  # at equal shots balancing changes nothing
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # of few images, of iterations
                    answers[title] = method(episode.x, episode.y, episode.query, episode.strange)
            else:
                answers[title] = answers[plain]
            records.setdefault(title, Record()).add(answers[title], episode)
    cosine, by_class = records["cosine-proto"], way is None

    def behind(first: Record, second: Record) -> np.ndarray:
        """How far the second is behind the first, in every episode or class."""
        return first.units(by_class) - second.units(by_class)

    rows = []
    for title, record in records.items():
        peers = NEEDS_NO_BASE if title in NEEDS_NO_BASE else records
        best = min((records[peer] for peer in records if peer in peers), key=lambda peer: behind(cosine, peer).mean())
        gain, gap = -behind(cosine, record), behind(best, record)
        row: dict[str, object] = {"set": name, "way": way or "all", "support": support, "classifier": title}
        row |= {
            "classes": len(record.recalls[0]),
            "episodes": len(record.recalls),
            "accuracy": record.units(by_class).mean(),
        }
        row |= {"ci95": half_width(record.units(by_class)), "gain": gain.mean(), "gain_ci95": half_width(gain)}
        row |= {"behind": gap.mean(), "behind_ci95": half_width(gap), "rare": 100 * np.mean(record.rare)}
        rivals = {
            peer: records[peer] for peer in records if peer in peers and not peer.startswith(title.split(" (")[0])
        }
        rival = min(rivals, key=lambda peer: behind(cosine, rivals[peer]).mean())
        lead = -behind(rivals[rival], record)
        row |= {"lead": lead.mean(), "lead_ci95": half_width(lead), "rival": rival}
        row |= {"calibration_error": measure_calibration(record.sure)}
        left_out = [measure_calibration(record.sure[:n] + record.sure[n + 1 :]) for n in range(len(record.sure))]
        row |= {"calibration_error_ci95": half_width(np.array(left_out)) * (len(left_out) - 1)}
        row |= {"log_loss": np.mean(record.losses), "auroc_unknown": np.mean([a for a, _ in record.aurocs])}
        row |= {"auroc_by_probability": np.mean([b for _, b in record.aurocs])}
        row |= {"fit_seconds": np.mean([a for a, _ in record.seconds])}
        row |= {"predict_seconds": np.mean([b for _, b in record.seconds])}
        rows.append({key: f"{value:.4g}" if isinstance(value, float) else value for key, value in row.items()})
    return rows


def measure_calibration(sure: list[np.ndarray]) -> float:
    """The expected calibration error of some episodes, in %."""
    if not sure:
        return float("nan")
    largest, is_right = np.concatenate(sure).T
    binary = np.stack([largest, np.zeros_like(largest)], 1)  # the answer is class 0, and it is right or not
    return 100 * calibration_error(binary, np.where(is_right == 1, 0, 1))


def half_width(values: np.ndarray) -> float:
    """Of a 95 % interval about a mean."""
    n = len(values)
    return float(student.ppf(0.975, n - 1) * values.std(ddof=1) / n**0.5) if n > 1 else float("nan")


# ------------------------------------------------------------------------------------------------------------- features


def embedded(cache: Path, name: str, model: str, images: Callable[[], tuple[np.ndarray, np.ndarray]]) -> Labelled:
    """Features and labels, embedded once."""
    path = cache / f"{name}.npz"
    if not path.exists():
        x, y = images()
        embeds = load_embedder(model)
        if isinstance(x, list):  # files
            x = np.stack([embeds.crop_square(data) for data in x])
        with progress(f"embedding {name}", float(len(x))) as advance:
            features = embeds.features(x, advance)
        cache.mkdir(parents=True, exist_ok=True)
        np.savez(path, features=features.reshape(len(features), -1), labels=y)
    with np.load(path, allow_pickle=False) as file:
        return file["features"], file["labels"]


def images_of(path: Path, split: str, most_classes: int = 10**6, most: int = 10**6) -> Callable[..., Any]:
    """Images of a split of a packed file, and their classes counted from 0; at most so many classes and images each."""

    def read() -> tuple[np.ndarray, np.ndarray]:
        by_class: dict[str, list[Any]] = {}
        for item in read_image_npz(path, PackOptions(), labelled=True).items:
            if item.split == split:
                by_class.setdefault(item.class_name, []).append(item)
        classes = [items[:most] for items in by_class.values()][:most_classes]
        images = np.stack([decode_picture(item.read(), None, "crop") for items in classes for item in items])
        return images, np.repeat(np.arange(len(classes)), [len(items) for items in classes])

    return read


def groceries(path: Path, part: str) -> Callable[..., Any]:
    def read() -> tuple[list[bytes], np.ndarray]:
        with zipfile.ZipFile(path) as archive:
            names = sorted(n for n in archive.namelist() if n.startswith(f"{part}/") and not n.endswith("/"))
            classes = sorted({n.split("/")[1] for n in archive.namelist() if n.count("/") > 1})
            return [archive.read(n) for n in names], np.array([classes.index(n.split("/")[1]) for n in names])

    return read


def read_sets(data: Path, cache: Path, wanted: list[str], split: str) -> dict[str, Set]:
    """The sets with the classes of a split: test, or val to develop on (of groceries the classes that are the base of
    the test, and photos of the same days)."""
    lite0 = "efficientnet-lite0"
    cub = {s: embedded(cache, f"cub84-{s}", lite0, images_of(data / "cub84.npz", s)) for s in ("train", split)}
    parts = ("train", "test") if split == "test" and "groceries" in wanted else ("train",)
    days = {s: embedded(cache, f"grocery-{s}", lite0, groceries(data / "grocery.zip", s)) for s in parts}
    sets: dict[str, Set] = {}
    if "groceries" in wanted:
        asked, others = (half(days["train"], odd) for odd in ((0, 1) if split == "test" else (1, 0)))
        # Half of the classes are asked for, the others are the base of the same kind.
        sets["groceries"] = Set(*asked, others, cub["train"], half(days["test"], 0) if split == "test" else None)
        if split == "test":
            sets[SHOP] = Set(*days["train"], None, cub["train"], days["test"])
    if "birds" in wanted:
        sets["birds"] = Set(*cub[split], cub["train"], days["train"])
    if "birds-conv4" in wanted:
        model = "cub32-conv4-cosine-proto-16shot"
        conv = {s: embedded(cache, f"cub32-{s}", model, images_of(data / "cub32.npz", s)) for s in ("train", split)}
        mini = embedded(cache, "mini32-conv4", model, images_of(data / "mini32.npz", "train", 40, 60))
        sets["birds-conv4"] = Set(*conv[split], conv["train"], mini)
    if "things" in wanted:
        asked = embedded(cache, f"mini32-{split}", lite0, images_of(data / "mini32.npz", split, 20, 60))
        train = embedded(cache, "mini32-train", lite0, images_of(data / "mini32.npz", "train", 40, 60))
        sets["things"] = Set(*asked, train, cub["train"])
    return sets


def read_features(path: Path) -> Set:
    """A set of somebody's own features; classes of one image cannot be asked for."""
    with np.load(path, allow_pickle=False) as file:
        x, y = file["features"], np.unique(file["labels"], return_inverse=True)[1]
    several = np.bincount(y)[y] > 1
    return Set(x[several].reshape(several.sum(), -1), np.unique(y[several], return_inverse=True)[1])


def in_directions(of: Set) -> Set:
    """The same set with long vectors in some random directions."""
    d = of.x.shape[1]
    if d <= DIRECTIONS:
        return of
    turn = np.linalg.qr(np.random.default_rng(0).normal(size=(d, DIRECTIONS)))[0].astype(np.float32)
    others = [of.base, of.foreign, of.later]
    return Set(of.x @ turn, of.y, *(None if part is None else (part[0] @ turn, part[1]) for part in others))


def half(of: Labelled, odd: int) -> Labelled:
    """The even or the odd classes, counted anew."""
    mine = of[1] % 2 == odd
    return of[0][mine], of[1][mine] // 2


def _command(arguments: argparse.Namespace, parser: argparse.ArgumentParser) -> str:
    """What was asked for, without where the files of this machine are."""
    source = "--data FOLDER"
    if arguments.features:
        source = " ".join(["--features", *(path.name for path in arguments.features)])
    words = [f"python benchmarks/heads.py {source}"]
    for name in ("sets", "supports", "classifiers", "split", "episodes", "draws", "queries"):
        value = getattr(arguments, name)
        if value != parser.get_default(name):
            words.append(f"--{name} {value}")
    return " ".join(words)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--data", type=Path)
    source.add_argument("--features", type=Path, nargs="+", help="files of your own features and labels")
    parser.add_argument("--cache", type=Path, default=Path("runs/heads"))
    parser.add_argument("--out", type=Path, default=Path("results/heads"))
    parser.add_argument("--sets", default="groceries,birds,birds-conv4,things")
    parser.add_argument("--supports", default=",".join(SUPPORTS), help="images of each class, step, tail")
    parser.add_argument("--classifiers", default="", help="only those whose names begin so, and cosine-proto; or all")
    parser.add_argument("--split", choices=("test", "val"), default="test")
    parser.add_argument("--episodes", type=int, default=200, help="of 5 classes")
    parser.add_argument("--draws", type=int, default=64, help="of all classes at once")
    parser.add_argument("--queries", type=int, default=QUERIES, help="images of each class to ask with")
    arguments = parser.parse_args()
    supports, wanted = arguments.supports.split(","), tuple(arguments.classifiers.split(","))
    if arguments.features:
        sets = {path.stem: read_features(path) for path in arguments.features}
    else:
        sets = read_sets(arguments.data, arguments.cache, arguments.sets.split(","), arguments.split)
    table = arguments.out / "heads.csv"
    rows: list[dict[str, object]] = list(read_table(table)) if table.exists() else []
    for row in rows:
        row["support"] = str(row["support"]).removesuffix(".0")
    done = {(row["set"], str(row["way"]), row["support"]) for row in rows}
    both = ((5, arguments.episodes), (None, arguments.draws))
    cells = [(name, way, s, many) for name in sets if name != SHOP for way, many in both for s in supports]
    cells = [cell for cell in cells if cell[1] is None or cell[2] != "natural"]
    cells += [(name, None, "natural", 1) for name, of in sets.items() if of.later]
    cells = [cell for cell in cells if (cell[0], str(cell[1] or "all"), cell[2]) not in done]
    prepared: tuple[object, Set, dict[str, Method]] | None = None
    with progress("contests", float(len(cells))) as advance:
        for name, way, support, many in cells:
            is_whole = support == "natural"
            if prepared is None or prepared[0] != (name, way, is_whole):
                of = sets[name] if is_whole else in_directions(sets[name])
                entrants = methods(of)
                entrants = {title: each for title, each in entrants.items() if title.startswith(wanted)}
                prepared = (name, way, is_whole), of, entrants
            rows += contest(name, prepared[1], way, support, many, prepared[2], arguments.queries)
            write_table(table, rows)
            advance(1.0, f"{name}, {way or 'all'} classes, {support}")
    rows = list(read_table(table))
    write_text(arguments.out / "README.md", page(rows, _command(arguments, parser)))
    print(format_table([{k: row[k] for k in list(row)[:11]} for row in rows]))


if __name__ == "__main__":
    main()
