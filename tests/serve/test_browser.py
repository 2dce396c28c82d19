"""The page of `serve` in a real browser: it asks first, shows why, takes pictures however they come, and undoes."""

import base64
import copy
import functools

import numpy as np
import pytest
from helpers.classifiers import colours
from helpers.server import BROWSER, QUIET, picture, serving

from anyshot import ImageClassifier
from anyshot.serve.state import ServedClassifier

playwright = pytest.importorskip("playwright.sync_api", reason="the page's tests need playwright")
pytestmark = pytest.mark.skipif(BROWSER is None, reason="the page's tests need chromium (apt-get install chromium)")
WIDE, PHONE = {"width": 1280, "height": 900}, {"width": 390, "height": 844}
NAMES = ("red", "green", "blue")


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as running:
        opened = running.chromium.launch(executable_path=BROWSER, args=QUIET.split())
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """One server for all tests; each puts a classifier of its own on the served."""
    with serving(
        ServedClassifier(ImageClassifier(colours, side=16), tmp_path_factory.mktemp("served") / "saved")
    ) as running:
        yield running


@pytest.fixture
def visit(browser, server):
    """Open the page with this classifier; nothing may be asked of elsewhere, and the console must stay empty."""
    contexts, said = [], []

    def open_page(classifier, viewport=WIDE, scheme="light"):
        server[1].current = classifier
        context = browser.new_context(viewport=viewport, color_scheme=scheme, reduced_motion="reduce")
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(20_000)
        page.on("console", lambda message: "status of 4" in message.text or said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("request", lambda one: one.url.startswith((server[0], "blob:")) or said.append(one.url))
        page.goto(server[0])
        page.locator("#about", has_text="class").wait_for()
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert said == []


@functools.cache  # the server changes copies
def classifier(names=NAMES, images=3, **arguments):
    """Classes of one colour each (the first three: red, green, blue)."""
    pictures = [picture(place % 3, seed) for place in range(len(names)) for seed in range(images)]
    return ImageClassifier(colours, side=16, **arguments).fit(pictures, [name for name in names for _ in range(images)])


@functools.cache
def crowd(many=500):
    """So many classes, on features that cost nothing."""
    names = [f"thing {number:03}" for number in range(many - 1)] + ["Éclair"]
    made = ImageClassifier(colours, side=16, head="cosine-proto")
    pixels = np.random.default_rng(0).integers(0, 256, (2 * many, 16, 16, 3), np.uint8)
    return made.fit(list(pixels), np.repeat(names, 2))


def file(name, content, kind="image/png"):
    return {"name": name, "mimeType": kind, "buffer": content}


def ask(page, content, name="asked.png"):
    page.set_input_files("#ask-file", file(name, content))


def hand(page, event, target, content, kind="image/png"):
    """Drop or paste a picture somewhere."""
    page.evaluate(
        """([event, target, text, type]) => {
            const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
            const data = new DataTransfer();
            data.items.add(new File([bytes], 'handed.png', { type }));
            const where = target ? document.querySelector(target) : document.body;
            const about = { bubbles: true, cancelable: true };
            where.dispatchEvent(event === 'paste' ? new ClipboardEvent(event, { ...about, clipboardData: data })
                                                  : new DragEvent(event, { ...about, dataTransfer: data }));
        }""",
        [event, target, base64.b64encode(content).decode(), kind],
    )


def verdict(page, words):
    page.locator("#verdict", has_text=words).wait_for()


def card(page, name):
    return page.locator(f"#cards > li[data-name='{name}']")


def count(page, name, words):
    card(page, name).locator(".count", has_text=words).wait_for()


def test_the_answer_stands_beside_the_nearest_examples_of_its_class(visit):
    page = visit(classifier())
    ask(page, picture(1, 9))
    verdict(page, "green")
    page.get_by_role("status").filter(has_text="green").wait_for()  # a screen reader says it
    assert "sure" in page.locator("#sure").inner_text()
    nearest = page.locator("#nearest img")
    assert nearest.evaluate_all("all => all.map(one => one.alt.split(',')[0])") == ["Example of green"] * 3
    page.wait_for_function(
        "() => [...document.querySelectorAll('#nearest img, #picture')].every(image => image.naturalWidth > 0)"
    )
    mine, theirs = page.locator("#picture").bounding_box(), nearest.first.bounding_box()
    assert mine["x"] + mine["width"] <= theirs["x"]
    assert abs(mine["y"] - theirs["y"]) < 2
    assert page.locator("#scores li").count() == 3
    page.locator("#scores button").first.click()  # to the pictures of the class
    assert page.evaluate("document.activeElement.closest('li').dataset.name") == "green"


@pytest.mark.parametrize("viewport", [WIDE, PHONE], ids=["wide", "phone"])
def test_the_question_comes_first_and_stays_in_view_with_500_classes(visit, viewport):
    page = visit(crowd(), viewport)
    assert page.locator("h1, h2").first.inner_text() == "What is this?"
    assert page.locator("#cards > li").count() == 500
    assert page.locator("#cards .pictures").count() == 0  # nothing is made for cards that are folded
    page.mouse.wheel(0, 20_000)
    page.wait_for_function("() => scrollY > 1000")
    for words in ("What is this?", "Choose a picture"):
        box = page.get_by_text(words, exact=True).bounding_box()
        assert 0 <= box["y"] < viewport["height"]
    assert page.evaluate("document.documentElement.scrollWidth") <= viewport["width"]


def test_classes_are_found_and_unfolded(visit):
    page = visit(crowd())
    page.get_by_label("Find a class").fill("ecla")  # letters are compared as people type them
    shown = page.locator("#cards > li:visible")
    assert shown.evaluate_all("all => all.map(one => one.dataset.name)") == ["Éclair"]
    assert page.locator("#matches").inner_text() == "1 of 500 classes"
    page.keyboard.press("Tab")  # the order, folding, the review, and the card itself, by keyboard alone
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    card(page, "Éclair").locator(".pictures img").first.wait_for()
    assert card(page, "Éclair").locator(".pictures img").count() == 2
    page.get_by_label("Find a class").fill("")
    page.get_by_role("button", name="Fold all").click()
    assert page.locator("#cards details[open]").count() == 0


def test_few_classes_are_open_with_their_count_and_recall(visit):
    page = visit(classifier())
    assert page.locator("#cards details[open]").count() == 3
    assert card(page, "red").locator("summary").inner_text().split("\n") == ["red", "3 pictures", "recall 100 %"]
    assert "told right when left out" in page.locator("#about").inner_text()
    assert "Pictures taken another day are harder." in page.locator("#recall-means").inner_text()
    box = card(page, "red").locator(".pictures img").first.bounding_box()
    assert min(box["width"], box["height"]) >= 96


def test_classes_are_sorted_by_what_needs_care(visit):
    made = copy.deepcopy(classifier(("red", "green", "blue", "red again")))
    page = visit(made.partial_fit([picture(2, 7)], ["blue"]))
    orders = {
        "name": ["blue", "green", "red", "red again"],
        "recall": None,
        "count": ["green", "red", "red again", "blue"],
    }
    for order, names in orders.items():
        page.get_by_label("Order of the classes").select_option(order)
        shown = page.locator("#cards > li").evaluate_all("all => all.map(one => one.dataset.name)")
        if names is None:  # one picture cannot be told from the same one under another name
            assert shown[-2:] == ["blue", "green"]
        else:
            assert shown == names


@pytest.mark.parametrize(("name", "words"), [("text.png", "not an image"), ("large.png", "at most 20 MB")])
def test_a_failed_upload_clears_the_old_answer(visit, tmp_path, name, words):
    (tmp_path / "text.png").write_text("I am not a picture")
    with (tmp_path / "large.png").open("wb") as large:
        large.truncate(100_000_000)
    page = visit(classifier())
    ask(page, picture(1, 9))
    verdict(page, "green")
    page.set_input_files("#ask-file", tmp_path / name)
    page.get_by_role("alert").filter(has_text=words).wait_for()
    assert name in page.locator("#problem").inner_text()
    assert not page.locator("#answer").is_visible()
    assert "green" not in page.locator("#ask").inner_text()
    ask(page, picture(0, 9))
    verdict(page, "red")
    assert not page.locator("#problem").is_visible()


def test_pictures_that_are_refused_are_named_and_the_others_added(visit):
    page = visit(classifier())
    page.get_by_label("Name of a class").fill("violet")
    page.set_input_files("#add-files", [file("fine.png", picture(2, 5)), file("text.png", b"no picture")])
    page.locator("#trouble", has_text="text.png: That is not an image").wait_for()
    count(page, "violet", "1 picture")
    page.locator("#notice", has_text="Added 1 picture to violet.").wait_for()


def test_single_pictures_and_classes_are_removed_and_come_back(visit, server):
    page = visit(classifier())
    before = [one["examples"] for one in server[1].describe()["classes"]]
    ask(page, picture(0, 9))
    verdict(page, "red")
    page.get_by_role("button", name="Remove picture 2 of red").click()
    count(page, "red", "2 pictures")
    # The keyboard is on the picture that took its place.
    page.wait_for_function("() => document.activeElement.ariaLabel === 'Remove picture 2 of red'")
    page.get_by_role("button", name="Remove class red").click()
    page.locator("#about", has_text="2 classes").wait_for()
    page.wait_for_function(
        "() => document.querySelector('#verdict').textContent !== 'red'"
    )  # the question is asked anew
    page.get_by_role("button", name="Undo").click()
    count(page, "red", "2 pictures")
    verdict(page, "red")
    page.locator("h1").click()
    page.keyboard.press("Control+z")
    count(page, "red", "3 pictures")
    assert [one["examples"] for one in server[1].describe()["classes"]] == before
    assert page.get_by_role("button", name="Undo").count() == 0


def test_the_last_class_can_go_and_come_back(visit):
    page = visit(classifier(("red",)))
    ask(page, picture(0, 9))
    page.locator("#sure", has_text="The only class there is").wait_for()
    page.get_by_role("button", name="Remove class red").click()
    page.locator("#about", has_text="No classes yet").wait_for()
    assert not page.locator("#answer").is_visible()
    page.keyboard.press("Enter")  # the keyboard is on Undo
    count(page, "red", "3 pictures")


def test_none_of_these_is_shown_as_such(visit):
    page = visit(classifier(("red", "green"), images=12))
    ask(page, picture(2, 9))
    verdict(page, "None of these")
    assert "is nearest" in page.locator("#sure").inner_text()
    assert page.get_by_text("If it were one of them").is_visible()
    assert not page.locator("#unknown").is_visible()
    ask(page, picture(0, 30))
    verdict(page, "red")


def test_it_is_said_when_none_of_these_cannot_be_told(visit):
    page = visit(classifier(images=1))
    ask(page, picture(2, 9))
    page.locator("#unknown", has_text="every class has a single picture").wait_for()
    assert "a guess" in page.locator("#sure").inner_text()
    page.set_input_files("[id='add red']", [file(f"{seed}.png", picture(0, 20 + seed)) for seed in range(4)])
    page.locator("#unknown", has_text="it takes 14 more pictures").wait_for()
    page.set_input_files("[id='add red']", [file(f"{seed}.png", picture(0, 30 + seed)) for seed in range(14)])
    page.locator("#unknown", has_text="cannot be told").wait_for(state="hidden")


def test_a_picture_is_dropped_anywhere_or_pasted(visit):
    page = visit(classifier())
    for event, target, channel, name in (
        ("drop", None, 0, "red"),
        ("drop", "#classes-title", 1, "green"),
        ("paste", None, 2, "blue"),
        ("paste", "#search", 0, "red"),
    ):
        hand(page, event, target, picture(channel, 9))
        verdict(page, name)
    hand(page, "dragover", "#cards > li[data-name='green']", picture(1, 9))
    page.get_by_text("Let go to add to green").wait_for()
    hand(page, "drop", "#cards > li[data-name='green']", picture(1, 9))
    count(page, "green", "4 pictures")
    assert not page.locator("#drop-hint").is_visible()


def test_a_picture_from_the_camera(visit):
    page = visit(classifier())
    page.get_by_role("button", name="Camera").click()
    page.wait_for_function("() => document.querySelector('video').videoWidth > 0")
    page.get_by_role("button", name="Take the picture").click()
    page.locator("#scores li").first.wait_for()
    assert not page.locator("#viewfinder").is_visible()
    assert page.evaluate("document.querySelector('video').srcObject") is None  # the camera is off
    page.evaluate("Object.defineProperty(navigator, 'mediaDevices', { value: undefined })")  # as on a page without TLS
    with page.expect_file_chooser() as asked:  # the phone's own camera
        page.get_by_role("button", name="Camera").click()
    asked.value.set_files(file("taken.png", picture(1, 9)))
    verdict(page, "green")


def test_the_classes_are_one_key_away(visit):
    page = visit(classifier())
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "To the classes"
    page.keyboard.press("Enter")
    page.wait_for_function("() => document.activeElement.id === 'classes'")


def test_a_wrong_answer_is_put_right(visit):
    page = visit(classifier(("red", "green")))
    ask(page, picture(2, 9))
    page.locator("#scores li").first.wait_for()
    page.get_by_label("It is").fill("blue")
    page.get_by_role("button", name="Learn it").click()
    verdict(page, "blue")
    count(page, "blue", "1 picture")


def test_the_answer_at_fewer_examples(visit):
    page = visit(classifier())
    ask(page, picture(0, 9))
    verdict(page, "red")
    page.get_by_text("With fewer examples").click()
    page.locator("#changes", has_text="The answer is the same at every number of examples.").wait_for()
    page.locator("#shots").fill("0")
    assert page.locator("#shots-now").inner_text() == "at most 1 example of each class"
    verdict(page, "red")


def test_from_nothing_to_a_saved_classifier(visit, server):
    page = visit(ImageClassifier(colours, side=16))
    assert page.locator("#about").inner_text() == "No classes yet: add two."
    ask(page, picture(0, 9))
    page.locator("#problem", has_text="no classes yet").wait_for()
    page.set_input_files("#add-files", file("0.png", picture(0)))
    page.locator("#trouble", has_text="Give the class a name first").wait_for()
    for channel, name in enumerate(("red", "<b>green</b>")):
        page.get_by_label("Name of a class").fill(name)
        page.set_input_files("#add-files", [file(f"{seed}.png", picture(channel, seed)) for seed in range(2)])
        count(page, name, "2 pictures")
    assert page.locator("#cards b").count() == 0  # names are text
    page.get_by_role("button", name="Save").click()
    page.locator("#notice", has_text="Saved.").wait_for()
    assert ImageClassifier.load(server[1].folder, colours).classes_.tolist() == ["<b>green</b>", "red"]


@pytest.mark.parametrize(("scheme", "viewport"), [("light", WIDE), ("dark", PHONE)], ids=["light", "dark-phone"])
@pytest.mark.parametrize("state", ["answered", "refused", "removed"])
def test_no_fault_of_access_and_no_sideways_scrolling(visit, scheme, viewport, state):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe-core comes with the dev extra")
    page = visit(classifier(("red", "a" * 100, "blue"), images=1 if state == "answered" else 3), viewport, scheme)
    if state == "refused":
        ask(page, b"no picture")
        page.locator("#problem", has_text="not an image").wait_for()
    else:
        ask(page, picture(1, 9))
        page.locator("#scores li").first.wait_for()
    if state == "removed":
        page.get_by_role("button", name="Remove picture 2 of red").click()
        page.get_by_role("button", name="Undo").wait_for()
    assert page.evaluate("document.documentElement.scrollWidth") <= viewport["width"]
    faults = axe.Axe().run(page).response["violations"]
    assert [(fault["id"], fault["nodes"][0]["html"]) for fault in faults] == []
