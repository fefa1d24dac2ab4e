"""A server that dies and comes back while somebody waits for a job."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from grasp_client import AsyncGrasp, Grasp, Job
from registry.database import Database
from tests.app.world import World
from tests.processes import running
from tests.service.harness import GRASP, ROOT, Harness, none_left
from tests.worker.waiting import until


@pytest.fixture
def harness(no_settings: None, tmp_path: Path) -> Iterator[Harness]:
    """The real API, and nobody who works."""
    with none_left(tmp_path / "home"), Harness(tmp_path / "home", workers=0) as running:
        yield running


@pytest.fixture
def world(harness: Harness) -> Iterator[World]:
    database = Database(harness.settings.database)
    yield World(harness.client, harness.settings, database)
    database.close()


def test_jobs_are_watched_over_a_restart(harness: Harness, world: World, tmp_path: Path) -> None:
    url = str(harness.client.base_url)
    world.ready_model()
    job_id = world.post_source().json()["job"]["id"]
    lease = world.claim()
    world.progress(lease, "align", 0.1)
    seen: list[str | None] = []
    seen_async: list[str | None] = []

    def follow() -> Job:
        with Grasp(url) as grasp:
            return grasp.jobs.wait(job_id, lambda job: seen.append(job.stage))

    async def follow_async() -> None:
        async with AsyncGrasp(url) as grasp:
            await grasp.jobs.wait(job_id, lambda job: seen_async.append(job.stage))

    with ThreadPoolExecutor(2) as pool, watching(url, job_id, tmp_path) as command:
        ended: Future[Job] = pool.submit(follow)
        ended_async = pool.submit(lambda: asyncio.run(follow_async()))
        until(lambda: seen and seen_async and (tmp_path / "watch").read_text())
        harness.api.end(signal.SIGKILL)
        world.progress(lease, "refine", 0.5)
        harness.restart_api()
        until(lambda: "refine" in seen and "refine" in seen_async)
        until(lambda: "refine" in (tmp_path / "watch").read_text())
        world.publish(lease)

        assert ended.result().version == 1
        ended_async.result()
        assert command.wait() == 0
    shown = [json.loads(line) for line in (tmp_path / "watch").read_text().splitlines()]
    assert seen == seen_async == [job["stage"] for job in shown] == ["align", "refine", "refine"]
    assert shown[-1]["status"] == "succeeded"


@contextmanager
def watching(url: str, job: str, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """`grasp watch --json`, as a process; what it says is in the file `watch`."""
    environment = {**os.environ, "GRASP_URL": url, "PYTHONPATH": str(ROOT)}
    with (folder / "watch").open("wb") as words:
        command = [*GRASP, "watch", job, "--json"]
        with running(command, env=environment, stdout=words) as process:
            yield process
