"""Trainings that are killed, compared, or run without processes."""

from concurrent.futures import Future
from contextlib import contextmanager

import pytest
import torch

from anyshot.models.model import read_tensors
from anyshot.train import training
from anyshot.train.training import Learner, train


def weights(folder):
    return read_tensors(folder / "model.safetensors")[0]


def assert_same(first, second):
    """Two run folders hold the same model, bit by bit, and the same history."""
    ours, theirs = weights(first), weights(second)
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        assert torch.equal(value, theirs[name]), name
    assert (first / "history.csv").read_text() == (second / "history.csv").read_text()


class Killed(Exception):
    pass


def train_until(update, monkeypatch, *args):
    """A run that dies as it begins its update of this number, having saved its state after each."""
    honest, count = Learner.update, 0

    def dying(self, *args, **kwargs):
        nonlocal count
        count += 1
        if count > update:
            raise Killed
        return honest(self, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(training, "SAVE_EVERY", 0.0)
        patch.setattr(Learner, "update", dying)
        with pytest.raises(Killed):
            train(*args)


@contextmanager
def in_this_process(*args):
    """A launcher without processes."""

    def submit(work, job):
        future = Future()
        future.set_result(work(job))
        return future

    yield submit
