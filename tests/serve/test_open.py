"""The server in the open: strangers, other web pages, clients that stall, and many that save at once."""

import asyncio
import contextlib
import importlib.util
import shutil
import socket
import string
import threading
from urllib.parse import quote, urlsplit

import httpx
import pytest
import uvicorn
from helpers.classifiers import colours, small_model
from helpers.server import JPEG, add, picture
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from starlette.requests import Request

from anyshot import ImageClassifier
from anyshot.serve.app import make_app
from anyshot.serve.run import serve
from anyshot.serve.state import ServedClassifier
from anyshot.serve.uploads import MAX_BYTES, MAX_UPLOADS, read_image_upload

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


def asked(app, method, path, **more):
    """One request to an application, without a network."""

    async def ask():
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:
            return await http.request(method, path, **more)

    return asyncio.run(ask())


# ---------------------------------------------------------------------------------------------------------- saving


def test_the_saved_classifier_always_loads_while_two_browsers_and_ten_clients_save(server, client, tmp_path):
    address, served = server
    for seed in range(2):
        for channel, name in enumerate(("red", "green")):
            assert add(client, name, picture(channel, seed)).status_code == 200
    assert client.post("/api/save").status_code == 200
    ended, answers, loaded, problems = threading.Event(), [], [], []

    def save(number):
        with httpx.Client(base_url=address, timeout=60) as http:
            for turn in range(4):
                answers.append(http.post("/api/save").status_code)
                answers.append(add(http, "red", picture(0, 10 * number + turn + 5)).status_code)

    def load():
        while not ended.wait(0.01):
            try:
                loaded.append(len(ImageClassifier.load(served.folder, colours).classes_))
            except Exception as error:
                problems.append(error)

    threads = [threading.Thread(target=save, args=(number,)) for number in range(10)]
    loader = threading.Thread(target=load)
    loader.start()
    for thread in threads:
        thread.start()
    with contextlib.ExitStack() as stack:
        stack.callback(ended.set)  # also where something fails: the loader goes on until then
        if BROWSER and importlib.util.find_spec("playwright"):
            playwright = importlib.import_module("playwright.sync_api")
            driver = stack.enter_context(playwright.sync_playwright())
            browsers = [driver.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"]) for _ in range(2)]
            pages = [browser.new_page() for browser in browsers]
            saving = "async () => { const all = [1, 2, 3].map(() => fetch('/api/save', {method: 'POST'}));"
            for page in pages:
                page.goto(address)
                answers.extend(page.evaluate(f"{saving} return (await Promise.all(all)).map(one => one.status) }}"))
            for browser in browsers:
                browser.close()
        for thread in threads:
            thread.join()
    loader.join()
    assert set(answers) == {200}
    assert problems == []
    assert set(loaded) == {2}
    assert [path.name for path in served.folder.parent.iterdir()] == ["saved"]  # and nothing is left beside it


# --------------------------------------------------------------------------------------------------------- stalling


def test_the_page_answers_beside_300_half_open_connections(server):
    address = urlsplit(server[0])
    stalled = [socket.create_connection((address.hostname, address.port), timeout=20) for _ in range(300)]
    try:
        for one in stalled:
            one.sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Slow: ")
        for _ in range(3):
            assert httpx.get(server[0], timeout=20).status_code == 200
    finally:
        for one in stalled:
            one.close()
    assert httpx.get(f"{server[0]}/api/classes", timeout=20).status_code == 200


def test_all_uploads_together_are_bounded():
    """Sixty images are sent at once; only as many as there is room for are held at a time."""
    most = held = 0

    async def upload(slots):
        nonlocal most, held
        request = Request({"type": "http", "headers": [(b"content-type", b"image/png")]}, receive)
        async with read_image_upload(request, slots) as image:
            held += len(image)
            most = max(most, held)
            await asyncio.sleep(0)
            held -= len(image)

    async def receive():
        return {"type": "http.request", "body": picture(0)}

    async def run():
        slots = asyncio.Semaphore(MAX_UPLOADS)
        await asyncio.gather(*(upload(slots) for _ in range(60)))

    asyncio.run(run())
    assert (most, held) == (MAX_UPLOADS * len(picture(0)), 0)  # and all of it is given back


def test_who_finds_no_room_is_told_so(monkeypatch):
    monkeypatch.setattr("anyshot.serve.uploads.WAIT_SECONDS", 0.05)
    monkeypatch.setattr("anyshot.serve.app.MAX_UPLOADS", 0)
    app = make_app(ServedClassifier(ImageClassifier(colours, side=16)))
    assert asked(app, "POST", "/api/classify", content=picture(0), headers=JPEG).status_code == 503


def test_slow_uploads_do_not_block_others(monkeypatch, server):
    """As many clients as there is room for announce 16 MB each, and send next to nothing."""
    monkeypatch.setattr("anyshot.serve.uploads.UPLOAD_SECONDS", 0.5)
    address = urlsplit(server[0])
    slow = [socket.create_connection((address.hostname, address.port), timeout=20) for _ in range(MAX_UPLOADS)]
    head = (
        b"POST /api/classes/examples?name=x HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: image/jpeg\r\n"
        b"Content-Length: 16000000\r\n\r\nx"
    )
    try:
        for one in slow:
            one.sendall(head)
        with httpx.Client(base_url=server[0], timeout=20) as client:
            assert add(client, "red", picture(0)).status_code == 200
    finally:
        for one in slow:
            one.close()


def test_a_request_with_a_huge_head_is_refused(server):
    answer = httpx.get(f"{server[0]}/api/classes", headers={"X-Long": "x" * 100_000}, timeout=20)
    assert answer.status_code in (400, 431)


# ---------------------------------------------------------------------------------------------------------- strangers


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://[evil"},
        {"Origin": "http://127.0.0.1:1"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
)
def test_other_web_pages_are_refused(client, server, headers):
    add(client, "red", picture(0))
    for path in ("/api/save", "/api/classes/examples?name=x", "/api/classify"):
        assert client.post(path, headers={**JPEG, **headers}, content=picture(0)).status_code == 403
    assert client.get("/api/classes", headers=headers).status_code == 403
    assert not server[1].folder.exists()
    own = {"Origin": server[0], "Sec-Fetch-Site": "same-origin"}
    assert client.post("/api/save", headers=own).status_code == 200


def test_every_answer_is_signed(client):
    for path in ("/", "/page.js", "/api/classes", "/api/none", "/none"):
        headers = client.get(path).headers
        assert "frame-ancestors 'none'" in headers["Content-Security-Policy"]
        assert headers["Cross-Origin-Resource-Policy"] == "same-origin"
        assert headers["X-Content-Type-Options"] == "nosniff"


def test_the_host_of_test_clients_is_a_stranger(client):
    assert client.get("/", headers={"Host": "testserver"}).status_code == 400


def test_beyond_loopback_a_token_is_needed(tmp_path, monkeypatch, capsys):
    small_model().save(tmp_path / "run" / "model.safetensors")
    started = []
    monkeypatch.setattr(uvicorn.Server, "run", lambda server, sockets: started.append(server.config.app))
    serve(str(tmp_path / "run"), "0.0.0.0", port=0)
    token = capsys.readouterr().out.partition("token=")[2].split()[0]
    assert len(token) >= 20
    app = started[0]
    assert asked(app, "GET", "/").status_code == 401
    assert asked(app, "POST", "/api/save", headers={"Authorization": "Bearer guess"}).status_code == 401
    assert asked(app, "GET", "/?token=guess").status_code == 401
    assert asked(app, "GET", "/api/classes", headers={"Authorization": f"Bearer {token}"}).status_code == 200
    opened = asked(app, "GET", f"/?token={token}")
    assert (opened.status_code, opened.headers["location"]) == (303, "/")
    cookie = opened.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "samesite=strict" in cookie.lower()
    assert asked(app, "GET", "/", headers={"Cookie": cookie.split(";")[0]}).status_code == 200
    assert asked(app, "GET", "/api/classes", headers={"Cookie": 'anyshot="\\777'}).status_code == 401


@pytest.mark.parametrize("name", ["%41", "a%2Fb", "100%", "a+b", "%252e"])
def test_names_are_decoded_once(client, name):
    answer = client.post(f"/api/classes/examples?name={quote(name, safe='')}", content=picture(0), headers=JPEG)
    assert [one["name"] for one in answer.json()["classes"]] == [name]
    assert client.delete(f"/api/classes?name={quote(name, safe='')}").json()["classes"] == []


# ------------------------------------------------------------------------------------------------------------- schema


APP = make_app(ServedClassifier(ImageClassifier(colours, side=16, keep=4)))
SCHEMA = APP.openapi()
OPERATIONS = [(path, method) for path, methods in SCHEMA["paths"].items() for method in methods]
BODIES = st.sampled_from([b"", b"text", picture(0), picture(1), picture(0)[:60], b"\xff\xd8\xff" + bytes(40)])
KINDS = st.sampled_from(["image/png", "IMAGE/JPEG; q=1", "text/plain", "image/", "", "multipart/form-data", "é"])
NAMES = st.one_of(st.none(), st.text(max_size=120), st.sampled_from(["red", "blue", "", "  ", "\ud800", "0" * 16]))


@settings(max_examples=150)
@given(st.sampled_from(OPERATIONS), NAMES, BODIES, KINDS, st.sampled_from(["name", "nmae", "name=x&name"]))
def test_every_answer_is_one_that_the_schema_describes(operation, name, body, kind, parameter):
    path, method = operation
    described = SCHEMA["paths"][path][method]["responses"]
    text = quote(name.encode("utf-8", "surrogatepass"), safe="") if name is not None else "x"
    path = path.replace("{key}", text or "x")
    headers = {"Content-Type": kind.encode()} if kind else {}
    query = f"?{parameter}={text}" if name is not None else ""
    answer = asked(APP, method.upper(), f"{path}{query}", content=body, headers=headers)
    if path.endswith(("/.", "/..")) or "%2F" in path:
        return  # another path than that of the operation
    assert str(answer.status_code) in described, (answer.status_code, answer.text)
    kinds = set(described[str(answer.status_code)].get("content", {}))
    assert answer.headers["content-type"].partition(";")[0] in kinds
    if answer.status_code >= 400:
        assert isinstance(answer.json()["detail"], str)
        assert answer.json()["detail"].endswith((".", ")"))


@pytest.fixture(scope="module")
def described():
    """The schema as a property-based client reads it, of a server that has classes."""
    schemathesis = pytest.importorskip("schemathesis")
    served = ServedClassifier(ImageClassifier(colours, side=16, keep=4))
    for channel, name in enumerate(("red", "green")):
        served.add(name, picture(channel))
    return schemathesis.openapi.from_asgi("/api/openapi.json", make_app(served, ("testserver",)))


@pytest.mark.parametrize(("path", "method"), OPERATIONS)
def test_a_client_made_from_the_schema_finds_no_mismatch(described, path, method):
    @settings(max_examples=15, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
    @given(described[path][method.upper()].as_strategy())
    def ask(case):
        case.call_and_validate()

    ask()


def test_a_path_names_all_its_methods():
    assert asked(APP, "PUT", "/api/classes").headers["allow"] == "DELETE, GET"


def test_other_methods_and_paths_are_no_error_of_the_server():
    for path in SCHEMA["paths"]:
        for method in ("GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "HEAD", "TRACE", "ZZZ"):
            assert asked(APP, method, path.replace("{key}", string.hexdigits[:16])).status_code < 500


def test_what_is_too_large_is_refused_by_its_length():
    headers = {**JPEG, "Content-Length": str(MAX_BYTES + 1)}
    assert asked(APP, "POST", "/api/classify", content=b"x", headers=headers).status_code == 413
    for length in ("-1", "1e9", "9" * 5000):
        assert asked(
            APP, "POST", "/api/classify", content=b"x", headers={**JPEG, "Content-Length": length}
        ).status_code in (413, 415)
