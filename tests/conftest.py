"""Shapes in the type hints are checked while the tests run, and only then."""

import os

from jaxtyping import install_import_hook

install_import_hook("anyshot", "beartype.beartype")
