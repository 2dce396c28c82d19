"""FewShotClassifier is a scikit-learn estimator: its own conformance suite says so, without expected failures."""

import jaxtyping
import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from anyshot import FewShotClassifier


@pytest.fixture(autouse=True)
def without_checked_shapes(monkeypatch):
    """scikit-learn constructs estimators from nonsense, which must only fail when they are fitted."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)


@parametrize_with_checks([FewShotClassifier("cosine-proto"), FewShotClassifier("posterior")])
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.SkipTestWarning")
def test_check_estimator(estimator, check):
    check(estimator)
