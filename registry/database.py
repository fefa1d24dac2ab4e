"""Sessions on SQLite or PostgreSQL, and the migrations that bring either up to date."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, ExceptionContext, create_engine, event, text
from sqlalchemy.exc import DBAPIError, OperationalError, ProgrammingError
from sqlalchemy.orm import Session, sessionmaker

from registry.jobs.bell import Bell, rings_of, silence

MIGRATIONS = Path(__file__).parent.parent / "migrations"
TIMEOUT_MS = 30_000  # for any statement; a lock that takes longer is an error, not a wait
# A process that is frozen in the midst of a transaction keeps its locks no longer than this.
LET_GO = text("SET LOCAL idle_in_transaction_session_timeout = 30000")
BUSY_SECONDS = 30  # how long a writer waits for SQLite's single write lock
REVISION = text("SELECT version_num FROM alembic_version")
WRITE_NOTHING = text("UPDATE alembic_version SET version_num = version_num WHERE 1 = 0")
READ_ONLY_POSTGRES = "25006"  # read_only_sql_transaction
READ_ONLY_HINT = (
    "let whoever runs this service write to it: the file, its folder and its disk, or PostgreSQL's"
    " primary instead of a replica; then work goes on by itself"
)
AWAY_HINT = "it is waited for; perhaps a full disk, or a server that is gone"


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
            if not self.url.startswith("sqlite"):
                session.execute(LET_GO)
            yield session
        for ring in rings_of(session):
            self._bell(ring)

    def migrate(self) -> None:
        """Bring the schema up to date. Alembic takes a while to import: only where it has work."""
        if self._is_current():
            return
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

    def _is_current(self) -> bool:
        newest = max(path.name.partition("_")[0] for path in MIGRATIONS.glob("versions/[0-9]*.py"))
        try:
            with self.engine.connect() as connection:
                found = connection.scalar(REVISION)
                return bool(found == newest)
        except (OperationalError, ProgrammingError):  # no such table; or no database, which
            return False  # the migration will then say

    def _alembic(self) -> Any:
        from alembic.config import Config

        config = Config()
        config.set_main_option("script_location", str(MIGRATIONS))
        config.attributes["engine"] = self.engine
        return config


def explain(error: DBAPIError) -> tuple[str, str]:
    """What is wrong with a database that could not do what it was asked to; and what to do."""
    if is_read_only(error):
        return "the database cannot be written", READ_ONLY_HINT
    return "the database does not answer", AWAY_HINT


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
    for pragma in ("journal_mode = WAL", "synchronous = FULL", "foreign_keys = ON"):
        connection.execute(f"PRAGMA {pragma}")


def _begin_sqlite(connection: Connection) -> None:
    # A writer takes the lock at once: one that began as a reader cannot wait for it later.
    write = connection.get_execution_options().get("write")
    connection.exec_driver_sql("BEGIN IMMEDIATE" if write else "BEGIN")
