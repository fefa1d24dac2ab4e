"""Signing in with a key, and out again."""

import re
from typing import Annotated
from urllib.parse import parse_qs

from fastapi import APIRouter, Query, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import RedirectResponse, Response

from app.auth import identify
from app.browsers import is_own, sign_in, sign_out
from app.errors import Forbidden, KeyNeeded, TooLarge
from app.pages.rendering import render
from app.service import Service, ServiceDep
from registry.keys import authenticate
from registry.tables import utc_now

MAX_FORM = 4096
OWN_PATH = re.compile(r"/(?![/\\])")  # two of them begin the name of a host
SEE_OTHER = 303

router = APIRouter()
Next = Annotated[str, Query(max_length=2000)]


@router.get("/ui/login")
def show_login(request: Request, service: ServiceDep, next: Next = "/") -> Response:  # noqa: A002
    """Who needs no key, or has given one, goes on at once."""
    try:
        identify(request, service, None)
    except KeyNeeded:
        return render("login.html", next=next, error=None)
    return _go(next)


@router.post("/ui/login")
async def log_in(request: Request, service: ServiceDep, next: Next = "/") -> Response:  # noqa: A002
    _require_own(request)
    secret = await _key(request)
    if not await run_in_threadpool(_is_valid, service, secret):
        error = "This key is unknown, revoked or expired."
        return render("login.html", status_code=401, next=next, error=error)
    response = _go(next)
    sign_in(response, request, secret)
    return response


@router.post("/ui/logout")
def log_out(request: Request) -> Response:
    _require_own(request)
    response = RedirectResponse("/ui/login", SEE_OTHER)
    sign_out(response)
    return response


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


def _is_valid(service: Service, secret: str) -> bool:
    with service.database.read() as session:
        return authenticate(session, secret, utc_now()) is not None


def _go(path: str) -> RedirectResponse:
    """To a page of ours, whatever the address says."""
    return RedirectResponse(path if OWN_PATH.match(path) else "/", SEE_OTHER)
