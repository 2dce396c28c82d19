"""The HTTP API. State is one ImageClassifier in memory: a change builds the next one aside, so readers never wait.

GET    /                              the page
GET    /api/classes                   classes, counts, recalls, examples, calibration
POST   /api/classes/examples?name=    an image as the body: one more example of a class, old or new
DELETE /api/classes/examples?name=&key=   forget an example
DELETE /api/classes?name=             forget a class
POST   /api/undo?removal=             put back what a removal took, by the number that it answered with
POST   /api/classify                  an image as the body: probabilities of all classes, nearest examples, and (but for
                                      by_shot=false) what fewer shots say
GET    /api/thumbnails/KEY            a small JPEG of an example
POST   /api/save                      write to the folder the server was started with, where it was started so
"""

import copy
import itertools
import os
import threading
from collections.abc import Callable
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, TypeVar

import numpy as np
from anyio import CapacityLimiter, to_thread
from fastapi import FastAPI, HTTPException, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, Response
from pydantic import BaseModel
from scipy.special import softmax
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.routing import Match, Route

from anyshot.classify.classifier import FewShotClassifier
from anyshot.classify.images import ImageClassifier, RemovedExamples
from anyshot.errors import BadInput
from anyshot.serve.limits import ByteBudget, Guard
from anyshot.serve.uploads import MOST_NAME, NAME, class_name, uploaded
from anyshot.text import to_one_line

Result = TypeVar("Result")

LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
MOST_CLASSES = 1000
MOST_REMOVALS = 100  # that can be undone
NEAREST = 4  # examples that are shown beside an answer
LIKELIEST = 3  # classes of which they are shown


class ServedClassifier:
    """The classifier that is served. Readers take `now`; writers, one at a time, put a changed copy in its place, and
    only they touch what can be undone."""

    def __init__(self, classifier: ImageClassifier, folder: Path | None = None) -> None:
        self.now, self.folder = classifier, folder
        self._changing, self._saving = threading.Lock(), threading.Lock()
        self._fewer_lock = threading.Lock()
        self._fewer: tuple[ImageClassifier, dict[int, FewShotClassifier]] = (classifier, {})
        self._removals: dict[int, RemovedExamples] = {}
        self._numbers = itertools.count(1)

    @property
    def classes(self) -> list[str]:
        return class_names(self.now)

    @property
    def is_fitted(self) -> bool:
        return is_fitted(self.now)

    def change(self, how: Callable[[ImageClassifier], Result]) -> Result:
        with self._changing:
            changed = copy.copy(self.now)
            changed.classifier = copy.copy(self.now.classifier)
            result = how(changed)
            self.now = changed
            return result

    def add(self, name: str, image: bytes) -> None:
        def learn(classifier: ImageClassifier) -> ImageClassifier:
            there = class_names(classifier)
            if name not in there and len(there) >= MOST_CLASSES:
                raise HTTPException(409, f"There are {MOST_CLASSES} classes: remove one first.")
            label = classifier.classes_[there.index(name)] if name in there else name
            return classifier.partial_fit([image], [label])

        self.change(learn)

    def remove(self, name: str, key: int | None = None) -> int:
        """Forget a class, or one of its examples; the number by which that can be undone."""

        def forget(classifier: ImageClassifier) -> int:
            there = class_names(classifier)
            if name not in there:
                raise HTTPException(404, "There is no such class.")
            place, support = there.index(name), classifier.classifier.support_
            if key is not None and key not in support.keys[support.owner == place]:
                raise HTTPException(404, "There is no such example.")
            taken = classifier.take_out(classifier.classes_[place], key)
            number = next(self._numbers)
            self._removals[number] = taken
            if len(self._removals) > MOST_REMOVALS:
                self._removals.pop(next(iter(self._removals)))
            return number

        return self.change(forget)

    def undo(self, removal: int) -> None:
        """Put back what was removed."""

        def learn_again(classifier: ImageClassifier) -> None:
            if removal not in self._removals:
                raise HTTPException(404, "This was undone before, or is too long ago.")
            classifier.put_back(self._removals[removal])
            del self._removals[removal]  # what could not be put back can be tried again

        self.change(learn_again)

    def save(self) -> None:
        """Write what is served to its folder; who asks meanwhile waits."""
        if self.folder is None or not self.is_fitted:
            raise HTTPException(409, "Nothing to save, or the server was started without --save.")
        with self._saving:
            self.now.save(self.folder)

    def about(self) -> dict[str, Any]:
        now = self.now  # one state throughout: another request may change it meanwhile
        if not is_fitted(now):
            return {"classes": [], "can_save": self.folder is not None}
        inner = now.classifier
        support, coverage = inner.support_, inner.coverage_
        return {
            "classes": [
                {
                    "name": name,
                    "count": int(support.counts[place]),
                    "recall": None if np.isnan(inner.recalls_[place]) else float(inner.recalls_[place]),
                    "examples": shown_keys(now, support.keys[support.owner == place]),
                }
                for place, name in enumerate(class_names(now))
            ],
            "calibrated": inner.calibrated_,
            "accuracy": None if coverage is None else coverage.accuracy_of_all,
            "until_rejection": until_rejection(inner),
            "most_shots": int(support.kept_counts.max()),
            "can_save": self.folder is not None,
        }

    def classify(self, image: bytes, by_shot: bool = True) -> dict[str, Any]:
        """Probabilities of the classes, at all examples and at each smaller shot, and the examples nearest to it."""
        now = self.now
        if not is_fitted(now):
            raise HTTPException(409, "There are no classes yet: add one first.")
        inner = now.classifier
        vectors = inner.vectors(now.features(now.read(image)[None]))
        probabilities = softmax(inner.logits_of(vectors)[0])
        fewer = {
            shot: softmax(other.logits_of(vectors)[0])
            for shot, other in (self._at_shots(now) if by_shot else {}).items()
        }
        shown = [*probabilities.argsort()[::-1][:LIKELIEST], *(each.argmax() for each in fewer.values())]
        return {
            "classes": [str(label) for label in inner.classes_],
            "probabilities": probabilities.round(6).tolist(),
            "is_known": bool(inner.evidence_of(vectors)[0] >= inner.threshold_),
            "can_reject": bool(np.isfinite(inner.threshold_)),
            "nearest": {
                str(label): shown_keys(now, inner.nearest(vectors[0], label, NEAREST))
                for label in inner.classes_[list(dict.fromkeys(shown))]
            },
            "by_shot": [{"shot": shot, "probabilities": each.round(6).tolist()} for shot, each in fewer.items()],
        }

    def _at_shots(self, now: ImageClassifier) -> dict[int, FewShotClassifier]:
        """The classifier with fewer examples per class, made once per change."""
        with self._fewer_lock:  # one works, the others wait for it
            made_for, fewer = self._fewer
            if made_for is now and fewer:
                return fewer
            inner = now.classifier
            most = min(int(inner.support_.kept_counts.max()), inner.keep)
            shots = [shot for shot in range(1, most + 1) if shot < 8 or shot % 4 == 0 or shot == most]
            fewer = {shot: inner.at_shot(shot) for shot in shots}
            self._fewer = now, fewer
        return fewer


def is_fitted(classifier: ImageClassifier) -> bool:
    """Whether it has learned anything yet."""
    return hasattr(classifier.classifier, "state_")


def class_names(classifier: ImageClassifier) -> list[str]:
    """The classes as a page shows them."""
    return [str(label) for label in classifier.classes_] if is_fitted(classifier) else []


def shown_keys(classifier: ImageClassifier, keys: np.ndarray) -> list[str]:
    """The keys of those examples that have a picture to show; the same picture twice has one key."""
    return [f"{key:016x}" for key in dict.fromkeys(keys.tolist()) if key in classifier.thumbnails]


def until_rejection(classifier: FewShotClassifier) -> int | None:
    """How many more examples in classes of two or more it takes to tell what is none of these; None: never."""
    if np.isfinite(classifier.threshold_):
        return 0
    judged = int(np.where(classifier.support_.counts > 1, classifier.support_.kept_counts, 0).sum())
    return None if not classifier.reject else max(1, int(np.ceil(1 / classifier.reject - 1e-9)) - 1 - judged)


class Problem(BaseModel):
    """Why a request was refused."""

    detail: str


def _problems(*codes: int) -> dict[int | str, dict[str, Any]]:
    """What an operation may answer besides 200, for its description."""
    return {code: {"model": Problem} for code in (401, 403, 422, *codes)}


IMAGE: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {"image/*": {"schema": {"type": "string", "format": "binary"}}},
    }
}
JPEG: dict[int | str, dict[str, Any]] = {200: {"content": {"image/jpeg": {}}, "description": "A small picture."}}
UPLOADS = (408, 413, 415, 503)
NewName = Annotated[str, Query(json_schema_extra={"minLength": 1, "maxLength": MOST_NAME, "pattern": NAME})]


def make_app(shelf: ServedClassifier, hosts: tuple[str, ...] = LOOPBACK, token: str = "") -> FastAPI:
    """The application. Other host names are refused, so that no web page reaches it by taking its address; with a token
    whoever does not have it is."""
    app = FastAPI(title="anyshot", docs_url=None, redoc_url=None, openapi_url="/api/openapi.json")
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=list(hosts))
    app.add_middleware(Guard, token=token)
    _explain(app)
    budget = ByteBudget()

    # As many at once as there are cores: more would only wait for each other, each with memory of its own.
    work = partial(to_thread.run_sync, limiter=CapacityLimiter(max(2, os.cpu_count() or 2)))
    saver = CapacityLimiter(1)  # those who save wait in line, without a thread each
    page = files("anyshot.serve")
    scripts = ("page", "server", "ask", "cards", "camera")
    kinds = {"page.css": "text/css", "icon.svg": "image/svg+xml"} | {
        f"{name}.js": "text/javascript" for name in scripts
    }

    @app.get("/", response_class=HTMLResponse)
    def index() -> str:
        return (page / "page.html").read_text(encoding="utf-8")

    for name, kind in kinds.items():
        text = (page / name).read_text(encoding="utf-8")
        app.add_api_route(
            f"/{name}", lambda text=text, kind=kind: Response(text, media_type=kind), include_in_schema=False
        )

    @app.get("/api/classes", responses=_problems())
    def classes() -> dict[str, Any]:
        return shelf.about()

    @app.post("/api/classes/examples", responses=_problems(409, *UPLOADS), openapi_extra=IMAGE)
    async def add_example(request: Request, name: NewName) -> dict[str, Any]:
        label = name if name in shelf.classes else class_name(name)
        async with uploaded(request, budget) as image:
            await work(shelf.add, label, image)
        return await work(shelf.about)

    @app.delete("/api/classes", responses=_problems(404))
    async def remove_class(name: str) -> dict[str, Any]:
        removal = await work(shelf.remove, name)
        return await work(shelf.about) | {"removal": removal}

    @app.delete("/api/classes/examples", responses=_problems(404))
    async def remove_example(name: str, key: Annotated[str, Query(pattern="^[0-9a-f]{16}$")]) -> dict[str, Any]:
        removal = await work(shelf.remove, name, int(key, 16))
        return await work(shelf.about) | {"removal": removal}

    @app.post("/api/undo", responses=_problems(404))
    async def undo(removal: int) -> dict[str, Any]:
        await work(shelf.undo, removal)
        return await work(shelf.about)

    @app.post("/api/classify", responses=_problems(409, *UPLOADS), openapi_extra=IMAGE)
    async def classify(request: Request, by_shot: bool = True) -> dict[str, Any]:
        async with uploaded(request, budget) as image:
            return await work(shelf.classify, image, by_shot)

    @app.get("/api/thumbnails/{key}", responses=_problems(404) | JPEG, response_class=Response)
    def thumbnail(key: str) -> Response:
        try:
            return Response(shelf.now.thumbnails[int(key, 16)], media_type="image/jpeg")
        except (ValueError, KeyError):
            raise HTTPException(404, "There is no such example.") from None

    @app.post("/api/save", responses=_problems(409))
    async def save() -> dict[str, str]:
        await to_thread.run_sync(shelf.save, limiter=saver)
        return {"saved": "yes"}

    return app


def _explain(app: FastAPI) -> None:
    """Let every refusal say why, in a sentence."""

    @app.exception_handler(BadInput)
    async def bad_input(request: Request, error: BadInput) -> JSONResponse:
        return JSONResponse({"detail": to_one_line(error)}, 422)

    @app.exception_handler(RequestValidationError)
    async def bad_request(request: Request, error: RequestValidationError) -> JSONResponse:
        where = ", ".join(sorted({str(one["loc"][-1]) for one in error.errors()}))
        return JSONResponse({"detail": f"The request lacks {where}, or has something else in its place."}, 422)

    @app.exception_handler(405)
    async def wrong_method(request: Request, error: HTTPException) -> JSONResponse:
        """With all methods of the path: each of its routes knows its own alone."""
        routes = (route for route in app.routes if isinstance(route, Route))
        others = (route for route in routes if route.matches(request.scope)[0] is not Match.NONE)
        methods = sorted({method for route in others for method in route.methods or ()})
        return JSONResponse({"detail": "This path is not asked so."}, 405, {"Allow": ", ".join(methods)})
