"""What clients cost that follow jobs, by events or by `?wait`, and what others notice of them.

    python bench/followers.py [--followers 2000] [--jobs 20] [--seconds 10]

A server without workers; this process follows its jobs over loopback, and plays the workers: each
job makes progress once a second, as in the service. Processor time is the server's alone. To
compare, fewer followers of one job are served twice: in the way of the service, one look for all
(`together`), and each looking by itself four times a second (`alone`), as in its first release.

Checks the promise: 2,000 followers of 20 jobs take less than 0.3 cores, and others are answered
within 50 ms at the median.
"""

from __future__ import annotations

import argparse
import asyncio
import resource
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from statistics import median
from tempfile import TemporaryDirectory

import httpx
from fastapi import FastAPI

import app.main
from app.http.following import FollowedJob, Following, JobState
from bench.servers import Server, serving
from registry.database import Database
from registry.jobs import queue
from registry.jobs.queue import Lease
from registry.tables import utc_now
from registry.targets import create_target

MAX_CORES = 0.3
MAX_SECONDS = 0.05
COMPARED = 200  # followers of one job
PATHS = {"events": "/jobs/{job}/events", "wait": "/jobs/{job}?wait=60"}
PROGRESS_S = 1.0  # between two writes of a worker
ASK_S = 0.05  # between two requests of somebody who follows nothing
CONNECT_AT_ONCE = 50
FILES_BESIDE = 100  # that the processes have open beside their connections
COLUMNS = (
    "by",
    "followers",
    "jobs",
    "each looks",
    "cores",
    "events/s",
    "others: median ms",
    "worst ms",
)


def together() -> FastAPI:
    """The service as it is."""
    return app.main.create_app()


def alone() -> FastAPI:
    """Where every follower looks by itself."""
    vars(app.main)["Following"] = Alone
    return app.main.create_app()


class Alone(Following):
    @contextmanager
    def follow(self, state: JobState) -> Iterator[FollowedJob]:
        with Following(self._database).follow(state) as job:
            yield job


@dataclass(frozen=True)
class Figures:
    """What a crowd cost: cores of the server, and seconds that the requests of others took."""

    cores: float
    events: float  # received per second
    median: float
    worst: float


def main() -> int:
    options = _options()
    _raise_file_limit(2 * options.followers + FILES_BESIDE)
    print(" ".join(f"{name:>17}" for name in COLUMNS))
    kept = True
    for how in PATHS:
        before = measure("alone", how, min(COMPARED, options.followers), 1, options.seconds)
        after = measure("together", how, min(COMPARED, options.followers), 1, options.seconds)
        print(f"{'':>17} together / alone: cores {after.cores / before.cores:.2f}", flush=True)
        many = measure("together", how, options.followers, options.jobs, options.seconds)
        kept &= many.cores < MAX_CORES and many.median < MAX_SECONDS
    promise = f"under {MAX_CORES:g} cores, others within {1000 * MAX_SECONDS:.0f} ms at the median"
    print(f"\n{promise}: {'holds' if kept else 'BROKEN'}")
    return 0 if kept else 1


def measure(looks: str, how: str, followers: int, jobs: int, seconds: float) -> Figures:
    """Start a server, let the followers follow, and print what that cost."""
    with TemporaryDirectory() as home:
        database = Database(f"sqlite:///{home}/grasp.db")
        database.migrate()
        leases = [_start_job(database, number) for number in range(jobs)]
        variables = {"GRASP_HOME": home, "GRASP_LOG_LEVEL": "warning"}
        with serving(looks, f"bench.followers:{looks}", variables) as server:
            work = _measure(server, database, leases, PATHS[how], followers, seconds)
            found = asyncio.run(work)
        database.close()
    figures = (f"{found.cores:.2f}", f"{found.events:,.0f}")
    times = (f"{1000 * found.median:.1f}", f"{1000 * found.worst:.0f}")
    row = (how, f"{followers:,}", str(jobs), looks, *figures, *times)
    print(" ".join(f"{cell:>17}" for cell in row), flush=True)
    return found


def _start_job(database: Database, number: int) -> Lease:
    with database.write() as session:
        create_target(session, "local", f"target-{number}", uri="file:///nowhere")
        lease = queue.claim(session, "wrk", utc_now(), lease_seconds=3600, max_losses=1)
    assert lease is not None
    return lease


async def _measure(
    server: Server,
    database: Database,
    leases: list[Lease],
    path: str,
    followers: int,
    seconds: float,
) -> Figures:
    url = f"http://127.0.0.1:{server.port}"
    async with httpx.AsyncClient(base_url=url, trust_env=False, timeout=60) as client:
        await _first_answer(client)
        jobs = [leases[n % len(leases)].job_id for n in range(followers)]
        async with _followed(server.port, [path.format(job=job) for job in jobs]) as received:
            progress = asyncio.create_task(_make_progress(database, leases))
            await asyncio.sleep(PROGRESS_S)
            received.clear()
            with server.turn():
                times = await _ask(client, seconds)
            events = received["events"] / server.seconds[-1]
            progress.cancel()
    cores = server.processor_seconds[-1] / server.seconds[-1]
    return Figures(cores, events, median(times), max(times))


async def _first_answer(client: httpx.AsyncClient) -> None:
    while True:
        try:
            await client.get("/healthz")
            return
        except httpx.TransportError:
            await asyncio.sleep(0.05)


@asynccontextmanager
async def _followed(port: int, paths: list[str]) -> AsyncIterator[Counter[str]]:
    """All paths are followed meanwhile, each over a connection of its own; counts the events."""
    received: Counter[str] = Counter()
    following: list[asyncio.Task[None]] = []
    connecting = asyncio.Semaphore(CONNECT_AT_ONCE)
    begun = [asyncio.Event() for _ in paths]
    for path, first in zip(paths, begun, strict=True):
        following.append(asyncio.create_task(_follow(port, path, connecting, first, received)))
    for first in begun:
        await first.wait()
    async with httpx.AsyncClient(trust_env=False, timeout=60) as last:  # in the line of all
        await last.get(f"http://127.0.0.1:{port}/models")
    yield received
    for task in following:
        task.cancel()
    await asyncio.gather(*following, return_exceptions=True)


async def _follow(
    port: int,
    path: str,
    connecting: asyncio.Semaphore,
    begun: asyncio.Event,
    received: Counter[str],
) -> None:
    async with connecting:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
        if path.endswith("/events"):
            await reader.read(2**16)
    begun.set()
    try:
        while piece := await reader.read(2**16):
            received["events"] += piece.count(b"event: job\n")
        raise RuntimeError(f"nothing more is sent about {path}")
    finally:
        writer.close()


async def _make_progress(database: Database, leases: list[Lease]) -> None:
    """Each job goes on once a second, one after the other."""
    step = 0
    while True:
        for lease in leases:
            step += 1
            await asyncio.to_thread(_record, database, lease, step)
            await asyncio.sleep(PROGRESS_S / len(leases))


def _record(database: Database, lease: Lease, step: int) -> None:
    with database.write() as session:
        queue.record_progress(session, lease, "refine", step % 1000 / 1000, {"loss": 1 / step})


async def _ask(client: httpx.AsyncClient, seconds: float) -> list[float]:
    """How long the answers to somebody else take."""
    times: list[float] = []
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        began = time.perf_counter()
        (await client.get("/models")).raise_for_status()
        times.append(time.perf_counter() - began)
        await asyncio.sleep(ASK_S)
    return times


def _raise_file_limit(count: int) -> None:
    """For this process, and the server that it starts."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < count:
        resource.setrlimit(resource.RLIMIT_NOFILE, (count, hard))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--followers", type=int, default=2000)
    parser.add_argument("--jobs", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=8.0)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
