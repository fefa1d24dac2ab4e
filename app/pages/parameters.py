"""The merge parameters of a model as fields of a form. The API judges what is put into them."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from app.pages.reports import flat
from grasp_core.config import FoldConfig

ELSEWHERE = ("method", "device")  # there is one method, and the worker's device


@dataclass(frozen=True)
class Field:
    """One parameter, by its dotted name; nothing typed means none."""

    name: str
    value: str
    choices: Sequence[str]  # empty: typed
    meaning: str


def fields(merge: FoldConfig) -> list[Field]:
    values = flat(merge.model_dump(mode="json"))
    schema = FoldConfig.model_json_schema()
    return [
        Field(name, _text(values[name]), _choices(part), part.get("description", ""))
        for name, part in _leaves(schema, schema["$defs"])
        if name not in ELSEWHERE
    ]


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
