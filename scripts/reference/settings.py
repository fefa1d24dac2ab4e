"""The settings, from their class."""

import textwrap
from typing import Any

from registry.process.settings import Settings
from scripts.reference.markdown import code, kind, opening, sections, table

INTRODUCTION = """
Read from the environment, and from a `.env` file in the working directory; the environment wins,
and an empty variable counts as unset. Lists are separated by commas.
[`.env.example`](../../.env.example) is a file to start from.

The [command line](cli.md) and the [Python client](client.md) have two of their own: `GRASP_URL`,
where the service is (`http://127.0.0.1:8000`), and `GRASP_KEY`, the key to use.
"""
EXAMPLE_HEAD = """
Copy to .env and change what you need; a variable set in the environment wins, an empty one counts
as unset. Lists are separated by commas. Written by `make docs` from registry/process/settings.py.
"""


def page() -> str:
    fields = Settings.model_json_schema()["properties"]
    return sections(
        opening("Settings", "registry/process/settings.py"),
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


def env_example() -> str:
    """A .env file that changes nothing."""
    fields = (
        f"{_comment(field.description or '')}\n{_assignment(name, field.default)}"
        for name, field in Settings.model_fields.items()
    )
    return sections(_comment(EXAMPLE_HEAD), *fields)


def _comment(text: str) -> str:
    return textwrap.fill(
        " ".join(text.split()),
        width=100,
        initial_indent="# ",
        subsequent_indent="# ",
        break_long_words=False,
        break_on_hyphens=False,
    )


def _assignment(name: str, default: object) -> str:
    return f"GRASP_{name.upper()}={'' if default in (None, ()) else default}"
