"""Around every page: headers that bind the browser, and errors as pages."""

import json
from typing import Any
from urllib.parse import quote

from fastapi.responses import RedirectResponse, Response
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.pages.rendering import render

# Nothing inline, nothing from elsewhere; sample images are data: uris.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:;"
    " connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
# Swagger UI writes styles into its elements.
DOCS_POLICY = POLICY.replace("style-src 'self'", "style-src 'self' 'unsafe-inline'")
HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "X-Frame-Options": "DENY",
}


class PageAnswers:
    """Gives pages their headers, and makes pages of the problems that they answer with."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and is_page(scope["path"]):
            await self.app(scope, receive, _Answer(scope, receive, send).send)
        else:
            await self.app(scope, receive, send)


def is_page(path: str) -> bool:
    return path in ("/", "/docs") or path.startswith("/ui/")


class _Answer:
    """One answer: passed on, but for a problem, which is held back until it is whole."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._scope, self._receive, self._send = scope, receive, send
        self._problem = bytearray()
        self._held: Message | None = None

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            kind = Headers(raw=message["headers"]).get("content-type", "")
            if kind == "application/problem+json":
                self._held = message
                return
            _bind(message, self._scope["path"])
        if self._held is None:
            await self._send(message)
            return
        self._problem += message.get("body", b"")
        if not message.get("more_body", False):
            held, self._held = self._held, None
            response = _as_page(json.loads(self._problem), self._scope)
            for name, value in held["headers"]:
                if name.lower() in (b"x-request-id", b"retry-after", b"allow", b"connection"):
                    response.headers[name.decode()] = value.decode()
            await response(self._scope, self._receive, self.send)


def _bind(message: Message, path: str) -> None:
    headers = MutableHeaders(scope=message)
    headers["Content-Security-Policy"] = DOCS_POLICY if path == "/docs" else POLICY
    for name, value in HEADERS.items():
        headers[name] = value


def _as_page(problem: dict[str, Any], scope: Scope) -> Response:
    """Whoever needs a key is asked for it, and comes back."""
    if problem["status"] == 401 and scope["path"] != "/ui/login" and scope["method"] == "GET":
        wanted = scope["path"] + (
            "?" + scope["query_string"].decode() if scope["query_string"] else ""
        )
        return RedirectResponse(f"/ui/login?next={quote(wanted, safe='/')}", 303)
    return render("error.html", status_code=problem["status"], problem=problem)
