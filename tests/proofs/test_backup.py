"""A backup as docs/deploy.md describes it, restored: everything is there, and work goes on."""

import signal
from pathlib import Path
from typing import Any

import pytest

from registry.blobs import open_store
from registry.blobs.damage import scrub
from tests.buckets import Bucket
from tests.proofs.cluster import Cluster
from tests.proofs.conftest import MakeCluster
from tests.servers import Postgres
from tests.service.fake_folds import checkpoint

pytestmark = pytest.mark.proof

FILES = [checkpoint(f"source-{number}") for number in range(4)]


def test_what_was_backed_up_comes_back_and_goes_on(
    make_cluster: MakeCluster,
    postgres: Postgres,
    stored: Bucket,
    bucket: dict[str, Any],
    tmp_path: Path,
) -> None:
    dump = tmp_path / "grasp.dump"
    with make_cluster(workers=1, **bucket) as cluster:
        [model] = cluster.client.make_models(1)
        for number in range(2):
            assert fold(cluster, number)["status"] == "succeeded"
        cluster.workers[0].end(signal.SIGTERM)
        waiting = offer(cluster, 2)
        postgres.dump(cluster.database_name, dump)
        offer(cluster, 3)  # the API goes on accepting; this is lost
        copy = copied(stored)

    restored = {
        "database_url": postgres.restore("restored", dump),
        "blob_url": f"s3://{copy.name}/blobs",
        "blob_endpoint": copy.endpoint,
    }
    with make_cluster(workers=1, **restored) as cluster:
        reports = scrub(cluster.database, open_store(cluster.settings))
        assert [report for report in reports if report.problem] == []
        assert cluster.client.ended(waiting)["status"] == "succeeded"
        assert fold(cluster, 3)["status"] == "succeeded"
        cluster.client.check_chain(cluster.settings, model, FILES)


def offer(cluster: Cluster, number: int) -> str:
    job: str = cluster.client.offer("model-0", f"source-{number}", FILES[number])["job"]["id"]
    return job


def fold(cluster: Cluster, number: int) -> dict[str, Any]:
    return cluster.client.ended(offer(cluster, number))


def copied(bucket: Bucket) -> Bucket:
    """As `aws s3 sync` does it."""
    copy = Bucket.make(bucket.endpoint)
    for key, data in bucket.objects().items():
        copy.put(key, data)
    return copy
