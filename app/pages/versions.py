"""A version's report."""

from fastapi import APIRouter
from fastapi.responses import HTMLResponse

from app.fields import Number, Reference
from app.pages.measured import measured
from app.pages.origins import origins
from app.pages.rendering import PageDep
from app.pages.reports import flat, read_report, source_names
from app.service import ServiceDep
from app.show import show_model, show_version
from registry.blobs.damage import find_failure, find_version_problems, version_inputs
from registry.lookup import find_named
from registry.tables import Model, Source
from registry.versions import find_version

router = APIRouter()


@router.get("/ui/models/{model}/versions/{number}")
def show_version_page(
    model: Reference, number: Number, service: ServiceDep, page: PageDep
) -> HTMLResponse:
    with service.database.read() as session:
        row = find_named(session, Model, page.caller.owner, model)
        version = find_version(session, row, number)
        report = read_report(session, version.job_id)
        source = session.get(Source, version.source_id) if version.source_id else None
        problem = find_version_problems(session, [version]).get(version.number)
        return page.show(
            "version.html",
            model=show_model(row),
            version=show_version(version, problem),
            bad=find_failure(session, version_inputs(row, version).values()),
            source=source.name if source else None,
            measured=measured(report, row.classes or ()) if report else None,
            environment=flat(report.environment.model_dump()) if report else {},
            parameters=flat(report.config) if report else {},
            origins=origins(report, source_names(session, row.id)) if report else None,
        )
