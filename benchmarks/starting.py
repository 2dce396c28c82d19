"""How long a person waits for what needs no training: CPU seconds of commands, and as a share of `import torch` alone.

    python benchmarks/starting.py

Commands and peer take turns; the best of five rounds counts.
"""

import json
import resource
import subprocess
import sys
import tempfile

PEER = ["-c", "import torch"]
COMMANDS = {
    "anyshot --help": ["-m", "anyshot", "--help"],
    "anyshot paper audit": ["-m", "anyshot", "paper", "audit"],
    "anyshot report --paper": ["-m", "anyshot", "report", "--paper"],
}
ROUNDS = 5


def cpu_seconds(words: list[str]) -> float:
    """What a fresh Python process took of the processor."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, *words], check=True, capture_output=True, cwd=folder)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


if __name__ == "__main__":
    took = {name: [] for name in ("import torch", *COMMANDS)}
    for _ in range(ROUNDS):
        for name, words in {"import torch": PEER, **COMMANDS}.items():
            took[name].append(cpu_seconds(words))
    best = {name: min(times) for name, times in took.items()}
    peer = best["import torch"]
    print(
        json.dumps(
            {name: {"seconds": round(t, 2), "of_import_torch": round(t / peer, 2)} for name, t in best.items()},
            indent=2,
        )
    )
