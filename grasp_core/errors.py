"""Everything grasp_core raises on purpose.

GraspError
├── ConfigError          a parameter makes no sense
│   └── DeviceError          … because this machine has no such device
├── ArchitectureError    timm does not know the architecture, or cannot build it as asked
├── CheckpointError      a weights file cannot be used
│   └── CheckpointMismatch   … because its tensors are not the model's: all differences, by name
├── TargetError          the target data cannot be used
│   └── BrokenImages         … because too many images do not decode: which, and why
└── FoldStopped          the progress callback said stop; the fold can be resumed

Each class has a stable `code`, which the service stores on the job and puts into its answers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from grasp_core.manifest import Mismatches


class GraspError(Exception):
    """Base of all errors of this package; `hint` says what the user can do about it."""

    code = "grasp_error"

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message

    def __reduce__(self) -> tuple[object, ...]:
        # Keyword-only arguments and subclass state survive the way back from a child process.
        return _restore, (type(self), self.args, self.__dict__)


def _restore(
    kind: type[GraspError], args: tuple[object, ...], state: dict[str, object]
) -> GraspError:
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(state)
    return error


class ConfigError(GraspError):
    code = "invalid_config"


class DeviceError(ConfigError):
    code = "no_such_device"


class ArchitectureError(GraspError):
    code = "unknown_architecture"


class CheckpointError(GraspError):
    code = "invalid_checkpoint"


class CheckpointMismatch(CheckpointError):
    code = "checkpoint_mismatch"

    def __init__(self, message: str, *, hint: str, mismatches: Mismatches) -> None:
        super().__init__(message, hint=hint)
        self.mismatches = mismatches


class TargetError(GraspError):
    code = "invalid_target"


class BrokenImages(TargetError):
    code = "broken_images"


class FoldStopped(GraspError):
    code = "stopped"
