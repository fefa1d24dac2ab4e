"""The settings, from their class."""

from typing import Any

from registry.settings import Settings
from scripts.reference.markdown import code, kind, opening, sections, table

INTRODUCTION = """
Read from the environment, and from a `.env` file in the working directory; the environment wins,
and an empty variable counts as unset. Lists are separated by commas.
[`.env.example`](../../.env.example) is a file to start from.
"""


def page() -> str:
    fields = Settings.model_json_schema()["properties"]
    return sections(
        opening("Settings", "registry/settings.py"),
        INTRODUCTION.strip(),
        table(
            ("variable", "default", "may be", "meaning"),
            (_row(name, schema) for name, schema in fields.items()),
        ),
    )


def _row(name: str, schema: dict[str, Any]) -> tuple[str, ...]:
    default = schema.get("default")
    shown = "" if default in (None, []) else code(default)
    may_be = kind(schema).removesuffix(" or null")
    return f"`GRASP_{name.upper()}`", shown, may_be, schema.get("description", "")
