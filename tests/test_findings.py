"""What the documents say of our studies is what the published tables hold."""

import sys
from itertools import zip_longest
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tools"))

import findings  # noqa: E402
import trainings  # noqa: E402


def test_findings_are_those_of_the_published_tables():
    written = (ROOT / "docs" / "findings.md").read_text(encoding="utf-8").splitlines()
    pairs = enumerate(zip_longest(written, findings.main().splitlines()), start=1)
    stale = [
        f"docs/findings.md:{line} is out of date, the tables say: {new}" for line, (old, new) in pairs if old != new
    ]
    assert not stale, "\n".join([*stale, "python tools/findings.py > docs/findings.md writes it anew."])


@pytest.mark.parametrize("study", trainings.STUDIES)
def test_the_table_of_trainings_is_that_of_the_published_tables(study):
    path = ROOT / "results" / study / "trainings.csv"
    assert path.read_text(encoding="utf-8") == trainings.table(study), f"{path} is out of date: tools/trainings.py"


def test_several_comparisons_under_a_claim_share_one_level():
    """Holm: the smallest p-value counts against the level over all comparisons, the next over those that are left."""
    assert findings.holm([0.04]) == [True]
    assert findings.holm([0.04, 0.9]) == [False, False]
    assert findings.holm([0.2, 0.01, 0.03]) == [False, True, False]
    assert findings.holm([0.012, 0.01, 0.04]) == [True, True, True]


def test_an_interval_that_just_leaves_out_zero_has_a_p_value_of_five_percent():
    assert abs(findings.Estimate(1.0, 1.0).p() - 0.05) < 1e-4
    assert findings.Estimate(-1.0, 0.1).p() == 1
    assert findings.Estimate(-0.1, 0.2).p(beyond=-findings.MARGIN) < 0.05, "no worse, by less than the margin"


def test_a_claim_has_to_stand_in_every_training():
    """One training says that cosine models read with the posterior are less sensitive; the other does not."""
    study = findings.Results(ROOT / "results" / "cub32")
    claim = findings.less_sensitive(findings.COSINE_READ, findings.COSINE)
    assert claim([study.alone])[0] == "reproduced"
    assert claim([study.alone, *study.beside("more-trainings")])[0] == "in part"
