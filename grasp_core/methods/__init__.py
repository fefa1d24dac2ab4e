"""Ways to fold a source into a merged model: plain data, without torch.

A method is a file of this package and its line in `METHODS`; other packages add theirs as entry
points of the group `grasp.methods`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails, InitErrorDetails, PydanticCustomError

from grasp_core.config import FoldConfig, replace_values
from grasp_core.errors import Unloadable
from grasp_core.methods import grasp, mean
from grasp_core.methods.declaration import AnyMethod, Method, Stage
from grasp_core.plugins import Declarations

DEFAULT = "grasp"
METHODS: Declarations[AnyMethod] = Declarations(
    "grasp.methods",
    Method,
    {
        "grasp": grasp.METHOD,
        "mean": mean.METHOD,
    },
)


def parse_config(values: object) -> FoldConfig:
    """The parameters of a fold, of the class that their `method` has.

    Raises ValidationError, also for a method that does not exist, and by name for parameters that
    only other methods have.
    """
    if isinstance(values, FoldConfig):
        return values
    method = _named(values)
    try:
        config: FoldConfig = method.parameters.model_validate(values)
    except ValidationError as error:
        raise _naming_owners(error, method) from error
    return config


def change_config(values: Mapping[str, Any], changes: Mapping[str, Any]) -> FoldConfig:
    """The parameters `values` with some replaced; another method keeps what is common to all.

    Raises ValidationError.
    """
    before = values.get("method", DEFAULT)
    method = _named({"method": before} | dict(changes))
    if method.name != before:
        common = FoldConfig.model_fields.keys() - {"method"}
        values = {name: value for name, value in values.items() if name in common}
    implied = method.parameters.implied(changes)
    return parse_config(replace_values(replace_values(values, implied), changes))


def asks_for_probe(changes: Mapping[str, Any]) -> bool:
    """Whether they say that the learning rate shall be found out, also where it has been."""
    refine = changes.get("refine")
    return isinstance(refine, Mapping) and refine.get("lr") == "auto"


def all_stages() -> tuple[Stage, ...]:
    """Those of every fold, and those that methods add."""
    return tuple(dict.fromkeys(s for method in METHODS.values() for s in method.all_stages))


def _named(values: object) -> AnyMethod:
    """The method that `values` ask for. Raises ValidationError if there is none of the name, or
    none that can be loaded."""
    name = values.get("method", DEFAULT) if isinstance(values, Mapping) else DEFAULT
    try:
        return METHODS[name]
    except Unloadable as error:
        message = PydanticCustomError("unloadable_method", "{why}", {"why": str(error)})
    except (KeyError, TypeError):  # TypeError: what cannot even be a name
        message = PydanticCustomError(
            "no_such_method",
            "there is no such method; there are {known}",
            {"known": ", ".join(METHODS)},
        )
    wrong = InitErrorDetails(type=message, loc=("method",), input=name)
    raise ValidationError.from_exception_data("FoldConfig", [wrong])


def _naming_owners(error: ValidationError, method: AnyMethod) -> ValidationError:
    """The same error, which says of parameters of other methods whose they are."""
    found = [
        InitErrorDetails(
            type=PydanticCustomError(problem["type"], _explained(problem, method)),
            loc=problem["loc"],
            input=problem["input"],
        )
        for problem in error.errors()
    ]
    return ValidationError.from_exception_data(error.title, found)


def _explained(problem: ErrorDetails, method: AnyMethod) -> str:
    if problem["type"] == "extra_forbidden" and len(problem["loc"]) == 1:
        name = problem["loc"][0]
        owners = [m.name for m in METHODS.values() if name in m.parameters.model_fields]
        if owners:
            return f"{method.name} has no such parameter; it is one of {', '.join(owners)}"
    return problem["msg"]
