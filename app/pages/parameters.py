"""The merge parameters of a model as fields of a form. The API judges what is put into them."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from app.pages.reports import flat
from grasp_core.config import FoldConfig
from grasp_core.methods import METHODS

ELSEWHERE = ("device",)  # the worker's


@dataclass(frozen=True)
class Field:
    """One parameter, by its dotted name; nothing typed means none."""

    name: str
    value: str
    choices: Sequence[str]  # empty: typed
    meaning: str


def fields(merge: FoldConfig | Mapping[str, Any]) -> list[Field]:
    """The method and its own parameters first, then what all methods have."""
    if not isinstance(merge, FoldConfig):  # of a method that is not installed: another can be set
        return [_method(merge["method"])]
    values = flat(merge.model_dump(mode="json"))
    schema = type(merge).model_json_schema()
    found = [
        Field(name, _text(values[name]), _choices(part), part.get("description", ""))
        for name, part in _leaves(schema, schema["$defs"])
        if name not in (*ELSEWHERE, "method")
    ]
    found.sort(key=lambda field: field.name.partition(".")[0] in FoldConfig.model_fields)
    return [_method(merge.method), *found]


def _method(name: str) -> Field:
    meaning = " ".join(f"{method.name}: {method.summary}" for method in METHODS.values())
    return Field("method", name, list(dict.fromkeys([name, *METHODS])), meaning)


def _leaves(
    schema: Mapping[str, Any], definitions: Mapping[str, Any], prefix: str = ""
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for name, part in schema["properties"].items():
        if "$ref" in part:
            inner = definitions[part["$ref"].rpartition("/")[2]]
            yield from _leaves(inner, definitions, f"{prefix}{name}.")
        else:
            yield prefix + name, part


def _choices(schema: Mapping[str, Any]) -> list[str]:
    found: list[str] = []
    for option in schema.get("anyOf", [schema]):
        match option:
            case {"enum": names}:
                found += names
            case {"const": name}:
                found.append(name)
            case {"type": "boolean"}:
                found += ["true", "false"]
            case {"type": "null"}:
                found.append("")
            case _:
                return []
    return found


def _text(value: Any) -> str:
    """As it is typed: words as they are, nothing for none, the rest as JSON."""
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value)
