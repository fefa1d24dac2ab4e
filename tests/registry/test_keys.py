"""API keys, repeated requests, and the list of workers."""

import hashlib
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import get_args

import pytest

from registry import answers, keys
from registry.errors import Conflict, KeyReused, NotFound
from registry.jobs import workers
from registry.keys import Caller
from registry.tables import ApiKey, Scope, Worker, utc_now
from tests.registry.conftest import START, World

ORDER: tuple[Scope, ...] = ("read", "write", "admin")


def caller_of(world: World, secret: str) -> Caller | None:
    with world.database.read() as session:
        found = keys.authenticate(session, secret, world.now)
    return found[0] if found else None


def make_key(world: World, scope: Scope = "write", **options: object) -> tuple[ApiKey, str]:
    expires_at = START + timedelta(hours=1) if options.get("expires") else None
    with world.database.write() as session:
        return keys.create_key(session, "ann", scope, expires_at)


def test_a_key_tells_who_asks(world: World) -> None:
    key, secret = make_key(world)

    assert caller_of(world, secret) == Caller("ann", "write", key.id)
    for wrong in ("", secret[:-1], secret + "x", secret.upper(), secret.removeprefix("grasp_")):
        assert caller_of(world, wrong) is None


def test_only_the_hash_of_a_key_is_stored(world: World) -> None:
    key, secret = make_key(world)

    assert key.sha256 == hashlib.sha256(secret.encode()).hexdigest()
    assert secret.removeprefix("grasp_") not in repr(world.rows())
    assert make_key(world)[1] != secret


def test_a_key_ends_when_it_expires(world: World) -> None:
    _, secret = make_key(world, expires=True)

    world.later(3600 - 0.001)
    assert caller_of(world, secret)
    world.later(0.001)
    assert caller_of(world, secret) is None


def test_a_revoked_key_is_none_but_is_still_listed(world: World) -> None:
    key, secret = make_key(world)
    _, other = make_key(world)

    with world.database.write() as session:
        keys.revoke_key(session, key.id, world.now)

    assert caller_of(world, secret) is None
    assert caller_of(world, other)
    for id_ in (key.id, "key_none"):
        with pytest.raises(NotFound), world.database.write() as session:
            keys.revoke_key(session, id_, world.now)
    with world.database.read() as session:
        assert {row.id: row.revoked_at for row in keys.list_keys(session)}[key.id] == world.now


def test_revoking_the_last_key_does_not_open_the_service(world: World) -> None:
    with world.database.read() as session:
        assert not keys.any_keys(session)
    key, _ = make_key(world)

    with world.database.write() as session:
        keys.revoke_key(session, key.id, world.now)

    with world.database.read() as session:
        assert keys.any_keys(session)


@pytest.mark.parametrize("held", ORDER)
def test_a_scope_includes_the_lesser_ones(held: Scope) -> None:
    allowed = {scope for scope in get_args(Scope) if Caller("ann", held).may(scope)}

    assert allowed == set(ORDER[: ORDER.index(held) + 1])


def test_use_is_noted_now_and_then(world: World) -> None:
    key, _ = make_key(world)
    assert keys.use_is_due(key, world.now)

    with world.database.write() as session:
        keys.note_use(session, key.id, world.now)

    noted = world.get(ApiKey, key.id)
    assert noted.last_used_at == world.now
    assert not keys.use_is_due(noted, world.now + keys.USE_NOTED_EVERY)
    assert keys.use_is_due(noted, world.now + keys.USE_NOTED_EVERY + timedelta(seconds=1))


def remember(world: World, owner: str, key: str, request: str = "r") -> None:
    with world.database.write() as session:
        answers.remember(
            session, owner, key, request, status=202, location="/jobs/1", body={"a": [1, None]}
        )


def test_an_answer_is_forgotten_after_a_week(world: World) -> None:
    remember(world, "ann", "key")

    def known_after(days: float) -> bool:
        with world.database.write() as session:
            answers.forget_answers(session, utc_now() + timedelta(days=days))
            return answers.recall(session, "ann", "key", "r") is not None

    assert known_after(6.9)
    assert not known_after(7.1)


def test_an_answer_is_given_again(world: World) -> None:
    remember(world, "ann", "key")

    with world.database.read() as session:
        answer = answers.recall(session, "ann", "key", "r")
        assert answer is not None
        assert (answer.status, answer.location) == (202, "/jobs/1")
        assert answer.body == {"a": [1, None]}
        assert answers.recall(session, "bob", "key", "other") is None
        assert answers.recall(session, "ann", "another", "r") is None
        with pytest.raises(KeyReused):
            answers.recall(session, "ann", "key", "other")


def test_of_equal_requests_at_once_one_happens(world: World) -> None:
    together = threading.Barrier(4)

    def ask(thread: int) -> bool:
        together.wait()
        try:
            with world.database.write() as session:
                session.add(Worker(id=f"wrk_{thread}", host="h", pid=1, device="cpu", release="1"))
                answers.remember(session, "ann", "k", "r", status=202, location=None, body={})
        except Conflict:
            return False
        return True

    with ThreadPoolExecutor(4) as pool:
        happened = list(pool.map(ask, range(4)))

    assert sum(happened) == 1
    with world.database.read() as session:  # the work of the others is undone with their answer
        left = [worker.id for worker in workers.list_workers(session)]
    assert left == [f"wrk_{happened.index(True)}"]


def worker(name: str, **values: object) -> Worker:
    return Worker(id=name, host="h", pid=1, device="cpu", release="1", **values)


def test_workers_come_and_go(world: World) -> None:
    with world.database.write() as session:
        workers.register_worker(session, worker("wrk_a", seen_at=world.now))
        workers.register_worker(session, worker("wrk_b", seen_at=world.now))
        workers.see_worker(session, "wrk_b", "job_1", world.now + timedelta(seconds=15))
        workers.remove_worker(session, "wrk_a")

    with world.database.read() as session:
        (left,) = workers.list_workers(session)
    assert (left.id, left.job_id) == ("wrk_b", "job_1")
    assert left.seen_at == START + timedelta(seconds=15)


def test_registering_forgets_the_long_silent_and_takes_a_name_again(world: World) -> None:
    old, recent = START - timedelta(days=1, seconds=1), START - timedelta(hours=23)
    with world.database.write() as session:
        session.add_all([worker("wrk_a", seen_at=old), worker("wrk_b", seen_at=recent)])

    with world.database.write() as session:
        workers.register_worker(session, worker("wrk_c", seen_at=START))
        workers.register_worker(session, worker("wrk_c", seen_at=START))

    with world.database.read() as session:
        assert [w.id for w in workers.list_workers(session)] == ["wrk_b", "wrk_c"]


def test_a_worker_without_a_time_is_seen_now(world: World) -> None:
    with world.database.write() as session:
        workers.register_worker(session, worker("wrk_a"))

    assert world.get(Worker, "wrk_a").seen_at is not None
