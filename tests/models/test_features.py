"""Features: kept once per picture and backbone; every verb takes every kind of name; not only pictures."""

import asyncio
import json
import os
import re
import shutil
import socket
import sys
import threading
import tracemalloc
import types
from pathlib import Path

import httpx
import numpy as np
import onnxruntime
import pytest
import torch
from helpers.classifier_folders import sign_folder, version_of
from helpers.classifiers import pictures, small_model
from helpers.networks import SAID, colours
from helpers.shell import run
from PIL import Image

from anyshot import BadInput, FewShotClassifier, ImageClassifier, Recipe, advise, evaluate
from anyshot.classify.leave_one_out import leave_out
from anyshot.classify.onnx_export import export_backbone
from anyshot.data.source import Item, Source
from anyshot.data.store import open_store, write_store
from anyshot.inspect.copies import find_copies
from anyshot.measure.evaluate import evaluate_store
from anyshot.measure.groups import Groups, find_groups
from anyshot.models import cache as cache_module
from anyshot.models import onnx_backbone
from anyshot.models.cache import FeatureCache, cache_folder, hash_picture
from anyshot.models.efficientnet import load_pretrained
from anyshot.models.embedders import DEFAULT_EMBEDDER, load_embedder
from anyshot.models.law import BoundHead
from anyshot.models.model import load_model
from anyshot.models.registry import BUILTIN
from anyshot.serve.app import make_app
from anyshot.serve.state import ServedClassifier
from anyshot.train.training import train

CLASSES = ("red", "green", "blue")


class Tiny(torch.nn.Module):
    """What a stand-in for timm makes."""

    def __init__(self, pretrained):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.eye(3) if pretrained else torch.zeros(3, 3))
        mean, std = (0.5, 0.5, 0.5), (0.5, 0.5, 0.5)
        self.pretrained_cfg = {"mean": mean, "std": std, "input_size": (3, 32, 32), "interpolation": "bicubic"}

    def forward(self, pixels):
        return pixels.mean((2, 3)) @ self.weight


TIMM = ("timm:tiny", "timm:tiny.in1k", "timm:hf-hub:someone/tiny", "timm:local-dir:./weights")


@pytest.fixture
def timm(monkeypatch):
    """A timm with one model, whose weights are at hand: by name, with a tag, from a hub and from a folder."""
    module = types.ModuleType("timm")
    module.is_model = lambda name: name in ("tiny", "tiny.in1k", "elsewhere")
    module.asked = []

    def create_model(name, pretrained, num_classes):
        module.asked.append(name)
        if f"timm:{name}" not in TIMM:
            raise OSError("not on this machine")
        return Tiny(pretrained)

    module.create_model = create_model
    monkeypatch.setitem(sys.modules, "timm", module)
    return module


def mean_colour(images):
    """A function as a backbone."""
    return images.astype(np.float32).mean((1, 2))


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder with photos, and every kind of backbone."""
    monkeypatch.chdir(tmp_path)
    pictures(tmp_path / "photos", CLASSES, images=6)
    small_model().save(tmp_path / "run" / "model.safetensors")
    colours(tmp_path / "colours.onnx", metadata=SAID)
    (tmp_path / "weights").mkdir()
    (tmp_path / "weights" / "model.safetensors").touch()
    return tmp_path


@pytest.fixture
def embedded(monkeypatch):
    """How many pictures went through the network of an ONNX file, call by call."""
    counts = []
    network = onnx_backbone._Network.__call__

    def counting(self, pixels):
        counts.append(len(pixels))
        return network(self, pixels)

    monkeypatch.setattr(onnx_backbone._Network, "__call__", counting)
    return counts


# -------------------------------------------------------------------------------------------------------- every verb


def served(classifier, picture):
    """The class that a server answers for a picture."""

    async def ask():
        transport = httpx.ASGITransport(make_app(ServedClassifier(classifier, None)))
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:
            body, kind = picture.read_bytes(), {"Content-Type": "image/png"}
            return (await http.post("/api/classify", content=body, headers=kind)).json()

    answer = asyncio.run(ask())
    return answer["classes"][int(np.argmax(answer["probabilities"]))]


NAMES = (f"{DEFAULT_EMBEDDER}:160", "run", "colours.onnx", *TIMM)


@pytest.mark.parametrize("name", [DEFAULT_EMBEDDER, *NAMES])
def test_every_verb_takes_every_kind_of_name(name, here, timm, monkeypatch):
    few = "--shots 1 2 --queries 2 --episodes 20"
    commands = (
        f"anyshot evaluate photos --model {name} --heads cosine-proto --way 3 {few}",
        f"anyshot advise photos --model {name} --heads cosine-proto --episodes 20",
        f"anyshot pack folder photos -o store --split 0 0 1 --embed {name} --no-doctor",
        f"anyshot embed photos -o shards --model {name}",
        f"anyshot evaluate store --heads cosine-proto --way 3 {few}",
        f"anyshot evaluate shards --heads cosine-proto --way 3 {few}",
        "anyshot fit store -o of-features --head cosine-proto",
        f"anyshot fit photos -o classifier --model {name} --head cosine-proto",
        "anyshot test classifier photos",
        "anyshot test of-features store",
        "anyshot predict classifier photos --format csv",
    )
    for command in commands:
        out, err, code = run(command, monkeypatch)
        assert code == 0, f"{command}: {err}"
        assert "left out" not in err.lower(), command
    rows = [line.split(",") for line in out.splitlines()[1:]]
    assert len(rows) == 18
    right = [Path(image).parent.name == answer for image, answer, *_ in rows]
    assert np.mean(right) > 0.8
    classifier = ImageClassifier.load("classifier")
    photos = sorted(Path("photos").rglob("*.png"))
    features = classifier.features_of(photos)
    stored = open_store(Path("store"))
    order = [stored.class_names.index(path.parent.name) for path in photos]
    np.testing.assert_allclose(stored.items.reshape(18, -1), features.reshape(18, -1)[np.argsort(order, kind="stable")])
    assert served(classifier, photos[0]) == classifier.predict(photos[:1])[0]


def test_a_function_is_a_backbone_wherever_python_is(here):
    """What takes a name in Python takes a function; by name, a function's classifier is refused in one sentence."""
    photos = sorted(Path("photos").rglob("*.png"))
    labels = [path.parent.name for path in photos]
    classifier = ImageClassifier(mean_colour, side=32).fit("photos")
    assert classifier.score(photos, labels) > 0.8
    assert served(classifier, photos[0]) == labels[0]
    classifier.save("classifier")
    with pytest.raises(BadInput, match=r"is a function \(mean_colour\): give it as backbone=... again"):
        ImageClassifier.load("classifier")
    again = ImageClassifier.load("classifier", mean_colour)
    assert again.predict(photos).tolist() == classifier.predict(photos).tolist()
    features = classifier.features_of(photos)
    assert len(evaluate(features, labels, shots=[1, 2], way=3, queries=2, episodes=20)) == 4
    assert advise(features, labels, episodes=20).class_names == sorted(CLASSES)
    store = images_store(here / "store")
    assert len(evaluate_store(store, load_embedder(mean_colour, 36), shots=[1], way=3, queries=2, episodes=20)) == 2


# ------------------------------------------------------------------------------------------------------------- cache


def test_photos_are_embedded_once_for_all_verbs(here, embedded, monkeypatch):
    def pictures_embedded(command):
        embedded.clear()
        assert run(command, monkeypatch).code == 0
        return sum(embedded)

    evaluate = "anyshot evaluate photos --model colours.onnx --shots 1 --queries 2 --episodes 20 --way 3"
    assert pictures_embedded("anyshot fit photos -o one --model colours.onnx") == 18
    assert pictures_embedded(evaluate) == 0
    assert pictures_embedded("anyshot advise photos --model colours.onnx --episodes 20") == 0
    assert pictures_embedded("anyshot test one photos") == 0
    thumbnails = ImageClassifier.load("one").thumbnails
    assert pictures_embedded("anyshot fit photos -o one --model colours.onnx") == 0
    assert ImageClassifier.load("one").thumbnails == thumbnails
    for number in range(10):
        Image.fromarray(np.full((40, 40, 3), 20 * number, np.uint8)).save(here / "photos" / "red" / f"new{number}.png")
    assert pictures_embedded("anyshot fit photos -o two --model colours.onnx") == 10
    assert pictures_embedded("anyshot fit photos -o two --model colours.onnx --no-cache") == 28
    colours(here / "colours.onnx", metadata=SAID | {"anyshot.resample": "bilinear"})
    assert pictures_embedded(evaluate) == 28, "of another content, though of the same name"


def test_a_store_of_images_is_embedded_once(here, embedded, monkeypatch):
    assert run("anyshot pack folder photos -o store --size 40 --split 0 0 1 --no-doctor", monkeypatch).code == 0
    evaluate = "anyshot evaluate store --model colours.onnx --shots 1 --queries 2 --episodes 20 --way 3"
    first = run(evaluate, monkeypatch)
    assert sum(embedded) == 18
    assert run(evaluate, monkeypatch) == first
    assert sum(embedded) == 18


def rows(cache, keys, backbone="a"):
    return [cache.get(backbone, key) for key in keys]


def filled(folder, many=3, bound=10**9, first=0):
    cache = FeatureCache(folder, bound)
    keys = [hash_picture(bytes([number])) for number in range(first, first + many)]
    for number, key in enumerate(keys, first):
        cache.add("a", key, np.full((2, 64), number, np.float32))
    return cache, keys


def test_what_is_kept_comes_back_to_the_bit_and_only_to_its_backbone(tmp_path):
    cache, keys = filled(tmp_path)
    again = rows(FeatureCache(tmp_path), keys)
    assert [int(row[0, 0]) for row in again] == [0, 1, 2]
    assert again[0].dtype == np.float32
    assert rows(cache, keys, "b") == [None] * 3
    assert hash_picture(np.zeros((2, 8), np.uint8)) != hash_picture(np.zeros((4, 4), np.uint8))


def test_a_damaged_entry_is_a_missing_entry(tmp_path):
    cache, keys = filled(tmp_path)
    file = tmp_path / "a" / f"{keys[1]}.bin"
    whole = file.read_bytes()
    place = whole.index(np.full(64, 1, np.float32).tobytes())
    changed = whole[:place] + b"\x01" + whole[place + 1 :]
    others = (whole[: len(whole) // 2], b"", b"\xff" * 100, (tmp_path / "a" / f"{keys[0]}.bin").read_bytes())
    for damaged in (changed, *others):
        file.write_bytes(damaged)
        assert [row is None for row in rows(cache, keys)] == [False, True, False]
    filled(tmp_path)
    assert [int(row[0, 0]) for row in rows(cache, keys)] == [0, 1, 2]


def test_the_cache_stays_within_its_bound_and_drops_what_was_not_used_for_longest(tmp_path):
    _, old = filled(tmp_path)
    _, used = filled(tmp_path, first=3)
    for number, key in enumerate((*old, *used)):
        os.utime(tmp_path / "a" / f"{key}.bin", (1000 + number, 1000 + number))
    size = 7 * next(tmp_path.glob("a/*")).stat().st_size
    cache = FeatureCache(tmp_path, size)
    assert None not in [row is None or None for row in rows(cache, used)][3:]
    _, new = filled(tmp_path, bound=size, first=6)
    assert sum(path.stat().st_size for path in tmp_path.rglob("*.bin")) <= size
    assert [row is None for row in rows(cache, [old[0], used[0], new[0]])] == [True, False, False]


def test_many_writers_share_a_cache_and_an_unfinished_file_is_nothing(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "x.part").write_bytes(b"killed here")
    threads = [threading.Thread(target=filled, args=(tmp_path, 5, 10**9, 5 * n)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    keys = [hash_picture(bytes([number])) for number in range(40)]
    assert [int(row[0, 0]) for row in rows(FeatureCache(tmp_path), keys)] == list(range(40))


def test_a_cache_that_cannot_be_written_stops_nothing(tmp_path):
    (tmp_path / "file").write_text("in the way")
    cache, keys = filled(tmp_path / "file")
    assert rows(cache, keys) == [None] * 3


def test_a_cache_that_cannot_be_read_stops_nothing(tmp_path, monkeypatch):
    cache, keys = filled(tmp_path)

    def refuse(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(cache_module, "read_bytes", refuse)
    assert rows(cache, keys) == [None] * 3
    monkeypatch.setattr(Path, "glob", refuse)
    cache.shrink()


def test_a_pipe_in_the_cache_does_not_hang(tmp_path):
    cache, keys = filled(tmp_path)
    (tmp_path / "a" / f"{keys[0]}.bin").unlink()
    os.mkfifo(tmp_path / "a" / f"{keys[0]}.bin")
    assert [row is None for row in rows(cache, keys)] == [True, False, False]


def test_cached_features_that_are_not_finite_are_not_taken(tmp_path):
    cache, keys = filled(tmp_path)
    more = hash_picture(b"more")
    cache.add("a", more, np.full((2, 64), np.nan, np.float32))
    assert [row is None for row in rows(cache, (*keys, more))] == [False] * 3 + [True]


def test_cached_features_of_earlier_versions_are_not_taken(here, embedded, monkeypatch):
    """Their files had the values alone, and no shape."""
    assert run("anyshot fit photos -o one --model colours.onnx", monkeypatch).code == 0
    files = list(cache_folder().glob("*/*.bin"))
    assert len(files) == 18
    for file in files:
        values = file.read_bytes()[4:8]
        file.write_bytes(cache_module._checksum(file.stem, values) + values)
    assert run("anyshot fit photos -o two --model colours.onnx", monkeypatch).code == 0
    one, two = (ImageClassifier.load(name).classifier.support_ for name in ("one", "two"))
    np.testing.assert_array_equal(one.sums, two.sums)


# -------------------------------------------------------------------------------------------------------------- ONNX


def test_a_file_says_what_pictures_it_wants_or_is_given_the_usual(tmp_path):
    grey = np.full((1, 50, 50, 3), 51, np.uint8)
    said = load_embedder(colours(tmp_path / "said.onnx", metadata=SAID))
    assert (said.side, said.resample) == (32, "bicubic")
    np.testing.assert_allclose(said.features(grey), -0.6, atol=1e-5)
    with pytest.warns(UserWarning, match="does not say what it was trained with: it is given pictures of 64 px"):
        unsaid = load_embedder(colours(tmp_path / "unsaid.onnx", side=64, last=True))
    expected = (0.2 - np.array([0.485, 0.456, 0.406])) / np.array([0.229, 0.224, 0.225])
    np.testing.assert_allclose(unsaid.features(grey)[0], expected, atol=1e-4)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda path: path.write_bytes(b"not onnx"), "cannot be run as an ONNX file"),
        (lambda path: colours(path, metadata=SAID | {"anyshot.mean": "1 2"}), "numbers were expected"),
        (lambda path: colours(path, metadata=SAID | {"anyshot.output": "logits"}), "has no output 'logits'"),
        (lambda path: colours(path, metadata=SAID | {"anyshot.resample": "cubic"}), "bilinear or bicubic"),
        (lambda path: None, "there is no file"),
    ],
)
def test_a_file_that_will_not_do_gets_a_sentence(tmp_path, make, sentence):
    make(tmp_path / "x.onnx")
    with pytest.raises(BadInput, match=sentence):
        load_embedder(tmp_path / "x.onnx")


def test_a_classifier_carries_its_file_and_knows_it_by_content(here, monkeypatch):
    assert run("anyshot fit photos -o classifier --model colours.onnx", monkeypatch).code == 0
    before = run("anyshot predict classifier photos --format csv", monkeypatch).out
    Path("colours.onnx").unlink()
    shutil.move("classifier", "elsewhere")
    assert run("anyshot predict elsewhere photos --format csv", monkeypatch).out == before
    assert "sha256" in Path("elsewhere/README.md").read_text()
    colours(version_of(here / "elsewhere") / "backbone.onnx", metadata=SAID | {"anyshot.side": "40"})
    assert "do not fit together" in run("anyshot predict elsewhere photos", monkeypatch).err
    sign_folder(here / "elsewhere")
    done = run("anyshot predict elsewhere photos", monkeypatch)
    assert done.code == 2
    assert "its features would not fit" in done.err


def test_our_own_exports_are_backbones_that_need_no_words(here):
    """A model of ours as a file gives the same features as itself."""
    model = load_embedder("run")
    export_backbone(model, here / "own.onnx")
    again = load_embedder(here / "own.onnx")
    paths = sorted(Path("photos").rglob("*.png"))
    mine, theirs = (ImageClassifier(one).features_of(paths) for one in (model, again))
    assert again.margin == model.margin
    np.testing.assert_allclose(mine, theirs, atol=1e-4)


# -------------------------------------------------------------------------------------------------------------- hubs


def test_a_classifier_from_anyone_fetches_nothing(here, timm, monkeypatch):
    """It may name a model whose weights lie elsewhere: only who loads it can ask for them."""
    asked, address = [], "http://127.0.0.1:9/weights.pth"
    create, connect = timm.create_model, socket.socket.connect
    monkeypatch.setattr(socket.socket, "connect", lambda *given: (asked.append(given[1]), connect(*given))[1])
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")

    def create_model(name, **more):
        if name == "elsewhere":
            torch.hub.download_url_to_file(address, str(here / "weights.pth"), progress=False)
        return create(name, **more)

    timm.create_model = create_model
    ImageClassifier("timm:tiny", head="proto").fit(here / "photos").save(here / "from-anyone")
    about = json.loads((version_of(here / "from-anyone") / "backbone.json").read_text())
    for name in ("timm:elsewhere", "timm:hf-hub:evil/model", "http://127.0.0.1:9/x.onnx"):
        (version_of(here / "from-anyone") / "backbone.json").write_text(json.dumps(about | {"name": name}))
        sign_folder(here / "from-anyone")
        with pytest.raises(BadInput, match=r"backbone=|fetch them once"):
            ImageClassifier.load(here / "from-anyone")
        assert asked == []
    with pytest.raises(BadInput, match="cannot be reached"):
        ImageClassifier.load(here / "from-anyone", "timm:elsewhere")
    assert asked == [("127.0.0.1", 9)]


def test_a_hub_that_cannot_be_reached_is_said_at_once(timm, monkeypatch):
    """One look at what is on this machine, one at the hub; no download is tried, let alone again and again."""
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(BadInput, match=r"not on this machine, and http://127.0.0.1:9 cannot be reached \(.*refused"):
        load_embedder("timm:elsewhere")
    assert timm.asked == ["elsewhere"]
    with pytest.raises(BadInput, match="timm has no model named 'nothing'"):
        load_embedder("timm:nothing")
    with pytest.raises(BadInput, match="could not make 'local-dir:/nowhere'"):
        load_embedder("timm:local-dir:/nowhere")


def test_weights_are_looked_for_on_this_machine_without_the_hub(timm, monkeypatch):
    from huggingface_hub import constants

    create, seen = timm.create_model, []
    monkeypatch.setattr(
        timm, "create_model", lambda *a, **k: (seen.append(constants.HF_HUB_OFFLINE), create(*a, **k))[1]
    )
    before = constants.HF_HUB_OFFLINE
    load_embedder("timm:tiny")
    assert (seen, constants.HF_HUB_OFFLINE) == ([True], before)


@pytest.mark.parametrize(("package", "name"), [("onnxruntime", "x.onnx"), ("timm", "timm:resnet18")])
def test_a_missing_extra_gets_a_sentence(package, name, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(BadInput, match="need the packages of an extra: pip install"):
        load_embedder(name)


# -------------------------------------------------------------------------------------------------- not only pictures


def sentences(many=20, seed=0):
    """Embeddings as of texts: three topics."""
    rng = np.random.default_rng(seed)
    centres = np.random.default_rng(9).normal(size=(3, 16))
    return {
        "features": (centres[np.arange(3 * many) % 3] + 0.3 * rng.normal(size=(3 * many, 16))).astype(np.float32),
        "labels": np.array(["sport", "politics", "weather"])[np.arange(3 * many) % 3],
    }


def test_embeddings_of_anything_go_end_to_end(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.savez("texts.npz", **sentences())
    np.savez("new.npz", **sentences(5, 1))
    np.savez("unlabelled.npz", features=sentences(5, 1)["features"])
    out, err, code = run("anyshot fit texts.npz -o topics", monkeypatch)
    assert (code, err) == (0, "texts.npz: 3 classes, 60 vectors (20 each).\n")
    assert "20 examples each" in out
    card = Path("topics/README.md").read_text()
    assert "image" not in card.lower()
    assert "FewShotClassifier.load" in card
    answers = json.loads(run("anyshot predict topics unlabelled.npz --format json", monkeypatch).out)
    assert [row["best"][0]["class"] for row in answers] == sentences(5, 1)["labels"].tolist()
    assert sum(row["class"] is None for row in answers) <= 1  # of 15, where one in twenty may be refused
    result = json.loads(run("anyshot test topics new.npz --json", monkeypatch).out)
    assert (result["examples"], result["right"]) == (15, 15)
    advice = run("anyshot advise texts.npz --episodes 50", monkeypatch).out
    for words in (out, card, advice):
        assert not re.search("image|photo|picture", words.lower())
    assert "classifier of features" in run("anyshot serve topics", monkeypatch).err
    assert "leave the model out" in run(f"anyshot fit texts.npz -o x --model {DEFAULT_EMBEDDER}:32", monkeypatch).err


def test_a_test_counts_what_is_right_and_says_how_well_it_is_known(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    data = sentences()
    np.savez("texts.npz", **data)
    data["labels"] = np.where(np.arange(60) < 15, "weather", data["labels"])  # ten of them are not
    data["labels"][-1] = "music"
    np.savez("new.npz", **data)
    assert run("anyshot fit texts.npz -o topics", monkeypatch).code == 0
    result = json.loads(run("anyshot test topics new.npz --json", monkeypatch).out)
    assert (result["examples"], result["right"], result["strangers"]) == (59, 49, 1)
    accuracy, low, high = result["accuracy"]
    assert accuracy == 49 / 59
    assert low == pytest.approx(0.7103, abs=1e-3)  # Clopper and Pearson
    assert high == pytest.approx(0.9156, abs=1e-3)
    weather = result["classes"][-1]
    assert (weather["name"], weather["examples"], weather["right"]) == ("weather", 29, 19)
    assert dict(weather["taken_for"]) == {"sport": 5, "politics": 5}
    fitted = FewShotClassifier.load("topics")
    accepted, right = fitted.is_known(data["features"])[:-1], (fitted.predict(data["features"]) == data["labels"])[:-1]
    assert result["accepted"] == accepted.mean()
    assert (result["accepted_right"], result["accepted_wrong"]) == (accepted[right].mean(), accepted[~right].mean())
    text = run("anyshot test topics new.npz", monkeypatch).out
    assert "Accuracy 83.1% (71.0% to 91.6%): 49 of 59 examples of 3 classes" in text
    np.savez("other.npz", features=data["features"], labels=np.full(60, "music"))
    assert "no example is of a class that the classifier has" in run("anyshot test topics other.npz", monkeypatch).err


# ------------------------------------------------------------------------------------------------- frozen, finetuned


def frozen(backbone, **more):
    small = {"train_shot": 4, "way": 3, "epochs": 3, "validate_every": 0, "width": 8, "lr": 0.1}
    return Recipe(data="x", head="linear-proto", backbone=backbone, frozen=True, **{**small, **more})


def images_store(path, side=36):
    """Three classes of colours, for training and for testing."""
    rng = np.random.default_rng(0)
    images = rng.integers(0, 80, (72, side, side, 3), np.uint8)
    for number in range(72):
        images[number, ..., number // 12 % 3] += 120
    names = [f"{split} {name}" for split in ("train", "test") for name in CLASSES]
    return write_store(path, [images], np.repeat(np.arange(6), 12), names, ["train"] * 3 + ["test"] * 3)


def test_a_head_learns_on_a_frozen_backbone_and_goes_everywhere(here, embedded, monkeypatch):
    store = images_store(here / "store")
    model = train(frozen("colours.onnx"), store, here / "trained")
    assert set(model.state_dict()) == {"learned.scale", "learned.map"}
    train(frozen("colours.onnx", seed=1), store, here / "again")
    assert sum(embedded) == 72, "embedded once for all models"
    for command in (
        "anyshot evaluate store --model trained --shots 1 2 --queries 4 --episodes 20 --way 3",
        "anyshot fit photos -o classifier --model trained",
        "anyshot test classifier photos",
    ):
        _, err, code = run(command, monkeypatch)
        assert code == 0, f"{command}: {err}"
    Path("colours.onnx").unlink()
    shutil.rmtree("trained")
    classifier = ImageClassifier.load("classifier")
    assert classifier.classifier.head == "linear-proto"
    assert classifier.classifier.support_.sums.shape[1] == 8, "vectors of the learned map"
    assert classifier.predict([Path("photos/red/0.png")]).tolist() == ["red"]


@pytest.mark.parametrize("name", NAMES)
def test_a_head_on_any_frozen_backbone_moves_with_its_classifier(name, here, timm, monkeypatch):
    """A study trains it on features; its classifier works where neither model nor backbone lie where they lay."""
    if name == "run":
        name = "./run"  # names may be paths
    trained = train(frozen(name), images_store(here / "store"), here / "trained")
    assert set(trained.state_dict()) == {"learned.scale", "learned.map"}
    assert run("anyshot fit photos -o classifier --model trained", monkeypatch).code == 0
    picture = here / "photos" / "red" / "0.png"
    features = ImageClassifier.load("classifier").features_of([picture])
    (here / "elsewhere").mkdir()
    for thing in ("classifier", *(["weights"] if "local-dir" in name else [])):  # a folder is known by where it lies
        shutil.move(thing, here / "elsewhere" / thing)
    monkeypatch.chdir(here / "elsewhere")
    again = ImageClassifier.load("classifier")
    np.testing.assert_array_equal(again.features_of([picture]), features)
    assert again.predict([picture]).tolist() == ["red"]


@pytest.mark.parametrize("kind", ["itself", "frozen", "start"])
def test_onnx_of_a_network_of_one_vector_per_image(kind, here, timm):
    """Networks of timm give "image d", ours "image position channel": either goes from raw pixels to a label."""
    store, model = images_store(here / "store", 32), Path("trained")
    if kind == "frozen":
        train(frozen("timm:tiny"), store, model)
    if kind == "start":
        train(finetuned(backbone="timm:tiny"), store, model)
    classifier = ImageClassifier("timm:tiny" if kind == "itself" else model).fit("photos")
    classifier.to_onnx("classifier.onnx")
    session = onnxruntime.InferenceSession("classifier.onnx")
    photos = sorted(Path("photos").rglob("*.png"))
    pixels = np.stack([classifier.read(path) for path in photos])
    for batch in (pixels, pixels[:1]):
        logits = session.run(["logits"], {"images": np.float32(batch).transpose(0, 3, 1, 2)})[0]
        np.testing.assert_allclose(logits, classifier.classifier.logits(classifier.features(batch)), atol=1e-3)
    assert classifier.classes_[logits[0].argmax()] == classifier.predict(photos[:1])[0]


def test_a_head_is_not_read_with_another_backbone_of_the_same_name(here):
    train(frozen("colours.onnx"), images_store(here / "store"), here / "trained")
    colours(here / "colours.onnx", metadata=SAID | {"anyshot.side": "40"})
    with pytest.raises(BadInput, match=r"features of 'colours.onnx'.*: its content is \w+ here, and was"):
        ImageClassifier("trained").fit(here / "photos")


def finetuned(**more):
    small = {"train_shot": 2, "way": 2, "size": 32, "epochs": 1, "validate_every": 0, "lr": 0.0, "width": 8}
    return Recipe(data="x", head="proto", **{**small, **more})


@pytest.mark.parametrize("name", [DEFAULT_EMBEDDER, "run", *TIMM])
def test_training_goes_on_from_any_network_that_can_be_trained(name, here, timm, monkeypatch):
    """Without steps its weights are those it began with, with steps others; and its file is whole."""
    store = images_store(here / "store", 32)
    named = {"start": "run"} if name == "run" else {"backbone": name}
    start = {"run": load_model(Path("run")).backbone, DEFAULT_EMBEDDER: load_pretrained()}.get(name) or Tiny(
        pretrained=True
    )
    theirs = [value.detach().numpy() for value in start.parameters()]
    for lr in (0.0, 1e-2):
        mine = train(finetuned(lr=lr, **named), store, here / f"lr-{lr}").backbone.parameters()
        same = [np.array_equal(one.detach().numpy(), other) for one, other in zip(mine, theirs, strict=True)]
        assert all(same) == (lr == 0)
    shutil.rmtree("run")
    assert run("anyshot fit photos -o classifier --model lr-0.01", monkeypatch).code == 0
    assert run("anyshot test classifier photos", monkeypatch).code == 0


@pytest.mark.parametrize(
    ("recipe", "sentence"),
    [
        ({"backbone": "colours.onnx"}, "colours.onnx cannot be trained, as no ONNX file can: .* must be frozen"),
        (
            {"backbone": f"{DEFAULT_EMBEDDER}:160"},
            f"to train it, name {DEFAULT_EMBEDDER}, and give the recipe its size",
        ),
        ({"start": "nowhere"}, "there is neither a classifier nor a trained model nowhere"),
        ({"start": "run", "width": 16}, "cannot begin with .*: backbone, width and channels must be the same"),
        ({"backbone": "timm:nothing"}, "timm has no model named 'nothing'"),
    ],
)
def test_what_cannot_be_trained_further_gets_a_sentence(recipe, sentence, here, timm):
    with pytest.raises(BadInput, match=sentence):
        train(finetuned(**recipe), images_store(here / "store", 32), here / "trained")


def test_a_head_learns_on_a_store_of_features(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    data = sentences(24)
    np.savez("texts.npz", **data)
    order = np.argsort(data["labels"], kind="stable")
    names = sorted(set(data["labels"]))
    store = write_store(
        Path("store"), [data["features"][order][:, None]], np.repeat(np.arange(3), 24), names, ["train"] * 3
    )
    model = train(frozen("a text model"), store, Path("trained"))
    assert model.learned["map"].shape == (16, 8)
    assert run("anyshot fit texts.npz -o topics --model trained", monkeypatch).code == 0
    assert FewShotClassifier.load("topics").head == "linear-proto"
    assert json.loads(run("anyshot test topics texts.npz --json", monkeypatch).out)["accuracy"][0] > 0.9
    pictures(tmp_path / "photos", CLASSES, images=3)
    done = run("anyshot fit photos -o x --model trained", monkeypatch)
    assert done.code == 2
    assert "was trained on features of 'a text model', not on pictures" in done.err


def test_a_recipe_for_images_does_not_take_features_silently(tmp_path):
    data = sentences()
    store = write_store(
        tmp_path / "store", [data["features"][np.argsort(data["labels"], kind="stable")][:, None]],
        np.repeat(np.arange(3), 20), list("abc"), ["train"] * 3,
    )  # fmt: skip
    recipe = Recipe(data="x", head="proto", train_shot=4, way=3, epochs=1, validate_every=0)
    with pytest.raises(BadInput, match="a recipe for them must be frozen"):
        train(recipe, store, tmp_path / "run")


# ------------------------------------------------------------------------------------------------------------ memory


def test_all_examples_are_not_copied_to_choose_among_them():
    examples = Source([Item(*row) for row in zip("1234", "aabb", strict=True)], features=np.zeros((4, 3)))
    assert np.shares_memory(examples.select(range(4)).features, examples.features)
    assert examples.select([3, 0]).names == ["4", "1"]


def left_out(vectors, labels):
    """Every vector left out, read with the posterior."""
    head, blank = BUILTIN.head("posterior"), torch.zeros(1, 1, vectors.shape[1])
    parameters = head.parameters(blank, Recipe(data="", head="posterior", train_shot=2, way=2))
    bound = BoundHead(head, {name: value.double() for name, value in parameters.items()})
    return leave_out(bound, vectors, labels, Groups(np.arange(len(labels)), ()))


@pytest.mark.parametrize("look", [find_copies, find_groups, left_out])
def test_vectors_are_looked_over_without_a_copy_of_all(look):
    """Features in single precision are enough: what is made of them in double is made of some at a time."""
    rows = np.random.default_rng(0).normal(size=(5000, 512)).astype(np.float32)

    def peak(many):
        tracemalloc.start()
        look(rows[:many], np.arange(many) % 25)
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return most

    peak(100)  # what is loaded on first use
    a_photo = (peak(5000) - peak(2500)) / 2500
    assert a_photo < 512 * 8, "no copy in double precision grows with them"


def test_vectors_in_single_precision_are_read_as_in_double():
    rows, labels = np.random.default_rng(0).normal(size=(90, 16)).astype(np.float32), np.arange(90) % 3
    rows[5] = rows[2]
    both = rows, rows.astype(np.float64)
    one, other = (find_copies(vectors, labels) for vectors in both)
    assert one == other
    assert one[0][:2] == (2, 5)
    assert len({tuple(find_groups(vectors, labels).group) for vectors in both}) == 1
    for order in (np.arange(90), np.argsort(labels, kind="stable")):  # as it comes, and class by class
        one, other = (left_out(vectors[order], labels[order]) for vectors in both)
        np.testing.assert_array_equal(one.scores, other.scores)
        assert one.accuracy == other.accuracy
