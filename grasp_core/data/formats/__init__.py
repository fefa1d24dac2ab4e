"""The layouts target data may come in, recognised by content rather than by name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from grasp_core.data.formats import archive, folder, npz, parquet, webdataset
from grasp_core.data.limits import Limits
from grasp_core.data.sample import Contents
from grasp_core.errors import TargetError


class Format(NamedTuple):
    layout: str  # shown to those whose data has none of them
    matches: Callable[[Path, Limits], bool]
    files: Callable[[Path, Limits], list[Path]]  # all that the contents depend on
    read: Callable[[Path, Limits], Contents]


# The first that matches is taken: the special before the general.
FORMATS: tuple[Format, ...] = tuple(
    Format(module.LAYOUT, module.matches, module.files, module.read)
    for module in (parquet, npz, webdataset, archive, folder)
)


def recognise(path: Path, limits: Limits) -> Format:
    """The format of the data at a path. Raises TargetError if there is none, or no data."""
    if not path.exists():
        raise TargetError(f"there is nothing at {path}")
    for known in FORMATS:
        if known.matches(path, limits):
            return known
    layouts = "; ".join(known.layout for known in FORMATS)
    raise TargetError(f"the target is {_describe(path)}", hint=f"accepted are {layouts}")


def _describe(path: Path) -> str:
    if not path.is_dir():
        return f"a file of {path.stat().st_size} bytes in no known format"
    kinds = Counter(file.suffix or "no suffix" for file in path.rglob("*") if file.is_file())
    if not kinds:
        return "an empty folder"
    return "a folder of " + ", ".join(f"{n} x {kind}" for kind, n in kinds.most_common(5))
