"""Intervals cover what they claim to cover, as often as they claim; checked by simulation.

python tests/measure/test_intervals.py 400      the intervals of sensitivities over new classes at full size, as a table
"""

import sys
from math import sqrt
from statistics import stdev

import numpy as np
import pytest

from anyshot.measure.comparisons import study_tables
from anyshot.measure.recalls import Recalls, class_interval, episode_interval
from anyshot.measure.sensitivity import bootstrap_episodes, decompose, jackknife_classes, list_statistics

TRIALS = 400
TEST_SHOTS, TRAIN_SHOTS = (1, 2, 4, 8, 16, 32), (4, 8, 16, 32)
STATISTICS = list_statistics(TEST_SHOTS, TRAIN_SHOTS)


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
    true = decompose(truth, TEST_SHOTS, TRAIN_SHOTS)
    covered, scores, floors = dict.fromkeys(STATISTICS, 0), [], []
    for _ in range(150):
        measured = bootstrap_episodes(simulate(rng, truth, 400), draws=200)
        for name, statistic in STATISTICS.items():
            low, high = measured.interval(statistic)
            covered[name] += low <= getattr(true, name) <= high
        scores.append(STATISTICS["sensitivity"](measured.residual))
        floors.append(measured.noise_floor)
    assert covered["sensitivity"] / 150 >= 0.95
    assert covered["deviation"] / 150 >= 0.95
    assert covered["trend"] / 150 >= 0.9, "linear, so that its interval is exact rather than wide"
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
    """How often intervals hold the truth, and their mean half-widths, by statistic: over new classes of one model and
    of the difference of two, and over episodes of one."""
    rng = np.random.default_rng(8)
    truth = np.outer(np.linspace(-1, 1, 6), np.linspace(-1, 1, 4))
    truth *= score / decompose(truth).sensitivity
    parts = decompose(truth, TEST_SHOTS, TRAIN_SHOTS)
    holds, halves = ({name: np.zeros(3) for name in STATISTICS} for _ in range(2))
    for _ in range(trials):
        grids, classes = simulate_classes(rng, truth, many)
        one, other = jackknife_classes(grids, classes, draws=draws)
        episodes = bootstrap_episodes(grids[0], draws=50)
        for name, statistic in STATISTICS.items():
            true = getattr(parts, name)
            intervals = one.interval(statistic), one.difference(other, statistic), episodes.interval(statistic)
            for number, ((low, high), value) in enumerate(zip(intervals, (true, true / 2, true), strict=True)):
                holds[name][number] += (low <= value <= high) / trials
                halves[name][number] += (high - low) / 2 / trials
    return holds, halves


@pytest.mark.parametrize("many", [10, 20, 50])
@pytest.mark.parametrize("score", [0.0, 0.5, 2.0, 5.0])
def test_sensitivity_over_new_classes_is_covered_and_so_is_a_difference(score, many):
    holds, _ = coverage(score, many, trials=25, draws=300)
    for name, (alone, difference, _) in holds.items():
        assert alone >= 0.92 - 0.08 * (name == "trend"), name  # 25 trials of an exact interval may miss three times
        assert difference >= 0.92 - 0.08 * (name == "trend"), name
    if not score:
        assert holds["sensitivity"][2] < 0.8, "an interval over episodes says nothing of new classes"


def test_over_classes_says_when_it_cannot_know():
    rng = np.random.default_rng(2)
    assert jackknife_classes([simulate(rng, np.zeros((2, 2)), 50)], draw_classes(rng, 5, 50)) is None


def test_pairing_removes_what_all_cells_share():
    rng = np.random.default_rng(4)
    truth = 70 + np.zeros((6, 4))
    paired = simulate(rng, truth, 1000)
    apart = np.stack([rng.permutation(row) for row in paired.reshape(24, -1)]).reshape(paired.shape)
    assert bootstrap_episodes(paired).noise_floor < 0.5 * bootstrap_episodes(apart).noise_floor


def test_seeds_are_told_apart_and_averaged():
    rng = np.random.default_rng(5)
    plan = {"way": 2, "queries": 1, "episodes": 200, "seed": 0, "id": "the same"}
    models = [
        Recalls(
            {"head": "proto", "train_shot": train, "seed": seed},
            plan,
            TEST_SHOTS,
            draw_classes(rng, 9, 200, way=2),
            0.7 + rng.normal(0, 0.02, size=(6, 1, 1)) + rng.normal(0, 0.01, size=(6, 200, 2)),
        )
        for train in TRAIN_SHOTS
        for seed in range(3)
    ]
    (row,) = study_tables(models)["sensitivity"]
    seeds = [float(score) for score in row["over_seeds"].split()]
    assert row["seeds"] == len(seeds) == 3
    assert row["sensitivity"] < max(seeds)


def test_the_trend_has_the_sign_of_overfitting_and_the_size_of_what_it_fits():
    """A residual that is a product of the logarithms of both shots is all trend: its size is its range."""
    product = np.outer(np.arange(6) - 2.5, np.arange(4) - 1.5)
    for strength in (0.4, -0.4):
        parts = decompose(70 + strength * product, TEST_SHOTS, TRAIN_SHOTS)
        assert parts.trend == pytest.approx(np.sign(strength) * parts.sensitivity)
        assert parts.deviation == pytest.approx(0.4 * product.std())
    assert np.isnan(decompose(product).trend), "without shots there is no trend"


def power(strength, many, trials, draws):
    """How often the interval of the difference over new classes leaves out zero, by statistic; the second model has
    half of the first one's residual."""
    rng = np.random.default_rng(9)
    truth = strength * np.outer(np.arange(6) - 2.5, np.arange(4) - 1.5)
    shares = dict.fromkeys(STATISTICS, 0.0)
    for _ in range(trials):
        grids, classes = simulate_classes(rng, truth, many)
        one, other = jackknife_classes(grids, classes, draws=draws)
        for name, statistic in STATISTICS.items():
            low, _ = one.difference(other, statistic)
            shares[name] += (low > 0) / trials
    return shares


def test_the_trend_tells_two_models_apart_more_often_than_the_range():
    found = power(0.12, 20, trials=30, draws=200)
    assert found["trend"] >= found["sensitivity"]
    assert found["deviation"] >= found["sensitivity"] - 2 / 30


if __name__ == "__main__":
    print("| score | classes | statistic | one | half-width | difference | half-width | over episodes | half-width |")
    for score in (0.0, 0.5, 2.0, 5.0):
        for many in (10, 20, 50):
            holds, halves = coverage(score, many, trials=int(sys.argv[1]), draws=1000)
            for name in STATISTICS:
                cells = (f"{hold:.1%} | {half:.2f}" for hold, half in zip(holds[name], halves[name], strict=True))
                print(f"| {score:g} | {many} | {name} | {' | '.join(cells)} |", flush=True)
    print("\n| larger sensitivity | classes | range | deviation | trend |")
    for strength in (0.06, 0.12, 0.24):
        for many in (20, 50):
            shares = power(strength, many, trials=int(sys.argv[1]), draws=1000).values()
            print(f"| {7.5 * strength:.2f} | {many} | {' | '.join(f'{share:.0%}' for share in shares)} |", flush=True)
