"""Whether every blob still has the bytes that it is named by, and every row its blob."""

from collections.abc import Iterator
from typing import Literal, NamedTuple

from registry.blobs import BlobDamaged, BlobMissing, BlobStore, StorageError
from registry.database import Database
from registry.references import find_uses, is_referenced

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
