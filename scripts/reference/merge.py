"""The parameters of a fold, from the declarations of the methods."""

from collections.abc import Iterable

from grasp_core.config import CommonConfig, Frozen, GateConfig, RefineConfig
from grasp_core.kinds import KINDS
from grasp_core.parameters import DEFAULT_CANDIDATES, PRESETS
from scripts.reference.markdown import code, opening, parameters, sections, table

PARTS: dict[str, type[Frozen]] = {
    "merge.refine": RefineConfig,
    **{f"merge.refine.augmentation` of kind `{k.name}": k.augmentation for k in KINDS.values()},
    "merge.gate": GateConfig,
}
INTRODUCTION = """
What a model is made with as `merge`, and what `PATCH /models/{model}` changes for later folds. All
have defaults; [ADR 0004](../adr/0004-defaults-that-transfer.md),
[0015](../adr/0015-a-budget-of-steps.md) and [0016](../adr/0016-candidates.md) say how they were
chosen, and [concepts](../concepts.md#one-fold) what the stages do that they steer. In Python
`grasp_core.parse_config` reads them. A name that is misspelt is an error, and so is a parameter of
another method.
"""
CANDIDATES = """
`candidates` is a list of up to 16 ways to fold a source in, each the name of a method or an object
with its `method` and parameters of that method; what the table below names is the same for all of
them, and stands beside the list. All three are valid:

```json
{"candidates": ["keep", "source", {"method": "grasp", "tau": 0.2}], "refine": {"steps": 200}}
{"method": "grasp", "tau": 0.3, "refine": {"steps": 200}}
{"refine": {"steps": 200}}
```

The second has one candidate, whose parameters stand among the others. The third names none, and has
the default: {default}.
"""
METHODS_HAVE = "What each method has beside these is on [its page](methods.md)."
PRESET = "`preset` starts from a named set of values; what is given beside it wins."


def page() -> str:
    default = ", ".join(map(code, DEFAULT_CANDIDATES))
    return sections(
        opening("Merge parameters", "grasp_core/parameters.py and grasp_core/methods"),
        INTRODUCTION.strip(),
        "## `merge.candidates`",
        CANDIDATES.strip().replace("{default}", default),
        "## `merge`",
        "What all candidates of a fold have in common.",
        parameters(CommonConfig.model_json_schema()["properties"]),
        PRESET,
        table(("preset", "parameter", "value"), _presets()),
        "## Methods",
        METHODS_HAVE,
        *(part for name, config in PARTS.items() for part in _part(name, config)),
    )


def _presets() -> Iterable[tuple[str, str, str]]:
    return (
        (code(preset), code(name), code(value))
        for preset, values in PRESETS.items()
        for name, value in values.items()
    )


def _part(name: str, config: type[Frozen]) -> list[str]:
    fields = config.model_json_schema()["properties"]
    return [f"## `{name}`", (config.__doc__ or "").strip(), parameters(fields)]
