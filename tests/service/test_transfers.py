"""A blob store far away: bytes may take longer than a lease lasts."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from registry.tables import Queue, utc_now
from tests.service.fake_folds import chain, checkpoint
from tests.service.place import Place

LEASE_S = 2.0


@pytest.fixture
def far_away(home: Path) -> Iterator[Place]:
    place = Place(home, lease_seconds=LEASE_S, heartbeat_seconds=0.5)
    yield place
    place.database.close()


@pytest.mark.parametrize("slow", ["fetch", "adopt"])
def test_a_lease_lasts_while_bytes_are_on_their_way(far_away: Place, slow: str) -> None:
    model = far_away.ready_model()
    source = checkpoint("a")
    job = far_away.offer(model, source)

    with far_away.worker() as worker:
        make_slow(worker.store, slow, holds=lambda: has_been_renewed(far_away, model.id))
        assert worker.drain() == 1

    ended = far_away.job(job)
    assert (ended.status, ended.attempts, ended.failures) == ("succeeded", 1, [])
    assert far_away.hashes(model) == chain([source])


def make_slow(store: Any, name: str, holds: Callable[[], bool]) -> None:
    """Let the call take twice as long as a lease, during which that lease must be renewed."""
    quick = getattr(store, name)

    def slow(*arguments: Any) -> Any:
        time.sleep(2 * LEASE_S)
        assert holds()
        return quick(*arguments)

    setattr(store, name, slow)


def has_been_renewed(place: Place, queue_id: str) -> bool:
    with place.database.read() as session:
        expires_at = session.scalars(select(Queue.expires_at).where(Queue.id == queue_id)).one()
    return expires_at is not None and expires_at > utc_now()
