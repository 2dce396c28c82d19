"""Review: labels are kept, corrected or dropped on a page or in `serve`, and the table of corrections is applied."""

import csv
import io
import json
import shutil
from pathlib import Path

import httpx
import numpy as np
import pytest
from helpers.classifiers import colours, data, pictures, small_model
from helpers.server import BROWSER, QUIET, add, picture, serving
from helpers.shell import run

from anyshot import (
    BadInput,
    FewShotClassifier,
    ImageClassifier,
    advise,
    apply_corrections,
    open_source,
    rank_unlabelled,
)
from anyshot.classify.keys import hash_rows
from anyshot.inspect.corrections import Correction, move_example, read_corrections
from anyshot.inspect.pages import render_advice, render_ranking
from anyshot.inspect.unlabelled import describe_ranking
from anyshot.serve.state import ServedClassifier

needs_browser = pytest.mark.skipif(BROWSER is None, reason="needs chromium")
HEADER = "path,key,label,decision,new_label"


@pytest.fixture
def photos(tmp_path, monkeypatch):
    """Three classes of eight pictures; red/blue.png is a picture of blue, blue/copy.png a copy of blue/0.png."""
    monkeypatch.chdir(tmp_path)
    small_model().save(tmp_path / "run" / "model.safetensors")
    pictures(tmp_path / "photos", images=8)
    pictures(tmp_path / "more", images=1, seed=5)
    shutil.copy("more/blue/0.png", "photos/red/blue.png")
    shutil.copy("photos/blue/0.png", "photos/blue/copy.png")
    Path("table.csv").write_text(f"{HEADER}\nred/blue.png,,red,relabel,blue\nblue/copy.png,,blue,drop,\n")
    return tmp_path


def predictions(folder):
    return ImageClassifier.load(folder).predict_proba(sorted(map(str, Path("photos").rglob("*.png"))))


def test_fit_add_and_remove_end_in_the_same_classifier(photos, monkeypatch):
    clean = "anyshot fit clean --model run -o expected"
    shutil.copytree("photos", "clean")
    Path("clean/blue/copy.png").unlink()
    Path("clean/red/blue.png").rename("clean/blue/9.png")
    assert run(clean, monkeypatch).code == 0
    done = run("anyshot fit photos --model run --corrections table.csv -o fitted", monkeypatch)
    assert "2 corrections of table.csv applied" in done.err
    assert "new class" not in done.err
    assert "there already" not in done.err
    np.testing.assert_allclose(predictions("fitted"), predictions("expected"), rtol=1e-5)
    assert run("anyshot fit photos --model run -o wrong", monkeypatch).code == 0
    assert np.abs(predictions("wrong") - predictions("expected")).max() > 1e-3
    # A copy is learned once, and dropping it leaves the picture itself: only the wrong label is corrected.
    done = run("anyshot remove wrong --corrections table.csv --examples photos -o removed", monkeypatch)
    assert "0 examples dropped, 1 relabelled; 3 classes now, 8 to 9 examples each." in done.out
    np.testing.assert_allclose(predictions("removed"), predictions("expected"), rtol=1e-5)
    Path("one.csv").write_text(f"{HEADER}\nred/blue.png,,red,relabel,blue\n")
    Path("two.csv").write_text(f"{HEADER}\nred/blue.png,,blue,drop,\n")  # a second look, at the corrected labels
    for command in ("fit photos --model run", "remove wrong --examples photos"):
        assert run(f"anyshot {command} --corrections one.csv two.csv -o both", monkeypatch).code == 0
        assert ImageClassifier.load("both").classifier.support_.counts.tolist() == [8, 8, 8]
    assert run("anyshot fit more --model run -o grown", monkeypatch).code == 0
    assert run("anyshot add grown photos --corrections table.csv", monkeypatch).code == 0
    counts = ImageClassifier.load("grown").classifier.support_.counts
    assert counts.tolist() == [9, 9, 9]  # red/blue.png is more/blue/0.png


def test_corrections_with_keys_need_no_paths(photos, monkeypatch):
    key = hash_rows(ImageClassifier("run").features_of("photos/red/blue.png"))[0]
    Path("keys.csv").write_text(
        f"key;label;decision;new_label\n{key:016x};red;relabel;blue\n"
    )  # as a spreadsheet has it
    assert run("anyshot fit photos --model run -o wrong", monkeypatch).code == 0
    assert run("anyshot fit photos --model run --corrections keys.csv -o fitted", monkeypatch).code == 0
    done = run("anyshot remove wrong --corrections keys.csv", monkeypatch)
    assert done.code == 0, done.err
    np.testing.assert_allclose(predictions("wrong"), predictions("fitted"), rtol=1e-5)


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (
            "red/1.png,,red,keep,\nred/nothing.png,,red,drop,",
            "row 3 of t.csv: there is no example red/nothing.png of 'red' to correct: were the corrections made for",
        ),
        ("red/0.png,,blue,drop,", "there is no example red/0.png of 'blue' to correct: its label is 'red'."),
        ("\nred/0.png,cat", "t.csv has no column named decision"),
        ("red/0.png,,red,delete,", "row 2 of t.csv decides 'delete': a decision is keep, relabel or drop"),
        ("red/0.png,,red,relabel,", "row 2 of t.csv must name a path or key, and for relabel a new_label"),
        (",,red,drop,", "row 2 of t.csv must name a path or key"),
        (",zz,red,drop,", "row 2 of t.csv has the key 'zz', not 16 hexadecimal digits"),
        ("red/0.png,,red,drop,\nred/0.png,,red,keep,", "t.csv decides differently on red/0.png of red in two rows"),
    ],
)
def test_bad_rows_are_one_sentence(photos, monkeypatch, rows, words):
    Path("t.csv").write_text("path,label" + rows if rows.startswith("\n") else f"{HEADER}\n{rows}\n")
    done = run("anyshot fit photos --model run --corrections t.csv -o m", monkeypatch)
    assert (done.code, words in done.err) == (2, True), done.err
    assert "applied" not in done.err
    assert done.err.strip().splitlines()[-1].startswith("anyshot: ")
    assert not Path("m").exists()


def test_a_label_that_is_new_is_said_to_be(photos, monkeypatch):
    """A misspelled class would otherwise be learned without a word."""
    Path("typo.csv").write_text("path,label,decision,new_label\nred/0.png,red,relabel,bleu\n")
    assert (
        "1 correction of typo.csv applied, 1 new class (bleu)."
        in run("anyshot fit photos --model run --corrections typo.csv -o typo", monkeypatch).err
    )


def test_a_folder_without_pictures_is_told_before_the_work(photos, monkeypatch):
    done = run("anyshot advise photos --model run --unlabelled run", monkeypatch)
    assert (done.code, "run has no picture that can be read" in done.err) == (2, True)
    assert "comparing" not in done.err


def test_remove_says_which_correction_does_not_fit(photos, monkeypatch):
    assert run("anyshot fit photos --model run -o m", monkeypatch).code == 0
    done = run("anyshot remove m --corrections table.csv", monkeypatch)
    assert (done.code, "--examples FOLDER names the pictures" in done.err) == (2, True)
    again = "anyshot remove m --corrections table.csv --examples photos"
    assert run(again, monkeypatch).code == 0
    done = run(again, monkeypatch)
    assert (done.code, "was it corrected before?" in done.err) == (2, True)
    done = run("anyshot add m photos --to red --corrections table.csv", monkeypatch)
    assert (done.code, "there is nothing to correct" in done.err) == (2, True)


def test_a_source_is_corrected_in_python(photos):
    with open_source(Path("photos")) as source:
        corrected = apply_corrections(source, "table.csv")
    assert len(corrected.items) == len(source.items) - 1
    assert {item.name: item.class_name for item in corrected.items}["red/blue.png"] == "blue"
    with pytest.raises(BadInput, match="drop every example"):
        apply_corrections(source, [Correction(i.name, "", i.class_name, "drop") for i in source.items])


def test_advice_does_not_list_again_what_was_kept(photos, monkeypatch):
    """A suspect, a copy within a class, and a copy under two labels once both labels are kept."""
    shutil.copy("photos/green/0.png", "photos/red/green.png")

    def list_doubtful(corrections=""):
        options = f"--model run --heads cosine-proto --episodes 10 -o advice {corrections}"
        done = run(f"anyshot advise photos {options}", monkeypatch)
        assert done.code == 0, done.err
        advice = json.loads(Path("advice/advice.json").read_text())
        pairs = [{pair["one"]["name"], pair["other"]["name"]} for pair in advice["duplicates"]]
        return {row["name"] for row in (*advice["unlikely"], *advice["mislabelled"])}, pairs, done.err

    suspects, pairs, _ = list_doubtful()
    assert "red/blue.png" in suspects
    assert all(pair in pairs for pair in ({"blue/0.png", "blue/copy.png"}, {"green/0.png", "red/green.png"}))
    key = hash_rows(ImageClassifier("run").features_of("photos/red/green.png"))[0]
    rows = f"red/blue.png,,red,keep,\nblue/copy.png,,blue,keep,\n,{key:016x},red,keep,\n"
    Path("kept.csv").write_text(f"{HEADER}\n{rows}")
    suspects, pairs, said = list_doubtful("--corrections kept.csv")
    assert "0 corrections of kept.csv applied, 3 labels kept." in said
    assert "red/blue.png" not in suspects
    assert {"blue/0.png", "blue/copy.png"} not in pairs
    assert {"green/0.png", "red/green.png"} in pairs  # of two labels only one is kept: the other may still be wrong
    assert "red/blue.png" not in Path("advice/advice.html").read_text()
    Path("more.csv").write_text(f"{HEADER}\ngreen/0.png,,green,keep,\n")
    assert {"green/0.png", "red/green.png"} not in list_doubtful("--corrections kept.csv more.csv")[1]


def test_serve_does_not_list_what_a_table_kept_when_it_was_learned(photos, monkeypatch):
    def list_doubtful(folder):
        rows = ServedClassifier(ImageClassifier.load(folder)).list_doubtful()
        return [row for row in rows if (row["name"], row["suggestion"]) == ("red", "blue")]

    assert run("anyshot fit photos --model run -o plain", monkeypatch).code == 0
    assert list_doubtful("plain")
    Path("kept.csv").write_text(f"{HEADER}\nred/blue.png,,red,keep,\n")
    assert run("anyshot fit photos --model run --corrections kept.csv -o fitted", monkeypatch).code == 0
    assert not list_doubtful("fitted")
    shutil.move("photos/red/blue.png", "more/red/blue.png")
    assert run("anyshot fit photos --model run -o grown", monkeypatch).code == 0
    assert run("anyshot add grown more --corrections kept.csv", monkeypatch).code == 0
    assert not list_doubtful("grown")


@pytest.mark.parametrize("head", ["posterior", "cosine-proto"])
def test_a_moved_example_is_as_if_learned_there(head):
    X, y = data(images=9)
    wrong = y.copy()
    wrong[3] = "class 4"
    moved, expected = FewShotClassifier(head).fit(X, wrong), FewShotClassifier(head).fit(X, y)
    move_example(moved, "class 4", int(hash_rows(X[3:4])[0]), "class 0")
    np.testing.assert_allclose(moved.predict_proba(X), expected.predict_proba(X), rtol=1e-6)
    move_example(moved, "class 0", int(hash_rows(X[3:4])[0]), "a class of a longer name")
    assert "a class of a longer name" in moved.classes_


def evil_advice():
    X, y = data(spread=0.6)
    y = np.char.add(y, ' "<img src=x onerror=alert(1)>')
    y[5], y[100] = y[-1], y[0]
    X, y = np.r_[X, X[[7]]], np.r_[y, y[[60]]]
    return advise(X, y, ["cosine-proto"], episodes=30, names=[f'<b>{i}</b>"&,.jpg' for i in range(len(y))])


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip("playwright.sync_api", reason="the page's tests need playwright")
    with playwright.sync_playwright() as running:
        opened = running.chromium.launch(executable_path=BROWSER, args=QUIET.split())
        yield opened
        opened.close()


def open_file(browser, path, said):
    page = browser.new_page()
    page.set_default_timeout(20_000)
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("dialog", lambda dialog: said.append(dialog.message))
    page.goto(path.as_uri())
    return page


@needs_browser
def test_decisions_on_the_page_become_a_table(browser, tmp_path):
    advice, said = evil_advice(), []
    (tmp_path / "advice.html").write_text(render_advice(advice, {5: b"jpeg"}), encoding="utf-8")
    page = open_file(browser, tmp_path / "advice.html", said)
    spots = page.locator("[data-path]")
    assert not page.locator("#review").is_visible()
    first = spots.filter(has=page.get_by_role("button", name="It is")).first
    first.get_by_role("button", name="It is").click()
    page.locator(f"[data-path='{advice.duplicates[0]['one']['name']}']").last.get_by_role("button", name="Drop").click()
    other = spots.nth(1)
    other.locator("input").fill("a new class")
    other.locator("input").press("Tab")
    keep = spots.nth(2).get_by_role("button", name="Keep")
    keep.click()
    keep.click()  # a second click takes it back
    assert page.locator("#review output").text_content() == "3 decided"
    with page.expect_download() as download:
        page.get_by_role("button", name="Download").click()
    download.value.save_as(tmp_path / "corrections.csv")
    rows = read_corrections(tmp_path / "corrections.csv")
    assert {row.decision for row in rows} == {"relabel", "drop"}
    assert rows[0].new_label == advice.unlikely[0]["looks_like"]
    assert rows[0].path == advice.unlikely[0]["name"]
    assert {row.new_label for row in rows} >= {"a new class"}
    names = {(one["name"], one["label"], one["key"]) for one in (*advice.unlikely, *advice.mislabelled)}
    pair = advice.duplicates[0]
    names |= {(one["name"], one["label"], one["key"]) for one in (pair["one"], pair["other"])}
    assert {(row.path, row.label, row.key) for row in rows} <= names
    assert said == []


@needs_browser
def test_numbers_stay_on_one_line_where_a_table_is_wider_than_the_screen(browser, tmp_path):
    X, y = data(images=12)
    page_file = tmp_path / "advice.html"
    page_file.write_text(render_advice(advise(X, y, ["cosine-proto", "proto"], episodes=20)), encoding="utf-8")
    page = browser.new_page(viewport={"width": 390, "height": 844})
    page.goto(page_file.as_uri())
    row = page.locator("table", has_text="accuracy at shot").locator("tr", has_text="cosine-proto")
    line = row.locator("td").first.evaluate("cell => parseFloat(getComputedStyle(cell).lineHeight)")
    assert row.bounding_box()["height"] < 2 * line
    page.close()


@needs_browser
def test_decisions_outlast_a_reload_of_their_page_alone(browser, tmp_path):
    advice, said = evil_advice(), []
    for name, source in (("one", "photos"), ("other", "more photos")):
        (tmp_path / f"{name}.html").write_text(render_advice(advice, source=source), encoding="utf-8")
    page = open_file(browser, tmp_path / "one.html", said)
    page.locator("[data-path]").first.get_by_role("button", name="Drop").click()
    page.locator("[data-path] input").nth(1).fill("a new class")
    page.locator("[data-path] input").nth(1).press("Tab")
    page.reload()
    assert page.locator("#review output").text_content() == "2 decided"
    assert page.locator("[data-path]").first.get_by_role("button", name="Drop").get_attribute("aria-pressed") == "true"
    assert page.locator("[data-path] input").nth(1).input_value() == "a new class"
    page.goto((tmp_path / "other.html").as_uri())
    assert not page.locator("#review").is_visible()
    page.goto((tmp_path / "one.html").as_uri())
    page.evaluate("window.confirm = () => true")
    page.get_by_role("button", name="Start over").click()
    assert page.locator("#review output").text_content() == "0 decided"
    assert page.locator("[data-path] [aria-pressed=true]").count() == 0
    page.reload()
    assert not page.locator("#review").is_visible()
    assert said == []


@needs_browser
def test_a_page_without_storage_works_until_it_is_closed(browser, tmp_path):
    (tmp_path / "advice.html").write_text(render_advice(evil_advice()), encoding="utf-8")
    said, page = [], browser.new_page()
    page.on("pageerror", lambda error: said.append(str(error)))
    page.add_init_script(
        "Object.defineProperty(window, 'localStorage', { get() { throw new DOMException('', 'SecurityError'); } })"
    )
    page.goto((tmp_path / "advice.html").as_uri())
    page.locator("[data-path]").first.get_by_role("button", name="Keep").click()
    assert page.locator("#review output").text_content() == "1 decided"
    with page.expect_download() as download:
        page.get_by_role("button", name="Download").click()
    download.value.save_as(tmp_path / "corrections.csv")
    assert [row.decision for row in read_corrections(tmp_path / "corrections.csv")] == ["keep"]
    assert said == []


@needs_browser
def test_strangers_are_told_and_left_out_of_the_labels(browser, tmp_path):
    """The ranking says what looks like none of the classes; the page offers to leave such an example out first."""
    X, y = data(images=20, spread=0.3)
    strangers = 5 * np.random.default_rng(3).normal(size=(6, X.shape[1]))
    ranking = rank_unlabelled(X, y, np.r_[X[::10] + 0.01, strangers])
    unknown = {one.example for one in ranking if not one.is_known}
    assert unknown >= set(range(12, 18))
    names = [f"{number}.jpg" for number in range(len(ranking))]
    assert f"{len(unknown)} of these look like none of the classes" in describe_ranking(ranking, names).sentences[1]
    page_file = tmp_path / "label-next.html"
    page_file.write_text(render_ranking(ranking, names, sorted(set(y)), {}, "new"), encoding="utf-8")
    said = []
    page = open_file(browser, page_file, said)
    assert page.get_by_role("heading", name="What to label next").count() == 1
    for number in range(len(ranking)):
        spot = page.locator(f"[data-path='{number}.jpg']")
        assert (spot.get_by_role("button").first.text_content() == "None of these") == (number in unknown)
        spot.get_by_role("button").first.click()
    known = len(ranking) - len(unknown)
    assert page.locator("#review output").text_content() == f"{known} decided, {len(unknown)} skipped"
    with page.expect_download() as download:
        page.get_by_role("button", name="Download").click()
    download.value.save_as(tmp_path / "labels.csv")
    rows = csv.DictReader(io.StringIO((tmp_path / "labels.csv").read_text()))
    assert {row["path"] for row in rows} == {names[one.example] for one in ranking if one.is_known}
    assert said == []


def test_unlabelled_pictures_of_an_archive_are_on_the_page(photos, monkeypatch):
    shutil.make_archive("unlabelled", "zip", "photos")
    options = "--model run --episodes 5 --heads cosine-proto --unlabelled unlabelled.zip -o advice"
    done = run(f"anyshot advise photos {options}", monkeypatch)
    assert done.code == 0, done.err
    assert Path("advice/label-next.html").read_text().count("data:image") == len(list(Path("photos").rglob("*.png")))


@needs_browser
def test_labels_of_the_page_are_a_table_of_pictures(browser, photos, monkeypatch):
    pictures(photos / "new", images=4, seed=9)
    Path("flat").mkdir()
    for path in Path("new").rglob("*.png"):
        shutil.copy(path, f"flat/{path.parent.name} {path.name}")
    command = "anyshot advise photos --model run --episodes 20 --heads cosine-proto --unlabelled flat -o advice"
    done = run(command, monkeypatch)
    assert done.code == 0, done.err
    assert "What to label next" in done.out
    table = list(csv.DictReader(io.StringIO(Path("advice/label-next.csv").read_text())))
    assert [row["rank"] for row in table] == [str(place) for place in range(1, 13)]
    assert {row["path"] for row in table} == {path.name for path in Path("flat").iterdir()}
    said = []
    page = open_file(browser, photos / "advice" / "label-next.html", said)
    assert page.locator("img").count() == 12
    for spot in page.locator("[data-path]").all()[:3]:
        spot.get_by_role("button").first.click()
    with page.expect_download() as download:
        page.get_by_role("button", name="Download").click()
    download.value.save_as(photos / "labels.csv")
    assert run("anyshot fit photos --model run -o m", monkeypatch).code == 0
    done = run("anyshot add m labels.csv --root flat", monkeypatch)
    assert "3 examples of" in done.out
    assert said == []


def test_rankings_cover_what_is_not_labelled():
    """Two classes are labelled in one of their two regions: pictures of the others come first, copies do not follow."""
    rng = np.random.default_rng(0)
    regions = 4 * np.eye(6)[:4]
    X = np.repeat(regions[:2], 6, 0) + 0.3 * rng.normal(size=(12, 6))
    pool = np.repeat(regions, 10, 0) + 0.3 * rng.normal(size=(40, 6))
    pool = np.r_[pool, pool[[25]]]
    y = ["a"] * 6 + ["b"] * 6
    ranking = rank_unlabelled(X, y, pool, classifier=FewShotClassifier("cosine-proto").fit(X, y))
    assert {one.example // 10 for one in ranking[:6]} == {2, 3}
    assert sorted(one.example for one in ranking) == list(range(41))
    names = [f"{number}.jpg" for number in range(41)]
    assert "come first: unsure" in describe_ranking(ranking, names).sentences[0]
    some = describe_ranking(ranking[:3], names).sentences[0]
    assert "come first (3 of 41; when these are labelled, rank anew): unsure" in some
    assert all(one.likeliest in ("a", "b") and 0.5 <= one.probability <= 1 for one in ranking)
    places = [one.example for one in ranking]
    assert places.index(25) < 6
    assert places.index(40) > 20  # of two copies the first is ranked, and the other comes late
    assert {one.example // 10 for one in rank_unlabelled(X, y, pool, most=5)} >= {2, 3}  # a head that is always sure
    with pytest.raises(BadInput, match="same shape: the labelled have 6 numbers each, the unlabelled 5"):
        rank_unlabelled(X, y, pool[:, :5])
    with pytest.raises(BadInput, match="at least 2 classes"):
        rank_unlabelled(X, ["a"] * 12, pool)
    page = render_ranking(ranking, ["<script>alert(1)</script>"] * 41, ["<b>"], {}, "a folder")
    assert page.count("<script") == 1
    assert "All 41 examples: those come first whose labels should help most." in page
    assert "Of 41 examples, labels of these 3 should help" in render_ranking(ranking[:3], names, ["b"], {}, "a")
    assert "--root &#39;a folder&#39;" in page


def test_features_are_given_their_labels_in_their_own_file(tmp_path, monkeypatch):
    """A table of paths cannot name features; examples are called by their names, and nothing is called a folder."""
    monkeypatch.chdir(tmp_path)
    X, y = data(12, classes=2)
    np.savez("texts.npz", features=X, labels=y, names=[f"text {row}" for row in range(len(X))])
    np.savez("new.npz", features=X[:5] + 0.1, names=[f"new text {row}" for row in range(5)])
    said = run("anyshot advise texts.npz --unlabelled new.npz --episodes 20 -o advice", monkeypatch).out
    assert "new text 3" in said
    assert "--holdout FILE" in said
    assert "FOLDER" not in said
    page = Path("advice/label-next.html").read_text()
    assert "write these labels into new.npz, and learn it: <code>anyshot add CLASSIFIER new.npz</code>" in page
    assert "--root" not in page


# ----------------------------------------------------------------------------------------------------------- in serve


@pytest.fixture
def served():
    return ServedClassifier(ImageClassifier(colours, side=16))


@pytest.fixture
def client(served):
    with serving(served) as (url, _), httpx.Client(base_url=url, timeout=60) as http:
        yield http


def teach(client):
    """Three classes of seven pictures, one of which is in the wrong class."""
    for seed in range(7):
        for channel, name in enumerate(("red", "green", "blue")):
            add(client, name, picture(channel, seed))
    return add(client, "red", picture(2, 50)).json()


def test_doubtful_examples_are_corrected_at_once(client, served):
    teach(client)
    first = client.get("/api/review").json()[0]
    assert (first["name"], first["suggestion"]) == ("red", "blue")
    where = {"name": "red", "key": first["key"], "decision": "relabel", "new_name": "blue"}
    about = client.post("/api/corrections", params=where).json()
    assert {one["name"]: one["count"] for one in about["classes"]} == {"blue": 8, "green": 7, "red": 7}
    assert client.get("/api/thumbnails/" + first["key"]).status_code == 200
    assert first["key"] not in [row["key"] for row in client.get("/api/review").json()]
    lines = client.get("/api/corrections").text.splitlines()
    assert lines == [HEADER, f",{first['key']},red,relabel,blue"]
    about = client.post("/api/undo", params={"removal": about["removal"]}).json()
    assert {one["name"]: one["count"] for one in about["classes"]} == {"blue": 7, "green": 7, "red": 8}
    assert client.get("/api/corrections").text.splitlines() == [HEADER]
    client.post("/api/corrections", params=where | {"decision": "keep", "new_name": ""})
    assert first["key"] not in [row["key"] for row in client.get("/api/review").json()]
    client.post("/api/corrections", params=where | {"new_name": "sky"})
    assert "sky" in served.class_names
    for wrong, status in (({"key": "0" * 16}, 404), ({"name": "none"}, 404), ({"decision": "burn"}, 422)):
        assert client.post("/api/corrections", params=where | wrong).status_code == status
    assert client.post("/api/corrections", params=where | {"new_name": "\x00", "name": "sky"}).status_code == 422


def test_corrections_of_serve_are_taken_by_fit(client, served, tmp_path, monkeypatch):
    """The table has keys instead of paths; a copy of a picture in two classes is removed from one of them."""
    teach(client)
    add(client, "green", picture(0, 0))
    review = client.get("/api/review").json()
    rows = {row["name"]: row for row in review if row["suggestion"]}
    row = rows["green"]
    copies = [one for one in review if one["other"] and one["suggestion"]]
    assert copies
    assert all(one["why"] == f"is also in {one['suggestion']}" for one in copies)
    assert {one["why"] for one in review if not one["suggestion"]} == {"is like another picture of its class"}
    client.post(
        "/api/corrections", params={"name": "green", "key": row["key"], "decision": "relabel", "new_name": "red"}
    )
    counts = {one["name"]: one["count"] for one in client.get("/api/classes").json()["classes"]}
    assert counts == {"red": 8, "green": 7, "blue": 7}
    (tmp_path / "t.csv").write_text(client.get("/api/corrections").text)
    assert read_corrections(tmp_path / "t.csv")[0].key == row["key"]


@pytest.mark.parametrize(
    ("channel", "seed", "name", "why"), [(2, 50, "red", "looks like blue"), (0, 0, "green", "is also in red")]
)
def test_what_was_kept_in_serve_is_not_listed_after_a_restart(tmp_path, channel, seed, name, why):
    classifier = ImageClassifier(colours, side=16)
    images = [picture(number % 3, number // 3) for number in range(21)]
    classifier.fit([*images, picture(channel, seed)], [*(["red", "green", "blue"] * 7), name])
    served = ServedClassifier(classifier, tmp_path / "saved")
    doubtful = served.list_doubtful()
    assert why in {row["why"] for row in doubtful}
    numbers = [served.correct(row["name"], int(row["key"], 16), "keep") for row in doubtful]
    assert served.list_doubtful() == []
    served.undo(numbers[0])
    assert served.list_doubtful() != []
    served.correct(doubtful[0]["name"], int(doubtful[0]["key"], 16), "keep")
    served.save()
    again = ServedClassifier(ImageClassifier.load(tmp_path / "saved", colours), tmp_path / "saved")
    assert again.list_doubtful() == []
    again.current.merge(ImageClassifier.load(tmp_path / "saved", colours))
    assert again.list_doubtful() == []
    again.remove("red")
    again.save()
    again = ImageClassifier.load(tmp_path / "saved", colours)
    assert {label for _, label in again.confirmed} <= {"green", "blue"}


@needs_browser
def test_the_page_of_serve_has_a_review(browser, served, client):
    teach(client)
    said = []
    page = browser.new_page()
    page.set_default_timeout(20_000)
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.goto(str(client.base_url))
    page.get_by_role("button", name="Review labels").click()
    page.locator("#doubtful li").first.get_by_role("button", name="It is blue").click()
    page.locator("#notice", has_text="Moved to blue.").wait_for()
    page.locator("#doubtful li", has_text="red: looks like blue").wait_for(state="detached")
    assert served.current.classifier.support_.counts.tolist() == [8, 7, 7]
    page.get_by_role("button", name="Undo").click()
    page.locator("#notice", has_text="It is back").wait_for()
    assert served.current.classifier.support_.counts.tolist() == [7, 7, 8]
    assert said == []
    page.close()
