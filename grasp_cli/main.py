"""The `grasp` command: what runs the service, and what talks to it."""

import signal
import sys
from importlib.metadata import version as release_of
from typing import Annotated

import typer

from grasp_cli import jobs, merge, models, service, sources, targets
from grasp_cli.demo.command import demo
from grasp_cli.session import NOT_DONE, complain
from grasp_core.errors import ConfigError

SERVICE = "Run the service"
MERGE = "Merge"
OFFLINE = "Without a server"
LOOK = "Look and change"

cli = typer.Typer(
    context_settings={"help_option_names": ["--help", "-h"]},  # of all commands
    name="grasp",
    help="Keep one merged model per target, and fold new checkpoints into it as they arrive.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
for command in (sources.push, models.pull, jobs.watch, models.rollback):
    cli.command(rich_help_panel=MERGE)(command)
for command in (merge.merge, merge.convert):
    cli.command(rich_help_panel=OFFLINE)(command)
for name, group in (
    ("targets", targets.targets),
    ("models", models.models),
    ("sources", sources.sources),
    ("jobs", jobs.jobs),
):
    cli.add_typer(group, name=name, rich_help_panel=LOOK)
cli.command(rich_help_panel=SERVICE)(service.serve)
cli.command(rich_help_panel=SERVICE)(service.worker)
cli.command(rich_help_panel=SERVICE)(demo)
cli.add_typer(service.admin, name="admin", rich_help_panel=SERVICE)


@cli.command(rich_help_panel=SERVICE)
def version() -> None:
    """Print the installed version."""
    typer.echo(release_of("grasp-merge"))


def _print_version(wanted: bool) -> None:
    if wanted:
        version()
        raise typer.Exit


@cli.callback()
def options(
    _: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the installed version."
        ),
    ] = False,
) -> None: ...


def main() -> None:
    """Entry point of the `grasp` script."""
    # Whoever starts it may ignore interrupts, as a script does for what it starts with `&`.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        cli()
    except ConfigError as error:  # of another package's method or kind, found when it is needed
        complain(error.message, error.hint)
        sys.exit(NOT_DONE)
