"""Training: the same weights whatever happens on the way, and one clear sentence where it cannot go on."""

import resource
from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers.golden import GOLDEN, losses, losses_of_updates
from helpers.own_study import recipe, store
from helpers.training import assert_same, train_until, weights

from anyshot.errors import BadInput
from anyshot.models.devices import has_bfloat16
from anyshot.models.heads import HEADS, PRETRAINING
from anyshot.models.model import read_tensors
from anyshot.models.registry import BUILTIN
from anyshot.tables import read_table
from anyshot.train import training
from anyshot.train.batches import training_batches
from anyshot.train.training import Learner, train


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return store(tmp_path_factory.mktemp("data"))


@pytest.mark.parametrize(
    "how", [{}, {"head": "feat"}, {"optimiser": "adam", "lr": 1e-3}, {"mixed": (2, 4, 8)}], ids=str
)
def test_a_run_killed_again_and_again_ends_like_an_undisturbed_one(tiny, tmp_path, monkeypatch, how):
    model = recipe(**{"head": "cosine-proto"} | how)
    train(model, tiny, tmp_path / "undisturbed")
    for updates in (1, 14, 1, 20):  # an epoch has 15 or so
        train_until(updates, monkeypatch, model, tiny, tmp_path / "killed")
    train(model, tiny, tmp_path / "killed")
    assert_same(tmp_path / "undisturbed", tmp_path / "killed")
    assert not (tmp_path / "killed" / "state.safetensors").exists()


@pytest.mark.parametrize("head", [*HEADS, *PRETRAINING])
def test_every_head_and_pretraining_learns(tiny, tmp_path, head):
    changes = {"batch": 32, "way": 16, "train_shot": 1} if head in PRETRAINING else {}
    train(recipe(head, **{"epochs": 6} | changes), tiny, tmp_path)
    losses = [row["loss"] for row in read_table(tmp_path / "history.csv")]
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("head", BUILTIN.heads)
def test_a_change_that_should_move_no_number_moves_none(head):
    """Written down in golden.py, which says how to print them anew; other processors round to 1e-5."""
    assert losses(head) == pytest.approx(GOLDEN[head], rel=1e-4)


def sgd(state, gradient, lr):
    """Nesterov's momentum as torch has it: the step looks one momentum ahead."""
    state["velocity"] = 0.9 * state["velocity"] + gradient if state else gradient
    return lr * (gradient + 0.9 * state["velocity"])


def adam(state, gradient, lr):
    step = state["step"] = state.get("step", 0) + 1
    state["first"] = 0.9 * state.get("first", 0) + 0.1 * gradient
    state["second"] = 0.999 * state.get("second", 0) + 0.001 * gradient.square()
    return lr * state["first"] / (1 - 0.9**step) / ((state["second"] / (1 - 0.999**step)).sqrt() + 1e-8)


@pytest.mark.parametrize("optimiser", [sgd, adam])
def test_updates_are_those_of_the_textbook(optimiser):
    """Momentum, Nesterov's look ahead, weight decay, the pace, and a learning rate of the head's own."""
    own = recipe("feat", optimiser=optimiser.__name__, weight_decay=0.1, head_lr=0.003, augment=())
    learner = Learner(own, BUILTIN, 1, "cpu")
    before = {name: value.detach().double() for name, value in learner.model.named_parameters()}
    states = {name: {} for name in before}
    for _ in losses_of_updates(learner):
        for name, value in learner.model.named_parameters():
            lr = 0.5 * (own.head_lr if name.startswith("learned") else own.lr)
            gradient = value.grad.double() + 0.1 * before[name]
            before[name] = before[name] - optimiser(states[name], gradient, lr)
            torch.testing.assert_close(value.detach().double(), before[name], rtol=1e-5, atol=1e-6, msg=name)


def test_seeds_differ_and_threads_are_recorded(tiny, tmp_path):
    for seed in (0, 1):
        train(recipe("proto", epochs=1, seed=seed), tiny, tmp_path / str(seed))
    assert not torch.equal(*(weights(tmp_path / seed)["backbone.convs.0.weight"] for seed in "01"))
    assert '"threads"' in (tmp_path / "0" / "run.json").read_text()


def test_training_leaves_the_callers_random_numbers_alone(tiny, tmp_path):
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    train(recipe("feat", epochs=1), tiny, tmp_path)
    assert torch.equal(torch.rand(4), expected)


def test_a_run_begins_with_the_pretrained_backbone(tiny, tmp_path):
    start = recipe("linear", train_shot=1, way=16, batch=32)
    still = recipe("feat", start=start, lr=0.0, epochs=1)
    train(still, tiny, tmp_path / still.name)
    ours, theirs = weights(tmp_path / still.name), weights(tmp_path / start.name)
    scratch = Learner(replace(still, start=None), BUILTIN, 1, "cpu").model.state_dict()
    for name in (name for name in ours if name.endswith("weight") and name.startswith("backbone.convs")):
        assert torch.equal(ours[name], theirs[name])
        assert not torch.equal(ours[name], scratch[name])


def test_the_model_kept_is_the_best_on_validation_classes(tiny, tmp_path, monkeypatch):
    accuracies = iter([30.0, 50.0, 40.0, 50.0])
    monkeypatch.setattr(training, "compute_recalls", lambda *args: np.array([next(accuracies) / 100]))
    best = train(recipe("proto", validate_every=1), tiny, tmp_path / "best")
    accuracies = iter([30.0, 50.0, 60.0, 50.0])
    later = train(recipe("proto", validate_every=1), tiny, tmp_path / "later")
    assert [row["val_accuracy"] for row in read_table(tmp_path / "best" / "history.csv")] == [30, 50, 40, 50]
    assert not torch.equal(best.backbone.convs[0].weight, later.backbone.convs[0].weight)


def test_mixed_shots_fill_batches_of_one_size_with_every_shot(tiny):
    batches = training_batches(tiny.part("train").labels, 8, 4, seed=0, epoch=0, mixed=(2, 4, 8))
    assert {batch.shape for batch in batches} == {(16, 2), (8, 4), (4, 8)}
    drawn = np.concatenate([batch.ravel() for batch in batches])
    assert len(np.unique(drawn)) == len(drawn)


@pytest.mark.skipif(not has_bfloat16(), reason="this CPU cannot multiply in bfloat16")
def test_bfloat16_trains_nearly_the_same(tiny, tmp_path):
    for amp in (False, True):
        train(recipe("proto", amp=amp, epochs=2), tiny, tmp_path / str(amp))
    losses = [read_table(tmp_path / str(amp) / "history.csv")[-1]["loss"] for amp in (False, True)]
    assert losses[0] == pytest.approx(losses[1], rel=0.05)
    assert losses[0] != losses[1]


# ------------------------------------------------------------------------------------------------------------ bad input


def test_bfloat16_is_refused_on_a_cpu_that_cannot_multiply_in_it(tiny, tmp_path, monkeypatch):
    monkeypatch.setattr(training, "has_bfloat16", lambda: False)
    with pytest.raises(BadInput, match="this CPU cannot multiply"):
        train(recipe("proto", amp=True), tiny, tmp_path / "amp")


def test_a_loss_that_is_no_number_stops_at_its_step_and_keeps_the_last_good_state(tiny, tmp_path, monkeypatch):
    monkeypatch.setattr(training, "SAVE_EVERY", 0.0)
    honest, count = training.fold_logits, 0

    def broken(*args):
        nonlocal count
        count += 1
        return honest(*args) * (float("nan") if count > 21 else 1)

    monkeypatch.setattr(training, "fold_logits", broken)
    with pytest.raises(BadInput, match=r"became nan at step 7 of epoch 2.*last good state"):
        train(recipe("proto"), tiny, tmp_path)
    tensors, words = read_tensors(tmp_path / "state.safetensors")
    assert '"epoch": 1, "step": 6' in words["run"]
    assert all(value.isfinite().all() for value in tensors.values())


def test_a_folder_of_another_recipe_is_left_alone(tiny, tmp_path):
    train(recipe("proto", epochs=1), tiny, tmp_path)
    with pytest.raises(BadInput, match=r"another recipe \(it differs in epochs, lr\)"):
        train(recipe("proto", epochs=2, lr=0.5), tiny, tmp_path)


@pytest.mark.parametrize("length", [0, 5, 200])
def test_a_truncated_checkpoint_is_told(tiny, tmp_path, length):
    train(recipe("proto", epochs=1), tiny, tmp_path)
    path = tmp_path / "model.safetensors"
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(BadInput, match=r"model\.safetensors is damaged or cut short"):
        train(recipe("proto", epochs=1), tiny, tmp_path)


def test_a_truncated_state_is_told(tiny, tmp_path, monkeypatch):
    train_until(3, monkeypatch, recipe("proto"), tiny, tmp_path)
    path = tmp_path / "state.safetensors"
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(BadInput, match=r"state\.safetensors is damaged or cut short"):
        train(recipe("proto"), tiny, tmp_path)


def test_a_full_disk_is_told_and_leaves_nothing_half_written(tiny, tmp_path, monkeypatch):
    monkeypatch.setattr(training, "SAVE_EVERY", 0.0)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8192, limits[1]))  # no file may grow beyond: as if the disk were full
    try:
        with pytest.raises(BadInput, match=r"could not write .*state\.safetensors"):
            train(recipe("proto"), tiny, tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["recipe.json", "run.json"]


def test_the_overlap_of_classes_is_a_term_of_the_loss_of_heads_with_grams():
    plain, more = (
        list(losses_of_updates(Learner(recipe("frn", overlap=weight), BUILTIN, 1, "cpu"))) for weight in (0.0, 1.0)
    )
    assert more[0] > plain[0]
    assert more[1:] != plain[1:]
    with pytest.raises(BadInput, match="overlap is a term of heads that embed Gram matrices"):
        Learner(recipe("proto", overlap=0.03), BUILTIN, 1, "cpu")


def test_pretraining_wants_all_classes(tiny, tmp_path):
    with pytest.raises(BadInput, match="all 16 training classes"):
        train(recipe("linear", train_shot=1, way=15, batch=32), tiny, tmp_path)
