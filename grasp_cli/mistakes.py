"""What went wrong, in words for somebody at a terminal."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from grasp_client.errors import (
    CheckpointMismatch,
    GraspError,
    Invalid,
    NotAllowed,
    NotFound,
    Refused,
    Unavailable,
)

if TYPE_CHECKING:
    from grasp_client import Grasp

SHOWN = 3  # tensors of each kind of difference
PLACE = re.compile(r"^(body|query|path)(\.|$)")  # where in the request a value was


def explain(error: GraspError, grasp: Grasp | None) -> tuple[str, str | None]:
    """A message, and what to do about it."""
    match error:
        case NotFound(problem={"missing": {"kind": str(kind), "name": str(name)}}) if grasp:
            return error.message, _nearest(kind, name, grasp)
        case CheckpointMismatch():
            return _differences(error), _about_classes(error) if grasp else error.hint
        case Invalid(problem={"convertible": True}):
            return error.message, "if torch.save wrote it, `grasp convert` makes safetensors of it"
        case NotAllowed(status=401):
            return error.message, "give a key with --key or GRASP_KEY; an administrator makes one"
        case Unavailable(request_id=str(request_id)):
            return error.message, error.hint or f"its log says more at request {request_id}"
        case Refused(code="invalid_request"):
            return "; ".join(_fields(error)) or error.message, error.hint
    return error.message, error.hint


def _nearest(kind: str, name: str, grasp: Grasp) -> str:
    known = _names(grasp, kind)
    close = get_close_matches(name, known, n=3, cutoff=0.5)
    if close:
        return f"did you mean {' or '.join(close)}?"
    if known:
        return f"there are {', '.join(known[:10])}"
    return f"`grasp {kind}s` lists those there are"


def _names(grasp: Grasp, kind: str) -> list[str]:
    try:
        if kind == "model":
            return [model.name for model in grasp.models.list()]
        return [target.name for target in grasp.targets.list()] if kind == "target" else []
    except GraspError:
        return []


def _differences(error: CheckpointMismatch) -> str:
    """The first few tensors of every kind; the error's attributes have more."""
    file, architecture = (error.problem.get(key) for key in ("file", "architecture"))
    lines = [f"{file} is not a {architecture} checkpoint" if file else error.message]
    left_out = error.mismatches.get("more", {})
    for kind, found in error.mismatches.items():
        if found and kind != "more":
            tensors = _tensors(found)
            count = len(tensors) + left_out.get(kind, 0)
            more = f" and {count - SHOWN} more" if count > SHOWN else ""
            lines.append(f"{kind.replace('_', ' ')}: {', '.join(tensors[:SHOWN])}{more}")
    return "\n  ".join(lines)


def _tensors(found: Mapping[str, Any] | Sequence[str]) -> list[str]:
    if isinstance(found, Mapping):
        return [f"{name} {has} instead of {wanted}" for name, (wanted, has) in found.items()]
    return list(found)


def _about_classes(error: CheckpointMismatch) -> str | None:
    """Where only the head differs, the server asks for class names; here they are an option."""
    if not error.problem.get("only_head"):
        return error.hint
    return "only the head differs: name the source's classes, as --classes A,B,C"


def _fields(error: Refused) -> list[str]:
    """Every value that is wrong, by its name."""
    named = ((PLACE.sub("", e["where"]), e["message"]) for e in error.errors)
    return [": ".join(filter(None, words)) for words in named]
