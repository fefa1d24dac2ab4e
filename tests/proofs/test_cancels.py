"""Cancels at any moment: a job ends cancelled and without a version, or succeeded with one."""

import random
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import select

from registry.tables import Job, Model
from tests.proofs.cluster import Cluster
from tests.proofs.conftest import MakeCluster
from tests.proofs.forms import choose_seed, short_and_long
from tests.service.fake_folds import chain, checkpoint
from tests.worker.waiting import until

pytestmark = pytest.mark.proof

MODELS = 4
SENDERS = 8
SEED = choose_seed("CANCELS_SEED")


class Canceller:
    def __init__(self, cluster: Cluster, models: list[str]) -> None:
        self.cluster = cluster
        self.models = models
        self.files: dict[str, bytes] = {}  # job: source

    def __call__(self, number: int) -> int:
        """Post a source and cancel it at some moment; the answer to that."""
        chance = random.Random(SEED + number)
        data = checkpoint(f"source-{number}", ticks=10)
        model = self.models[number % len(self.models)]
        job = self.cluster.client.offer(model, f"source-{number}", data)["job"]["id"]
        self.files[job] = data
        moment = chance.choice(["sent", "running", "refine", "refine"])
        until(lambda: self._reached(job, moment))
        time.sleep(chance.uniform(0, 0.5))
        return self.cluster.https[0].post(f"/jobs/{job}/cancel").status_code

    def _reached(self, job_id: str, moment: str) -> bool:
        job = self.cluster.job(job_id)
        over = job.status not in ("queued", "running")
        return over or moment in ("sent", job.status, job.stage)


@pytest.mark.parametrize("cancels", short_and_long(24, 200))
def test_a_cancelled_job_left_no_version_and_any_other_left_one(
    make_cluster: MakeCluster, cancels: int
) -> None:
    print(f"CANCELS_SEED={SEED}")
    with make_cluster(workers=4) as cluster:
        canceller = Canceller(cluster, cluster.client.make_models(MODELS))
        with ThreadPoolExecutor(SENDERS) as pool:
            answers = Counter(pool.map(canceller, range(cancels)))
        ended = [cluster.client.ended(job) for job in canceller.files]

        outcomes = Counter(job["status"] for job in ended)
        print(answers, outcomes)
        assert answers.keys() <= {202, 409}
        assert outcomes.keys() <= {"cancelled", "succeeded"}
        assert outcomes["cancelled"] > 0
        for job in ended:
            assert (job["version"] is None) == (job["status"] == "cancelled")
        for model in canceller.models:
            check_versions(cluster, model, canceller.files)


def check_versions(cluster: Cluster, model: str, files: dict[str, bytes]) -> None:
    """Those that succeeded, and no others, are in the chain, in the order they came."""
    versions = cluster.client.versions(model)
    with cluster.database.read() as session:
        rows = session.execute(
            select(Job.id, Job.source_id)
            .join(Model, Model.id == Job.model_id)
            .where(Model.name == model, Job.kind == "fold", Job.status == "succeeded")
            .order_by(Job.seq)
        ).all()
    assert [version["source"] for version in versions] == [row.source_id for row in rows]
    assert [version["sha256"] for version in versions] == chain(files[row.id] for row in rows)
