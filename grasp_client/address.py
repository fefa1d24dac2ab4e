"""Where the server is, if nobody says: GRASP_URL, or what a service that runs here has written."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import urlsplit

from grasp_client.errors import GraspError

DEFAULT_URL = "http://127.0.0.1:8000"


def home() -> Path:
    """Of a service that is started here."""
    return Path(os.environ.get("GRASP_HOME") or ".grasp")


def default_url() -> str:
    """Raises GraspError."""
    return check_url(os.environ.get("GRASP_URL") or _find_running(home()) or DEFAULT_URL)


def check_url(url: str) -> str:
    """Raises GraspError."""
    if not _is_url(url):
        raise GraspError(
            f"{url!r} is not the address of a server", hint="write it as http://host:port"
        )
    return url.rstrip("/")


def _is_url(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def _find_running(home: Path) -> str | None:
    """The address of the service that our user runs in this home.

    One that was killed has left its address behind, but not its lock.
    """
    try:
        url = (home / "address").read_text().strip()
        return url if _is_url(url) and _is_locked_by_us(home / "serve.lock") else None
    except (OSError, ValueError):
        return None


def _is_locked_by_us(path: Path) -> bool:
    """Somebody else's could be there to have our key sent to them."""
    try:
        import fcntl
    except ImportError:  # Windows, where no service runs
        return False
    with path.open("rb") as file:
        if os.fstat(file.fileno()).st_uid != os.geteuid():
            return False
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False
