"""A server of an empty classifier, and its client."""

import httpx
import pytest
from helpers.classifiers import colours
from helpers.server import serving

from anyshot import ImageClassifier
from anyshot.serve.state import ServedClassifier


@pytest.fixture
def server(tmp_path):
    """A server of an empty classifier."""
    with serving(ServedClassifier(ImageClassifier(colours, side=16, keep=8), tmp_path / "saved")) as running:
        yield running


@pytest.fixture
def client(server):
    with httpx.Client(base_url=server[0], timeout=20) as http:
        yield http
