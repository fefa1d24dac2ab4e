"""Finding rows: always by owner, so that a stranger's id is as good as none."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from sqlalchemy import ColumnElement, or_, select
from sqlalchemy.orm import Session

from registry.errors import NotFound
from registry.tables import Job, Model, Source, Target, Upload

Named = TypeVar("Named", Target, Model)
Row = TypeVar("Row", Target, Model, Source, Job, Upload)
Item = TypeVar("Item")
WORDS: dict[type, str] = {
    Target: "target",
    Model: "model",
    Source: "source",
    Job: "job",
    Upload: "upload",
}
MAX_PAGE = 200


@dataclass(frozen=True)
class Listing(Generic[Item]):
    items: Sequence[Item]
    next_cursor: str | None


def find(session: Session, table: type[Row], owner: str, id_: str) -> Row:
    """The owner's row with that id. Raises NotFound."""
    return _one(session, table, owner, id_, table.id == id_)


def find_named(session: Session, table: type[Named], owner: str, reference: str) -> Named:
    """The owner's target or model with that id or else name. Raises NotFound."""
    match = or_(table.id == reference, table.name == reference)
    return _one(session, table, owner, reference, match)


def list_page(
    session: Session,
    table: type[Row],
    owner: str,
    conditions: Sequence[ColumnElement[bool]],
    *,
    limit: int,
    cursor: str | None,
) -> Listing[Row]:
    """Some of the owner's rows, newest first; `cursor` is the last id of the page before."""
    query = select(table).where(table.owner == owner, *conditions)
    if cursor is not None:
        query = query.where(table.id < cursor)
    rows = session.scalars(query.order_by(table.id.desc()).limit(limit + 1)).all()
    more = len(rows) > limit
    return Listing(rows[:limit], rows[limit - 1].id if more else None)


def _one(
    session: Session, table: type[Row], owner: str, reference: str, match: ColumnElement[bool]
) -> Row:
    by_id_first = table.id != reference
    row = session.scalar(select(table).where(table.owner == owner, match).order_by(by_id_first))
    if row is None:
        word = WORDS[table]
        raise NotFound(
            f"there is no {word} {reference!r}",
            hint=f"GET /{word}s lists those you can see",
            kind=word,
            name=reference,
        )
    return row
