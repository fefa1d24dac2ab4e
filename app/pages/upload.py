"""A checkpoint, from the browser into the queue."""

from fastapi import APIRouter
from fastapi.responses import HTMLResponse

from app.fields import RefFilter
from app.pages.rendering import PageDep
from app.service import ServiceDep
from app.show import show_model
from registry.lookup import MAX_PAGE, list_page
from registry.tables import Model

router = APIRouter()


@router.get("/ui/upload")
def show_upload(service: ServiceDep, page: PageDep, model: RefFilter = None) -> HTMLResponse:
    with service.database.read() as session:
        found = list_page(session, Model, page.caller.owner, [], limit=MAX_PAGE, cursor=None)
        return page.show(
            "upload.html",
            models=[show_model(row) for row in found.items if row.status != "failed"],
            chosen=model,
        )
