"""Who is alive, and doing what."""

from fastapi import APIRouter
from fastapi.responses import HTMLResponse

from app.pages.rendering import PageDep
from app.routes.system import show_worker
from app.service import ServiceDep
from registry.jobs.workers import list_workers

router = APIRouter()


@router.get("/ui/workers")
def show_workers(service: ServiceDep, page: PageDep) -> HTMLResponse:
    with service.database.read() as session:
        rows = list_workers(session)
        workers = [show_worker(session, row, service, page.caller) for row in rows]
    return page.show("workers.html", workers=workers)
