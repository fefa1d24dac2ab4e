"""Keys in browsers: a cookie, which counts only where our own pages or their user ask.

A page of another site can make a browser send requests here, but not these headers: so it can do
nothing with the key of whoever looks at it, even if the browser were to add the cookie.
"""

from urllib.parse import SplitResult, urlsplit

from fastapi import Request, Response

COOKIE = "grasp_key"
SAFE = ("GET", "HEAD")


def cookie_secret(request: Request) -> str | None:
    """The key of whoever signed in, unless another site is behind the request."""
    return request.cookies.get(COOKIE) if is_own(request) else None


def is_own(request: Request) -> bool:
    """Whether one of our pages makes this request, or their user by typing its address."""
    site = request.headers.get("sec-fetch-site")
    if site is not None:
        return site == "same-origin" or (site == "none" and request.method in SAFE)
    origin = request.headers.get("origin")  # all there is in old browsers, and without TLS
    if origin is None:
        return request.method in SAFE
    return split_url(origin).netloc == request.headers.get("host", "")


def split_url(url: str) -> SplitResult:
    """What cannot be understood names no host at all."""
    try:
        return urlsplit(url)
    except ValueError:
        return urlsplit("")


def sign_in(response: Response, request: Request, secret: str) -> None:
    """Let the browser keep the key until it is closed."""
    response.set_cookie(
        COOKIE, secret, httponly=True, samesite="strict", secure=request.url.scheme == "https"
    )


def sign_out(response: Response) -> None:
    response.delete_cookie(COOKIE, httponly=True, samesite="strict")
