"""The commands that run the service, beside its database; each imports what it needs.

The service is no part of what is installed with the command line: it runs from a checkout or from
its images. Elsewhere these commands say so.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from enum import StrEnum
from functools import wraps
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, ParamSpec

import typer
from pydantic import ValidationError

from grasp_cli.session import AsJson, Output

if TYPE_CHECKING:
    from registry.database import Database
    from registry.process.settings import Settings
    from registry.tables import ApiKey

P = ParamSpec("P")
ROOMS = ("app", "registry", "worker")
NOT_HERE = """\
the service is not installed here, only its client
  run it from a checkout of its repository, with `make serve`, or from its images: docs/deploy.md"""
INCOMPLETE = """\
the service needs {module}, which is not installed here
  in a checkout, `make serve` installs all it needs, as does `pip install '.[server,worker,s3]'`"""
RETRIED_AT_ONCE = 1000  # jobs in one transaction, which others wait for

admin = typer.Typer(help="Look after the service.", no_args_is_help=True)
keys = typer.Typer(help="API keys.", no_args_is_help=True)
jobs = typer.Typer(help="Jobs of all owners.", no_args_is_help=True)
admin.add_typer(keys, name="keys")
admin.add_typer(jobs, name="jobs")


class ScopeName(StrEnum):
    read = "read"
    write = "write"
    admin = "admin"


def of_service(command: Callable[P, None]) -> Callable[P, None]:
    """A command that says how to get the service where it is not installed."""

    @wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            command(*args, **kwargs)
        except ModuleNotFoundError as error:
            module = str(error.name).partition(".")[0]
            here = find_spec("registry") is not None and module not in ROOMS
            fail(INCOMPLETE.format(module=module) if here else NOT_HERE)

    return run


@of_service
def serve(
    port: Annotated[
        int | None, typer.Option(help="GRASP_PORT; 0 takes a free one.", min=0, max=65535)
    ] = None,
    host: Annotated[
        str | None, typer.Option(help="GRASP_HOST; any but loopback needs API keys.")
    ] = None,
    home: Annotated[
        Path | None, typer.Option(help="GRASP_HOME: the folder of all that is kept.")
    ] = None,
) -> None:
    """Run the API and its workers, by default on 127.0.0.1:8000 and in ./.grasp.

    Commands and clients that are started in the same directory, or with the same GRASP_HOME, find
    it there by themselves. Other settings are GRASP_ variables; an option wins over its variable.
    """
    from app.serve import serve as run
    from app.startup import Refused

    options = {"GRASP_PORT": port, "GRASP_HOST": host, "GRASP_HOME": home}
    os.environ |= {  # of the workers, too
        name: str(value) for name, value in options.items() if value is not None
    }
    try:
        run(read_settings())
    except Refused as refusal:
        fail(str(refusal))


@of_service
def worker(
    devices: Annotated[
        str | None,
        typer.Option(help="auto: a worker per visible GPU; or a list such as 0,1; or cpu."),
    ] = None,
    concurrency: Annotated[int, typer.Option(help="Workers per device.", min=1)] = 1,
) -> None:
    """Run a worker on this machine; with --devices one for each, kept running."""
    from registry.process.home import open_home
    from worker.devices import share_out
    from worker.main import main, run_many

    settings = read_settings()
    with home_errors_in_words():
        open_home(settings)
    if devices is None and concurrency == 1:
        main()
    else:
        run_many(share_out(devices or "auto", concurrency, settings))


@admin.command()
@of_service
def migrate() -> None:
    """Bring the database up to date: once before every upgrade, where it is a server.

    One that is away is waited for, as long as GRASP_DATABASE_WAIT_SECONDS says.
    """
    from registry.database import wait_until_ready

    seconds = read_settings().database_wait_seconds
    with opened_database() as database:
        wait_until_ready(
            database.migrate, seconds, lambda error: typer.echo(f"{error}: waiting", err=True)
        )


@keys.command("create")
@of_service
def create_key(
    owner: Annotated[str, typer.Option(help="Whose things the key opens.")],
    scope: Annotated[ScopeName, typer.Option(help="What may be done with it.")],
    expires: Annotated[
        int | None, typer.Option(help="Days until it expires; without, never.", min=1)
    ] = None,
) -> None:
    """Make a key and show it: this once, it is stored as a hash."""
    from registry.keys import create_key as create
    from registry.tables import utc_now

    until = utc_now() + timedelta(days=expires) if expires else None
    with opened_database() as database, database.write() as session:
        key, secret = create(session, owner, scope.value, until)
        typer.echo(f"{key.id} for {key.owner}, scope {key.scope}", err=True)
    typer.echo(secret)


@keys.command("list")
@of_service
def list_keys(as_json: AsJson = False) -> None:
    """Show all keys, without their secrets."""
    from registry.keys import list_keys as listed

    with opened_database() as database, database.read() as session:
        found = listed(session)
        if as_json:
            Output(as_json).print_json([_describe_key(key) for key in found])
            return
        for key in found:
            state = "revoked" if key.revoked_at else "valid"
            used = f"{key.last_used_at:%Y-%m-%d %H:%M}" if key.last_used_at else "never"
            until = f"{key.expires_at:%Y-%m-%d}" if key.expires_at else "never"
            typer.echo(
                f"{key.id}  {key.owner}  {key.scope}  {state}  expires {until}  last used {used}"
            )


def _describe_key(key: "ApiKey") -> dict[str, Any]:
    times = {name: getattr(key, name) for name in ("created_at", "last_used_at", "expires_at")}
    return {
        "id": key.id,
        "owner": key.owner,
        "scope": key.scope,
        "revoked": key.revoked_at is not None,
        **{name: moment and moment.isoformat() for name, moment in times.items()},
    }


@keys.command("revoke")
@of_service
def revoke_key(key: Annotated[str, typer.Argument(help="Its id, key_…")]) -> None:
    """Make a key useless at once."""
    from registry.errors import NotFound
    from registry.keys import revoke_key as revoke
    from registry.tables import utc_now

    try:
        with opened_database() as database, database.write() as session:
            revoke(session, key, utc_now())
    except NotFound as error:
        fail(str(error))
    typer.echo(f"{key} is revoked", err=True)


@jobs.command("list")
@of_service
def list_jobs(
    ended: Annotated[bool, typer.Option("--ended", help="Also those that have ended.")] = False,
    limit: Annotated[int, typer.Option(help="At most so many.", min=1)] = 100,
) -> None:
    """Show what waits and what runs, newest first."""
    from registry.jobs.queue import is_active
    from registry.lookup import list_page
    from registry.tables import Job

    conditions = [] if ended else [is_active(Job)]
    with opened_database() as database, database.read() as session:
        page = list_page(session, Job, None, conditions, limit=limit, cursor=None)
        for job in page.items:
            about = job.model_id or job.target_id
            since = f"{job.started_at or job.created_at:%Y-%m-%d %H:%M}"
            typer.echo(f"{job.id}  {job.owner}  {job.kind}  {job.status}  {about}  {since}")
    if page.next_cursor:
        typer.echo("there are more", err=True)


@jobs.command("cancel")
@of_service
def cancel_job(job: Annotated[str, typer.Argument(help="Its id, job_…")]) -> None:
    """Stop a job, whoever queued it."""
    from registry.errors import Conflict, NotFound
    from registry.jobs.queue import cancel
    from registry.lookup import find
    from registry.tables import Job, utc_now

    try:
        with opened_database() as database, database.write() as session:
            status = cancel(session, find(session, Job, None, job).id, utc_now())
    except (Conflict, NotFound) as error:
        fail(error.message)
    typer.echo(f"{job} is {'being stopped' if status == 'running' else status}", err=True)


@admin.command("scrub")
@of_service
def scrub_blobs() -> None:
    """Read every stored blob and name those that are damaged or missing; 1 if there are any."""
    from registry.blobs import open_store
    from registry.blobs.base import StorageError
    from registry.blobs.damage import scrub

    bad = 0
    with opened_database() as database:
        try:
            for report in scrub(database, open_store(read_settings())):
                if report.problem:
                    bad += 1
                    typer.echo(
                        f"{report.problem} {report.sha256} {', '.join(report.uses)}".rstrip()
                    )
                typer.echo(f"\r{report.number} of {report.total} blobs", err=True, nl=False)
        except StorageError as error:
            fail(str(error))
    typer.echo(f"\n{bad} damaged or missing" if bad else "\nall are as they should be", err=True)
    raise typer.Exit(1 if bad else 0)


@admin.command("retry")
@of_service
def retry_failed(
    code: Annotated[str, typer.Argument(help="The code of their error, such as worker_lost.")],
) -> None:
    """Run again all jobs of all owners that failed for one reason, and name them."""
    from registry.jobs import queue

    with opened_database() as database, database.write() as session:
        again = queue.retry_failed(session, code, owner=None, limit=RETRIED_AT_ONCE)
    for job in again:
        typer.echo(f"{job.id}  {job.owner}  {job.kind}  {job.model_id or job.target_id}")
    more = "; there may be more: run this again" if len(again) == RETRIED_AT_ONCE else ""
    typer.echo(f"queued again: {len(again)}{more}", err=True)


@contextmanager
def opened_database() -> Iterator["Database"]:
    """Closed again in the end. What is wrong with it is said in a line."""
    from sqlalchemy.exc import DBAPIError, ProgrammingError

    from registry.database import Database
    from registry.errors import NotReady
    from registry.process.home import open_home

    settings = read_settings()
    with home_errors_in_words():
        open_home(settings)
        database = Database(settings.database)
    try:
        if settings.embedded:
            database.migrate()
        yield database
    except NotReady as error:
        fail(str(error))
    except ProgrammingError as error:
        reason = str(error.orig).partition("\n")[0]
        fail(f"the tables are not of this release ({reason}): run `grasp admin migrate`")
    except DBAPIError as error:
        fail(f"the database does not answer: {error.orig}")
    finally:
        database.close()


@contextmanager
def home_errors_in_words() -> Iterator[None]:
    """That a folder cannot be used, in a line."""
    try:
        yield
    except OSError as error:
        fail(f"{error.filename}: {error.strerror}: GRASP_HOME chooses another folder")


def read_settings() -> "Settings":
    from registry.process.settings import Settings

    problems: list[str] = []
    try:
        return Settings()
    except ValidationError as error:
        for problem in error.errors():
            names = [f"GRASP_{name}: ".upper() for name in problem["loc"][:1]]  # none: of several
            problems.append("".join([*names, problem["msg"]]))
        fail("\n".join(problems))


def fail(message: str) -> NoReturn:
    typer.echo(f"grasp: {message}", err=True)
    raise typer.Exit(2)
