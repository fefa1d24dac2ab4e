"""The folder of everything the service keeps, which nobody but its user may look into."""

import fcntl
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from grasp_core.files import atomic_write
from registry.process.settings import Settings

OTHERS = 0o077  # what the group and everybody else might do
KEPT = ("grasp.db", "grasp.db-shm", "grasp.db-wal", "blobs", "blob_cache", "cache", "work")


def open_home(settings: Settings) -> None:
    """Make it, or close one that others can look into; and keep to ourselves what we write now.

    What somebody else owns is left as they have it. Raises OSError.
    """
    os.umask(OTHERS)
    settings.home.mkdir(parents=True, exist_ok=True)
    if settings.home.stat().st_mode & stat.S_ISVTX:
        return  # a folder for everybody, such as /tmp: not ours to close
    for path in (settings.home, *(settings.home / name for name in KEPT)):
        with suppress(FileNotFoundError):
            _close(path)


@contextmanager
def lock_home(settings: Settings) -> Iterator[None]:
    """For one service at a time. Raises BlockingIOError while another has it; it ends with us."""
    with (settings.home / "serve.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        settings.address_file.unlink(missing_ok=True)  # of one that was killed
        yield


@contextmanager
def write_address(settings: Settings, url: str) -> Iterator[None]:
    """For clients on this machine, as long as it is served there. Raises OSError."""
    with atomic_write(settings.address_file) as file:
        file.write(url.encode())
    try:
        yield
    finally:
        with suppress(OSError):  # a disk that can no longer be written keeps it; nobody believes it
            settings.address_file.unlink()


def _close(path: Path) -> None:
    """Whoever cannot enter a folder cannot reach what is in it: there is no need to go deeper."""
    status = path.stat()
    if status.st_uid == os.geteuid() and status.st_mode & OTHERS:
        path.chmod(stat.S_IMODE(status.st_mode) & ~OTHERS)
