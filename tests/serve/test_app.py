"""The server: what clients may do, what is refused, and a real browser that does it."""

import asyncio
import contextlib
import copy
import importlib.util
import io
import threading
from pathlib import Path

import httpx
import numpy as np
import pytest
import uvicorn
from fastapi import HTTPException
from helpers.classifier_folders import version_of
from helpers.classifiers import colours, small_model
from helpers.image_files import deep_tiff
from helpers.server import JPEG, add, picture, serving
from PIL import Image

from anyshot import BadInput, ImageClassifier
from anyshot.serve.run import serve
from anyshot.serve.state import ServedClassifier
from anyshot.serve.uploads import MAX_BYTES


def benchmark():
    path = Path(__file__).parents[2] / "benchmarks" / "serving.py"
    spec = importlib.util.spec_from_file_location("serving_benchmark", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_learn_classify_forget(client, server):
    assert client.get("/api/classes").json() == {"classes": [], "can_save": True}
    assert client.post("/api/classify", content=picture(0), headers=JPEG).status_code == 409
    for seed in range(3):
        for channel, name in enumerate(("red", "a name / with ünicode?")):
            assert add(client, name, picture(channel, seed)).status_code == 200
    about = client.get("/api/classes").json()
    assert [(one["name"], one["count"]) for one in about["classes"]] == [("a name / with ünicode?", 3), ("red", 3)]
    thumbnail = client.get(f"/api/thumbnails/{about['classes'][0]['examples'][0]}")
    assert Image.open(io.BytesIO(thumbnail.content)).format == "JPEG"
    answer = client.post("/api/classify?by_shot=true", content=picture(0, 9), headers=JPEG).json()
    assert answer["classes"][int(np.argmax(answer["probabilities"]))] == "red"
    assert [one["shot"] for one in answer["by_shot"]] == [1, 2, 3]
    np.testing.assert_allclose(answer["by_shot"][-1]["probabilities"], answer["probabilities"], atol=1e-5)
    assert client.post("/api/save").status_code == 200
    assert ImageClassifier.load(server[1].folder, colours).classes_.tolist() == ["a name / with ünicode?", "red"]
    assert [one["name"] for one in client.delete("/api/classes", params={"name": "red"}).json()["classes"]] == [
        "a name / with ünicode?"
    ]
    assert client.delete("/api/classes", params={"name": "red"}).status_code == 404
    assert client.delete("/api/classes", params={"name": "a name / with ünicode?"}).json()["classes"] == []
    assert add(client, "blue", picture(2)).json()["classes"][0]["count"] == 1


@pytest.mark.parametrize(
    ("body", "headers", "status"),
    [
        (b"just text", {"Content-Type": "image/png"}, 415),
        (b"just text", {"Content-Type": "text/plain"}, 415),
        (picture(0), {"Content-Type": "multipart/form-data; boundary=x"}, 415),
        (picture(0)[:200], {"Content-Type": "image/png"}, 422),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", {"Content-Type": "image/png"}, 415),
        (b"\0" * (MAX_BYTES + 1), JPEG, 413),
        (b"", JPEG, 415),
    ],
)
def test_what_is_no_image_is_refused(client, body, headers, status):
    answer = client.post("/api/classes/examples", params={"name": "x"}, content=body, headers=headers)
    assert answer.status_code == status
    assert answer.json()["detail"]
    assert client.get("/api/classes").json()["classes"] == []


@pytest.mark.parametrize("form", ["TIFF", "HEIF", "deep TIFF"])
def test_what_phones_and_microscopes_save_is_read(client, form):
    if form == "HEIF":
        pytest.importorskip("pillow_heif")
    for name, channel in (("red", 0), ("blue", 2)):
        for seed in range(3):
            add(client, name, picture(channel, seed))
    plain = np.asarray(Image.open(io.BytesIO(picture(2, 9))))
    asked = deep_tiff(plain.astype(np.uint16) * 16) if "deep" in form else picture(2, 9, form=form)  # of 12 bits
    answer = client.post("/api/classify", content=asked, headers={"Content-Type": "image/tiff"}).json()
    assert answer["classes"][int(np.argmax(answer["probabilities"]))] == "blue"


def test_a_hundred_megabytes_are_refused_while_they_come(client, server):
    sent = 0

    def chunks():
        nonlocal sent
        for _ in range(100):
            sent += 1_000_000
            yield b"\xff" * 1_000_000

    try:  # without a length, so that only counting helps
        assert client.post("/api/classify", content=chunks(), headers=JPEG).status_code == 413
    except httpx.WriteError:  # the server had answered and closed before all was sent
        assert sent < 100_000_000
    assert client.get("/api/classes").status_code == 200


@pytest.mark.parametrize("side", [8_000, 14_000])
def test_bombs_are_refused_before_they_are_decoded(client, side):
    out = io.BytesIO()
    Image.new("1", (side, side)).save(out, "PNG")
    answer = client.post("/api/classify", content=out.getvalue(), headers=JPEG)
    assert answer.status_code == 413
    assert "million pixels" in answer.json()["detail"]


@pytest.mark.parametrize("name", ["", "   ", "x" * 101, "a\0b", "\x1b[31m"])
def test_names_must_be_printable(client, name):
    assert add(client, name, picture(0)).status_code == 422


@pytest.mark.parametrize("name", ["../../etc/passwd", "C:\\x", "/tmp/x", "<script>alert(1)</script>"])
def test_names_never_become_paths_or_code(client, server, name, tmp_path):
    before = sorted(Path(tmp_path).rglob("*"))
    assert add(client, name, picture(0)).json()["classes"][0]["name"] == name
    client.get(f"/api/thumbnails/{name}")
    client.get("/../../etc/passwd")
    assert sorted(Path(tmp_path).rglob("*")) == before
    client.post("/api/save")
    folder = server[1].folder
    assert {path.name for path in folder.iterdir()} == {"README.md", "config.json", version_of(folder).name}
    assert {path.name for path in version_of(folder).iterdir()} == {
        "README.md",
        "backbone.json",
        "classifier.safetensors",
        "thumbnails.safetensors",
    }


def test_other_hosts_and_pages_are_kept_out(client):
    assert client.get("/api/classes", headers={"Host": "evil.example"}).status_code == 400
    page = client.get("/")
    assert "default-src 'none'" in page.headers["Content-Security-Policy"]
    assert (
        "access-control-allow-origin" not in client.options("/api/classify", headers={"Origin": "http://evil"}).headers
    )


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_serving_on_loopback_answers_to_the_names_of_loopback_only(tmp_path, monkeypatch, host):
    """A web page elsewhere may let its own name point here; a request that comes by such a name is refused."""
    small_model().save(tmp_path / "run" / "model.safetensors")
    started = []
    monkeypatch.setattr(uvicorn.Server, "run", lambda server, sockets: started.append(server.config.app))
    serve(str(tmp_path / "run"), host, port=0)

    async def ask(name):
        async with httpx.AsyncClient(transport=httpx.ASGITransport(started[0]), base_url="http://x") as http:
            return (await http.get("/api/classes", headers={"Host": name})).status_code

    names = [
        "127.0.0.1:8000",
        "localhost:8000",
        "[::1]:8000",
        "evil.example",
        "evil.example:8000",
        "127.0.0.1.evil.example",
    ]
    assert [asyncio.run(ask(name)) for name in names] == [200, 200, 200, 400, 400, 400]


def test_examples_and_classes_are_removed_and_put_back(client):
    for seed in range(3):
        for channel, name in enumerate(("red", "green")):
            add(client, name, picture(channel, seed))
    before = client.get("/api/classes").json()
    key = before["classes"][1]["examples"][0]
    one = client.delete("/api/classes/examples", params={"name": "red", "key": key}).json()
    assert [each["count"] for each in one["classes"]] == [3, 2]
    assert client.get(f"/api/thumbnails/{key}").status_code == 404
    whole = client.delete("/api/classes", params={"name": "red"}).json()
    assert [each["name"] for each in whole["classes"]] == ["green"]
    for answer in (one, whole):  # in any order
        assert client.post("/api/undo", params={"removal": answer["removal"]}).status_code == 200
    assert client.get("/api/classes").json() == before
    assert client.get(f"/api/thumbnails/{key}").status_code == 200
    for removal in (one["removal"], 99):  # undone before; there was none of this number
        answer = client.post("/api/undo", params={"removal": removal})
        assert (answer.status_code, "never was" in answer.json()["detail"]) == (404, True)


@pytest.mark.parametrize(
    ("name", "key", "status"), [("red", "0" * 16, 404), ("blue", "0" * 16, 404), ("red", "x", 422), ("red", "../", 422)]
)
def test_an_example_that_is_not_there_cannot_be_removed(client, name, key, status):
    add(client, "red", picture(0))
    answer = client.delete("/api/classes/examples", params={"name": name, "key": key})
    assert answer.status_code == status
    assert answer.json()["detail"]
    assert client.get("/api/classes").json()["classes"][0]["count"] == 1


def test_what_cannot_be_put_back_now_can_be_put_back_later(server, client, monkeypatch):
    for name in ("red", "green"):
        add(client, name, picture(0))
    removal = client.delete("/api/classes", params={"name": "red"}).json()["removal"]
    with monkeypatch.context() as patch:
        patch.setattr(ImageClassifier, "put_back", lambda *given: (_ for _ in ()).throw(BadInput("not now.")))
        assert client.post("/api/undo", params={"removal": removal}).status_code == 422
    assert client.post("/api/undo", params={"removal": removal}).status_code == 200
    assert len(client.get("/api/classes").json()["classes"]) == 2


def test_many_remove_and_undo_at_once(monkeypatch):
    """What can be undone is touched by one at a time, though it is bounded while others add to it."""
    monkeypatch.setattr("anyshot.serve.state.MAX_REMOVALS", 3)
    served = ServedClassifier(ImageClassifier(colours, side=16, keep=8))
    served.add("stays", picture(0))
    problems = []

    def turn(number):
        try:
            for seed in range(15):
                served.add(f"class {number}", picture(1, seed))
                removal = served.remove(f"class {number}")
                with contextlib.suppress(HTTPException):
                    served.undo(removal)
                    served.remove(f"class {number}")
        except Exception as error:
            problems.append(error)

    threads = [threading.Thread(target=turn, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []
    assert served.class_names == ["stays"]
    assert len(served._undos) <= 3


@pytest.mark.parametrize("name", ["two  blanks", "a\nline", "x" * 150, "\u202eturned"])
def test_classes_that_came_with_a_classifier_can_be_added_to_and_removed_whatever_their_names(name):
    """A folder may be called anything."""
    classifier = ImageClassifier(colours, side=16, keep=8).fit([picture(0), picture(1)], [name, "other"])
    with serving(ServedClassifier(classifier)) as (address, served), httpx.Client(base_url=address, timeout=20) as http:
        assert add(http, name, picture(0, 1)).status_code == 200
        assert served.current.classifier.support_.counts.sum() == 3
        assert http.delete("/api/classes", params={"name": name}).status_code == 200
        assert served.class_names == ["other"]
        assert add(http, name, picture(0, 1)).status_code == (422 if name != "two  blanks" else 200)


def test_the_same_picture_twice_is_listed_once(client):
    for _ in range(2):
        add(client, "red", picture(0))
    about = add(client, "red", picture(0, seed=1)).json()
    (red,) = about["classes"]
    assert red["count"] == 2, "examples are a set"
    assert len(red["examples"]) == len(set(red["examples"])) == 2


def test_what_can_be_undone_is_bounded(client, monkeypatch):
    monkeypatch.setattr("anyshot.serve.state.MAX_REMOVALS", 2)
    removals = []
    for seed in range(3):
        add(client, "red", picture(0, seed))
        removals.append(client.delete("/api/classes", params={"name": "red"}).json()["removal"])
    assert [client.post("/api/undo", params={"removal": each}).status_code for each in removals] == [404, 200, 200]
    assert client.get("/api/classes").json()["classes"][0]["count"] == 2


def test_an_answer_has_the_nearest_examples_and_says_whether_it_could_have_been_none_of_these(client):
    for channel, name in enumerate(("red", "green")):
        for seed in range(2):
            about = add(client, name, picture(channel, seed)).json()
    assert about["until_rejection"] == 15
    assert [one["recall"] for one in about["classes"]] == [1.0, 1.0]
    answer = client.post("/api/classify?by_shot=false", content=picture(0, 9), headers=JPEG).json()
    assert sorted(answer["nearest"]["red"]) == sorted(about["classes"][1]["examples"])
    assert answer["by_shot"] == []
    assert not answer["can_reject"]
    for seed in range(2, 17):
        about = add(client, "red", picture(0, seed)).json()
    assert about["until_rejection"] == 9  # as 8 of a class are kept


def test_many_clients_at_once_are_all_answered_and_memory_does_not_grow():
    """Through the command line. How fast that is, benchmarks/serving.py says."""
    serving = benchmark()

    async def ask(http, number):
        if number % 25 == 0:  # the classifier changes while the others read it
            path, body = "/api/classes/examples?name=red", serving.picture(0, number)
        else:
            path, body = "/api/classify", serving.picture(number % 3, number)
        return (await http.post(path, content=body, headers=JPEG)).status_code

    async def rounds(url, pid):
        limits = httpx.Limits(max_connections=50)
        async with httpx.AsyncClient(base_url=url, timeout=60, limits=limits) as http:
            for _ in range(3):
                yield await asyncio.gather(*(ask(http, number) for number in range(50))), serving.memory(pid)

    async def run(url, pid):
        return [each async for each in rounds(url, pid)]

    with serving.served(size=32) as (url, pid):
        answers, memory = zip(*asyncio.run(run(url, pid)), strict=True)
    assert [set(each) for each in answers] == [{200}] * 3
    assert not memory[-1] > 1.3 * memory[0]


def test_a_taken_port_is_one_sentence(server, tmp_path):
    small_model().save(tmp_path / "run" / "model.safetensors")
    with pytest.raises(BadInput, match="choose another --port"):
        serve(str(tmp_path / "run"), port=int(server[0].rpartition(":")[2]))


def test_what_is_said_of_the_classes_is_of_one_state():
    """Another class may come between any two looks at the classifier that is served."""

    class Restless(ServedClassifier):
        @property
        def current(self):
            state = self.__dict__["current"]
            more = copy.copy(state)
            more.classifier = copy.copy(state.classifier)
            self.__dict__["current"] = more.partial_fit([picture(0)], [f"c{len(state.classes_)}"])
            return state

        @current.setter
        def current(self, state):
            self.__dict__["current"] = state

    first = ImageClassifier(small_model())
    served = Restless(first.fit([picture(0), picture(1)], ["c0", "c1"]))
    for _ in range(3):
        assert [each["count"] for each in served.describe()["classes"]][:2] == [1, 1]
    served.remove("c1")
    assert "c1" not in served.class_names


def test_reading_goes_on_while_the_classifier_changes(server):
    async def run():
        async with httpx.AsyncClient(base_url=server[0], timeout=30) as http:
            add = [
                http.post(
                    "/api/classes/examples", params={"name": f"c{i % 3}"}, content=picture(i % 3, i), headers=JPEG
                )
                for i in range(24)
            ]
            first = await add[0]
            asked = [http.post("/api/classify", content=picture(0, i), headers=JPEG) for i in range(12)]
            return [first, *await asyncio.gather(*add[1:], *asked)]

    assert {answer.status_code for answer in asyncio.run(run())} == {200}
    counts = {one["name"]: one["count"] for one in server[1].describe()["classes"]}
    assert counts == {"c0": 8, "c1": 8, "c2": 8}  # none of the additions was lost


def test_a_new_class_of_integer_classes_is_an_integer():
    classifier = ImageClassifier(colours, side=16, keep=8).fit([picture(0), picture(1)], np.array([0, 1]))
    served = ServedClassifier(classifier)
    served.add("7", picture(2))
    assert served.current.classes_.tolist() == [0, 1, 7]
    with pytest.raises(BadInput, match="'seven' cannot be one"):
        served.add("seven", picture(2))


def test_the_answer_names_the_class(client):
    for channel, name in enumerate(("red", "green")):
        for seed in range(3):
            add(client, name, picture(channel, seed))
    answer = client.post("/api/classify", content=picture(0, 9), headers=JPEG).json()
    assert answer["class"] == "red"
    assert answer["by_shot"] == []


def test_what_another_program_saved_is_not_lost(tmp_path):
    folder = tmp_path / "saved"
    ImageClassifier(colours, side=16, keep=8).fit([picture(0), picture(1)], ["red", "green"]).save(folder)
    served = ServedClassifier(ImageClassifier.load(folder, colours), folder)
    other = ImageClassifier.load(folder, colours)
    other.partial_fit([picture(2)], ["blue"]).save(folder)
    served.add("red", picture(0, 5))
    with pytest.raises(HTTPException, match="409"):
        served.save()
    assert ImageClassifier.load(folder, colours).classes_.tolist() == ["blue", "green", "red"]
    served.save(merge=True)
    merged = ImageClassifier.load(folder, colours)
    counts = dict(zip(merged.classes_.tolist(), merged.classifier.support_.counts.tolist(), strict=True))
    assert counts == {"blue": 1, "green": 1, "red": 2}
    served.add("green", picture(1, 5))
    served.save()  # nobody else has been there since
