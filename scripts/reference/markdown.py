"""Tables of Markdown, and JSON schemas as rows of them."""

import re
from collections.abc import Iterable, Mapping, Sequence
from json import dumps
from typing import Any

Schema = dict[str, Any]
LIMITS = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}


def opening(title: str, origin: str) -> str:
    """The head of a page; who reads its source should know where to change it."""
    return f"# {title}\n\n<!-- Written by `make docs` from {origin}: change it there. -->"


def sections(*parts: str) -> str:
    return "\n\n".join(part for part in parts if part) + "\n"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Empty if there are no rows."""
    lines = [f"| {' | '.join(_cell(text) for text in row)} |" for row in rows]
    ruler = "|".join(["---"] * len(head))
    return "\n".join([f"| {' | '.join(head)} |", f"|{ruler}|", *lines]) if lines else ""


def anchor(title: str) -> str:
    """Where a heading is, on a code host and in the site."""
    return "#" + re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())


def kind(schema: Schema) -> str:
    """What a value may be, in words; other schemas are linked by their names."""
    match schema:
        case {"$ref": str(name)}:
            name = name.rpartition("/")[2]
            return f"[{name}]({anchor(name)})"
        case {"const": value}:
            return code(value)
        case {"enum": values}:
            return ", ".join(map(code, values))
        case {"anyOf": choices} | {"oneOf": choices}:
            return " or ".join(dict.fromkeys(map(kind, choices)))
        case {"type": "array", "prefixItems": items}:
            return f"list of {len(items)} {kind(items[0])}s"
        case {"type": "array", "items": item}:
            return f"list of {kind(item)}"
        case {"type": "object", "additionalProperties": dict() as inner} if inner:
            return f"object of {kind(inner)}"
        case {"format": "date-time"}:
            return "time"
        case {"format": "binary"}:
            return "bytes"
    if {"minimum", "maximum"} <= schema.keys():
        return f"{schema['type']} {schema['minimum']:g} to {schema['maximum']:.10g}"
    limits = (f"{sign} {schema[key]:g}" for key, sign in LIMITS.items() if key in schema)
    return " ".join([schema.get("type", "any"), *limits])


def parameters(fields: Mapping[str, Schema]) -> str:
    """A table of the fields of a configuration."""
    rows = ((code(field), *_parameter(schema)) for field, schema in fields.items())
    return table(("parameter", "default", "may be", "meaning"), rows)


def _parameter(schema: Schema) -> tuple[str, str, str]:
    if "$ref" in schema:
        return "", "object", "See below."
    return code(schema.get("default")), kind(schema), schema.get("description", "")


def code(value: object) -> str:
    return f"`{value if isinstance(value, str) else dumps(value, ensure_ascii=False)}`"
