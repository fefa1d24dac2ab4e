"""Deleting what nothing refers to any more: blobs, and the work folders of ended jobs."""

import shutil
from collections.abc import Callable
from pathlib import Path

from sqlalchemy import select

from registry.blobs.base import BlobStore
from registry.blobs.references import is_referenced, references
from registry.database import Database
from registry.jobs.states import ACTIVE
from registry.tables import Job


def collect_blobs(database: Database, store: BlobStore, min_age: float) -> list[str]:
    """Delete unreferenced blobs older than `min_age` seconds; which they were."""
    with database.read() as session:  # one look for all that are needed, and one more for others
        needed = set(session.scalars(select(references().c.sha256)))
    asked = _asking(database)
    return store.collect(lambda sha256: sha256 in needed or asked(sha256), min_age)


def discard_blob(database: Database, store: BlobStore, sha256: str) -> bool:
    """Delete a blob now that it has served its purpose, unless something else refers to it."""
    return store.discard(sha256, _asking(database))


def _asking(database: Database) -> Callable[[str], bool]:
    def asked(sha256: str) -> bool:
        with database.read() as session:  # a new look at the database for every blob
            return is_referenced(session, sha256)

    return asked


def collect_work(database: Database, folder: Path) -> None:
    """Delete the work folders of jobs that have ended or are gone."""
    for path in folder.iterdir() if folder.exists() else ():
        with database.read() as session:
            going_on = select(Job.id).where(Job.id == path.name, Job.status.in_(ACTIVE))
            if session.scalar(going_on) is None:
                shutil.rmtree(path, ignore_errors=True)
