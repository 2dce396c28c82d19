"""A study ends with the same table however it was run, interrupted or launched."""

import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.own_study import REGISTRY, recipe, registry, store
from helpers.training import in_this_process

from anyshot.cli.main import main
from anyshot.errors import BadInput
from anyshot.files import read_json, write_json
from anyshot.measure.plan import Protocol
from anyshot.models.heads import HEADS
from anyshot.models.model import read_tensors
from anyshot.progress import no_message
from anyshot.study import cost, runner
from anyshot.study.runner import plan_study, run_study
from anyshot.study.study import StudySource, find_study, list_pretrainings, pack_missing, packed, select_recipes
from anyshot.study.watch import Watch, WatchedModel

ALL_HEADS = (*HEADS, *registry.heads)
OWN = Path(__file__).parents[1] / "helpers" / "own_study.py"
SOURCE = Path(__file__).parents[2] / "src"


TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")


# The same study, whose models dawdle and keep their state after every update, so that they can be caught in training.
SLOW = """
import time
from helpers.own_study import registry, study
from anyshot.train import training
if training.SAVE_EVERY:
    quick, training.SAVE_EVERY = training.Learner.update, 0.0
    training.Learner.update = lambda *args, **more: time.sleep(0.05) or quick(*args, **more)
"""


def command(out, *more, python=(sys.executable,), study=OWN):
    """The command of a user's own study, as a process."""
    return started(
        *python, "-m", "anyshot", "study", str(study), "--out", str(out), "--data", str(out.parent / "data"), *more
    )


def started(*words):
    where = {"PYTHONPATH": f"{SOURCE}{os.pathsep}{Path(__file__).parents[1]}"}
    return subprocess.Popen(
        words, env={**os.environ, **where}, stderr=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
    )


def finish(process):
    out, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors.decode()
    return out.decode()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """The folder of a whole study with every head, run in this process."""
    out = tmp_path_factory.mktemp("study") / "out"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runner, "get_launcher", in_this_process)
        run_study(StudySource(OWN, tuple(ALL_HEADS)), out, out.parent / "data")
    return out


def table(out):
    return (out / "table.csv").read_text(), (out / "sensitivity.csv").read_text()


def table_of(undisturbed, heads):
    """The part of the whole study's tables that belongs to some heads."""
    return tuple(
        "".join(line for line in text.splitlines(True) if line.split(",")[2] in {"head", *heads})
        for text in table(undisturbed)
    )


def states(out):
    """What is kept of models in training: which, and since when."""
    saved = set()
    for path in out.glob("*/state.safetensors"):
        with suppress(FileNotFoundError):  # a model may be done just now
            saved.add((path.parent.name, path.stat().st_mtime_ns))
    return saved


def test_killed_in_training_and_again_when_resumed_the_table_is_the_same(undisturbed, tmp_path):
    chance, out = random.Random(0), tmp_path / "out"
    slow = tmp_path / "slow_study.py"
    slow.write_text(SLOW)
    for _ in range(2):
        before = states(out)
        process = command(out, study=slow)
        while not states(out) - before and process.poll() is None:
            time.sleep(0.01)
        time.sleep(chance.uniform(0, 0.5))
        assert process.poll() is None, process.communicate()[1].decode()
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        assert states(out), "killed between models: nothing was in training"
    assert not list(out.glob("*/recalls-*.npz")), "some model was done before the last kill"
    said = finish(command(out))
    assert table(out) == table_of(undisturbed, ("proto", "tanimoto"))
    assert "tanimoto" in said  # a head of the user's own file, trained, tested and reported
    assert not list(out.rglob("*.part"))


@pytest.mark.parametrize("spoil", [lambda data: b"", lambda data: data[: len(data) // 2], lambda data: data[:-30]])
def test_recalls_that_are_empty_or_cut_are_made_anew(spoil, undisturbed, tmp_path, monkeypatch):
    """As a power cut leaves them: a damaged result is a missing one."""
    out = shutil.copytree(undisturbed, tmp_path / "out")
    (damaged, *others) = sorted(out.glob("*-proto-*/recalls-*.npz"))
    before, times = damaged.read_bytes(), [path.stat().st_mtime_ns for path in others]
    damaged.write_bytes(spoil(before))
    monkeypatch.setattr(runner, "get_launcher", in_this_process)
    run_study(StudySource(OWN, tuple(ALL_HEADS)), out, undisturbed.parent / "data")
    assert damaged.read_bytes() == before
    assert [path.stat().st_mtime_ns for path in others] == times
    assert table(out) == table(undisturbed)


# The same study for one epoch, some 15 updates of a small learning rate: rounding has not grown. (Largest difference of
# a weight between one and two processes after 1, 4 and 15 such updates: proto 6e-8, 1e-7 and 2e-7; frn-old, whose
# gradients are steepest, 6e-8, 2e-7 and 1e-6. After 60 updates ten times as large: 6e-5 and 2e-4. By then a max pool or
# ReLU may switch in one run and not in the other; on which processors it does is chance.)
ONE_EPOCH = """
from dataclasses import replace
from helpers import own_study
def study(heads=None):
    whole = own_study.study(heads)
    return replace(whole, recipes=[replace(recipe, epochs=1, lr=0.001) for recipe in whole.recipes])
"""


def test_two_processes_train_what_one_does(tmp_path, monkeypatch):
    (tmp_path / "one_epoch.py").write_text(ONE_EPOCH)
    out, alone = tmp_path / "out", tmp_path / "alone"
    with monkeypatch.context() as patch:
        patch.setattr(runner, "get_launcher", in_this_process)
        run_study(StudySource(tmp_path / "one_epoch.py", ALL_HEADS), alone, tmp_path / "data", only="4-shot")
    words = ("--heads", *ALL_HEADS, "--only", "4-shot")
    finish(command(out, *words, python=TORCHRUN, study=tmp_path / "one_epoch.py"))
    models = sorted(out.glob("*/model.safetensors"))
    assert len(models) == len(ALL_HEADS)
    for path in models:
        ours, theirs = (read_tensors(folder / path.parent.name / path.name)[0] for folder in (out, alone))
        for name, value in theirs.items():
            torch.testing.assert_close(ours[name], value, rtol=1e-4, atol=1e-5, msg=f"{path.parent.name} {name}")


def test_two_processes_train_what_one_does_to_the_end_in_double_precision(tmp_path):
    """There rounding stays small for a whole training: what float32 shows is rounding alone."""
    store(tmp_path)  # before two processes want to make it
    said = finish(started(*TORCHRUN, str(OWN.with_name("both_ways.py")), str(tmp_path), *ALL_HEADS))
    differences = {head: float(largest) for head, largest in map(str.split, said.splitlines())}
    assert set(differences) == set(ALL_HEADS)
    assert max(differences.values()) < 1e-10, differences  # at most 5e-13 was seen


def traced(begun, slow):
    """A study's work that notes on which node a model begins and whether it goes on from a state; those on the node
    `slow` dawdle and keep their state after every update, so that they can be caught in the middle."""

    def work(job):  # in a worker, where the study's own work is in place
        import ray

        from anyshot.study import runner
        from anyshot.train import training

        node = ray.get_runtime_context().get_node_id()
        resumed = (job.folder / "state.safetensors").exists()
        with (begun / job.folder.name).open("a") as file:
            file.write(f"{node} {resumed}\n")
        if node == slow:
            quick = training.Learner.update
            training.SAVE_EVERY = 0.0
            training.Learner.update = lambda *args, **more: time.sleep(0.25) or quick(*args, **more)
        return runner.run_job(job)

    return work


def test_ray_finishes_when_a_node_is_killed(undisturbed, tmp_path, monkeypatch):
    ray = pytest.importorskip("ray", reason="the extra 'ray' is not installed")
    utils = pytest.importorskip("ray.cluster_utils")
    out, begun = tmp_path / "out", tmp_path / "begun"
    begun.mkdir()
    cluster = utils.Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    doomed = cluster.add_node(num_cpus=1)
    ray.init(cluster.address, log_to_driver=False)
    monkeypatch.setattr(runner, "work", traced(begun, doomed.node_id))
    finished: dict[str, float] = {}
    interrupted: list[str] = []
    over = threading.Event()

    def kill_and_watch():
        while not over.wait(0.05):
            for path in out.glob("*/model.safetensors"):
                finished.setdefault(path.parent.name, path.stat().st_mtime)
            there = [path.name for path in begun.iterdir() if path.read_text().startswith(doomed.node_id)]
            if not interrupted and any((out / name / "state.safetensors").exists() for name in there):
                cluster.remove_node(doomed, allow_graceful=False)
                interrupted.extend(name for name in there if not (out / name / "model.safetensors").exists())

    watcher = threading.Thread(target=kill_and_watch)
    watcher.start()
    try:
        run_study(StudySource(OWN), out, tmp_path / "data", on="ray")
    finally:
        over.set()
        watcher.join()
        ray.shutdown()
        cluster.shutdown()
    (model,) = interrupted  # it was under way on the node, and went on from its state on the other
    first, second = (
        (node == doomed.node_id, resumed) for node, resumed in map(str.split, (begun / model).read_text().splitlines())
    )
    assert (first, second) == ((True, "False"), (False, "True"))
    assert table(out) == table_of(undisturbed, ("proto", "tanimoto"))
    for name, when in finished.items():  # no model was trained to the end twice
        assert (out / name / "model.safetensors").stat().st_mtime == when


def test_submitit_gives_the_same_table(undisturbed, tmp_path, monkeypatch):
    pytest.importorskip("submitit", reason="the extra 'slurm' is not installed")
    from anyshot.study.launch import use_slurm

    monkeypatch.setenv("PYTHONPATH", f"{SOURCE}{os.pathsep}{Path(__file__).parents[1]}")
    monkeypatch.setattr(
        runner, "get_launcher", lambda on, workers, threads, logs: use_slurm(logs, threads, cluster="local")
    )
    run_study(StudySource(OWN), tmp_path / "out", tmp_path / "data", only="proto")
    assert table(tmp_path / "out") == table_of(undisturbed, ("proto",))


def test_tensorboard_mirrors_the_histories(undisturbed, tmp_path):
    pytest.importorskip("tensorboard", reason="the extra 'tensorboard' is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    folder = next(undisturbed.glob("tiny-conv4-proto-4shot-*"))
    watch = Watch([WatchedModel(recipe("proto"), folder, folder / "model.safetensors")], tmp_path)
    for board in watch.boards.values():
        board.close()
    events = EventAccumulator(str(next(tmp_path.iterdir())))
    events.Reload()
    assert [event.step for event in events.Scalars("loss")] == [1, 2, 3, 4]
    assert [event.step for event in events.Scalars("val_accuracy")] == [2, 4]


def test_the_view_tells_models_done_and_begun_and_the_last_accuracy(undisturbed, tmp_path):
    folders = sorted(undisturbed.glob("tiny-conv4-proto-*"))
    models = [WatchedModel(recipe("proto"), folder, folder / "model.safetensors") for folder in folders]
    models.append(WatchedModel(recipe("proto"), folders[0], tmp_path / "never"))
    models.append(WatchedModel(recipe("proto"), tmp_path / "never", tmp_path / "never"))
    watch = Watch(models)
    assert watch.note.startswith("2 of 4 models done; tiny/conv4/proto/4-shot/seed-0 4/4 ")
    assert watch.note.endswith(" %")
    assert watch.epochs == 12, "of 16"


# ----------------------------------------------------------------------------------------------------- order and choice


def test_pretraining_comes_first_and_failures_stop_only_what_needs_them():
    def job(recipe):
        return runner.Job(StudySource(OWN), recipe, Path(), Path(), 1)

    good, bad = (recipe("linear", train_shot=1, way=16, batch=32, seed=seed) for seed in (0, 1))
    after_good, after_bad, free = recipe("feat", start=good), recipe("feat", start=bad), recipe("proto")
    order = []

    def submit(work, job):
        order.append(job.recipe)
        future = Future()
        future.set_result("it broke." if job.recipe == bad else "")
        return future

    with pytest.raises(BadInput, match=r"^it broke\.$"):
        runner._run_jobs([job(each) for each in (after_good, after_bad, free, good, bad)], submit)
    assert order.index(good) < order.index(after_good)
    assert set(order) == {good, bad, after_good, free}


@pytest.mark.parametrize(
    ("only", "heads"),
    [
        ("", {"proto", "cosine-proto"}),
        ("proto", {"proto"}),
        ("cosine-proto,proto", {"proto", "cosine-proto"}),
        ("tiny/conv4/cosine-proto", {"cosine-proto"}),
        ("proto/4-shot", {"proto"}),
    ],
)
def test_words_select_models_whole(only, heads):
    recipes = [recipe(head, shot) for head in ("proto", "cosine-proto") for shot in (2, 4)]
    chosen = select_recipes(recipes, only)
    assert {each.head for each in chosen} == heads
    assert len(chosen) == len(heads) * (1 if "4-shot" in only else 2)


def test_an_unknown_word_is_named_with_the_nearest():
    with pytest.raises(BadInput, match=r"'prot'.*proto"):
        select_recipes([recipe("proto")], "prot")
    with pytest.raises(BadInput, match="no model"):
        select_recipes([recipe("proto"), recipe("frn", 2)], "frn/4-shot")


def test_the_papers_study_has_its_144_models_and_their_exceptions():
    recipes = StudySource(find_study("paper")).load().recipes
    assert len({each.id for each in recipes}) == 144
    assert {(each.head, each.data) for each in list_pretrainings(recipes)} == {
        *(("linear", data) for data in ("cub", "mini", "tiered")),
        *(("class-matrix", data) for data in ("mini", "tiered")),
    }
    fewer = [each for each in recipes if each.images == 192]
    assert all(each.images in (192, 256) and each.backbone == "resnet12" for each in fewer)
    assert len(fewer) == 4 * (2 + 3 * 2)  # ProtoNets on CUB, FEATs on three data sets
    assert {each.data for each in recipes if each.optimiser == "adam"} == {"meta-inat"}
    slow = {(each.data, each.head) for each in recipes if each.lr == 0.01}
    assert slow == {(data, head) for data in ("cub", "mini") for head in ("feat", "cosine-feat")}


def test_a_dry_run_counts_without_stores(tmp_path, monkeypatch):
    monkeypatch.setattr(cost, "seconds_per_image", lambda recipe, registry: 3600 / 38400)
    monkeypatch.setattr(cost, "seconds_per_episode", lambda recipe, registry, protocol: 0.36)
    text = plan_study(StudySource(find_study("paper")), tmp_path, "mini/conv4")
    assert "in all" in text
    assert text.count("mini       conv4") == 6
    # 4 models x 350 epochs x 150 updates of 256 images; an hour an epoch
    assert f"{4:6} {4 * 350 * 150:12,} {4 * 350 * 38400:16,} {4 * 350:12,.1f}" in text
    assert "core-hours" in text
    # 4 models x (70 validations of 9,600 images and 1,000 episodes of one shot, a test of 12,000 images and 10,000
    # episodes of six); embedding takes a third of training
    testing = 4 * ((70 * 9600 + 12000) / 3 / 38400 + (70 * 1000 / 6 + 10000) * 0.36 / 3600)
    assert f"{4 * 350:12,.1f} {testing:10,.1f}" in text
    assert not list(tmp_path.iterdir())  # a dry run leaves nothing


def test_a_small_study_is_told_in_minutes():
    row = {"data": "tiny", "backbone": "conv4", "head": "proto", "models": 2, "updates": 9, "images": 99, "hours": 0.05}
    row["testing"] = 0.0
    head, only, *_, last = cost.format_estimate([row], 2, 1).splitlines()
    assert "core-minutes" in head
    assert only.endswith(" 3.0        0.0")
    assert last == "About 1.5 minutes on this machine: 2 models side by side, threads of each: 1."
    assert "Less than a minute on" in cost.format_estimate([row | {"hours": 0.001}], 1, 1)
    assert "About 300.0 hours" in cost.format_estimate([row | {"hours": 300.0}], 1, 1)
    assert "one model at a time, threads of each: 2" in cost.format_estimate([row], 1, 2)


# --------------------------------------------------------------------------------------------------- sharing the cores


@pytest.fixture
def cores4(monkeypatch):
    monkeypatch.setattr(cost, "count_cores", lambda: 4)


def test_as_many_models_train_at_once_as_there_are_cores(cores4):
    recipes = [recipe("proto", seed=seed) for seed in range(5)]
    assert cost.plan_workers(recipes, REGISTRY) == (4, 1)
    assert cost.plan_workers(recipes[:2], REGISTRY) == (2, 2)  # fewer models than cores: the cores are shared out
    assert cost.plan_workers(recipes, REGISTRY, 2) == (2, 2)  # what the user says


def test_fewer_models_train_at_once_where_memory_does_not_hold_more(cores4, monkeypatch):
    recipes = [recipe("proto", seed=seed) for seed in range(5)] + [recipe("frn", size=32)]
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for models, plan in ((2, (2, 2)), (1, (1, 4))):  # the largest model decides
        monkeypatch.setattr(
            cost, "estimate_bytes", lambda each, registry, n=models: 0.85 * memory / n / (1 + (each.size == 16))
        )
        assert cost.plan_workers(recipes, REGISTRY) == plan


def test_the_estimate_leaves_no_trace():
    state, threads = torch.get_rng_state(), torch.get_num_threads()
    assert cost.estimate_bytes(recipe("frn", size=32), REGISTRY) > cost.estimate_bytes(recipe("frn"), REGISTRY)
    tanimoto = recipe("tanimoto")  # a head that only the study's file has
    (row,) = cost.estimate_cost([tanimoto], REGISTRY, {"tiny": 100}, Protocol())
    assert row["hours"] > 0
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.get_num_threads() == threads


def test_what_about_json_had_before_stays(tmp_path, monkeypatch):
    """Runs of version 0.1 recorded measured speeds there."""
    monkeypatch.setattr(runner, "get_launcher", in_this_process)
    write_json(tmp_path / "out" / "about.json", {"images_a_second": {"2": {}}})
    run_study(StudySource(OWN, ("proto",)), tmp_path / "out", tmp_path / "data", only="2-shot")
    assert set(read_json(tmp_path / "out" / "about.json")) == {"versions", "episode_seed", "images_a_second"}


def test_a_study_warns_of_cosines_that_start_at_a_low_temperature():
    study = StudySource(OWN, ("proto", "cosine-proto")).load()
    assert "cosine-proto (from 1, not 10)" in runner.find_low_temperatures(study, study.recipes)
    for fields in ({"temperature": 10.0}, {"epochs": 350}):
        assert not runner.find_low_temperatures(study, [replace(recipe, **fields) for recipe in study.recipes])


# ------------------------------------------------------------------------------------------ data and code that change

HEAD = """
from helpers import own_study
from dataclasses import replace
from anyshot import Head, Registry
from anyshot.models.law import euclidean, flatten
def double(prototypes, counts, parameters):
    return FACTOR * prototypes
FACTOR = 2
def study(heads=None):
    return replace(own_study.study(("doubling",)), adds=Registry(heads={"doubling": Head(flatten, euclidean, double)}))
"""


def test_a_study_notices_that_its_data_changed(tmp_path, monkeypatch):
    monkeypatch.setattr(runner, "get_launcher", in_this_process)
    source, out, data = StudySource(OWN, ("proto",)), tmp_path / "out", tmp_path / "data"
    run_study(source, out, data)
    run_study(source, out, data)
    items = np.load(data / "tiny" / "items.npy")
    noise = np.random.default_rng(0).integers(0, 256, items.shape, dtype=np.uint8)
    np.save(data / "tiny" / "items.npy", noise)
    before = table(out)
    with pytest.raises(BadInput, match=r"2shot-\w+ \(and 1 more models\): the images or labels of its store changed"):
        run_study(source, out, data)
    assert table(out) == before
    for path in out.glob("*/inputs.json"):  # as of version 0.1, which did not know
        path.unlink()
    run_study(source, out, data)
    shutil.rmtree(out)
    run_study(source, out, data)
    assert table(out) != before


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ("protocol=replace(own.protocol, shots=(1, 10**6))", "too few for 1000000 shots"),
        ("recipes=[replace(one, way=99) for one in own.recipes]", "a batch takes 99 classes"),
    ],
)
def test_a_study_that_its_data_does_not_allow_leaves_nothing(change, sentence, tmp_path, monkeypatch):
    monkeypatch.setattr(runner, "get_launcher", in_this_process)
    path, out, data = tmp_path / "mine.py", tmp_path / "out", tmp_path / "data"
    source = "from dataclasses import replace\nfrom helpers import own_study\ndef study(heads=None):\n"
    path.write_text(f"{source}    own = own_study.study(heads)\n    return replace(own, {change})\n")
    for attempt in (lambda: run_study(StudySource(path), out, data), lambda: plan_study(StudySource(path), data)):
        with pytest.raises(BadInput, match=sentence):
            attempt()
        assert not out.exists()


def test_a_study_notices_that_the_code_of_its_own_head_changed(tmp_path, monkeypatch):
    monkeypatch.setattr(runner, "get_launcher", in_this_process)
    path, out, data = tmp_path / "mine.py", tmp_path / "out", tmp_path / "data"
    path.write_text(HEAD)
    run_study(StudySource(path), out, data, only="2-shot")
    path.write_text("OTHER = 3\n" + HEAD)  # nothing that the head uses
    run_study(StudySource(path), out, data, only="2-shot")
    for changed in (HEAD.replace("* prototypes", "+ prototypes"), HEAD.replace("FACTOR = 2", "FACTOR = 3")):
        path.write_text(changed)
        with pytest.raises(BadInput, match="the code of its head, backbone or readouts changed since it was made"):
            run_study(StudySource(path), out, data, only="2-shot")


OF_IMAGES = """
from dataclasses import replace
from helpers import own_study
from anyshot import packed
def study(heads=None):
    return replace(own_study.study(heads), stores={"tiny": packed("tiny", "cub", box=True)})
"""


def test_a_study_makes_its_store_of_images(tmp_path, monkeypatch):
    """From pictures to a table in one command: of an archive's folder or of one file, as pixels or as features."""
    monkeypatch.setattr(runner, "get_launcher", in_this_process)
    monkeypatch.setenv("ANYSHOT_CACHE", str(tmp_path / "cache"))
    made = store(tmp_path / "glyphs")
    arrays = {"images": made.items, "labels": made.labels, "class_names": made.class_names}
    np.savez(tmp_path / "glyphs.npz", **arrays, class_split=made.class_split)
    (tmp_path / "own.py").write_text(OF_IMAGES)
    source, data = StudySource(tmp_path / "own.py", ("proto",)), tmp_path / "data"
    with pytest.raises(BadInput, match=r"--images SOURCE, or make it: `anyshot pack cub SOURCE --box -o "):
        run_study(source, tmp_path / "out", data, workers=2)
    with pytest.raises(BadInput, match=r"there is no nowhere.npz to make the store .*tiny of"):
        run_study(source, tmp_path / "out", data, workers=2, images=Path("nowhere.npz"))
    assert not data.exists()
    rows = run_study(source, tmp_path / "out", data, only="2-shot", workers=2, images=tmp_path / "glyphs.npz")
    assert {row["data"] for row in rows} == {"tiny"}
    opened = source.load().store("tiny", data)
    assert np.array_equal(opened.items, made.items)
    assert opened.class_names == made.class_names
    words: list[str] = []
    pack_missing(source.load(), [recipe("proto")], data, Path("nowhere.npz"), words.append)
    assert words == [f"The stores of this study are in {data}: nowhere.npz is not needed."]

    embedded = packed("features", "cub", embed="efficientnet-lite0:32", box=True)
    embedded.make(data, tmp_path / "glyphs.npz", no_message)
    assert embedded(data).items.shape[1:] == (1, 1280)
    two = replace(source.load(), stores={"tiny": packed("a", "cub"), "other": packed("b", "cub")})
    with pytest.raises(BadInput, match=r"glyphs.npz cannot be all of a, b: choose one \(--only\)"):
        pack_missing(two, [recipe("proto"), recipe("proto", data="other")], data, tmp_path / "glyphs.npz", no_message)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["quik"], "'quik'"),
        ([str(OWN), "--heads", "prote"], "did you mean 'proto'"),
        ([str(OWN), "--only", "tannimoto"], "did you mean 'tanimoto'"),
        (["cub32", "--data", "nowhere"], "anyshot pack cub SOURCE --box --size 32 -o"),
        ([str(OWN), "--on", "moon"], "not on 'moon'"),
        (["nowhere.py"], "nowhere.py"),
    ],
)
def test_bad_words_are_one_sentence_and_code_2(words, sentence, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["anyshot", "study", *words])
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert sentence.lower() in line.lower()
