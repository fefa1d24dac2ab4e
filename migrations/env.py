"""How Alembic reaches the database: with the engine it is handed, or by the settings."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

from alembic import context
from sqlalchemy import Connection, Engine, text

from registry.database import Database
from registry.process.settings import Settings
from registry.tables import Base, UtcDateTime

LOCK = 0x67726173_70  # "grasp": any number that nobody else takes for an advisory lock


def render_type(kind: str, item: object, _context: object) -> str | Literal[False]:
    """Migrations stand by themselves: they name no types of ours."""
    if kind == "type" and isinstance(item, UtcDateTime):
        return "sa.DateTime(timezone=True)"
    return False


@contextmanager
def alone(engine: Engine) -> Iterator[Connection]:
    """One transaction for all migrations, which other processes wait for, as long as it takes."""
    with engine.execution_options(write=True).connect() as connection:
        _check_foreign_keys(connection, False)  # a table that is copied is dropped, with cascades
        try:
            with connection.begin():
                if engine.dialect.name == "postgresql":
                    connection.execute(text("SET LOCAL statement_timeout = 0"))
                    connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": LOCK})
                yield connection
        finally:
            _check_foreign_keys(connection, True)


def _check_foreign_keys(connection: Connection, wanted: bool) -> None:
    """SQLite's switch, which does nothing within a transaction; others have none."""
    if connection.dialect.name == "sqlite":
        raw = connection.connection.cursor()
        raw.execute(f"PRAGMA foreign_keys = {'ON' if wanted else 'OFF'}")
        raw.close()


def run() -> None:
    engine = context.config.attributes.get("engine") or Database(Settings().database).engine
    with alone(engine) as connection:
        context.configure(
            connection=connection,
            target_metadata=Base.metadata,
            render_as_batch=True,  # SQLite alters a table by copying it
            compare_server_default=True,
            render_item=render_type,
        )
        with context.begin_transaction():
            context.run_migrations()


run()
