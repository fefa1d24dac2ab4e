"""Files that become a version's beside its weights: made in a work folder, published with it.

Of what a method remembers from one fold to the next, the name says whose it is, and the metadata in
which layout.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from pydantic import ValidationError
from torch import Tensor

from grasp_core.checkpoints import Checkpoint, write_streamed
from grasp_core.config import Frozen
from grasp_core.errors import CheckpointError
from grasp_core.files import link_file, sha256_file
from grasp_core.methods.declaration import AnyMethod
from grasp_core.named_files import require_name
from grasp_core.report import NamedFile

METADATA_KEY = "grasp_state"
KEPT = "kept"  # in the work folder, until the fold is published


class StateInfo(Frozen):
    """Who can read a state."""

    method: str
    layout: int


def open_state(path: str | Path, method: AnyMethod) -> Checkpoint | None:
    """What the method remembers of an earlier fold; None if it is in another layout.

    Raises CheckpointError if the file is no state of it.
    """
    file = Checkpoint(path)
    try:
        info = StateInfo.model_validate_json(file.metadata.get(METADATA_KEY, ""))
    except ValidationError as error:
        raise CheckpointError(
            f"{file.path.name} is not the state of a method", hint="give what a fold has written"
        ) from error
    if info.method != method.name:
        raise CheckpointError(
            f"{file.path.name} is the state of {info.method}, not of {method.name}",
            hint=f"name it state/{info.method}",
        )
    return file if info.layout == method.state else None


def describe_state(method: AnyMethod) -> dict[str, str]:
    """The metadata of its state."""
    assert method.state is not None  # noqa: S101 - its caller has looked
    info = StateInfo(method=method.name, layout=method.state)
    return {METADATA_KEY: info.model_dump_json()}


def keep_file(
    folder: Path, name: str, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]
) -> NamedFile:
    """Write a file to the work folder, tensor by tensor."""
    require_name(name)
    path = folder / KEPT / name
    path.parent.mkdir(parents=True, exist_ok=True)
    sha256 = write_streamed(path, tensors, {"format": "pt", **metadata})
    return NamedFile(name=name, sha256=sha256, size=path.stat().st_size)


def require_kept(folder: Path, files: Iterable[NamedFile]) -> None:
    """Raises CheckpointError if the work folder lacks a file that was kept, or a bit of it."""
    for file in files:
        path = folder / KEPT / file.name
        if not path.exists() or sha256_file(path) != file.sha256:
            raise CheckpointError(f"{file.name} is damaged: it is not what was written")


def publish_files(folder: Path, files: Iterable[NamedFile], output: Path) -> None:
    """They stay in the work folder too: a fold that is killed now still goes on with them."""
    for file in files:
        link_file(folder / KEPT / file.name, output / file.name)
