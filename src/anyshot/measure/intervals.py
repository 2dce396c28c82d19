"""How well an accuracy is known: two intervals that answer two questions. Nothing here imports torch.

`episode_interval`: were the same images drawn into more episodes, how far could the mean move? Ten thousand episodes of
one data set make it small, and it says nothing about other data.
`class_interval`: on new classes of the same kind, where would the accuracy lie? Episodes share classes and images, so
they are not independent; the classes are. It is a jackknife over classes, corrected for the noise of the episodes.
"""

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy.special import stdtrit

Accuracies = Float[np.ndarray, " episode"]
LEAST_WITHOUT = 20  # episodes without a class, to know the accuracy without it


def episode_interval(accuracies: Accuracies) -> float:
    """Return the half-width of the 95 % interval over draws of episodes of the same data: 1.96 std / sqrt(n)."""
    return 1.96 * float(accuracies.std(ddof=1)) / len(accuracies) ** 0.5 if len(accuracies) > 1 else float("nan")


def class_interval(accuracies: Accuracies, classes: Int[np.ndarray, "episode way"]) -> float:
    """Return the half-width of the 95 % interval over new classes, by a jackknife (Efron and Tibshirani 1993).

    It is NaN where every episode holds nearly all classes.
    """
    parts = episodes_without_class(classes)
    if parts is None:
        return float("nan")
    inside, without = parts
    n, noise = len(accuracies), accuracies.var(ddof=1)
    means = (accuracies @ ~inside) / without  # of the episodes without each class
    spread = ((means - means.mean()) ** 2).sum()
    # Part of the spread is the episodes' own noise: a mean over fewer episodes moves even if the class did not matter.
    chance = (noise * (n - without) / (n * without)).sum()
    share = (len(without) - 1) / len(without)
    variance = max(0.0, share * (spread - chance)) + noise / n
    return float(stdtrit(len(without) - 1, 0.975) * variance**0.5)


def episodes_without_class(
    classes: Int[np.ndarray, "episode way"],
) -> tuple[Bool[np.ndarray, "episode class_"], Int[np.ndarray, " class_"]] | None:
    """Return which classes each episode holds, and how many episodes are without each class.

    Returns:
        None where too few episodes are without some class to know an accuracy without it.
    """
    names, inverse = np.unique(classes, return_inverse=True)
    inside = np.zeros((len(classes), len(names)), bool)
    inside[np.arange(len(classes))[:, None], inverse.reshape(classes.shape)] = True
    without = (~inside).sum(0)
    return None if len(names) < 3 or without.min() < LEAST_WITHOUT else (inside, without)
