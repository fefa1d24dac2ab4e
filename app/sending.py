"""A stored blob as the answer to a request: from here, from a proxy, or from the store itself."""

from datetime import datetime
from typing import Literal, NamedTuple

from fastapi import Request, Response

from app.http.downloads import send_elsewhere, send_file
from app.service import Service
from registry.blobs.damage import find_problems, forget_problems
from registry.jobs.queue import ring_waiting
from registry.tables import utc_now

PRESIGNED_SECONDS = 900  # to begin a download; resuming a broken one asks here again


class Download(NamedTuple):
    """A blob, as it is downloaded."""

    sha256: str
    size: int
    name: str
    modified: datetime


def send(service: Service, request: Request, file: Download) -> Response:
    with service.database.read() as session:
        was_bad = bool(find_problems(session, [file.sha256]))
    url = _presign(service, request, file.sha256)
    if url is not None:
        return send_elsewhere(request, url, sha256=file.sha256, modified=file.modified)
    with service.noting(file.sha256):
        response = _send_from_here(service, request, file)
    if was_bad and _has_bytes(request, response):
        with service.database.write() as session:
            forget_problems(session, [file.sha256])
            ring_waiting(session, utc_now())
    return response


def _presign(service: Service, request: Request, sha256: str) -> str | None:
    """Where the bytes can be had instead; None if they are to be sent from here.

    Clients repeat their headers there, where an If-Match with our ETag would not hold.
    """
    if not service.settings.presigned_downloads:
        return None
    if "if-match" in request.headers or "if-unmodified-since" in request.headers:
        return None
    method: Literal["GET", "HEAD"] = "HEAD" if request.method == "HEAD" else "GET"
    return service.store.sign(sha256, PRESIGNED_SECONDS, method)


def _send_from_here(service: Service, request: Request, file: Download) -> Response:
    """From this machine's disk, where a damaged copy is replaced before a byte of it is sent.

    Raises BlobDamaged.
    """
    prefix, sha256 = service.settings.accel_redirect, file.sha256
    path = service.store.fetch(sha256)
    if path.stat().st_size != file.size:  # and so its ranges would be wrong
        path = service.verifier.fetch(service.store, sha256)
    response = send_file(
        request,
        path,
        sha256=sha256,
        filename=file.name,
        modified=file.modified,
        accel_redirect=f"{prefix.rstrip('/')}/{sha256[:2]}/{sha256}" if prefix else None,
    )
    if _has_bytes(request, response):
        service.verifier.fetch(service.store, sha256)
    return response


def _has_bytes(request: Request, response: Response) -> bool:
    return request.method == "GET" and response.status_code in (200, 206)
