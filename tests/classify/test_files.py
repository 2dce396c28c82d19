"""Classifiers as folders and ONNX files: what is loaded predicts what was saved, and damage is noticed."""

import contextlib
import copy
import io
import json
import os
import shutil
import sys
import threading
import types
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from helpers.classifier_folders import sign_folder, version_of
from helpers.classifiers import classifier, colours, examples, pictures, small_model
from helpers.shell import run
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from safetensors.torch import load_file, save_file

from anyshot import BadInput, FewShotClassifier, ImageClassifier, evaluate, files
from anyshot.classify.images import make_thumbnail
from anyshot.classify.onnx_export import export_onnx
from anyshot.data.augmentation import prepare_evaluation
from anyshot.models.heads import HEADS
from anyshot.models.model import load_model
from anyshot.tables import write_table


@pytest.mark.parametrize("head", HEADS)
def test_saved_and_loaded_are_the_same(head, tmp_path):
    X, y = examples()
    names = np.array(["ant", "b|e`e", "<c>", "d\ne", "é"])[y]
    fitted = classifier(head, keep=6, reject=0.2).fit(X, names)
    fitted.save(tmp_path / "model")
    loaded = FewShotClassifier.load(tmp_path / "model")
    np.testing.assert_array_equal(loaded.predict_proba(X), fitted.predict_proba(X))
    assert loaded.coverage_ == fitted.coverage_
    more = examples(20, 4, seed=7)
    for each in (loaded, fitted):
        each.partial_fit(more[0], np.array(["ant", "new", "é", "x"])[more[1]])
    np.testing.assert_array_equal(loaded.predict_proba(X), fitted.predict_proba(X))
    loaded.save(tmp_path / "model")  # over itself
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model"]


def test_projections_travel(tmp_path):
    X, y = examples()
    fitted = FewShotClassifier("proto", readout="est3", base=examples(90, 9, seed=1)).fit(X, y)
    fitted.save(tmp_path / "model")
    loaded = FewShotClassifier.load(tmp_path / "model")
    np.testing.assert_allclose(loaded.predict_proba(X), fitted.predict_proba(X))
    assert loaded.fit(X, y).predict(X).tolist() == fitted.predict(X).tolist()


@pytest.mark.parametrize("labels", [[True, False], [2**40, -1], ["a", "bb"]])
def test_types_of_labels_travel(labels, tmp_path):
    X, y = examples(20, 2)
    fitted = FewShotClassifier().fit(X, np.array(labels)[y])
    fitted.save(tmp_path / "model")
    loaded = FewShotClassifier.load(tmp_path / "model")
    assert loaded.classes_.dtype == fitted.classes_.dtype
    assert loaded.classes_.tolist() == sorted(labels)


def test_the_card_is_one_of_hugging_face(tmp_path):
    hub = pytest.importorskip("huggingface_hub")
    X, y = examples()
    FewShotClassifier().fit(X, np.array(["ant", "b|e`e", "<c>", "d\ne", "é"])[y]).save(tmp_path / "model")
    card = hub.ModelCard.load(tmp_path / "model" / "README.md")
    assert card.data.library_name == "anyshot"
    assert card.data.pipeline_tag is None  # it classifies features of anything
    for words in (
        "| ant | 12 |",
        "&#60;c&#62;",
        "are accepted",
        "calibration error",
        "rejected",
    ):
        assert words in card.text
    assert "<c>" not in card.text


@pytest.mark.parametrize("head", ["posterior", "logistic", "cosine-proto", "proto"])
def test_card_and_export_say_what_the_threshold_is_compared_with(head, tmp_path, monkeypatch):
    """For heads that estimate from the support it is the evidence, which is another number than the best logit."""
    monkeypatch.chdir(tmp_path)
    X, y = examples(60, spread=2.0)
    made = FewShotClassifier(head).fit(X, y)
    made.save("model")
    said = run("anyshot export model -o model.onnx", monkeypatch).out
    answers = session("model.onnx")
    names = [port.name for port in answers.get_outputs()]
    has_evidence, is_evidence = "evidence" in names, head in ("posterior", "logistic")
    card = Path("model/README.md").read_text()
    assert ("evidence for the likeliest class" in card, "best logit" in card) == (is_evidence, not is_evidence)
    inputs = "features, prototypes, counts" if has_evidence else "features, prototypes"
    doubt = "; no threshold, so that nothing is none of these" if head == "logistic" else ""
    assert said == f"model.onnx: {inputs} in; {', '.join(names)} out{doubt}.\n"
    values = dict(zip(names, answers.run(None, {"features": X.reshape(len(X), -1).astype(np.float32)}), strict=True))
    threshold = answers.get_modelmeta().custom_metadata_map.get("anyshot.threshold")
    if threshold is None:  # no output that could be compared with it
        assert head == "logistic"
    else:
        is_known = values.get("evidence", values["logits"].max(1)) >= float(threshold)
        np.testing.assert_array_equal(is_known, made.is_known(X))


def test_nothing_else_is_overwritten(tmp_path):
    X, y = examples()
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "mine.jpg").write_bytes(b"dear")
    (tmp_path / "photos" / "config.json").write_text("{}")  # as many other things have
    with pytest.raises(BadInput, match="not a classifier"):
        FewShotClassifier().fit(X, y).save(tmp_path / "photos")
    assert (tmp_path / "photos" / "mine.jpg").read_bytes() == b"dear"


def test_files_of_others_stay_and_so_do_the_mode_and_an_edited_card(tmp_path):
    X, y = examples()
    folder = tmp_path / "model"
    FewShotClassifier().fit(X, y).save(folder)
    (folder / ".git").mkdir()
    (folder / "notes.txt").write_text("mine")
    (folder / "README.md").write_text("edited")
    (folder / "backbone.json").write_text("{}")  # named like a file of ours, and not in its place
    folder.chmod(0o750)
    FewShotClassifier("proto").fit(X, y).save(folder)
    assert FewShotClassifier.load(folder).head == "proto"
    assert (folder / "notes.txt").read_text() == "mine"
    assert (folder / "README.md").read_text() == "edited"
    assert (folder / ".git").is_dir()
    assert (folder / "backbone.json").read_text() == "{}"
    assert len(list(folder.glob("version-*"))) == 1
    assert folder.stat().st_mode & 0o777 == 0o750


@pytest.mark.parametrize("stop", range(1, 5))
def test_a_save_that_was_killed_leaves_the_old_or_the_new(stop, tmp_path, monkeypatch):
    X, y = examples()
    folder = tmp_path / "model"
    FewShotClassifier("proto").fit(X, y).save(folder)
    fitted, moves, replace = FewShotClassifier("cosine-proto").fit(X, y), [], files._swap_into_place

    def die(staging, path):
        if path.parent == folder:
            moves.append(path.name)
        if len(moves) == stop:
            raise KeyboardInterrupt
        replace(staging, path)

    with monkeypatch.context() as patch:
        patch.setattr(files, "_swap_into_place", die)
        with pytest.raises(KeyboardInterrupt) if stop <= 3 else contextlib.nullcontext():
            fitted.save(folder)
    assert [name.partition("-")[0] for name in moves] == ["version", "config.json", "README.md"][:stop]
    assert FewShotClassifier.load(folder).head == ("proto" if stop <= 2 else "cosine-proto")
    fitted.save(folder)
    assert FewShotClassifier.load(folder).head == "cosine-proto"
    assert sorted(path.name for path in folder.iterdir()) == ["README.md", "config.json", version_of(folder).name]
    assert (folder / "README.md").read_bytes() == (version_of(folder) / "README.md").read_bytes()


def test_a_folder_of_an_earlier_format_loses_its_old_files_and_keeps_an_edited_card(tmp_path):
    shutil.copytree(Path(__file__).parents[1] / "fixtures" / "v0.1" / "classifiers" / "names", tmp_path / "model")
    fitted = FewShotClassifier.load(tmp_path / "model")
    fitted.save(tmp_path / "model")
    assert FewShotClassifier.load(tmp_path / "model").classes_.tolist() == fitted.classes_.tolist()
    version = version_of(tmp_path / "model")
    assert sorted(path.name for path in (tmp_path / "model").iterdir()) == ["README.md", "config.json", version.name]


def test_two_writers_of_one_folder_do_not_mix(tmp_path):
    X, y = examples()
    folder = tmp_path / "model"
    fitted = FewShotClassifier("proto").fit(X, y)
    fitted.save(folder)
    with files.locked(folder), ThreadPoolExecutor(1) as other, pytest.raises(BadInput, match="another process"):
        other.submit(fitted.save, folder).result()
    with files.locked(folder):
        fitted.save(folder)  # the thread that holds the lock


def test_a_load_during_saves_sees_one_version(tmp_path):
    X, y = examples()
    both = [FewShotClassifier(head, keep=0).fit(X, y) for head in ("proto", "cosine-proto")]
    both[0].save(tmp_path / "model")
    expected = {one.head: one.logits(X[:2]) for one in both}
    with ThreadPoolExecutor(1) as writer:
        done = writer.submit(lambda: [both[turn % 2].save(tmp_path / "model") for turn in range(1, 40)])
        while not done.done():
            loaded = FewShotClassifier.load(tmp_path / "model")
            np.testing.assert_array_equal(loaded.logits(X[:2]), expected[loaded.head])
    done.result()


def test_parts_of_two_classifiers_are_refused(tmp_path):
    X, y = examples()
    FewShotClassifier("proto").fit(X, y).save(tmp_path / "one")
    FewShotClassifier("proto").fit(X + 1, y).save(tmp_path / "two")
    whole = (tmp_path / "one" / "config.json").read_text()
    config = json.loads(whole)
    for text in (
        (tmp_path / "two" / "config.json").read_text(),
        json.dumps({**config, "labels": config["labels"][::-1]}),
        whole.replace('"keep": 256', '"keep": 256, "keep": 256'),
    ):
        (tmp_path / "one" / "config.json").write_text(text)
        with pytest.raises(BadInput):
            FewShotClassifier.load(tmp_path / "one")


@pytest.mark.parametrize("name", ["x" * 1025, "\u200b\u200b", " "])
def test_class_names_that_could_not_be_read_are_refused_before_anything_is_written(name, tmp_path):
    X, y = examples(20, 2)
    fitted = FewShotClassifier().fit(X, np.array(["a", "b"])[y])
    fitted.save(tmp_path / "model")
    with pytest.raises(BadInput, match="the class name"):
        fitted.partial_fit(X[:1] + 1, [name]).save(tmp_path / "model")
    assert FewShotClassifier.load(tmp_path / "model").classes_.tolist() == ["a", "b"]


@pytest.mark.parametrize("scale", [1e150, 1e200, 1e-300, 1e-13])
def test_features_of_extreme_scale_are_refused(scale):
    X, y = examples(20, 2)
    with pytest.raises(BadInput, match="near 1"):
        FewShotClassifier("proto").fit(scale * X, y)
    with pytest.raises(BadInput, match="near 1"):
        FewShotClassifier("proto").fit(X, y).predict(scale * X)


@settings(max_examples=30)
@given(data=st.data())
def test_damaged_folders_are_refused_in_a_sentence(data, tmp_path_factory):
    X, y = examples()
    folder = tmp_path_factory.mktemp("damaged") / "model"
    FewShotClassifier().fit(X, y).save(folder)
    name = data.draw(st.sampled_from(["config.json", "classifier.safetensors"]))
    path = folder / name if name == "config.json" else version_of(folder) / name
    whole = path.read_bytes()
    path.write_bytes(whole[: data.draw(st.integers(0, len(whole) - 2))])
    with pytest.raises(BadInput):
        FewShotClassifier.load(folder)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("owner", torch.full((60,), 9)),
        ("counts", torch.zeros(5, dtype=torch.long)),
        ("sums", torch.ones(4, 24).double()),
    ],
)
def test_tensors_that_do_not_fit_are_refused(name, value, tmp_path):
    X, y = examples()
    FewShotClassifier().fit(X, y).save(tmp_path / "model")
    path = version_of(tmp_path / "model") / "classifier.safetensors"
    save_file({**load_file(path), name: value}, path)
    with pytest.raises(BadInput, match="do not fit together"):
        FewShotClassifier.load(tmp_path / "model")
    sign_folder(tmp_path / "model")
    with pytest.raises(BadInput, match="do not fit"):
        FewShotClassifier.load(tmp_path / "model")


def test_labels_cannot_smuggle_objects(tmp_path):
    X, y = examples()
    FewShotClassifier().fit(X, y).save(tmp_path / "model")
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    (tmp_path / "model" / "config.json").write_text(json.dumps({**config, "label_type": "|O"}))
    sign_folder(tmp_path / "model")
    with pytest.raises(BadInput, match="text or numbers"):
        FewShotClassifier.load(tmp_path / "model")


# ----------------------------------------------------------------------------------------------------------------- onnx


def session(path):
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(path, options)


@pytest.mark.parametrize("head", ["cosine-proto", "feat", "frn"])  # each of the ways that prototypes are refined
def test_onnx_predicts_the_same_on_a_thousand_queries(head, tmp_path):
    X, y = examples(60, 5)
    queries = examples(1000, 5, seed=0, spread=1.5)[0].astype(np.float32)
    fitted = classifier(head).fit(X, y)
    export_onnx(fitted, tmp_path / "model.onnx")
    runner = session(tmp_path / "model.onnx")
    logits, vectors = runner.run(None, {"features": queries.reshape(1000, -1)})
    expected = fitted.logits(queries)
    np.testing.assert_allclose(logits, expected, atol=2e-3 * np.abs(expected).max())
    assert (logits.argmax(1) == expected.argmax(1)).all()
    # A class that the file has never seen: the mean of the vectors that it gives for the examples.
    if "frn" not in head or HEADS[head].refine is None:
        new = X[:6] + 1.0
        means = fitted.support_.sums / fitted.support_.counts[:, None]
        _, vectors = runner.run(None, {"features": new.astype(np.float32).reshape(6, -1)})
        prototypes = np.concatenate([means, vectors.mean(0, keepdims=True)]).astype(np.float32)
        more, _ = runner.run(None, {"features": queries.reshape(1000, -1), "prototypes": prototypes})
        scale = fitted.scale_
        wider = classifier(head, scale=scale).fit(np.concatenate([X, new]), np.r_[y, np.full(6, 5)])
        assert more.shape == (1000, 6)
        np.testing.assert_allclose(more, wider.logits(queries), atol=2e-3 * np.abs(more).max())


def test_gram_matrices_are_real_tensors_after_an_export(tmp_path):
    """An export calls the head with tensors that hold no numbers; none of them may be reused afterwards."""
    rng, channels = np.random.default_rng(0), 7  # a number that no other test has
    fitted = FewShotClassifier("cosine-frn").fit(rng.normal(size=(12, 4, channels)), np.arange(12) % 3)
    export_onnx(fitted, tmp_path / "model.onnx")
    assert np.isfinite(HEADS["cosine-frn"].embed(torch.ones(2, 4, channels), {}).numpy()).all()


# --------------------------------------------------------------------------------------------------------------- images


def test_the_model_of_a_classifier_is_a_model(tmp_path):
    made = ImageClassifier(small_model()).fit(pictures(tmp_path / "photos"))
    made.save(tmp_path / "classifier")
    loaded = load_model(tmp_path / "classifier")
    assert loaded.recipe == small_model().recipe
    assert ImageClassifier(tmp_path / "classifier").backbone.fingerprint == made.backbone.fingerprint


@pytest.mark.parametrize("head", ["cosine-proto", "feat", "frn"])
def test_a_folder_of_pictures(head, tmp_path):
    folder = pictures(tmp_path / "photos")
    small_model(head).save(tmp_path / "run" / "model.safetensors")
    made = ImageClassifier(tmp_path / "run").fit(folder)
    new = sorted(pictures(tmp_path / "new", seed=1).rglob("*.png"))
    names = [path.parent.name for path in new]
    assert head == "feat" or made.score(new, names) > 0.9  # FEAT's attention has not been trained here
    assert made.classes_.tolist() == ["blue", "green", "red"]
    assert made.predict(new[0].read_bytes()).tolist() == made.predict(str(new[0])).tolist()
    made.save(tmp_path / "model")
    loaded = ImageClassifier.load(tmp_path / "model")
    np.testing.assert_array_equal(loaded.predict_proba(new), made.predict_proba(new))
    assert loaded.thumbnails == made.thumbnails
    assert len(made.thumbnails) == 12
    assert Image.open(io.BytesIO(next(iter(made.thumbnails.values())))).size == (32, 32)
    assert Image.open(io.BytesIO(make_thumbnail(np.zeros((224, 224, 3), np.uint8)))).size == (144, 144)
    assert made.remove(["red"]).classes_.tolist() == ["blue", "green"]
    assert len(made.thumbnails) == 8
    merged = made.merge(ImageClassifier(tmp_path / "run").fit([new[0]], ["white"]))
    assert merged.classes_.tolist() == ["blue", "green", "white"]
    assert len(merged.thumbnails) == 9


def test_the_card_tells_the_sensitivity_of_a_study(tmp_path):
    small_model().save(tmp_path / "study" / "run" / "model.safetensors")
    row = {"data": "none", "backbone": "conv4", "head": "cosine-proto", "readout": "own"}
    write_table(tmp_path / "study" / "sensitivity.csv", [{**row, "sensitivity": 1.5, "low": 1.0, "high": 2.0}])
    ImageClassifier(tmp_path / "study" / "run").fit(pictures(tmp_path / "photos")).save(tmp_path / "model")
    again = ImageClassifier.load(tmp_path / "model")
    again.save(tmp_path / "again")
    for folder in ("model", "again"):
        assert "- sensitivity: 1.50 (1.00 to 2.00)" in (tmp_path / folder / "README.md").read_text()


def test_another_head_on_the_same_model(tmp_path):
    folder = pictures(tmp_path / "photos")
    made = ImageClassifier(small_model("feat"), head="proto").fit(folder)
    assert made.classifier.parameters is None
    assert made.score(sorted(folder.rglob("*.png")), sorted(["red", "green", "blue"] * 4)) > 0.9


def test_any_function_is_a_backbone(tmp_path):
    folder = pictures(tmp_path / "photos")
    made = ImageClassifier(colours, side=16).fit(folder)
    made.save(tmp_path / "model")
    with pytest.raises(BadInput, match=r"give it as backbone=\.\.\. again"):
        ImageClassifier.load(tmp_path / "model")
    loaded = ImageClassifier.load(tmp_path / "model", colours)
    assert loaded.predict(sorted(folder.rglob("*.png"))).tolist() == sorted(["red", "green", "blue"] * 4)
    with pytest.raises(BadInput, match="the backbone gave"):
        ImageClassifier(lambda images: np.zeros(3)).fit(folder)


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o007, 0o660)])
def test_files_may_be_read_by_those_whom_the_umask_lets(tmp_path, umask, mode):
    made = ImageClassifier(small_model()).fit(pictures(tmp_path / "photos"))
    before = os.umask(umask)
    try:
        made.save(tmp_path / "model")
    finally:
        os.umask(before)
    modes = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "model").rglob("*") if path.is_file()}
    assert modes == dict.fromkeys(modes, mode)
    assert {"classifier.safetensors", "thumbnails.safetensors", "model.safetensors"} < modes.keys()


def test_a_copy_learns_without_touching_the_pictures_of_the_other(tmp_path):
    """The server changes a copy while others read, and save, what is served."""
    folder = pictures(tmp_path / "photos")
    first = ImageClassifier(small_model()).fit(folder)
    grey = [np.full((20, 20, 3), value, np.uint8) for value in (40, 90, 140)]
    other = ImageClassifier(first.backbone).fit(grey, ["grey"] * 3)
    shown, before = first.thumbnails, dict(first.thumbnails)
    second, third = copy.copy(first), copy.copy(first)
    for one in (second, third):
        one.classifier = copy.copy(first.classifier)
    second.partial_fit(grey, ["grey"] * 3)
    assert shown == before
    assert first.thumbnails is shown
    third.merge(other)
    assert shown == before


def test_timm_models_by_name(tmp_path, monkeypatch):
    """timm itself needs torchvision; what stands in for it has its interface."""

    def create_model(name, pretrained, num_classes):
        assert (pretrained, num_classes) == (True, 0)
        if name != "tiny":
            raise RuntimeError(f"Unknown model ({name})")
        model = torch.nn.Sequential(torch.nn.AvgPool2d(24), torch.nn.Flatten())
        model.pretrained_cfg = {"mean": (0.5, 0.5, 0.5), "std": (0.2, 0.2, 0.2), "input_size": (3, 24, 24)}
        return model

    monkeypatch.setitem(
        sys.modules, "timm", types.SimpleNamespace(create_model=create_model, is_model={"tiny", "huge"}.__contains__)
    )
    folder = pictures(tmp_path / "photos")
    made = ImageClassifier("timm:tiny").fit(folder)
    made.save(tmp_path / "model")
    loaded = ImageClassifier.load(tmp_path / "model")
    assert loaded.predict(sorted(folder.rglob("*.png"))).tolist() == sorted(["red", "green", "blue"] * 4)
    monkeypatch.setattr("anyshot.models.timm_backbone._explain_unreachable", lambda hub: "")
    with pytest.raises(BadInput, match="timm could not make 'huge'"):
        ImageClassifier("timm:huge")
    with pytest.raises(BadInput, match="timm has no model named 'hgue'"):
        ImageClassifier("timm:hgue")
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(BadInput, match="pip install"):
        ImageClassifier("timm:tiny")
    with pytest.raises(BadInput, match="named like timm:tiny"):
        ImageClassifier("tiny")


def test_pictures_that_are_none(tmp_path):
    folder = pictures(tmp_path / "photos")
    (folder / "red" / "text.png").write_text("not a picture")
    with pytest.warns(UserWarning, match=r"left out: .*text.png cannot be read as an image"):
        made = ImageClassifier(colours).fit(folder)
    assert made.classifier.support_.counts.tolist() == [4, 4, 4]
    with pytest.raises(BadInput, match=r"text.png cannot be read as an image"):
        made.predict([folder / "red" / "text.png"])
    with pytest.raises(BadInput, match="red cannot be read as an image: it is a folder; name the pictures in it"):
        made.predict(folder / "red")
    with pytest.raises(BadInput, match=r"there is no file nowhere\.png"):
        made.predict("nowhere.png")
    with pytest.raises(BadInput, match="2 pictures and 1 labels"):
        made.partial_fit([folder / "red" / "0.png"] * 2, ["red"])
    new = sorted((folder / "red").glob("[01].png"))
    assert ImageClassifier(colours).partial_fit(new, "a label of all").classifier.support_.counts.tolist() == [2]


@pytest.mark.parametrize("size", [(32, 32), (20, 50), (35, 60), (96, 96)])
def test_pictures_are_cut_as_in_evaluation(size):
    """What the evaluation's own transform does to the decoded picture, to a grey level or two of rounding."""
    pixels = np.random.default_rng(0).integers(0, 256, (12, 12, 3)).astype(np.uint8)
    pixels = np.array(Image.fromarray(pixels).resize(size[::-1]))  # smooth, as photos are
    mine = prepare_evaluation(torch.from_numpy(ImageClassifier(small_model()).read(pixels).copy()[None]), 32)
    theirs = prepare_evaluation(torch.from_numpy(pixels[None]), 32)
    assert mine.shape == theirs.shape
    assert (mine - theirs).abs().mean() < 0.05


def test_onnx_of_pictures(tmp_path):
    folder = pictures(tmp_path / "photos")
    made = ImageClassifier(small_model()).fit(folder)
    made.to_onnx(tmp_path / "model.onnx")
    read = np.stack([made.read(path) for path in sorted(folder.rglob("*.png"))])
    pixels = read.transpose(0, 3, 1, 2).astype(np.float32)
    logits, _ = session(tmp_path / "model.onnx").run(None, {"images": pixels})
    np.testing.assert_allclose(logits, made.classifier.logits(made.features(read)), atol=1e-3)


def test_onnx_names_the_classes_that_are_never_rejected(tmp_path):
    X = np.random.default_rng(0).normal(size=(12, 4)) + np.eye(4)[np.repeat([0, 1], 6)] * 5
    fitted = FewShotClassifier("proto").fit(X, np.repeat(["a", "b"], 6), groups=[0] * 6 + list(range(1, 7)))
    export_onnx(fitted, tmp_path / "model.onnx")
    words = session(tmp_path / "model.onnx").get_modelmeta().custom_metadata_map
    assert json.loads(words["anyshot.unjudged"]) == ["a"]


def test_what_is_saved_while_a_thread_learns_belongs_together(tmp_path):
    """Of every exemplar there is a thumbnail, and of no other example."""
    folder, made = pictures(tmp_path / "photos"), ImageClassifier(small_model())
    more = sorted(pictures(tmp_path / "more", seed=1).rglob("*.png"))
    made.fit(folder)
    learner = threading.Thread(target=lambda: [made.partial_fit([one], [one.parent.name]) for one in more])
    learner.start()
    for number in range(8):
        made.save(tmp_path / f"model {number}")
        saved = ImageClassifier.load(tmp_path / f"model {number}")
        assert sorted(saved.thumbnails) == sorted(saved.classifier.support_.exemplars.keys.tolist())
    learner.join()


def test_the_shares_of_progress_add_up_to_one(tmp_path):
    folder, shares = pictures(tmp_path / "photos"), []
    (folder / "red" / "broken.png").write_bytes(b"no picture")
    with pytest.warns(UserWarning, match=r"broken\.png"):
        ImageClassifier(small_model()).fit(folder, progress=shares.append)
    assert sum(shares) == pytest.approx(1)
    shares.clear()
    y = np.repeat(np.arange(6), 8)
    features = np.random.default_rng(0).normal(size=(48, 5))
    evaluate(features, y, ["proto", "posterior"], (1, 2), queries=4, episodes=9, progress=shares.append)
    assert sum(shares) == pytest.approx(1)
