"""API keys: shown once, stored as a hash, revocable."""

import hashlib
import secrets
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import and_, or_, select
from sqlalchemy.orm import Session

from registry.errors import NotFound
from registry.jobs.transitions import change
from registry.lookup import new_id
from registry.tables import ApiKey, Scope

SECRET_BYTES = 32  # so much chance that one round of SHA-256 is enough to hide it
USE_NOTED_EVERY = timedelta(minutes=1)  # so that reading does not mean writing
INCLUDES: dict[Scope, tuple[Scope, ...]] = {
    "read": ("read",),
    "write": ("read", "write"),
    "admin": ("read", "write", "admin"),
}


@dataclass(frozen=True)
class Caller:
    """Who asks, and what they may do."""

    owner: str
    scope: Scope
    key: str | None = None  # its id, if there is one

    def may(self, scope: Scope) -> bool:
        return scope in INCLUDES[self.scope]


def create_key(
    session: Session, owner: str, scope: Scope, expires_at: datetime | None = None
) -> tuple[ApiKey, str]:
    """A new key, and its secret, which cannot be had again."""
    secret = f"grasp_{secrets.token_urlsafe(SECRET_BYTES)}"
    row = ApiKey(
        id=new_id("key"), owner=owner, scope=scope, sha256=_hash(secret), expires_at=expires_at
    )
    session.add(row)
    session.flush()
    return row, secret


def authenticate(session: Session, secret: str, now: datetime) -> tuple[Caller, ApiKey] | None:
    """Whose key it is, if it is one and still holds."""
    key = session.scalar(
        select(ApiKey).where(
            ApiKey.sha256 == _hash(secret),
            ApiKey.revoked_at.is_(None),
            or_(ApiKey.expires_at.is_(None), ApiKey.expires_at > now),
        )
    )
    return (Caller(key.owner, key.scope, key.id), key) if key else None


def use_is_due(key: ApiKey, now: datetime) -> bool:
    return key.last_used_at is None or now - key.last_used_at > USE_NOTED_EVERY


def note_use(session: Session, key_id: str, now: datetime) -> None:
    change(session, ApiKey, ApiKey.id == key_id, {"last_used_at": now})


def revoke_key(session: Session, key_id: str, now: datetime) -> None:
    """Raises NotFound if there is no such key, or no longer."""
    valid = and_(ApiKey.id == key_id, ApiKey.revoked_at.is_(None))
    if not change(session, ApiKey, valid, {"revoked_at": now}):
        raise NotFound(
            f"there is no valid key {key_id!r}", hint="`grasp admin keys list` shows all"
        )


def any_keys(session: Session) -> bool:
    """Whether keys were ever made; revoking the last one does not open the service."""
    return session.scalar(select(ApiKey.id).limit(1)) is not None


def list_keys(session: Session) -> list[ApiKey]:
    return list(session.scalars(select(ApiKey).order_by(ApiKey.id)))


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()
