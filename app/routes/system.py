"""How the service itself is: alive, ready, at work."""

from collections.abc import Callable
from importlib.metadata import version
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import JSONResponse
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from app.access.auth import CallerDep
from app.fields import Cursor, Limit
from app.metrics import CONTENT_TYPE, render_metrics
from app.openapi import problems
from app.schemas import Health, Page, Readiness, WorkerRead
from app.serializers import serialize_worker
from app.service import Service, ServiceDep
from registry.blobs.base import StorageError
from registry.database import is_read_only
from registry.jobs.bell import broker_answers
from registry.jobs.workers import is_alive
from registry.jobs.workers import list_workers as list_worker_rows

router = APIRouter(tags=["system"])
RELEASE = version("grasp-merge")


@router.get("/healthz", summary="Is the process alive?")
def healthz() -> Health:
    """Says nothing about what stands behind it."""
    return Health(version=RELEASE)


@router.get(
    "/readyz",
    summary="Can the service work?",
    response_model=Readiness,
    responses={503: {"model": Readiness, "description": "Something it needs does not answer"}},
)
def readyz(request: Request, service: ServiceDep) -> JSONResponse:
    """Whether database and disk answer and can be written; how many workers are alive (none is
    still ready)."""
    starting: str | None = request.app.state.startup.reason
    checks = {
        "database": starting or _check(service.database.check),
        "blobs": _check(service.store.check),
    }
    ready = all(result == "ok" for result in checks.values())
    broker_url = service.settings.broker_url
    if broker_url is not None:  # without its rings work begins later, but begins
        checks["broker"] = "ok" if broker_answers(broker_url) else "does not answer"
    if ready:
        checks["workers"] = str(_living(service))
    body = Readiness(status="ready" if ready else "not ready", checks=checks)
    return JSONResponse(body.model_dump(), status_code=200 if ready else 503)


def _check(look: Callable[[], None]) -> str:
    try:
        look()
    except DBAPIError as error:
        return "cannot be written" if is_read_only(error) else type(error).__name__
    except (SQLAlchemyError, StorageError, OSError) as error:
        return type(error).__name__
    return "ok"


def _living(service: Service) -> int:
    with service.database.read() as session:
        return sum(is_alive(worker, service.settings) for worker in list_worker_rows(session))


@router.get("/workers", summary="Who is alive, and doing what", responses=problems())
def list_workers(
    service: ServiceDep,
    caller: CallerDep,
    alive: Annotated[bool | None, Query(description="Only those heard of lately, or not.")] = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> Page[WorkerRead]:
    with service.database.read() as session:
        rows = [
            worker
            for worker in list_worker_rows(session)
            if (cursor is None or worker.id > cursor)
            and (alive is None or is_alive(worker, service.settings) == alive)
        ]
        items = [serialize_worker(session, row, service.settings, caller) for row in rows[:limit]]
        return Page(items=items, next_cursor=items[-1].id if len(rows) > limit else None)


@router.get(
    "/metrics",
    summary="Prometheus metrics",
    response_class=Response,
    responses=problems()
    | {200: {"content": {"text/plain": {"schema": {"type": "string"}}}, "description": "Metrics"}},
)
def show_metrics(request: Request, service: ServiceDep) -> Response:
    with service.database.read() as session:
        text = render_metrics(session, service.settings, request.app.state.request_metrics)
    return Response(text, media_type=CONTENT_TYPE)
