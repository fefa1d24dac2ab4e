"""The versions of a model: as a story, one with its report, and two beside each other."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Query
from fastapi.responses import HTMLResponse
from markupsafe import Markup
from sqlalchemy import select
from sqlalchemy.orm import Session

from app.charts import Series, gain_bar, line_chart, reach, shade
from app.charts.parameters import layer_of
from app.fields import MAX_INT, Number, Reference
from app.pages.formatting import percent
from app.pages.rendering import PageDep
from app.pages.reports import Measure, origins, read_report, source_names, view_report
from app.schemas import VersionRead
from app.serializers import serialize_model, serialize_version
from app.service import ServiceDep
from grasp_core.parameters import flatten
from grasp_core.report import Difference, Figures, FoldReport
from registry.blobs.damage import find_failure, find_version_problems, version_inputs
from registry.lookup import find_named
from registry.tables import Job, Model, ProblemKind, Source, Version
from registry.versions import find_version

MOST_VERSIONS = 100  # on a chart and in a table; the API lists all
MOST_COLUMNS = 10
MOST_CLASSES = 25
STRENGTH = 2.5  # of colours: an accuracy of 60 % has the strongest
MOST_ROWS = 30  # of a comparison
SPLITS = (("val", "Validation"), ("test", "Test"))

router = APIRouter()
Chosen = Annotated[int, Query(ge=1, le=MAX_INT)]


@dataclass(frozen=True)
class Entry:
    """One version, its source's name and its accuracies."""

    version: VersionRead
    source: str | None
    val: float | None
    test: float | None
    val_change: float | None  # since the version before
    val_trend: str  # up or down where that is more than chance explains
    val_interval: tuple[float, float] | None
    test_interval: tuple[float, float] | None
    per_class: Mapping[str, float | None]  # on the validation split
    worth: Difference | None  # what its source gained in test accuracy; None: not measured
    sentence: str | None  # the same in words, with who won

    @property
    def number(self) -> int:
        return self.version.number


def accuracy(metrics: Mapping[str, Any], split: str) -> float | None:
    """From the metrics of a version; None where it was not measured."""
    after = Figures.read(metrics).after
    found: float | None = getattr(after, split).accuracy if after else None
    return found


def trend(metrics: Mapping[str, Any]) -> str:
    """Whether the fold made validation accuracy better or worse, by more than chance explains."""
    change = Figures.read(metrics).change
    return change.val.trend if change else "same"


def per_class(metrics: Mapping[str, Any]) -> Mapping[str, float | None]:
    """Validation accuracy of each class."""
    after = Figures.read(metrics).after
    return after.val.per_class if after else {}


def load_lineage(session: Session, model: Model) -> list[Entry]:
    """The newest versions, oldest first."""
    query = (
        select(Version, Source.name)
        .outerjoin(Source, Source.id == Version.source_id)
        .where(Version.model_id == model.id)
        .order_by(Version.number.desc())
        .limit(MOST_VERSIONS)
    )
    found = session.execute(query).all()
    known = find_version_problems(session, [version for version, _ in found])
    entries: list[Entry] = []
    for version, source in reversed(found):
        before = entries[-1] if entries else None
        entries.append(_entry(version, source, before, known.get(version.number)))
    return entries


def _entry(
    version: Version, source: str | None, before: Entry | None, problem: ProblemKind | None
) -> Entry:
    val = accuracy(version.metrics, "val")
    figures = Figures.read(version.metrics)
    after, own = figures.after, version.rollback_of is None
    worth = figures.worth.test if figures.worth and own else None
    earlier = before.val if before else None
    return Entry(
        version=serialize_version(version, problem),
        source=source,
        val=val,
        test=accuracy(version.metrics, "test"),
        val_change=None if val is None or earlier is None else val - earlier,
        val_trend=trend(version.metrics) if own else "same",
        val_interval=after.val.interval if after else None,
        test_interval=after.test.interval if after else None,
        per_class=per_class(version.metrics),
        worth=worth.accuracy if worth else None,
        sentence=figures.sentence if own else None,
    )


@dataclass(frozen=True)
class Gain:
    """What a source was worth, with a bar of it where that was measured."""

    source: str | None
    job: str
    version: int | None  # None: it was refused
    worth: Difference | None
    text: str
    bar: Markup | None


def list_gains(session: Session, model: Model, entries: Sequence[Entry]) -> list[Gain]:
    """Of the newest sources, in order of arrival."""
    query = (
        select(Job, Source.name)
        .join(Source, Source.job_id == Job.id)
        .where(Job.model_id == model.id, Job.status.in_(("succeeded", "rejected")))
        .order_by(Job.seq.desc())
        .limit(MOST_VERSIONS)
    )
    known = {entry.number: entry for entry in entries}
    half = reach(entry.worth for entry in entries)
    found = session.execute(query).all()
    return [_gain(job, name, known.get(job.version or 0), half) for job, name in reversed(found)]


def _gain(job: Job, source: str, entry: Entry | None, half: float) -> Gain:
    worth = entry.worth if entry else None
    if job.status == "rejected":
        text = f"refused: {(job.verdict or {}).get('reason') or 'see its job'}"
    elif entry is not None and entry.sentence:
        text = entry.sentence.split("; ")[-1]
    else:
        first = entry is not None and entry.version.parent is None
        text = f"{'the first' if first else 'it ran alone'}: nothing to compare with"
    bar = gain_bar(worth, half) if worth else None
    return Gain(source, job.id, job.version, worth, text, bar)


def accuracy_chart(entries: Sequence[Entry]) -> Markup:
    return line_chart(
        "Accuracy of each version",
        "version",
        [entry.number for entry in entries],
        [
            Series(
                "validation",
                [entry.val for entry in entries],
                0,
                band=[entry.val_interval for entry in entries],
            ),
            Series(
                "test",
                [entry.test for entry in entries],
                4,
                band=[entry.test_interval for entry in entries],
            ),
        ],
        format_value=percent,
        shares=True,
        hollow={entry.number for entry in entries if entry.version.rollback_of},
    )


@dataclass(frozen=True)
class ClassTable:
    """Validation accuracy of each class, the weakest first where there are too many to show."""

    versions: Sequence[int]
    rows: Sequence[tuple[str, Sequence[tuple[str, str]]]]  # class name: (accuracy, css class)
    left_out: int


def class_table(entries: Sequence[Entry], classes: Sequence[str]) -> ClassTable | None:
    shown = [entry for entry in entries if entry.per_class][-MOST_COLUMNS:]
    if not shown:
        return None
    names = [name for name in classes if name in shown[-1].per_class]
    if len(names) > MOST_CLASSES:
        names = sorted(names, key=lambda name: _or_one(shown[-1].per_class[name]))[:MOST_CLASSES]
    rows = [(name, [_cell(entry.per_class.get(name)) for entry in shown]) for name in names]
    return ClassTable([entry.number for entry in shown], rows, len(classes) - len(names))


def _or_one(share: float | None) -> float:
    return 1.0 if share is None else share


def _cell(share: float | None) -> tuple[str, str]:
    """The weaker the class, the more coloured: what is well needs no attention."""
    if share is None:
        return "–", ""
    return f"{100 * share:.0f}", shade(STRENGTH * (1 - share), "bad")


@router.get("/ui/models/{model}/versions/{number}")
def version_page(
    model: Reference, number: Number, service: ServiceDep, page: PageDep
) -> HTMLResponse:
    with service.database.read() as session:
        row = find_named(session, Model, page.caller.owner, model)
        version = find_version(session, row, number)
        report = read_report(session, version.job_id)
        source = session.get(Source, version.source_id) if version.source_id else None
        problem = find_version_problems(session, [version]).get(version.number)
        return page.render(
            "version.html",
            model=serialize_model(row),
            version=serialize_version(version, problem),
            bad=find_failure(session, version_inputs(row, version).values()),
            source=source.name if source else None,
            report_view=view_report(report, row.classes or ()) if report else None,
            environment=flatten(report.environment.model_dump()) if report else {},
            parameters=flatten(report.config) if report else {},
            origins=origins(report, source_names(session, row.id)) if report else None,
        )


@dataclass(frozen=True)
class Side:
    version: VersionRead
    source: str | None
    report: FoldReport | None


@router.get("/ui/models/{model}/compare")
def comparison_page(
    model: Reference, a: Chosen, b: Chosen, service: ServiceDep, page: PageDep
) -> HTMLResponse:
    with service.database.read() as session:
        row = find_named(session, Model, page.caller.owner, model)
        versions = [find_version(session, row, number) for number in (a, b)]
        sides = [_side(session, version) for version in versions]
        names = source_names(session, row.id)
    metrics = [version.metrics for version in versions]
    return page.render(
        "compare.html",
        model=serialize_model(row),
        sides=sides,
        accuracies=[
            (label, Measure(accuracy(metrics[0], split), accuracy(metrics[1], split)))
            for split, label in SPLITS
        ],
        classes=_changes([per_class(found) for found in metrics]),
        **_compared([side.report for side in sides if side.report], names),
    )


def _compared(reports: Sequence[FoldReport], names: Mapping[str, str]) -> dict[str, Any]:
    """What both reports say; nothing if one of them cannot be read."""
    if len(reports) < 2:
        return {"shares": [], "moved": [], "differences": []}
    return {
        "shares": _shares(reports, names),
        "moved": _moved(reports, names),
        "differences": _differences(reports),
    }


def _side(session: Session, version: Version) -> Side:
    source = session.get(Source, version.source_id) if version.source_id else None
    return Side(
        version=serialize_version(version),
        source=source.name if source else None,
        report=read_report(session, version.job_id),
    )


def _changes(values: Sequence[Mapping[str, float | None]]) -> list[tuple[str, Measure]]:
    """What both have, the largest change first."""
    before, after = values
    both = [(name, Measure(before[name], after[name])) for name in before if name in after]
    return sorted(both, key=lambda row: -abs(row[1].change or 0.0))[:MOST_ROWS]


def _shares(reports: Sequence[FoldReport], names: Mapping[str, str]) -> list[tuple[str, Measure]]:
    """How much of all parameters each source gave, in order of arrival."""
    before, after = (report.given() for report in reports)
    known = [key for key in names if key in before or key in after]
    unknown = [key for key in {**before, **after} if key not in names]
    return [
        (names.get(key, key[:12]), Measure(before.get(key, 0.0), after.get(key, 0.0)))
        for key in [*known, *unknown]
    ]


def _moved(reports: Sequence[FoldReport], names: Mapping[str, str]) -> list[tuple[str, str, str]]:
    """Layers whose largest part came from another source: which, from whom, to whom."""
    before, after = (_main_sources(report) for report in reports)
    moved = {
        layer_of(name): (before[name], after[name])
        for name in after
        if name in before and before[name] != after[name]
    }
    return [
        (layer, names.get(old, old[:12]), names.get(new, new[:12]))
        for layer, (old, new) in moved.items()
    ]


def _main_sources(report: FoldReport) -> dict[str, str]:
    owned = {name: owners for name, owners in report.provenance.shares.items() if owners}
    return {name: max(owners, key=owners.__getitem__) for name, owners in owned.items()}


def _differences(reports: Sequence[FoldReport]) -> list[tuple[str, Any, Any]]:
    """The merge parameters that differ."""
    before, after = (flatten(report.config) for report in reports)
    return [
        (name, before.get(name), after.get(name))
        for name in {**before, **after}
        if before.get(name) != after.get(name)
    ]
