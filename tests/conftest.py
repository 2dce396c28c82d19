"""Shapes in the type hints are checked while the tests run, and only then.

One thread a process: tests run side by side, and threads that wait for each other on busy cores take far longer.
"""

import os
import tempfile

import pytest
from hypothesis import settings
from jaxtyping import install_import_hook

os.environ["OMP_NUM_THREADS"] = "1"
install_import_hook("anyshot", "beartype.beartype")
settings.register_profile("anyshot", deadline=None)  # how long an example takes says more of the machine than of it
settings.load_profile("anyshot")


@pytest.fixture(autouse=True)
def own_cache(monkeypatch):
    """Features are kept in a folder of the test's own, never in the user's."""
    with tempfile.TemporaryDirectory() as folder:
        monkeypatch.setenv("ANYSHOT_CACHE", folder)
        yield
