"""The `grasp` command. Heavy imports wait inside the commands that need them."""

from importlib.metadata import version as release_of
from ipaddress import ip_address
from typing import TYPE_CHECKING, NoReturn

import typer
from pydantic import ValidationError

if TYPE_CHECKING:
    from registry.settings import Settings

cli = typer.Typer(
    name="grasp",
    help="Keep one merged model per target, and fold new checkpoints into it as they arrive.",
    no_args_is_help=True,
    add_completion=False,
)


@cli.command()
def serve() -> None:
    """Run the service; GRASP_HOST and GRASP_PORT say where."""
    import uvicorn

    settings = _read_settings()
    if not _is_loopback(settings.host):
        _fail(
            f"refusing to listen on {settings.host}: there are no API keys yet, so anyone who"
            " reaches that address could use the service. Set GRASP_HOST to 127.0.0.1."
        )
    uvicorn.run("app.main:app", host=settings.host, port=settings.port)


@cli.command()
def version() -> None:
    """Print the installed version."""
    typer.echo(release_of("grasp-merge"))


def main() -> None:
    """Entry point of the `grasp` script."""
    cli()


def _read_settings() -> "Settings":
    from registry.settings import Settings

    try:
        return Settings()
    except ValidationError as error:
        problems = [f"GRASP_{e['loc'][0]!s}".upper() + f": {e['msg']}" for e in error.errors()]
        _fail("\n".join(problems))


def _is_loopback(host: str) -> bool:
    """Names other than localhost are not resolved: what they mean may change after we looked."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _fail(message: str) -> NoReturn:
    typer.echo(f"grasp: {message}", err=True)
    raise typer.Exit(2)
