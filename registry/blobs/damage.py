"""Blobs that cannot be relied on: noticed by whoever reads them, known until they are mended.

What one job alone needs, its source, fails that job. What all jobs of a model need, its newest
version with its files, those of the model itself and its target, makes them wait: `claim` passes
their queue by, and after a while, twice as long each time, lets one of them look again. A problem
is over when the blob is found sound, when its bytes are stored anew, or when nothing needs them.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple, get_args

from sqlalchemy import delete, func, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from grasp_core.named_files import WEIGHTS
from registry.blobs.base import BlobDamaged, BlobMissing, BlobStore, StorageError
from registry.blobs.collection import find_uses, is_referenced
from registry.database import Database
from registry.jobs.queue import ring_waiting
from registry.jobs.transitions import Failure, change
from registry.tables import BlobProblem, Model, ProblemKind, Target, Version, utc_now

# Between two looks at a blob that jobs wait for: as long as it has been known, within these.
SOONEST = timedelta(minutes=1)
LATEST = timedelta(hours=1)  # reading it may mean to download gigabytes
CODES: dict[ProblemKind, str] = {
    "damaged": BlobDamaged.code,
    "missing": BlobMissing.code,
    "unreadable": StorageError.code,
}
PROBLEMS: dict[ProblemKind, str] = {
    "damaged": "is damaged: its bytes are not those that were stored",
    "missing": "is missing from the store",
    "unreadable": "cannot be read from the store",
}


@dataclass(frozen=True)
class Input:
    """A blob that a job reads: what people call it, and how they can mend it."""

    sha256: str
    label: str
    remedy: str
    shared: bool = False  # all jobs of the queue need it

    def failure(self, problem: ProblemKind) -> Failure:
        """What is wrong with it, for whoever needs it."""
        message = f"{self.label} {PROBLEMS[problem]} (sha256 {self.sha256})"
        return Failure(CODES[problem], message, self.remedy, retryable=problem == "unreadable")


class BadInput(Exception):
    """A job cannot rely on one of its inputs."""

    def __init__(self, given: Input, error: StorageError) -> None:
        super().__init__(str(error))
        self.given = given
        self.problem = problem_of(error)
        self.error = error


def version_inputs(model: Model, version: Version) -> dict[str, Input]:
    """What a version consists of, by name."""
    called = f"version {version.number} of model {model.name!r}"
    remedy = "restore it from a backup, or roll the model back to a version that is sound"
    files = {
        file.name: Input(file.sha256, f"{file.name} of {called}", remedy, shared=True)
        for file in version.files
    }
    return {WEIGHTS: Input(version.sha256, called, remedy, shared=True), **files}


def model_inputs(session: Session, model: Model) -> dict[str, Input]:
    """What all jobs of a model read besides its target: its own files, and its newest version's."""
    remedy = "restore it from a backup, or make another model with the same, which stores it anew"
    own = {
        file.name: Input(file.sha256, f"{file.name} of model {model.name!r}", remedy, shared=True)
        for file in model.files
    }
    if model.version is None:
        return own
    newest = session.get_one(Version, (model.id, model.version))
    return {**own, **version_inputs(model, newest)}


def target_input(target: Target) -> Input:
    return Input(
        target.sha256 or "",
        f"the archive of target {target.name!r}",
        "restore it from a backup, or upload the same archive again, as a target of any name",
        shared=True,
    )


def problem_of(error: StorageError) -> ProblemKind:
    match error:
        case BlobDamaged():
            return "damaged"
        case BlobMissing():
            return "missing"
        case _:
            return "unreadable"


def note_problem(session: Session, sha256: str, problem: ProblemKind, now: datetime) -> None:
    """Somebody tried to read it; the longer it is known, the later it is worth another try.

    Who tries before that time, as downloads do, does not put it off.
    """
    known = session.get(BlobProblem, sha256, populate_existing=True)
    if known is not None:
        due = known.look_at <= now
        pause = min(max(now - known.noticed_at, SOONEST), LATEST)
        found = {"problem": problem, "look_at": now + pause if due else known.look_at}
        change(session, BlobProblem, BlobProblem.sha256 == sha256, found)
        return
    new = BlobProblem(sha256=sha256, problem=problem, noticed_at=now, look_at=now + SOONEST)
    with suppress(IntegrityError), session.begin_nested():  # unless another was faster
        session.add(new)


def forget_problems(session: Session, names: Iterable[str]) -> None:
    """These blobs are sound, or not needed."""
    session.execute(delete(BlobProblem).where(BlobProblem.sha256.in_(list(names))))


def find_problems(session: Session, names: Iterable[str]) -> dict[str, ProblemKind]:
    """By sha256, what is wrong with those of these blobs that are known to be bad."""
    known = select(BlobProblem.sha256, BlobProblem.problem)
    found = session.execute(known.where(BlobProblem.sha256.in_(list(names))))
    return {row.sha256: row.problem for row in found}


def find_version_problems(session: Session, versions: Iterable[Version]) -> dict[int, ProblemKind]:
    """By number, what is wrong with these versions of one model: their weights, or another file."""
    blobs = {
        version.number: [*(file.sha256 for file in version.files), version.sha256]
        for version in versions
    }
    known = find_problems(session, [name for names in blobs.values() for name in names])
    return {
        number: known[name]
        for number, names in blobs.items()
        for name in names  # of two that are bad, the weights are reported
        if name in known
    }


def count_problems(session: Session) -> dict[ProblemKind, int]:
    """Bad blobs of every kind, also where there are none."""
    counted = select(BlobProblem.problem, func.count()).group_by(BlobProblem.problem)
    counts: dict[ProblemKind, int] = dict.fromkeys(get_args(ProblemKind), 0)
    return counts | {row.problem: row[1] for row in session.execute(counted)}


def forget_unneeded(database: Database) -> None:
    """Problems of blobs that nothing refers to any more are none."""
    with database.read() as session:
        known = session.scalars(select(BlobProblem.sha256)).all()
        gone = [sha256 for sha256 in known if not is_referenced(session, sha256)]
    if gone:
        with database.write() as session:
            forget_problems(session, gone)


def find_failure(session: Session, inputs: Iterable[Input]) -> Failure | None:
    """What is wrong with the first of these that is known to be bad."""
    given = list(inputs)
    known = find_problems(session, [each.sha256 for each in given])
    bad = (each.failure(known[each.sha256]) for each in given if each.sha256 in known)
    return next(bad, None)


def find_bad_inputs(session: Session, models: Sequence[Model]) -> dict[str, Failure]:
    """By id, the bad blob that the jobs of these models wait for, where they do."""
    if session.scalar(select(BlobProblem.sha256).limit(1)) is None:
        return {}
    needed = {model.id: _shared_inputs(session, model) for model in models}
    names = [given.sha256 for inputs in needed.values() for given in inputs]
    problems = find_problems(session, names)
    return {
        model_id: given.failure(problems[given.sha256])
        for model_id, inputs in needed.items()
        for given in reversed(inputs)  # of two that are bad, the first is reported
        if given.sha256 in problems
    }


def _shared_inputs(session: Session, model: Model) -> list[Input]:
    """What every job of a model reads."""
    target = session.get_one(Target, model.target_id)
    own = model_inputs(session, model)
    return [*([target_input(target)] if target.sha256 else []), *own.values()]


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
