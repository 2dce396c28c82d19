"""Bad inputs and ends at any moment, a sample of each; `make hostile` tries all of them."""

import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent


def test_a_sample():
    paths = os.pathsep.join([str(HERE.parent / "src"), str(HERE)])
    command = [
        sys.executable,
        "-W",
        "ignore",
        "-m",
        "hostile",
        "corpus",
        "crashes",
        "kills",
        "--sample",
        "40",
        "12",
        "6",
    ]
    ended = subprocess.run(command, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout + ended.stderr
