"""Protect the server from other web pages, and from clients without the token.

Browsers tell where a request comes from, which keeps other web pages out. Beyond loopback a token keeps strangers out.
"""

import hmac

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import HTTPConnection
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

MAX_HEADER_BYTES = 16_384  # of a request's head
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

        await (self._refuse(HTTPConnection(scope)) or self.app)(scope, receive, send_with_headers)

    def _refuse(self, request: HTTPConnection) -> Response | None:
        """Return the answer to a request that may not pass, or that brings the token; None where it may pass."""
        if sum(len(name) + len(value) for name, value in request.headers.raw) > MAX_HEADER_BYTES:
            return JSONResponse({"detail": f"The head of a request may have {MAX_HEADER_BYTES} bytes."}, 431)
        if request.scope["path"].startswith("/api/") and is_cross_origin(request.headers):
            return JSONResponse({"detail": "Other web pages may not use this server."}, 403)
        kind, _, bearer = request.headers.get("authorization", "").partition(" ")
        tokens = bearer.strip() if kind.lower() == "bearer" else "", request.cookies.get(COOKIE, "")
        if not self.token or any(map(self._is_token, tokens)):
            return None
        if request.scope["path"] == "/" and self._is_token(request.query_params.get("token", "")):
            answer = RedirectResponse("/", 303)
            answer.set_cookie(COOKIE, self.token, httponly=True, samesite="strict")
            return answer
        return JSONResponse(
            {"detail": "Open the address that the server printed when it started: it contains a token."}, 401
        )

    def _is_token(self, given: str) -> bool:
        """Compare in constant time, so that the time of an answer does not give the token away."""
        return hmac.compare_digest(given.encode(), self.token.encode())


def is_cross_origin(headers: Headers) -> bool:
    """Return whether a browser sent this for a page of another origin."""
    if headers.get("sec-fetch-site", "none") not in ("same-origin", "none"):
        return True
    origin = headers.get("origin")
    return origin is not None and origin.partition("://")[2].lower() != headers.get("host", "").lower()
