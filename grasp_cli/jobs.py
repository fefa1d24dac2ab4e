"""`grasp jobs`, and `grasp watch`, which follows them"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from grasp_cli.arguments import JobId, Limit, Wait
from grasp_cli.session import Session, group, online

if TYPE_CHECKING:
    from rich.table import Table

    from grasp_client import Grasp, Job

jobs = group("The work that is queued, runs, or has ended.")


@jobs.command("list")
@online
def list_jobs(
    session: Session,
    model: Annotated[str | None, typer.Option(help="Only of this model.")] = None,
    target: Annotated[str | None, typer.Option(help="Only of this target.")] = None,
    status: Annotated[
        str | None, typer.Option(help="queued, running, succeeded, rejected, failed, cancelled.")
    ] = None,
    kind: Annotated[str | None, typer.Option(help="fold, dry_run, prepare or validate.")] = None,
    code: Annotated[
        str | None, typer.Option(help="Only what ended with this error, such as worker_lost.")
    ] = None,
    limit: Limit = 50,
) -> None:
    """List jobs, newest first."""
    from grasp_cli.tables import jobs_table, names_of_all

    found = session.grasp.jobs.list(
        model=model, target=target, status=status, kind=kind, code=code, limit=limit
    )
    session.print_result(found, lambda: jobs_table(found, names_of_all(session.grasp)))


@jobs.command("show")
@online
def show_job(session: Session, job: JobId) -> None:
    """Everything about a job."""
    found = session.grasp.jobs.get(job)
    session.print_result(found, lambda: _details(found, session.grasp))


def _details(job: Job, grasp: Grasp) -> Table:
    from grasp_cli.progress import outcome
    from grasp_cli.tables import age, details, status

    return details(
        {
            "job": job.id,
            "kind": job.kind,
            "status": status(job.status),
            "stage": None if job.ended else job.stage,
            "progress": None if job.ended else f"{job.progress:.0%}",
            "outcome": outcome(job, grasp) if job.ended else None,
            "model": job.model,
            "target": job.target,
            "source": job.source,
            "attempts": job.attempts,
            "failures": "\n".join(f["message"] for f in job.failures) or None,
            "made": age(job.created_at),
            "began": job.started_at and age(job.started_at),
            "ended": job.finished_at and age(job.finished_at),
        }
    )


@jobs.command("cancel")
@online
def cancel_job(session: Session, job: JobId) -> None:
    """Stop a job: a queued one at once, a running one within seconds."""
    stopped = session.grasp.jobs.cancel(job)
    session.print_line(stopped, f"{job}: {'stopping' if not stopped.ended else stopped.status}")


@jobs.command("retry")
@online
def retry_job(session: Session, job: JobId, wait: Wait = False) -> None:
    """Run a rejected, failed or cancelled job again."""
    from grasp_cli.progress import watch_jobs

    queued = session.grasp.jobs.retry(job)
    if wait:
        watch_jobs(session, {job: job})
    else:
        session.print_line(queued, f"{job}: {queued.status}")


@jobs.command("retry-failed")
@online
def retry_failed(
    session: Session,
    code: Annotated[str, typer.Argument(help="The code of their error, such as worker_lost.")],
) -> None:
    """Run again all jobs that failed for one reason."""
    again = session.grasp.jobs.retry_failed(code)
    lines = [f"{job.id}: {job.status}" for job in again]
    session.print_line(again, "\n".join([*lines, f"queued again: {len(again)}"]))


@jobs.command("report")
@online
def show_report(session: Session, job: JobId) -> None:
    """Print what a fold or a dry run measured, also where it was rejected: JSON."""
    session.print_json(session.grasp.jobs.report(job), indent=2)


@online
def watch(
    session: Session,
    what: Annotated[
        list[str],
        typer.Argument(help="Ids of jobs; or a model, for all its jobs.", metavar="JOB|MODEL"),
    ],
) -> None:
    """Follow jobs to their end; exits with 0 if all succeed. As JSON, a line for every state."""
    from grasp_cli.progress import watch_jobs

    jobs: dict[str, str] = {}
    for name in what:
        jobs |= {name: name} if name.startswith("job_") else _jobs_of(session, name)
    if not jobs:
        session.print_text("nothing is under way")
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
