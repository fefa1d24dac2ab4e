"""Ids and names of rows: made, kept apart, and looked up.

Always by owner, so that a stranger's id is as good as none.
"""

import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Generic, Literal, TypeVar

from sqlalchemy import ColumnElement, or_, select, true
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from registry.briefs import load_briefly, select_size
from registry.errors import NameTaken, NotFound
from registry.tables import Job, Model, Source, Target, Upload

Prefix = Literal["tgt", "mdl", "src", "job", "key", "wrk", "upl"]
ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"  # Crockford's base 32: no i, l, o, u to misread
TIME_BITS, RANDOM_BITS = 48, 80  # milliseconds until the year 10889; as in a ULID
DIGITS = 26
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
SHOWN = 5  # names in a message
PAGE_SIZE = 2**20  # characters of JSON in its rows; one that has more is a page of its own


def new_id(prefix: Prefix) -> str:
    number = (time.time_ns() // 1_000_000) << RANDOM_BITS | secrets.randbits(RANDOM_BITS)
    digits = (ALPHABET[number >> 5 * place & 31] for place in reversed(range(DIGITS)))
    return f"{prefix}_{''.join(digits)}"


@dataclass(frozen=True)
class Listing(Generic[Item]):
    items: Sequence[Item]
    next_cursor: str | None


def find(session: Session, table: type[Row], owner: str | None, id_: str) -> Row:
    """The owner's row with that id; without an owner, anybody's. Raises NotFound."""
    return _one(session, table, owner, id_, table.id == id_)


def find_named(session: Session, table: type[Named], owner: str, reference: str) -> Named:
    """The owner's target or model with that id or else name. Raises NotFound."""
    match = or_(table.id == reference, table.name == reference)
    return _one(session, table, owner, reference, match)


def list_page(
    session: Session,
    table: type[Row],
    owner: str | None,
    conditions: Sequence[ColumnElement[bool]],
    *,
    limit: int,
    cursor: str | None,
) -> Listing[Row]:
    """Some rows of the owner, or of all, newest first, as briefly as lists show them.

    `cursor` is the last id of the page before.
    """
    query = select(table.id, select_size(table)).where(_is_of(table, owner), *conditions)
    if cursor is not None:
        query = query.where(table.id < cursor)
    sizes = session.execute(query.order_by(table.id.desc()).limit(limit + 1)).all()
    ids = _fit_page([(row[0], row[1]) for row in sizes[:limit]])
    rows = load_briefly(session, table, ids)
    return Listing(rows, ids[-1] if len(ids) < len(sizes) else None)


def _fit_page(sizes: Sequence[tuple[str, int]]) -> list[str]:
    """The first of these ids: as many as a page has room for, and one in any case."""
    totals = accumulate(size for _, size in sizes)
    return [
        id_
        for number, ((id_, _), total) in enumerate(zip(sizes, totals, strict=True))
        if number == 0 or total <= PAGE_SIZE
    ]


def _one(
    session: Session,
    table: type[Row],
    owner: str | None,
    reference: str,
    match: ColumnElement[bool],
) -> Row:
    by_id_first = table.id != reference
    row = session.scalar(select(table).where(_is_of(table, owner), match).order_by(by_id_first))
    if row is None:
        word = WORDS[table]
        raise NotFound(
            f"there is no {word} {reference!r}",
            hint=f"GET /{word}s lists those you can see",
            kind=word,
            name=reference,
        )
    return row


def _is_of(table: type[Row], owner: str | None) -> ColumnElement[bool]:
    return true() if owner is None else table.owner == owner


def require_free_name(session: Session, table: type[Named], owner: str, name: str) -> None:
    """Raise NameTaken before much is done for nothing; another may still be faster."""
    row = find_namesake(session, table, owner, name)
    if row is not None:
        require_failed(session, row)


def find_namesake(session: Session, table: type[Named], owner: str, name: str) -> Named | None:
    return session.scalar(select(table).where(table.owner == owner, table.name == name))


def require_failed(session: Session, row: Target | Model) -> None:
    """Raise NameTaken unless the row can be replaced: it has failed, as has all that uses it."""
    if row.status != "failed":
        raise _taken(type(row), row.name)
    used = select(Model.name).where(Model.target_id == row.id, Model.status != "failed")
    users = session.scalars(used.order_by(Model.name).limit(SHOWN + 1)).all()
    if users:
        more = ", …" if len(users) > SHOWN else ""
        raise NameTaken(
            f"you have a {WORDS[type(row)]} named {row.name!r} already; it has failed, but models"
            " use it",
            hint=f"delete {', '.join(users[:SHOWN])}{more} first, or choose another name",
        )


def add_named(session: Session, row: Target | Model) -> None:
    """Store a new target or model. Raises NameTaken."""
    session.add(row)
    _flush_name(session, row)


def rename(session: Session, row: Target | Model, name: str) -> None:
    """Raises NameTaken."""
    row.name = name
    _flush_name(session, row)


def _flush_name(session: Session, row: Target | Model) -> None:
    table, name = type(row), row.name  # not to be asked for once the transaction is broken
    try:
        session.flush()
    except IntegrityError as error:
        raise _taken(table, name) from error


def _taken(table: type[Target] | type[Model], name: str) -> NameTaken:
    return NameTaken(
        f"you have a {WORDS[table]} named {name!r} already", hint="choose another name"
    )
