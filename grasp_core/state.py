"""What a method remembers from one fold to the next: tensors in a file, with whose they are."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from pydantic import ValidationError
from torch import Tensor

from grasp_core.checkpoints import Checkpoint, write_streamed
from grasp_core.config import Frozen
from grasp_core.errors import CheckpointError, ConfigError
from grasp_core.files import move_file, sha256_file
from grasp_core.methods.declaration import AnyMethod

METADATA_KEY = "grasp_state"
NEXT_FILE = "next_state.safetensors"  # in the work folder, until the fold is published


class StateInfo(Frozen):
    """Who can read a state."""

    method: str
    layout: int


def open_state(path: str | Path, method: AnyMethod) -> Checkpoint | None:
    """The state of an earlier fold; None if another method wrote it, or another form of this one.

    Raises CheckpointError if the file is no state.
    """
    file = Checkpoint(path)
    try:
        info = StateInfo.model_validate_json(file.metadata.get(METADATA_KEY, ""))
    except ValidationError as error:
        raise CheckpointError(
            f"{file.path.name} is not the state of a method", hint="give what a fold has written"
        ) from error
    return file if (info.method, info.layout) == (method.name, method.state) else None


def keep_state(folder: Path, method: AnyMethod, state: Mapping[str, Tensor]) -> str:
    """Write the next state to the work folder, tensor by tensor; returns its sha256."""
    if method.state is None:
        raise ConfigError(f"{method.name} returns a state and declares none")
    info = StateInfo(method=method.name, layout=method.state).model_dump_json()
    return write_streamed(folder / NEXT_FILE, state, {"format": "pt", METADATA_KEY: info})


def kept_state(folder: Path, sha256: str | None) -> None:
    """Raises CheckpointError if the work folder lacks the state that was kept, or a bit of it."""
    if sha256 is None:
        return
    path = folder / NEXT_FILE
    if not path.exists() or sha256_file(path) != sha256:
        raise CheckpointError(f"{NEXT_FILE} is damaged: it is not what was written")


def publish_state(folder: Path, output: Path) -> None:
    move_file(folder / NEXT_FILE, output)
