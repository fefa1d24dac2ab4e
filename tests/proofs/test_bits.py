"""Bits that flip in the object store: each is found by scrub, and none is sent or folded in."""

import random
import shutil
import signal
import subprocess
from typing import Any

import pytest
from sqlalchemy import delete

from registry.blobs import open_store
from registry.blobs.damage import scrub
from registry.tables import BlobProblem
from tests.buckets import Bucket
from tests.proofs.cluster import Cluster
from tests.proofs.conftest import MakeCluster
from tests.proofs.forms import choose_seed
from tests.service.fake_folds import checkpoint
from tests.service.harness import GRASP, environment
from tests.worker.waiting import until

pytestmark = pytest.mark.proof

SOURCES = 2
BITS = 5  # of each blob, one at a time
SEED = choose_seed("BITS_SEED")


def test_a_flipped_bit_of_any_blob_is_found_and_never_sent_or_folded_in(
    make_cluster: MakeCluster, stored: Bucket, bucket: dict[str, Any]
) -> None:
    print(f"BITS_SEED={SEED}")
    chance = random.Random(SEED)
    with make_cluster(workers=1, **bucket) as cluster:
        versions = fold_some(cluster)
        sound = {key: data for key, data in stored.objects().items() if "/tmp/" not in key}
        assert len(sound) == 1 + 2 * SOURCES  # the target, the sources, the versions
        store, bad = open_store(cluster.settings), set()
        for key, data in sound.items():
            sha256 = key.split("/")[-2]
            bad.add(sha256)
            for bit in chance.sample(range(8 * len(data)), BITS):
                stored.put(key, flipped(data, bit))
                assert {r.sha256 for r in scrub(cluster.database, store) if r.problem} == bad
                if sha256 in versions:
                    answer = cluster.https[0].get(versions[sha256])
                    assert (answer.status_code, answer.json()["code"]) == (500, "blob_damaged")

        assert command(cluster) == (1, bad)  # the last bit of each is still wrong
        waiting = offer_to_a_new_machine(cluster)
        refused = cluster.https[0].post("/models/model-0/rollback", json={"version": 1})
        assert (refused.status_code, refused.json()["code"]) == (409, "blob_damaged")
        for key, data in sound.items():
            stored.put(key, data)
        assert command(cluster) == (0, set())
        assert cluster.client.ended(waiting)["status"] == "succeeded"
        assert cluster.failures() == {}
        downloads = {cluster.https[0].get(url).content for url in versions.values()}
        assert downloads <= set(sound.values())


def fold_some(cluster: Cluster) -> dict[str, str]:
    """Where the versions that come of it are downloaded, by sha256."""
    [model] = cluster.client.make_models(1, keep_sources=True)
    for number in range(SOURCES):
        data = checkpoint(f"source-{number}", ticks=1)
        job = cluster.client.offer(model, f"source-{number}", data)["job"]["id"]
        assert cluster.client.ended(job)["status"] == "succeeded"
    versions = cluster.client.versions(model)
    return {v["sha256"]: f"/models/{model}/versions/{v['number']}" for v in versions}


def offer_to_a_new_machine(cluster: Cluster) -> str:
    """A source for a worker that has no copies and was told nothing; it waits, and this is why."""
    cluster.workers[0].send(signal.SIGKILL)
    cluster.workers[0].wait()
    shutil.rmtree(cluster.folder / "worker0" / "blob_cache")
    with cluster.database.write() as session:
        session.execute(delete(BlobProblem))
    data = checkpoint("one more", ticks=1)
    job = str(cluster.client.offer("model-0", "one more", data)["job"]["id"])
    cluster.restart_worker(0)
    until(lambda: cluster.job(job).error is not None)
    found = cluster.job(job)
    assert (found.status, found.attempts, (found.error or {})["code"]) == (
        "queued",
        0,
        "blob_damaged",
    )
    assert len(cluster.client.versions("model-0")) == SOURCES
    return job


def flipped(data: bytes, bit: int) -> bytes:
    content = bytearray(data)
    content[bit // 8] ^= 1 << bit % 8
    return bytes(content)


def command(cluster: Cluster) -> tuple[int, set[str]]:
    """The exit code of `grasp admin scrub`, and the blobs that it calls damaged."""
    ended = subprocess.run(
        (*GRASP, "admin", "scrub"),
        env=environment(cluster.settings),
        cwd=cluster.folder,
        capture_output=True,
        text=True,
    )
    words = [line.split() for line in ended.stdout.splitlines()]
    return ended.returncode, {sha256 for problem, sha256, *_ in words if problem == "damaged"}
