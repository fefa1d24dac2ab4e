"""The migrations build what the tables say, there and back, whoever runs them."""

import multiprocessing
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from multiprocessing.synchronize import Barrier
from pathlib import Path
from threading import Timer
from typing import Any

import psutil
import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Inspector, event, inspect, select, text
from sqlalchemy.exc import DBAPIError, OperationalError, ProgrammingError

from grasp_core.parameters import parse_config
from registry import database as database_module
from registry.database import MIGRATIONS, Database, explain, is_read_only
from registry.tables import Base, Model, ModelMethod, Source, Version
from tests.configs import grasp_alone
from tests.registry.conftest import World, blob

# What a later change of a table does on SQLite: copy it, drop it, rename the copy.
NEWEST = max(path.name.partition("_")[0] for path in MIGRATIONS.glob("versions/[0-9]*.py"))
COPY_TABLES = f'''
"""Copy the models."""

from alembic import op

revision = "9999"
down_revision = "{NEWEST}"


def upgrade() -> None:
    with op.batch_alter_table("models", recreate="always") as batch:
        batch.create_index("ix_models_name", ["name"])
'''


@pytest.fixture
def empty(empty_url: str) -> Iterator[Database]:
    database = Database(empty_url)
    yield database
    database.close()


def by_name(rows: list[Any]) -> list[Any]:
    return sorted(({k: _told(v) for k, v in row.items()} for row in rows), key=repr)


def _told(value: Any) -> str:
    """Conditions of an index are objects, which print their address before their words."""
    return str({k: str(v) for k, v in value.items()} if isinstance(value, dict) else value)


def described(inspector: Inspector) -> dict[str, dict[str, Any]]:
    """Every table, as the database itself describes it."""
    asked: dict[str, Callable[[str], Any]] = {
        "columns": inspector.get_columns,
        "foreign keys": inspector.get_foreign_keys,
        "indexes": inspector.get_indexes,
        "unique": inspector.get_unique_constraints,
        "checks": inspector.get_check_constraints,
    }
    return {
        table: {kind: by_name(ask(table)) for kind, ask in asked.items()}
        | {"primary key": inspector.get_pk_constraint(table)}
        for table in inspector.get_table_names()
        if table != "alembic_version"
    }


def test_alembic_finds_nothing_to_change(database: Database) -> None:
    with database.engine.connect() as connection:
        context = MigrationContext.configure(
            connection, opts={"compare_type": True, "compare_server_default": True}
        )

        assert compare_metadata(context, Base.metadata) == []


def test_migrations_build_what_the_tables_say(empty: Database) -> None:
    empty.migrate()
    migrated = described(inspect(empty.engine))
    empty.downgrade()

    Base.metadata.create_all(empty.engine)

    assert migrated == described(inspect(empty.engine))
    assert set(migrated) == set(Base.metadata.tables)
    assert migrated["jobs"]["checks"]


def test_down_and_up_again(empty: Database) -> None:
    empty.migrate()
    before = described(inspect(empty.engine))

    empty.downgrade()
    assert inspect(empty.engine).get_table_names() == ["alembic_version"]

    empty.migrate()
    assert described(inspect(empty.engine)) == before


def test_bases_and_states_become_files_and_are_columns_again(world: World) -> None:
    with_base = world.ready_model(files={"base": blob("ancestor")}, keep_versions=2)
    for content in "abc":
        world.fold(with_base, content, state=f"after {content}")
    world.fold(world.ready_model("other"), "d")
    with world.database.write() as session:
        session.execute(text("""UPDATE jobs SET report = '{"config": {"method": "grasp"}}'"""))
        session.execute(text("UPDATE sources SET content = NULL"))
    before = world.rows()

    world.database.downgrade("0010")
    with world.database.read() as session:
        columns = session.execute(text("SELECT base_sha256, base_size FROM models ORDER BY name"))
        assert columns.all() == [tuple(blob("ancestor")), (None, None)]
        states = session.execute(
            text("SELECT state_sha256, state_size FROM versions ORDER BY model_id, number")
        )
        assert sorted(states.all(), key=str) == sorted(
            [tuple(blob("after b")), tuple(blob("after c")), (None, None), (None, None)], key=str
        )
    world.database.migrate()

    assert world.rows() == before


def test_sources_that_were_taken_twice_stay_two(world: World) -> None:
    model = world.ready_model()
    sources = {world.offer(model, name)[0].id for name in "ab"}

    world.database.downgrade("0012")
    world.database.migrate()

    with world.database.write() as session:
        assert dict(session.execute(select(Source.id, Source.content)).all()) == dict.fromkeys(
            sources
        )
        session.execute(text("UPDATE sources SET content = 'the same'"))


def test_methods_of_candidates_are_found_by_what_models_were_made_with(world: World) -> None:
    several = parse_config({"candidates": ["keep", {"method": "grasp", "tau": 0.2}]})
    expected = {
        world.ready_model("one", merge=grasp_alone()).id: ["grasp"],
        world.ready_model("mean", merge=parse_config({"method": "mean"})).id: ["mean"],
        world.ready_model("several", merge=several).id: ["grasp", "keep"],
    }
    silent = world.ready_model("silent").id
    with world.database.write() as session:
        session.get_one(Model, silent).merge = {"tau": 0.3}  # as the first release wrote it

    world.database.downgrade("0011")
    world.database.migrate()

    with world.database.read() as session:
        rows = session.execute(
            select(ModelMethod.model_id, ModelMethod.method).order_by(ModelMethod.method)
        ).all()
    found = {model: [row.method for row in rows if row.model_id == model] for model in expected}
    assert found == expected
    assert [row.method for row in rows if row.model_id == silent] == ["grasp"]


def test_nothing_is_done_to_a_database_that_is_up_to_date(world: World) -> None:
    world.ready_model()
    before = world.rows()

    world.database.migrate()

    assert world.rows() == before


def test_a_migration_that_fails_leaves_nothing(
    empty: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scripts = copied_scripts(tmp_path, monkeypatch)
    (scripts / "versions" / "9999_wrong.py").write_text(
        COPY_TABLES.replace('["name"]', '["absent"]').replace("always", "auto")
    )

    with pytest.raises((OperationalError, ProgrammingError), match="absent"):
        empty.migrate()

    assert inspect(empty.engine).get_table_names() == []


@pytest.mark.parametrize("empty_url", ["postgresql"], indirect=True)
def test_a_migration_may_take_longer_than_other_statements(
    empty_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database_module, "TIMEOUT_MS", 200)
    scripts = copied_scripts(tmp_path, monkeypatch)
    slow = COPY_TABLES.replace("with op", 'op.execute("SELECT pg_sleep(0.5)")\n    with op')
    (scripts / "versions" / "9999_slow.py").write_text(slow.replace("always", "auto"))
    impatient = Database(empty_url)

    impatient.migrate()

    assert "models" in inspect(impatient.engine).get_table_names()
    with pytest.raises(OperationalError, match="statement timeout"), impatient.read() as session:
        session.execute(text("SELECT pg_sleep(0.5)"))
    impatient.close()


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)  # the one that copies
def test_copying_a_table_keeps_the_rows_that_refer_to_it(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = world.ready_model()
    world.fold(model, "a")
    scripts = copied_scripts(tmp_path, monkeypatch)
    (scripts / "versions" / "9999_copy.py").write_text(COPY_TABLES)

    world.database.migrate()

    with world.database.read() as session:
        assert session.scalars(select(Source.model_id)).all() == [model.id]
        assert session.scalars(select(Version.number)).all() == [1]
        assert session.scalar(text("PRAGMA foreign_keys")) == 1


def migrate_together(barrier: Barrier, url: str) -> None:
    database = Database(url)
    barrier.wait()
    database.migrate()
    database.close()


def test_processes_that_migrate_at_once_all_succeed(empty: Database) -> None:
    fork = multiprocessing.get_context("fork")
    url = empty.engine.url.render_as_string(hide_password=False)
    together = (fork.Barrier(4), url)
    processes = [fork.Process(target=migrate_together, args=together) for _ in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()

    assert [process.exitcode for process in processes] == [0] * 4
    assert set(Base.metadata.tables) < set(inspect(empty.engine).get_table_names())


def copied_scripts(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The migrations, where a test may add its own."""
    scripts = folder / "migrations"
    shutil.copytree(
        database_module.MIGRATIONS, scripts, ignore=shutil.ignore_patterns("__pycache__")
    )
    monkeypatch.setattr(database_module, "MIGRATIONS", scripts)
    return scripts


def test_whoever_comes_while_a_new_file_is_made_waits(tmp_path: Path) -> None:
    path = tmp_path / "grasp.db"
    maker = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    maker.execute("BEGIN IMMEDIATE")
    maker.execute("CREATE TABLE things (id)")
    database = Database(f"sqlite:///{path}")
    done = Timer(0.3, maker.execute, ["COMMIT"])
    done.start()

    with database.engine.connect() as connection:
        mode = connection.execute(text("PRAGMA journal_mode")).scalar_one()

    assert mode == "wal"
    done.join()
    maker.close()
    database.close()


def test_a_database_that_cannot_be_written_is_known_as_such(empty: Database) -> None:
    empty.migrate()
    empty.check()
    on_sqlite = empty.url.startswith("sqlite")
    forbid = "PRAGMA query_only = ON" if on_sqlite else "SET default_transaction_read_only = on"

    def set_up(connection: Any, _record: object) -> None:
        connection.execute(forbid)
        connection.commit()

    event.listen(empty.engine, "connect", set_up)
    empty.engine.dispose()
    with pytest.raises(DBAPIError) as caught:
        empty.check()
    assert is_read_only(caught.value)
    assert explain(caught.value)[0] == "the database cannot be written"
    with empty.read() as session:  # all else is as it was
        assert session.scalar(text("SELECT count(*) FROM jobs")) == 0
    with pytest.raises(DBAPIError) as caught:
        empty.check()
    held = {file.path for file in psutil.Process().open_files()}
    assert empty.engine.url.database not in held  # while one is left, SQLite lets no other write
    event.remove(empty.engine, "connect", set_up)
    empty.check()  # a connection that could not write is not used again
