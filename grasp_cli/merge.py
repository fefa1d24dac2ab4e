"""`grasp merge` and `grasp convert`: what needs torch and no server."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from pydantic import ValidationError

from grasp_cli.arguments import (
    ClassNames,
    ImageSize,
    KindName,
    Preprocess,
    Seed,
    Settings,
    parse_classes,
    parse_settings,
)
from grasp_cli.local import convert_file, needing
from grasp_cli.session import INTERRUPTED, NOT_DONE, AsJson, Output, errors_in_words
from grasp_core.config import FoldConfig, plain_words
from grasp_core.errors import ConfigError
from grasp_core.kinds import DEFAULT, Kind, check_augmentation, find_kind, read_options
from grasp_core.named_files import BASE, WEIGHTS, require_name
from grasp_core.parameters import change_config, read_candidates
from grasp_core.spec import ModelSpec

if TYPE_CHECKING:
    from rich.console import RenderableType

    from grasp_cli.offline import Outcome
    from grasp_core.operations import Folded

FILE: dict[str, Any] = {"exists": True, "dir_okay": False}


def merge(
    sources: Annotated[
        list[Path],
        typer.Argument(
            **FILE,
            help="Checkpoints, in the order in which they are folded: safetensors; .pt, .pth, .ckpt"
            " and .bin are converted on the way.",
        ),
    ],
    target: Annotated[
        Path,
        typer.Option(
            "--target",
            "-t",
            exists=True,
            help="Labelled data, in a format of its kind.",
        ),
    ],
    architecture: Annotated[
        str, typer.Option("--architecture", "-a", help="One that the kind knows by this name.")
    ],
    output: Annotated[
        Path, typer.Option("--output", "-o", dir_okay=False, help="Where the merged weights go.")
    ],
    merged: Annotated[
        Path | None,
        typer.Option(**FILE, help="Fold into this version; without, the first source begins."),
    ] = None,
    files: Annotated[
        list[str],
        typer.Option(
            "--file",
            help="What belongs to --merged beside its weights: what a method remembers of it.",
            metavar="NAME=PATH",
        ),
    ] = [],  # noqa: B006 - typer copies it
    base: Annotated[
        Path | None,
        typer.Option(
            **FILE, help="What the sources were fine-tuned from, for methods that need it."
        ),
    ] = None,
    version: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Number of --merged, if not what its file says (gone back to, or kept).",
        ),
    ] = None,
    classes: Annotated[
        str | None,
        typer.Option(help="Of the merged model, in order; without, the target's.", metavar="NAMES"),
    ] = None,
    source_classes: Annotated[
        str | None,
        typer.Option(help="Of the sources, where they have others.", metavar="NAMES"),
    ] = None,
    kind: KindName = DEFAULT,
    image_size: ImageSize = None,
    preprocess: Preprocess = [],  # noqa: B006 - typer copies it
    config: Annotated[
        Path | None, typer.Option(**FILE, help="JSON with merge parameters; --set adds to them.")
    ] = None,
    settings: Settings = [],  # noqa: B006
    candidates: Annotated[
        str | None,
        typer.Option(
            help="Methods that run against each other, with commas between them, or `all`: which of"
            " them does the data prefer?",
            metavar="METHODS",
        ),
    ] = None,
    seed: Seed = None,
    device: Annotated[
        str, typer.Option(envvar="GRASP_DEVICE", help="auto, cpu, cuda, cuda:1, mps.")
    ] = "auto",
    threads: Annotated[
        int | None,
        typer.Option(envvar="GRASP_THREADS", min=1, help="Of torch; without, as many as it likes."),
    ] = None,
    report: Annotated[
        Path | None, typer.Option(dir_okay=False, help="A JSON file for all that was measured.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Fold files into a file, without a server: the same code and the same bytes.

    Every source is looked at before the first is folded: one that is no such model ends the
    command. One that the gate rejects is passed over, as in the service. The output appears at
    the end, whole or not at all; the command succeeds if at least one source was accepted. What a
    method remembers goes beside it: state/mean of out.safetensors as out-state-mean.safetensors,
    and is given to go on with as --file state/mean=out-state-mean.safetensors.
    """
    from grasp_cli.progress import stage_bar

    out = Output(as_json)
    parameters = _parameters(config, settings, candidates, seed, device)
    overrides = _overrides(_kind(kind), preprocess, image_size)
    with _named_as_typed("--set refine.augmentation"):
        check_augmentation(parameters, _kind(kind))
    if files and merged is None:
        raise typer.BadParameter("it belongs to --merged, which is missing", param_hint="--file")
    newest = _named(files) | ({WEIGHTS: merged} if merged else {})
    with errors_in_words(), needing("torch", "merging"):
        from grasp_cli.offline import MergeOptions, merge_files

        options = MergeOptions(
            kind=kind,
            architecture=architecture,
            target=target.absolute(),
            classes=_names(classes),
            source_classes=_names(source_classes),
            preprocessing=overrides,
            config=parameters,
            files={BASE: base} if base else {},
            test_all=candidates is not None,
            threads=threads,
        )
        try:
            outcomes = merge_files(
                options,
                sources,
                output,
                lambda label: stage_bar(out, label),
                newest=newest,
                version=version,
            )
        except KeyboardInterrupt:
            out.print_note(f"stopped; {output} is as it was")
            raise typer.Exit(INTERRUPTED) from None
    _print_outcomes(out, outcomes, output, report, compared=candidates is not None)


def _print_outcomes(
    out: Output,
    outcomes: Sequence[Outcome],
    output: Path,
    report: Path | None,
    *,
    compared: bool,
) -> None:
    from grasp_cli.tables import candidates_table

    accepted = [outcome for outcome in outcomes if outcome.version]
    newest = accepted[-1] if accepted else None
    result = {
        "path": str(output) if newest else None,
        "version": newest and newest.version,
        "sha256": newest and newest.folded and newest.folded.sha256,
        "sources": [outcome.summary() for outcome in outcomes],
    }
    if report:
        folds = [json.loads(outcome.folded.report) for outcome in outcomes if outcome.folded]
        report.write_text(json.dumps({**result, "reports": folds}, indent=2, ensure_ascii=False))
    out.print_result(result, lambda: _table(outcomes))
    for outcome in outcomes:
        if outcome.folded and (said := _explain(outcome.status, outcome.folded)):
            out.print_text(f"{outcome.source.given.name}{said}")
        if outcome.folded and compared:
            out.print_table(candidates_table(outcome.folded.metrics.candidates))
    if newest is None:
        out.print_note(f"nothing was accepted; {output} is as it was")
        raise typer.Exit(NOT_DONE)
    out.print_text(f"{output}: version {newest.version}")


def _explain(status: str, folded: Folded) -> str | None:
    """Why it was refused, or what it was worth."""
    if status == "rejected":
        return f" was rejected: {folded.reason}"
    sentence = folded.metrics.sentence
    return sentence and f": {sentence}"


def _table(outcomes: Sequence[Outcome]) -> RenderableType:
    from grasp_cli.tables import accuracy, change, listed, shown, status

    rows = []
    for outcome in outcomes:
        summary = outcome.summary()
        metrics, share = summary["metrics"], summary["transferred_share"]
        rows.append(
            (
                outcome.source.given.name,
                status(outcome.status),
                shown(outcome.version),
                change(metrics, "val"),
                accuracy(metrics, "test"),
                shown(None if share is None else f"{share:.1%}"),
            )
        )
    columns = ("source", "outcome", "version", "val", "test", "from it")
    return listed(columns, rows, "no sources")


def convert(
    checkpoint: Annotated[
        Path, typer.Argument(**FILE, help="What torch.save or a trainer wrote: .pt, .pth, .ckpt.")
    ],
    output: Annotated[
        Path | None,
        typer.Argument(
            help="A file or a folder; without, beside it, as .safetensors.", metavar="OUTPUT"
        ),
    ] = None,
    architecture: Annotated[
        str | None,
        typer.Option("--architecture", "-a", help="Make sure that it is this model."),
    ] = None,
    kind: KindName = DEFAULT,
    classes: ClassNames = None,
    ema: Annotated[
        bool, typer.Option("--ema/--no-ema", help="Averaged weights, if there are any.")
    ] = True,
    as_json: AsJson = False,
) -> None:
    """Write a checkpoint's weights as safetensors, without running what it pickled."""
    names = _names(classes)
    _kind(kind)
    if architecture and names:
        with _named_as_typed("--classes"):
            ModelSpec(kind=kind, architecture=architecture, classes=names)
    path = output or checkpoint
    if path.is_dir():
        path /= checkpoint.name
    if output is None or output.is_dir():
        path = path.with_suffix(".safetensors")
    with errors_in_words():
        sha256 = convert_file(checkpoint, path, kind, architecture, names, ema=ema)
    result = {"path": str(path), "size": path.stat().st_size, "sha256": sha256}
    Output(as_json).print_line(result, str(path))


def _parameters(
    config: Path | None,
    settings: list[str],
    candidates: str | None,
    seed: int | None,
    device: str,
) -> FoldConfig:
    given: Any = {}
    if config:
        try:
            given = json.loads(config.read_text())
        except ValueError as error:
            raise typer.BadParameter(f"{config} is not JSON: {error}") from error
        if not isinstance(given, dict):
            raise typer.BadParameter(f"{config} is JSON, but not an object")
    own: dict[str, Any] = {"device": device} | ({} if seed is None else {"seed": seed})
    if candidates:
        with _named_as_typed("--candidates"):
            own["candidates"] = read_candidates(candidates)
    with _named_as_typed("--set"):
        return change_config(parse_settings(settings, given), own)


def _named(pairs: list[str]) -> dict[str, Path]:
    files = {}
    for pair in pairs:
        name, _, path = pair.partition("=")
        try:
            require_name(name)
        except ValueError as error:
            raise typer.BadParameter(str(error), param_hint="--file") from error
        if not Path(path).is_file():
            raise typer.BadParameter(f"there is no file {path!r}", param_hint="--file")
        files[name] = Path(path)
    return files


def _kind(name: str) -> Kind:
    try:
        return find_kind(name)
    except ConfigError as error:
        raise typer.BadParameter(str(error), param_hint="--kind") from error


def _overrides(kind: Kind, pairs: list[str], image_size: int | None) -> dict[str, Any]:
    size = {} if image_size is None else {"image_size": image_size}
    given = parse_settings(pairs, option="--preprocess") | size
    with _named_as_typed("--preprocess"):
        read_options(kind, "overrides", given)
    return given


@contextmanager
def _named_as_typed(option: str) -> Iterator[None]:
    """What makes no sense is named as it was typed."""
    try:
        yield
    except ValidationError as error:
        found = ((".".join(map(str, e["loc"])), plain_words(e["msg"])) for e in error.errors())
        wrong = "; ".join(": ".join(filter(None, words)) for words in found)
        raise typer.BadParameter(wrong, param_hint=option) from error


def _names(text: str | None) -> tuple[str, ...] | None:
    names = parse_classes(text)
    return tuple(names) if names else None
