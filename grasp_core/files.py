"""Files that are either whole or not there."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO
from uuid import uuid4


@contextmanager
def atomic_write(path: Path) -> Iterator[BinaryIO]:
    """Open a file that appears under `path`, complete and on disk, when the block ends well."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{uuid4().hex}.tmp")
    try:
        with temporary.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        sync_folder(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def link_file(source: Path, target: Path) -> None:
    """A second name for a file on disk; on another file system, or one without links, a copy."""
    target.parent.mkdir(parents=True, exist_ok=True)
    target.unlink(missing_ok=True)
    try:
        target.hardlink_to(source)
        sync_folder(target.parent)
    except OSError:
        copy_file(source, target)


def copy_file(source: Path, target: Path) -> None:
    """There as a whole, or not at all."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with source.open("rb") as content, atomic_write(target) as file:
        shutil.copyfileobj(content, file)


def sync_folder(folder: Path) -> None:
    """Make renames inside `folder` survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sha256_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
