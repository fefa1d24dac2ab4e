"""What commands have in common: options, output, errors, and most of them a client."""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from grasp_client import Grasp

NOT_DONE = 1  # as click has 2 for what was typed wrongly
WIDE = 160  # columns, where no terminal says how many it has

Url = Annotated[
    str | None,
    typer.Option(
        envvar="GRASP_URL", help="Where the server is; without, on this machine.", metavar="URL"
    ),
]
Key = Annotated[str | None, typer.Option(envvar="GRASP_KEY", help="An API key.", metavar="KEY")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, and nothing else.")]
COMMON = {"url": (Url, None), "key": (Key, None), "as_json": (AsJson, False)}


@dataclass(frozen=True)
class Output:
    """How a command tells what came of it: to people, or as JSON."""

    as_json: bool

    def give(self, data: Any, shown: Callable[[], RenderableType]) -> None:
        """The result: as JSON, or as it is shown to people."""
        if self.as_json:
            self.give_json(data, indent=2)
        else:
            console().print(shown(), crop=False)

    def give_line(self, data: Any, shown: str) -> None:
        """The same where both are a line."""
        if self.as_json:
            self.give_json(data)
        else:
            typer.echo(shown)

    def give_json(self, data: Any, indent: int | None = None) -> None:
        typer.echo(json.dumps(plain(data), indent=indent, ensure_ascii=False))

    def say(self, text: str) -> None:
        """The result, for people alone."""
        if not self.as_json:
            typer.echo(text)

    def note(self, text: str) -> None:
        """Something beside the result."""
        if not self.as_json:
            typer.echo(text, err=True)


@dataclass(frozen=True)
class Session(Output):
    """One command under way, and the server it talks to."""

    grasp: Grasp


def console(*, stderr: bool = False) -> Console:
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    return Console(stderr=stderr, width=None if stream.isatty() else WIDE)


def plain(data: Any) -> Any:
    """Records as the server has sent them."""
    if isinstance(data, list):
        return [plain(item) for item in data]
    return data.model_dump(mode="json") if hasattr(data, "model_dump") else data


def online(command: Callable[..., None]) -> Callable[..., None]:
    """A command with --url, --key and --json, that says in words what went wrong."""

    def run(**given: Any) -> None:
        url, key, as_json = (given.pop(name) for name in COMMON)
        with in_words(), open_client(url, key) as grasp, in_words(grasp):
            command(Session(as_json, grasp), **given)

    _, *own = inspect.signature(command, eval_str=True).parameters.values()
    common = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)
        for name, (kind, default) in COMMON.items()
    ]
    run.__name__, run.__doc__ = command.__name__, command.__doc__
    run.__signature__ = inspect.Signature([*own, *common])  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in (*own, *common)}
    return run


def open_client(url: str | None, key: str | None) -> Grasp:
    from grasp_client import Grasp

    return Grasp(url, key, wait_for_server=False)


@contextmanager
def in_words(grasp: Grasp | None = None) -> Iterator[None]:
    """Errors as a message and a hint, never as a traceback."""
    from grasp_client.errors import GraspError

    try:
        yield
    except GraspError as error:
        from grasp_cli.mistakes import explain

        fail(*explain(error, grasp))
    except BrokenPipeError:  # whoever reads our output has seen enough
        raise
    except OSError as error:
        fail(f"{error.filename or 'the disk'}: {error.strerror or error}")


def fail(message: str, hint: str | None = None) -> NoReturn:
    typer.echo(f"grasp: {message}", err=True)
    if hint:
        typer.echo(f"  {hint}", err=True)
    raise typer.Exit(NOT_DONE)


class ListByDefault(TyperGroup):
    """`grasp models` is `grasp models list`, also with options."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not args or (args[0].startswith("-") and args[0] not in ctx.help_option_names):
            args = ["list", *args]
        return super().parse_args(ctx, args)


def group(help_text: str) -> typer.Typer:
    return typer.Typer(
        cls=ListByDefault, help=help_text, epilog="Without a command, they are listed."
    )
