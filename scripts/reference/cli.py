"""The commands, from the Typer application."""

from collections.abc import Iterator
from typing import NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from grasp_cli.main import cli
from scripts.reference.markdown import anchor, opening, sections, table

INTRODUCTION = """
`grasp --help`, and `--help` after any command, say the same.
"""


class Entry(NamedTuple):
    """A command that does something, by its full name."""

    name: str
    command: TyperCommand

    @property
    def summary(self) -> str:
        return (self.command.help or "").partition("\n\n")[0]


def page() -> str:
    entries = list(_entries("grasp", get_command(cli)))
    listed = ((f"[`{e.name}`]({anchor(e.name)})", e.summary) for e in entries)
    return sections(
        opening("Command line", "grasp_cli/main.py"),
        INTRODUCTION.strip(),
        table(("command", "does"), listed),
        *(part for entry in entries for part in _describe(entry)),
    )


def _entries(name: str, command: object) -> Iterator[Entry]:
    if isinstance(command, TyperGroup):
        for child, inner in command.commands.items():
            yield from _entries(f"{name} {child}", inner)
    elif isinstance(command, TyperCommand) and not command.hidden:
        yield Entry(name, command)


def _describe(entry: Entry) -> list[str]:
    context = typer.Context(entry.command, info_name=entry.name)
    usage = entry.command.get_usage(context).removeprefix("Usage: ")
    records = (parameter.get_help_record(context) for parameter in entry.command.params)
    rows = ((f"`{record[0]}`", record[1]) for record in records if record)
    return [
        f"## {entry.name}",
        entry.command.help or "",
        f"```text\n{usage}\n```",
        table(("argument or option", "meaning"), rows),
    ]
