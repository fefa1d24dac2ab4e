"""The parameters of a fold, from their classes."""

from typing import Any

from grasp_core.config import PRESETS, FoldConfig, Frozen, GateConfig, RefineConfig
from grasp_core.kinds import KINDS
from scripts.reference.markdown import code, kind, opening, sections, table

PARTS: dict[str, type[Frozen]] = {
    "merge": FoldConfig,
    "merge.refine": RefineConfig,
    **{f"merge.refine.augmentation` of kind `{k.name}": k.augmentation for k in KINDS.values()},
    "merge.gate": GateConfig,
}
INTRODUCTION = """
What a model is made with as `merge`, and what `PATCH /models/{model}` changes for later folds. All
have defaults; [ADR 0004](../adr/0004-defaults-that-transfer.md) says how they were chosen, and
[concepts](../concepts.md) what the stages do that they steer. In Python they are the fields of
`grasp_core.FoldConfig`. A name that is misspelt is an error.
"""


def page() -> str:
    return sections(
        opening("Merge parameters", "grasp_core/config.py"),
        INTRODUCTION.strip(),
        *(part for name, config in PARTS.items() for part in _part(name, config)),
        "## Presets",
        "`preset` starts from a named set of values; what is given beside it wins.",
        table(
            ("preset", "parameter", "value"),
            (
                (code(p), code(n), code(v))
                for p, values in PRESETS.items()
                for n, v in values.items()
            ),
        ),
    )


def _part(name: str, config: type[Frozen]) -> list[str]:
    fields = config.model_json_schema()["properties"]
    rows = ((code(field), *_row(schema)) for field, schema in fields.items())
    return [
        f"## `{name}`",
        (config.__doc__ or "").strip(),
        table(("parameter", "default", "may be", "meaning"), rows),
    ]


def _row(schema: dict[str, Any]) -> tuple[str, str, str]:
    if "$ref" in schema:
        return "", "object", "See below."
    return code(schema.get("default")), kind(schema), schema.get("description", "")
