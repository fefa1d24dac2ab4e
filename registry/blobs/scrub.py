"""Whether every blob still has the bytes that it is named by, and every row its blob."""

from collections.abc import Iterator
from typing import NamedTuple

from registry.blobs.base import BlobMissing, BlobStore, StorageError
from registry.blobs.damage import find_problems, forget_problems, note_problem, problem_of
from registry.blobs.references import find_uses, is_referenced
from registry.database import Database
from registry.jobs.queue import ring_waiting
from registry.tables import ProblemKind, utc_now


class ScrubbedBlob(NamedTuple):
    """One blob, the `number`th of `total`."""

    number: int
    total: int
    sha256: str
    problem: ProblemKind | None
    uses: list[str]  # what refers to it


def scrub(database: Database, store: BlobStore) -> Iterator[ScrubbedBlob]:
    """Read every blob, and look for those that rows refer to.

    What is found of these is noted: jobs wait for what is bad, and go on once it is sound again.
    Raises StorageError if the store cannot even be listed.
    """
    with database.read() as session:
        uses = find_uses(session)
    names = sorted({*store.names(), *uses})
    for number, sha256 in enumerate(names, start=1):
        problem = _problem(database, store, sha256)
        _note(database, sha256, problem)
        yield ScrubbedBlob(number, len(names), sha256, problem, uses.get(sha256, []))


def _problem(database: Database, store: BlobStore, sha256: str) -> ProblemKind | None:
    try:
        store.verify(sha256)
    except BlobMissing:
        with database.read() as session:  # it may have been deleted, rightly, a moment ago
            return "missing" if is_referenced(session, sha256) else None
    except StorageError as error:
        return problem_of(error)
    return None


def _note(database: Database, sha256: str, problem: ProblemKind | None) -> None:
    """What rows refer to; most is as it was, and nothing is written then."""
    with database.read() as session:
        known = find_problems(session, [sha256]).get(sha256)
        needed = is_referenced(session, sha256)
    if problem is not None and needed:
        with database.write() as session:
            note_problem(session, sha256, problem, utc_now())
    elif known is not None:
        with database.write() as session:
            forget_problems(session, [sha256])
            ring_waiting(session, utc_now())
