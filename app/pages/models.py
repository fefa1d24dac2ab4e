"""The models, and one of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fastapi import APIRouter
from fastapi.responses import HTMLResponse
from markupsafe import Markup
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from app.charts import sparkline
from app.fields import Cursor, Reference
from app.pages.jobs import tasks
from app.pages.lineage import accuracy, accuracy_chart, class_table, load_lineage
from app.pages.origins import Origins, origins
from app.pages.parameters import fields
from app.pages.rendering import PageDep
from app.pages.reports import read_report, source_names
from app.pages.words import percent
from app.schemas import JobRead, ModelRead, SourceRead
from app.service import ServiceDep
from app.show import show_job, show_model, show_source, show_target
from grasp_core.kinds import known_kinds
from registry.blobs.damage import find_holds
from registry.lookup import find_named, list_page
from registry.tables import Job, Model, Source, Target, Version

MODELS_PER_PAGE = 30
MOST_SPARKS = 30  # versions in a sparkline
MOST_ROWS = 15  # of sources and jobs on a model's page

router = APIRouter()


@dataclass(frozen=True)
class Card:
    """A model at a glance."""

    model: ModelRead
    target: str
    waiting: int
    running: JobRead | None
    accuracy: float | None
    change: float | None
    spark: Markup | None


@router.get("/")
def show_models(service: ServiceDep, page: PageDep, cursor: Cursor = None) -> HTMLResponse:
    owner = page.caller.owner
    with service.database.read() as session:
        found = list_page(session, Model, owner, [], limit=MODELS_PER_PAGE, cursor=cursor)
        targets = list_page(session, Target, owner, [], limit=100, cursor=None).items
        return page.show(
            "models.html",
            cards=_cards(session, found.items),
            next_cursor=found.next_cursor,
            kinds=known_kinds().values(),
            targets=[show_target(target) for target in targets if target.status != "failed"],
        )


def _cards(session: Session, models: Sequence[Model]) -> list[Card]:
    ids = [model.id for model in models]
    histories = _histories(session, ids)
    waiting, running = _queues(session, ids)
    named = select(Target.id, Target.name).where(Target.id.in_([m.target_id for m in models]))
    targets = {row.id: row.name for row in session.execute(named)}
    return [
        Card(
            model=show_model(model),
            target=targets[model.target_id],
            waiting=waiting.get(model.id, 0),
            running=running.get(model.id),
            accuracy=history[-1] if history else None,
            change=history[-1] - history[-2] if len(history) > 1 else None,
            spark=_spark(model.name, history),
        )
        for model in models
        for history in [histories.get(model.id, [])]
    ]


def _histories(session: Session, ids: Sequence[str]) -> dict[str, list[float]]:
    """Validation accuracy of each model's last versions."""
    newest = (
        select(Version.model_id, Version.metrics)
        .join(Model, Model.id == Version.model_id)
        .where(Model.id.in_(ids), Version.number > Model.version - MOST_SPARKS)
        .order_by(Version.number)
    )
    found: dict[str, list[float]] = {}
    for model_id, metrics in session.execute(newest):
        value = accuracy(metrics, "val")
        if value is not None:
            found.setdefault(model_id, []).append(value)
    return found


def _queues(
    session: Session, ids: Sequence[str]
) -> tuple[Mapping[str, int], Mapping[str, JobRead]]:
    """How many jobs wait for each model, and which one runs."""
    counted = (
        select(Job.model_id, func.count())
        .where(Job.model_id.in_(ids), Job.status == "queued")
        .group_by(Job.model_id)
    )
    running = select(Job).where(Job.model_id.in_(ids), Job.status == "running")
    return (
        {str(row[0]): row[1] for row in session.execute(counted)},
        {str(job.model_id): show_job(job) for job in session.scalars(running)},
    )


def _spark(name: str, history: Sequence[float]) -> Markup | None:
    if not history:
        return None
    about = f"from {percent(history[0])} to {percent(history[-1])} in {len(history)} versions"
    return sparkline(f"Validation accuracy of {name}", about, history)


@router.get("/ui/models/{model}")
def show_model_page(model: Reference, service: ServiceDep, page: PageDep) -> HTMLResponse:
    with service.database.read() as session:
        row = find_named(session, Model, page.caller.owner, model)
        shown = show_model(row, find_holds(session, [row]).get(row.id))
        entries = load_lineage(session, row)
        jobs = list_page(
            session, Job, row.owner, [Job.model_id == row.id], limit=MOST_ROWS, cursor=None
        )
        return page.show(
            "model.html",
            model=shown,
            target=show_target(session.get_one(Target, row.target_id)),
            entries=entries,
            newest=entries[-1] if entries else None,
            chart=accuracy_chart(entries) if entries else None,
            classes=class_table(entries, row.classes or ()),
            origins=_newest_origins(session, row),
            sources=_sources(session, row),
            tasks=tasks(session, jobs.items),
            waiting=_queues(session, [row.id])[0].get(row.id, 0),
            parameters=fields(shown.merge),
        )


def _newest_origins(session: Session, model: Model) -> Origins | None:
    newest = session.get(Version, (model.id, model.version)) if model.version else None
    report = read_report(session, newest.job_id) if newest else None
    return origins(report, source_names(session, model.id)) if report else None


def _sources(session: Session, model: Model) -> list[SourceRead]:
    offered = (
        select(Source, Job)
        .join(Job, Job.id == Source.job_id)
        .where(Source.model_id == model.id)
        .order_by(Source.id.desc())
        .limit(MOST_ROWS)
    )
    return [show_source(source, job) for source, job in session.execute(offered)]
