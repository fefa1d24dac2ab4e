"""kill -9 of everything, servers included, while sources arrive: each is folded once, in order."""

import time
from typing import Any

import pytest

from tests.proofs.conftest import MakeCluster
from tests.proofs.forms import choose_seed, short_and_long
from tests.proofs.storm import Offer, Sender, Storm, sending
from tests.servers import Postgres, Redis
from tests.service.fake_folds import checkpoint

MODELS = 10
WORKERS = 4
AHEAD = 12  # sources that may be under way, so that a fault hits something
PAUSE_S = 0.5  # at most, between two faults
SEED = choose_seed("STORM_SEED")
SHORT = {"child": 10, "worker": 6, "api": 3, "broker": 3, "postmaster": 2, "backend": 2, "flush": 4}
LONG = {  # 200 kills, and 20 flushes
    "child": 80,
    "worker": 50,
    "api": 20,
    "broker": 20,
    "postmaster": 15,
    "backend": 15,
    "flush": 20,
}


@pytest.mark.parametrize("scale", short_and_long((SHORT, 40), (LONG, 300)))
def test_a_storm_loses_nothing_and_doubles_nothing(
    scale: tuple[dict[str, int], int],
    make_cluster: MakeCluster,
    bucket: dict[str, Any],
    postgres: Postgres,
    redis: Redis,
) -> None:
    print(f"STORM_SEED={SEED}")
    counts, sources = scale
    began = time.monotonic()
    with make_cluster(workers=WORKERS, max_attempts=1000, max_losses=1000, **bucket) as cluster:
        models = cluster.client.make_models(MODELS)
        sender = Sender(cluster, make_offers(models, sources), allowed=AHEAD)
        storm = Storm(cluster, postgres, redis, SEED)
        faults = storm.faults(counts)
        with sending(sender):
            for number, fault in enumerate(faults):
                share = sources * number // len(faults)
                sender.allowed = share + AHEAD
                cluster.wait_for_ended(share - AHEAD)
                time.sleep(storm.chance.uniform(0, PAUSE_S))
                fault()
            cluster.wait_for_apis()

        ended = [cluster.client.ended(job) for job in sender.accepted]
        assert len(ended) == sources
        assert {job["status"] for job in ended} == {"succeeded"}
        for model in models:
            own = [offer.data for offer in sender.accepted.values() if offer.model == model]
            cluster.client.check_chain(cluster.settings, model, own)
        reasons = cluster.failures()
    print(f"{sources} sources, {sum(counts.values())} faults {counts}")
    print(f"attempts lost: {dict(reasons)}; {time.monotonic() - began:.0f} s")
    assert reasons.keys() >= {"child_killed", "worker_lost"}


def make_offers(models: list[str], count: int) -> list[Offer]:
    """To each model in turn; every fifth leaves the weights as they were."""
    names = [f"source-{number}" for number in range(count)]
    return [
        Offer(
            models[number % len(models)],
            name,
            checkpoint(name, ticks=10, useless=number % 5 == 4, remembered=True),
        )
        for number, name in enumerate(names)
    ]
