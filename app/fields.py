"""Values as requests carry them: what they look like, and where in a request they stand."""

import json
from contextlib import suppress
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import Path, Query
from pydantic import AfterValidator, Field, SerializeAsAny, ValidationError, WrapValidator
from pydantic.json_schema import SkipJsonSchema

from grasp_core.config import CONTROL, MAX_CLASS_NAME, MAX_CLASSES, ClassName, FoldConfig
from grasp_core.kinds import KINDS
from grasp_core.methods import METHODS, parse_config
from grasp_core.spec import require_kind
from registry.lookup import MAX_PAGE

ID_PREFIXES = ("tgt_", "mdl_", "src_", "job_", "key_", "wrk_", "upl_")
MAX_INT = 2**31 - 1  # what a database integer holds


def _not_an_id(name: str) -> str:
    if name.startswith(ID_PREFIXES):
        raise ValueError("a name must not look like an id")
    return name


def _differ(classes: tuple[str, ...]) -> tuple[str, ...]:
    if len(set(classes)) < len(classes):
        raise ValueError("class names given twice")
    return classes


NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$"
TEXT_PATTERN = rf"^[^{CONTROL}]+$"
Name = Annotated[
    str,
    Field(pattern=NAME_PATTERN, description="Letters, digits, dot, dash and underscore."),
    AfterValidator(_not_an_id),
]
Text = Annotated[str, Field(min_length=1, max_length=200, pattern=TEXT_PATTERN)]
Classes = Annotated[
    tuple[
        Annotated[ClassName, Field(min_length=1, max_length=MAX_CLASS_NAME, pattern=TEXT_PATTERN)],
        ...,
    ],
    Field(min_length=1, max_length=MAX_CLASSES, fail_fast=True),
    AfterValidator(_differ),
]
SHA256_PATTERN = r"^[0-9a-f]{64}$"
REFERENCE_PATTERN = r"^[A-Za-z0-9._-]{1,200}$"
Sha256 = Annotated[str, Field(pattern=SHA256_PATTERN)]
KindName = Annotated[
    str,
    Field(description="The kind of problem.", json_schema_extra={"enum": [*KINDS]}),
    AfterValidator(require_kind),
]
KIND_PATTERN = f"^({'|'.join(KINDS)})$"
Uri = Annotated[
    str,
    Field(max_length=4096, pattern=TEXT_PATTERN, description="file://, https:// or s3://"),
]
UploadId = Annotated[str, Field(pattern=REFERENCE_PATTERN, description="Id of a finished upload.")]

Reference = Annotated[str, Path(pattern=REFERENCE_PATTERN, description="An id or a name.")]
Id = Annotated[str, Path(pattern=REFERENCE_PATTERN, description="An id.")]
Number = Annotated[int, Path(ge=1, le=MAX_INT, description="A version's number.")]
Code = Annotated[str, Query(pattern=r"^[a-z_]{1,50}$", examples=["worker_lost"])]
RefFilter = Annotated[str | None, Query(pattern=REFERENCE_PATTERN, description="Only of this one.")]
Limit = Annotated[int, Query(ge=1, le=MAX_PAGE, description="Items per page.")]
Cursor = Annotated[
    str | None,
    Query(pattern=r"^[A-Za-z0-9_]{1,64}$", description="`next_cursor` of the page before."),
]


def check_merge(merge: FoldConfig) -> FoldConfig:
    try:
        json.dumps(merge.model_dump(mode="json"), allow_nan=False)
    except ValueError as error:
        raise ValueError("NaN and infinity are no parameters") from error
    if merge.device != "auto":
        raise ValueError("the device is the worker's choice: set GRASP_DEVICE there")
    return merge


def parse_merge(merge: object, _: object) -> FoldConfig:
    return parse_config(merge)


def read_merge(merge: dict[str, Any], _: object) -> FoldConfig | dict[str, Any]:
    """As it is stored, where its method is no longer installed, or takes less than it did."""
    with suppress(ValidationError):
        return parse_config(merge) if merge["method"] in METHODS else merge
    return merge


if TYPE_CHECKING:
    AnyConfig = FoldConfig
else:  # for the OpenAPI document, which has a shape for each method
    AnyConfig = SerializeAsAny[reduce(or_, (m.parameters for m in METHODS.values()))]

Merge = Annotated[AnyConfig, WrapValidator(parse_merge), AfterValidator(check_merge)]
MergeRead = Annotated[AnyConfig | SkipJsonSchema[dict[str, Any]], WrapValidator(read_merge)]
