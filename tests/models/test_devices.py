"""Everything that runs on a GPU runs on a pretended one, which refuses what a real one does."""

import copy
import os
from datetime import timedelta

import numpy as np
import pytest
import torch
from helpers import own_study
from helpers.golden import GOLDEN, golden_recipe, losses_of_updates
from helpers.own_study import REGISTRY, recipe, store
from helpers.pretended import GPU, Pretended, pretended_gpu
from torch.utils._python_dispatch import TorchDispatchMode

import anyshot
from anyshot.data.augmentation import augment
from anyshot.measure import engine
from anyshot.measure.engine import compute_readout_recalls, compute_vectors, lazy_readout_fits
from anyshot.measure.plan import Plan
from anyshot.models import devices
from anyshot.models.backbones import ResNet12
from anyshot.models.devices import to_gpu
from anyshot.models.law import BoundHead, fold_logits
from anyshot.models.model import Model
from anyshot.models.registry import BUILTIN
from anyshot.study import cost, launch, runner
from anyshot.train import parallel, training
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
@pytest.mark.parametrize("backbone", BUILTIN.backbones)
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


@pytest.mark.parametrize("head", [name for name, head in BUILTIN.heads.items() if not head.needs_training])
def test_features_on_a_gpu_are_evaluated(gpu, head, monkeypatch):
    # The GPU is pretended in this thread alone.
    monkeypatch.setattr(engine, "map_in_threads", lambda work, tasks, ahead: map(work, tasks))
    labels = torch.arange(6).repeat_interleave(10)
    features = torch.randn(60, 4) + 3 * torch.randn(6, 4)[labels]
    asked = {"heads": [head], "shots": (2,), "way": 3, "queries": 4, "episodes": 2}
    on_gpu = anyshot.evaluate(features.to("cuda:0"), labels.to("cuda:0"), **asked)
    assert str(on_gpu) == str(anyshot.evaluate(features, labels, **asked))


def episodes_on(device, head, readout, registry=BUILTIN):
    """The recalls of a head and readout, with its features on a device."""
    torch.manual_seed(0)
    labels, positions = np.arange(9).repeat(12), 1 if "linear-proto" in head else 2
    maps = (torch.randn(9, positions, 8)[labels] + torch.randn(108, positions, 8)).to(device)
    model = Model(recipe(head, batch=16 if head in ("linear", "class-matrix") else 0), 1, registry)
    parameters = model.bound_head.parameters
    if head == "feat":
        parameters = {name: torch.randn(8, 8) / 3 if value.ndim == 2 else value for name, value in parameters.items()}
    vectors = compute_vectors(maps, model.embed, parameters)
    plan = Plan(labels, way=4, shot=3, queries=4, episodes=24)
    fitted = lazy_readout_fits(lambda: (vectors.cpu(), torch.from_numpy(labels)), registry)
    return compute_readout_recalls([(BoundHead(model.head, parameters), readout)], vectors, fitted, plan, (1, 3))[0]


@pytest.mark.parametrize("head", [name for name, head in BUILTIN.heads.items() if head.estimator is None])
@pytest.mark.parametrize("bank", ["kept", "lazy"])
def test_episodes_run_where_the_features_are(gpu, head, bank, monkeypatch):
    if bank == "lazy":  # Gram matrices too many to keep
        monkeypatch.setattr(engine, "BANK_BYTES", 0)
    np.testing.assert_allclose(episodes_on("cuda:0", head, "own"), episodes_on("cpu", head, "own"), atol=1e-6)


@pytest.mark.parametrize("readout", ["swapped", "pca3", "est3", "posterior"])
def test_readouts_fitted_on_the_cpu_read_vectors_on_a_gpu(gpu, readout):
    on_gpu, on_cpu = (episodes_on(device, "proto", readout) for device in ("cuda:0", "cpu"))
    np.testing.assert_allclose(on_gpu, on_cpu, atol=1e-6)


def test_validation_and_test_run_on_the_gpu_and_not_on_the_cpu(gpu, tmp_path, monkeypatch):
    """A ResNet-12 FRN would need 339 ms per episode on a CPU."""
    seen = []
    visit = engine.visit_logits

    def record(vectors, *more):
        seen.append(vectors.device)
        visit(vectors, *more)

    monkeypatch.setattr(engine, "visit_logits", record)
    for module in (runner, training):
        monkeypatch.setattr(module, "training_device", lambda: "cuda:0")
    study = own_study.study()
    tiny = store(tmp_path)
    runner.run_model(study, study.recipes[0], tiny, tmp_path / "run")
    assert seen
    assert set(seen) == {GPU}


def test_features_too_many_for_a_gpu_stay_in_main_memory(gpu, monkeypatch):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (100, 100))
    assert to_gpu(torch.ones(10), "cuda:0").device == GPU
    assert to_gpu(torch.ones(20), "cuda:0").device.type == "cpu"
    assert to_gpu(torch.ones(10), "cpu").device.type == "cpu"


def test_the_memory_of_a_gpu_is_asked_for_by_its_number(gpu, monkeypatch):
    """Older versions of torch refuse "cuda", the default device; all take None for it."""
    asked = []
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: asked.append(device) or (100, 100))
    for device in ("cuda", "cuda:1"):
        to_gpu(torch.ones(10), device)
    assert asked == [None, 1]


def test_batches_are_pinned_and_networks_laid_out_as_a_gpu_likes_them(gpu, monkeypatch):
    pinned = []
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self: pinned.append(len(self)) or self)
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", False)
    learner = Learner(recipe("proto", backbone="resnet12"), BUILTIN, 1, "cuda:0")
    learner.read_batch(np.zeros((8, 16, 16, 1), np.uint8), 0)
    assert pinned == [8]
    assert torch.backends.cudnn.benchmark
    assert learner.model.backbone.blocks[1].convs[0].weight.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize(("device", "visible", "workers"), [("", "3", 2), ("cuda", "3", 2), ("cuda:1", "3,5", 1)])
def test_a_worker_sees_its_gpu_alone_unless_the_user_named_one(device, visible, workers, tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(devices.CHOICE, "device", device)
    assert cost.plan_workers([recipe("proto", seed=seed) for seed in range(3)], BUILTIN)[0] == workers
    with launch.get_launcher("here", 1, 1, tmp_path) as submit:
        assert submit(os.getenv, "CUDA_VISIBLE_DEVICES").result() == visible


def test_processes_wait_hours_for_the_one_that_validates(tmp_path, monkeypatch):
    given = {}
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr(torch.distributed, "init_process_group", lambda backend, timeout: given.update(timeout=timeout))
    monkeypatch.setattr(torch.distributed, "destroy_process_group", lambda: None)
    with launch.get_launcher("here", 1, 1, tmp_path):
        assert given["timeout"] >= timedelta(hours=10), "torch's own limit is minutes"


@pytest.fixture
def one_process():
    """A process group of this process alone: what several run is run, and nothing is sent."""
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


def test_what_several_processes_share_is_computed_on_a_gpu(gpu, one_process):
    torch.manual_seed(0)
    images, weight = torch.randn(8, 3, 4, 4), torch.randn(8, 3)
    plain, shared = torch.nn.BatchNorm2d(3), torch.nn.BatchNorm2d(3)
    norm = torch.nn.Sequential(shared).to("cuda:0")
    parallel.synchronise_norms(norm)
    assert isinstance(norm[0], parallel.SharedBatchNorm)
    on_gpu = images.to("cuda:0").requires_grad_()
    gathered = parallel.gather_batch(norm(on_gpu).mean((2, 3)).pow(2), 8)
    (gathered * weight.to("cuda:0")).sum().backward()
    on_cpu = images.clone().requires_grad_()
    expected = plain(on_cpu).mean((2, 3)).pow(2)
    (expected * weight).sum().backward()
    torch.testing.assert_close(gathered.cpu(), expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(on_gpu.grad.cpu(), on_cpu.grad, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(norm[0].running_var.cpu(), plain.running_var)


class _Launches(TorchDispatchMode):
    """Counts operations, each of which a GPU launches."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += not func.is_view
        return func(*args, **(kwargs or {}))


def test_augmentation_launches_a_few_hundred_operations_for_a_batch(gpu):
    """1,053 and more, when images went through it in pieces that fit the cache of a CPU."""
    counts = {}
    for device in ("cpu", "cuda:0"):
        images = torch.randint(0, 256, (256, 92, 92, 3), dtype=torch.uint8).to(device)
        with _Launches() as launches:
            augment(images, ("resized-crop", "flip", "jitter"), torch.Generator().manual_seed(0), 84)
        counts[device] = launches.count
    assert counts["cuda:0"] < 500 < counts["cpu"]


@pytest.mark.parametrize("drop", [0.0, 0.1])
def test_training_in_less_memory_has_the_same_gradients(drop):
    """A block is computed again for its gradient, with the same dropout; batch norm counts the batch once."""
    torch.manual_seed(0)
    network = ResNet12(3, 8, drop).train()
    images = torch.randn(6, 3, 32, 32)
    outcomes = {}
    for recompute in (False, True):
        copied, saved = copy.deepcopy(network), []
        copied.recompute = recompute
        copied.blocks[0].norms[0].num_batches_tracked.fill_(40_000)
        torch.manual_seed(1)

        def count(x, saved=saved):
            saved.append(x.nbytes)
            return x

        with torch.autograd.graph.saved_tensors_hooks(count, lambda x: x):
            maps = copied(images)
        maps.square().sum().backward()
        outcomes[recompute] = [value.grad for value in copied.parameters()], list(copied.buffers()), sum(saved)
    for plain, twice in zip(*(outcomes[way][0] + outcomes[way][1] for way in (False, True)), strict=True):
        torch.testing.assert_close(twice, plain)
    assert outcomes[True][2] < outcomes[False][2] / 10


def test_low_memory_is_an_option_that_renames_nothing(monkeypatch):
    monkeypatch.setattr(devices.CHOICE, "low_memory", True)
    learner = Learner(recipe("proto", backbone="resnet12"), BUILTIN, 1, "cpu")
    assert learner.model.backbone.recompute
    assert learner.recipe.id == recipe("proto", backbone="resnet12").id


@pytest.mark.parametrize("can", [True, False])
def test_amp_is_an_option_that_renames_nothing(can, monkeypatch):
    monkeypatch.setattr(devices.CHOICE, "amp", True)
    monkeypatch.setattr(training, "has_bfloat16", lambda: can)
    if can:
        learner = Learner(recipe("proto"), BUILTIN, 1, "cpu")
        assert learner.amp
        assert learner.recipe.id == recipe("proto").id
    else:
        with pytest.raises(anyshot.BadInput, match="this CPU cannot multiply"):
            Learner(recipe("proto"), BUILTIN, 1, "cpu")


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
