"""Who may ask, and how much of the server one client may hold: the rules that stand before the API.

Other web pages are kept out by what browsers say of where a request comes from, strangers by a token where the server
is bound beyond loopback, and those who open many connections, or send slowly, by limits in number and time.
"""

import asyncio
import contextlib
import hmac
from collections.abc import AsyncIterator
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import parse_qs

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

MOST_CONNECTIONS = 128
REQUEST_SECONDS = 10.0  # until the head of a request has come
UPLOAD_SECONDS = 60.0  # until its body has
WAIT_SECONDS = 30.0  # for room among the uploads
MOST_UPLOADED = 64_000_000  # bytes of all uploads that are being read or worked on
COOKIE = "anyshot"
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


class Guard:
    """Around the application: refuses requests of other web pages and of those without the token, signs all answers."""

    def __init__(self, app: ASGIApp, token: str = "") -> None:
        self.app, self.token = app, token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def signed(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        refused = self._refused(scope)
        await (refused or self.app)(scope, receive, signed)

    def _refused(self, scope: Scope) -> Response | None:
        headers = Headers(scope=scope)
        if scope["path"].startswith("/api/") and is_foreign(headers):
            return JSONResponse({"detail": "Another web page may not ask this server."}, 403)
        if not self.token or self._is_known(headers):
            return None
        if scope["path"] == "/" and self._fits(parse_qs(scope["query_string"].decode("latin1")).get("token", [""])[0]):
            answer = RedirectResponse("/", 303)
            answer.set_cookie(COOKIE, self.token, httponly=True, samesite="strict")
            return answer
        return JSONResponse(
            {"detail": "Open the address that the server printed when it started: it has a token."}, 401
        )

    def _is_known(self, headers: Headers) -> bool:
        kind, _, given = headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer" and self._fits(given.strip()):
            return True
        with contextlib.suppress(CookieError):
            cookie = SimpleCookie(headers.get("cookie", "")).get(COOKIE)
            return cookie is not None and self._fits(cookie.value)
        return False

    def _fits(self, given: str) -> bool:
        return hmac.compare_digest(given.encode(), self.token.encode())


def is_foreign(headers: Headers) -> bool:
    """Whether a browser sent this for a page of another origin."""
    if headers.get("sec-fetch-site", "none") not in ("same-origin", "none"):
        return True
    origin = headers.get("origin")
    return origin is not None and origin.partition("://")[2].lower() != headers.get("host", "").lower()


class ByteBudget:
    """Room for so many bytes at once; who does not fit waits."""

    def __init__(self, size: int = MOST_UPLOADED) -> None:
        self.size, self.used = size, 0
        self._freed = asyncio.Condition()

    @contextlib.asynccontextmanager
    async def room(self, size: int) -> AsyncIterator[None]:
        """Hold this many bytes of it; a TimeoutError where there is no room for long."""
        async with asyncio.timeout(WAIT_SECONDS), self._freed:
            await self._freed.wait_for(lambda: self.used + size <= self.size)
            self.used += size
        try:
            yield
        finally:
            async with self._freed:
                self.used -= size
                self._freed.notify_all()


class TimedConnection(H11Protocol):
    """A connection that must come to the point: where a request's head is not there in time it is closed, and where
    there are too many, the oldest that asks nothing goes first."""

    _timer: asyncio.TimerHandle | None = None

    @property
    def is_busy(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.born = self.loop.time()
        if len(self.connections) > MOST_CONNECTIONS:
            others = [one for one in self.connections if isinstance(one, TimedConnection) and not one.is_busy]
            min(others, key=lambda one: one.born).transport.abort()  # ourselves at the worst
        self._watch()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        super().connection_lost(exc)

    def _watch(self) -> None:
        if self.is_busy and self._timer is not None:
            self._timer.cancel()
            self._timer = None
        elif not self.is_busy and self._timer is None:
            self._timer = self.loop.call_later(REQUEST_SECONDS, self._give_up)

    def _give_up(self) -> None:
        self._timer = None
        if not self.is_busy and not self.transport.is_closing():
            self.transport.abort()
