"""The identity of target data: its bytes and inner paths, wherever it lies."""

from __future__ import annotations

import hashlib
from pathlib import Path

from grasp_core.data.formats import Format
from grasp_core.data.limits import Limits


def fingerprint_of(path: Path, found: Format, limits: Limits) -> str:
    """sha256 of a single file; or of the sorted relative paths and sha256s of several."""
    files = found.files(path, limits)
    if files == [path]:
        return file_sha256(path)
    root = path if path.is_dir() else path.parent
    names = {file.relative_to(root).as_posix(): file for file in files}
    digest = hashlib.sha256()
    for name in sorted(names):
        # NUL cannot be part of a name, so no two lists of files write the same bytes.
        digest.update(name.encode("utf-8", "surrogateescape") + b"\0")
        digest.update(bytes.fromhex(file_sha256(names[name])))
    return digest.hexdigest()


def file_sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
