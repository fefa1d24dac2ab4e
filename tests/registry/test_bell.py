"""The doorbell: rung after commit, by name, and never in anybody's way."""

import json
from collections.abc import Iterator
from unittest.mock import Mock

import pytest
import redis

from registry.jobs.bell import (
    RING,
    CeleryBell,
    Ring,
    broker_answers,
    celery_queue,
    open_bell,
    silence,
)
from registry.jobs.queue import ring_waiting
from registry.tables import Model
from registry.targets import create_target, record_validation
from tests.registry.conftest import World
from tests.servers import Redis
from tests.worker.waiting import until


class Heard:
    """A bell that remembers."""

    def __init__(self) -> None:
        self.rings: list[Ring] = []

    def __call__(self, ring: Ring) -> None:
        self.rings.append(ring)


@pytest.fixture
def heard(world: World, monkeypatch: pytest.MonkeyPatch) -> list[Ring]:
    bell = Heard()
    monkeypatch.setattr(world.database, "_bell", bell)
    return bell.rings


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A real Redis."""
    server = Redis(tmp_path_factory.mktemp("redis"))
    server.start()
    yield server.url
    server.close()


def test_work_rings_after_its_commit_and_once(world: World, heard: list[Ring]) -> None:
    model = world.ready_model()
    heard.clear()

    with world.database.write() as session:
        session.get_one(Model, model.id).device_class = "gpu"
    _, job, _ = world.offer(model, "a")
    assert heard == [Ring(model.id, "gpu")]

    world.hand_back(world.lease_of(job))
    world.cancel(job)
    world.retry(job)
    assert heard == [Ring(model.id, "gpu")] * 3


def test_what_is_not_committed_does_not_ring(world: World, heard: list[Ring]) -> None:
    class Undone(Exception):
        pass

    def give_up() -> None:
        with world.database.write() as session:
            create_target(session, "ann", "faces", uri="file:///data")
            raise Undone

    with pytest.raises(Undone):
        give_up()

    assert heard == []


def test_what_nobody_took_up_is_rung_for_again(world: World, heard: list[Ring]) -> None:
    waiting, held = world.ready_model("waiting"), world.ready_model("held")
    world.offer(held, "a")
    assert world.claim() is not None
    world.offer(waiting, "b")
    heard.clear()

    with world.database.write() as session:
        ring_waiting(session, world.now)

    assert heard == [Ring(waiting.id, None)]


def test_a_validated_target_rings_for_its_models(world: World, heard: list[Ring]) -> None:
    target, validation = world.add_target()
    model, _ = world.add_model(target, device_class="gpu")
    lease = world.lease_of(validation)
    heard.clear()

    with world.database.write() as session:
        record_validation(session, lease, {"classes": ["F", "M"]}, world.now)

    assert heard == [Ring(model.id, "gpu")]


def test_a_ring_is_a_small_json_message_by_name(broker: str) -> None:
    bell = open_bell(broker)
    client = redis.Redis.from_url(broker)

    bell(Ring("mdl_1", "gpu"))
    until(lambda: client.llen(celery_queue("gpu")))

    [message] = client.lrange(celery_queue("gpu"), 0, -1)
    assert json.loads(message)["headers"]["task"] == RING
    assert json.loads(message)["content-type"] == "application/json"
    client.close()


def test_rings_that_nobody_takes_do_not_pile_up(
    broker: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("registry.jobs.bell.ENOUGH", 3)
    bell = open_bell(broker)
    client = redis.Redis.from_url(broker)
    client.flushall()

    for number in range(9):
        bell(Ring(f"mdl_{number}", "gpu"))
    bell(Ring("mdl_cpu", "cpu"))
    until(lambda: client.llen(celery_queue("cpu")) == 1)
    bell(Ring("mdl_cpu", "cpu"))
    until(lambda: client.llen(celery_queue("cpu")) == 2)  # so all before it are done with

    assert client.llen(celery_queue("gpu")) == 3
    client.close()


def test_a_broker_that_is_away_holds_nothing_up(monkeypatch: pytest.MonkeyPatch) -> None:
    nowhere = "redis://127.0.0.1:1/0"
    log = Mock()
    monkeypatch.setattr("registry.jobs.bell.log", log)
    bell = CeleryBell(nowhere)

    bell(Ring("mdl_1", None))

    until(lambda: log.warning.called)
    assert not broker_answers(nowhere)


def test_without_a_broker_there_is_silence() -> None:
    assert open_bell(None) is silence
