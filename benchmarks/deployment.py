"""Do the deployed classifier's promises hold on real data? Calibration, rejection, extrapolation of the shot curve.

    python benchmarks/deployment.py STORE MODEL                     a store of images and a model trained on its kind
    python benchmarks/deployment.py STORE MODEL --curves --split val    only the curves, on other classes

Classifiers are fitted on a few images of the store's test classes and asked about others. Calibration error: with a
scale of 1, with the scale that the model learned, and with the one that leave-one-out fits. Rejection: how many images
of known classes are rejected where 5 % may be, and how many of five classes that the classifier has never seen.
Extrapolation: shot curves fitted up to 4, 6 and 8 shots against what is measured at two and four times as many.
"""

import argparse
from pathlib import Path

import numpy as np
from scipy.special import softmax

from anyshot import FewShotClassifier
from anyshot.classify.calibration import calibration_error
from anyshot.data.store import open_store
from anyshot.inspect.gains import fit_curve
from anyshot.measure.evaluate import evaluate
from anyshot.models.model import load_model

SHOTS = np.array([1, 2, 3, 4, 6, 8, 12, 16, 24, 32])
HEADS = ("proto", "cosine-proto", "frn", "cosine-frn")
QUERIES, STRANGERS = 16, 5


def promises(X: np.ndarray, y: np.ndarray, model: Path, way: int, shot: int, draws: int) -> str:
    """Calibration and rejection of classifiers of one way and shot."""
    rng = np.random.default_rng([way, shot])
    learned = float(FewShotClassifier.from_run(model).parameters["scale"])
    sure: dict[str, list[np.ndarray]] = {"scale 1": [], "learned": [], "fitted": []}
    right, rejected, strangers = [], [], []
    asked_of, fitted_on = (np.repeat(np.arange(way), many) for many in (QUERIES, shot))
    for _ in range(draws):
        classes = rng.permutation(y.max() + 1)[: way + STRANGERS]
        images = [rng.permutation(np.flatnonzero(y == c)) for c in classes]
        support = np.concatenate([mine[:shot] for mine in images[:way]])
        query = np.concatenate([mine[shot : shot + QUERIES] for mine in images[:way]])
        fitted = FewShotClassifier.from_run(model).fit(X[support], fitted_on)
        scores = fitted.logits(X[query]) / fitted.scale_
        for name, scale in (("scale 1", 1.0), ("learned", learned), ("fitted", fitted.scale_)):
            sure[name].append(softmax(scale * scores, axis=1))
        right.append(scores.argmax(1) == asked_of)
        rejected.append(~fitted.is_known(X[query]))
        if len(images) > way:
            strangers.append(~fitted.is_known(X[np.concatenate([mine[:QUERIES] for mine in images[way:]])]))
    errors = {
        name: 100 * calibration_error(np.concatenate(all_), np.tile(asked_of, draws)) for name, all_ in sure.items()
    }
    unknown = f"{100 * np.mean(strangers):.1f} %" if strangers else "-"
    return (
        f"{way:3}-way {shot:3}-shot  accuracy {100 * np.mean(right):5.1f} %   calibration error "
        + ", ".join(f"{name} {error:4.1f}" for name, error in errors.items())
        + f"   rejected: known {100 * np.mean(rejected):.1f} %, unknown {unknown}"
    )


def extrapolation(X: np.ndarray, y: np.ndarray, way: int) -> str:
    """Errors of fitted shot curves beyond the shots that they were fitted on, in points."""
    fewest = int(np.bincount(y).min())
    queries = min(8, max(1, fewest // 5))
    shots = SHOTS[fewest - queries >= SHOTS]
    tested = evaluate(X, y, heads=HEADS, shots=shots.tolist(), way=way, queries=queries, episodes=600)
    wrong: dict[int, list[float]] = {2: [], 4: []}
    for head in HEADS:
        measured = tested.accuracies(head).mean(1) / 100
        for most in (4, 6, 8):
            curve = fit_curve(shots[most >= shots], measured[most >= shots])
            for times, errors in wrong.items():
                for place in np.flatnonzero(times * most == shots):
                    errors.append(100 * abs(float(curve(shots[[place]])[0] - measured[place])))
    words = (
        f"at {t} times the shot mean {np.mean(e):.2f}, worst {np.max(e):.2f} ({len(e)} curves)"
        for t, e in wrong.items()
    )
    return f"{way:3}-way extrapolation is off by (points): " + "; ".join(words)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store", type=Path)
    parser.add_argument("model", type=Path)
    parser.add_argument("--draws", type=int, default=40)
    parser.add_argument("--split", default="test")
    parser.add_argument("--curves", action="store_true", help="only the extrapolation of shot curves")
    asked = parser.parse_args()
    part, model = open_store(asked.store).part(asked.split), load_model(asked.model)
    images = np.asarray(part.items)
    if images.shape[-1] < model.channels:  # grey drawings for a model of colour photos
        images = images.repeat(model.channels, -1)
    features = model.features(images)
    for way in (5, 15):
        for shot in () if asked.curves else (1, 2, 3, 5, 10, 20):
            print(promises(features, part.labels, asked.model, way, shot, asked.draws), flush=True)
        print(extrapolation(features, part.labels, way), flush=True)
