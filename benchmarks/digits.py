"""Many examples of every class: the posterior beside logistic regression, on data that comes with scikit-learn.

    python benchmarks/digits.py                 a Markdown table; some five minutes of one core

The 1,797 digits of 8 x 8 pixels are taken as vectors. Every classifier learns the same examples, drawn anew each time,
and is asked 20 others of each digit. `logistic` is our head, with its C and its factor chosen by likelihood; the rivals
are scikit-learn's, on vectors of length one, C of logistic regression by cross-validation. Intervals are paired, 95 %,
over draws.
"""

import argparse
import warnings

import numpy as np
import torch
from heads import Record, Set, draw, half_width, logistic, measure_calibration, ours, theirs
from sklearn.datasets import load_digits
from sklearn.svm import LinearSVC

SHOTS = (2, 5, 10, 20, 50, 100)


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=20)
    draws = parser.parse_args().draws
    torch.set_num_threads(1)
    x, y = load_digits(return_X_y=True)
    of = Set(x.astype(np.float32), y, None, (x[:0], y[:0]))
    entrants = {
        "posterior": ours("posterior", keep=128),
        "logistic": ours("logistic", keep=128),
        "LinearSVC": theirs(LinearSVC),
        "LogisticRegression": logistic(None),
    }
    print("| examples | posterior | logistic over it | LinearSVC | LogisticRegression | calibration errors |")
    print("|---:|---:|---:|---:|---:|---|")
    for shot in SHOTS:
        rng, results = np.random.default_rng(shot), {name: Record() for name in entrants}
        for _ in range(draws):
            episode = draw(of, None, str(shot), rng, queries=20)
            assert episode is not None
            for name, method in entrants.items():
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # of iterations
                    answer = method(episode.x, episode.y, episode.query, episode.strange)
                results[name].add(answer, episode)
        accuracy = {name: one.units(by_class=False) for name, one in results.items()}
        first = accuracy["posterior"]
        cells = [f"{first.mean():.1f}"]
        cells += [f"{(a - first).mean():+.1f} ± {half_width(a - first):.1f}" for a in list(accuracy.values())[1:]]
        errors = " ".join(f"{measure_calibration(one.sure):.1f}" for one in results.values())
        print(f"| {shot} | {' | '.join(cells)} | {errors} |", flush=True)


if __name__ == "__main__":
    main()
