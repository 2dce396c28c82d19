"""The everyday verbs: what they read, what they say before they work, and what they leave out."""

import json
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
from helpers import image_files as files
from helpers.classifier_folders import version_of
from helpers.classifiers import pictures, small_model
from helpers.shell import list_verbs, run
from PIL import Image
from scipy.stats import binomtest
from sklearn.base import clone
from sklearn.metrics import confusion_matrix

import anyshot
from anyshot.classify.calibration import calibration_error
from anyshot.cli import main as cli
from anyshot.inspect.holdout import measure_holdout
from anyshot.inspect.pages import render_test
from anyshot.progress import progress


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder with photos/{red,green,blue}, a trained model `run`, and the classifier `model` of the photos."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ANYSHOT_CACHE", str(tmp_path / "cache"))
    small_model().save(tmp_path / "run" / "model.safetensors")
    pictures(tmp_path / "photos", images=8)
    assert run("anyshot fit photos --model run -o model", monkeypatch).code == 0
    return tmp_path


def counts(folder="model"):
    classifier = anyshot.ImageClassifier.load(folder)
    return dict(zip(classifier.classes_.tolist(), classifier.classifier.support_.counts.tolist(), strict=True))


def zipped(folder, path, inside=""):
    with zipfile.ZipFile(path, "w") as archive:
        for file in sorted(Path(folder).rglob("*.png")):
            archive.write(file, f"{inside}{file.relative_to(folder)}")


def table(folder, path, header="file;class", with_labels=True):
    rows = [f"{file};{file.parent.name}" if with_labels else str(file) for file in sorted(Path(folder).rglob("*.png"))]
    Path(path).write_text("\n".join([header, *rows]) + "\n")


def test_fit_says_what_it_understood_and_never_learns_from_a_test_folder(here, monkeypatch):
    for split, images in (("train", 4), ("validation", 2), ("test", 3)):
        pictures(here / "set" / split, images=images, seed=images)
    files.write(here / "set" / "train" / "red" / "IMG.CR2", b"?")
    files.write(here / "set" / "train" / "red" / "broken.jpg", b"?")
    done = run("anyshot fit set --model run -o of-train", monkeypatch)
    assert counts("of-train") == {"red": 4, "green": 4, "blue": 4}
    first, *others = done.err.splitlines()
    assert first.startswith("set: train: 3 classes, 13 pictures (4 to 5 each); val: 3 classes, 6 pictures")
    assert "  left out, 1 file: camera raw, which has to be saved as JPEG or TIFF first (train/red/IMG.CR2)." in others
    assert "  learning from train, not from val or test (--split names others)." in others
    assert any("train/red/broken.jpg cannot be read as an image: not an image" in line for line in others)
    assert "are mostly harder" in done.out
    assert "anyshot test of-train FOLDER" in done.out
    assert run("anyshot fit set --model run -o both --split train val", monkeypatch).code == 0
    assert counts("both") == {"red": 6, "green": 6, "blue": 6}
    result = json.loads(run("anyshot test of-train set --json", monkeypatch).out)
    assert (result["examples"], result["learned"]) == (9, 0)
    with pytest.warns(UserWarning, match="left out: train/red/broken.jpg"):
        assert anyshot.ImageClassifier("run").fit("set").classifier.support_.counts.tolist() == [4, 4, 4]


def test_the_depth_of_classes_can_be_chosen(here, monkeypatch):
    Path("photos").rename("colours")
    Path("photos").mkdir()
    Path("colours").rename("photos/colours")
    pictures(here / "photos" / "others", classes=["grey", "pink"], images=2)
    assert run("anyshot fit photos --model run -o leaves", monkeypatch).code == 0
    assert set(counts("leaves")) == {"red", "green", "blue", "grey", "pink"}
    assert run("anyshot fit photos --model run --depth 1 -o kinds", monkeypatch).code == 0
    assert counts("kinds") == {"colours": 24, "others": 4}
    assert json.loads(run("anyshot test kinds photos --depth 1 --json", monkeypatch).out)["examples"] == 28


@pytest.mark.parametrize("source", ["photos.zip", "photos.csv", "store"])
def test_every_source_gives_the_same_classifier(here, source, monkeypatch):
    zipped("photos", "photos.zip", "My photos/")
    table("photos", "photos.csv")
    if source == "store":  # of the size that the pictures have
        size = np.asarray(anyshot.ImageClassifier.load("model").backbone.side).item()
        assert (
            run(f"anyshot pack folder photos -o store --size {size} --split 0 0 1 --no-doctor", monkeypatch).code == 0
        )
    done = run(f"anyshot fit {source} --model run -o again", monkeypatch)
    assert done.code == 0, done.err
    assert counts("again") == counts()
    first, again = (
        [(Path(row["image"]).name, row["class"]) for row in json.loads(done.out)]
        for done in (
            run("anyshot predict model photos --format json", monkeypatch),
            run(f"anyshot predict again {source} --format json", monkeypatch),
        )
    )
    assert first == again
    assert json.loads(run(f"anyshot test again {source} --json", monkeypatch).out)["examples"] == 24


def test_predict_leaves_bad_files_out_and_names_them(here, monkeypatch):
    files.write(here / "new" / "cut.png", (here / "photos" / "red" / "0.png").read_bytes()[:60])
    files.write(here / "new" / "empty.jpg", b"")
    files.write(here / "new" / "._0.png", b"resource fork")
    shutil.copy(here / "photos" / "red" / "0.png", here / "new" / "good one.png")
    out, err, code = run("anyshot predict model new photos/blue/0.png --format csv", monkeypatch)
    assert code == 0
    assert [line.split(",")[:2] for line in out.splitlines()[1:]] == [
        ["new/good one.png", "red"],
        ["photos/blue/0.png", "blue"],
    ]
    assert "new/._0.png" in err
    assert re.search("new/empty.jpg cannot be read as an image: there is nothing in it", err)
    assert "new/cut.png" in err
    none = run("anyshot predict model new/empty.jpg", monkeypatch)
    assert (none.code, "none of the pictures could be read" in none.err) == (2, True)


def test_top_is_columns_of_a_csv_and_answers_go_to_a_file(here, monkeypatch):
    lines = run("anyshot predict model photos/red --format csv --top 2", monkeypatch).out.splitlines()
    assert lines[0] == "image,class,probability,is_known,nearest,class_2,probability_2"
    assert all(len(line.split(",")) == 7 for line in lines)
    said = run("anyshot predict model photos --format csv -o answers.csv", monkeypatch).out
    assert said == "answers.csv: 24 answers.\n"
    assert len(Path("answers.csv").read_text().splitlines()) == 25
    table("photos", "paths.csv", "filename", with_labels=False)
    assert len(run("anyshot predict model paths.csv --format csv", monkeypatch).out.splitlines()) == 25


@pytest.mark.parametrize("ending", ["csv", "json"])
def test_the_ending_of_the_file_chooses_the_format_of_answers(ending, here, monkeypatch):
    expected = run(f"anyshot predict model photos --format {ending}", monkeypatch).out
    run(f"anyshot predict model photos -o answers.{ending}", monkeypatch)
    assert Path(f"answers.{ending}").read_text() == expected
    run(f"anyshot predict model photos --format table -o answers.{ending}", monkeypatch)
    assert "─" in Path(f"answers.{ending}").read_text()


def test_none_of_these_has_no_probability(here, monkeypatch):
    """What the classes have among each other would be read as the probability of none of them."""
    run("anyshot fit photos --model run --reject 0.7 -o strict", monkeypatch)
    classifier, paths = anyshot.ImageClassifier.load("strict"), sorted(map(str, Path("photos").rglob("*.png")))
    odd = paths[int(np.argmin(classifier.is_known(paths)))]
    nearest = classifier.predict([odd])[0]
    assert not classifier.is_known([odd])[0]
    shown = run(f"anyshot predict strict {odd}", monkeypatch).out
    assert re.search(rf"none of these +│ - +│ nearest: {nearest}", shown)
    assert "%" not in shown
    row = run(f"anyshot predict strict {odd} --format csv", monkeypatch).out.splitlines()[1]
    assert row == f"{odd},,,False,{nearest}"
    (answer,) = json.loads(run(f"anyshot predict strict {odd} --format json", monkeypatch).out)
    assert (answer["class"], answer["probability"], answer["nearest"]) == (None, None, nearest)
    assert answer["best"][0]["class"] == nearest


def test_equal_rows_are_counted_by_vector_and_label(tmp_path, monkeypatch):
    """As many are said to be there already as the classifier lacks; a vector with three labels is one example."""
    monkeypatch.chdir(tmp_path)
    rows, labels = [0, 1, 2, 3, 0, 0, 0, 0, 0, 1], list("abcaabcbca")
    np.savez("x.npz", features=np.eye(4, dtype=np.float32)[rows], labels=np.array(labels))
    done = run("anyshot fit x.npz -o made", monkeypatch)
    assert (
        "2 examples have two labels or more, of which at most one is right: row 5 is row 0, row 9 is row 1." in done.err
    )
    assert "3 examples are there already under the same label, and not counted again: row 4 is row 0, row 7" in done.err
    assert anyshot.FewShotClassifier.load("made").support_.counts.sum() == len(rows) - 3
    done = run("anyshot add made x.npz", monkeypatch)
    assert "two labels or" not in done.err
    assert "10 examples are there already" in done.err


def test_pictures_too_small_to_show_anything_are_named(here, monkeypatch):
    for side in (1, 7, 8):
        Image.new("RGB", (40, side), "red").save(f"photos/red/side-{side}.png")
    err = run("anyshot fit photos --model run -o small", monkeypatch).err
    small = "2 pictures are less than 8 pixels wide or high, which shows nothing: red/side-1.png, red/side-7.png."
    assert small in err


def test_pictures_that_are_there_twice_are_said(here, monkeypatch):
    shutil.copy("photos/red/0.png", "photos/red/again.png")
    shutil.copy("photos/red/1.png", "photos/blue/wrong.png")
    err = run("anyshot fit photos --model run -o twice", monkeypatch).err
    assert "1 picture has two labels, one of which is wrong: red/1.png is blue/wrong.png." in err
    assert "1 picture is there already under the same label, and not counted again: red/again.png is red/0.png." in err
    assert "These are exact copies; `anyshot advise` also finds edited ones." in err
    err = run("anyshot add model photos", monkeypatch).err
    assert "1 picture has two labels, one of which is wrong: blue/wrong.png is one of red before." in err
    assert (
        "25 pictures are there already under the same label, and not counted again: blue/0.png is one of blue before, "
        in err
    )
    assert " and 22 more." in err
    pictures(here / "other", images=3, seed=5)
    assert "already" not in run("anyshot add model other", monkeypatch).err


def test_fit_says_what_it_replaces(here, monkeypatch):
    out = run("anyshot fit photos --model run -o model", monkeypatch).out
    assert "It replaces the one that was there (3 classes, 24 examples)." in out
    assert "replaces" not in run("anyshot fit photos --model run -o fresh", monkeypatch).out
    assert "It replaces the one that was there (3 classes" in run("anyshot merge model fresh -o fresh", monkeypatch).out
    (version_of(Path("model")) / "classifier.safetensors").write_bytes(b"damaged")
    assert "could not be read" in run("anyshot fit photos --model run -o model", monkeypatch).out


def test_one_is_no_plural(here, monkeypatch):
    pictures(here / "single", images=1)
    assert "3 classes, 1 picture each." in run("anyshot fit single --model run -o single-model", monkeypatch).out
    out = run("anyshot add single-model photos/red/3.png --to red", monkeypatch).out
    assert "1 example of 1 class added; 3 classes now, 1 to 2 examples each." in out
    for name in ("green", "blue"):
        shutil.rmtree(here / "single" / name)
    pictures(here / "strange", images=1, seed=1)
    (here / "strange" / "red").rename(here / "single" / "mauve")
    said = run("anyshot test single-model single", monkeypatch).out
    assert "of 1 example of 1 class. Mean over the classes" in said
    assert "1 example of other classes is not counted" in said
    assert "1 of the examples is among those that the classifier learned from" in said
    run("anyshot predict model photos/red/0.png --format csv -o one.csv", monkeypatch)
    assert run("anyshot predict model photos/red/0.png -o one.txt", monkeypatch).out == "one.txt: 1 answer.\n"


def test_single_examples_are_removed_by_their_files(here, monkeypatch):
    out = run("anyshot remove model --examples photos/red/0.png photos/blue/3.png -o fewer", monkeypatch).out
    assert "fewer: 2 examples of blue, red removed; 3 classes now, 7 to 8 examples each." in out
    done = run("anyshot remove model --examples photos", monkeypatch)
    assert (done.code, "the last one cannot be removed" in done.err) == (2, True)
    every = " ".join(map(str, sorted(Path("photos/red").iterdir())))
    out = run(f"anyshot remove model --examples {every} photos/blue/3.png -o two", monkeypatch).out
    assert "two: 9 examples of blue, red removed; red has none left and is gone; 2 classes now" in out
    gone = ("photos/red/0.png", "photos/blue/3.png")
    others = [path for path in sorted(Path("photos").rglob("*.png")) if str(path) not in gone]
    without = anyshot.ImageClassifier("run").fit(map(str, others), [path.parent.name for path in others])
    asked = "photos/green/1.png"
    fewer = anyshot.ImageClassifier.load("fewer")
    np.testing.assert_allclose(fewer.predict_proba(asked), without.predict_proba(asked), rtol=1e-6)
    assert fewer.thumbnails.keys() == without.thumbnails.keys()
    again = run("anyshot remove fewer --examples photos/red/0.png", monkeypatch)
    assert (again.code, "photos/red/0.png is not among the examples." in again.err) == (2, True)
    assert run("anyshot add model photos/red/0.png --to blue", monkeypatch).code == 0
    shutil.copy("photos/red/0.png", "a.png")
    two = run("anyshot remove model --examples a.png", monkeypatch)
    assert "a.png is an example of blue and of red: say which, --of." in two.err
    assert run("anyshot remove model --examples a.png --of blue", monkeypatch).code == 0
    assert counts() == {"red": 8, "green": 8, "blue": 8}
    shutil.copy("photos/red/0.png", "photos/blue/0.png")
    assert run("anyshot add model photos/blue/0.png --to blue", monkeypatch).code == 0
    assert run("anyshot remove model --examples photos/blue/0.png", monkeypatch).code == 0  # its folder says which
    assert counts() == {"red": 8, "green": 8, "blue": 8}
    assert "name classes to remove, or examples" in run("anyshot remove model", monkeypatch).err


def test_examples_under_two_labels_are_said_after_a_merge_and_after_add(here, monkeypatch):
    """A label that was rejected in one classifier comes back with the other."""
    run("anyshot remove model --examples photos/red/0.png -o reviewed", monkeypatch)
    run("anyshot add reviewed photos/red/0.png --to blue", monkeypatch)
    said = run("anyshot merge model reviewed -o both", monkeypatch)
    sentence = "1 example has two labels now, one of which is wrong: blue and red (1). To mend it: anyshot remove"
    assert f"{sentence} both --examples FILE --of CLASS, or anyshot remove both --corrections TABLE." in said.err
    assert f"{sentence} model --ex" in run("anyshot add model photos/red/0.png --to blue", monkeypatch).err
    mended = run("anyshot remove both --examples photos/red/0.png --of red", monkeypatch)
    assert "1 example of red removed" in mended.out
    assert "two labels" not in mended.err


def test_changed_classifiers_say_how_accurate_they_are(here, monkeypatch):
    out = run("anyshot merge model model -o all", monkeypatch).out
    accuracy = anyshot.ImageClassifier.load("all").classifier.coverage_.accuracy_of_all
    assert f"Left out with their groups, {accuracy:.1%} of the examples that it keeps are recognised." in out


def test_classes_are_added_removed_and_merged(here, monkeypatch):
    pictures(here / "more", images=3, seed=5)
    (here / "more" / "red").rename(here / "more" / "ruby")
    out = run("anyshot add model more", monkeypatch).out
    assert "9 examples of 3 classes added, of which 1 class is new (ruby); 4 classes now" in out
    assert counts() == {"red": 8, "green": 11, "blue": 11, "ruby": 3}
    assert run("anyshot add model more/ruby more/green/0.png --to odd -o other", monkeypatch).code == 0
    assert counts("other")["odd"] == 4
    assert "odd" not in counts()
    assert "2 classes removed; 2 classes now" in run("anyshot remove model ruby green", monkeypatch).out
    assert counts() == {"red": 8, "blue": 11}
    assert "did you mean 'blue'" in run("anyshot remove model bleu", monkeypatch).err
    pictures(here / "elsewhere", images=2, seed=9)
    assert run("anyshot fit elsewhere --model run -o new", monkeypatch).code == 0
    out = run("anyshot merge model new -o all", monkeypatch).out
    assert "2 classifiers merged (2 classes in more than one); 3 classes now" in out
    assert counts("all") == {"red": 10, "green": 2, "blue": 13}
    whole = anyshot.ImageClassifier("run").fit("photos").remove(["green"])
    whole.partial_fit(sorted(map(str, Path("more/blue").glob("*"))), ["blue"] * 3).partial_fit("elsewhere")
    features = whole.features_of(sorted(map(str, Path("more").rglob("*.png"))))
    merged = anyshot.ImageClassifier.load("all")
    assert np.allclose(merged.classifier.predict_proba(features), whole.classifier.predict_proba(features), atol=1e-6)
    assert "at least two" in run("anyshot merge model -o x", monkeypatch).err


def test_what_was_made_with_another_backbone_does_not_merge(here, monkeypatch):
    assert run("anyshot fit photos -o other --model efficientnet-lite0:32", monkeypatch).code == 0
    done = run("anyshot merge model other -o x", monkeypatch)
    assert (done.code, "same backbone" in done.err) == (2, True)


def test_a_single_class_is_said_to_have_nothing_beside_it(here, monkeypatch):
    for name in ("red", "green"):
        shutil.rmtree(here / "photos" / name)
    out = run("anyshot fit photos --model run -o lonely", monkeypatch).out
    assert "1 class, 8 pictures each.\nIt has one class, and nothing to tell it from: add others (anyshot add)." in out


def test_embed_says_what_it_leaves_out(here, monkeypatch):
    shutil.copy("photos/red/0.png", "photos/stray.png")
    done = run("anyshot embed photos --model run -o x.npz", monkeypatch)
    assert "photos: 3 classes, 24 pictures (8 each)." in done.err
    assert "left out, 1 file: in no class folder (stray.png)" in done.err


def test_features_of_another_size_are_told_with_both_sizes(tmp_path, monkeypatch):
    """Before anything is computed or written, in the words of the user's files."""
    monkeypatch.chdir(tmp_path)
    labels = np.repeat(list("abc"), 6)
    for name, size in (("x", 12), ("short", 5)):
        np.savez(f"{name}.npz", features=np.random.default_rng(0).normal(size=(18, size)), labels=labels)
    assert run("anyshot fit x.npz -o made", monkeypatch).code == 0
    why = "short.npz has features of 5 numbers, and the classifier learned from 12 each."
    for words in ("predict made short.npz", "test made short.npz", "add made short.npz -o more"):
        done = run(f"anyshot {words}", monkeypatch)
        assert (done.code, why in done.err) == (2, True), done.err
    assert why in run("anyshot remove made --examples short.npz", monkeypatch).err
    held_out = run("anyshot advise x.npz --holdout short.npz", monkeypatch).err
    assert "the examples held out have 5 numbers each, those at hand 12." in held_out
    ranked = run("anyshot advise x.npz --unlabelled short.npz", monkeypatch).err
    assert "the labelled have 12 numbers each, the unlabelled 5." in ranked
    assert "comparing heads" not in ranked
    assert sorted(path.name for path in Path().iterdir()) == ["made", "short.npz", "x.npz"]


def test_own_embeddings_go_through_every_verb(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(4, 12)) * 3
    labels = np.repeat(list("abcd"), 10)
    features = (centres.repeat(10, 0) + rng.normal(size=(40, 12))).astype(np.float32)
    split = np.tile(["train"] * 7 + ["test"] * 3, 4)
    np.savez("own.npz", vectors=features, label=labels, split=split)
    np.save("vectors.npy", features)
    Path("labels.txt").write_text("\n".join(labels))
    done = run("anyshot fit own.npz -o own", monkeypatch)
    assert "learning from train, not from test" in done.err
    assert anyshot.FewShotClassifier.load("own").support_.counts.tolist() == [7] * 4
    result = json.loads(run("anyshot test own own.npz --json", monkeypatch).out)
    assert (result["examples"], result["learned"]) == (12, 0)
    assert json.loads(run("anyshot test own own.npz --split train --json", monkeypatch).out)["learned"] == 28
    assert run("anyshot fit vectors.npy --labels labels.txt -o second", monkeypatch).code == 0
    assert anyshot.FewShotClassifier.load("second").support_.counts.tolist() == [10] * 4
    answers = json.loads(run("anyshot predict second vectors.npy --format json", monkeypatch).out)
    assert np.mean([row["class"] == label for row, label in zip(answers, labels, strict=True)]) > 0.9
    assert {len(row["best"]) for row in answers} == {3}  # of four classes
    shown = run("anyshot predict second vectors.npy", monkeypatch).out
    (first,) = (line for line in shown.splitlines() if "vectors.npy[0]" in line)
    assert first.count("%") == 3  # the likeliest, then two
    assert run("anyshot add second own.npz --split test", monkeypatch).code == 0
    assert anyshot.FewShotClassifier.load("second").support_.counts.tolist() == [10] * 4, "they are there already"
    assert run("anyshot add second vectors.npy --to e", monkeypatch).code == 0
    assert run("anyshot remove second e", monkeypatch).code == 0
    assert run("anyshot merge second own -o both", monkeypatch).code == 0
    assert anyshot.FewShotClassifier.load("both").support_.counts.tolist() == [10] * 4, "all are shared"
    np.savez("odd.npz", mine=features, what=labels)
    assert run("anyshot fit odd.npz --feature-column mine --label-column what -o third", monkeypatch).code == 0


def test_a_test_is_a_page_with_the_mistakes(here, monkeypatch):
    pictures(here / "new", images=3, seed=3)
    shutil.copy(here / "new" / "red" / "0.png", here / "new" / "blue" / "really <red>.png")
    out, err, code = run("anyshot test model new -o result", monkeypatch)
    assert code == 0, err
    assert re.search("blue/really <red>.png +blue +red", out)
    page = Path("result/test.html").read_text()
    assert "really &lt;red&gt;.png" in page
    assert "data:image/jpeg;base64," in page
    assert "http" not in page
    numbers = json.loads(Path("result/test.json").read_text())
    assert numbers["confused"][0] == ["blue", "red", 1]
    assert numbers["mistakes"][0]["name"] == "blue/really <red>.png"
    assert "among those that the classifier learned from" in run("anyshot test model photos", monkeypatch).out


def test_a_test_counts_what_others_count():
    """Against scikit-learn's confusions and SciPy's exact interval; text, page and numbers say the same."""
    rng = np.random.default_rng(0)
    names = np.array(["ash", "box", "elm", "fir", "yew"])
    centres = 2 * rng.normal(size=(5, 8))
    learned, later = np.repeat(np.arange(4), 12), np.append(np.repeat(np.arange(5), 30)[30:], 1)  # no ash, a stranger
    classifier = anyshot.FewShotClassifier("posterior", reject=0.4)
    learned_from = centres[learned] + 1.5 * rng.normal(size=(48, 8))
    classifier.fit(learned_from, names[learned])
    asked = centres[later] + 1.5 * rng.normal(size=(len(later), 8))
    labels = names[later].tolist()
    result = measure_holdout(classifier, asked, labels)
    mine, answers, is_known = later < 4, classifier.predict(asked), classifier.is_known(asked)
    table = confusion_matrix(names[later][mine], answers[mine], labels=names[:4])
    right, every = int(np.trace(table)), int(mine.sum())
    exact = binomtest(right, every).proportion_ci(method="exact")
    assert 0 < right < every == result.examples == 91
    assert result.accuracy == pytest.approx((right / every, exact.low, exact.high))
    for place, one in enumerate(result.classes, 1):
        of_class = binomtest(int(table[place, place]), int(table[place].sum())).proportion_ci(method="exact")
        assert (one.name, one.examples, one.right) == (names[place], table[place].sum(), table[place, place])
        assert one.recall == pytest.approx((one.right / one.examples, of_class.low, of_class.high))
        assert dict(one.taken_for) == {names[other]: n for other, n in enumerate(table[place]) if n and other != place}
    pairs = {(names[i], names[j]): n for (i, j), n in np.ndenumerate(table) if n and i != j}
    assert {(label, answer): times for label, answer, times in result.confused} == pairs
    assert [times for _, _, times in result.confused] == sorted(pairs.values(), reverse=True)
    assert (result.strangers, result.absent, result.learned) == (30, ["ash"], 0)
    assert result.strangers_rejected == pytest.approx((~is_known[~mine]).mean())
    assert result.accepted == pytest.approx(is_known[mine].mean())
    assert result.accepted_right == pytest.approx(is_known[mine & (answers == names[later])].mean())
    assert result.accepted_wrong == pytest.approx(is_known[mine & (answers != names[later])].mean())
    named = is_known[mine] & (answers == names[later])[mine]
    assert result.right_and_accepted == pytest.approx(named.mean())
    assert f"\n  Right and accepted: {named.mean():.1%}. " in result.to_text()
    known_classes = np.searchsorted(names[:4], names[later][mine])
    error = calibration_error(classifier.predict_proba(asked[mine]), known_classes)
    assert result.calibration_error == pytest.approx(error)
    chance = result.calibration_error_by_chance
    for form in (result.to_text(), render_test(result, {}, "a test")):
        for part in (
            f"Accuracy {right / every:.1%} ({exact.low:.1%} to {exact.high:.1%}): {right} of 91 examples of 3 classes.",
            f"Expected calibration error {error:.1%} (with this many examples {chance:.1%} would be chance alone)",
            f"{result.accepted:.1%} are taken for one of the classes at all",
            f"30 examples of other classes are not counted; {result.strangers_rejected:.1%} of these are called none",
            "Not tested, for want of examples: ash.",
            f"Most often mistaken: {' for '.join(result.confused[0][:2])} ({result.confused[0][2]})",
            *(f"{one.recall[1]:.1%} to {one.recall[2]:.1%}" for one in result.classes),
        ):
            assert part in form
    assert result.to_dict()["classes"][0]["recall"] == result.classes[0].recall
    assert result.accepted_right < 0.9
    assert "fit with a smaller --reject" in result.acceptance  # what to do about it
    accepting = measure_holdout(
        clone(classifier).set_params(reject=0.0).fit(learned_from, names[learned]), asked, labels
    )
    assert accepting.acceptance == "100.0% are taken for one of the classes at all."


def test_evaluate_measures_the_shots_that_fit(here, monkeypatch):
    rest = "--model run --way 3 --episodes 20"
    done = run(f"anyshot evaluate photos {rest} --queries 3", monkeypatch)
    assert done.code == 0, done.err
    assert "The smallest class has 8 examples: measuring 1, 2, 4 shots." in done.err
    fewer = run(f"anyshot evaluate photos {rest}", monkeypatch)
    assert "measuring 1, 2, 4 shots and 4 instead of 16 queries." in fewer.err
    refused = run(f"anyshot evaluate photos {rest} --shots 32", monkeypatch)
    assert (refused.code, "choose shots and queries that add up to 8; give it 48" in refused.err) == (2, True)
    one = run(f"anyshot evaluate photos {rest} --queries 7", monkeypatch)
    assert "measuring 1 shot." in one.err
    least = run(f"anyshot evaluate photos {rest} --queries 1 --shots 1", monkeypatch)
    assert "3-way, 1 query per class" in least.out


def test_evaluate_leaves_single_examples_out(tmp_path, monkeypatch):
    """The table is the one of the other classes alone; where too few classes remain, it says what to do."""
    monkeypatch.chdir(tmp_path)
    X, y = (
        np.random.default_rng(0).normal(size=(61, 8)).astype(np.float32),
        np.array([*(list("abcdef") * 10), "single"]),
    )
    np.savez("one.npz", features=X, labels=y)
    np.savez("none.npz", features=X[:60], labels=y[:60])
    done = run("anyshot evaluate one.npz --episodes 20", monkeypatch)
    assert "1 class with a single example left out (single): an episode needs one example to learn from" in done.err
    assert done.out == run("anyshot evaluate none.npz --episodes 20", monkeypatch).out
    np.savez("few.npz", features=X[[0, 6, 60]], labels=y[[0, 6, 60]])
    err = run("anyshot evaluate few.npz --way 2 --episodes 20", monkeypatch).err
    why = "class 'single' has 1 example, too few for 1 shot and 1 query"
    assert f"{why}: give it 2 examples at least, or leave the class out." in err


def test_evaluate_says_what_takes_long_before_it_begins(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    X, y = np.random.default_rng(0).normal(size=(60, 8)).astype(np.float32), np.array(list("abcdef") * 10)
    np.savez("x.npz", features=X, labels=y)
    slow = "posterior: fitted anew in each of 20 episodes"
    assert slow in run("anyshot evaluate x.npz --heads proto posterior --episodes 20", monkeypatch).err
    assert "fitted anew" not in run("anyshot evaluate x.npz --heads proto --episodes 20", monkeypatch).err


def test_rows_of_features_are_called_examples(tmp_path, monkeypatch):
    """In the table for people; programs find them under the documented name."""
    monkeypatch.chdir(tmp_path)
    np.savez("x.npz", features=np.random.default_rng(0).normal(size=(12, 8)), labels=np.array(list("ab") * 6))
    assert run("anyshot fit x.npz -o made", monkeypatch).code == 0
    head = run("anyshot predict made x.npz", monkeypatch).out.splitlines()[1]
    assert ("example" in head, "image" in head) == (True, False)
    assert run("anyshot predict made x.npz --format csv", monkeypatch).out.startswith("image,class,")


def test_a_table_of_vectors_is_told_where_these_belong(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    columns = ["id", "label", *(f"f{i}" for i in range(64))]
    Path("x.csv").write_text("\n".join([",".join(columns), *[",".join(["0"] * 66)] * 2]))
    err = run("anyshot fit x.csv -o made", monkeypatch).err
    assert "f17, ...: name it with --path-column. Such a table names pictures; vectors belong in a .npz or" in err


@pytest.mark.parametrize("verb", ["serve nowhere", "export nowhere -o x.onnx"])
def test_a_missing_folder_may_have_been_a_classifier(verb, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert "there is neither a classifier nor a trained model nowhere" in run(f"anyshot {verb}", monkeypatch).err


def test_evaluate_says_that_examples_are_copies(tmp_path, monkeypatch):
    """Pure noise, each vector three times: a query that is equal to a support example is recognised."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(60, 1200)).astype(np.float32), np.arange(60) % 6
    np.savez("noise.npz", features=X, labels=y)
    np.savez("copies.npz", features=np.r_[X, X, X], labels=np.r_[y, y, y])
    rest = "--shots 5 --queries 5 --episodes 50"
    assert "copies" not in run(f"anyshot evaluate noise.npz {rest}", monkeypatch).out
    out = run(f"anyshot evaluate copies.npz {rest} -o result", monkeypatch).out
    assert "120 of 180 examples are copies of others, or nearly so: the accuracies are optimistic" in out
    for path in ("result", "result/table.csv", "result/recalls.npz"):  # a report takes what an evaluation wrote
        assert run(f"anyshot report {path} -o page.html", monkeypatch).out == "open page.html\n"
    done = run("anyshot report noise.npz", monkeypatch)
    assert (done.code, "noise.npz is no run: name the folder of a study" in done.err) == (2, True)


def test_a_table_that_names_a_picture_twice_is_reported(here, monkeypatch):
    rows = [f"photos/{name}/{place}.png,{name}" for name in ("red", "green", "blue") for place in range(4)]
    Path("t.csv").write_text("\n".join(["path,label", *rows, rows[0], "photos/red/1.png,blue"]) + "\n")
    err = run("anyshot fit t.csv --model run -o twice", monkeypatch).err
    assert "the table names 2 pictures more than once" in err
    assert "1 picture of them under different labels (photos/red/1.png: blue and red)" in err


def test_the_time_left_is_not_guessed_from_nothing(capsys):
    with progress("working", 1.0, every=0.0) as advance:
        advance(0.0001)
        advance(0.5)
    first, second, _ = capsys.readouterr().err.splitlines()
    assert (first, "s left" in second) == ("working:   0%", True)


def test_onnx_says_what_else_is_needed(here, monkeypatch):
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    for head in ("cosine-proto", "posterior"):
        assert run(f"anyshot fit photos --model run --head {head} -o {head}", monkeypatch).code == 0
        assert run(f"anyshot export {head} -o {head}.onnx", monkeypatch).code == 0
        classifier = anyshot.ImageClassifier.load(head)
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        session = onnxruntime.InferenceSession(f"{head}.onnx", options)
        words = session.get_modelmeta().custom_metadata_map
        assert json.loads(words["anyshot.classes"]) == ["blue", "green", "red"]
        side = int(words["anyshot.side"])
        assert f"{side}x{side}" in words["anyshot.pictures"]
        names = sorted(map(str, Path("photos").rglob("*.png")))
        pixels = np.stack([classifier.read(name) for name in names])
        pixels[::2] = np.random.default_rng(0).integers(0, 256, pixels[::2].shape)  # strangers
        inputs = {"images": pixels.transpose(0, 3, 1, 2).astype(np.float32)}
        outputs = dict(zip([one.name for one in session.get_outputs()], session.run(None, inputs), strict=True))
        evidence = outputs.get("evidence", outputs["logits"].max(1))
        is_known = classifier.classifier.is_known(classifier.features(pixels))
        assert 0 < is_known.sum() < len(names)
        assert ((evidence >= float(words["anyshot.threshold"])) == is_known).all()


def test_the_version(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["anyshot", "--version"])
    cli.main()
    assert capsys.readouterr().out == f"anyshot {anyshot.__version__}\n"


def verbs():
    for name, verb in list_verbs().items():
        yield name, {one.name.removeprefix("--").lower(): one for one in verb.assemble_argument_collection()}


def test_o_is_out_in_every_verb_that_writes():
    taken = dict(verbs())
    assert all("-o" in names["out"].names for names in taken.values() if "out" in names)
    assert {name[-1] for name, names in taken.items() if "out" not in names} == {"audit", "serve"}


def test_every_verb_that_runs_a_network_has_a_device(here, monkeypatch):
    having = {name[-1] for name, names in verbs() if "device" in names}
    assert having == {
        "study", "pack", "evaluate", "consistency", "terms",
        "fit", "predict", "test", "add", "remove", "advise", "serve",
    }  # fmt: skip
    for command in ("fit photos -o x", "predict model photos", "evaluate photos", "study quick", "serve model"):
        done = run(f"anyshot {command} --device cuda:77", monkeypatch)
        assert (done.code, "there is no device 'cuda:77' here: torch has cpu" in done.err) == (2, True), command
    assert run("anyshot predict model photos/red --device cpu", monkeypatch).code == 0


@pytest.mark.parametrize(
    ("verb", "words"),
    [
        ("", "each class (the shots)"),
        ("fit", "a head tells classes apart"),
        ("fit", "Features are the numbers that a network"),
        ("evaluate", "A head is a way to tell classes apart"),
        ("evaluate", "episodes: small tasks"),
    ],
)
def test_terms_are_explained_where_help_uses_them(verb, words, monkeypatch):
    shown = run(f"anyshot {verb} --help".replace("  ", " "), monkeypatch).out
    assert words in " ".join(shown.replace("│", " ").split())


def test_the_help_of_pack_has_two_groups():
    done = subprocess.run([sys.executable, "-m", "anyshot", "pack", "--help"], capture_output=True, text=True)
    general, _, kinds = done.stdout.partition("─ Source ─")
    assert "--out" in general
    assert "--path-column" not in general
    assert "--path-column" in kinds
    assert "--train-ids" in kinds
