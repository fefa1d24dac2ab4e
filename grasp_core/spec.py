"""What a model is, of whichever kind: validated data, without torch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Annotated

from pydantic import (
    AfterValidator,
    Field,
    SerializeAsAny,
    ValidationInfo,
    field_validator,
    model_validator,
)

from grasp_core.config import ClassName, Frozen
from grasp_core.errors import ConfigError
from grasp_core.kinds import DEFAULT, Part, find_kind, read_options


def require_kind(name: str) -> str:
    """The name of a kind. Raises ValueError, with the names that there are."""
    try:
        return find_kind(name).name
    except ConfigError as error:
        raise ValueError(f"{error.message}: {error.hint}") from error


KindName = Annotated[str, AfterValidator(require_kind)]


def of_kind(given: object, part: Part, info: ValidationInfo) -> object:
    """A field's value as the class that the `kind` beside it has for it. Raises ValidationError."""
    if isinstance(given, Frozen):
        given = given.model_dump()
    if not isinstance(given, Mapping) or "kind" not in info.data:  # which is an error already
        return given
    return read_options(find_kind(info.data["kind"]), part, given)


class ModelSpec(Frozen):
    """One architecture with its classes: what all versions of a model have in common."""

    kind: KindName = DEFAULT
    architecture: str = Field(description="One that the kind knows by this name.")
    classes: tuple[ClassName, ...] = Field(
        min_length=1, description="Names of the outputs, in order."
    )
    preprocessing: SerializeAsAny[Frozen] = Field(
        Frozen(),
        validate_default=True,
        description="What to replace of the architecture's own, as the kind's `overrides`.",
    )

    @field_validator("preprocessing", mode="before")
    @classmethod
    def _of_its_kind(cls, given: object, info: ValidationInfo) -> object:
        return of_kind(given, "overrides", info)

    @model_validator(mode="after")
    def _classes_differ(self) -> ModelSpec:
        doubled = sorted(name for name, count in Counter(self.classes).items() if count > 1)
        if doubled:
            raise ValueError(f"class names given twice: {', '.join(doubled)}")
        return self
