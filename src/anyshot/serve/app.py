"""The HTTP API.

GET    /                              the page
GET    /api/classes                   classes, counts, recalls, examples, calibration
POST   /api/classes/examples?name=    an image as the body: one more example of a class, old or new
DELETE /api/classes/examples?name=&key=   remove an example
DELETE /api/classes?name=             remove a class
GET    /api/review                    examples whose labels may be wrong, and copies
POST   /api/corrections?name=&key=&decision=&new_name=   keep, relabel or drop an example; answers with a number
GET    /api/corrections               all such decisions as a table (CSV) for `anyshot fit --corrections`
POST   /api/undo?removal=             undo a removal or a correction, by the number that it answered with
POST   /api/classify                  an image as the body: its class, probabilities of all classes, nearest examples;
                                      with by_shot=true also the answers with fewer examples per class
GET    /api/thumbnails/KEY            a small JPEG of an example
POST   /api/save                      write to the folder that the server was started with; with merge=true, add what
                                      another program has saved there meanwhile
"""

import asyncio
from importlib.resources import files
from typing import Annotated, Any, Literal

from fastapi import FastAPI, HTTPException, Query, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, Response
from pydantic import BaseModel
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.routing import Match, Route

from anyshot.errors import BadInput
from anyshot.serve.guard import Guard
from anyshot.serve.state import ServedClassifier
from anyshot.serve.uploads import MAX_NAME_LENGTH, MAX_UPLOADS, NAME_PATTERN, check_class_name, read_image_upload
from anyshot.text import to_one_line

LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
SCRIPTS = ("page", "server", "ask", "cards", "camera", "review")
ASSETS = {"page.css": "text/css", "icon.svg": "image/svg+xml"} | {f"{name}.js": "text/javascript" for name in SCRIPTS}


class Problem(BaseModel):
    """Why a request was refused."""

    detail: str


PROBLEMS: dict[int | str, dict[str, Any]] = {
    code: {"model": Problem} for code in (401, 403, 404, 408, 409, 413, 415, 422, 431, 503)
}
IMAGE_BODY: dict[str, Any] = {
    "requestBody": {"required": True, "content": {"image/*": {"schema": {"type": "string", "format": "binary"}}}}
}
JPEG: dict[int | str, dict[str, Any]] = {200: {"content": {"image/jpeg": {}}, "description": "A small picture."}}
CSV: dict[int | str, dict[str, Any]] = {200: {"content": {"text/csv": {}}, "description": "A table."}}
NewName = Annotated[
    str, Query(json_schema_extra={"minLength": 1, "maxLength": MAX_NAME_LENGTH, "pattern": NAME_PATTERN})
]
Decision = Literal["keep", "relabel", "drop"]
Key = Annotated[str, Query(pattern="^[0-9a-f]{16}$")]


def make_app(served: ServedClassifier, hosts: tuple[str, ...] = LOOPBACK, token: str = "") -> FastAPI:
    """Return the application.

    Args:
        served: The classifier.
        hosts: Host names that are answered; others are refused, so that no web page reaches the server by pretending
            to be at its address.
        token: What clients must know, where it is not empty.
    """
    app = FastAPI(title="anyshot", docs_url=None, redoc_url=None, openapi_url="/api/openapi.json", responses=PROBLEMS)
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=list(hosts))
    app.add_middleware(Guard, token=token)
    _add_error_handlers(app)
    _add_page(app)
    _add_operations(app, served)
    return app


def _add_page(app: FastAPI) -> None:
    """Serve the page with its style and scripts."""
    folder = files("anyshot.serve")

    @app.get("/", response_class=HTMLResponse)
    def index() -> str:
        return (folder / "page.html").read_text(encoding="utf-8")

    for name, kind in ASSETS.items():
        text = (folder / name).read_text(encoding="utf-8")
        app.add_api_route(
            f"/{name}", lambda text=text, kind=kind: Response(text, media_type=kind), include_in_schema=False
        )


def _add_operations(app: FastAPI, served: ServedClassifier) -> None:
    """Add the operations of the API, which are listed at the top of this module."""
    slots = asyncio.Semaphore(MAX_UPLOADS)

    @app.get("/api/classes")
    def classes() -> dict[str, Any]:
        return served.describe()

    @app.post("/api/classes/examples", openapi_extra=IMAGE_BODY)
    async def add_example(request: Request, name: NewName) -> dict[str, Any]:
        label = name if name in served.class_names else check_class_name(name)
        async with read_image_upload(request, slots) as image:
            await run_in_threadpool(served.add, label, image)
        return await run_in_threadpool(served.describe)

    @app.delete("/api/classes")
    def remove_class(name: str) -> dict[str, Any]:
        return {"removal": served.remove(name)} | served.describe()

    @app.delete("/api/classes/examples")
    def remove_example(name: str, key: Key) -> dict[str, Any]:
        return {"removal": served.correct(name, int(key, 16), "drop")} | served.describe()

    @app.get("/api/review")
    def review() -> list[dict[str, Any]]:
        return served.list_doubtful()

    @app.post("/api/corrections")
    def correct(name: str, key: Key, decision: Decision, new_name: NewName | None = None) -> dict[str, Any]:
        if decision == "relabel" and new_name is None:
            raise HTTPException(409, "A new label needs a name: give the class as new_name.")
        is_new = decision == "relabel" and new_name not in served.class_names
        new = check_class_name(new_name or "") if is_new else new_name or ""
        return {"removal": served.correct(name, int(key, 16), decision, new)} | served.describe()

    @app.get("/api/corrections", responses=CSV, response_class=Response)
    def corrections() -> Response:
        return Response(served.corrections(), media_type="text/csv")

    @app.post("/api/undo")
    def undo(removal: int) -> dict[str, Any]:
        served.undo(removal)
        return served.describe()

    @app.post("/api/classify", openapi_extra=IMAGE_BODY)
    async def classify(request: Request, by_shot: bool = False) -> dict[str, Any]:
        async with read_image_upload(request, slots) as image:
            return await run_in_threadpool(served.classify, image, by_shot)

    @app.get("/api/thumbnails/{key}", responses=JPEG, response_class=Response)
    def thumbnail(key: str) -> Response:
        try:
            return Response(served.current.thumbnails[int(key, 16)], media_type="image/jpeg")
        except (ValueError, KeyError):
            raise HTTPException(404, "There is no such example.") from None

    @app.post("/api/save")
    def save(merge: bool = False) -> dict[str, str]:
        served.save(merge)
        return {"saved": "yes"}


def _add_error_handlers(app: FastAPI) -> None:
    """Answer every refusal with a sentence that says why."""

    @app.exception_handler(BadInput)
    async def bad_input(request: Request, error: BadInput) -> JSONResponse:
        return JSONResponse({"detail": to_one_line(error)}, 422)

    @app.exception_handler(RequestValidationError)
    async def bad_request(request: Request, error: RequestValidationError) -> JSONResponse:
        names = ", ".join(sorted({str(one["loc"][-1]) for one in error.errors()}))
        return JSONResponse({"detail": f"Missing or invalid parameter: {names}."}, 422)

    @app.exception_handler(405)
    async def wrong_method(request: Request, error: HTTPException) -> JSONResponse:
        """Name all methods of the path: each of its routes knows only its own."""
        routes = (route for route in app.routes if isinstance(route, Route))
        matching = (route for route in routes if route.matches(request.scope)[0] is not Match.NONE)
        methods = sorted({method for route in matching for method in route.methods or ()})
        return JSONResponse({"detail": "Method not allowed."}, 405, {"Allow": ", ".join(methods)})
