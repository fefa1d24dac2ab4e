"""The parameters of a fold, from the declarations of the methods."""

from collections.abc import Iterable, Mapping
from typing import Any

from grasp_core.config import FoldConfig, Frozen, GateConfig, RefineConfig
from grasp_core.kinds import KINDS
from grasp_core.methods import DEFAULT, METHODS
from grasp_core.methods.declaration import AnyMethod
from scripts.reference.markdown import code, kind, opening, sections, table

PARTS: dict[str, type[Frozen]] = {
    "merge.refine": RefineConfig,
    **{f"merge.refine.augmentation` of kind `{k.name}": k.augmentation for k in KINDS.values()},
    "merge.gate": GateConfig,
}
INTRODUCTION = """
What a model is made with as `merge`, and what `PATCH /models/{model}` changes for later folds. All
have defaults; [ADR 0004](../adr/0004-defaults-that-transfer.md) says how they were chosen, and
[concepts](../concepts.md) what the stages do that they steer. In Python they are the fields of the
method's own class, such as `grasp_core.GraspConfig`. A name that is misspelt is an error, and so is
a parameter of another method.
"""
NEEDS = {
    "base": "the base of its sources",
    "gradients": "gradients on the target",
    "several_sources": "a second source: the first becomes the model as it is",
    "history": "to have merged all earlier sources itself",
}


def page() -> str:
    return sections(
        opening("Merge parameters", "grasp_core/methods"),
        INTRODUCTION.strip(),
        "## `merge`",
        (FoldConfig.__doc__ or "").strip(),
        _table(_common()),
        *(part for method in METHODS.values() for part in _method(method)),
        *(part for name, config in PARTS.items() for part in _part(name, config)),
    )


def _common() -> dict[str, Any]:
    """What all methods have, and by what they are told apart."""
    fields: dict[str, Any] = FoldConfig.model_json_schema()["properties"]
    return fields | {"method": fields["method"] | {"default": DEFAULT, "enum": list(METHODS)}}


def _method(method: AnyMethod) -> list[str]:
    """Its own section: what it is, what it needs, and the parameters that only it has."""
    common = _common()
    fields = method.parameters.model_json_schema()["properties"]
    own = {n: schema for n, schema in fields.items() if n != "method" and schema != common.get(n)}
    parts = [f'## `merge` with `"method": "{method.name}"`', _about(method)]
    if own:
        parts.append(_table(own))
    if method.parameters.presets:
        parts += [
            "`preset` starts from a named set of values; what is given beside it wins.",
            table(("preset", "parameter", "value"), _presets(method.parameters.presets)),
        ]
    return parts


def _about(method: AnyMethod) -> str:
    needs = [words for need, words in NEEDS.items() if getattr(method.needs, need)]
    about = [
        method.summary,
        f"It needs {'; '.join(needs)}." if needs else "",
        "It remembers something from one fold to the next." if method.state else "",
        f"The paper is <{method.paper}>." if method.paper else "",
    ]
    return " ".join(filter(None, about))


def _presets(presets: Mapping[str, Mapping[str, Any]]) -> Iterable[tuple[str, str, str]]:
    return (
        (code(preset), code(name), code(value))
        for preset, values in presets.items()
        for name, value in values.items()
    )


def _part(name: str, config: type[Frozen]) -> list[str]:
    fields = config.model_json_schema()["properties"]
    return [f"## `{name}`", (config.__doc__ or "").strip(), _table(fields)]


def _table(fields: Mapping[str, Any]) -> str:
    rows = ((code(field), *_row(schema)) for field, schema in fields.items())
    return table(("parameter", "default", "may be", "meaning"), rows)


def _row(schema: dict[str, Any]) -> tuple[str, str, str]:
    if "$ref" in schema:
        return "", "object", "See below."
    return code(schema.get("default")), kind(schema), schema.get("description", "")
