"""`grasp sources`, and `grasp push`, which offers one"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from grasp_cli.arguments import ClassNames, Limit, ModelName, Wait, parse_classes
from grasp_cli.session import Session, group, online

if TYPE_CHECKING:
    from rich.table import Table

    from grasp_client import Source

LONGEST_NAME = 200

sources = group("The checkpoints that were offered.")


@online
def push(
    session: Session,
    model: ModelName,
    files: Annotated[
        list[Path],
        typer.Argument(
            exists=True,
            dir_okay=False,
            help="Safetensors; .pt, .pth, .ckpt and .bin are converted first, on this machine.",
        ),
    ],
    name: Annotated[str | None, typer.Option(help="What to call the source.")] = None,
    classes: ClassNames = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Measure what it is worth; publish nothing.")
    ] = False,
    candidates: Annotated[
        str | None,
        typer.Option(
            help="With --dry-run: methods that run against each other, with commas between them, or"
            " `all`; without, the model's.",
            metavar="METHODS",
        ),
    ] = None,
    fail_if_refused: Annotated[
        bool,
        typer.Option(
            "--fail-if-refused", help="With --dry-run --wait: exit 1 if it would be refused."
        ),
    ] = False,
    wait: Wait = False,
) -> None:
    """Offer checkpoints to a model; they are folded into it one after the other."""
    from grasp_cli.progress import watch_jobs
    from grasp_client.protocol import ENDED

    if fail_if_refused and not (dry_run and wait):
        raise typer.BadParameter("needs --dry-run and --wait", param_hint="--fail-if-refused")
    if candidates and not dry_run:
        raise typer.BadParameter("needs --dry-run", param_hint="--candidates")
    if name and len(files) > 1:
        raise typer.BadParameter("one name does not fit several files", param_hint="--name")
    tried = [each.strip() for each in candidates.split(",")] if candidates else None
    jobs: dict[str, str] = {}
    under_way: list[str] = []
    for file in files:
        called = name or file.name[:LONGEST_NAME]
        source = _push(session, model, file, called, parse_classes(classes), dry_run, tried)
        jobs[source.job.id] = source.name
        if not wait:
            session.print_line(source, f"{source.name}: {source.status}, {source.job.id}")
        if source.status in ENDED:
            session.print_note(f"{file.name} was offered before, and not again")
        else:
            under_way.append(source.job.id)
    if wait:
        watch_jobs(session, jobs, may_be_refused=not fail_if_refused)
    elif under_way:
        session.print_note(f"`grasp watch {' '.join(under_way)}` shows how it goes")


def _push(
    session: Session,
    model: str,
    file: Path,
    name: str,
    classes: list[str] | None,
    dry_run: bool,
    candidates: list[str] | None,
) -> Source:
    from grasp_cli.progress import upload_bar

    with (
        _as_safetensors(session, file, model, classes) as path,
        upload_bar(session, name) as progress,
    ):
        return session.grasp.sources.push(
            path,
            model=model,
            name=name,
            classes=classes,
            dry_run=dry_run,
            candidates=candidates,
            progress=progress,
        )


@contextmanager
def _as_safetensors(
    session: Session, file: Path, model: str, classes: list[str] | None
) -> Iterator[Path]:
    from grasp_cli.local import CONVERTED, as_safetensors

    if file.suffix.lower() not in CONVERTED:
        yield file
        return
    session.print_note(f"converting {file.name}")
    with as_safetensors(file, session.grasp.models.get(model), classes) as path:
        yield path


@sources.command("list")
@online
def list_sources(
    session: Session,
    model: Annotated[str | None, typer.Option(help="Only of this model.")] = None,
    status: Annotated[
        str | None, typer.Option(help="queued, running, succeeded, rejected, failed, cancelled.")
    ] = None,
    limit: Limit = 50,
) -> None:
    """List sources, newest first."""
    from grasp_cli.tables import sources_table

    found = session.grasp.sources.list(model=model, status=status, limit=limit)
    session.print_result(
        found,
        lambda: sources_table(
            found, {model.id: model.name for model in session.grasp.models.list()}
        ),
    )


@sources.command("show")
@online
def show_source(
    session: Session, source: Annotated[str, typer.Argument(help="Id of a source, src_…")]
) -> None:
    """What became of a source."""
    found = session.grasp.sources.get(source)
    session.print_result(found, lambda: _details(found))


def _details(source: Source) -> Table:
    from grasp_cli.tables import age, details, size, some, status

    return details(
        {
            "source": source.name,
            "id": source.id,
            "model": source.model,
            "status": status(source.status),
            "version": source.version,
            "classes": source.classes and some(source.classes),
            "size": size(source.size),
            "sha256": source.sha256,
            "content": source.content,
            "job": source.job.id,
            "offered": age(source.created_at),
        }
    )
