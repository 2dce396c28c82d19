"""Processes that write one classifier at once, and processes that are forked beside busy threads.

ANYSHOT_ROUNDS is the number of rounds of each pair of verbs; `make hostile` asks for 200.
"""

import contextlib
import os
import random
import shutil
import subprocess
import sys
import time
from itertools import combinations_with_replacement, permutations

import numpy as np
import pytest
from helpers.shell import run

from anyshot import FewShotClassifier
from anyshot.classify.keys import hash_rows
from anyshot.cli import main as cli

ROUNDS = int(os.environ.get("ANYSHOT_ROUNDS", "1"))
MOST_DELAY = 0.03  # seconds by which the second of two commands starts later: about as long as one takes
POOL = np.random.default_rng(0).normal(size=(40, 6)).astype(np.float32)
BEFORE = {"a": {0, 1}, "b": {2, 3}, "c": {4, 5, 6}}

# Each verb twice, with other examples: the command, and what it does to a dictionary of sets of examples.
ADDED, MERGED, FITTED = ([{start, start + 1}, {start + 2, start + 3}] for start in (10, 14, 18))
COMMANDS = {
    "add": lambda turn: (f"add C add-{turn}.npz", lambda sets: union(sets, {"c": ADDED[turn]})),
    "add -o": lambda turn: (f"add C add-{turn}.npz --to {'xy'[turn]} -o C", add_class("xy"[turn], ADDED[turn])),
    "remove": lambda turn: (f"remove C {'ab'[turn]}", lambda sets: without(sets, "ab"[turn])),
    "merge": lambda turn: (f"merge C merge-{turn} -o C", lambda sets: union(sets, {"m": MERGED[turn]})),
    "fit": lambda turn: (f"fit fit-{turn}.npz --head proto -o C", lambda sets: {"f": FITTED[turn], "g": {22}}),
}  # fmt: skip


def union(sets, more):
    return {label: sets.get(label, set()) | more.get(label, set()) for label in sets.keys() | more.keys()}


def without(sets, label):
    if label not in sets:
        raise KeyError(label)
    return {name: rows for name, rows in sets.items() if name != label}


def add_class(label, rows):
    return lambda sets: union(sets, {label: rows})


def fit(sets):
    rows = [(row, label) for label, members in sets.items() for row in sorted(members)]
    return FewShotClassifier("proto").fit(POOL[[row for row, _ in rows]], np.array([label for _, label in rows]))


@pytest.fixture(scope="module", autouse=True)
def warm(tmp_path_factory):
    """Run each verb once here, so that the forked processes need not import what it needs."""
    with pytest.MonkeyPatch.context() as patch:
        prepare(tmp_path_factory.mktemp("warm"), patch)
        shutil.copytree("before", "C")
        for make in COMMANDS.values():
            assert run(f"anyshot {make(0)[0]}", patch).code == 0


def prepare(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    fit(BEFORE).save("before")
    for turn in (0, 1):
        fit({"m": MERGED[turn]}).save(f"merge-{turn}")
        np.savez(f"add-{turn}.npz", features=POOL[sorted(ADDED[turn])], labels=np.array(["c", "c"]))
        rows = [*sorted(FITTED[turn]), 22]
        np.savez(f"fit-{turn}.npz", features=POOL[rows], labels=np.array(["f", "f", "g"]))


@pytest.fixture
def here(tmp_path, monkeypatch):
    prepare(tmp_path, monkeypatch)


def start(command):
    """Run a command in a forked process, and return its id."""
    if child := os.fork():
        return child
    code = 99
    try:
        with open("said", "a") as said:
            os.dup2(said.fileno(), 1)
            os.dup2(said.fileno(), 2)
        sys.argv = ["anyshot", *command.split()]
        try:
            cli.main()
            code = 0
        except SystemExit as end:
            code = int(end.code or 0)
    finally:
        os._exit(code)


def outcomes(sets, changes):
    """Yield what the changes make of the sets, in any order that is possible."""
    for order in permutations(changes):
        result = sets
        with contextlib.suppress(KeyError):
            for change in order:
                result = change(result)
            yield result


@pytest.mark.parametrize("pair", list(combinations_with_replacement(COMMANDS, 2)), ids=" and ".join)
def test_nothing_that_was_acknowledged_is_lost(pair, here):
    """The folder holds what the commands that succeeded would have made of it one after the other."""
    rng = random.Random(str(pair))
    for _ in range(ROUNDS):
        shutil.rmtree("C", ignore_errors=True)
        shutil.copytree("before", "C")
        commands = [COMMANDS[verb](turn) for turn, verb in enumerate(pair)]
        children = []
        for command, _ in commands:
            children.append(start(command))
            time.sleep(rng.uniform(0, MOST_DELAY))
        codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
        with open("said") as said:
            assert set(codes) <= {0, 2}, said.read()
        assert 0 in codes
        changes = [change for (_, change), code in zip(commands, codes, strict=True) if code == 0]
        support = FewShotClassifier.load("C").support_
        keys, owner = support.all_keys
        found = {label: set(keys[owner == row].tolist()) for row, label in enumerate(support.labels.tolist())}
        expected = [
            {label: set(hash_rows(POOL[sorted(rows)]).tolist()) for label, rows in sets.items()}
            for sets in outcomes(BEFORE, changes)
        ]
        assert found in expected, (codes, found)
        assert len(os.listdir("C")) == 3  # a configuration, a card and one version


FORKS = """
import os, signal, threading
import numpy as np
import torch
from anyshot import FewShotClassifier

torch.set_num_threads(2)
rng = np.random.default_rng(0)
X, y = rng.normal(size=(4000, 32)), np.arange(4000) % 20
classifier, stop = FewShotClassifier("proto").fit(X, y), threading.Event()

def work():
    while not stop.is_set():
        classifier.predict(X)
        classifier.is_known(X[:5])
        classifier.partial_fit(rng.normal(size=(2, 32)), [0, 1])

thread = threading.Thread(target=work)
thread.start()
ends = []
for _ in range(int(os.environ.get("ANYSHOT_ROUNDS", "1")) + 9):
    if not (child := os.fork()):
        signal.alarm(30)
        counts = classifier.support_.counts
        is_right = classifier.predict(X).shape == (4000,) and counts[0] == counts[1] and counts[2] == 200
        classifier.partial_fit(X[:1] + 1, [2])  # not rng, which has a lock of its own
        os._exit(0 if is_right and classifier.support_.counts[2] == 201 else 1)
    ends.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
stop.set()
thread.join()
assert not any(ends), ends
"""


def test_a_process_that_is_forked_beside_a_busy_thread_can_predict_and_learn():
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", FORKS], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
