"""Advice from a user's own labelled features: which head, what more labels would bring, where, and what looks wrong.

Episodes are drawn from the labelled images themselves, with nested shots, the same for every head. What the images are
too few for is said in words instead of numbers.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import ArrayLike

from anyshot.data.doctor import spread
from anyshot.data.likeness import Sketch
from anyshot.deploy.bursts import Bursts, find_bursts, leave_out_bursts
from anyshot.deploy.classifier import FewShotClassifier
from anyshot.deploy.duplicates import InDouble, near_duplicates
from anyshot.deploy.left_out import LeftOut
from anyshot.deploy.shot_curve import LEAST_SHOTS, Forecast, Pool, forecast
from anyshot.deploy.suspects import Suspect, Suspects, confusions, look
from anyshot.deploy.testing import Result, run_test
from anyshot.errors import BadInput
from anyshot.machine import give_back_memory
from anyshot.measure.engine import vectors_of
from anyshot.measure.evaluation import check_features, check_labels, evaluate, untrained
from anyshot.measure.plan import Apart, Plan
from anyshot.measure.readouts import scaled
from anyshot.models.heads import EMBEDS
from anyshot.models.law import Parameters, Reading
from anyshot.models.registry import PACKAGE, Registry

HEADS_TO_TRY = ("posterior", "cosine-proto", "proto")
HEADS_OF_MAPS = ("cosine-frn", "frn")
STEPS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
MORE = (1, 2, 5, 10, 20)  # examples that may be added; and as many as there are
LEAST_IMAGES = 3  # of a class, to be drawn into episodes
FEW_CLASS = 20  # images a class below which the curve is rough
FLOATS = 400_000_000  # of a bank of vectors: beyond, a head is left out
OPERATIONS = 2e11  # of heads that are fitted to every support anew: about a minute; episodes are as many as fit
LEAST_EPISODES = 20
MOST_ASKED = 16  # examples of a class that an episode asks
SHARES = {"curves": 0.5, "left out": 0.1, "held out": 0.1, "copies": 0.3}  # of the time, about
LOW, FLAT = 0.85, 0.15  # accuracy below which, and share of the errors that doubling ends, features are the limit

JudgedOn = Literal["at hand", "held out"]


@dataclass(frozen=True)
class OtherFeatures:
    """What another backbone would bring, measured on a sample of the pictures."""

    backbone: str
    own: float
    other: float
    shot: int
    way: int
    examples: int


@dataclass(frozen=True)
class Advice:
    """All that was found; `anyshot.deploy.advice_page` puts it into words."""

    class_names: list[str]
    counts: list[int]
    way: int
    queries: int
    episodes: int
    shots: list[int]
    curves: dict[str, list[dict[str, Any]]]
    """By head: shot, accuracy and its 95 % interval (low, high), from 0 to 1."""
    best: str
    """The head of the highest mean accuracy over the shots that are expected."""
    robust: str
    """The head whose worst shortfall from the best at any of these shots is smallest."""
    expected_shots: list[int]
    lead: dict[str, tuple[float, float]]
    """How far the best head is ahead of the others, on the same episodes, with half of a 95 % interval."""
    forecasts: dict[str, Forecast]
    judged_on: JudgedOn
    """What the curves, and with them the choice of a head and the forecasts, were measured on."""
    left_out: LeftOut
    classes: list[dict[str, Any]]
    """By class: examples, recall, the probability of the class for its examples, and on which examples these two were
    judged; those first where more examples are expected to help most."""
    confused: list[dict[str, Any]]
    unlikely: list[dict[str, Any]]
    """Examples by how unlikely their own label is; the least likely first."""
    mislabelled: list[dict[str, Any]]
    """Examples by how likely another label is; the likeliest first."""
    duplicates: list[dict[str, Any]]
    """Pairs of examples that are one picture; under two labels they are a conflict, and come first."""
    same_class: list[dict[str, Any]]
    holdout: Result | None = None
    """The best head on examples that were held out, which are best photos of other days."""
    holdout_accuracies: dict[str, float] = field(default_factory=dict)
    """And the accuracy of every head on them."""
    other_features: OtherFeatures | None = None
    doubts: list[str] = field(default_factory=list)
    """What the data are too few to say, in sentences."""

    @property
    def accuracy(self) -> float:
        """The best that is known of the accuracy with all examples: held out, in whole bursts, or each left out."""
        return self.left_out.accuracy if self.holdout is None else self.holdout.accuracy[0]

    @property
    def doubling(self) -> float | None:
        """What twice the examples are expected to bring, where that can be said."""
        ahead = self.forecasts.get(self.best)
        return None if ahead is None else ahead.gain[-1]

    @property
    def features_are_the_limit(self) -> bool:
        """Whether accuracy is low, on the examples at hand too, and more of them would hardly help. Where only those
        held out are hard, the examples at hand are too much alike, and others would help."""
        gain, accuracy = self.doubling, max(self.accuracy, self.left_out.accuracy)
        return gain is not None and accuracy < LOW and gain < FLAT * (1 - self.accuracy)

    def to_dict(self) -> dict[str, Any]:
        """All of it, for JSON."""
        more = {"features_are_the_limit": self.features_are_the_limit, "accuracy": self.accuracy}
        return {**asdict(self), **more}


def advise(
    features: ArrayLike | torch.Tensor,
    labels: ArrayLike,
    heads: Sequence[str] = (),
    shots: Sequence[int] = (),
    way: int | Literal["all"] = "all",
    episodes: int = 400,
    seed: int = 0,
    *,
    holdout: tuple[ArrayLike | torch.Tensor, ArrayLike] | None = None,
    names: Sequence[str] = (),
    times: Sequence[float | None] = (),
    picture: Callable[[int], np.ndarray] | None = None,
    parameters: Mapping[str, Parameters] | None = None,
    embed: Mapping[str, str] | None = None,
    registry: Registry = PACKAGE,
    progress: Callable[[float], None] = lambda share: None,
) -> Advice:
    """Which head to use, what more labelled images would bring, and what looks wrong, from labelled features.

    Args:
        features: Vectors "image d", or maps "image position channel".
        labels: The class of each image.
        heads: Heads to compare; those that need no training by default.
        shots: Shots expected in use, for which the head is chosen; all that can be measured by default.
        way: Classes to tell apart at once; 'all' for every class.
        episodes: Draws of support and queries.
        seed: Seed of the draws.
        holdout: Features and labels of other examples of the same classes, best of other days, for a test.
        names: What a person finds the images by; numbers and times in file names tell of bursts.
        times: When they were taken, in seconds, where that is known.
        picture: Gives the picture of an image, by its number: without pictures only near-identical features tell of
            copies.
        parameters: What trained heads have learned, by head.
        embed: How features become a vector (flatten, mean, max, gram), by head; the head's own way by default.
        registry: What heads are looked up in.
        progress: Called with shares of the whole that add up to 1.
    """
    maps = check_features(features)
    every_class, codes = check_labels(labels, len(maps))
    counts = np.bincount(codes)
    tried = list(heads) or heads_for(maps)
    for name in tried:
        registry.head(name)
    doubts: list[str] = []
    inside = np.flatnonzero(counts >= LEAST_IMAGES)
    if len(inside) < 2:
        raise BadInput(
            f"advice needs at least 2 classes of {LEAST_IMAGES} examples; {len(inside)} have as many: label more first."
        )
    if len(inside) < len(counts):
        some = ", ".join(every_class[place] for place in np.flatnonzero(counts < LEAST_IMAGES)[:5])
        doubts.append(
            f"{len(counts) - len(inside)} classes have fewer than {LEAST_IMAGES} examples ({some}): left out."
        )
    here = np.isin(codes, inside)
    used, used_names = np.searchsorted(inside, codes[here]), [every_class[place] for place in inside]
    used_maps = maps if here.all() else maps[torch.from_numpy(here)]  # all of them may stay on a disk
    original = np.flatnonzero(here)
    together = {name: (parameters or {})[name] for name in tried if name in (parameters or {})}

    bursts = find_bursts(
        InDouble(used_maps.flatten(1).numpy(), as_units=True),
        used,
        [names[image] for image in original.tolist()] if names else (),
        [times[image] for image in original.tolist()] if times else (),
    )
    held_out = None if holdout is None else _HeldOut.of(holdout, used_names)
    if held_out is not None and held_out.maps.shape[1:] != maps.shape[1:]:
        numbers = [" x ".join(map(str, each.shape[1:])) for each in (held_out.maps, maps)]
        raise BadInput(f"the examples held out have {numbers[0]} numbers each, those at hand {numbers[1]}.")
    judged = _judged(used_maps, used, bursts, held_out, way, episodes, seed, doubts, used_names)
    if any(registry.head(name).estimator for name in tried):
        judged = judged.at_most(_affordable(episodes, used_maps[0].numel(), judged.plan.way, judged.shots))
    measured, ways, queries = judged.shots, judged.plan.way, judged.plan.queries
    evaluation = evaluate(
        judged.maps, judged.plan.labels, tried, measured, plan=judged.plan,
        parameters=together, embed=embed, registry=registry, progress=scaled(progress, SHARES["curves"]),
    )  # fmt: skip
    accuracies = {name: evaluation.accuracies(name) / 100 for name in tried}
    give_back_memory()  # what the threads of the episodes hold
    expected = _expected(shots, measured, doubts)
    places = [measured.index(shot) for shot in expected]
    best, robust = _choose_heads(accuracies, places)
    steps, pool = np.array(measured), judged.pool
    widths = {name: pool.half_widths(a, steps) for name, a in accuracies.items()}
    more = tuple(sorted({step for step in MORE if step < pool.images} | {pool.images}))
    forecasts = {n: f for n, a in accuracies.items() if (f := forecast(steps, a, pool.images, more, pool, seed))}
    top = accuracies[best].mean(1) - widths[best]
    if top.max() <= 1 / ways:
        doubts.append(
            f"No accuracy is surely above chance ({1 / ways:.1%}): these features do not tell these classes apart, and "
            "what is said above is noise. Try other features before labelling more."
        )
    _doubt(doubts, used_names, counts[inside], measured, widths[best], forecasts.get(best))

    def classifier(name: str) -> FewShotClassifier:
        learned = {key: value.double().numpy() for key, value in together[name].items()} if name in together else None
        return FewShotClassifier(name, embed=(embed or {}).get(name), parameters=learned, registry=registry)

    vectors, reading = _vectors(used_maps, best, together.get(best), (embed or {}).get(best), registry)
    seen = look(vectors, used, reading)
    alone = float((seen.predicted == used)[seen.predicted >= 0].mean())
    predicted, left_out = seen.predicted, LeftOut(alone)
    if bursts.told_by:
        alike = vectors if reading.head.estimator else None
        predicted, left_out = leave_out_bursts(
            lambda: classifier(best), used_maps.numpy(), used, bursts, alone, alike, reading.head
        )
        doubts += _single_bursts(predicted, used, used_names)
    progress(SHARES["left out"])
    tests = _tests(classifier, tried, used_maps.numpy(), [used_names[place] for place in used], held_out)
    test = tests.get(best)
    progress(SHARES["held out"])
    copies = near_duplicates(
        vectors,
        used,
        None if picture is None else lambda i: Sketch.of(picture(int(original[i]))),
        scaled(progress, SHARES["copies"]),
    )
    readable = _Readable(original, used, used_names, names)
    return Advice(
        class_names=used_names,
        counts=counts[inside].tolist(),
        way=ways,
        queries=queries,
        episodes=episodes,
        shots=measured,
        curves={name: _rows(measured, a.mean(1), widths[name]) for name, a in accuracies.items()},
        best=best,
        robust=robust,
        expected_shots=expected,
        lead=_lead(accuracies, best, places, steps, pool),
        forecasts=forecasts,
        judged_on="at hand" if judged.held_out is None else "held out",
        left_out=left_out,
        classes=_by_class(seen, predicted, used, used_names, test),
        confused=_confused(predicted, used, used_names) if test is None else _confused_in(test),
        unlikely=[readable.suspect(one) for one in seen.unlikely],
        mislabelled=[readable.suspect(one) for one in seen.mislabelled],
        duplicates=readable.duplicates(copies),
        same_class=[{"classes": [used_names[i], used_names[j]], "told_apart": p} for i, j, p in seen.same_class],
        holdout=test,
        holdout_accuracies={name: test.accuracy[0] for name, test in tests.items()},
        doubts=doubts,
    )


@dataclass(frozen=True)
class _Readable:
    """Images and classes as a reader knows them."""

    original: np.ndarray
    labels: np.ndarray
    class_names: list[str]
    names: Sequence[str]

    def image(self, place: int) -> dict[str, Any]:
        number = int(self.original[place])
        name = self.names[number] if number < len(self.names) else f"example {number}"
        return {"image": number, "name": name, "label": self.class_names[self.labels[place]]}

    def suspect(self, one: Suspect) -> dict[str, Any]:
        sure = {"own_probability": float(np.exp(one.log_own)), "probability": one.other}
        return {**self.image(one.image), "looks_like": self.class_names[one.looks_like], **sure}

    def duplicates(self, pairs: list[tuple[int, int, float]]) -> list[dict[str, Any]]:
        rows = [
            {
                "one": self.image(a),
                "other": self.image(b),
                "likeness": alike,
                "conflict": bool(self.labels[a] != self.labels[b]),
            }
            for a, b, alike in pairs
        ]
        return sorted(rows, key=lambda row: not row["conflict"])


def _single_bursts(predicted: np.ndarray, labels: np.ndarray, names: list[str]) -> list[str]:
    """What cannot be said of classes that are one burst."""
    single = np.setdiff1d(np.arange(len(names)), labels[predicted >= 0])
    if not len(single):
        return []
    some = ", ".join(names[place] for place in single[:5])
    return [
        f"{len(single)} classes are a single burst ({some}): nothing can be said of how they are recognised on another "
        "occasion."
    ]


@dataclass(frozen=True)
class _HeldOut:
    """Examples that were held out: features, names of their classes, and these as numbers, -1 for other classes."""

    maps: torch.Tensor
    labels: list[str]
    codes: np.ndarray

    @staticmethod
    def of(holdout: tuple[ArrayLike | torch.Tensor, ArrayLike], class_names: Sequence[str]) -> "_HeldOut":
        labels = [str(label) for label in np.asarray(holdout[1]).tolist()]
        places = {name: place for place, name in enumerate(class_names)}
        return _HeldOut(check_features(holdout[0]), labels, np.array([places.get(label, -1) for label in labels]))


@dataclass(frozen=True)
class _Judged:
    """What the curves are measured on: examples, episodes of them, shots, and what it says of others of their kind."""

    maps: torch.Tensor
    plan: Plan
    shots: list[int]
    pool: Pool
    held_out: _HeldOut | None = None

    def at_most(self, episodes: int) -> "_Judged":
        return replace(self, plan=replace(self.plan, episodes=min(self.plan.episodes, episodes)))


def _judged(
    maps: torch.Tensor,
    labels: np.ndarray,
    bursts: Bursts,
    held_out: _HeldOut | None,
    way: int | Literal["all"],
    episodes: int,
    seed: int,
    doubts: list[str],
    names: list[str],
) -> _Judged:
    """Supports are drawn from the examples at hand; queries from those that were held out, where two classes at least
    have some, or else from those at hand, of other bursts where there are such."""
    counts = np.bincount(labels)
    if held_out is not None:
        asked = np.bincount(held_out.codes[held_out.codes >= 0], minlength=len(counts))
        tested = np.flatnonzero(asked)
        if len(tested) > 1:
            if len(tested) < len(counts):
                some = ", ".join(names[place] for place in np.flatnonzero(asked == 0)[:5])
                doubts.append(
                    f"{len(counts) - len(tested)} classes have no example held out ({some}): the curves are of the "
                    "others, and of these classes only the examples at hand tell."
                )
            mine, theirs = np.isin(labels, tested), np.isin(held_out.codes, tested)
            both = np.searchsorted(tested, np.concatenate([labels[mine], held_out.codes[theirs]]))
            is_asked = np.repeat([False, True], [int(mine.sum()), int(theirs.sum())])
            shots = [step for step in STEPS if step <= counts[tested].min()]
            queries, ways = min(MOST_ASKED, int(asked[tested].min())), len(tested) if way == "all" else way
            plan = Apart(both, ways, shots[-1], queries, episodes, seed, held_out=is_asked)
            pool = Pool(int(np.median(counts[tested])), len(tested), ways, queries, int(theirs.sum()))
            features = torch.cat([maps[torch.from_numpy(mine)], held_out.maps[torch.from_numpy(theirs)]])
            return _Judged(features, plan, shots, pool, held_out)
        doubts.append("Fewer than two classes have examples held out: what is said is of the examples at hand.")
    ways, smallest = len(counts) if way == "all" else way, int(counts.min())
    pool = Pool(int(np.median(counts)), len(counts), ways, max(1, min(MOST_ASKED, smallest // 4)))
    group = _separable(labels, bursts) if bursts.told_by else np.arange(len(labels))

    def plan_of(shot: int, queries: int) -> Plan:
        arguments = (labels, ways, shot, queries, episodes, seed, names)
        return Apart(*arguments, group=group) if bursts.told_by else Plan(*arguments)

    queries = min(pool.queries, _fewest_beside(labels, group))
    shots = [step for step in STEPS if step <= plan_of(1, queries).feasible.min()]
    return _Judged(maps, plan_of(shots[-1], queries), shots, replace(pool, queries=queries))


def _fewest_beside(labels: np.ndarray, group: np.ndarray) -> int:
    """How many images a class has at least beside its largest burst: as many can be asked while that one is learned."""
    of_classes = (group[labels == place] for place in range(int(labels.max()) + 1))
    return min(len(mine) - int(np.unique(mine, return_counts=True)[1].max()) for mine in of_classes)


def _separable(labels: np.ndarray, bursts: Bursts) -> np.ndarray:
    """Bursts, but for classes that are a single one: their images are drawn one by one."""
    group = bursts.group.copy()
    for place in range(int(labels.max()) + 1):
        mine = labels == place
        if len(np.unique(group[mine])) == 1:
            group[mine] = len(labels) + np.flatnonzero(mine)
    return group


def _tests(
    classifier: Callable[[str], FewShotClassifier],
    tried: Sequence[str],
    features: np.ndarray,
    labels: Sequence[str],
    held_out: _HeldOut | None,
) -> dict[str, Result]:
    """Every head, fitted on all examples, on those that were held out."""
    if held_out is None:
        return {}
    asked = held_out.maps.numpy(), held_out.labels
    return {name: run_test(classifier(name).fit(features, np.array(labels)), *asked) for name in tried}


def _confused(predicted: np.ndarray, labels: np.ndarray, names: list[str]) -> list[dict[str, Any]]:
    return [
        {**one, "class": names[one["class"]], "taken_for": names[one["taken_for"]]}
        for one in confusions(predicted, labels)
    ]


def _confused_in(test: Result, many: int = 5) -> list[dict[str, Any]]:
    """The commonest mistakes of a test, by their share of the examples of a class."""
    rows: list[dict[str, Any]] = [
        {"class": one.name, "taken_for": other, "share": times / one.examples}
        for one in test.classes
        for other, times in one.taken_for
    ]
    return sorted(rows, key=lambda row: -row["share"])[:many]


def _affordable(episodes: int, d: int, way: int, shots: Sequence[int]) -> int:
    """Episodes that can be had of a head that is fitted to each support: factorisations of the smaller of its sides."""
    sides = [sorted((way * shot, d)) for shot in shots]
    each = sum(
        2 * small**3 if small == way * shot else 3 * small**2 * large
        for (small, large), shot in zip(sides, shots, strict=True)
    )
    return min(episodes, max(LEAST_EPISODES, int(OPERATIONS / each)))


def heads_for(maps: torch.Tensor | np.ndarray) -> list[str]:
    """Heads that need no training; those of maps where there are several positions, and room for their Grams."""
    room = len(maps) * maps.shape[-1] * (maps.shape[-1] + 1) // 2 <= FLOATS
    return [*HEADS_TO_TRY, *(HEADS_OF_MAPS if maps.ndim == 3 and maps.shape[1] > 1 and room else ())]


def _vectors(
    maps: torch.Tensor, name: str, learned: Parameters | None, how: str | None, registry: Registry
) -> tuple[InDouble, Reading]:
    """What the head that is advised takes the mean of."""
    head, parameters = registry.head(name), learned or untrained(name, maps, registry)
    vectors = vectors_of(maps, EMBEDS[how] if how else head.embed, parameters)
    every = vectors if isinstance(vectors, torch.Tensor) else torch.cat(list(vectors.split(4096)))
    return InDouble(every.numpy()), Reading(head, {key: v.double() for key, v in parameters.items()})


def _expected(shots: Sequence[int], measured: list[int], doubts: list[str]) -> list[int]:
    """The measured shots nearest to those that are expected."""
    if any(shot < 1 for shot in shots):
        raise BadInput(f"{min(shots)} shots cannot be expected: name numbers from 1.")
    if not shots:
        return measured
    if max(shots) > measured[-1]:
        doubts.append(
            f"You expect up to {max(shots)} shots; the examples allow to measure {measured[-1]}: the choice of a head "
            "is made at the shots that can be measured."
        )
    return sorted({min(measured, key=lambda step: (abs(step - shot), step)) for shot in shots})


def _choose_heads(accuracies: Mapping[str, np.ndarray], places: list[int]) -> tuple[str, str]:
    means = {name: a.mean(1)[places] for name, a in accuracies.items()}
    top = np.max(list(means.values()), 0)
    best = max(means, key=lambda name: float(means[name].mean()))
    return best, min(means, key=lambda name: float((top - means[name]).max()))


def _lead(
    accuracies: Mapping[str, np.ndarray], best: str, places: list[int], steps: np.ndarray, pool: Pool
) -> dict[str, tuple[float, float]]:
    """Paired on the same episodes: the best head's mean lead over each other one, and half of its interval."""
    many = pool.independent(accuracies[best], steps)[places].min()
    leads = {n: (accuracies[best] - a)[places].mean(0) for n, a in accuracies.items() if n != best}
    return {n: (float(lead.mean()), float(1.96 * lead.std(ddof=1) / np.sqrt(many))) for n, lead in leads.items()}


def _rows(shots: list[int], means: np.ndarray, widths: np.ndarray) -> list[dict[str, Any]]:
    return [
        {"shot": shot, "accuracy": float(mean), "low": float(max(mean - w, 0)), "high": float(min(mean + w, 1))}
        for shot, mean, w in zip(shots, means, widths, strict=True)
    ]


def _by_class(
    seen: Suspects, predicted: np.ndarray, labels: np.ndarray, names: list[str], test: Result | None
) -> list[dict[str, Any]]:
    """Each class, those first that would profit most from more examples: whose examples (held out, where there are
    such) are recognised least surely, and whose own are few. (`benchmarks/advice.py` compares this with other rules.)
    """
    tested = {} if test is None else {one.name: one for one in test.classes}
    rows = []
    for place, name in enumerate(names):
        mine = labels == place
        judged = mine & (predicted >= 0)
        row: dict[str, Any] = {"class": name, "examples": int(mine.sum())}
        if name in tested:
            row |= {"recall": tested[name].recall[0], "probability": tested[name].probability, "judged_on": "held out"}
        else:
            recall = float((predicted[judged] == place).mean()) if judged.any() else None
            probability = float(np.exp(seen.log_own[mine]).mean())
            row |= {"recall": recall, "probability": probability, "judged_on": "at hand"}
        rows.append(row)
    return sorted(rows, key=lambda row: (row["probability"] - 1) / row["examples"])


def _doubt(
    doubts: list[str],
    names: list[str],
    counts: np.ndarray,
    measured: list[int],
    widths: np.ndarray,
    ahead: Forecast | None,
) -> None:
    """What cannot be said, or only roughly."""
    smallest = int(counts.argmin())
    if ahead is None:
        doubts.append(
            f"Class {names[smallest]} has {counts[smallest]} examples, so only shots {measured[0]} to {measured[-1]} "
            f"can be measured: too few to say what more examples would bring ({LEAST_SHOTS} different shots needed)."
        )
    elif not ahead.held_out:
        doubts.append("There are too few shots to hold any out: the expected gains are not checked.")
    elif ahead.error > max(0.02, max(ahead.gain)):
        doubts.append(
            f"At held-out shots the extrapolation was off by {ahead.error:.1%}, more than the gains it expects: "
            "take them as rough."
        )
    if counts.min() < FEW_CLASS and widths.max() > 0.05:
        doubts.append(
            f"With {spread(int(counts.min()), int(counts.max()))} examples a class the accuracies are known to about "
            f"{widths.max():.0%} only; heads closer than that cannot be told apart."
        )
