"""Sources that kill whatever folds them: three attempts each, and the queue goes on."""

from collections.abc import Iterable

from registry.tables import Job
from tests.proofs.cluster import Cluster
from tests.proofs.conftest import MakeCluster
from tests.service.fake_folds import chain, checkpoint
from tests.service.place import Place, codes
from tests.worker.waiting import until


def test_a_poison_source_takes_three_attempts_and_the_queue_goes_on(
    make_cluster: MakeCluster,
) -> None:
    with make_cluster(apis=0, workers=0, lease_seconds=2.0, heartbeat_seconds=0.5) as cluster:
        place = Place(**cluster.settings.model_dump(exclude_unset=True))
        reasons = {"die": "child_killed", "slay": "worker_lost"}  # its child, or all of the worker
        models = {deed: place.ready_model(deed) for deed in reasons}
        poison, after = {}, {}
        for deed, model in models.items():
            poison[deed] = place.offer(model, checkpoint(f"poison {deed}", *[deed] * 9))
            after[deed] = place.offer(model, checkpoint(f"good after {deed}"))
        cluster.add_workers(2)
        until(lambda: ended(cluster, place, after.values()))

        for deed, model in models.items():
            failed = place.job(poison[deed])
            assert (failed.status, failed.attempts) == ("failed", 3)
            assert codes(failed) == [reasons[deed]] * 3
            assert place.job(after[deed]).status == "succeeded"
            assert place.hashes(model) == chain([checkpoint(f"good after {deed}")])
        place.database.close()


def ended(cluster: Cluster, place: Place, jobs: Iterable[Job]) -> bool:
    """Whether these are; meanwhile dead workers are started again."""
    for number, worker in enumerate(cluster.workers):
        if not worker.alive:
            cluster.restart_worker(number)
    return all(place.job(job).finished_at is not None for job in jobs)
