"""Idempotency keys: the same request gets the same answer, and happens once."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import delete
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from registry.errors import Conflict, KeyReused
from registry.tables import Answer

KEPT_FOR = timedelta(days=7)  # clients repeat what failed within minutes


def recall(session: Session, owner: str, key: str, request: str) -> Answer | None:
    """What was answered before. Raises KeyReused if the key came with another request."""
    answer = session.get(Answer, (owner, key))
    if answer is not None and answer.request != request:
        raise KeyReused(
            "this Idempotency-Key was used for another request",
            hint="use a new key for every new request, and the old one to repeat the old",
        )
    return answer


def is_remembered(session: Session, owner: str, key: str) -> bool:
    """Whether there is an answer under that key, whatever the request was."""
    return session.get(Answer, (owner, key)) is not None


def forget_answers(session: Session, now: datetime) -> None:
    """Delete answers that nobody will ask for again."""
    session.execute(delete(Answer).where(Answer.created_at < now - KEPT_FOR))


def remember(
    session: Session,
    owner: str,
    key: str,
    request: str,
    *,
    status: int,
    location: str | None,
    body: Mapping[str, Any],
) -> None:
    """Keep an answer, in the transaction whose work it reports. Raises Conflict in a race."""
    answer = Answer(
        owner=owner, key=key, request=request, status=status, location=location, body=dict(body)
    )
    session.add(answer)
    try:
        session.flush()
    except IntegrityError as error:
        raise Conflict(
            "another request with this Idempotency-Key is under way",
            hint="repeat it in a moment to get its answer",
        ) from error
