"""The OpenAPI document: complete, valid, and true to what it says."""

import json
import re
from collections.abc import Iterator
from typing import Any

import jsonschema_rs
import pytest
import schemathesis

from app.errors import STATUS
from app.main import create_app
from app.openapi import PROBLEMS
from registry.process.settings import Settings

DOCUMENT: dict[str, Any] = json.loads(json.dumps(create_app(Settings()).openapi()))
OPERATIONS: dict[str, dict[str, Any]] = {
    f"{method.upper()} {path}": operation
    for path, methods in DOCUMENT["paths"].items()
    for method, operation in methods.items()
}
PUBLIC = ("GET /healthz", "GET /readyz")
BINARY = "application/octet-stream"  # which no example can show


def walk(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        yield value
        for inner in value.values():
            yield from walk(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from walk(inner)


def bodies(operation: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    yield from operation.get("requestBody", {}).get("content", {}).items()
    for response in operation["responses"].values():
        yield from response.get("content", {}).items()


def test_it_is_openapi_31() -> None:
    assert DOCUMENT["openapi"].startswith("3.1")
    schemathesis.openapi.from_dict(DOCUMENT).validate()


def test_every_reference_leads_somewhere() -> None:
    references = {node["$ref"] for node in walk(DOCUMENT) if isinstance(node.get("$ref"), str)}
    assert len(references) > 20
    for reference in references:
        place: Any = DOCUMENT
        for step in reference.removeprefix("#/").split("/"):
            place = place[step]


def test_every_schema_is_used_and_valid() -> None:
    used = {node["$ref"].rpartition("/")[2] for node in walk(DOCUMENT) if "$ref" in node}
    assert used == set(DOCUMENT["components"]["schemas"])
    for schema in DOCUMENT["components"]["schemas"].values():
        jsonschema_rs.Draft202012Validator(resolved(schema))


@pytest.mark.parametrize("name", OPERATIONS)
def test_every_operation_is_described(name: str) -> None:
    operation = OPERATIONS[name]
    assert operation["summary"]
    assert operation["tags"]
    assert operation["operationId"].isidentifier()
    for parameter in operation.get("parameters", []):
        if parameter["in"] == "query" and "enum" not in json.dumps(parameter["schema"]):
            assert parameter.get("description"), parameter["name"]


def test_operation_ids_differ() -> None:
    ids = [operation["operationId"] for operation in OPERATIONS.values()]
    assert len(set(ids)) == len(ids)


@pytest.mark.parametrize("name", OPERATIONS)
def test_every_body_has_an_example_that_fits(name: str) -> None:
    for kind, media in bodies(OPERATIONS[name]):
        if kind == BINARY:
            continue
        assert media["example"]
        if kind == "text/event-stream":
            continue  # a stream of events has no schema in OpenAPI 3.1
        validator = jsonschema_rs.Draft202012Validator(
            resolved(media["schema"]), validate_formats=True
        )
        validator.validate(media["example"])


@pytest.mark.parametrize("name", [name for name in OPERATIONS if name not in PUBLIC])
def test_every_operation_tells_its_errors(name: str) -> None:
    operation = OPERATIONS[name]
    responses = operation["responses"]
    assert {"401", "403", "422", "500", "503"} <= responses.keys()
    if "{" in name:
        assert "404" in responses
    if "requestBody" in operation:
        assert {"400", "413"} <= responses.keys()
    for status, response in responses.items():
        if status >= "400":
            assert response["description"]
            (kind,) = response["content"]
            assert kind == "application/problem+json"
            assert response["content"][kind]["schema"]["$ref"].endswith("/Problem")
    assert operation["security"] == [{"HTTPBearer": []}]


def test_every_status_of_an_error_is_described() -> None:
    assert set(STATUS.values()) <= set(PROBLEMS)


def test_the_headers_of_the_answers_are_told() -> None:
    job = OPERATIONS["GET /jobs/{job}"]["responses"]
    assert "Retry-After" in job["200"]["headers"]
    assert "Location" in OPERATIONS["POST /sources"]["responses"]["202"]["headers"]
    assert "ETag" in OPERATIONS["GET /models/{model}"]["responses"]["200"]["headers"]
    names = {p["name"] for p in OPERATIONS["GET /models/{model}"]["parameters"]}
    assert {"Range", "If-None-Match"} <= names


def test_posts_honour_idempotency_keys() -> None:
    for name, operation in OPERATIONS.items():
        if name.startswith("POST"):
            names = {p["name"].lower() for p in operation["parameters"]}
            assert "idempotency-key" in names, name


def test_every_list_has_pages() -> None:
    for name, operation in OPERATIONS.items():
        if re.fullmatch(r"list_\w+(?<!_files)", operation["operationId"]):  # files are few
            names = {p["name"] for p in operation["parameters"]}
            assert {"limit", "cursor"} < names, name  # and a filter


def resolved(schema: dict[str, Any]) -> dict[str, Any]:
    """With the components beside it, so that references find them."""
    return {**schema, "components": DOCUMENT["components"]}
