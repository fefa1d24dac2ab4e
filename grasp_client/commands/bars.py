"""Progress on a terminal: bars; and where nobody looks at one, a line for every stage."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

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

from grasp_client.commands.session import Session, console

if TYPE_CHECKING:
    from grasp_client import Job

LIVE = ("loss", "accuracy", "val_accuracy")  # figures of a running fold that are worth a glance


@contextmanager
def transfer_bar(session: Session, label: str) -> Iterator[Callable[[int, int], None]]:
    """For an upload or a download: to be called with the bytes that are done, and all."""
    name = TextColumn("{task.description}")
    columns = (name, BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with _progress(session, *columns) as bars:
        task = bars.add_task(escape(label), total=None)
        yield lambda done, total: bars.update(task, completed=done, total=total)


@contextmanager
def job_bar(session: Session, label: str) -> Iterator[Callable[[Job], None]]:
    """For a job: to be called with its states."""
    text = TextColumn("{task.description} [dim]{task.fields[stage]}")
    figures = TextColumn("[dim]{task.fields[figures]}")
    columns = (text, BarColumn(), TaskProgressColumn(), TimeElapsedColumn(), figures)
    with _progress(session, *columns) as bars:
        task = bars.add_task(escape(label), total=1.0, stage="", figures="")
        heard = ""

        def tell(job: Job) -> None:
            nonlocal heard
            stage = (job.stage or job.status) if job.status == "running" else job.status
            if bars.disable and stage != heard and not job.ended:
                session.note(f"{label}: {stage}")
            heard = stage
            bars.update(task, completed=job.progress, stage=stage, figures=_figures(job.metrics))

        yield tell


def _progress(session: Session, *columns: Any) -> Progress:
    out = console(stderr=True)
    hidden = session.as_json or not out.is_terminal
    return Progress(*columns, console=out, disable=hidden, transient=True)


def _figures(metrics: dict[str, Any]) -> str:
    found = ((name, metrics.get(name)) for name in LIVE)
    return "  ".join(f"{name} {value:.3f}" for name, value in found if isinstance(value, float))
