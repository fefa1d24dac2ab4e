"""The models, one of them, and the forms that change it. The API judges what is put into them."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter
from fastapi.responses import HTMLResponse
from markupsafe import Markup
from pydantic import BaseModel, ValidationError
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from app.charts import sparkline
from app.fields import Cursor, Reference, RefFilter
from app.pages.formatting import percent
from app.pages.jobs import job_rows
from app.pages.rendering import PageDep
from app.pages.reports import Origins, origins, read_report, source_names
from app.pages.versions import (
    accuracy,
    accuracy_chart,
    class_table,
    list_gains,
    load_lineage,
    trend,
)
from app.schemas import JobRead, ModelRead, SourceRead
from app.serializers import see, serialize_job, serialize_model, serialize_sources, serialize_target
from app.service import ServiceDep
from grasp_core.config import CommonConfig, FoldConfig, GateConfig, MethodConfig
from grasp_core.kinds import KINDS
from grasp_core.methods import METHODS
from grasp_core.parameters import DEFAULT_CANDIDATES, flatten, methods_of
from registry.lookup import MAX_PAGE, find_named, list_page
from registry.tables import Job, Model, Source, Target, Version
from registry.versions import find_best

MODELS_PER_PAGE = 30
MOST_SPARKS = 30  # versions in a sparkline
MOST_ROWS = 15  # of sources and jobs on a model's page
GENERAL = "general"  # the group of parameters whose names have no dot
ELSEWHERE = ("device",)  # merge parameters that are the worker's

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
    trend: str  # up or down where the change is more than chance explains
    spark: Markup | None


@router.get("/")
@router.get("/ui/models")
def models_page(service: ServiceDep, page: PageDep, cursor: Cursor = None) -> HTMLResponse:
    owner = page.caller.owner
    with service.database.read() as session:
        found = list_page(session, Model, owner, [], limit=MODELS_PER_PAGE, cursor=cursor)
        targets = list_page(session, Target, owner, [], limit=100, cursor=None).items
        return page.render(
            "models.html",
            cards=_cards(session, found.items),
            next_cursor=found.next_cursor,
            kinds=KINDS.values(),
            choices=list_choices(),
            targets=[serialize_target(target) for target in targets if target.status != "failed"],
        )


@dataclass(frozen=True)
class Choice:
    """A method that can be a candidate of a new model."""

    name: str
    summary: str
    needs_base: bool
    is_default: bool
    fields: Sequence["Field"]  # its own parameters


def list_choices() -> list[Choice]:
    return [
        Choice(
            method.name,
            method.summary,
            needs_base=method.needs.base,
            is_default=method.name in DEFAULT_CANDIDATES,
            fields=_read_defaults(method.parameters),
        )
        for method in METHODS.values()
    ]


@router.get("/ui/architectures.json")
def list_architectures() -> list[str]:
    """Those that are known by name, to choose from while one is typed."""
    return sorted({name for kind in KINDS.values() if kind.names for name in kind.names()})


def _cards(session: Session, models: Sequence[Model]) -> list[Card]:
    ids = [model.id for model in models]
    histories, trends = _histories(session, ids)
    waiting, running = _queues(session, ids)
    named = select(Target.id, Target.name).where(Target.id.in_([m.target_id for m in models]))
    targets = {row.id: row.name for row in session.execute(named)}
    return [
        Card(
            model=serialize_model(model),
            target=targets[model.target_id],
            waiting=waiting.get(model.id, 0),
            running=running.get(model.id),
            accuracy=history[-1] if history else None,
            change=history[-1] - history[-2] if len(history) > 1 else None,
            trend=trends.get(model.id, "same"),
            spark=_spark(model.name, history),
        )
        for model in models
        for history in [histories.get(model.id, [])]
    ]


def _histories(
    session: Session, ids: Sequence[str]
) -> tuple[dict[str, list[float]], dict[str, str]]:
    """Validation accuracy of each model's last versions, and how the newest compares."""
    newest = (
        select(Version.model_id, Version.metrics, Version.rollback_of)
        .join(Model, Model.id == Version.model_id)
        .where(Model.id.in_(ids), Version.number > Model.version - MOST_SPARKS)
        .order_by(Version.number)
    )
    found: dict[str, list[float]] = {}
    trends: dict[str, str] = {}
    for model_id, metrics, rollback_of in session.execute(newest):
        value = accuracy(metrics, "val")
        if value is not None:
            found.setdefault(model_id, []).append(value)
        trends[model_id] = trend(metrics) if rollback_of is None else "same"
    return found, trends


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
        {str(job.model_id): serialize_job(job) for job in session.scalars(running)},
    )


def _spark(name: str, history: Sequence[float]) -> Markup | None:
    if not history:
        return None
    about = f"from {percent(history[0])} to {percent(history[-1])} in {len(history)} versions"
    return sparkline(f"Validation accuracy of {name}", about, history)


@router.get("/ui/models/{model}")
def model_page(model: Reference, service: ServiceDep, page: PageDep) -> HTMLResponse:
    with service.database.read() as session:
        row = find_named(session, Model, page.caller.owner, model)
        shown = serialize_model(row, service.find_holds(session, [row]).get(row.id))
        entries = load_lineage(session, row)
        jobs = list_page(
            session, Job, row.owner, [Job.model_id == row.id], limit=MOST_ROWS, cursor=None
        )
        return page.render(
            "model.html",
            model=shown,
            target=serialize_target(session.get_one(Target, row.target_id)),
            entries=entries,
            newest=entries[-1] if entries else None,
            best=find_best(session, row),
            sensitivity=see(
                session.get_one(Target, row.target_id), GateConfig.model_validate(row.merge["gate"])
            ),
            chart=accuracy_chart(entries) if entries else None,
            gains=list_gains(session, row, entries),
            classes=class_table(entries, row.classes or ()),
            origins=_newest_origins(session, row),
            sources=_sources(session, row),
            jobs=job_rows(session, jobs.items),
            waiting=_queues(session, [row.id])[0].get(row.id, 0),
            parameters=group_fields(fields(shown.merge, shown.kind)),
        )


def _newest_origins(session: Session, model: Model) -> Origins | None:
    newest = session.get(Version, (model.id, model.version)) if model.version else None
    report = read_report(session, newest.job_id) if newest else None
    return origins(report, source_names(session, model.id)) if report else None


def _sources(session: Session, model: Model) -> list[SourceRead]:
    of_model = [Source.model_id == model.id]
    newest = list_page(session, Source, model.owner, of_model, limit=MOST_ROWS, cursor=None)
    return serialize_sources(session, newest.items)


@dataclass(frozen=True)
class Field:
    """One parameter, by its dotted name; nothing typed means none."""

    name: str
    value: str
    choices: Sequence[str]  # empty: typed
    meaning: str
    default: str | None = None  # None: it has to be given

    @property
    def group(self) -> str:
        """The first part of its name, or that it has none."""
        return self.name.partition(".")[0] if "." in self.name else GENERAL

    @property
    def is_default(self) -> bool:
        return self.value == self.default


def group_fields(fields: Iterable[Field]) -> Mapping[str, Sequence[Field]]:
    """By group, each in the order of its first field."""
    groups: dict[str, list[Field]] = {}
    for field in fields:
        groups.setdefault(field.group, []).append(field)
    return groups


def fields(merge: FoldConfig | Mapping[str, Any], kind: str) -> list[Field]:
    """The candidates, or the method of the only one and its own parameters; then what is common."""
    if not isinstance(merge, FoldConfig):  # of a method that is not installed: another can be set
        return [_method(merge["method"])] if "method" in merge else [_candidates(methods_of(merge))]
    common = _read_fields(CommonConfig, merge.model_dump(mode="json"), kind)
    if len(merge.candidates) > 1:
        return [_candidates(_shorten(each) for each in merge.candidates), *common]
    (only,) = merge.candidates
    own = _read_fields(type(only), only.model_dump(mode="json"), kind)
    return [_method(only.method), *own, *common]


def _read_defaults(config: type[MethodConfig]) -> list[Field]:
    """None, where a method has parameters that have to be given."""
    try:
        values = config.model_validate({}).model_dump(mode="json")
    except ValidationError:
        return []
    return _read_fields(config, values, "")


def _read_fields(config: type[BaseModel], values: Mapping[str, Any], kind: str) -> list[Field]:
    known = flatten(values)
    schema = _schema(config, kind)
    return [
        Field(
            name,
            _text(known[name]),
            _choices(part),
            part.get("description", ""),
            _text(part["default"]) if "default" in part else None,
        )
        for name, part in _leaves(schema, schema["$defs"])
        if name not in (*ELSEWHERE, "method")
    ]


def _shorten(candidate: MethodConfig) -> str | dict[str, Any]:
    """Its name, where it has no parameters but the defaults."""
    own = candidate.model_dump(mode="json", exclude_defaults=True) | {"method": candidate.method}
    return candidate.method if len(own) == 1 else own


def _schema(config: type[BaseModel], kind: str) -> dict[str, Any]:
    """With the augmentation of this kind, and of no other."""
    schema: dict[str, Any] = config.model_json_schema()
    definitions = schema.setdefault("$defs", {})
    if "RefineConfig" in definitions:
        known = KINDS.get(kind)
        own = known.augmentation.model_json_schema() if known else {}
        definitions["augmentation"] = {"properties": own.get("properties", {})}
        definitions["RefineConfig"]["properties"]["augmentation"] = {"$ref": "augmentation"}
    return schema


def _candidates(candidates: Iterable[str | dict[str, Any]]) -> Field:
    meaning = f"Methods that run against each other, of {', '.join(METHODS)}."
    default = json.dumps(DEFAULT_CANDIDATES)
    return Field("candidates", json.dumps(list(candidates)), [], meaning, default)


def _method(name: str) -> Field:
    meaning = " ".join(f"{method.name}: {method.summary}" for method in METHODS.values())
    default = ", ".join(DEFAULT_CANDIDATES)
    return Field("method", name, list(dict.fromkeys([*METHODS, name])), meaning, default)


def _leaves(
    schema: Mapping[str, Any], definitions: Mapping[str, Any], prefix: str = ""
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for name, part in schema["properties"].items():
        if "$ref" in part:
            inner = definitions[part["$ref"].rpartition("/")[2]]
            yield from _leaves(inner, definitions, f"{prefix}{name}.")
        else:
            yield prefix + name, part


def _choices(schema: Mapping[str, Any]) -> list[str]:
    found: list[str] = []
    for option in schema.get("anyOf", [schema]):
        match option:
            case {"enum": names}:
                found += names
            case {"const": name}:
                found.append(name)
            case {"type": "boolean"}:
                found += ["true", "false"]
            case {"type": "null"}:
                found.append("")
            case _:
                return []
    return found


def _text(value: Any) -> str:
    """As it is typed: words as they are, nothing for none, the rest as JSON."""
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value)


@router.get("/ui/upload")
def upload_page(service: ServiceDep, page: PageDep, model: RefFilter = None) -> HTMLResponse:
    with service.database.read() as session:
        found = list_page(session, Model, page.caller.owner, [], limit=MAX_PAGE, cursor=None)
        return page.render(
            "upload.html",
            models=[serialize_model(row) for row in found.items if row.status != "failed"],
            chosen=model,
        )
