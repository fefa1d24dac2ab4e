"""Who may do what: one table of operations, one dependency that denies what is not in it."""

import os
from datetime import datetime
from ipaddress import ip_address
from typing import Annotated, Final, Literal

from fastapi import Depends, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from sqlalchemy.exc import DBAPIError, OperationalError

from app.access.browsers import cookie_secret, split_url
from app.access.peers import PEER_UID
from app.access.tokens import is_token
from app.errors import Forbidden, KeyNeeded, NotTheOwner, Unauthorized
from app.service import Service, ServiceDep
from registry.keys import Caller, any_keys, authenticate, note_use, use_is_due
from registry.process.logs import get_log
from registry.tables import Scope, utc_now

PUBLIC: Final = "public"
POLICY: dict[str, Scope | Literal["public"]] = {
    "login_page": PUBLIC,
    "log_in": PUBLIC,
    "log_out": PUBLIC,
    "docs_page": PUBLIC,
    "get_asset": PUBLIC,  # scripts and styles, without data
    "models_page": "read",
    "list_architectures": "read",
    "model_page": "read",
    "version_page": "read",
    "comparison_page": "read",
    "jobs_page": "read",
    "job_page": "read",
    "upload_page": "write",
    "targets_page": "read",
    "target_page": "read",
    "workers_page": "read",
    "healthz": PUBLIC,
    "readyz": PUBLIC,
    "show_metrics": "admin",  # of all owners together
    "list_workers": "read",
    "create_target": "write",
    "list_targets": "read",
    "get_target": "read",
    "get_target_samples": "read",
    "delete_target": "write",
    "create_model": "write",
    "list_models": "read",
    "get_model": "read",
    "update_model": "write",
    "delete_model": "write",
    "download_model": "read",
    "list_versions": "read",
    "download_version": "read",
    "list_model_files": "read",
    "list_version_files": "read",
    "download_model_file": "read",
    "download_version_file": "read",
    "download_state": "read",
    "download_base": "read",
    "get_report": "read",
    "get_provenance": "read",
    "rollback_model": "write",
    "create_source": "write",
    "list_sources": "read",
    "get_source": "read",
    "show_upload_options": "read",
    "create_upload": "write",
    "list_uploads": "read",
    "get_upload": "read",
    "append_to_upload": "write",
    "delete_upload": "write",
    "list_jobs": "read",
    "get_job": "read",
    "get_job_report": "read",
    "stream_job_events": "read",
    "cancel_job": "write",
    "retry_job": "write",
    "retry_failed_jobs": "write",
}
LOCAL = Caller(owner="local", scope="admin")
# Headers of proxies, which speak for somebody who may be anywhere; and of X-Forwarded-… any.
OF_PROXIES = ("forwarded", "via", "x-real-ip")

log = get_log(__name__)
bearer = HTTPBearer(
    auto_error=False,
    description="A key made with `grasp admin keys create`; while there are none, who started the"
    " service needs none, on the same machine.",
)


def authorize(
    request: Request,
    service: ServiceDep,
    credentials: Annotated[HTTPAuthorizationCredentials | None, Depends(bearer)],
) -> Caller:
    """Let the request through, or raise Unauthorized or Forbidden."""
    needed = POLICY.get(request.scope["route"].name)
    if needed is None:
        raise Forbidden("this operation has no policy, so nobody may use it")
    if needed == PUBLIC:
        return Caller(owner="", scope="read")
    caller = identify(request, service, credentials)
    request.state.caller = caller  # for the log
    if not caller.may(needed):
        raise Forbidden(
            f"this needs a key of scope {needed}; yours has {caller.scope}",
            hint=f"grasp admin keys create --owner {caller.owner} --scope {needed}",
        )
    return caller


CallerDep = Annotated[Caller, Depends(authorize)]


def identify(
    request: Request, service: Service, credentials: HTTPAuthorizationCredentials | None
) -> Caller:
    """Whose key it is: of the header, or of whoever signed in. Raises Unauthorized, Forbidden."""
    now = utc_now()
    secret = credentials.credentials if credentials else cookie_secret(request)
    with service.database.read() as session:
        if not any_keys(session):
            _require_local(request, service, secret)
            return LOCAL
        found = authenticate(session, secret, now) if secret else None
    if found is None:
        raise KeyNeeded(
            "the key is unknown, revoked or expired" if secret else "a key is needed",
            hint="send `Authorization: Bearer <key>`; `grasp admin keys create` makes one",
        )
    caller, key = found
    if use_is_due(key, now):
        _note_use(service, key.id, now)
    return caller


async def recognize(request: Request, service: Service) -> Caller | None:
    """Who asks for what there is not, where nothing has to be allowed; None: nobody we know."""
    try:
        return await run_in_threadpool(identify, request, service, await bearer(request))
    except (Unauthorized, Forbidden, DBAPIError):
        return None


def _note_use(service: Service, key_id: str, now: datetime) -> None:
    """As far as the database can be written: on a full disk, all can still be read."""
    try:
        with service.database.write() as session:
            note_use(session, key_id, now)
    except OperationalError as error:
        log.warning("the use of a key is not noted", key=key_id, error=str(error.orig))


def opens(service: Service, secret: str) -> bool:
    """Whether it is a valid key or, while there are none, the token of who started the service."""
    with service.database.read() as session:
        if any_keys(session):
            return authenticate(session, secret, utc_now()) is not None
    return is_token(service.settings, secret)


def _require_local(request: Request, service: Service, secret: str | None) -> None:
    """Without keys only who started the service is let in, not the pages in their browser."""
    _require_this_machine(request, proxies=service.settings.open)
    known = service.settings.open or _is_owner(request)
    if not (known or (secret and is_token(service.settings, secret))):
        raise NotTheOwner(
            "there are no API keys, so only the user who started the service is served, and this"
            " connection is not known to be theirs: perhaps a proxy's, or another user's",
            hint="make a key with `grasp admin keys create --owner NAME --scope write` and send it;"
            " who started the service can also send the token in its home; GRASP_OPEN=1 serves"
            " every user of the machine, and its proxies",
        )


def _is_owner(request: Request) -> bool:
    """Root is, too: it can read the home, the token included."""
    uid = request.scope.get("state", {}).get(PEER_UID)
    return uid is not None and uid in (os.geteuid(), 0)


def _require_this_machine(request: Request, *, proxies: bool) -> None:
    server = request.scope.get("server")
    origin = request.headers.get("origin")
    host = request.headers.get("host", "")
    away = server is not None and not is_loopback(server[0])
    if away or (_is_passed_on(request) and not proxies):
        raise Unauthorized(
            "there are no API keys, so only loopback addresses are served, and no proxies",
            hint="make a key with `grasp admin keys create`",
        )
    if not is_loopback(split_url(f"//{host}").hostname or ""):
        raise Forbidden(
            f"the Host header says {host!r}, not this machine",
            hint="use http://127.0.0.1, or make a key with `grasp admin keys create`",
        )
    if origin and split_url(origin).netloc != host:
        raise Forbidden(f"the page {origin} may not use this service without a key")


def _is_passed_on(request: Request) -> bool:
    return any(name in OF_PROXIES or name.startswith("x-forwarded-") for name in request.headers)


def is_loopback(host: str) -> bool:
    """Names other than localhost are not resolved: what they mean may change after we looked."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
