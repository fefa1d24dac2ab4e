"""Everything grasp_core raises on purpose.

GraspError
├── ConfigError          a parameter makes no sense
│   ├── DeviceError          … because this machine has no such device
│   └── Unloadable           … because it names what an installed package fails to bring
├── OutOfTime            a candidate took longer than it may
├── ArchitectureError    nobody knows the architecture, or it cannot be built as asked
├── CheckpointError      a weights file cannot be used
│   └── CheckpointMismatch   … because its tensors are not the model's: all differences, by name
├── TargetError          the target data cannot be used
│   └── BrokenExamples       … because too many examples do not decode: which, and why
└── FoldStopped          the progress callback said stop; the fold can be resumed

Each class has a stable `code`, which the service stores on the job and puts into its answers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from grasp_core.manifest import Mismatches

MAX_CHARACTERS = 2000  # of the names of tensors in an answer, for each way in which they differ


def shorten(text: str, characters: int) -> str:
    """For a message: names that a stranger chose can have megabytes."""
    return text if len(text) <= characters else f"{text[: characters - 1]}…"


class GraspError(Exception):
    """Base of all errors of this package; `hint` says what the user can do about it."""

    code = "grasp_error"

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message

    def fields(self) -> dict[str, Any]:
        """What a program can act on beside `code`: members of the service's problem+json."""
        return {}

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


class Unloadable(ConfigError, KeyError):
    """A KeyError, too: `in` and `get` of a mapping find nothing of the name."""

    code = "broken_package"


class OutOfTime(GraspError):
    code = "out_of_time"


class ArchitectureError(GraspError):
    code = "unknown_architecture"


class CheckpointError(GraspError):
    code = "invalid_checkpoint"
    convertible = False  # a file of torch, which `convert_checkpoint` reads

    def fields(self) -> dict[str, Any]:
        return {"convertible": True} if self.convertible else {}


class CheckpointMismatch(CheckpointError):
    code = "checkpoint_mismatch"

    def __init__(
        self,
        message: str,
        *,
        hint: str,
        mismatches: Mismatches,
        file: str,
        architecture: str,
        only_head: bool,
    ) -> None:
        super().__init__(message, hint=hint)
        self.mismatches = mismatches
        self.file = file
        self.architecture = architecture
        self.only_head = only_head  # the class names of its outputs would make it fit

    def fields(self) -> dict[str, Any]:
        listed, more = self.mismatches.within(MAX_CHARACTERS)
        return {
            "mismatches": listed._asdict() | ({"more": more} if more else {}),
            "file": self.file,
            "architecture": self.architecture,
            "only_head": self.only_head,
        }


class TargetError(GraspError):
    code = "invalid_target"


class BrokenExamples(TargetError):
    code = "broken_images"  # whatever they are: clients know it by this name


class FoldStopped(GraspError):
    code = "stopped"
