"""Names of targets and models: one owner has no two of the same."""

from sqlalchemy import select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from registry.errors import NameTaken
from registry.lookup import WORDS
from registry.tables import Model, Target


def require_free_name(
    session: Session, table: type[Target] | type[Model], owner: str, name: str
) -> None:
    """Raise NameTaken before much is done for nothing; another may still be faster."""
    if session.scalar(select(table.id).where(table.owner == owner, table.name == name)):
        raise _taken(table, name)


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
