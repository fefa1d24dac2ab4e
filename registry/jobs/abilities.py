"""What a worker must have to run a job: the method and the kind of its model.

Packages with methods and kinds of their own come and go, and not on all machines at once. A job is
left to a worker that has what it needs; where none that lives has, its model says so.
"""

from collections.abc import Sequence
from datetime import timedelta
from typing import NamedTuple

from sqlalchemy import ColumnElement, exists, select
from sqlalchemy.orm import Session

from grasp_core.kinds import KINDS
from grasp_core.methods import METHODS
from grasp_core.parameters import methods_of
from registry.jobs.transitions import Failure
from registry.tables import Model, ModelMethod, Queue, Target, Worker, utc_now


class Abilities(NamedTuple):
    """The names of the methods and kinds of one process."""

    methods: frozenset[str]
    kinds: frozenset[str]

    @classmethod
    def here(cls) -> "Abilities":
        return cls(frozenset(METHODS), frozenset(KINDS))


def lacks_abilities(abilities: Abilities) -> ColumnElement[bool]:
    """Whether the jobs of a queue need a method or a kind that is not among these."""
    return (
        exists().where(
            ModelMethod.model_id == Queue.id, ModelMethod.method.not_in(abilities.methods)
        )
        | exists().where(Model.id == Queue.id, Model.kind.not_in(abilities.kinds))
        | exists().where(Target.id == Queue.id, Target.kind.not_in(abilities.kinds))
    )


def find_missing(
    session: Session, models: Sequence[Model], lease_seconds: float
) -> dict[str, Failure]:
    """By id, what all living workers lack for these models. Without workers nothing is known."""
    alive = Worker.seen_at > utc_now() - timedelta(seconds=lease_seconds)
    workers = session.execute(select(Worker.methods, Worker.kinds).where(alive)).all()
    if not workers or any(row.methods is None for row in workers):
        return {}
    missing = {}
    for model in models:
        able = [frozenset(row.methods) for row in workers if model.kind in row.kinds]
        methods = methods_of(model.merge)
        if not able:
            missing[model.id] = _failure("kind", model.kind)
        elif not any(known.issuperset(methods) for known in able):
            lacking = next((m for m in methods if m not in frozenset().union(*able)), methods[0])
            missing[model.id] = _failure("method", lacking)
    return missing


def _failure(what: str, name: str) -> Failure:
    return Failure(
        f"{what}_missing",
        f"no worker has the {what} {name!r}",
        hint=f"install the package that brings it where workers run, or choose another {what}",
    )
