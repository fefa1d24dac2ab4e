"""Rows as lists show them: of JSON that may be large, only what is short, and how much it is.

One row can hold a megabyte of class names, and a page two hundred rows.
"""

from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import Any, NamedTuple, TypeVar

from sqlalchemy import JSON, ColumnElement, Text, case, cast, func, literal, select
from sqlalchemy.orm import InstrumentedAttribute, Session, defer, with_expression
from sqlalchemy.orm.attributes import set_committed_value

from registry.tables import Job, Model, Source, Target, Upload

LIGHT = 4096  # characters of JSON that a list shows: hundreds of class names
Row = TypeVar("Row", Target, Model, Source, Job, Upload)


class Brief(NamedTuple):
    """What is read in place of a column, and what that column is then."""

    column: InstrumentedAttribute[Any]
    values: Mapping[str, ColumnElement[Any]]
    join: Callable[[Mapping[str, Any]], Any]
    counted: tuple[InstrumentedAttribute[int | None], ColumnElement[Any]] | None = None


def select_size(table: type[Row]) -> ColumnElement[int]:
    """How many characters of JSON a row has in a list."""
    values: dict[str, ColumnElement[Any]] = {
        attribute.key: attribute.columns[0]
        for attribute in table.__mapper__.column_attrs
        if isinstance(attribute.columns[0].type, JSON) and not attribute.deferred
    }
    brief = BRIEFS.get(table)
    if brief is not None:
        del values[brief.column.key]
        values |= brief.values
    total: ColumnElement[int] = literal(0)
    for value in values.values():
        total = total + func.coalesce(_length(value), 0)
    return total


def load_briefly(session: Session, table: type[Row], ids: Sequence[str]) -> list[Row]:
    """The newest first."""
    brief = BRIEFS.get(table)
    query = select(table).where(table.id.in_(ids)).order_by(table.id.desc())
    if brief is None:
        return list(session.scalars(query))
    query = query.options(defer(brief.column))
    if brief.counted is not None:
        query = query.options(with_expression(*brief.counted))
    rows = []
    for row, *values in session.execute(query.add_columns(*brief.values.values())):
        known = dict(zip(brief.values, values, strict=True))
        set_committed_value(row, brief.column.key, brief.join(known))
        rows.append(row)
    return rows


def _length(value: ColumnElement[Any]) -> ColumnElement[int]:
    return func.length(cast(value, Text))


def _if_light(value: ColumnElement[Any]) -> ColumnElement[Any]:
    return case((_length(value) <= LIGHT, value))


def _count(names: ColumnElement[Any]) -> ColumnElement[Any]:
    """Null where there are none: SQLite counts none in what is null."""
    return func.nullif(func.json_array_length(names), 0)


def _of_classes(table: type[Model] | type[Source]) -> Brief:
    names = table.__mapper__.columns["classes"]
    values = {"classes": _if_light(names)}
    return Brief(table.classes, values, itemgetter("classes"), (table.class_count, _count(names)))


def _of_summary() -> Brief:
    long = {name: _if_light(Target.summary[name]) for name in ("classes", "counts", "broken")}
    short = {name: Target.summary[name] for name in ("images", "broken_count", "fingerprint")}
    count = Target.class_count, _count(Target.summary["classes"])
    return Brief(Target.summary, long | short, dict, count)


def _of_candidate() -> Brief:
    values = {"name": Job.candidate["name"]}
    return Brief(Job.candidate, values, lambda known: known if known["name"] else None)


BRIEFS: dict[type, Brief] = {
    Target: _of_summary(),
    Model: _of_classes(Model),
    Source: _of_classes(Source),
    Job: _of_candidate(),
}
