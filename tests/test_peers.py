"""The engine beside other people's code, on the same episodes."""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from anyshot.measure.engine import compute_recalls
from anyshot.measure.plan import Plan
from anyshot.models.heads import HEADS
from anyshot.models.law import BoundHead

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))
peers = pytest.importorskip("peers")
try:
    methods = peers.easyfsl("methods")
except ImportError as error:
    pytest.skip(f"easyfsl is not installed (pip install --no-deps easyfsl tqdm): {error}", allow_module_level=True)


@pytest.mark.parametrize(("name", "theirs"), [("proto", "PrototypicalNetworks"), ("cosine-proto", "SimpleShot")])
def test_easyfsl_classifies_the_same_episodes_alike(name, theirs):
    generator = torch.Generator().manual_seed(0)
    vectors = torch.randn(8, 1, 20, generator=generator).repeat_interleave(30, 0).flatten(0, 1)
    vectors = vectors + torch.randn(240, 20, generator=generator)
    plan = Plan(np.repeat(np.arange(8), 30), way=5, shot=10, queries=6, episodes=25)
    shots = (1, 3, 10)
    ours = compute_recalls(vectors, [BoundHead(HEADS[name], {})], plan, shots)[0]
    draw = plan.draw(0, plan.episodes)
    target = torch.arange(5).repeat_interleave(6)
    for number, shot in enumerate(shots):
        for episode in range(plan.episodes):
            model = getattr(methods, theirs)(torch.nn.Identity())
            support = draw.support[episode, :, :shot].ravel()
            model.process_support_set(vectors[support], torch.arange(5).repeat_interleave(shot))
            right = model(vectors[draw.query[episode].ravel()]).argmax(1) == target
            np.testing.assert_allclose(ours[number, episode], right.view(5, 6).double().mean(1), atol=1e-6)
