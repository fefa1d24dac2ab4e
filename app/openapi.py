"""Parts of the OpenAPI document that FastAPI cannot infer: errors, streamed bodies, examples."""

from collections.abc import Iterator, Sequence
from typing import Annotated, Any

from fastapi import FastAPI
from pydantic import BaseModel, TypeAdapter
from pydantic.json_schema import models_json_schema

from app.errors import Problem
from app.examples import EVENTS, METRICS, SHA256, find_examples, problem_example
from app.fields import KindOptions, kind_pattern
from app.schemas import (
    ModelCreate,
    ModelUpdate,
    Rollback,
    SourceFromUpload,
    SourceFromUri,
    TargetFromUpload,
    TargetFromUri,
)

DESCRIPTION = """
Keep one merged model per target, and fold new checkpoints into it as they arrive.

1. `POST /targets`: a little labelled data of your own.
2. `POST /models`: an architecture and a target.
3. `POST /sources`: a checkpoint, which is queued and folded in.
4. `GET /jobs/{job}`: how far it is.
5. `GET /models/{model}`: the merged weights.

Errors are [problem+json](https://www.rfc-editor.org/rfc/rfc9457) with a stable `code`. Lists are
`{"items": [...], "next_cursor": ...}`. Targets and models can be named by id or by name.
"""
TAGS: list[dict[str, Any]] = [
    {"name": "targets", "description": "Labelled data of the domain you care about."},
    {"name": "models", "description": "Lineages of merged versions."},
    {"name": "versions", "description": "What folds have made; never changed."},
    {"name": "files", "description": "What belongs to models and versions beside weights."},
    {"name": "sources", "description": "Checkpoints that are folded in."},
    {"name": "uploads", "description": "Large files in parts, by [tus](https://tus.io) 1.0.0."},
    {"name": "jobs", "description": "Queued work, to poll or to follow."},
    {"name": "system", "description": "The service itself."},
]
PROBLEMS: dict[int, str] = {
    400: "The body cannot be parsed",
    401: "A key is needed, or this one is not valid",
    403: "The key's scope does not allow it",
    404: "There is no such thing, or it is another owner's",
    408: "The request came too slowly",
    409: "The present state does not allow it",
    410: "The bytes were deleted on purpose",
    412: "If-Match does not hold, or a version of tus is not spoken here",
    413: "Too large",
    415: "The Content-Type is not the one that is wanted",
    416: "The range lies outside of the file",
    422: "Something in the request makes no sense: `errors` or `detail` says what",
    431: "The head of the request is too large",
    460: "The checksum of the bytes that arrived is another",
    500: "Something nobody foresaw; the log has it under the request's id",
    503: "The database or the disk does not answer",
    507: "The disk is full",
}
ALWAYS = (401, 403, 422, 500, 503)  # any operation but the public ones can answer so
UPLOAD_PROBLEMS = (400, 408, 413, 507)

# Schemas that only hand-written parts of the document refer to.
EXTRA_SCHEMAS: tuple[type[BaseModel], ...] = (
    Problem,
    TargetFromUri,
    TargetFromUpload,
    ModelCreate,
    ModelUpdate,
    SourceFromUri,
    SourceFromUpload,
    Rollback,
)
REFERENCE = "#/components/schemas/{model}"

Responses = dict[int | str, dict[str, Any]]


def install_openapi(app: FastAPI) -> None:
    """Let the document hold the schemas that our own parts of it refer to, and examples."""
    generate = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            _, extra = models_json_schema(
                [(schema, "validation") for schema in EXTRA_SCHEMAS], ref_template=REFERENCE
            )
            document = generate()
            for name, schema in extra["$defs"].items():
                document["components"]["schemas"].setdefault(name, schema)
            for operation in operations(document):
                _complete(operation)
                _name_schemas(operation, document["components"]["schemas"])
            _add_kinds(document["components"]["schemas"])
        return generate()

    app.openapi = openapi  # type: ignore[method-assign]


def operations(document: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for path in document["paths"].values():
        yield from path.values()


def _complete(operation: dict[str, Any]) -> None:
    """Show an example of every body, and headers that come with certain statuses."""
    for media in operation.get("requestBody", {}).get("content", {}).values():
        _show_example(media)
    for status, response in operation["responses"].items():
        for kind, media in response.get("content", {}).items():
            if kind == "application/problem+json":
                media["example"] = problem_example(int(status), response["description"])
            elif kind == "text/event-stream":
                media.clear()  # a stream of events has no schema in OpenAPI 3.1
                media["example"] = EVENTS
            elif kind == "text/plain":
                media["example"] = METRICS
            else:
                _show_example(media)
        if status in HEADERS:
            response.setdefault("headers", {}).update(HEADERS[status])


def _name_schemas(operation: dict[str, Any], schemas: dict[str, Any]) -> None:
    """Let objects that we wrote into an operation be components: clients name their types so."""
    for part in (operation.get("requestBody", {}), *operation["responses"].values()):
        for media in part.get("content", {}).values():
            schema = media.get("schema", {})
            if schema.get("type") == "object" and "title" in schema:
                schemas[schema["title"]] = schema
                media["schema"] = {"$ref": REFERENCE.format(model=schema["title"])}


def _add_kinds(schemas: dict[str, Any]) -> None:
    """What depends on them, where neither the core's schemas nor a form can say it."""
    options = TypeAdapter(Annotated[dict[str, Any], KindOptions("augmentation")])
    found, extra = TypeAdapter.json_schemas(
        [("augmentation", "validation", options)], ref_template=REFERENCE
    )
    for name, schema in extra["$defs"].items():
        schemas.setdefault(name, schema)
    refine = schemas["RefineConfig"]["properties"]
    words = {name: refine["augmentation"][name] for name in ("description", "default")}
    refine["augmentation"] = found["augmentation", "validation"] | words
    schemas["TargetCreateForm"]["properties"]["kind"]["pattern"] = kind_pattern()


def _show_example(media: dict[str, Any]) -> None:
    name = media["schema"].get("$ref", media["schema"].get("title", "")).rpartition("/")[2]
    if example := find_examples().get(name):
        media["example"] = example


def problems(*statuses: int) -> Responses:
    """The error responses of an operation, besides those that all have."""
    return {
        status: {
            "description": PROBLEMS[status],
            "content": {"application/problem+json": {"schema": _reference(Problem)}},
        }
        for status in sorted({*ALWAYS, *statuses})
    }


def _reference(schema: type[BaseModel]) -> dict[str, str]:
    return {"$ref": REFERENCE.format(model=schema.__name__)}


def header_of(description: str, kind: str = "string") -> dict[str, Any]:
    """A header of a response."""
    return {"description": description, "schema": {"type": kind}}


def body_of(schema: type[BaseModel]) -> dict[str, Any]:
    """A JSON body that is read by us."""
    content = {"application/json": {"schema": _reference(schema)}}
    return {"requestBody": {"required": True, "content": content}}


def upload_body(
    name: str,
    elsewhere: Sequence[type[BaseModel]],
    fields: dict[str, tuple[str, str]],
    *,
    required: list[str],
) -> dict[str, Any]:
    """A body that may be a form with a file, the raw file, or JSON that says where the file is.

    `elsewhere` are the forms of that JSON: a schema for each, with what it requires, is what
    generators of clients understand. `fields` of the form have a pattern and a description.
    """
    form: dict[str, dict[str, Any]] = {
        name: {"type": "string", "pattern": pattern, "description": text}
        for name, (pattern, text) in fields.items()
    }
    form["file"] = {
        "type": "string",
        "format": "binary",
        "minLength": 1,
        "description": "The file itself.",
    }
    return {
        "requestBody": {
            "required": True,
            "content": {
                "multipart/form-data": {
                    "schema": {
                        "title": f"{name}Form",
                        "type": "object",
                        "properties": form,
                        "required": [*required, "file"],
                    }
                },
                "application/octet-stream": {"schema": {"type": "string", "format": "binary"}},
                "application/json": {
                    "schema": {"title": name, "oneOf": [_reference(form) for form in elsewhere]}
                },
            },
        },
        "parameters": [
            _header(
                "Repr-Digest",
                "Of a raw body, as `sha-256=:…:` (RFC 9530): verified, if given.",
                "sha-256=:47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=:",
            )
        ],
    }


def _header(name: str, description: str, example: str) -> dict[str, Any]:
    return {
        "name": name,
        "in": "header",
        "required": False,
        "description": description,
        "schema": {"type": "string"},
        "example": example,
    }


def model_body() -> dict[str, Any]:
    """The JSON of a model, alone or in a form with its initial weights and its base."""
    form = {
        "model": {"type": "string", "description": "The JSON of the model."},
        "file": {"type": "string", "format": "binary", "description": "Initial weights."},
        "sha256": {"type": "string", "description": "Of the file: verified, if given."},
        "base": {
            "type": "string",
            "format": "binary",
            "description": "What the sources were fine-tuned from.",
        },
        "base_sha256": {"type": "string", "description": "Of the base: verified, if given."},
    }
    return {
        "requestBody": {
            "required": True,
            "content": {
                "application/json": {"schema": _reference(ModelCreate)},
                "multipart/form-data": {
                    "schema": {
                        "title": "ModelCreateForm",
                        "type": "object",
                        "properties": form,
                        "required": ["model"],
                    }
                },
            },
        }
    }


CONDITIONS: dict[str, Any] = {
    "parameters": [
        _header("Range", "One range of bytes.", "bytes=0-1023"),
        _header("If-None-Match", "ETags you have: 304 if it is one of them.", f'"{SHA256}"'),
        _header("If-Match", "ETags you want: 412 if it is none of them.", f'"{SHA256}"'),
    ]
}
HEADERS: dict[str, dict[str, Any]] = {  # status: what its responses carry
    status: {name: {"description": text, "schema": {"type": kind}}}
    for status, name, text, kind in (
        ("201", "Location", "Where it is.", "string"),
        ("202", "Location", "Where to poll, if this began a job.", "string"),
        ("401", "WWW-Authenticate", "Bearer.", "string"),
        ("416", "Content-Range", "How many bytes there are.", "string"),
        ("503", "Retry-After", "Seconds.", "integer"),
    )
}
BINARY: Responses = {
    200: {
        "description": "The weights, as safetensors",
        "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
        "headers": {
            "ETag": {"schema": {"type": "string"}, "description": "The sha256 of the weights."},
            "Repr-Digest": {"schema": {"type": "string"}},
        },
    },
    206: {
        "description": "The range of them that was asked for",
        "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
    },
    304: {"description": "You have it already"},
    307: {
        "description": "Another server sends them, to whoever asks: follow, without your key",
        "headers": {
            "Location": {"schema": {"type": "string"}, "description": "Valid for some minutes."},
            "ETag": {"schema": {"type": "string"}, "description": "The sha256 of the weights."},
        },
    },
}
REPORT: Responses = {
    200: {
        "description": "The report",
        "content": {
            "application/json": {
                "schema": {
                    "title": "Report",
                    "type": "object",
                    "description": "All that a fold measured: metrics, parameters, stages.",
                }
            }
        },
    }
}
