"""Work on its way: bars on a terminal, and where nobody looks at one, a line for every stage; jobs
that are waited for, and how they ended."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

import typer
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

from grasp_cli.session import INTERRUPTED, NOT_DONE, Output, Session, console
from grasp_cli.tables import accuracy, candidates_table, change
from grasp_client import files
from grasp_core.report import Figures

if TYPE_CHECKING:
    from grasp_client import Grasp, Job

LIVE = ("loss", "accuracy", "val_accuracy")  # figures of a running fold that are worth a glance
ALLOWED_BY = {  # by the cause of a refusal: what to set; of what is not finite there is nothing
    "norm": "gate.max_norm_ratio=…",
    "floor": "gate.max_drop=1",
    "fall": "gate.max_drop=…",
}
NEVER_ALLOWED = "no setting allows what is not finite: push a checkpoint whose values all are"


class ShowStage(Protocol):
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
    """The same; whoever interrupts a large one reads that it is not lost."""
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
            output.print_note(
                f"{label}: what has arrived is kept; the same command goes on with it"
            )
        raise


@contextmanager
def job_bar(session: Session, label: str) -> Iterator[Callable[[Job], None]]:
    """For a job: to be called with its states."""
    with stage_bar(session, label) as show:

        def show_job(job: Job) -> None:
            if not job.ended:
                running = job.status == "running"
                waits = f"waits: {job.error.message}" if job.error else job.status
                show((job.stage if running else None) or waits, job.progress, job.metrics)

        yield show_job


@contextmanager
def stage_bar(output: Output, label: str) -> Iterator[ShowStage]:
    """For work in stages."""
    text = TextColumn("{task.description} [dim]{task.fields[stage]}")
    figures = TextColumn("[dim]{task.fields[figures]}")
    columns = (text, BarColumn(), TaskProgressColumn(), TimeElapsedColumn(), figures)
    with _progress(output, *columns) as bars:
        task = bars.add_task(escape(label), total=1.0, stage="", figures="")
        last = ""

        def show(stage: str, fraction: float, metrics: Mapping[str, Any]) -> None:
            nonlocal last
            candidate = metrics.get("candidate")
            where = f"{candidate}: {stage}" if candidate else stage
            if bars.disable and where != last:
                output.print_note(f"{label}: {where}")
            last = where
            where += _trial(stage, metrics)
            bars.update(task, completed=fraction, stage=escape(where), figures=_figures(metrics))

        yield show


def _progress(output: Output, *columns: Any) -> Progress:
    out = console(stderr=True)
    hidden = output.as_json or not out.is_terminal
    return Progress(*columns, console=out, disable=hidden, transient=True)


def _trial(stage: str, metrics: Mapping[str, Any]) -> str:
    """Which of the learning rates that are tried is being tried."""
    if stage != "refine" or "trials" not in metrics:
        return ""
    return f", learning rate {metrics['trial']} of {metrics['trials']}"


def _figures(metrics: Mapping[str, Any]) -> str:
    found = ((name, metrics.get(name)) for name in LIVE)
    return "  ".join(f"{name} {value:.3f}" for name, value in found if isinstance(value, float))


def watch_jobs(
    session: Session,
    jobs: Mapping[str, str],
    *,
    every_state: bool = False,
    may_be_refused: bool = True,
) -> None:
    """Wait for jobs, ids with what to call them, one after the other.

    Ends the command with NOT_DONE if one of them did not succeed, or was a dry run of what would be
    refused and may not be. As JSON, a line for each, or for
    each of their states.
    """
    ended = []
    for job_id, label in jobs.items():
        ended.append(wait_for(session, job_id, label, every_state=every_state))
        if session.as_json and not every_state:
            session.print_json(ended[-1])
    require_success(*ended)
    if not may_be_refused and any(job.verdict and not job.verdict.accepted for job in ended):
        raise typer.Exit(NOT_DONE)


def wait_for(session: Session, job_id: str, label: str, *, every_state: bool = False) -> Job:
    """The job in its last state, after it was shown on its way there."""
    try:
        with job_bar(session, label) as show:
            for job in session.grasp.jobs.follow(job_id):
                show(job)
                if session.as_json and every_state:
                    session.print_json(job)
    except KeyboardInterrupt:
        session.print_note(f"{label} goes on: `grasp watch {job_id}` looks at it again")
        raise typer.Exit(INTERRUPTED) from None
    session.print_text(f"{label}: {outcome(job, session.grasp)}")
    candidates = Figures.read(job.metrics).candidates
    if job.kind == "dry_run" and len(candidates) > 1:
        session.print_table(candidates_table(candidates))
    return job


def require_success(*jobs: Job) -> None:
    if not all(job.succeeded for job in jobs):
        raise typer.Exit(NOT_DONE)


def outcome(job: Job, grasp: Grasp) -> str:
    """How it ended, in a line, and what to do about it in another."""
    if job.succeeded:
        made = f"version {job.version}" if job.version else _verdict(job)
        measured = ", ".join((made, *_measured(job.metrics)))
        sentence = Figures.read(job.metrics).sentence
        return measured + (f"\n  {sentence}" if sentence else "")
    if job.error is None:
        return job.status
    hint = _advise(job, grasp) if job.error.code == "gate_rejected" else job.error.hint
    return f"{job.status}: {job.error.message}" + (f"\n  {hint}" if hint else "")


def _advise(job: Job, grasp: Grasp) -> str:
    """What somebody can type who wants a refused source nevertheless."""
    cause = job.verdict.cause if job.verdict else None
    if cause == "not_finite":
        return NEVER_ALLOWED
    setting = ALLOWED_BY.get(cause or "", "gate.…")
    stored = job.source is not None and grasp.sources.get(job.source).stored
    steps = [
        f"`grasp models update {job.model} --set {setting}`",
        *([] if stored else [f"`grasp push {job.model} FILE`"]),
    ]
    return (
        f"`grasp jobs report {job.id}` has the figures; to allow it, {', '.join(steps)},"
        f" then `grasp jobs retry {job.id}`"
    )


def _verdict(job: Job) -> str:
    """What would have become of it; of jobs that fold nothing, that they are done."""
    verdict = job.verdict
    if verdict is None:
        return "done"
    if verdict.outcome == "kept":
        return "would leave the weights as they are"
    if verdict.accepted:
        return "would be accepted"
    counts = verdict.change
    if counts is None:
        return f"would be refused: {verdict.reason}"
    return f"would be refused: {counts.lost} of {counts.count} lost, {counts.gained} gained"


def _measured(metrics: Mapping[str, Any]) -> list[str]:
    measured, alone = change(metrics, "val"), accuracy(metrics, "val", "source")
    share = metrics.get("transferred_share")
    return [
        *([f"validation accuracy {measured}"] if measured != "-" else []),
        *([f"the source as it came {alone}"] if alone != "-" else []),
        *([f"{share:.0%} from it"] if share is not None else []),
    ]
