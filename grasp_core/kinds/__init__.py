"""Kinds of problems. A new one is a package, and a line here or an entry point in `grasp.kinds`.

Importing this loads no torch: `Kind.load` does.
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any, Literal

from pydantic import ValidationError
from pydantic_core import InitErrorDetails, PydanticCustomError

from grasp_core.config import FoldConfig, Frozen
from grasp_core.errors import ArchitectureError, ConfigError, Unloadable
from grasp_core.kinds.declaration import Export, Implementation, Kind
from grasp_core.kinds.image import IMAGE
from grasp_core.plugins import Declarations

__all__ = [
    "DEFAULT",
    "KINDS",
    "Export",
    "Implementation",
    "Kind",
    "Part",
    "check_augmentation",
    "find_kind",
    "read_options",
    "require_architecture",
]

KINDS = Declarations("grasp.kinds", Kind, {"image": IMAGE})
DEFAULT = "image"  # of targets and models that do not say: once there was no other
Part = Literal["overrides", "preprocessing", "augmentation"]


def find_kind(name: str) -> Kind:
    """Raises ConfigError, with the names that there are, or with why this one cannot be loaded."""
    try:
        return KINDS[name]
    except Unloadable:
        raise
    except KeyError:
        message, hint = f"there is no kind {name!r}", f"there are {', '.join(KINDS)}"
        raise ConfigError(message, hint=hint) from None


def read_options(kind: Kind, part: Part, values: Mapping[str, Any]) -> Frozen:
    """Values as the kind's own class. Raises ValidationError, with all that is wrong by name."""
    declared: type[Frozen] = getattr(kind, part)
    foreign = [name for name in values if name not in declared.model_fields]
    if foreign:
        details = [_foreign(kind, part, name, values[name]) for name in foreign]
        raise ValidationError.from_exception_data(declared.__name__, details)
    return declared.model_validate(values)


def require_architecture(kind: Kind, name: str) -> None:
    """Raises ArchitectureError if the kind says which names there are, and this is none.

    What follows a dot names pretrained weights, which are not used.
    """
    known = None if kind.names is None else kind.names()
    plain = name.partition(".")[0]
    if known is None or plain in known:
        return
    close = get_close_matches(plain, known, n=3)
    raise ArchitectureError(
        f"there is no architecture {name!r} of the kind {kind.name}",
        hint=f"did you mean {' or '.join(close)}?" if close else f"choose {kind.architectures}",
    )


def check_augmentation(config: FoldConfig, kind: Kind) -> FoldConfig:
    """The parameters with all of the kind's augmentation. Raises ValidationError."""
    chosen = read_options(kind, "augmentation", config.refine.augmentation)
    refine = config.refine.model_copy(update={"augmentation": chosen.model_dump(mode="json")})
    return config.model_copy(update={"refine": refine})


def _foreign(kind: Kind, part: Part, name: str, value: object) -> InitErrorDetails:
    others = [other.name for other in KINDS.values() if name in _names(other, part)]
    owner = f"; it is one of {' and '.join(others)}" if others else ""
    said = PydanticCustomError(
        "extra_forbidden",
        "{kind} has no such parameter{owner}",
        {"kind": kind.name, "owner": owner},
    )
    return InitErrorDetails(type=said, loc=(name,), input=value)


def _names(kind: Kind, part: Part) -> Mapping[str, object]:
    declared: type[Frozen] = getattr(kind, part)
    return declared.model_fields
