"""Who needs which blob, and deleting what nobody does; so, too, with folders of ended jobs."""

import shutil
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Subquery, func, select, true, union_all
from sqlalchemy.orm import InstrumentedAttribute, Session

from registry.blobs.base import BlobStore
from registry.database import Database
from registry.jobs.queue import is_active
from registry.jobs.states import ACTIVE
from registry.tables import (
    Job,
    Model,
    ModelFile,
    Source,
    Target,
    UploadPart,
    Version,
    VersionFile,
)


def _name_of(model_id: InstrumentedAttribute[str]) -> ColumnElement[str]:
    return select(Model.name).where(Model.id == model_id).scalar_subquery()


class Reference(NamedTuple):
    """Rows that need blobs, of one kind."""

    kind: str  # as /metrics calls it
    sha256: InstrumentedAttribute[Any]
    size: ColumnElement[int] | InstrumentedAttribute[Any]
    holds: ColumnElement[bool]  # for the rows that need their bytes
    label: str  # what people call such a row, with its names to be filled in
    names: tuple[ColumnElement[Any] | InstrumentedAttribute[Any], ...]


REFERENCES = (
    Reference(
        kind="targets",
        sha256=Target.sha256,
        size=Target.size,
        holds=Target.sha256.is_not(None),
        label="target {}",
        names=(Target.name,),
    ),
    Reference(
        kind="versions",
        sha256=Version.sha256,
        size=Version.size,
        holds=Version.pruned_at.is_(None),
        label="version {} of {}",
        names=(Version.number, _name_of(Version.model_id)),
    ),
    Reference(
        kind="version_files",
        sha256=VersionFile.sha256,
        size=VersionFile.size,
        holds=true(),
        label="{} of version {} of {}",
        names=(VersionFile.name, VersionFile.number, _name_of(VersionFile.model_id)),
    ),
    Reference(
        kind="model_files",
        sha256=ModelFile.sha256,
        size=ModelFile.size,
        holds=true(),
        label="{} of {}",
        names=(ModelFile.name, _name_of(ModelFile.model_id)),
    ),
    Reference(
        kind="sources",
        sha256=Source.sha256,
        size=Source.size,
        holds=Source.stored.expression,
        label="source {}",
        names=(Source.id,),
    ),
    Reference(
        kind="candidates",
        sha256=Job.candidate_sha256,
        size=Job.candidate["size"].as_integer(),
        holds=Job.candidate_sha256.is_not(None) & is_active(Job),
        label="job {}",
        names=(Job.id,),
    ),
    Reference(
        kind="uploads",
        sha256=UploadPart.sha256,
        size=UploadPart.size,
        holds=true(),
        label="upload {}",
        names=(UploadPart.upload_id,),
    ),
)


def references() -> Subquery:
    """The `sha256` of every blob that something needs, as often as it does."""
    return union_all(
        *(select(each.sha256.label("sha256")).where(each.holds) for each in REFERENCES)
    ).subquery()


def is_referenced(session: Session, sha256: str) -> bool:
    """Whether anything needs it: a target, a version, a model, a source, a dry run, an upload."""
    needed = references()
    found = select(needed).where(needed.c.sha256 == sha256).limit(1)
    return session.execute(found).first() is not None


def find_uses(session: Session) -> dict[str, list[str]]:
    """By sha256, what needs these bytes, in words."""
    uses: defaultdict[str, list[str]] = defaultdict(list)
    for each in REFERENCES:
        for sha256, *names in session.execute(select(each.sha256, *each.names).where(each.holds)):
            uses[sha256].append(each.label.format(*names))
    return dict(uses)


def sum_bytes(session: Session) -> dict[str, int]:
    """How many bytes each kind needs, each blob once: a version may equal an older one.

    A query for each, which an index of what it adds up answers.
    """
    sums = {}
    for each in REFERENCES:
        blobs = select(each.sha256, each.size.label("size")).where(each.holds).distinct().subquery()
        sums[each.kind] = int(session.scalar(select(func.sum(blobs.c.size))) or 0)
    return sums


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
