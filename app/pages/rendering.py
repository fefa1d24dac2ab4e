"""Pages as answers: templates, what each page knows, headers that bind the browser, and errors."""

import json
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

from fastapi import Depends, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.access.auth import CallerDep, recognize
from app.access.browsers import COOKIE
from app.pages.assets import asset
from app.pages.formatting import FILTERS
from registry.jobs.states import ACTIVE
from registry.keys import Caller

TEMPLATES = Path(__file__).parents[1] / "templates"
# Nothing inline, nothing from elsewhere; samples are data: uris.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:;"
    " connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
# Swagger UI writes styles into its elements.
DOCS_POLICY = POLICY.replace("style-src 'self'", "style-src 'self' 'unsafe-inline'")
NOT_FOUND = 404
HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "X-Frame-Options": "DENY",
}


environment = Environment(
    loader=FileSystemLoader(TEMPLATES),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
environment.filters.update(FILTERS)
environment.globals.update(asset=asset, release=version("grasp-merge"), ACTIVE=ACTIVE)


def render(
    template: str,
    *,
    status_code: int = 200,
    caller: Caller | None = None,
    signed_in: bool = False,
    **context: Any,
) -> HTMLResponse:
    """A page; without a caller, one that anybody may see."""
    text = environment.get_template(template).render(
        caller=caller,
        signed_in=signed_in,
        may_write=caller is not None and caller.may("write"),
        **context,
    )
    return HTMLResponse(text, status_code, headers={"Cache-Control": "no-store"})


@dataclass(frozen=True)
class PageContext:
    """What a page knows of whoever asked for it."""

    caller: Caller
    signed_in: bool
    address: str  # of the service, as the browser knows it

    def render(self, template: str, **context: Any) -> HTMLResponse:
        return render(template, **vars(self), **context)


def get_page_context(request: Request, caller: CallerDep) -> PageContext:
    address = str(request.base_url).rstrip("/")
    return PageContext(caller, signed_in=COOKIE in request.cookies, address=address)


PageDep = Annotated[PageContext, Depends(get_page_context)]


class PageMiddleware:
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
            response = await _as_page(json.loads(self._problem), self._scope)
            for name, value in held["headers"]:
                if name.lower() in (b"x-request-id", b"retry-after", b"allow", b"connection"):
                    response.headers[name.decode()] = value.decode()
            await response(self._scope, self._receive, self.send)


def _bind(message: Message, path: str) -> None:
    headers = MutableHeaders(scope=message)
    headers["Content-Security-Policy"] = DOCS_POLICY if path == "/docs" else POLICY
    for name, value in HEADERS.items():
        headers[name] = value


async def _as_page(problem: dict[str, Any], scope: Scope) -> Response:
    """Whoever needs a key is asked for it, and comes back."""
    if problem["status"] == 401 and scope["path"] != "/ui/login" and scope["method"] == "GET":
        wanted = scope["path"] + (
            "?" + scope["query_string"].decode() if scope["query_string"] else ""
        )
        return RedirectResponse(f"/ui/login?next={quote(wanted, safe='/')}", 303)
    request = Request(scope)
    caller = await _find_caller(request, problem["status"])
    signed_in = caller is not None and COOKIE in request.cookies
    return render(
        "error.html",
        status_code=problem["status"],
        caller=caller,
        signed_in=signed_in,
        problem=problem,
    )


async def _find_caller(request: Request, status: int) -> Caller | None:
    """Who was let in; of a path that leads nowhere, nobody has asked yet."""
    caller: Caller | None = request.scope["state"].get("caller")
    if caller is None and status == NOT_FOUND:
        return await recognize(request, request.app.state.service)
    return caller
