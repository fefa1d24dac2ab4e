"""Sessions on SQLite or PostgreSQL, and the migrations that bring either up to date."""

import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import Any

from sqlalchemy import Connection, Engine, ExceptionContext, create_engine, event, inspect, text
from sqlalchemy.exc import DatabaseError, DBAPIError, OperationalError
from sqlalchemy.orm import Session, sessionmaker

from registry.errors import NotReady
from registry.jobs.bell import Bell, rings_of, silence

MIGRATIONS = Path(__file__).parent.parent / "migrations"
TIMEOUT_MS = 30_000  # for any statement; a lock that takes longer is an error, not a wait
# A process that is frozen in the midst of a transaction keeps its locks no longer than this.
LET_GO = text("SET LOCAL idle_in_transaction_session_timeout = 30000")
BUSY_SECONDS = 30  # how long a writer waits for SQLite's single write lock
BUSY_STEP_S = 0.05  # between two tries, where SQLite itself does not wait
REVISION = text("SELECT version_num FROM alembic_version")
WRITE_NOTHING = text("UPDATE alembic_version SET version_num = version_num WHERE 1 = 0")
READ_ONLY_POSTGRES = "25006"  # read_only_sql_transaction
DISK_FULL_POSTGRES = "53100"  # disk_full
READ_ONLY_HINT = (
    "let whoever runs this service write to it: the file, its folder and its disk, or PostgreSQL's"
    " primary instead of a replica; then work goes on by itself"
)
AWAY_HINT = "it is waited for; perhaps a full disk, or a server that is gone"
NO_TABLES_YET = "the tables of the database are not of this release yet: run `grasp admin migrate`"
MIGRATE_HINT = "once per release, before anything else of it starts"
# What libpq says of credentials; it passes on no code for them.
CREDENTIALS = ("authentication failed", "no password supplied", "no pg_hba.conf entry")
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 30.0  # between two looks at a database that is away


class Database:
    """Opens transactions; `write` commits at the end of its block, `read` never.

    After a commit it rings for the queues that got work in it.
    """

    def __init__(self, url: str, bell: Bell = silence, *, pool: int = 5) -> None:
        self.url = url
        self._bell = bell
        self.engine = _connect(url, pool)
        self._readers = sessionmaker(self.engine, expire_on_commit=False)
        self._writers = sessionmaker(
            self.engine.execution_options(write=True), expire_on_commit=False
        )

    @contextmanager
    def read(self) -> Iterator[Session]:
        with self._readers() as session:
            yield session

    @contextmanager
    def write(self) -> Iterator[Session]:
        with self._writers.begin() as session:
            if not self._is_embedded:
                session.execute(LET_GO)
            yield session
        for ring in rings_of(session):
            self._bell(ring)

    def prepare(self) -> None:
        """Migrate a database that is this home's own; of a server, see that somebody has.

        Raises NotReady.
        """
        try:
            if self._is_embedded:
                self.migrate()
            elif self._revision() < newest_revision():
                raise NotReady(NO_TABLES_YET, hint=MIGRATE_HINT)
        except DatabaseError as error:
            raise self._not_ready(error) from error

    def migrate(self) -> None:
        """Bring the schema up to date. Alembic takes a while to import: only where it has work.

        Raises NotReady where the database does not answer.
        """
        try:
            if self._revision() == newest_revision():
                return
        except OperationalError as error:
            raise self._not_ready(error) from error
        from alembic import command

        command.upgrade(self._alembic(), "head")

    def downgrade(self, revision: str = "base") -> None:
        from alembic import command

        command.downgrade(self._alembic(), revision)

    def check(self) -> None:
        """Raise unless the database answers, has tables, and can be written."""
        with self.engine.execution_options(write=True).connect() as connection:
            connection.execute(WRITE_NOTHING)

    def close(self) -> None:
        self.engine.dispose()

    @property
    def _is_embedded(self) -> bool:
        return self.url.startswith("sqlite")

    def _revision(self) -> str:
        """Of the schema; empty where there are no tables."""
        with self.engine.connect() as connection:
            if not inspect(connection).has_table("alembic_version"):
                return ""
            return str(connection.scalar(REVISION) or "")

    def _not_ready(self, error: DatabaseError) -> NotReady:
        """Its message is for everybody; the hint, with names and addresses, for operators."""
        reason = str(error.orig).strip()
        hopeless = self._is_embedded or any(words in reason for words in CREDENTIALS)
        return NotReady("the database cannot be used", hint=reason, hopeless=hopeless)

    def _alembic(self) -> Any:
        from alembic.config import Config

        config = Config()
        config.set_main_option("script_location", str(MIGRATIONS))
        config.attributes["engine"] = self.engine
        return config


def newest_revision() -> str:
    """Of the schema that this release knows."""
    return max(path.name.partition("_")[0] for path in MIGRATIONS.glob("versions/[0-9]*.py"))


def wait_until_ready(
    look: Callable[[], None],
    seconds: float,
    tell: Callable[[NotReady], None],
    stopping: Event | None = None,
) -> None:
    """Look again and again, ever more rarely, until `look` raises no NotReady.

    It is raised after so many seconds, at once if it is hopeless, and when `stopping` is set.
    """
    stopping = stopping or Event()
    deadline, pause = time.monotonic() + seconds, FIRST_PAUSE_S
    while True:
        try:
            return look()
        except NotReady as error:
            left = deadline - time.monotonic()
            if error.hopeless or left <= 0:
                raise
            tell(error)
            if stopping.wait(min(pause, left)):
                raise
        pause = min(2 * pause, LONGEST_PAUSE_S)


def explain(error: DBAPIError) -> tuple[str, str]:
    """What is wrong with a database that could not do what it was asked to; and what to do."""
    if is_read_only(error):
        return "the database cannot be written", READ_ONLY_HINT
    return "the database does not answer", AWAY_HINT


def is_full(error: DBAPIError) -> bool:
    if getattr(error.orig, "sqlstate", None) == DISK_FULL_POSTGRES:
        return True
    return getattr(error.orig, "sqlite_errorname", None) == "SQLITE_FULL"


def is_read_only(error: DBAPIError) -> bool:
    if getattr(error.orig, "sqlstate", None) == READ_ONLY_POSTGRES:
        return True
    return str(getattr(error.orig, "sqlite_errorname", "")).startswith("SQLITE_READONLY")


def _connect(url: str, pool: int) -> Engine:
    engine = _create_engine(url, pool)
    event.listen(engine, "handle_error", _drop_read_only)
    return engine


def _drop_read_only(context: ExceptionContext) -> None:
    """Whoever connected when nothing could be written could not write later, either.

    Nor could others of the process, on SQLite, while one such connection is left.
    """
    error = context.sqlalchemy_exception
    if isinstance(error, DBAPIError) and is_read_only(error):
        context.is_disconnect = True
        if context.execution_context is not None:
            context.execution_context.cursor.close()  # or it keeps its connection open
        if context.engine is not None:
            context.engine.dispose()


def _create_engine(url: str, pool: int) -> Engine:
    if not url.startswith("sqlite"):
        return create_engine(
            url,
            pool_pre_ping=True,  # a server that was restarted is noticed before it is used
            pool_size=pool,
            max_overflow=pool,
            connect_args={"connect_timeout": 5, "options": f"-c statement_timeout={TIMEOUT_MS}"},
        )
    engine = create_engine(url, connect_args={"timeout": BUSY_SECONDS})
    if engine.url.database:
        Path(engine.url.database).parent.mkdir(parents=True, exist_ok=True)
    event.listen(engine, "connect", _set_up_sqlite)
    event.listen(engine, "begin", _begin_sqlite)
    return engine


def _set_up_sqlite(connection: Any, _record: object) -> None:
    connection.isolation_level = None  # we begin transactions ourselves, see _begin_sqlite
    _write_ahead(connection)
    for pragma in ("synchronous = FULL", "foreign_keys = ON"):
        connection.execute(f"PRAGMA {pragma}")


def _write_ahead(connection: Any) -> None:
    """SQLite does not wait for others here, who may be making the same new file."""
    until = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > until:
                raise
            time.sleep(BUSY_STEP_S)


def _begin_sqlite(connection: Connection) -> None:
    # A writer takes the lock at once: one that began as a reader cannot wait for it later.
    write = connection.get_execution_options().get("write")
    connection.exec_driver_sql("BEGIN IMMEDIATE" if write else "BEGIN")
