"""Sources that kill whatever folds them: some attempts each, and the queue goes on."""

from collections.abc import Iterable

import pytest

from registry.tables import Job
from tests.proofs.cluster import Cluster
from tests.proofs.conftest import MakeCluster
from tests.service.fake_folds import chain, checkpoint
from tests.service.place import Place, codes
from tests.worker.waiting import until

pytestmark = pytest.mark.proof


def test_a_poison_source_takes_so_many_attempts_and_the_queue_goes_on(
    make_cluster: MakeCluster,
) -> None:
    leases = {"lease_seconds": 4.0, "heartbeat_seconds": 0.5}
    with make_cluster(apis=0, workers=0, max_attempts=3, max_losses=4, **leases) as cluster:
        place = Place(**cluster.settings.model_dump(exclude_unset=True))
        # Its child, or all of the worker.
        reasons = {"die": ["child_killed"] * 3, "slay": ["worker_lost"] * 4}
        models = {deed: place.ready_model(deed) for deed in reasons}
        poison, after = {}, {}
        for deed, model in models.items():
            poison[deed] = place.offer(model, checkpoint(f"poison {deed}", *[deed] * 9))
            after[deed] = place.offer(model, checkpoint(f"good after {deed}"))
        cluster.add_workers(2)
        until(lambda: ended(cluster, place, after.values()))

        for deed, model in models.items():
            failed = place.job(poison[deed])
            assert (failed.status, codes(failed)) == ("failed", reasons[deed])
            assert place.job(after[deed]).status == "succeeded"
            assert place.hashes(model) == chain([checkpoint(f"good after {deed}")])
        place.database.close()


def ended(cluster: Cluster, place: Place, jobs: Iterable[Job]) -> bool:
    """Whether these are; meanwhile dead workers are started again."""
    for number, worker in enumerate(cluster.workers):
        if not worker.alive:
            cluster.restart_worker(number)
    return all(place.job(job).finished_at is not None for job in jobs)
