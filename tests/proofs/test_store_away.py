"""The object store goes away and comes back: everything waits for it, and nothing fails."""

from collections.abc import Iterator

import pytest
from moto.server import ThreadedMotoServer

from registry.jobs.states import ACTIVE
from tests.buckets import Bucket
from tests.proofs.conftest import MakeCluster
from tests.service.fake_folds import checkpoint
from tests.service.harness import free_port
from tests.worker.waiting import until

pytestmark = pytest.mark.proof

MODELS = 3
WORKERS = 2
TICKS = 100  # two seconds at least: none is done before the store is gone


class Store:
    """An S3 server that can be stopped; what it holds it still holds afterwards."""

    def __init__(self) -> None:
        self._port = free_port()
        self.endpoint = f"http://127.0.0.1:{self._port}"

    def start(self) -> None:
        self._server = ThreadedMotoServer(port=self._port, verbose=False)
        self._server.start()

    def stop(self) -> None:
        self._server.stop()


@pytest.fixture
def store(s3: str) -> Iterator[Store]:
    """Beside the one that all share, whose credentials are in the environment."""
    server = Store()
    server.start()
    yield server
    server.stop()


def test_while_the_store_is_away_no_job_loses_an_attempt(
    make_cluster: MakeCluster, store: Store
) -> None:
    blob_url = f"s3://{Bucket.make(store.endpoint).name}/blobs"
    with make_cluster(workers=WORKERS, blob_url=blob_url, blob_endpoint=store.endpoint) as cluster:
        models = cluster.client.make_models(MODELS)
        files = {model: checkpoint(f"source of {model}", ticks=TICKS) for model in models}
        jobs = [cluster.client.offer(m, "source", data)["job"]["id"] for m, data in files.items()]
        until(lambda: any("pid" in cluster.job(job).metrics for job in jobs))

        store.stop()
        until(lambda: all(worker.says("the store does not answer") for worker in cluster.workers))
        assert cluster.https[0].get("/readyz").status_code == 503
        assert cluster.count_jobs(*ACTIVE) == MODELS
        assert not any(cluster.job(job).status == "running" for job in jobs)
        store.start()

        for job in jobs:
            ended = cluster.client.ended(job)
            assert (ended["status"], ended["attempts"]) == ("succeeded", 1)
        assert not cluster.failures()
        for model, data in files.items():
            cluster.client.check_chain(cluster.settings, model, [data])
