"""What needs no key: signing in with one, and out again, and the API's documentation."""

import re
from typing import Annotated
from urllib.parse import parse_qs

from fastapi import APIRouter, Query, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import HTMLResponse, RedirectResponse, Response

from app.access.auth import identify, opens
from app.access.browsers import is_own, sign_in, sign_out
from app.access.tokens import is_token
from app.errors import Forbidden, KeyNeeded, NotTheOwner, TooLarge
from app.pages.rendering import render
from app.service import ServiceDep

MAX_FORM = 4096
OWN_PATH = re.compile(r"/(?![/\\])")  # two of them begin the name of a host
SEE_OTHER = 303

router = APIRouter()
Next = Annotated[str, Query(max_length=2000)]


@router.get("/ui/login")
def login_page(
    request: Request,
    service: ServiceDep,
    next: Next = "/",  # noqa: A002
    token: Annotated[str, Query(max_length=MAX_FORM)] = "",
) -> Response:
    """Who needs no key, or has given one, goes on at once; the address may have the token."""
    if token and is_own(request) and is_token(service.settings, token):
        return _signed_in(request, token, next)
    try:
        identify(request, service, None)
    except KeyNeeded as error:
        keyless = isinstance(error, NotTheOwner)
        return render("login.html", next=next, error=None, keyless=keyless)
    return _go(next)


@router.post("/ui/login")
async def log_in(request: Request, service: ServiceDep, next: Next = "/") -> Response:  # noqa: A002
    _require_own(request)
    secret = await _key(request)
    if not await run_in_threadpool(opens, service, secret):
        error = "This key is unknown, revoked or expired."
        return render("login.html", status_code=401, next=next, error=error, keyless=False)
    return _signed_in(request, secret, next)


@router.post("/ui/logout")
def log_out(request: Request) -> Response:
    _require_own(request)
    response = RedirectResponse("/ui/login", SEE_OTHER)
    sign_out(response)
    return response


@router.get("/docs")
def docs_page() -> HTMLResponse:
    """From files of an installed package."""
    return render("docs.html")


def _require_own(request: Request) -> None:
    """Nobody is to be signed in, or out, by a page of another site."""
    if not is_own(request):
        raise Forbidden("this form was sent by another site", hint="open /ui/login yourself")


async def _key(request: Request) -> str:
    body = bytearray()
    async for data in request.stream():
        body += data
        if len(body) > MAX_FORM:
            raise TooLarge(f"this form may have {MAX_FORM} bytes")
    fields = parse_qs(body.decode("utf-8", "replace"))
    return fields.get("key", [""])[0].strip()


def _signed_in(request: Request, secret: str, path: str) -> Response:
    response = _go(path)
    sign_in(response, request, secret)
    return response


def _go(path: str) -> RedirectResponse:
    """To a page of ours, whatever the address says."""
    return RedirectResponse(path if OWN_PATH.match(path) else "/", SEE_OTHER)
