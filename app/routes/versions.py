"""Versions: what the folds of a model have made, to download, look into, and go back to."""

import json
from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Query, Request, Response
from pydantic import Field
from sqlalchemy import select
from sqlalchemy.orm import Session

from app.access.auth import CallerDep
from app.fields import MAX_INT, Limit, Number, Reference, RefFilter
from app.intake.idempotency import Created, OnceDep
from app.intake.receiving import json_body
from app.openapi import BINARY, CONDITIONS, REPORT, body_of, problems
from app.schemas import Contribution, Page, ParameterOrigin, ProvenanceRead, Rollback, VersionRead
from app.sending import Download, send
from app.serializers import serialize_version
from app.service import Service, ServiceDep
from grasp_core.provenance import Provenance
from registry.blobs.base import BlobDamaged, BlobMissing
from registry.blobs.damage import (
    find_version_problems,
    forget_problems,
    problem_of,
    version_inputs,
)
from registry.errors import BadVersion, BytesGone, NotFound
from registry.lookup import find_named
from registry.tables import Job, Model, Source, Version, utc_now
from registry.versions import find_best, find_version, rollback

router = APIRouter(tags=["versions"])


@router.get(
    "/models/{model}",
    summary="Download the newest merged weights, or the best",
    response_class=Response,
    responses=BINARY | problems(404, 409, 410, 412, 416),
    openapi_extra=CONDITIONS,
)
def download_model(
    model: Reference,
    request: Request,
    service: ServiceDep,
    caller: CallerDep,
    version: Annotated[
        Literal["newest", "best"] | Annotated[int, Field(ge=1, le=MAX_INT)],
        Query(description="A number; or best, by validation log-likelihood."),
    ] = "newest",
) -> Response:
    """Safetensors. Ranges, `If-None-Match` and HEAD work as one expects."""
    return send(service, request, _weights(service, caller.owner, model, version))


@router.get(
    "/models/{model}/versions",
    summary="List a model's versions, newest first",
    responses=problems(404),
)
def list_versions(
    model: Reference,
    service: ServiceDep,
    caller: CallerDep,
    source: RefFilter = None,
    available: Annotated[
        bool | None, Query(description="Whether the weights are still here.")
    ] = None,
    limit: Limit = 50,
    cursor: Annotated[
        int | None, Query(ge=0, le=MAX_INT, description="`next_cursor` of the page before.")
    ] = None,
) -> Page[VersionRead]:
    with service.database.read() as session:
        found = find_named(session, Model, caller.owner, model)
        query = select(Version).where(Version.model_id == found.id)
        if source is not None:
            query = query.where(Version.source_id == source)
        if available is not None:
            query = query.where(Version.pruned_at.is_(None) == available)
        if cursor is not None:
            query = query.where(Version.number < cursor)
        rows = session.scalars(query.order_by(Version.number.desc()).limit(limit + 1)).all()
        known = find_version_problems(session, rows)
        items = [serialize_version(row, known.get(row.number)) for row in rows[:limit]]
        more = str(items[-1].number) if len(rows) > limit else None
        return Page(items=items, next_cursor=more)


@router.get(
    "/models/{model}/versions/{number}",
    summary="Download any version's weights",
    response_class=Response,
    responses=BINARY | problems(404, 409, 410, 412, 416),
    openapi_extra=CONDITIONS,
)
def download_version(
    model: Reference, number: Number, request: Request, service: ServiceDep, caller: CallerDep
) -> Response:
    return send(service, request, _weights(service, caller.owner, model, number))


for path, endpoint in (
    ("/models/{model}", download_model),
    ("/models/{model}/versions/{number}", download_version),
):
    router.add_api_route(
        path, endpoint, methods=["HEAD"], include_in_schema=False, response_class=Response
    )


@router.get(
    "/models/{model}/versions/{number}/report",
    summary="Everything the fold behind a version measured",
    responses=REPORT | problems(404, 409),
)
def get_report(
    model: Reference, number: Number, service: ServiceDep, caller: CallerDep
) -> Response:
    with service.database.read() as session:
        version = _find(session, caller.owner, model, number)
        return Response(_report(session, version), media_type="application/json")


@router.get(
    "/models/{model}/versions/{number}/provenance",
    summary="Which source each parameter came from",
    responses=problems(404, 409),
)
def get_provenance(
    model: Reference, number: Number, service: ServiceDep, caller: CallerDep
) -> ProvenanceRead:
    with service.database.read() as session:
        version = _find(session, caller.owner, model, number)
        report = json.loads(_report(session, version))
        query = select(Source).where(Source.model_id == version.model_id)
        names = {source.sha256: source for source in session.scalars(query)}
    provenance = Provenance.model_validate(report["provenance"])
    sizes = {p["name"]: p["size"] for p in report["parameters"]}
    given = provenance.totals(sizes)
    return ProvenanceRead(
        version=number,
        sources=[
            Contribution(
                sha256=sha256,
                source=names[sha256].id if sha256 in names else None,
                name=names[sha256].name if sha256 in names else None,
                share=share,
            )
            for sha256, share in sorted(given.items(), key=lambda item: -item[1])
        ],
        parameters=[
            ParameterOrigin(name=name, size=sizes[name], shares=owners)
            for name, owners in provenance.shares.items()
        ],
    )


@router.post(
    "/models/{model}/rollback",
    status_code=201,
    summary="Go back: a new version equal to an older one",
    response_model=VersionRead,
    responses=problems(400, 404, 409, 410, 413),
    openapi_extra=body_of(Rollback),
)
def rollback_model(
    model: Reference,
    wanted: Annotated[Rollback, Depends(json_body(Rollback))],
    service: ServiceDep,
    caller: CallerDep,
    once: OnceDep,
) -> Response:
    """A fold that is running meanwhile is folded again, into the new version.

    Weights that are damaged or missing are not gone back to: 409, `blob_damaged` or `blob_missing`.
    """
    with service.database.read() as session:
        before = once.replay(session, wanted.model_dump())
    if before is not None:
        return before
    _require_sound(service, caller.owner, model, wanted.version)
    with service.database.write() as session:

        def act() -> Created:
            found = find_named(session, Model, caller.owner, model)
            version = rollback(session, found, wanted.version, utc_now())
            forget_problems(
                session, [sha256 for _, sha256 in version.content]
            )  # they were read a moment ago
            session.flush()
            shown = serialize_version(version)
            return Created(shown, 201, shown.links["self"])

        return once.run(session, wanted.model_dump(), act)


def _require_sound(service: Service, owner: str, model: str, number: int) -> None:
    """Read a version's blobs before others rely on them, with no transaction open meanwhile.

    Raises BadVersion. Those that were deleted on purpose `rollback` reports.
    """
    with service.database.read() as session:
        found = find_named(session, Model, owner, model)
        version = find_version(session, found, number)
    if version.pruned_at is not None:
        return
    for given in version_inputs(found, version).values():
        try:
            with service.noting(given.sha256):
                service.verifier.fetch(service.store, given.sha256)
        except (BlobDamaged, BlobMissing) as error:
            failure = given.failure(problem_of(error))
            raise BadVersion(failure.message, code=failure.code, hint=failure.hint) from error


def _weights(
    service: Service, owner: str, model: str, wanted: int | Literal["newest", "best"]
) -> Download:
    with service.database.read() as session:
        version = find_stored(session, owner, model, wanted)
        name = find_named(session, Model, owner, model).name
    name = f"{name}-v{version.number}.safetensors"
    return Download(version.sha256, version.size, name, version.created_at)


def find_stored(
    session: Session, owner: str, model: str, wanted: int | Literal["newest", "best"]
) -> Version:
    """A version whose bytes were not deleted on purpose. Raises BytesGone."""
    row = find_named(session, Model, owner, model)
    number = None if wanted == "newest" else find_best(session, row) if wanted == "best" else wanted
    version = find_version(session, row, number)
    if version.pruned_at is not None:
        raise BytesGone(
            f"the weights of version {version.number} were deleted by the model's retention",
            hint="GET the model's versions to see which are available",
        )
    return version


def _find(session: Session, owner: str, model: str, number: int) -> Version:
    return find_version(session, find_named(session, Model, owner, model), number)


def _report(session: Session, version: Version) -> str:
    report = session.get_one(Job, version.job_id).report
    if report is None:
        raise NotFound(f"version {version.number} has no report")
    return report
