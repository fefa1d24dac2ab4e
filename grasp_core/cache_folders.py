"""The folders of a cache: made aside, renamed when they are whole, deleted when nobody needs them.

Whoever makes one holds a lock on it, which ends with the process, however that ends. Deleting a
folder never disturbs who has mapped its files: they stay until the map is gone.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

ASIDE = ".tmp-"


class Entry(NamedTuple):
    used_at: float
    size: int
    folder: Path


@contextmanager
def make_aside(root: Path, name: str) -> Iterator[Path]:
    """A new folder beside `<root>/<name>`, which is gone afterwards unless it was renamed."""
    root.mkdir(parents=True, exist_ok=True)
    while True:
        folder = Path(tempfile.mkdtemp(prefix=f"{name}{ASIDE}", dir=root))
        lock = _lock(folder)
        if lock is not None:  # else swept in that moment
            break
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def mark_used(folder: Path) -> None:
    """It is not the next one to go."""
    with suppress(OSError):  # it has just gone, or is another user's
        os.utime(folder)


def sweep_aside(root: Path) -> None:
    """Delete what was not finished by processes that no longer are."""
    for folder in root.glob(f"*{ASIDE}*"):
        lock = _lock(folder)
        if lock is not None:
            shutil.rmtree(folder, ignore_errors=True)
            os.close(lock)


def sweep(root: Path, is_needed: Callable[[str], bool], max_bytes: int) -> None:
    """Also delete entries whose names are not needed and, beyond `max_bytes`, those that were used
    longest ago. What is being made takes room, too."""
    sweep_aside(root)
    entries = []
    for entry in sorted(_entries(root)):
        if ASIDE in entry.folder.name or is_needed(entry.folder.name):
            entries.append(entry)
        else:
            shutil.rmtree(entry.folder, ignore_errors=True)
    excess = sum(entry.size for entry in entries) - max_bytes
    for entry in entries:
        if excess > 0 and ASIDE not in entry.folder.name:
            shutil.rmtree(entry.folder, ignore_errors=True)
            excess -= entry.size


def _entries(root: Path) -> Iterator[Entry]:
    for folder in root.glob("*/"):
        with suppress(FileNotFoundError):  # renamed or deleted meanwhile
            size = sum(path.lstat().st_size for path in folder.rglob("*"))
            yield Entry(folder.stat().st_mtime, size, folder)


def _lock(folder: Path) -> int | None:
    """A descriptor that locks the folder until it is closed; None if somebody else has locked or
    deleted it."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except FileNotFoundError:
        return None
    with suppress(BlockingIOError):
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if folder.exists():
            return descriptor
    os.close(descriptor)
    return None
