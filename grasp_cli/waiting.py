"""Waiting for jobs: what is seen of them meanwhile, and how they ended."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import typer

from grasp_cli.session import NOT_DONE, Session

if TYPE_CHECKING:
    from grasp_client import Job

INTERRUPTED = 130  # 128 + SIGINT, as shells have it
GATE_HINT = (
    "`grasp jobs report {job.id}` has the figures; to allow it, widen the gate with"
    " `grasp models update {job.model} --set gate.…`, push the file again, and"
    " `grasp jobs retry {job.id}`"
)


def watch_jobs(session: Session, jobs: Mapping[str, str], *, every_state: bool = False) -> None:
    """Wait for jobs, ids with what to call them, one after the other.

    Ends the command with NOT_DONE if one of them did not succeed. As JSON, a line for each, or for
    each of their states.
    """
    ended = []
    for job_id, label in jobs.items():
        ended.append(wait_for(session, job_id, label, every_state=every_state))
        if session.as_json and not every_state:
            session.give_json(ended[-1])
    require_success(*ended)


def wait_for(session: Session, job_id: str, label: str, *, every_state: bool = False) -> Job:
    """The job in its last state, after it was shown on its way there."""
    from grasp_cli.bars import job_bar

    try:
        with job_bar(session, label) as show:
            for job in session.grasp.jobs.follow(job_id):
                show(job)
                if session.as_json and every_state:
                    session.give_json(job)
    except KeyboardInterrupt:
        session.note(f"{label} goes on: `grasp watch {job_id}` looks at it again")
        raise typer.Exit(INTERRUPTED) from None
    session.say(f"{label}: {outcome(job)}")
    return job


def require_success(*jobs: Job) -> None:
    if not all(job.succeeded for job in jobs):
        raise typer.Exit(NOT_DONE)


def outcome(job: Job) -> str:
    """How it ended, in a line, and what to do about it in another."""
    if job.succeeded:
        made = f"version {job.version}" if job.version else "done"
        return ", ".join((made, *_figures(job.metrics)))
    if job.error is None:
        return job.status
    hint = GATE_HINT.format(job=job) if job.error.code == "gate_rejected" else job.error.hint
    return f"{job.status}: {job.error.message}" + (f"\n  {hint}" if hint else "")


def _figures(metrics: Mapping[str, Any]) -> list[str]:
    from grasp_cli.tables import change

    measured = change(metrics, "val")
    found = [f"validation accuracy {measured}"] if measured != "-" else []
    share = metrics.get("transferred_share")
    return [*found, f"{share:.0%} transferred"] if share is not None else found
