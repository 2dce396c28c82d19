"""Shapes in the type hints are checked while the tests run, and only then.

One thread a process: tests run side by side, and threads that wait for each other on busy cores take far longer.
"""

import os

from jaxtyping import install_import_hook

os.environ["OMP_NUM_THREADS"] = "1"
install_import_hook("anyshot", "beartype.beartype")
