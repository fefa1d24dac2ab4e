"""A token for who started a service without keys, where their connections cannot be recognised.

It is written into the home, which only they can read, and holds as long as the service runs.
"""

import hmac
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from registry.process.settings import Settings

TOKEN_BYTES = 32
PRIVATE = 0o600


@contextmanager
def token(settings: Settings) -> Iterator[str]:
    """A new one; that of an earlier run is worth nothing any more. Raises OSError."""
    path = settings.token_file
    path.unlink(missing_ok=True)
    path.touch(PRIVATE, exist_ok=False)
    secret = secrets.token_urlsafe(TOKEN_BYTES)
    path.write_text(secret)
    try:
        yield secret
    finally:
        with suppress(OSError):  # a disk that can no longer be written keeps it; it opens nothing
            path.unlink()


def is_token(settings: Settings, secret: str) -> bool:
    held = _read(settings.token_file)
    return bool(held) and hmac.compare_digest(secret.encode(), held.encode())


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
