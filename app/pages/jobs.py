"""The jobs, one of them while it runs and after, and the workers that run them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, get_args

from fastapi import APIRouter
from fastapi.responses import HTMLResponse
from pydantic import BeforeValidator
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from app.fields import Cursor, Id, RefFilter
from app.pages.rendering import PageDep
from app.pages.reports import origins, read_report, source_names, stage_titles, view_report
from app.schemas import JobRead
from app.serializers import serialize_job, serialize_worker
from app.service import ServiceDep
from grasp_core.methods import METHODS, list_stages
from grasp_core.parameters import methods_of
from registry.jobs.states import ACTIVE, JobKind, JobStatus
from registry.jobs.workers import list_workers
from registry.lookup import MAX_PAGE, find, find_named, list_page
from registry.tables import Job, Model, Source, Target

JOBS_PER_PAGE = 40
DECODE = {"decode": "Decode the target"}
STAGES: dict[str, Mapping[str, str]] = {  # of jobs that are no folds
    "validate": {"hash": "Read the archive", "decode": "Decode every example"},
    "prepare": {"build": "Build the architecture", **DECODE},
}

router = APIRouter()
AnyIfEmpty = BeforeValidator(lambda chosen: chosen or None)  # as a form sends what was not chosen


@dataclass(frozen=True)
class JobRow:
    """A job, and the names of what it is about."""

    job: JobRead
    model: str | None
    target: str | None
    source: str | None

    @property
    def title(self) -> str:
        """What it does."""
        match self.job.kind:
            case "validate":
                return f"Validate {self.target}"
            case "prepare":
                return f"Prepare {self.model}"
            case "dry_run":
                return f"Try {self.source} on {self.model}"
            case "fold":
                return f"Fold {self.source} into {self.model}"

    @property
    def stage(self) -> str:
        """Where it is."""
        stage = self.job.stage
        if not stage:
            return "waiting for a worker"
        title = _titles(self.job.kind).get(stage, stage)
        candidate = self.job.metrics.get("candidate")
        return f"{candidate}: {title}" if candidate else title


@router.get("/ui/jobs")
def jobs_page(
    service: ServiceDep,
    page: PageDep,
    model: Annotated[RefFilter, AnyIfEmpty] = None,
    kind: Annotated[JobKind | None, AnyIfEmpty] = None,
    status: Annotated[JobStatus | None, AnyIfEmpty] = None,
    cursor: Cursor = None,
) -> HTMLResponse:
    owner = page.caller.owner
    chosen = {"model": model, "kind": kind, "status": status}
    with service.database.read() as session:
        conditions = []
        if model is not None:
            row = find_named(session, Model, owner, model)
            chosen["model"] = row.name
            conditions.append(Job.model_id == row.id)
        if kind is not None:
            conditions.append(Job.kind == kind)
        if status is not None:
            conditions.append(Job.status == status)
        found = list_page(session, Job, owner, conditions, limit=JOBS_PER_PAGE, cursor=cursor)
        return page.render(
            "jobs.html",
            jobs=job_rows(session, found.items),
            next_cursor=found.next_cursor,
            chosen=chosen,
            choices={
                "model": _list_models(session, owner, chosen["model"]),
                "kind": get_args(JobKind),
                "status": get_args(JobStatus),
            },
        )


def _list_models(session: Session, owner: str, chosen: str | None) -> list[str]:
    """By name; of many, the newest, and the chosen one."""
    newest = select(Model.name).where(Model.owner == owner).order_by(Model.id.desc())
    names = {*session.scalars(newest.limit(MAX_PAGE))}
    return sorted(names | {chosen} if chosen else names)


def job_rows(session: Session, jobs: Sequence[Job]) -> list[JobRow]:
    names: dict[str | None, str] = {}
    for table, ids in (
        (Model, {job.model_id for job in jobs}),
        (Target, {job.target_id for job in jobs}),
        (Source, {job.source_id for job in jobs}),
    ):
        query = select(table.id, table.name).where(table.id.in_(ids))
        names |= {row.id: row.name for row in session.execute(query)}
    return [
        JobRow(
            job=serialize_job(job),
            model=names.get(job.model_id),
            target=names.get(job.target_id),
            source=job.candidate["name"] if job.candidate else names.get(job.source_id),
        )
        for job in jobs
    ]


@router.get("/ui/jobs/{job}")
def job_page(job: Id, service: ServiceDep, page: PageDep) -> HTMLResponse:
    with service.database.read() as session:
        row = find(session, Job, page.caller.owner, job)
        model = session.get(Model, row.model_id) if row.model_id else None
        report = read_report(session, row.id) if model else None
        waits = model is not None and row.status == "queued"
        return page.render(
            "job.html",
            row=job_rows(session, [row])[0],
            stages=_stages(row, model),
            ahead=_ahead(session, row),
            held=service.find_holds(session, [model]).get(model.id) if waits and model else None,
            report_view=view_report(report, model.classes or ()) if report and model else None,
            origins=origins(report, source_names(session, model.id)) if report and model else None,
        )


def _stages(job: Job, model: Model | None) -> Mapping[str, str]:
    """What it goes through, by name, with a title for each; of a fold, what the method does."""
    if model is None or job.kind in STAGES:
        return _titles(job.kind)
    methods = (METHODS[name] for name in methods_of(model.merge) if name in METHODS)
    return DECODE | {stage.name: stage.title for stage in list_stages(methods)}


def _titles(kind: JobKind) -> Mapping[str, str]:
    """Of all stages that such a job may have; those of folds depend on methods."""
    return STAGES.get(kind) or DECODE | stage_titles()


def _ahead(session: Session, job: Job) -> int:
    """How many must end before it begins."""
    earlier = select(func.count()).where(
        Job.queue_id == job.queue_id, Job.status.in_(ACTIVE), Job.seq < job.seq
    )
    return session.scalar(earlier) or 0


@router.get("/ui/workers")
def workers_page(service: ServiceDep, page: PageDep) -> HTMLResponse:
    with service.database.read() as session:
        rows = list_workers(session)
        workers = [serialize_worker(session, row, service.settings, page.caller) for row in rows]
    return page.render("workers.html", workers=workers)
