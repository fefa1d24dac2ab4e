"""Two versions of a model beside each other."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Query
from fastapi.responses import HTMLResponse
from sqlalchemy.orm import Session

from app.charts.layers import layer_of
from app.fields import MAX_INT, Reference
from app.pages.lineage import accuracy, per_class
from app.pages.measured import Measure
from app.pages.rendering import PageDep
from app.pages.reports import flat, read_report, source_names
from app.schemas import VersionRead
from app.service import ServiceDep
from app.show import show_model, show_version
from grasp_core.report import FoldReport
from registry.lookup import find_named
from registry.tables import Model, Source, Version
from registry.versions import find_version

MOST_ROWS = 30
SPLITS = (("val", "Validation"), ("test", "Test"))

router = APIRouter()
Chosen = Annotated[int, Query(ge=1, le=MAX_INT)]


@dataclass(frozen=True)
class Side:
    version: VersionRead
    source: str | None
    report: FoldReport | None


@router.get("/ui/models/{model}/compare")
def show_comparison(
    model: Reference, a: Chosen, b: Chosen, service: ServiceDep, page: PageDep
) -> HTMLResponse:
    with service.database.read() as session:
        row = find_named(session, Model, page.caller.owner, model)
        versions = [find_version(session, row, number) for number in (a, b)]
        sides = [_side(session, version) for version in versions]
        names = source_names(session, row.id)
    metrics = [version.metrics for version in versions]
    return page.show(
        "compare.html",
        model=show_model(row),
        sides=sides,
        accuracies=[
            (words, Measure(*(accuracy(found, split) for found in metrics)))
            for split, words in SPLITS
        ],
        classes=_changes([per_class(found) for found in metrics]),
        **_compared([side.report for side in sides if side.report], names),
    )


def _compared(reports: Sequence[FoldReport], names: Mapping[str, str]) -> dict[str, Any]:
    """What both reports tell; nothing if one of them cannot be read."""
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
        version=show_version(version),
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
    before, after = (flat(report.config) for report in reports)
    return [
        (name, before.get(name), after.get(name))
        for name in {**before, **after}
        if before.get(name) != after.get(name)
    ]
