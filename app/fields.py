"""Values as requests carry them: what they look like, and where in a request they stand."""

import json
from collections.abc import Iterable
from contextlib import suppress
from functools import cache, reduce
from operator import or_
from types import GenericAlias
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

from fastapi import Path, Query
from pydantic import (
    AfterValidator,
    BaseModel,
    Field,
    GetJsonSchemaHandler,
    ValidationError,
    WrapValidator,
    create_model,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core.core_schema import CoreSchema, union_schema

from grasp_core.config import (
    CONTROL,
    MAX_CLASS_NAME,
    MAX_CLASSES,
    ClassName,
    CommonConfig,
    FoldConfig,
    MethodConfig,
)
from grasp_core.kinds import KINDS
from grasp_core.methods import METHODS
from grasp_core.named_files import MAX_NAME
from grasp_core.named_files import NAME_PATTERN as FILE_NAME_PATTERN
from grasp_core.parameters import DEFAULT_CANDIDATES, methods_of, parse_config
from grasp_core.spec import require_kind
from registry.lookup import MAX_PAGE

ID_PREFIXES = ("tgt_", "mdl_", "src_", "job_", "key_", "wrk_", "upl_")
MAX_INT = 2**31 - 1  # what a database integer holds


class KindOptions:
    """In JSON schemas: what each kind takes in this place."""

    def __init__(self, part: Literal["overrides", "augmentation"]) -> None:
        self._part = part

    def __get_pydantic_json_schema__(
        self, _schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        return handler(_union(getattr(kind, self._part) for kind in KINDS.values()))


class MergeParameters:
    """In JSON schemas: a fold of several candidates, and of one, a shape for each method."""

    def __get_pydantic_json_schema__(
        self, _schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        return handler(_union(describe_merge()))


@cache
def describe_merge() -> tuple[type[BaseModel], ...]:
    """Classes of all shapes that merge parameters have; they are for documents only."""
    names: Any = Literal[tuple(METHODS)]
    methods = [method.parameters for method in METHODS.values()]
    candidate = reduce(or_, methods, names)
    several = create_model(
        "Race",
        __base__=CommonConfig,
        __doc__="Several candidates, of which the best is published.",
        candidates=(GenericAlias(list, (candidate,)), [*DEFAULT_CANDIDATES]),  # type: ignore[arg-type]
    )
    return several, *(_describe_single(method) for method in methods)


def _describe_single(method: type[MethodConfig]) -> type[BaseModel]:
    own = {name: (field.annotation, field) for name, field in method.model_fields.items()}
    name = f"{method.__name__.removesuffix('Config')}Fold"
    return create_model(name, __base__=CommonConfig, __doc__=method.__doc__, **own)  # type: ignore[call-overload,no-any-return]


def _union(models: Iterable[type[BaseModel]]) -> CoreSchema:
    return union_schema([_refer(model) for model in models])


def _refer(model: type[BaseModel]) -> CoreSchema:
    """With a name, by which a document refers to it."""
    name = f"{model.__module__}.{model.__qualname__}:{id(model)}"
    return cast(CoreSchema, {"ref": name, **model.__pydantic_core_schema__})


def _list_kinds(schema: dict[str, Any]) -> None:
    schema["enum"] = [*KINDS]


def kind_pattern() -> str:
    return f"^({'|'.join(KINDS)})$"


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
    Field(description="The kind of problem.", json_schema_extra=_list_kinds),
    AfterValidator(require_kind),
]
KIND_PATTERN = "^.+$"  # until the document is asked for, which has `kind_pattern` instead
Uri = Annotated[
    str,
    Field(max_length=4096, pattern=TEXT_PATTERN, description="file://, https:// or s3://"),
]
UploadId = Annotated[str, Field(pattern=REFERENCE_PATTERN, description="Id of a finished upload.")]

Reference = Annotated[str, Path(pattern=REFERENCE_PATTERN, description="An id or a name.")]
Id = Annotated[str, Path(pattern=REFERENCE_PATTERN, description="An id.")]
FileName = Annotated[
    str, Path(pattern=FILE_NAME_PATTERN, max_length=MAX_NAME, description="As lists have it.")
]
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
        return parse_config(merge) if METHODS.keys() >= {*methods_of(merge)} else merge
    return merge


if TYPE_CHECKING:
    AnyConfig = FoldConfig
else:  # FastAPI puts classes that it sees into the document, and no method has this one
    AnyConfig = Any

Merge = Annotated[
    AnyConfig, MergeParameters(), WrapValidator(parse_merge), AfterValidator(check_merge)
]
MergeRead = Annotated[AnyConfig | dict[str, Any], MergeParameters(), WrapValidator(read_merge)]
