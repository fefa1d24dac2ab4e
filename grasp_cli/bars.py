"""Progress on a terminal: bars; and where nobody looks at one, a line for every stage."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from rich.markup import escape
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TransferSpeedColumn,
)

from grasp_cli.session import Output, Session, console
from grasp_client import files

if TYPE_CHECKING:
    from grasp_client import Job

LIVE = ("loss", "accuracy", "val_accuracy")  # figures of a running fold that are worth a glance


class Show(Protocol):
    """Where work in stages is: the stage, the share of the whole that is done, and figures."""

    def __call__(self, stage: str, fraction: float, metrics: Mapping[str, Any]) -> None: ...


@contextmanager
def transfer_bar(output: Output, label: str) -> Iterator[Callable[[int, int], None]]:
    """For an upload or a download: to be called with the bytes that are done, and all."""
    name = TextColumn("{task.description}")
    columns = (name, BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with _progress(output, *columns) as bars:
        task = bars.add_task(escape(label), total=None)
        yield lambda done, total: bars.update(task, completed=done, total=total)


@contextmanager
def upload_bar(output: Output, label: str) -> Iterator[Callable[[int, int], None]]:
    """The same; whoever interrupts a large one hears that it is not lost."""
    size = 0
    try:
        with transfer_bar(output, label) as show:

            def progress(done: int, total: int) -> None:
                nonlocal size
                size = total
                show(done, total)

            yield progress
    except KeyboardInterrupt:
        if size >= files.LARGE_BYTES:
            output.note(f"{label}: what has arrived is kept; the same command goes on with it")
        raise


@contextmanager
def job_bar(session: Session, label: str) -> Iterator[Callable[[Job], None]]:
    """For a job: to be called with its states."""
    with stage_bar(session, label) as show:

        def tell(job: Job) -> None:
            if not job.ended:
                running = job.status == "running"
                waits = f"waits: {job.error.message}" if job.error else job.status
                show((job.stage if running else None) or waits, job.progress, job.metrics)

        yield tell


@contextmanager
def stage_bar(output: Output, label: str) -> Iterator[Show]:
    """For work in stages."""
    text = TextColumn("{task.description} [dim]{task.fields[stage]}")
    figures = TextColumn("[dim]{task.fields[figures]}")
    columns = (text, BarColumn(), TaskProgressColumn(), TimeElapsedColumn(), figures)
    with _progress(output, *columns) as bars:
        task = bars.add_task(escape(label), total=1.0, stage="", figures="")
        heard = ""

        def show(stage: str, fraction: float, metrics: Mapping[str, Any]) -> None:
            nonlocal heard
            if bars.disable and stage != heard:
                output.note(f"{label}: {stage}")
            heard = stage
            bars.update(task, completed=fraction, stage=escape(stage), figures=_figures(metrics))

        yield show


def _progress(output: Output, *columns: Any) -> Progress:
    out = console(stderr=True)
    hidden = output.as_json or not out.is_terminal
    return Progress(*columns, console=out, disable=hidden, transient=True)


def _figures(metrics: Mapping[str, Any]) -> str:
    found = ((name, metrics.get(name)) for name in LIVE)
    return "  ".join(f"{name} {value:.3f}" for name, value in found if isinstance(value, float))
