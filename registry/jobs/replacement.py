"""A target or model that has failed gives its name to the next."""

from sqlalchemy import select
from sqlalchemy.orm import Session

from registry.errors import NotFound
from registry.jobs.queue import drop_queue, lock_queue
from registry.lookup import Named, find_namesake, require_failed
from registry.tables import Model, Target


def replace_failed(session: Session, table: type[Named], owner: str, name: str) -> None:
    """Delete what has that name: of a target, with its models.

    Raises NameTaken if one of them has not failed, or is being tried again.
    """
    row = find_namesake(session, table, owner, name)
    if row is None:
        return
    require_failed(session, row)  # before anybody has to wait
    if not _lock(session, row):
        return
    users = session.scalars(select(Model).where(Model.target_id == row.id).order_by(Model.id))
    rows: list[Target | Model] = [model for model in users.all() if _lock(session, model)]
    require_failed(session, row)
    for each in (*rows, row):
        drop_queue(session, each.id)
        session.delete(each)
        session.flush()


def _lock(session: Session, row: Target | Model) -> bool:
    """As it is now, and stays until the transaction ends; False if it was deleted meanwhile."""
    try:
        lock_queue(session, row.id)
    except NotFound:
        return False
    session.refresh(row)
    return True
