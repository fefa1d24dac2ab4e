"""`grasp push`, `pull`, `watch` and `rollback`: a model's daily life."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

import typer

from grasp_cli.arguments import ClassNames, ModelName, Wait, parse_classes
from grasp_cli.session import Session, online
from grasp_cli.waiting import watch_jobs

if TYPE_CHECKING:
    from grasp_client import Model, Source

LONGEST_NAME = 200


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
    wait: Wait = False,
) -> None:
    """Offer checkpoints to a model; they are folded into it one after the other."""
    from grasp_client.protocol import ENDED

    if name and len(files) > 1:
        raise typer.BadParameter("one name does not fit several files", param_hint="--name")
    jobs: dict[str, str] = {}
    under_way: list[str] = []
    for file in files:
        called = name or file.name[:LONGEST_NAME]
        source = _push(session, model, file, called, parse_classes(classes), dry_run)
        jobs[source.job.id] = source.name
        if not wait:
            session.give_line(source, f"{source.name}: {source.status}, {source.job.id}")
        if source.status in ENDED:
            session.note(f"{file.name} was offered before, and not again")
        else:
            under_way.append(source.job.id)
    if wait:
        watch_jobs(session, jobs)
    elif under_way:
        session.note(f"`grasp watch {' '.join(under_way)}` shows how it goes")


def _push(
    session: Session,
    model: str,
    file: Path,
    name: str,
    classes: list[str] | None,
    dry_run: bool,
) -> Source:
    from grasp_cli.bars import upload_bar

    with (
        _as_safetensors(session, file, model, classes) as path,
        upload_bar(session, name) as progress,
    ):
        return session.grasp.sources.push(
            path, model=model, name=name, classes=classes, dry_run=dry_run, progress=progress
        )


@contextmanager
def _as_safetensors(
    session: Session, file: Path, model: str, classes: list[str] | None
) -> Iterator[Path]:
    from grasp_cli.local import CONVERTED, as_safetensors

    if file.suffix.lower() not in CONVERTED:
        yield file
        return
    session.note(f"converting {file.name}")
    with as_safetensors(file, session.grasp.models.get(model), classes) as path:
        yield path


@online
def pull(
    session: Session,
    model: ModelName,
    to: Annotated[
        str | None,
        typer.Argument(help="A file, or a folder; without, the current folder.", metavar="TO"),
    ] = None,
    version: Annotated[int | None, typer.Option(min=1, help="This one, not the newest.")] = None,
    timm: Annotated[
        bool, typer.Option("--timm", help="A folder that timm loads, with a model card.")
    ] = False,
) -> None:
    """Download a model's weights: verified, and there whole or not at all."""
    from grasp_client.files import sha256_of

    found = session.grasp.models.get(model)
    number = version or found.version
    if timm:
        folder = Path(to or f"{found.name}-v{number}")
        _export(session, found, number, folder)
        path = folder / "model.safetensors"
    else:
        path = _pull(session, found, number, to or ".")
    result = {
        "model": found.name,
        "version": number,
        "path": str(path),
        "size": path.stat().st_size,
        "sha256": sha256_of(path),
    }
    session.give_line(result, str(path.parent if timm else path))


def _pull(session: Session, model: Model, number: int | None, to: str) -> Path:
    from grasp_cli.bars import transfer_bar

    with transfer_bar(session, f"{model.name} v{number}") as progress:
        return session.grasp.models.pull(model.id, to, version=number, progress=progress)


def _export(session: Session, model: Model, number: int | None, folder: Path) -> None:
    from grasp_cli.local import export_folder

    with TemporaryDirectory() as temporary:
        weights = _pull(session, model, number, temporary)
        report = session.grasp.models.report(model.id, number)
        export_folder(weights, folder, model.name, report)


@online
def watch(
    session: Session,
    what: Annotated[
        list[str],
        typer.Argument(help="Ids of jobs; or a model, for all its jobs.", metavar="JOB|MODEL"),
    ],
) -> None:
    """Follow jobs to their end; exits with 0 if all succeed. As JSON, a line for every state."""
    jobs: dict[str, str] = {}
    for name in what:
        jobs |= {name: name} if name.startswith("job_") else _jobs_of(session, name)
    if not jobs:
        session.say("nothing is under way")
    watch_jobs(session, jobs, every_state=True)


def _jobs_of(session: Session, model: str) -> dict[str, str]:
    """Those that have not ended, in the order in which they will run."""
    found = session.grasp.models.get(model)
    # In this order, as a job may be taken up meanwhile.
    queued = session.grasp.jobs.list(model=found.id, status="queued")
    running = session.grasp.jobs.list(model=found.id, status="running")
    names = {source.job.id: source.name for source in session.grasp.sources.list(model=found.id)}
    return {
        job.id: names.get(job.id, f"{found.name} {job.kind}")
        for job in (*reversed(running), *reversed(queued))
    }


@online
def rollback(
    session: Session,
    model: ModelName,
    version: Annotated[int, typer.Argument(min=1, help="The version to go back to.")],
) -> None:
    """Go back: a new version that equals an older one."""
    made = session.grasp.models.rollback(model, version)
    session.give_line(made, f"{model}: version {made.number} equals version {version}")
