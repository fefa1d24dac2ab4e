"""Arguments and options that several commands have."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from typing import Annotated, Any

import typer


def complete_model(incomplete: str) -> list[str]:
    """Names of models, for the shell; none if the server does not answer."""
    return _complete("models", incomplete)


def complete_target(incomplete: str) -> list[str]:
    return _complete("targets", incomplete)


def _complete(noun: str, incomplete: str) -> list[str]:
    from grasp_client import Grasp, GraspError

    try:
        with Grasp(patience=0, wait_for_server=False) as grasp:
            things = grasp.models.list() if noun == "models" else grasp.targets.list()
    except GraspError:
        return []
    return [thing.name for thing in things if thing.name.startswith(incomplete)]


ModelName = Annotated[
    str, typer.Argument(help="Name or id of a model.", autocompletion=complete_model)
]
TargetName = Annotated[
    str, typer.Argument(help="Name or id of a target.", autocompletion=complete_target)
]
JobId = Annotated[str, typer.Argument(help="Id of a job, job_…", metavar="JOB")]
ClassNames = Annotated[
    str | None,
    typer.Option(help="Names of its outputs, in order: F,M or a JSON list.", metavar="NAMES"),
]
Limit = Annotated[int, typer.Option(min=1, help="How many at most.")]
Wait = Annotated[
    bool, typer.Option("--wait", help="Wait until it is done; exits with 0 if it succeeds.")
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
Settings = Annotated[
    list[str],
    typer.Option(
        "--set", help="A merge parameter: method=grasp or refine.epochs=4.", metavar="NAME=VALUE"
    ),
]
Preprocess = Annotated[
    list[str],
    typer.Option(
        help="How examples are prepared, if not as the architecture does: image_size=64.",
        metavar="NAME=VALUE",
    ),
]
ImageSize = Annotated[int | None, typer.Option(min=8, help="Short for --preprocess image_size=…")]
KindName = Annotated[str, typer.Option("--kind", help="The kind of problem.")]
Seed = Annotated[int | None, typer.Option(min=0, help="Of all random choices.")]


def parse_classes(text: str | None) -> list[str] | None:
    """As a list, or as JSON. Raises BadParameter, also for names that no line can show."""
    from grasp_core.config import require_text

    if text is None:
        return None
    try:
        as_json = text.lstrip().startswith("[")
        names = json.loads(text) if as_json else [name.strip() for name in text.split(",")]
    except ValueError as error:
        raise typer.BadParameter(f"not a JSON list: {error}", param_hint="--classes") from error
    try:
        return [require_text(str(name)) for name in names]
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--classes") from error


def parse_settings(
    pairs: list[str], given_before: Mapping[str, Any] | None = None, *, option: str = "--set"
) -> dict[str, Any]:
    """`refine.epochs=4` becomes {"refine": {"epochs": 4}}, added to what was given before."""
    merge: dict[str, Any] = copy.deepcopy(dict(given_before or {}))
    for pair in pairs:
        path, given, value = pair.partition("=")
        *outer, name = path.split(".")
        inside: Any = merge
        for part in outer:
            inside = inside.setdefault(part, {}) if isinstance(inside, dict) else None
        if not (given and name and isinstance(inside, dict)):
            raise typer.BadParameter(f"{pair!r} is not NAME=VALUE", param_hint=option)
        inside[name] = _value(value)
    return merge


def _value(text: str) -> Any:
    """JSON, or else the text itself: 0.3, true, null, auto."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def confirm(question: str, yes: bool) -> None:
    """Ask before something that cannot be undone. Ends the command unless it is wanted."""
    if not yes:
        typer.confirm(question, abort=True, err=True)
