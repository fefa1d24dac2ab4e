"""What commands have in common: options, output, errors, and most of them a client."""

from __future__ import annotations

import inspect
import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from grasp_client.errors import (
    CheckpointMismatch,
    GraspError,
    Invalid,
    NotAllowed,
    NotFound,
    Refused,
    Unavailable,
)

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from grasp_client import Grasp

NOT_DONE = 1  # as click has 2 for what was typed wrongly
INTERRUPTED = 130  # 128 + SIGINT, as shells have it
SHOWN = 3  # tensors of each kind of difference
PLACE = re.compile(r"^(body|query|path)(\.|$)")  # where in the request a value was
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
    """How a command prints what came of it: for people, or as JSON."""

    as_json: bool

    def print_result(self, data: Any, shown: Callable[[], RenderableType]) -> None:
        """The result: as JSON, or as it is shown to people."""
        if self.as_json:
            self.print_json(data, indent=2)
        else:
            self.print_table(shown())

    def print_line(self, data: Any, shown: str) -> None:
        """The same where both are a line."""
        if self.as_json:
            self.print_json(data)
        else:
            typer.echo(shown)

    def print_json(self, data: Any, indent: int | None = None) -> None:
        typer.echo(json.dumps(plain(data), indent=indent, ensure_ascii=False))

    def print_text(self, text: str) -> None:
        """The result, for people alone."""
        if not self.as_json:
            typer.echo(text)

    def print_table(self, shown: RenderableType) -> None:
        """The same, of what is no plain text."""
        if not self.as_json:
            console().print(shown, crop=False)

    def print_note(self, text: str) -> None:
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
        with errors_in_words(), open_client(url, key) as grasp, errors_in_words(grasp):
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
def errors_in_words(grasp: Grasp | None = None) -> Iterator[None]:
    """Errors as a message and a hint, never as a traceback."""
    try:
        yield
    except GraspError as error:
        fail(*explain(error, grasp))
    except BrokenPipeError:  # whoever reads our output has seen enough
        raise
    except OSError as error:
        fail(f"{error.filename or 'the disk'}: {error.strerror or error}")


def fail(message: str, hint: str | None = None) -> NoReturn:
    complain(message, hint)
    raise typer.Exit(NOT_DONE)


def complain(message: str, hint: str | None = None) -> None:
    typer.echo(f"grasp: {message}", err=True)
    if hint:
        typer.echo(f"  {hint}", err=True)


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


# --- What went wrong, in words for somebody at a terminal -----------------------------------------


def explain(error: GraspError, grasp: Grasp | None) -> tuple[str, str | None]:
    """A message, and what to do about it."""
    match error:
        case NotFound(problem={"missing": {"kind": str(kind), "name": str(name)}}) if grasp:
            return error.message, _nearest(kind, name, grasp)
        case CheckpointMismatch():
            return _differences(error), _about_classes(error) if grasp else error.hint
        case Invalid(problem={"convertible": True}):
            return error.message, "if torch.save wrote it, `grasp convert` makes safetensors of it"
        case NotAllowed(status=401):
            return error.message, "give a key with --key or GRASP_KEY; an administrator makes one"
        case Unavailable(request_id=str(request_id)):
            return error.message, error.hint or f"its log says more at request {request_id}"
        case Refused(code="invalid_request"):
            return "; ".join(_fields(error)) or error.message, error.hint
    return error.message, error.hint


def _nearest(kind: str, name: str, grasp: Grasp) -> str:
    known = _names(grasp, kind)
    close = get_close_matches(name, known, n=3, cutoff=0.5)
    if close:
        return f"did you mean {' or '.join(close)}?"
    if known:
        return f"there are {', '.join(known[:10])}"
    return f"`grasp {kind}s` lists those there are"


def _names(grasp: Grasp, kind: str) -> list[str]:
    try:
        if kind == "model":
            return [model.name for model in grasp.models.list()]
        return [target.name for target in grasp.targets.list()] if kind == "target" else []
    except GraspError:
        return []


def _differences(error: CheckpointMismatch) -> str:
    """The first few tensors of every kind; the error's attributes have more."""
    file, architecture = (error.problem.get(key) for key in ("file", "architecture"))
    lines = [f"{file} is not a {architecture} checkpoint" if file else error.message]
    left_out = error.mismatches.get("more", {})
    for kind, found in error.mismatches.items():
        if found and kind != "more":
            tensors = _tensors(found)
            count = len(tensors) + left_out.get(kind, 0)
            more = f" and {count - SHOWN} more" if count > SHOWN else ""
            lines.append(f"{kind.replace('_', ' ')}: {', '.join(tensors[:SHOWN])}{more}")
    return "\n  ".join(lines)


def _tensors(found: Mapping[str, Any] | Sequence[str]) -> list[str]:
    if isinstance(found, Mapping):
        return [f"{name} {has} instead of {wanted}" for name, (wanted, has) in found.items()]
    return list(found)


def _about_classes(error: CheckpointMismatch) -> str | None:
    """Where only the head differs, the server asks for class names; here they are an option."""
    if not error.problem.get("only_head"):
        return error.hint
    return "only the head differs: name the source's classes, as --classes A,B,C"


def _fields(error: Refused) -> list[str]:
    """Every value that is wrong, by its name."""
    named = ((PLACE.sub("", e["where"]), e["message"]) for e in error.errors)
    return [": ".join(filter(None, words)) for words in named]
