"""Intervals cover what they claim to cover, as often as they claim; checked by simulation.

python tests/test_intervals.py 400      the intervals of sensitivities over new classes at full size, as a table
"""

import sys
from math import sqrt
from statistics import stdev

import numpy as np
import pytest

from anyshot.measure.intervals import class_interval, episode_interval
from anyshot.measure.sensitivity import bootstrap_sensitivity, decompose, jackknife_classes

TRIALS = 400


def draw_classes(rng: np.random.Generator, classes: int, episodes: int, way: int = 5) -> np.ndarray:
    return rng.random((episodes, classes)).argsort(1)[:, :way]


def test_episode_interval_covers_the_mean_over_all_episodes_of_the_same_data():
    rng = np.random.default_rng(0)
    ease = rng.normal(70, 8, size=20)
    covered = 0
    for _ in range(TRIALS):
        accuracy = ease[draw_classes(rng, 20, 300)].mean(1) + rng.normal(0, 5, size=300)
        covered += abs(accuracy.mean() - ease.mean()) <= episode_interval(accuracy)
    assert 0.92 <= covered / TRIALS <= 0.98


def test_episode_interval_is_the_normal_one_of_a_sample():
    """1.96 standard errors, by the deviation of a sample (n - 1), which few episodes tell from that of a population."""
    for accuracies in ([60.0, 70.0], [55.0, 61.5, 80.0], list(range(30))):
        expected = 1.96 * stdev(accuracies) / sqrt(len(accuracies))
        assert episode_interval(np.array(accuracies, float)) == pytest.approx(expected)
    assert np.isnan(episode_interval(np.array([60.0])))


@pytest.mark.parametrize(("classes", "spread"), [(20, 8.0), (50, 8.0), (20, 0.0), (10, 15.0)])
def test_class_interval_covers_the_mean_over_all_classes_there_might_be(classes, spread):
    """Classes drawn from a population of mean 70: the interval must reach it, the episode interval need not."""
    rng = np.random.default_rng(1)
    covered = wide = 0
    for _ in range(TRIALS):
        ease = rng.normal(70, spread, size=classes)
        drawn = draw_classes(rng, classes, 500)
        accuracy = ease[drawn].mean(1) + rng.normal(0, 5, size=500)
        error = abs(accuracy.mean() - 70)
        covered += error <= class_interval(accuracy, drawn)
        wide += error <= episode_interval(accuracy)
    assert covered / TRIALS >= 0.93
    if spread:
        assert wide / TRIALS < 0.7, "an interval over episodes says nothing of new classes"
    else:
        assert covered / TRIALS <= 0.995, "with nothing to generalise over it should not be far too wide"


def test_class_interval_says_when_it_cannot_know():
    rng = np.random.default_rng(2)
    assert np.isnan(class_interval(rng.normal(size=50), draw_classes(rng, 5, 50)))


def simulate(rng: np.random.Generator, truth: np.ndarray, episodes: int) -> np.ndarray:
    """Paired cells: an episode's difficulty is shared by all of them, as it is on the same images."""
    hard = rng.normal(0, 10, size=episodes)
    return (truth[..., None] + hard + rng.normal(0, 4, size=(*truth.shape, episodes)))[None]


@pytest.mark.parametrize("score", [0.0, 0.3, 4.0])
def test_sensitivity_interval_covers_the_score_and_the_noise_floor_is_what_chance_shows(score):
    rng = np.random.default_rng(3)
    truth = 70 + np.zeros((6, 4))
    truth[0, 0] += score  # a corner: the residual's range is then exactly the score times 15/24 + 1/24 ...
    true_score = decompose(truth).sensitivity
    covered, scores, floors = 0, [], []
    for _ in range(150):
        measured = bootstrap_sensitivity(simulate(rng, truth, 400), draws=200)
        covered += measured.low <= true_score <= measured.high
        scores.append(measured.sensitivity)
        floors.append(measured.noise_floor)
    assert covered / 150 >= 0.95
    if score == 0:
        np.testing.assert_allclose(np.mean(floors), np.mean(scores), rtol=0.05)


def simulate_classes(rng, truth, many, episodes=600):
    """Two models in paired cells: classes differ in difficulty, and in what each cell makes of them; the second model
    is half as sensitive, and shares half of that."""
    hard = rng.normal(0, 8, size=(many, 1, 1))

    def apart():
        return np.einsum("cf,fij->cij", rng.normal(size=(many, 3)), rng.normal(0, 0.6, size=(3, *truth.shape)))

    classes, first = draw_classes(rng, many, episodes), apart()
    grids = []
    for share, own in ((1.0, first), (0.5, 0.5**0.5 * (first + apart()))):
        effects = share * truth + hard + own + rng.normal(0, 0.3, size=(many, *truth.shape))
        accuracies = effects[classes].mean(1) + rng.normal(0, 3, size=(episodes, *truth.shape))
        grids.append(np.moveaxis(accuracies, 0, -1)[None])
    return grids, classes


def coverage(score, many, trials, draws):
    """How often the intervals over new classes hold the true score and the true difference of two, and how often the
    one over episodes holds the score; the mean half-widths of the three."""
    rng = np.random.default_rng(8)
    truth = np.outer(np.linspace(-1, 1, 6), np.linspace(-1, 1, 4))
    truth *= score / decompose(truth).sensitivity
    holds, halves = np.zeros(3), np.zeros(3)
    for _ in range(trials):
        grids, classes = simulate_classes(rng, truth, many)
        one, other = jackknife_classes(grids, classes, draws=draws)
        episodes = bootstrap_sensitivity(grids[0], draws=50)
        intervals = (one.interval, one.difference(other), (episodes.low, episodes.high))
        for number, ((low, high), true) in enumerate(zip(intervals, (score, score / 2, score), strict=True)):
            holds[number] += low <= true <= high
            halves[number] += (high - low) / 2
    return holds / trials, halves / trials


@pytest.mark.parametrize("many", [10, 20, 50])
@pytest.mark.parametrize("score", [0.0, 0.5, 2.0, 5.0])
def test_sensitivity_over_new_classes_is_covered_and_so_is_a_difference(score, many):
    (alone, difference, over_episodes), _ = coverage(score, many, trials=25, draws=300)
    assert alone >= 0.92
    assert difference >= 0.92
    if not score:
        assert over_episodes < 0.8, "an interval over episodes says nothing of new classes"


def test_over_classes_says_when_it_cannot_know():
    rng = np.random.default_rng(2)
    assert jackknife_classes([simulate(rng, np.zeros((2, 2)), 50)], draw_classes(rng, 5, 50)) is None


def test_pairing_removes_what_all_cells_share():
    rng = np.random.default_rng(4)
    truth = 70 + np.zeros((6, 4))
    paired = simulate(rng, truth, 1000)
    apart = np.stack([rng.permutation(row) for row in paired.reshape(24, -1)]).reshape(paired.shape)
    assert bootstrap_sensitivity(paired).noise_floor < 0.5 * bootstrap_sensitivity(apart).noise_floor


def test_seeds_are_told_apart_and_averaged():
    rng = np.random.default_rng(5)
    grids = 70 + rng.normal(0, 2, size=(3, 6, 4))
    cells = np.concatenate([simulate(rng, grid, 2000) for grid in grids])
    score = bootstrap_sensitivity(cells)
    assert len(score.over_seeds) == 3
    assert score.sensitivity < max(score.over_seeds)


if __name__ == "__main__":
    print("| score | classes | one | half-width | difference | half-width | over episodes | half-width |")
    for score in (0.0, 0.5, 2.0, 5.0):
        for many in (10, 20, 50):
            holds, halves = coverage(score, many, trials=int(sys.argv[1]), draws=1000)
            cells = (f"{hold:.1%} | {half:.2f}" for hold, half in zip(holds, halves, strict=True))
            print(f"| {score:g} | {many} | {' | '.join(cells)} |", flush=True)
