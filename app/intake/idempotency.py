"""Requests that may be repeated: with an Idempotency-Key they happen once."""

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import Depends, Header, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from sqlalchemy.orm import Session

from app.access.auth import CallerDep
from registry.answers import is_remembered, recall, remember

IdempotencyKey = Annotated[
    str | None,
    Header(
        pattern=r"^[\x21-\x7e]{1,255}$",
        description="Any unique text. The same request with the same key gets the same answer.",
    ),
]


@dataclass(frozen=True)
class Created:
    """An answer that can be given again."""

    body: BaseModel
    status: int = 201
    location: str | None = None

    def response(self) -> JSONResponse:
        return _respond(self.status, self.body.model_dump(mode="json"), self.location)


@dataclass(frozen=True)
class Once:
    """One request under its caller's key, if they gave one."""

    owner: str
    key: str | None
    place: str  # method, path and query

    def run(self, session: Session, content: object, act: Callable[[], Created]) -> JSONResponse:
        """Do it and remember the answer in the same transaction, or answer as before.

        `content` is what was asked, as JSON; the same key with another one raises KeyReused.
        """
        before = self.replay(session, content)
        if before is not None:
            return before
        created = act()
        if self.key is not None:
            remember(
                session,
                self.owner,
                self.key,
                self._asked(content),
                status=created.status,
                location=created.location,
                body=created.body.model_dump(mode="json"),
            )
        return created.response()

    def replay(self, session: Session, content: object) -> JSONResponse | None:
        """The answer that was given before. Raises KeyReused."""
        if self.key is None:
            return None
        before = recall(session, self.owner, self.key, self._asked(content))
        if before is None:
            return None
        replayed = _respond(before.status, before.body, before.location)
        replayed.headers["Idempotency-Replayed"] = "true"
        return replayed

    def is_answered(self, session: Session) -> bool:
        """Whether some request came with this key before: with the same content, or another."""
        return self.key is not None and is_remembered(session, self.owner, self.key)

    def _asked(self, content: object) -> str:
        asked = json.dumps([self.place, content], sort_keys=True)
        return hashlib.sha256(asked.encode()).hexdigest()


def get_once(request: Request, caller: CallerDep, idempotency_key: IdempotencyKey = None) -> Once:
    url = request.url
    return Once(caller.owner, idempotency_key, f"{request.method} {url.path}?{url.query}")


OnceDep = Annotated[Once, Depends(get_once)]


def _respond(status: int, body: Any, location: str | None) -> JSONResponse:
    headers = {"Location": location} if location else None
    return JSONResponse(body, status_code=status, headers=headers)
