"""Everything that runs on a GPU runs on a pretended one, which refuses what a real one does."""

import numpy as np
import pytest
import torch
from golden import GOLDEN, golden_recipe, losses_of_updates
from own_study import REGISTRY, recipe, store
from pretended import GPU, Pretended, pretended_gpu

import anyshot
from anyshot.models.law import fold_logits
from anyshot.models.model import Model
from anyshot.models.registry import BUILTIN
from anyshot.study import launch
from anyshot.train.training import Learner, train


@pytest.fixture
def gpu():
    with pretended_gpu() as device:
        yield device


def test_the_pretended_gpu_refuses_what_a_real_one_does(gpu):
    there, here = torch.ones(3, device="cuda:0"), torch.ones(3)
    assert there.device == GPU
    assert there.is_cuda
    assert (there + 1).device == GPU
    assert (there * torch.tensor(2.0)).sum().item() == 6  # a single number may come from the CPU
    assert there.cpu().numpy().tolist() == [1, 1, 1]
    for refused in (lambda: there + here, lambda: torch.cat([here, there]), lambda: there @ here):
        with pytest.raises(RuntimeError, match="on cuda:0 and on the cpu"):
            refused()
    with pytest.raises(TypeError, match="numpy"):
        there.numpy()
    with pytest.raises(RuntimeError, match="generator"):
        there.clone().uniform_(generator=torch.Generator())


@pytest.mark.parametrize("head", BUILTIN.heads)
def test_updates_run_on_a_gpu(gpu, head):
    """With the losses of the CPU, where dropout draws no numbers of the device's own."""
    learner = Learner(golden_recipe(head), BUILTIN, 1, "cuda:0")
    assert all(isinstance(value, Pretended) for value in learner.model.state_dict().values())
    assert list(losses_of_updates(learner, device="cuda:0")) == pytest.approx(GOLDEN[head], rel=1e-4)


@pytest.mark.parametrize("augment", [("resized-crop", "flip", "jitter"), ("crop", "flip")])
@pytest.mark.parametrize("backbone", ["conv4", "resnet12", "efficientnet-lite0"])
def test_backbones_train_and_embed_on_a_gpu(gpu, backbone, augment):
    learner = Learner(recipe("proto", backbone=backbone, augment=augment, size=32), BUILTIN, 3, "cuda:0")
    images = np.random.default_rng(0).integers(0, 256, (8, 40, 40, 3), np.uint8)
    target = torch.arange(2, device="cuda:0").repeat_interleave(4)
    learner.model.train()
    assert torch.isfinite(learner.update(images, target, 4, 0, 0.5)).all()
    features = learner.model.eval().features(images)
    assert features.dtype == np.float32
    assert np.isfinite(features).all()


@pytest.mark.parametrize("head", ["proto", "cosine-feat", "frn"])
def test_a_whole_training_runs_on_a_gpu(gpu, tmp_path, head):
    """Batches, updates, validation, saved states, resuming and the final model."""
    tiny = store(tmp_path)
    model = train(recipe(head, epochs=2), tiny, tmp_path / "run", device="cuda:0")
    assert not any(isinstance(value, Pretended) for value in model.state_dict().values())


@pytest.mark.parametrize("head", BUILTIN.heads)
def test_folding_runs_where_its_vectors_are(gpu, head):
    model = Model(recipe(head), 1).to("cuda:0")
    parameters = dict(model.learned.items())
    maps = torch.rand(3, 4, 1, 8).to("cuda:0")
    vectors = model.embed(maps, parameters)
    assert fold_logits(model.head, parameters, vectors).device == GPU


@pytest.mark.parametrize("readout", ["pca3", "est3"])
def test_readouts_are_fitted_where_their_vectors_are(gpu, readout):
    labels = torch.arange(9).repeat_interleave(8)
    vectors = torch.randn(72, 5) + 2 * torch.randn(9, 5)[labels]
    chosen = BUILTIN.readout(readout)
    fitted = chosen.fit(vectors.to("cuda:0"), labels.to("cuda:0"))
    assert all(value.device == GPU for value in fitted.values())
    on_cpu = chosen.applied(vectors, chosen.fit(vectors, labels))
    on_gpu = chosen.applied(vectors.to("cuda:0"), fitted).cpu()
    torch.testing.assert_close(on_gpu.square(), on_cpu.square(), rtol=1e-3, atol=1e-4)  # signs of directions are free


def test_features_on_a_gpu_are_evaluated(gpu):
    labels = torch.arange(6).repeat_interleave(10)
    features = torch.randn(60, 4) + 3 * torch.randn(6, 4)[labels]
    asked = {"shots": (1, 2), "way": 3, "queries": 4, "episodes": 20}
    on_gpu = anyshot.evaluate(features.to("cuda:0"), labels.to("cuda:0"), **asked)
    assert str(on_gpu) == str(anyshot.evaluate(features, labels, **asked))


@pytest.mark.parametrize(
    ("chosen", "count", "expected"),
    [("", 2, ["0", "1"]), ("3,5", 2, ["3", "5"]), ("GPU-ab, GPU-cd", 1, ["GPU-ab"]), ("", 0, [])],
)
def test_a_study_uses_the_gpus_that_the_user_chose(monkeypatch, chosen, count, expected):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", chosen)
    assert launch.visible_gpus(count) == expected


def test_a_learned_score_is_trained(tmp_path):
    """A score gets the parameters of its head."""

    def weighted(query, prototypes, parameters):
        return query * parameters["weight"] @ prototypes.mT

    head = anyshot.Head(
        lambda features, parameters: features.amax(-2),
        weighted,
        parameters=lambda features, recipe: {"weight": torch.ones(features.shape[-1])},
    )
    registry = REGISTRY | anyshot.Registry(heads={"weighted": head})
    model = train(recipe("weighted", epochs=1), store(tmp_path), tmp_path / "run", registry)
    assert not torch.equal(model.learned["weight"], torch.ones(8))
