"""Any classifier as one more row: logistic regression on the episodes that the heads are tested on.

    python examples/logistic_regression.py FEATURES.npz       features "image d" and labels

A head of anyshot is a function of class means. What is not, such as a regression fitted to the support (as the Baseline
of Chen et al. 2019 does), still meets the same episodes: a plan is a list of image numbers, and recalls made by hand
are compared with those of the heads, paired.
"""

import sys

import numpy as np
from sklearn.linear_model import LogisticRegression

from anyshot import evaluate
from anyshot.measure.comparisons import paired_difference
from anyshot.measure.recalls import Recalls

SHOTS = (1, 4)


def logistic_recalls(features, plan, shots):
    """Return the recalls of a regression that is fitted to each support, in the form that heads have theirs."""
    drawn = plan.draw(0, plan.episodes)
    recall = np.empty((len(shots), plan.episodes, plan.way), np.float32)
    for number, shot in enumerate(shots):
        owner = np.repeat(np.arange(plan.way), shot)
        for episode in range(plan.episodes):
            support = features[drawn.support[episode, :, :shot].ravel()]
            model = LogisticRegression(max_iter=1000).fit(support, owner)
            answers = model.predict(features[drawn.query[episode].ravel()]).reshape(plan.way, plan.queries)
            recall[number, episode] = (answers == np.arange(plan.way)[:, None]).mean(1)
    columns = {"data": "", "backbone": "", "head": "logistic", "readout": "own", "train_shot": 0, "seed": 0}
    return Recalls(columns, plan.about(), tuple(shots), drawn.classes, recall)


def main(path):
    with np.load(path) as file:
        features, labels = file["features"].astype(np.float32), file["labels"]
    evaluation = evaluate(features, labels, ["proto", "cosine-proto"], SHOTS, episodes=200)
    logistic = logistic_recalls(features, evaluation.plan, SHOTS)
    print(evaluation)
    for row in logistic.rows():
        print(f"logistic, {row['test_shot']} shots: {row['accuracy']:.2f} +- {row['ci95']:.2f} %")
    for row in paired_difference(logistic, evaluation.of("cosine-proto")):
        print({name: value for name, value in row.items() if value != ""})


if __name__ == "__main__":
    main(sys.argv[1])
