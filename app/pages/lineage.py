"""The versions of a model as a story: who came in, and what it did to accuracy."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup
from sqlalchemy import select
from sqlalchemy.orm import Session

from app.charts import Series, line_chart, shade
from app.pages.words import percent
from app.schemas import VersionRead
from app.show import show_version
from grasp_core.report import Figures
from registry.blobs.damage import find_version_problems
from registry.tables import Model, ProblemKind, Source, Version

MOST_VERSIONS = 100  # on a chart and in a table; the API lists all
MOST_COLUMNS = 10
MOST_CLASSES = 25
STRENGTH = 2.5  # of colours: an accuracy of 60 % has the strongest


@dataclass(frozen=True)
class Entry:
    """One version, its source's name and its accuracies."""

    version: VersionRead
    source: str | None
    val: float | None
    test: float | None
    val_change: float | None  # since the version before
    per_class: Mapping[str, float | None]  # on the validation split

    @property
    def number(self) -> int:
        return self.version.number


def accuracy(metrics: Mapping[str, Any], split: str) -> float | None:
    """From the metrics of a version; None where it was not measured."""
    after = Figures.model_validate(metrics).after
    found: float | None = getattr(after, split).accuracy if after else None
    return found


def per_class(metrics: Mapping[str, Any]) -> Mapping[str, float | None]:
    """Validation accuracy of each class."""
    after = Figures.model_validate(metrics).after
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
    earlier = before.val if before else None
    return Entry(
        version=show_version(version, problem),
        source=source,
        val=val,
        test=accuracy(version.metrics, "test"),
        val_change=None if val is None or earlier is None else val - earlier,
        per_class=per_class(version.metrics),
    )


def accuracy_chart(entries: Sequence[Entry]) -> Markup:
    return line_chart(
        "Accuracy of each version",
        "version",
        [entry.number for entry in entries],
        [
            Series("validation", [entry.val for entry in entries], 0),
            Series("test", [entry.test for entry in entries], 4),
        ],
        show=percent,
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
