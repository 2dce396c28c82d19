"""Is the advice right? What it says of labelled photos against what is then found, before and after the present rules.

    python benchmarks/advice.py --data FOLDER [--cache runs/heads] [--parts forecasts,where,suspects,copies,bursts]

FOLDER has cub84.npz, cub32.npz and grocery.zip (docs/data.md). Pictures are embedded once by efficientnet-lite0
(`birds-conv4`: by the Conv-4 that comes with us). All of it is on validation classes of CUB and on the training folder
of the groceries; `bursts` looks at the groceries' photos of other days, too.

forecasts  what twice the images would bring, said from 5, 10 and 18 a class, against what they bring; how often the
           95 % interval holds it. Before: without drawing the curve's offset to the usual one. The same where curves
           are judged on others: `forecasts-held-out`, `forecasts-bursts`, and `forecasts-days` (photos of other days).
where      classes to add images to: gain in recall of the rule, of what it was before (by the last doubling), of the
           lowest recall and of random choices, with six images added to five of twenty classes.
suspects   5 % of the labels wrong, at random or taken for the class that looks most alike: recall at a precision of 0.9
           of the two rankings and of the rule before (another class at 0.8, the own below 0.05).
copies     72 photos cropped, shifted, turned, mirrored, darker, brighter, smaller among the others: how many are found,
           and how many pairs in sets without planted copies. Before: equal features only.
limits     whether features are said to be the limit of weak ones and of strong ones, and what twice the images and the
           other features bring there.
bursts     accuracy of the training photos each left out and in whole bursts, and on photos of other days.
"""

import argparse
import io
import itertools
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from heads import embedded, groceries, images_of
from PIL import Image, ImageEnhance
from scipy.special import softmax

from anyshot import FewShotClassifier
from anyshot.classify.leave_one_out import LeaveOneOutScores, leave_out
from anyshot.inspect import gains as forecasting
from anyshot.inspect.advice import advise
from anyshot.inspect.case import AdviceCase
from anyshot.inspect.copies import find_copies
from anyshot.inspect.episodes import choose_episodes
from anyshot.inspect.gains import forecast_gains
from anyshot.inspect.labels import rank_suspects
from anyshot.measure.evaluate import evaluate
from anyshot.measure.groups import Groups, find_groups
from anyshot.measure.plan import Plan
from anyshot.models.embedders import load_embedder

CONV4 = "cub32-conv4-cosine-proto-16shot"
Set = tuple[np.ndarray, np.ndarray]


def read_sets(data: Path, cache: Path) -> dict[str, Set]:
    """Unit vectors and classes, of 320 random directions where there are more."""
    birds, small = images_of(data / "cub84.npz", "val"), images_of(data / "cub32.npz", "val")
    read = {
        "groceries": embedded(cache, "grocery-train", "efficientnet-lite0", groceries(data / "grocery.zip", "train")),
        "birds": embedded(cache, "cub84-val", "efficientnet-lite0", birds),
        "birds-conv4": embedded(cache, "cub32-val", CONV4, small),
    }
    return {name: (_few_directions(x), y) for name, (x, y) in read.items()}


def _few_directions(x: np.ndarray, many: int = 320) -> np.ndarray:
    x = x / np.linalg.norm(x, axis=1, keepdims=True)
    if x.shape[1] <= many:
        return x
    return x @ np.random.default_rng(0).normal(size=(x.shape[1], many)) / many**0.5


def heads_of(name: str) -> tuple[str, ...]:
    """The head that is advised for the features, and the paper's."""
    return ("cosine-proto",) if name == "birds-conv4" else ("posterior", "cosine-proto")


def drawn(y: np.ndarray, way: int, least: int, rng: np.random.Generator) -> list[np.ndarray]:
    """Images of some classes that have enough, each class in a random order."""
    classes = rng.permutation(np.flatnonzero(np.bincount(y) >= least))[:way]
    return [rng.permutation(np.flatnonzero(y == c)) for c in classes]


def half(values: np.ndarray) -> float:
    """Half of a 95 % interval of a mean."""
    return float(1.96 * np.std(values, ddof=1) / len(values) ** 0.5)


# ------------------------------------------------------------------------------------------------------------ forecasts


def forecasts(sets: dict[str, Set], draws: int) -> None:
    _compare_forecasts("forecasts", sets, draws, AT_HAND)


def forecasts_held_out(sets: dict[str, Set], draws: int) -> None:
    _compare_forecasts("forecasts, judged on 8 images a class held out", sets, draws, HELD_OUT)


def forecasts_bursts(sets: dict[str, Set], draws: int) -> None:
    """Only the groceries have bursts."""
    _compare_forecasts("forecasts, in whole bursts", {"groceries": sets["groceries"]}, draws, IN_BURSTS)


def forecasts_days(data: Path, cache: Path, draws: int = 4) -> None:
    """Of each class half of the photos of other days is held out; all of them tell the truth."""
    read = [
        embedded(cache, f"grocery-{split}", "efficientnet-lite0", groceries(data / "grocery.zip", split))
        for split in ("train", "test")
    ]
    x, y = (np.concatenate([one, other]) for one, other in zip(*read, strict=True))
    what, both = "forecasts, judged on photos of other days", {"groceries": (_few_directions(x), y)}
    _compare_forecasts(what, both, draws, OTHER_DAYS, len(read[0][1]))


AT_HAND, HELD_OUT, IN_BURSTS, OTHER_DAYS = "at hand", "held out", "bursts", "other days"
HELD = 8  # images of a class


def _compare_forecasts(what: str, sets: dict[str, Set], draws: int, kind: str, at_hand: int | None = None) -> None:
    """All but the first `at_hand` images are of other days."""
    rows: dict[tuple[int, int], list[list[tuple[float, float, float]]]] = {}
    for name, (x, y) in sets.items():
        ours, other = y[:at_hand], np.arange(len(y)) >= (at_hand or len(y))
        for images, way in itertools.product((5, 10, 18), (5, 20)):
            rng = np.random.default_rng([images, way])
            least = 2 * images + (HELD if kind == HELD_OUT else 0 if kind == OTHER_DAYS else 4)
            if (np.bincount(ours) >= least).sum() < way:
                continue
            for _ in range(draws):
                places = drawn(ours, way, least, rng)
                asked = [rng.permutation(np.flatnonzero(other & (y == y[mine[0]]))) for mine in places]
                if kind == OTHER_DAYS and min(map(len, asked)) < 2:
                    continue
                for head in heads_of(name):
                    if one := _one_forecast(x, places, asked, images, head, kind):
                        rows.setdefault((images, way), []).append(one)
    for (images, way), every in sorted(rows.items()):
        before, after, truth = np.array([[*row] for row in every]).transpose(1, 0, 2) * 100
        words = f"{what}, {images} images, {way}-way ({len(every)}): true {truth[:, 0].mean():+.2f}"
        for when, said in (("before", before), ("after", after)):
            held = (said[:, 1] <= truth[:, 0]) & (truth[:, 0] <= said[:, 2])
            words += (
                f"; {when} {said[:, 0].mean():+.2f}, off by {np.abs(said[:, 0] - truth[:, 0]).mean():.2f}, interval "
                f"{np.mean(said[:, 2] - said[:, 1]):.1f} wide holds {held.mean():.0%}"
            )
        print(words, flush=True)


def _one_forecast(
    x: np.ndarray, places: list[np.ndarray], asked: list[np.ndarray], images: int, head: str, kind: str
) -> list[tuple[float, float, float]]:
    """What is said before and after, with its interval, and the truth."""
    way, episodes = len(places), 100
    names = [f"{place:02}" for place in range(way)]
    rows, labels = np.concatenate([mine[:images] for mine in places]), np.repeat(np.arange(way), images)
    every, owner = np.concatenate(places), np.repeat(np.arange(way), [len(mine) for mine in places])
    alone = Groups(np.arange(len(rows)), ())
    bursts = find_groups(x[rows], labels) if kind == IN_BURSTS else alone
    held: list[np.ndarray] = []
    if kind == HELD_OUT:
        held = [mine[-HELD:] for mine in places]
    elif kind == OTHER_DAYS:
        held = [mine[: (len(mine) + 1) // 2] for mine in asked]
    holdout = (x[np.concatenate(held)], np.repeat(names, [len(some) for some in held])) if held else None
    given = np.array(names)[labels]
    case = AdviceCase(x[rows], given, [head], episodes=episodes, holdout=holdout)
    case.groups = bursts
    source = choose_episodes(case)
    shots, pool = np.array(source.shots), source.pool
    right = evaluate(source.features, source.plan.labels, head, source.shots, plan=source.plan).accuracies(head) / 100
    steps = [images, 2 * images]
    if kind == IN_BURSTS:
        plan = Plan(owner, way, 1, 1, episodes, 1, names, group=find_groups(x[every], owner).group)
        steps = [min(step, int(plan.feasible.min())) for step in steps]
        plan = replace(plan, shot=steps[-1])
    elif kind == OTHER_DAYS:
        mine, owners = np.concatenate(asked), np.repeat(np.arange(way), [len(one) for one in asked])
        every, owner = np.concatenate([every, mine]), np.concatenate([owner, owners])
        is_asked = np.repeat([False, True], [len(every) - len(mine), len(mine)])
        fewest = min(16, min(len(one) for one in asked))
        plan = Plan(owner, way, steps[-1], fewest, episodes, 1, names, held_out=is_asked)
    else:
        later = min(min(len(mine) for mine in places) - 2 * images, 16)
        plan = Plan(owner, way, steps[-1], later, episodes, 1, names)
    truth = evaluate(x[every], owner, head, steps, plan=plan).accuracies(head).mean(1) / 100
    said = []
    doubt = forecasting.PRIOR_WEIGHT
    for strength in (0.0, doubt):
        forecasting.PRIOR_WEIGHT = strength
        now, more = pool.images, steps[-1] - steps[0]
        forecasted = forecast_gains(shots, right, now, (more,), pool)
        if forecasted is None:  # too few shots to say anything
            forecasting.PRIOR_WEIGHT = doubt
            return []
        said.append((forecasted.gain[0], forecasted.low[0], forecasted.high[0]))
    forecasting.PRIOR_WEIGHT = doubt
    gain = float(truth[-1] - truth[0])
    return [*said, (gain, gain, gain)]


# ---------------------------------------------------------------------------------------------------------------- where


def where(sets: dict[str, Set], draws: int, way: int = 20, chosen: int = 5, added: int = 6) -> None:
    gains: dict[str, dict[str, list[float]]] = {"equal": {}, "unequal": {}}
    for name, (x, y) in sets.items():
        for head in heads_of(name):
            for kind, rules in gains.items():
                rng = np.random.default_rng(len(kind))
                for _ in range(draws):
                    places = drawn(y, way, 30, rng)
                    counts = np.full(way, 6) if kind == "equal" else rng.choice([3, 4, 6, 10, 14], way)
                    for rule, gain in _gains(x, places, counts, head, rng, chosen, added).items():
                        rules.setdefault(rule, []).append(100 * gain)
    gains["both"] = {rule: [*values, *gains["unequal"][rule]] for rule, values in gains["equal"].items()}
    for kind, rules in gains.items():
        for rule, values in rules.items():
            over = [np.array(values) - np.array(rules[other]) for other in ("random", "lowest recall")]
            print(
                f"where, {kind} counts, {rule}: {np.mean(values):+.2f} points; over random {over[0].mean():+.2f} "
                f"± {half(over[0]):.2f}, over lowest recall {over[1].mean():+.2f} ± {half(over[1]):.2f}",
                flush=True,
            )


def _gains(
    x: np.ndarray,
    places: list[np.ndarray],
    counts: np.ndarray,
    head: str,
    rng: np.random.Generator,
    chosen: int,
    added: int,
) -> dict[str, float]:
    way, labels = len(places), np.repeat(np.arange(len(places)), counts)
    support = np.concatenate([mine[:many] for mine, many in zip(places, counts, strict=True)])
    query, asked = np.concatenate([mine[20:] for mine in places]), [len(mine) - 20 for mine in places]
    truth = np.repeat(np.arange(way), asked)

    def mean_recall(classes: np.ndarray) -> float:
        more = [places[c][counts[c] : counts[c] + added] for c in classes]
        rows = np.concatenate([support, *more]).astype(int)
        fitted = FewShotClassifier(head).fit(x[rows], np.concatenate([labels, np.repeat(classes, added)]).astype(int))
        return float(np.average(fitted.predict(x[query]) == truth, weights=1 / np.bincount(truth)[truth]))

    fitted = FewShotClassifier(head).fit(x[support], labels)
    left_out = _leave_each_out(fitted, x[support], labels)
    own = softmax(fitted.scale_ * left_out.scores, axis=1)[np.arange(len(labels)), labels]
    is_right = left_out.is_scored & (left_out.scores.argmax(1) == labels)
    recall, sure = (np.array([v[labels == c].mean() for c in range(way)]) for v in (is_right, own))
    shots = [shot for shot in (1, 2, 3, 4) if shot < counts.min()]
    of = evaluate(x[support], labels, head, shots, way, 1, 40).of(head)
    first = max((i for i, shot in enumerate(shots) if shot <= shots[-1] / 2), default=0)
    doubling = [of.recall[-1][of.classes == c].mean() - of.recall[first][of.classes == c].mean() for c in range(way)]
    tie = 1e-6 * rng.random(way)
    rules = {
        "random": rng.random(way),
        "lowest recall": -recall + tie,
        "before, last doubling": np.array(doubling) + tie,
        "fewest images": -counts + tie,
        "the rule": (1 - sure) / counts,
    }
    start = mean_recall(np.empty(0, int))
    return {rule: mean_recall(np.argsort(-value)[:chosen]) - start for rule, value in rules.items()}


# ------------------------------------------------------------------------------------------------------------- suspects


def suspects(sets: dict[str, Set], draws: int, wrong: float = 0.05) -> None:
    for name, (x, y) in sets.items():
        for kind in ("random", "confusable"):
            rng = np.random.default_rng(0)
            recalls: dict[str, list[float]] = {"before": [], "least likely": [], "looks like another": []}
            for _ in range(draws):
                places = drawn(y, 30, 20, rng)
                rows, labels = np.concatenate([mine[:20] for mine in places]), np.repeat(np.arange(len(places)), 20)
                changed = rng.permutation(len(rows))[: round(wrong * len(rows))]
                given = labels.copy()
                if kind == "random":
                    given[changed] = (labels[changed] + rng.integers(1, len(places), len(changed))) % len(places)
                else:
                    scores = _leave_each_out(FewShotClassifier(heads_of(name)[0]), x[rows], labels).scores
                    scores[np.arange(len(rows)), labels] = -np.inf
                    given[changed] = scores.argmax(1)[changed]
                scores = _leave_each_out(FewShotClassifier(heads_of(name)[0]), x[rows], given).scores
                suspects = rank_suspects(scores, given, np.arange(len(rows)))
                old = [one for one in suspects if one.other >= 0.8 and one.log_own <= np.log(0.05)]
                rankings = {
                    "before": sorted(old, key=lambda one: -one.other),
                    "least likely": sorted(suspects, key=lambda one: one.log_own),
                    "looks like another": sorted(suspects, key=lambda one: (-one.other, one.log_own)),
                }
                for ranking, ranked in rankings.items():
                    is_wrong = np.isin([one.image for one in ranked], changed)
                    right = np.cumsum(is_wrong)
                    precise = right >= 0.9 * np.arange(1, len(right) + 1)
                    recalls[ranking].append(right[precise].max() / len(changed) if precise.any() else 0.0)
            words = ", ".join(f"{ranking} {np.mean(values):.2f}" for ranking, values in recalls.items())
            print(f"suspects, {name}, {kind} mistakes: recall at precision 0.9: {words}", flush=True)


def _leave_each_out(classifier: FewShotClassifier, x: np.ndarray, labels: np.ndarray) -> LeaveOneOutScores:
    classifier.fit(x, labels)
    return leave_out(classifier.learned_head_, classifier.vectors(x), labels, Groups(np.arange(len(labels)), ()))


# --------------------------------------------------------------------------------------------------------------- copies


def _crop(image: Image.Image, share: float) -> Image.Image:
    width, height = (round(side * share) for side in image.size)
    left, top = (image.width - width) // 3, (image.height - height) // 2
    return image.crop((left, top, left + width, top + height))


def _shift(image: Image.Image) -> Image.Image:
    move = (1, 0, 0.1 * image.width, 0, 1, 0.1 * image.height)
    return image.transform(image.size, Image.Transform.AFFINE, move)


COPIES: dict[str, Callable[[Image.Image], Image.Image]] = {
    "cropped to 85 %": lambda image: _crop(image, 0.85),
    "shifted by 10 %": _shift,
    "mirrored": lambda image: image.transpose(Image.Transpose.FLIP_LEFT_RIGHT),
    "turned by 10°": lambda image: image.rotate(10, Image.Resampling.BICUBIC),
    "darker": lambda image: ImageEnhance.Brightness(image).enhance(0.65),
    "brighter": lambda image: ImageEnhance.Brightness(image).enhance(1.4),
}


def copies(data: Path, cache: Path, planted: int = 12) -> None:
    with zipfile.ZipFile(data / "grocery.zip") as archive:
        names = sorted(n for n in archive.namelist() if n.startswith("train/") and not n.endswith("/"))
        pictures = [archive.read(name) for name in names]
    x, y = embedded(cache, "grocery-train", "efficientnet-lite0", groceries(data / "grocery.zip", "train"))
    rng = np.random.default_rng(0)
    rows = np.sort(np.concatenate([mine[:12] for mine in drawn(y, 40, 20, rng)]))
    files = [pictures[row] for row in rows]
    embeds = load_embedder("efficientnet-lite0")
    original, kinds = [], []
    for number, (kind, change) in enumerate(COPIES.items()):
        for place in rng.permutation(len(rows))[number * planted : (number + 1) * planted]:
            made = io.BytesIO()
            change(Image.open(io.BytesIO(files[place])).convert("RGB")).save(made, "JPEG", quality=85)
            files.append(made.getvalue())
            original.append(int(place))
            kinds.append(kind)
    squares = np.stack([embeds.crop_square(file) for file in files[len(rows) :]])
    features = embeds.features(squares).reshape(len(squares), -1)
    vectors = np.concatenate([x[rows], features])
    vectors = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    labels = np.concatenate([y[rows], y[rows][original]])
    labels = np.unique(labels, return_inverse=True)[1]
    for what, pairs in (
        ("pictures", find_copies(vectors, labels, lambda place: embeds.crop_square(files[place]))),
        ("features alone", find_copies(vectors, labels)),
    ):
        named = {tuple(sorted(pair[:2])) for pair in pairs}
        is_found = [(place, len(rows) + number) in named for number, place in enumerate(original)]
        each = ", ".join(
            f"{kind} {sum(f for f, k in zip(is_found, kinds, strict=True) if k == kind)}" for kind in COPIES
        )
        print(f"copies, groceries, {what}: {sum(is_found)} of {len(is_found)} found ({each})", flush=True)
    x, y = embedded(cache, "cub84-val", "efficientnet-lite0", images_of(data / "cub84.npz", "val"))
    images, _ = images_of(data / "cub84.npz", "val")()
    vectors = x / np.linalg.norm(x, axis=1, keepdims=True)
    told_of = find_copies(vectors, y, lambda place: images[place])
    across = sum(y[a] != y[b] for a, b, _ in told_of)
    print(f"copies, birds, none planted: {len(told_of)} pairs in {len(y)} images, {across} of them under two labels")
    for a, b, alike in told_of:
        print(f"  {a} and {b}: {alike:.2f}")


# --------------------------------------------------------------------------------------------------------------- bursts


def bursts(data: Path, cache: Path) -> None:
    x, y = embedded(cache, "grocery-train", "efficientnet-lite0", groceries(data / "grocery.zip", "train"))
    later, truth = embedded(cache, "grocery-test", "efficientnet-lite0", groceries(data / "grocery.zip", "test"))
    birds = embedded(cache, "cub84-val", "efficientnet-lite0", images_of(data / "cub84.npz", "val"))
    for head in ("posterior", "cosine-proto"):
        fitted = FewShotClassifier(head).fit(x, y)
        groups = find_groups(x / np.linalg.norm(x, axis=1, keepdims=True), y)
        left = leave_out(fitted.learned_head_, fitted.vectors(x), y, groups).accuracy
        print(
            f"bursts, groceries, {head}: {left.members} of {len(y)} photos in {left.groups} groups; left out alone "
            f"{left.alone:.1%}, in groups {left.in_groups:.1%}, photos of other days "
            f"{np.mean(fitted.predict(later) == truth):.1%}",
            flush=True,
        )
    none = find_groups(birds[0] / np.linalg.norm(birds[0], axis=1, keepdims=True), birds[1])
    print(f"bursts, birds: {none.members} of {len(birds[1])} photos in groups, found by {none.evidence or 'nothing'}")


# --------------------------------------------------------------------------------------------------------------- limits


def limits(data: Path, cache: Path, draws: int = 20, way: int = 10, images: int = 12) -> None:
    """Pools of weak features (the Conv-4 of birds) and of strong ones: whether features are said to be the limit, what
    twice the images bring, and what the other features do."""
    birds = embedded(cache, "cub32-val", CONV4, images_of(data / "cub32.npz", "val"))
    fruit = embedded(cache, "grocery-train-conv4", CONV4, groceries(data / "grocery.zip", "train"))
    strong = read_sets(data, cache)
    for name, (weak, y) in {"groceries": fruit, "birds": birds}.items():
        assert (strong[name][1] == y).all()
        kinds = {
            "Conv-4": (_few_directions(weak), "cosine-proto"),
            "efficientnet-lite0": (strong[name][0], "posterior"),
        }
        for kind, (x, head) in kinds.items():
            other, other_head = next(pair for which, pair in kinds.items() if which != kind)
            rng, gains = np.random.default_rng(0), {True: [], False: []}
            for _ in range(draws):
                places = drawn(y, way, 2 * images + 8, rng)
                rows = np.concatenate([mine[:images] for mine in places])
                is_limit = advise(x[rows], y[rows], [head], episodes=60).features_are_the_limit
                every, owner = np.concatenate(places), np.repeat(np.arange(way), [len(mine) for mine in places])
                plan = Plan(owner, way, 2 * images, 8, 100, 1)
                now, twice = evaluate(x[every], owner, head, [images, 2 * images], plan=plan).accuracies(head).mean(1)
                better = evaluate(other[every], owner, other_head, [images], plan=plan).accuracies(other_head).mean()
                gains[is_limit].append((now, twice - now, better - now))
            for is_limit, every in gains.items():
                if every:
                    now, more, better = np.mean(every, axis=0)
                    print(
                        f"limits, {name}, {kind}: features {'are' if is_limit else 'are not'} said to be the limit in "
                        f"{len(every)} of {draws} pools; there {now:.1f} %, twice the images {more:+.1f}, the other "
                        f"features {better:+.1f}",
                        flush=True,
                    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--cache", type=Path, default=Path(tempfile.gettempdir()) / "anyshot-heads")
    parser.add_argument("--parts", default="forecasts,where,suspects,copies,bursts")
    parser.add_argument("--draws", type=int, default=0, help="as many as were drawn for the log where 0")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    parts = asked.parts.split(",")
    simulations = {
        "forecasts": (forecasts, 4),
        "forecasts-held-out": (forecasts_held_out, 4),
        "forecasts-bursts": (forecasts_bursts, 4),
        "where": (where, 60),
        "suspects": (suspects, 5),
    }
    sets = read_sets(asked.data, asked.cache) if set(parts) & set(simulations) else {}
    for part in parts:
        if part in simulations:
            simulate, usual = simulations[part]
            simulate(sets, asked.draws or usual)
        else:
            others = {"copies": copies, "bursts": bursts, "limits": limits, "forecasts-days": forecasts_days}
            others[part](asked.data, asked.cache, **({"draws": asked.draws} if asked.draws else {}))
