"""What answering /metrics costs on a database with many ended jobs.

    python bench/scrape_cost.py [--jobs 100000] [--database-url postgresql://…/empty]

The jobs are written as folds leave them, with reports of the size that a network of 120 parameters
has. Without a URL it is SQLite in a temporary folder.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from sqlalchemy import event, insert, text

from app.metrics import RequestMetrics, render_metrics
from registry.database import Database
from registry.process.settings import Settings
from registry.tables import Job, Json, Model, Queue, Source, Target, Version

PER_MODEL = 1000
TURNS = 20
EACH = {"accuracy": 0.9123456, "per_class": {str(number): 0.9123456 for number in range(10)}}
METRICS = {side: {"val": EACH, "test": EACH} for side in ("before", "after")}
PARAMETER = {"name": "blocks.0.0.conv_pw.weight", "score": 0.1234567890123456, "size": 1000}
REPORT = json.dumps({"parameters": [PARAMETER] * 120})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=100_000)
    parser.add_argument("--database-url")
    options = parser.parse_args()
    with TemporaryDirectory() as folder:
        url = options.database_url or f"sqlite:///{Path(folder) / 'grasp.db'}"
        database = Database(Settings(database_url=url).database)
        database.migrate()
        for number in range(options.jobs // PER_MODEL):
            add_model(database, f"model-{number}")
        tidy(database)
        measure(database)
        database.close()


def add_model(database: Database, name: str) -> None:
    """One that has folded `PER_MODEL` sources, of which every tenth was rejected."""
    with database.write() as session:
        session.add(Queue(id=name))
        session.add(Target(id=name, owner="ann", name=name, status="ready", job_id=name))
        session.flush()
        session.add(
            Model(
                id=name,
                owner="ann",
                name=name,
                architecture="resnet18",
                preprocessing={},
                merge={},
                target_id=name,
                status="ready",
                version=PER_MODEL,
                job_id=name,
            )
        )
        session.flush()
        session.execute(insert(Job), [_job(name, seq) for seq in range(PER_MODEL)])
        session.execute(insert(Source), [_source(name, seq) for seq in range(PER_MODEL)])
        published = [_version(name, seq) for seq in range(PER_MODEL) if seq % 10]
        session.execute(insert(Version), published)


def _job(model: str, seq: int) -> Json:
    ended = {"status": "succeeded" if seq % 10 else "rejected", "attempts": 1}
    about = {"id": f"{model}-{seq}", "kind": "fold", "queue_id": model, "seq": seq}
    return {**about, **ended, **_of(model), "metrics": METRICS, "report": REPORT}


def _source(model: str, seq: int) -> Json:
    about = {"id": f"{model}-{seq}", "name": "site-a", "job_id": f"{model}-{seq}"}
    return {**about, **_of(model), "sha256": f"{seq:064x}", "size": 10**7, "stored": False}


def _version(model: str, seq: int) -> Json:
    about = {"number": seq + 1, "job_id": f"{model}-{seq}", "metrics": METRICS}
    return {**about, **_of(model), "sha256": f"{seq:064x}", "size": 10**7}


def _of(model: str) -> Json:
    return {"owner": "ann", "model_id": model}


def tidy(database: Database) -> None:
    """As PostgreSQL does by itself within a minute or so."""
    if not database.url.startswith("sqlite"):
        outside = database.engine.execution_options(isolation_level="AUTOCOMMIT")
        with outside.connect() as connection:
            connection.execute(text("VACUUM ANALYZE"))


def measure(database: Database) -> None:
    spent: dict[str, list[float]] = {}
    requests = RequestMetrics()
    with _timed(database, spent):
        whole = [_scrape(database, requests) for _ in range(TURNS)]
    print(f"a scrape: {1000 * median(whole):.0f} ms; of its queries, in ms:")
    for statement, times in sorted(spent.items(), key=lambda item: -median(item[1])):
        print(f"{1000 * median(times):8.1f}  {' '.join(statement.split())[:100]}")


def _scrape(database: Database, requests: RequestMetrics) -> float:
    began = time.perf_counter()
    with database.read() as session:
        render_metrics(session, Settings(), requests)
    return time.perf_counter() - began


@contextmanager
def _timed(database: Database, spent: dict[str, list[float]]) -> Iterator[None]:
    """SQLite computes while rows are fetched, so a query lasts until the next one begins."""
    running: list[tuple[str, float]] = []

    def begin(_c: Any, _cursor: Any, statement: str, *_: Any) -> None:
        end()
        running.append((statement, time.perf_counter()))

    def end(*_: Any) -> None:
        if running:
            statement, began = running.pop()
            spent.setdefault(statement, []).append(time.perf_counter() - began)

    event.listen(database.engine, "before_cursor_execute", begin)
    event.listen(database.engine, "rollback", end)
    yield
    event.remove(database.engine, "before_cursor_execute", begin)
    event.remove(database.engine, "rollback", end)


if __name__ == "__main__":
    main()
