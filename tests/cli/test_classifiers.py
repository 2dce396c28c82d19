"""The deploying verbs of the command line: what they print, and one sentence where they cannot go on."""

import contextlib
import csv
import io
import json
import re
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from helpers.classifiers import pictures, small_model
from helpers.shell import run

from anyshot import FewShotClassifier, ImageClassifier
from anyshot.files import locked


@pytest.fixture
def model(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    small_model().save(tmp_path / "run" / "model.safetensors")
    pictures(tmp_path / "photos", images=8)
    assert run("anyshot fit photos --model run -o model", monkeypatch)[2] == 0
    return tmp_path


def test_names_are_neither_markup_nor_a_terminals_codes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = ["[/red]", ":cat:", "[bold]x", "\x1b[2Jgone"]
    X = np.random.default_rng(0).normal(size=(24, 4)) + 9 * np.eye(4)[np.arange(24) % 4]
    np.savez("x.npz", features=X.astype(np.float32), labels=np.array(names * 6))
    for command in (
        "fit x.npz -o made",
        "predict made x.npz",
        "test made x.npz",
        "advise x.npz --shots 1 --episodes 9",
    ):
        out, err, code = run(f"anyshot {command}", monkeypatch)
        assert code == 0, err
        assert "\x1b" not in out + err
        if command.startswith("predict"):
            assert all(name in out for name in (*names[:3], "\\x1b[2Jgone"))


def test_two_who_change_a_classifier_at_once_do_not_lose_what_one_of_them_learned(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    X = np.random.default_rng(0).normal(size=(8, 4)).astype(np.float32)
    FewShotClassifier("proto").fit(X, ["a", "b"] * 4).save("made")
    np.savez("x.npz", features=X, labels=np.array(["a", "c"] * 4))
    with locked(Path("made")):
        for command in ("add made x.npz", "remove made a"):
            said = run(f"anyshot {command}", monkeypatch)
            assert (said.code, said.err.count("\n")) == (2, 1)
            assert "another process is writing made" in said.err
        assert run("anyshot add made x.npz -o other", monkeypatch).code == 0
    assert run("anyshot add made x.npz", monkeypatch).code == 0
    assert FewShotClassifier.load("made").classes_.tolist() == ["a", "b", "c"]


def test_predictions_as_table_csv_and_json(model, monkeypatch):
    pictures(model / "new", seed=3)
    out, _, _ = run("anyshot predict model new --format json --top 2", monkeypatch)
    rows = json.loads(out)
    assert [row["class"] for row in rows] == [Path(row["image"]).parent.name for row in rows]
    assert all(len(row["best"]) == 2 and row["best"][0]["class"] == row["class"] for row in rows)
    lines = run("anyshot predict model new/red/0.png new/blue --format csv", monkeypatch)[0].splitlines()
    assert lines[0] == "image,class,probability,is_known,nearest"
    assert len(lines) == 6
    table, _, _ = run("anyshot predict model new/red", monkeypatch)
    assert table.count("red") >= 4
    Path("noise").mkdir()
    noise = np.random.default_rng(0).integers(0, 2, (64, 64, 3)).astype(np.uint8) * 255
    from PIL import Image

    Image.fromarray(noise).save("noise/0.png")
    strange = json.loads(run("anyshot predict model noise --format json", monkeypatch)[0])
    assert strange[0]["is_known"] in (True, False)


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("anyshot predict nowhere x.png", "there is no classifier nowhere: name a folder that `anyshot fit` made"),
        ("anyshot predict photos model", "there is no classifier photos: name a folder that `anyshot fit` made"),
        ("anyshot test photos model", "there is no classifier photos"),
        ("anyshot serve photos", "nor a trained model photos: name a folder that `anyshot fit` made, or that of"),
        ("anyshot fit photos --model run -o photos/red/0.png/m", "m cannot be written: photos/red/0.png is a file"),
        ("anyshot remove model red --examples photos/red", "name classes to remove, or examples, not both: --examples"),
        ("anyshot serve model --save photos", "photos is there already and is not a classifier"),
        ("anyshot predict model nowhere.png", "no file or folder nowhere.png"),
        ("anyshot predict model run", "there are no pictures"),
        ("anyshot fit nowhere --model run -o m", "there is no file or folder nowhere"),
        ("anyshot fit photos --model nowhere -o m", "named like timm:nowhere"),
        ("anyshot fit photos --model run -o m --head cosine-prot", "did you mean 'cosine-proto'"),
        ("anyshot fit photos --model run -o photos", "not a classifier"),
        ("anyshot advise nowhere.npz", "no file or folder nowhere.npz"),
        ("anyshot advise photos --model run --way five", "not 'five'"),
        ("anyshot export photos -o x.onnx", "is not an image classifier"),
        ("anyshot serve nowhere", "nowhere: name a folder that `anyshot fit` made, or a network, such as efficientnet"),
    ],
)
def test_mistakes_are_one_sentence_and_exit_code_2(model, monkeypatch, command, words):
    _, err, code = run(command, monkeypatch)
    assert code == 2
    assert words in err
    assert err.count("\n") == 1
    assert not Path("m").exists()


def test_advice_as_text_page_and_numbers(model, monkeypatch):
    out, err, code = run("anyshot advise photos --model run --out advice --episodes 60", monkeypatch)
    assert code == 0, err
    assert "Use " in out
    numbers = json.loads(Path("advice/advice.json").read_text())
    assert numbers["counts"] == [8, 8, 8]
    page = Path("advice/advice.html").read_text()
    assert "<svg" in page
    assert page.count("<script") == 1
    assert "| accuracy at shot |" in Path("advice/advice.md").read_text()
    assert numbers["left_out"]["in_groups"] is None or "groups" in page
    assert "other days" in out
    np.savez("features.npz", features=np.random.default_rng(0).normal(size=(40, 3)), labels=np.arange(40) % 2)
    assert "Which head" in run("anyshot advise features.npz --episodes 50", monkeypatch)[0]


def test_advice_with_photos_of_other_days(model, monkeypatch):
    """From two folders, or from one that has a test folder; text, page and numbers agree, and show copies."""
    from PIL import Image

    pictures(model / "later", images=5, seed=3)
    copied = Image.open("photos/red/0.png").transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    copied.save("photos/blue/copy.png")
    command = "anyshot advise photos --model run --episodes 30 --heads cosine-proto"
    out, err, code = run(f"{command} --holdout later --out advice", monkeypatch)
    assert code == 0, err
    numbers, page = json.loads(Path("advice/advice.json").read_text()), Path("advice/advice.html").read_text()
    said = f"On the 15 examples that were held out, cosine-proto is right on {numbers['holdout']['accuracy'][0]:.1%}"
    assert said in out
    assert said in page
    assert numbers["holdout"]["examples"] == 15
    pair = numbers["duplicates"][0]
    assert [pair[one]["name"] for one in ("one", "other")] == ["blue/copy.png", "red/0.png"]
    assert pair["conflict"]
    for words in (out, page, Path("advice/advice.md").read_text()):
        assert words.index("blue/copy.png") < words.rindex("red/0.png")
    assert page.count("data:image/jpeg;base64,") >= 2
    np.savez("features.npz", features=np.eye(3), labels=list("abc"))
    _, err, code = run(f"{command} --holdout features.npz", monkeypatch)
    assert code == 2
    assert "both pictures, or both features" in err
    Path("both").mkdir()
    Path("photos").rename("both/train")
    Path("later").rename("both/test")
    again, _, _ = run("anyshot advise both --model run --episodes 30 --heads cosine-proto", monkeypatch)
    assert said in again


def test_what_the_network_that_comes_with_us_would_bring_is_measured(model, monkeypatch):
    command = "anyshot advise photos --episodes 20 --heads cosine-proto --out advice"
    assert "on a sample" not in run(f"{command} --model run", monkeypatch).out  # these features are good enough
    monkeypatch.setattr("anyshot.inspect.pictures.ENOUGH", 2.0)
    out = run(f"{command} --model run", monkeypatch).out
    other = json.loads(Path("advice/advice.json").read_text())["other_features"]
    assert (other["backbone"], other["way"], other["shot"], other["examples"]) == ("efficientnet-lite0", 3, 6, 24)
    assert min(other["own"], other["other"]) > 0.6
    said = f"efficientnet-lite0 is right on {other['other']:.1%}"
    assert f"on a sample (3 classes, 6 shots, 24 examples) {said}" in out
    assert said in Path("advice/advice.html").read_text()


def test_what_fit_says_of_its_accuracy(model, monkeypatch):
    """It is of the photos at hand, and where they are bursts, whole bursts are left out."""
    from PIL import Image

    words, _, _ = run("anyshot fit photos --model run -o again", monkeypatch)
    assert "Left out and asked as if they were new" in words
    assert "other days" in words
    assert "more of them are called none of these. To know how much harder: anyshot test again FOLDER." in words
    words, _, _ = run("anyshot fit photos --model run -o 'my photos'", monkeypatch)
    assert "anyshot test 'my photos' FOLDER" in words
    for place, file in enumerate(sorted(Path("photos").rglob("*.png"))):
        exif = Image.Exif()
        exif[0x8769] = {0x9003: f"2024:01:31 {place // 4:02}:00:{place % 4:02}"}
        Image.open(file).save(file.with_suffix(".jpg"), exif=exif)
        file.unlink()
    words, _, _ = run("anyshot fit photos --model run -o again", monkeypatch)
    assert re.search(r"24 of them are in [56] groups of one moment or much alike \(found by times", words)
    assert "with whole groups left out it is" in words


def scenes(seed=0, scenes=3, frames=4, classes=6, d=32):
    """Return vectors of classes whose scenes differ as much as the classes do, with labels and scenes."""
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(classes, 1, 1, d)) + rng.normal(size=(classes, scenes, 1, d))
    X = centres + rng.normal(size=(classes, scenes, frames, d))
    names = [(f"class {c}", f"scene {s}") for c in range(classes) for s in range(scenes) for _ in range(frames)]
    return X.reshape(-1, d).astype(np.float32), *map(np.array, zip(*names, strict=True))


def test_a_copy_counts_once_in_the_accuracy(tmp_path, monkeypatch):
    """`fit`, `advise` and the classifier (`/api/classes`, the card) count the same examples."""
    monkeypatch.chdir(tmp_path)
    X, labels, groups = (np.concatenate([each, each[:5]]) for each in scenes(seed=1))
    np.savez("x.npz", features=X, labels=labels, scene=groups)
    words = run("anyshot fit x.npz --group-column scene -o made", monkeypatch).out
    accuracy = f"{FewShotClassifier.load('made').coverage_.accuracy_of_all:.1%}"
    assert "72 of them are in 18 groups that you named" in words
    assert f"with whole groups left out it is {accuracy}" in words
    advice = run("anyshot advise x.npz --group-column scene --heads posterior --shots 1 --episodes 2", monkeypatch).out
    assert f"with whole groups left out it is {accuracy}" in advice


@pytest.mark.parametrize("head", ["proto", "cosine-proto", "posterior", "logistic"])
@pytest.mark.parametrize("noise", [0.05, 1.0])
def test_fit_the_card_and_advise_say_one_accuracy(head, noise, tmp_path, monkeypatch):
    """Of scenes of near-copies, and of single examples, which every head compares in its own way."""
    monkeypatch.chdir(tmp_path)
    X, labels, _ = scenes(seed=2, scenes=6, frames=2)
    offsets = np.random.default_rng(0).normal(size=(len(X), 32))
    X = (3 + np.repeat(X[::2], 2, 0) + noise * offsets) * np.exp(offsets[:, :1] / 4)
    np.savez("x.npz", features=X.astype(np.float32), labels=labels)
    words = run(f"anyshot fit x.npz --head {head} -o made", monkeypatch).out
    said = re.findall(r"recognised\. \d+ of them .* left out it is ([0-9.]+%)|new, ([0-9.]+%)", words)[-1]
    accuracy = said[0] or said[1]
    assert f"({accuracy} of all)" in Path("made/README.md").read_text()
    advice = run(f"anyshot advise x.npz --heads {head} --shots 1 --episodes 2", monkeypatch).out
    assert f"it recognises {accuracy} of these examples" in advice


def test_what_is_measured_on_kept_examples_is_said_to_be(tmp_path, monkeypatch):
    """Classes of the few that are kept are harder than the classes that the classifier has."""
    monkeypatch.chdir(tmp_path)
    X, labels, _ = scenes()
    np.savez("x.npz", features=X, labels=labels)
    kept = "of the examples that are kept (24), in classes of these alone"
    assert f"at all (both {kept})." in run("anyshot fit x.npz --keep 4 -o made", monkeypatch).out
    assert f"{kept.capitalize()}, each left out" in Path("made/README.md").read_text()
    np.savez("y.npz", features=X[:1] + 1, labels=labels[:1])
    assert f"{kept} are recognised" in run("anyshot add made y.npz", monkeypatch).out


@pytest.mark.parametrize("keep", [0, 4, 256])
def test_examples_that_were_learned_are_counted_whatever_is_kept(keep, tmp_path, monkeypatch):
    """Also those that a merge or `add` brought, and features that were stored in half precision since."""
    monkeypatch.chdir(tmp_path)
    X, labels, _ = scenes()
    for name, part, kind in (("one", slice(40), "f4"), ("two", slice(40, 60), "f4"), ("all", slice(72), "f2")):
        np.savez(f"{name}.npz", features=X[part].astype(kind), labels=labels[part])
    for name in ("one", "two"):
        run(f"anyshot fit {name}.npz --keep {keep} -o {name}", monkeypatch)
    assert run("anyshot merge one two -o both", monkeypatch).code == 0
    assert run("anyshot add one two.npz", monkeypatch).code == 0
    for name in ("one", "both"):
        assert json.loads(run(f"anyshot test {name} all.npz --json", monkeypatch).out)["learned"] == 60


def test_examples_held_out_need_no_groups(model, monkeypatch):
    for file in sorted(Path("photos").rglob("*.png")):
        scene = file.parent / f"scene {int(file.stem) // 2}"
        scene.mkdir(exist_ok=True)
        file.rename(scene / file.name)
    pictures(model / "later", images=3)
    said = run("anyshot advise photos --depth 1 --group-depth 2 --holdout later --model run --episodes 5", monkeypatch)
    assert (said.code, said.err.count("too deep")) == (0, 0), said.err
    assert "groups that you named" in said.out


def test_single_examples_are_not_in_the_accuracy(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    X = 9 * np.eye(8)[[0, 0, 1, 1, 1, 2, 3, 4, 5]] + np.random.default_rng(0).normal(size=(9, 8))
    np.savez("x.npz", features=X.astype(np.float32), labels=np.array(list("aabbbcdef")))
    words = run("anyshot fit x.npz -o made", monkeypatch).out
    assert (
        "100.0% of 5 examples of 2 classes are recognised. 4 classes have a single example: these are not in" in words
    )
    assert "anyshot test made FILE." in words


def test_groups_that_a_column_names_are_left_out_as_a_whole(tmp_path, monkeypatch):
    """The classifier is the one that `groups=` makes in Python; `fit` and `advise` say the same accuracy."""
    monkeypatch.chdir(tmp_path)
    X, labels, groups = scenes()
    np.savez("x.npz", features=X, labels=labels, scene=groups)
    words = run("anyshot fit x.npz --group-column scene -o made", monkeypatch).out
    assert "72 of them are in 18 groups that you named" in words
    accuracy = re.search(r"with whole groups left out it is ([0-9.]+%)", words)[1]
    advice = run("anyshot advise x.npz --group-column scene --heads posterior --shots 1 --episodes 2", monkeypatch).out
    assert f"with whole groups left out it is {accuracy}" in advice
    made, expected = FewShotClassifier.load("made"), FewShotClassifier().fit(X, labels, groups=groups)
    np.testing.assert_allclose(made.threshold_, expected.threshold_, rtol=1e-5)
    assert made.threshold_ != FewShotClassifier().fit(X, labels).threshold_
    said = run("anyshot fit x.npz --group-column scenes -o made", monkeypatch)
    assert (said.code, said.err.count("\n")) == (2, 1)
    assert "there is no column named 'scenes'" in said.err


def test_groups_that_folders_name_are_left_out_as_a_whole(model, monkeypatch):
    """CLASS/SCENE/IMAGE: the second level is the group; an archive of the folder is read alike, and so is a table."""
    files = sorted(Path("photos").rglob("*.png"))
    rows = [("path", "label", "scene")]
    for place, file in enumerate(files):
        scene = file.parent / f"scene {place % 4}"
        scene.mkdir(exist_ok=True)
        file.rename(scene / file.name)
        rows.append((f"photos/{file.parent.name}/{scene.name}/{file.name}", file.parent.name, scene.name))
    with Path("photos.csv").open("w", newline="") as table:
        csv.writer(table).writerows(rows)
    shutil.make_archive("photos", "zip", "photos")
    fitted = {}
    for source in ("photos --group-depth 2", "photos.zip --group-depth 2", "photos.csv --group-column scene"):
        said = run(f"anyshot fit {source} --model run -o again", monkeypatch)
        assert said.code == 0, said.err
        assert re.search(rf"{len(files)} of them are in \d+ groups that you named", said.out)
        fitted[source] = FewShotClassifier.load("again").threshold_
    assert len(set(fitted.values())) == 1
    said = run("anyshot fit photos --group-depth 5 --model run -o again", monkeypatch)
    assert (said.code, said.err.count("\n")) == (2, 1)
    assert "--group-depth is too deep" in said.err


def test_groups_are_kept_beside_embedded_features(model, monkeypatch):
    """Stores and files of features know the groups of their pictures: what is fitted leaves out the same ones."""
    for place, file in enumerate(sorted(Path("photos").rglob("*.png"))):
        scene = file.parent / f"scene {place % 4}"
        scene.mkdir(exist_ok=True)
        file.rename(scene / file.name)
    thresholds = []
    made = {"embed photos --model run": ("e", "e.npz"), "pack folder photos --embed run": ("p",)}
    for verb, outs in made.items():
        for out in outs:
            said = run(f"anyshot {verb} --group-depth 2 -o {out}", monkeypatch)
            assert said.code == 0, said.err
            words = run(f"anyshot fit {out} -o of-features", monkeypatch).out
            assert re.search(r"\d+ of them are in \d+ groups that you named", words), words
            thresholds.append(FewShotClassifier.load("of-features").threshold_)
    np.testing.assert_allclose(thresholds, thresholds[0], rtol=1e-5)
    run("anyshot embed photos --model run -o plain.npz", monkeypatch)
    run("anyshot fit plain.npz -o of-features", monkeypatch)
    assert abs(FewShotClassifier.load("of-features").threshold_ / thresholds[0] - 1) > 1e-3
    assert run("anyshot pack folder photos --group-depth 2 -o pictures", monkeypatch).code == 0
    assert run("anyshot fit pictures --model run -o of-pictures", monkeypatch).code == 0
    in_python = ImageClassifier("run").fit("pictures").classifier
    assert in_python.threshold_ == ImageClassifier.load("of-pictures").classifier.threshold_
    # The same place, other groups: not what is there already.
    assert run("anyshot embed photos --model run --group-depth 2 -o e", monkeypatch).code == 0
    said = run("anyshot embed photos --model run -o e", monkeypatch)
    assert (said.code, said.err.count("\n")) == (2, 1)


def test_python_and_the_command_line_have_one_default_head(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.savez("some.npz", features=np.random.default_rng(0).normal(size=(8, 16)), labels=list("aabbccdd"))
    assert run("anyshot fit some.npz -o made", monkeypatch).code == 0
    assert FewShotClassifier.load("made").head == FewShotClassifier().head == "posterior"


def test_fit_says_what_its_examples_cannot_tell(tmp_path, monkeypatch):
    """One example of each class; none kept; a class whose examples are all near-copies; classes that are all so."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    X, labels = (
        rng.normal(size=(48, 64)) + 2 * np.repeat(rng.normal(size=(4, 64)), 12, axis=0),
        np.repeat(list("abcd"), 12),
    )
    np.savez("one.npz", features=X[::12], labels=labels[::12])
    words = run("anyshot fit one.npz -o made", monkeypatch).out
    assert "How accurate it is cannot be told" in words
    assert "every class has a single example" in words
    assert "never says none of these" in words
    assert FewShotClassifier.load("made").is_known(rng.normal(size=(9, 64))).all()
    np.savez("several.npz", features=X, labels=labels)
    words = run("anyshot fit several.npz --keep 0 -o made", monkeypatch).out
    assert "it keeps none of its examples (--keep)" in words
    assert "never says none of these" in words
    assert FewShotClassifier.load("made").is_known(rng.normal(size=(9, 64))).all()
    for spread, hardly_differ in ((2.0, False), (0.3, True)):  # one scene of each class, it may be
        alike = 2 * np.repeat(rng.normal(size=(4, 64)), 12, axis=0) + spread * rng.normal(size=(48, 64))
        np.savez("alike.npz", features=alike, labels=labels)
        words = run("anyshot fit alike.npz -o made", monkeypatch).out
        assert ("The examples of a class hardly differ." in words) == hardly_differ
    X[:12] = X[0] + 1e-3 * rng.normal(size=(12, 64))
    np.savez("burst.npz", features=X, labels=labels)
    words = run("anyshot fit burst.npz -o made", monkeypatch).out
    assert "All examples of a belong together" in words
    assert "that are much alike (found by similar features)" in words
    assert "moment" not in words
    np.savez("named.npz", features=X, labels=labels, scene=labels)
    words = run("anyshot fit named.npz --group-column scene -o made", monkeypatch).out
    assert "every class has a single group of examples that belong together" in words


def test_embed_refuses_a_file_that_it_cannot_write(model, monkeypatch):
    said = run("anyshot embed photos --model run -o features.csv", monkeypatch)
    assert (said.code, said.err.count("\n")) == (2, 1)
    assert ".npz or .parquet" in said.err
    assert not Path("features.csv").exists()
    said = run("anyshot embed photos --model run -o features.xyz", monkeypatch)
    assert (said.code, "a name without an ending is that of a store: features.xyz is neither" in said.err) == (2, True)
    assert not Path("features.xyz").exists()
    assert run("anyshot embed photos --model run -o features-1.2", monkeypatch).code == 0
    assert run("anyshot embed photos --model run -o features.npz", monkeypatch).code == 0


# ------------------------------------------------------------------------------------------------ writers of a folder


@pytest.fixture
def saved(tmp_path, monkeypatch):
    """Two classifiers of features, `made` and `other`, and examples of two classes."""
    monkeypatch.chdir(tmp_path)
    X = np.random.default_rng(0).normal(size=(8, 4)).astype(np.float32)
    FewShotClassifier("proto").fit(X, ["a", "b"] * 4).save("made")
    FewShotClassifier("proto").fit(X, ["d", "e"] * 4).save("other")
    np.savez("x.npz", features=X, labels=np.array(["a", "c"] * 4))
    return tmp_path


@pytest.mark.parametrize(
    "command",
    [
        "add made x.npz",
        "add made x.npz -o made",
        "add other x.npz -o made",
        "add other x.npz -o link",
        "remove made a -o made",
        "remove other d -o made",
        "merge made other -o made",
        "merge other made -o made",
        "fit x.npz -o made",
    ],
)
def test_a_verb_refuses_to_replace_a_folder_that_another_writes(saved, monkeypatch, command):
    Path("link").symlink_to("made")
    before = Path("made/config.json").read_bytes()
    with locked(Path("made")):
        done = run(f"anyshot {command}", monkeypatch)
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert "another process is writing" in done.err
    assert Path("made/config.json").read_bytes() == before
    assert run(f"anyshot {command}", monkeypatch).code == 0


def test_a_folder_is_locked_from_before_it_is_read_until_it_is_written(saved, monkeypatch):
    """A second writer that comes while the first one reads is refused: else one of them would lose its examples."""
    second = []
    load = FewShotClassifier.load

    def load_slowly(*given):
        monkeypatch.setattr(FewShotClassifier, "load", load)
        second.append(run("anyshot remove made a -o made", monkeypatch))
        return load(*given)

    monkeypatch.setattr(FewShotClassifier, "load", load_slowly)
    assert run("anyshot add made x.npz -o made", monkeypatch).code == 0
    assert (second[0].code, "another process is writing made" in second[0].err) == (2, True)
    assert FewShotClassifier.load("made").classes_.tolist() == ["a", "b", "c"]


def test_a_folder_that_another_makes_meanwhile_is_locked_before_it_is_replaced(saved, monkeypatch):
    load = FewShotClassifier.load
    with contextlib.ExitStack() as stack:

        def load_slowly(*given):
            loaded = load(*given)
            loaded.save("new")
            other = stack.enter_context(ThreadPoolExecutor(1))  # a thread may take its own lock again
            other.submit(stack.enter_context, locked(Path("new"))).result()
            return loaded

        monkeypatch.setattr(FewShotClassifier, "load", load_slowly)
        done = run("anyshot add made x.npz -o new", monkeypatch)
    assert (done.code, "another process is writing new" in done.err) == (2, True)


def test_features_of_another_shape_are_bad_input(saved, monkeypatch):
    np.savez("wide.npz", features=np.ones((4, 99), np.float32), labels=["a", "a", "b", "b"])
    for command, words in (
        ("predict made", "there are no examples to classify"),
        ("predict made wide.npz", "wide.npz has features of 99 numbers, and the classifier learned from 4 each"),
        ("predict made x.npz wide.npz", "not all of one shape"),
        ("test made wide.npz", "wide.npz has features of 99 numbers, and the classifier learned from 4 each"),
        ("add made wide.npz", "wide.npz has features of 99 numbers, and the classifier learned from 4 each"),
        (
            "remove made --examples wide.npz",
            "wide.npz has features of 99 numbers, and the classifier learned from 4 each",
        ),
        ("remove made --examples x.npz wide.npz", "not all of one shape"),
    ):
        done = run(f"anyshot {command}", monkeypatch)
        assert (done.code, words in done.err) == (2, True), done.err


def test_a_failed_verb_leaves_no_folder_behind(saved, monkeypatch):
    assert run("anyshot add made nowhere.npz -o new", monkeypatch).code == 2
    assert not Path("new").exists()


# ------------------------------------------------------------------------------------------------------------- messages


def test_add_says_how_many_classes_are_new(saved, monkeypatch):
    said = run("anyshot add made x.npz", monkeypatch).out
    assert "4 examples of 1 new class added (c); 3 classes now" in said  # the others were learned before
    said = run("anyshot add made x.npz --to wasp", monkeypatch).out
    assert "8 examples of 1 new class added (wasp); 4 classes now" in said
    said = run("anyshot add made x.npz --to wasp", monkeypatch).out
    assert "no new examples, all were learned before; 4 classes now" in said


def test_add_says_how_pictures_without_labels_get_one(model, monkeypatch):
    pictures(model / "more", images=2)
    done = run("anyshot add model more/red", monkeypatch)
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert "If its pictures are all of one class, name it: --to CLASS." in done.err
    assert "--to" not in run("anyshot add model nowhere", monkeypatch).err


def test_csv_and_json_have_the_same_fields(saved, monkeypatch):
    FewShotClassifier("proto", reject=0.6).fit(np.load("x.npz")["features"], ["a", "b"] * 4).save("strict")
    rows = csv.DictReader(io.StringIO(run("anyshot predict strict x.npz --format csv", monkeypatch).out))
    answers = json.loads(run("anyshot predict strict x.npz --format json", monkeypatch).out)
    assert {answer["is_known"] for answer in answers} == {True, False}
    for row, answer in zip(rows, answers, strict=True):
        best = answer.pop("best")
        assert row == {name: "" if value is None else str(value) for name, value in answer.items()}
        assert answer["nearest"] == best[0]["class"]
        known = (best[0]["class"], best[0]["probability"]) if answer["is_known"] else (None, None)
        assert (answer["class"], answer["probability"]) == known
