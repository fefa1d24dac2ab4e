"""What a worker says about itself, and who is still there."""

import os
import socket
from datetime import datetime
from importlib.metadata import version
from typing import Any

import psutil

from registry.database import Database
from registry.jobs.abilities import Abilities
from registry.jobs.queue import end_leases
from registry.jobs.workers import list_workers, register_worker, remove_worker
from registry.tables import Worker, utc_now


def total_memory() -> int:
    memory: int = psutil.virtual_memory().total
    return memory


def register(
    database: Database,
    worker_id: str,
    device: str,
    started_at: datetime,
    totals: dict[str, Any],
    abilities: Abilities,
) -> None:
    """Be known, as idle; again now and then, in case somebody took us for dead."""
    worker = Worker(
        id=worker_id,
        host=socket.gethostname(),
        pid=os.getpid(),
        device=device,
        memory_bytes=total_memory(),
        release=version("grasp-merge"),
        methods=sorted(abilities.methods),
        kinds=sorted(abilities.kinds),
        job_id=None,
        totals=totals,
        started_at=started_at,
        seen_at=utc_now(),
    )
    with database.write() as session:
        register_worker(session, worker)


def expire_dead_workers(database: Database) -> None:
    """End the leases of workers whose processes are gone, instead of waiting until they expire.

    Only where all workers share one machine, as they do on SQLite. Whoever is wrongly taken for
    dead loses a lease, and with it nothing but time.
    """
    with database.read() as session:
        dead = [worker.id for worker in list_workers(session) if _is_gone(worker)]
    if not dead:
        return
    with database.write() as session:
        for worker_id in dead:
            end_leases(session, worker_id, utc_now())
            remove_worker(session, worker_id)


def _is_gone(worker: Worker) -> bool:
    if worker.host != socket.gethostname():
        return False
    try:
        process = psutil.Process(worker.pid)
        zombie: bool = process.status() == psutil.STATUS_ZOMBIE
        # A process younger than the worker's last word has got its number.
        return zombie or process.create_time() > worker.seen_at.timestamp()
    except psutil.NoSuchProcess:
        return True
