"""Redis as a doorbell: a ring wakes a worker, and only one that will do."""

import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from registry.process.settings import Settings
from tests.proofs.cluster import Cluster
from tests.proofs.conftest import MakeCluster
from tests.servers import Redis
from tests.service.fake_folds import checkpoint
from tests.service.harness import WORKER, Process
from tests.worker.waiting import until

NEVER_S = 3600.0  # workers do not look by themselves while a test lasts
CELERY = (sys.executable, "-m", "celery", "-A", "worker.main", "worker")


@pytest.fixture
def only_rings(make_cluster: MakeCluster, monkeypatch: pytest.MonkeyPatch) -> MakeCluster:
    monkeypatch.delenv("PROOF_LOOK_S")

    def make(**options: Any) -> Cluster:
        return make_cluster(poll_seconds=NEVER_S, **options)

    return make


def test_rings_wake_workers_that_would_not_have_looked(
    only_rings: MakeCluster, redis: Redis
) -> None:
    with only_rings(workers=1) as cluster:
        [model] = cluster.client.make_models(1)
        files = [checkpoint(f"source-{number}") for number in range(3)]
        for number, data in enumerate(files):  # one at a time: each finds the worker asleep
            answer = cluster.client.offer(model, f"source-{number}", data)
            assert cluster.client.ended(answer["job"]["id"])["status"] == "succeeded"
            if number == 1:
                restart(redis, cluster)
        cluster.client.check_chain(cluster.settings, model, files)


def restart(redis: Redis, cluster: Cluster) -> None:
    """It comes back without anything, and both sides find it again."""
    connections = cluster.workers[0].log.read_text().count("Connected to redis")
    redis.kill()
    redis.start()
    until(lambda: cluster.workers[0].log.read_text().count("Connected to redis") > connections)


@pytest.mark.proof
def test_a_terminated_worker_hands_its_job_to_one_that_is_rung_for(
    only_rings: MakeCluster,
) -> None:
    with only_rings(workers=1, lease_seconds=NEVER_S) as cluster:
        [model] = cluster.client.make_models(1)
        data = checkpoint("source", ticks=100)
        job = cluster.client.offer(model, "source", data)["job"]["id"]
        until(lambda: "pid" in cluster.job(job).metrics)
        cluster.add_workers(1)
        cluster.wait_for_workers()

        assert cluster.workers[0].end(signal.SIGTERM) == 0
        ended = cluster.client.ended(job)

        assert (ended["status"], ended["attempts"], ended["failures"]) == ("succeeded", 1, [])
        cluster.client.check_chain(cluster.settings, model, [data])


@pytest.mark.proof
def test_a_cpu_worker_leaves_models_for_the_gpu_alone(only_rings: MakeCluster) -> None:
    with only_rings(workers=1) as cluster:
        [model] = cluster.client.make_models(1)
        body = {"name": "big", "architecture": "test_resnet", "target": "target", "queue": "gpu"}
        waiting = cluster.https[0].post("/models", json=body).json()["job"]["id"]
        job = cluster.client.offer(model, "source", checkpoint("source"))["job"]["id"]

        assert cluster.client.ended(job)["status"] == "succeeded"  # though the other came first
        assert cluster.client.job(waiting)["status"] == "queued"

        cluster.add_workers(1, device="cuda")
        assert cluster.client.ended(waiting)["status"] == "succeeded"


@pytest.mark.proof
@pytest.mark.parametrize(
    ("broken", "said"),
    [("work_folder", "worker started"), ("blob_folder", "the worker cannot begin")],
)
def test_a_worker_that_cannot_begin_or_dies_does_not_stay_to_listen(
    no_settings: None, tmp_path: Path, database_url: str, redis: Redis, broken: str, said: str
) -> None:
    settings = Settings(home=tmp_path / "home", database_url=database_url, broker_url=redis.url)
    settings.home.mkdir()
    getattr(settings, broken).touch()  # which should be a folder
    with Process(WORKER, settings) as worker:
        assert worker.wait() == 1
        assert worker.says(said)


@pytest.mark.proof
def test_the_celery_command_starts_a_worker(only_rings: MakeCluster) -> None:
    with only_rings(workers=0) as cluster, Process(CELERY, cluster.settings) as worker:
        until(lambda: worker.says(" ready."))
        until(lambda: len(cluster.https[0].get("/workers").json()["items"]) == 1)
        assert worker.end(signal.SIGTERM) == 0


def test_the_celery_command_without_a_broker_says_what_to_set(
    no_settings: None, tmp_path: Path
) -> None:
    with Process(CELERY, Settings(home=tmp_path / "home")) as worker:
        assert worker.wait() != 0
        assert worker.says("GRASP_BROKER_URL")
