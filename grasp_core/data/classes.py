"""Class names and their order, from what samples call their classes."""

from __future__ import annotations

from collections.abc import Iterable

from grasp_core.config import require_text
from grasp_core.errors import TargetError

Label = str | int


def class_indices(
    labels: Iterable[Label], declared: tuple[str, ...] | None
) -> tuple[tuple[str, ...], dict[Label, int]]:
    """The class names in order, and the index of the class that each label means.

    Numbers are indices into declared names; without those they are names, in numeric order.
    Raises TargetError for a label outside of the declared classes, and for a name that no line
    can show.
    """
    if declared is None:
        return _from_labels(set(labels))
    _require_text(declared)
    positions: dict[Label, int] = {name: index for index, name in enumerate(declared)}
    if len(positions) < len(declared):
        raise TargetError("the data declares a class name twice", hint=", ".join(declared))
    positions |= {index: index for index in range(len(declared))}
    if unknown := {label for label in labels if label not in positions}:
        raise TargetError(
            f"the label {min(unknown, key=str)!r} is none of the {len(declared)} declared classes"
        )
    return declared, positions


def _require_text(names: Iterable[str]) -> None:
    for name in names:
        try:
            require_text(name)
        except ValueError as error:
            raise TargetError(str(error), hint="give the class, or its folder, a name") from error


def _from_labels(labels: set[Label]) -> tuple[tuple[str, ...], dict[Label, int]]:
    numeric = all(isinstance(label, int) for label in labels)
    names = sorted({str(label) for label in labels}, key=int if numeric else str)
    _require_text(names)
    positions = {name: index for index, name in enumerate(names)}
    return tuple(names), {label: positions[str(label)] for label in labels}
