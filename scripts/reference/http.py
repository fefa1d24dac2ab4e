"""The operations, from the OpenAPI document."""

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

from app.access.auth import POLICY
from app.main import create_app
from app.openapi import ALWAYS, PROBLEMS
from scripts.reference.markdown import Schema, anchor, kind, opening, sections, table

INTRODUCTION = """
The service itself shows the same, to try out, at `/docs`; the OpenAPI document is at
`/openapi.json`.
"""
ERRORS = """
Any operation but the public ones can also answer as below; the others say what else they can.
[Errors](errors.md) lists the codes.
"""
CONVENTIONS = """
- **Names.** Targets and models are named by id or by name, all else by id.
- **Keys.** `Authorization: Bearer grasp_…`; the scope that an operation needs stands beside it.
  While there are none, who started the service needs none, on the same machine.
- **Lists** are `{"items": […], "next_cursor": …}`: `next_cursor`, sent as `cursor`, gets the next
  page.
- **Errors** are problem+json (RFC 9457) with a stable `code`: [Problem](#problem).
- Fields may be added to any answer; none is renamed or removed.
"""


class Operation(NamedTuple):
    method: str
    path: str
    details: dict[str, Any]

    @property
    def title(self) -> str:
        return f"{self.method.upper()} {self.path}"


def page() -> str:
    document = create_app().openapi()
    operations = [
        Operation(method, path, details)
        for path, methods in document["paths"].items()
        for method, details in methods.items()
    ]
    listed = ((f"[`{o.title}`]({anchor(o.title)})", o.details["summary"]) for o in operations)
    tags = [part for tag in document["tags"] for part in _tag(tag, operations)]
    schemas = document["components"]["schemas"].items()
    return sections(
        opening("HTTP", "the OpenAPI document"),
        INTRODUCTION.strip(),
        table(("operation", "does"), listed),
        "## Conventions",
        CONVENTIONS.strip(),
        ERRORS.strip(),
        table(("status", "means"), ((str(code), PROBLEMS[code]) for code in ALWAYS)),
        *tags,
        "## Schemas",
        *(part for name, schema in schemas for part in _schema(name, schema)),
    )


def _tag(tag: dict[str, str], operations: list[Operation]) -> Iterator[str]:
    yield f"## {tag['name'].capitalize()}"
    yield tag["description"]
    for operation in operations:
        if operation.details["tags"] == [tag["name"]]:
            yield from _operation(operation)


def _operation(operation: Operation) -> Iterator[str]:
    details = operation.details
    scope = POLICY[details["operationId"]]
    needed = "Public." if scope == "public" else f"Needs `{scope}`."
    yield f"### {operation.title}"
    yield f"**{details['summary']}.** {needed}".replace("?.", "?")
    yield details.get("description", "")
    rows = (_parameter(parameter) for parameter in details.get("parameters", []))
    yield table(("parameter", "in", "may be", "meaning"), rows)
    yield from _bodies(details.get("requestBody", {}).get("content", {}))
    yield table(("answer", "is"), _answers(details["responses"]))


def _parameter(parameter: dict[str, Any]) -> tuple[str, str, str, str]:
    name = _named(parameter["name"], parameter["required"])
    schema = parameter["schema"]
    may_be = kind(schema).removesuffix(" or null")
    if "default" in schema:
        may_be += f"; default {json.dumps(schema['default'])}"
    return name, parameter["in"], may_be, parameter.get("description", "")


def _bodies(content: dict[str, Any]) -> Iterator[str]:
    for media_type, media in content.items():
        schema = media["schema"]
        if media_type == "multipart/form-data":
            yield f"As `{media_type}`, {kind(schema)}."
        elif "$ref" in schema or "oneOf" in schema:
            yield f"As `{media_type}`, {kind(schema)}:"
            yield f"```json\n{json.dumps(media['example'], ensure_ascii=False, indent=2)}\n```"
        else:
            yield f"As `{media_type}`: the file itself, with the other values as parameters."


def _answers(responses: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for status, response in responses.items():
        content = response.get("content", {})
        if "application/problem+json" not in content:
            yield status, _content(response["description"], content)
        elif int(status) not in ALWAYS:
            yield status, response["description"]


def _content(description: str, content: dict[str, Any]) -> str:
    for media_type, media in content.items():
        schema = media.get("schema", {})
        shown = kind(schema) if "$ref" in schema else f"`{media_type}`"
        return shown if description == "Successful Response" else f"{description}: {shown}"
    return "" if description == "Successful Response" else description


def _schema(name: str, schema: Schema) -> Iterator[str]:
    yield f"### {name}"
    yield schema.get("description", "")
    yield _fields(schema)


def _fields(schema: Schema) -> str:
    required = schema.get("required", [])
    return table(
        ("field", "may be", "meaning"),
        (
            (_named(name, name in required), kind(field), field.get("description", ""))
            for name, field in schema.get("properties", {}).items()
        ),
    )


def _named(name: str, required: bool) -> str:
    return f"`{name}` (required)" if required else f"`{name}`"
