"""Formats of target data, recognised by content rather than by name; and the identity of data."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path, PurePosixPath
from typing import Generic, NamedTuple

from grasp_core.data.contents import C, Contents, Limits
from grasp_core.errors import TargetError, shorten
from grasp_core.files import sha256_file


class Format(NamedTuple, Generic[C]):
    """One layout that a kind's data may come in."""

    layout: str  # shown to those whose data has none of them
    matches: Callable[[Path, Limits], bool]
    files: Callable[[Path, Limits], list[Path]]  # all that the contents depend on
    read: Callable[[Path, Limits], Contents[C]]


def recognise(path: Path, formats: Sequence[Format[C]], limits: Limits) -> Format[C]:
    """The first format that the data at a path has. Raises TargetError if none, or no data."""
    if not path.exists():
        raise TargetError(f"there is nothing at {path}")
    for known in formats:
        if known.matches(path, limits):
            return known
    layouts = "; ".join(known.layout for known in formats)
    raise TargetError(f"the target is {_describe(path)}", hint=f"accepted are {layouts}")


def _describe(path: Path) -> str:
    if not path.is_dir():
        return f"a file of {path.stat().st_size} bytes in no known format"
    names = [file.name for file in path.rglob("*") if file.is_file()]
    return f"a folder of {describe_files(names)}" if names else "an empty folder"


def describe_files(names: Iterable[str]) -> str:
    """How many there are of each kind."""
    suffixes = Counter(PurePosixPath(name).suffix or "no suffix" for name in names)
    return ", ".join(f"{n} x {shorten(s, 20)}" for s, n in suffixes.most_common(5)) or "nothing"


def fingerprint_of(path: Path, files: list[Path]) -> str:
    """The identity of data by its bytes and inner paths, wherever it lies.

    sha256 of a single file; or of the sorted relative paths and sha256s of several.
    """
    if files == [path]:
        return sha256_file(path)
    root = path if path.is_dir() else path.parent
    names = {file.relative_to(root).as_posix(): file for file in files}
    digest = hashlib.sha256()
    for name in sorted(names):
        # NUL cannot be part of a name, so no two lists of files write the same bytes.
        digest.update(name.encode("utf-8", "surrogateescape") + b"\0")
        digest.update(bytes.fromhex(sha256_file(names[name])))
    return digest.hexdigest()
