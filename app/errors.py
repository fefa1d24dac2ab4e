"""Every error as RFC 9457 problem+json, with a stable `code`; the one table of statuses."""

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field
from sqlalchemy.exc import (
    DBAPIError,
    InterfaceError,
    InternalError,
    NoResultFound,
    OperationalError,
    ProgrammingError,
)
from sqlalchemy.exc import TimeoutError as PoolTimeout
from starlette.exceptions import HTTPException
from starlette.routing import Match

from app.http.downloads import RangeNotSatisfiable
from grasp_core.config import plain_words
from grasp_core.errors import GraspError, shorten
from registry.database import explain, is_full
from registry.errors import Conflict
from registry.process.logs import get_log

STATUS: dict[str, int] = {
    "invalid_multipart": 400,
    "invalid_json": 400,
    "invalid_checksum": 400,
    "invalid_host": 400,
    "invalid_http": 400,
    "unauthorized": 401,
    "forbidden": 403,
    "not_found": 404,
    "too_slow": 408,
    "conflict": 409,
    "name_taken": 409,
    "still_used": 409,
    "no_version": 409,
    "stale_base": 409,
    "offset_mismatch": 409,
    "upload_unfinished": 409,
    "bytes_gone": 410,
    "precondition_failed": 412,
    "unsupported_tus": 412,
    "too_large": 413,
    "unsupported_media_type": 415,
    "range_not_satisfiable": 416,
    "invalid_request": 422,
    "invalid_config": 422,
    "invalid_checkpoint": 422,
    "checkpoint_mismatch": 422,
    "unknown_architecture": 422,
    "digest_mismatch": 422,
    "idempotency_key_reused": 422,
    "uri_not_allowed": 422,
    "uri_unreachable": 422,
    "head_too_large": 431,
    "checksum_mismatch": 460,
    "unavailable": 503,
    "storage_error": 503,
    "storage_full": 507,
}
METHODS = ("DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT")
CODES = {404: "not_found", 405: "method_not_allowed", 400: "invalid_json", 413: "too_large"}
RETRY_SECONDS = 5
MAX_LISTED = 50  # wrong values; whoever sends thousands makes one mistake
MAX_SHOWN = 300  # characters of where one is, and of what is wrong with it
MAX_DETAIL = 6000  # characters: names that a stranger chose can have megabytes
CHECKSUM_MISMATCH = 460  # of tus alone: no RFC knows it
FULL = "the disk of the database is full"
NO_SUCH_TABLE_OR_COLUMN = ("42P01", "42703")  # as PostgreSQL says it


class FieldError(BaseModel):
    where: str = Field(description="Path of the value, such as body.merge.refine.epochs.")
    message: str


class Missing(BaseModel):
    kind: str = Field(description="model, target, source, job or upload.")
    name: str = Field(description="The name or id that was asked for.")


class Problem(BaseModel):
    """What went wrong, where, and how to put it right."""

    type: str = Field("about:blank", description="Always about:blank: `code` says which it is.")
    title: str = Field(description="The status in words.", examples=["Not Found"])
    status: int = Field(examples=[404])
    detail: str = Field(examples=["there is no model 'faces'"])
    code: str = Field(description="Stable name of the error.", examples=["not_found"])
    hint: str | None = Field(None, examples=["GET /models lists those you can see"])
    request_id: str | None = Field(None, description="Find it in the logs by this.")
    errors: list[FieldError] | None = Field(
        None, description=f"The values that are wrong, at most {MAX_LISTED} of them."
    )
    mismatches: dict[str, Any] | None = Field(
        None,
        description="How a checkpoint differs from its model, by tensor name; `more` counts those"
        " that are left out.",
    )
    file: str | None = Field(None, description="With mismatches: the checkpoint's name.")
    architecture: str | None = Field(None, description="With mismatches: the model's.")
    only_head: bool | None = Field(
        None, description="With mismatches: `classes`, the names of its outputs, would mend them."
    )
    convertible: bool | None = Field(
        None, description="With `invalid_checkpoint`: `grasp convert` can make safetensors of it."
    )
    missing: Missing | None = Field(None, description="With `not_found`: what there is none of.")


class TooLarge(GraspError):
    code = "too_large"


class Unauthorized(GraspError):
    code = "unauthorized"


class KeyNeeded(Unauthorized):
    """This request came without a valid one."""


class NotTheOwner(KeyNeeded):
    """There are no keys, and it is not known to come from who started the service."""


class Forbidden(GraspError):
    code = "forbidden"


class DigestMismatch(GraspError):
    code = "digest_mismatch"


class InvalidJson(GraspError):
    code = "invalid_json"


def install_error_handlers(app: FastAPI) -> None:
    app.add_exception_handler(GraspError, _on_grasp_error)
    app.add_exception_handler(RequestValidationError, _on_validation_error)
    app.add_exception_handler(HTTPException, _on_http_exception)
    app.add_exception_handler(NoResultFound, _on_deleted)
    for unreachable in (OperationalError, InternalError, InterfaceError, PoolTimeout):
        app.add_exception_handler(unreachable, _on_database_error)
    app.add_exception_handler(ProgrammingError, _on_programming_error)


def problem(
    status: int,
    code: str,
    detail: str,
    *,
    headers: Mapping[str, str] | None = None,
    **extra: Any,
) -> JSONResponse:
    body = Problem(
        title=phrase(status),
        status=status,
        detail=shorten(detail, MAX_DETAIL),
        code=code,
        request_id=structlog.contextvars.get_contextvars().get("request_id"),
        **extra,
    )
    return JSONResponse(
        body.model_dump(mode="json", exclude_none=True),
        status_code=status,
        headers=headers,
        media_type="application/problem+json",
    )


def phrase(status: int) -> str:
    return "Checksum Mismatch" if status == CHECKSUM_MISMATCH else HTTPStatus(status).phrase


def field_errors(errors: Any) -> list[FieldError]:
    return [
        FieldError(
            where=shorten(".".join(map(str, error["loc"])), MAX_SHOWN),
            message=shorten(plain_words(error["msg"]), MAX_SHOWN),
        )
        for error in errors
    ]


async def _on_grasp_error(_request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, GraspError)  # noqa: S101 - registered for these alone
    status = STATUS.get(error.code, 409 if isinstance(error, Conflict) else 500)
    if status == 500:
        get_log(__name__).error("unexpected error", code=error.code, exc_info=error)
    said = {"hint": error.hint, **error.fields()}
    return problem(status, error.code, error.message, headers=_headers(error, status), **said)


def _headers(error: GraspError, status: int) -> dict[str, str] | None:
    if isinstance(error, RangeNotSatisfiable):
        return {"Content-Range": f"bytes */{error.size}"}
    if status == 401:
        return {"WWW-Authenticate": "Bearer"}
    return {"Retry-After": str(RETRY_SECONDS)} if status == 503 else None


async def _on_validation_error(_request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)  # noqa: S101
    found = error.errors()
    if any(e["type"] == "json_invalid" for e in found):
        return problem(400, "invalid_json", "the body is not JSON", errors=field_errors(found))
    listed = field_errors(found[:MAX_LISTED])
    wrong = [f"{e.where}: {e.message}" for e in listed]
    if len(found) > MAX_LISTED:
        wrong.append(f"and {len(found) - MAX_LISTED} more")
    detail = "; ".join(wrong)
    return problem(422, "invalid_request", detail, errors=listed)


async def _on_http_exception(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)  # noqa: S101
    status, headers = error.status_code, error.headers
    if status == 405:
        headers = {"Allow": ", ".join(_allowed(request))}
    code = CODES.get(status, HTTPStatus(status).phrase.lower().replace(" ", "_"))
    hint = {404: "GET /docs lists every path", 405: "the Allow header says which do"}.get(status)
    return problem(status, code, error.detail, headers=headers, hint=hint)


def _allowed(request: Request) -> list[str]:
    """The methods of this path: the router names only those of the first route it tried."""
    return [
        method
        for method in METHODS
        if any(
            route.matches({**request.scope, "method": method})[0] is Match.FULL
            for route in request.app.routes
        )
    ]


async def _on_deleted(_request: Request, _error: Exception) -> JSONResponse:
    return problem(404, "not_found", "it was deleted while this was asked")


async def _on_database_error(_request: Request, error: Exception) -> JSONResponse:
    if isinstance(error, DBAPIError) and is_full(error):
        get_log(__name__).error(FULL, exc_info=error)
        return problem(507, "storage_full", FULL, hint="make room, then try again")
    if isinstance(error, DBAPIError):
        why, hint = explain(error)
    else:
        why, hint = "the database does not answer", "all its connections are in use: try again"
    return _unavailable(error, why, hint)


async def _on_programming_error(_request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, ProgrammingError)  # noqa: S101
    if getattr(error.orig, "sqlstate", None) not in NO_SUCH_TABLE_OR_COLUMN:
        return unexpected(error)
    hint = "an operator can mend that with `grasp admin migrate`"
    return _unavailable(error, "the tables of the database are not of this release", hint)


def _unavailable(error: Exception, why: str, hint: str) -> JSONResponse:
    get_log(__name__).error(why, exc_info=error)
    headers = {"Retry-After": str(RETRY_SECONDS)}
    return problem(503, "unavailable", why, headers=headers, hint=hint)


def unexpected(error: Exception) -> JSONResponse:
    """The answer to a request that raised what nobody foresaw."""
    get_log(__name__).error("unhandled error", exc_info=error)
    return problem(
        500, "internal_error", "something unexpected went wrong", hint="the log has the details"
    )
