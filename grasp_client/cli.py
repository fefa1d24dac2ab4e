"""The `grasp` command."""

from importlib.metadata import version as release_of

import typer

from grasp_client import server

cli = typer.Typer(
    name="grasp",
    help="Keep one merged model per target, and fold new checkpoints into it as they arrive.",
    no_args_is_help=True,
    add_completion=False,
)
cli.command()(server.serve)
cli.command()(server.worker)
cli.add_typer(server.admin, name="admin")


@cli.command()
def version() -> None:
    """Print the installed version."""
    typer.echo(release_of("grasp-merge"))


def main() -> None:
    """Entry point of the `grasp` script."""
    cli()
