"""Whether every blob still has the bytes that it is named by, and every row its blob."""

from collections import defaultdict
from collections.abc import Iterator
from typing import Literal, NamedTuple

from sqlalchemy import select
from sqlalchemy.orm import Session

from registry.blobs import BlobDamaged, BlobMissing, BlobStore, StorageError
from registry.collection import is_referenced
from registry.database import Database
from registry.states import ACTIVE
from registry.tables import Job, Model, Source, Target, Version

Problem = Literal["damaged", "missing", "unreadable"]


class Report(NamedTuple):
    """One blob, the `number`th of `total`."""

    number: int
    total: int
    sha256: str
    problem: Problem | None
    uses: list[str]  # what refers to it


def scrub(database: Database, store: BlobStore) -> Iterator[Report]:
    """Read every blob, and look for those that rows refer to.

    Raises StorageError if the store cannot even be listed.
    """
    with database.read() as session:
        uses = find_uses(session)
    names = sorted({*store.names(), *uses})
    for number, sha256 in enumerate(names, start=1):
        problem = _problem(database, store, sha256)
        yield Report(number, len(names), sha256, problem, uses.get(sha256, []))


def find_uses(session: Session) -> dict[str, list[str]]:
    """By sha256, what needs these bytes: the same rows that `is_referenced` asks for."""
    uses: defaultdict[str, list[str]] = defaultdict(list)
    for sha256, name in session.execute(select(Target.sha256, Target.name)):
        if sha256 is not None:
            uses[sha256].append(f"target {name}")
    versions = select(Version.sha256, Version.number, Model.name).join(
        Model, Model.id == Version.model_id
    )
    for sha256, number, name in session.execute(versions.where(Version.pruned_at.is_(None))):
        uses[sha256].append(f"version {number} of {name}")
    for sha256, source in session.execute(select(Source.sha256, Source.id).where(Source.stored)):
        uses[sha256].append(f"source {source}")
    trials = select(Job.candidate_sha256, Job.id).where(Job.status.in_(ACTIVE))
    for sha256, job in session.execute(trials):
        if sha256 is not None:
            uses[sha256].append(f"job {job}")
    return dict(uses)


def _problem(database: Database, store: BlobStore, sha256: str) -> Problem | None:
    try:
        store.verify(sha256)
    except BlobDamaged:
        return "damaged"
    except BlobMissing:
        with database.read() as session:  # it may have been deleted, rightly, a moment ago
            return "missing" if is_referenced(session, sha256) else None
    except StorageError:
        return "unreadable"
    return None
