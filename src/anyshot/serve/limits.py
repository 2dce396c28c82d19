"""Protect the server: from other web pages, from clients without the token, and from clients that hold resources.

Browsers tell where a request comes from, which keeps other web pages out. Beyond loopback a token keeps strangers out.
Limits in number and time bound what clients with many connections, or slow ones, can hold.
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

MAX_CONNECTIONS = 128
MAX_HEADER_BYTES = 16_384  # of a request's head
HEADER_SECONDS = 10.0  # until the head of a request is complete
UPLOAD_SECONDS = 60.0  # until its body is complete
GRACE_SECONDS = 5.0  # before the speed of an upload counts
MIN_BYTES_PER_SECOND = 200_000  # of an upload: a slower one would keep others waiting
WAIT_SECONDS = 30.0  # that an upload waits for the others to finish when the budget is used up
MAX_UPLOAD_BYTES = 64_000_000  # of all uploads that are being read or worked on
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
    """Middleware that refuses other web pages and clients without the token, and adds security headers."""

    def __init__(self, app: ASGIApp, token: str = "") -> None:
        self.app, self.token = app, token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer or refuse a request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        await (self._refuse(scope) or self.app)(scope, receive, send_with_headers)

    def _refuse(self, scope: Scope) -> Response | None:
        headers = Headers(scope=scope)
        if sum(len(name) + len(value) for name, value in scope["headers"]) > MAX_HEADER_BYTES:
            return JSONResponse({"detail": f"The head of a request may have {MAX_HEADER_BYTES} bytes."}, 431)
        if scope["path"].startswith("/api/") and is_cross_origin(headers):
            return JSONResponse({"detail": "Other web pages may not use this server."}, 403)
        if not self.token or self._has_token(headers):
            return None
        if scope["path"] == "/" and self._is_token(
            parse_qs(scope["query_string"].decode("latin1")).get("token", [""])[0]
        ):
            answer = RedirectResponse("/", 303)
            answer.set_cookie(COOKIE, self.token, httponly=True, samesite="strict")
            return answer
        return JSONResponse(
            {"detail": "Open the address that the server printed when it started: it contains a token."}, 401
        )

    def _has_token(self, headers: Headers) -> bool:
        kind, _, given = headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer" and self._is_token(given.strip()):
            return True
        with contextlib.suppress(CookieError):
            cookie = SimpleCookie(headers.get("cookie", "")).get(COOKIE)
            return cookie is not None and self._is_token(cookie.value)
        return False

    def _is_token(self, given: str) -> bool:
        return hmac.compare_digest(given.encode(), self.token.encode())


def is_cross_origin(headers: Headers) -> bool:
    """Return whether a browser sent this for a page of another origin."""
    if headers.get("sec-fetch-site", "none") not in ("same-origin", "none"):
        return True
    origin = headers.get("origin")
    return origin is not None and origin.partition("://")[2].lower() != headers.get("host", "").lower()


class ByteBudget:
    """A bound on the bytes of all uploads in memory; an upload that does not fit waits."""

    def __init__(self, size: int = MAX_UPLOAD_BYTES) -> None:
        self.size, self.used = size, 0
        self._freed = asyncio.Condition()

    @contextlib.asynccontextmanager
    async def reserve(self, size: int) -> AsyncIterator[None]:
        """Hold this many bytes; raise a TimeoutError if others hold them for too long."""
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
    """A connection with a deadline for the head of each request.

    Of too many connections the oldest idle one is closed. uvicorn has neither limit: `limit_concurrency` would refuse
    new clients instead, and so let idle connections block the page.
    """

    _timer: asyncio.TimerHandle | None = None

    @property
    def is_busy(self) -> bool:
        """Whether a request is being answered."""
        return self.cycle is not None and not self.cycle.response_complete

    def connection_made(self, transport: Any) -> None:
        """Start the deadline, and close the oldest idle connection if there are too many."""
        super().connection_made(transport)
        self.opened_at = self.loop.time()
        if len(self.connections) > MAX_CONNECTIONS:
            idle = [one for one in self.connections if isinstance(one, TimedConnection) and not one.is_busy]
            min(idle, key=lambda one: one.opened_at).transport.abort()  # possibly this one
        self._set_deadline()

    def data_received(self, data: bytes) -> None:
        """Handle data, and set the deadline anew."""
        super().data_received(data)
        self._set_deadline()

    def on_response_complete(self) -> None:
        """Finish a response, and start the deadline of the next request."""
        super().on_response_complete()
        self._set_deadline()

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the deadline."""
        if self._timer is not None:
            self._timer.cancel()
        super().connection_lost(exc)

    def _set_deadline(self) -> None:
        """Start the deadline while no request is being answered, and cancel it while one is."""
        if self.is_busy and self._timer is not None:
            self._timer.cancel()
            self._timer = None
        elif not self.is_busy and self._timer is None:
            self._timer = self.loop.call_later(HEADER_SECONDS, self._close_if_idle)

    def _close_if_idle(self) -> None:
        self._timer = None
        if not self.is_busy and not self.transport.is_closing():
            self.transport.abort()
