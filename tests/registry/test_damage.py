"""What is known to be bad: who waits for it, for how long, and when that is over."""

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path

import pytest

from registry.blobs.damage import (
    LATEST,
    SOONEST,
    count_problems,
    find_bad_inputs,
    find_problems,
    forget_problems,
    forget_unneeded,
    note_problem,
    scrub,
)
from registry.blobs.local import LocalBlobStore
from registry.tables import BlobProblem, Model, ProblemKind
from registry.targets import create_target
from tests.registry.conftest import START, World, blob


def note(world: World, content: str, problem: ProblemKind = "damaged") -> None:
    with world.database.write() as session:
        note_problem(session, blob(content).sha256, problem, world.now)


def forget(world: World, content: str) -> None:
    with world.database.write() as session:
        forget_problems(session, [blob(content).sha256])


def known(world: World, *contents: str) -> list[ProblemKind | None]:
    names = [blob(content).sha256 for content in contents]
    with world.database.read() as session:
        found = find_problems(session, names)
    return [found.get(name) for name in names]


def next_look(world: World, content: str) -> datetime:
    return world.get(BlobProblem, blob(content).sha256).look_at


def test_jobs_of_a_model_whose_newest_version_is_bad_wait_and_others_run(world: World) -> None:
    held, free = world.ready_model("held"), world.ready_model("free")
    world.fold(held, "a", "old weights")
    world.fold(held, "b", "weights")
    world.fold(free, "a", "other weights")
    note(world, "weights")
    note(world, "old weights")  # which nobody folds into
    _, waiting, _ = world.offer(held, "c")
    _, running, _ = world.offer(free, "c")

    world.publish(world.lease_of(running), 1, "more weights")
    assert world.claim() is None

    world.later(SOONEST.total_seconds())
    lease = world.lease_of(waiting)  # to look again
    note(world, "weights")
    world.hand_back(lease)
    assert world.claim() is None

    world.rollback(held, 1)  # not to be recommended, but another version
    forget(world, "old weights")
    world.lease_of(waiting)


def test_jobs_of_a_model_whose_state_or_base_is_bad_wait_and_say_why(world: World) -> None:
    model = world.ready_model(files={"base": blob("ancestor")})
    world.fold(model, "a", state="old state")
    world.fold(model, "b", state="state")
    note(world, "old state")  # which nobody goes on from
    _, waiting, _ = world.offer(model, "c")

    for content, words in (
        ("state", "state/grasp of version 2 of model 'merged' is damaged"),
        ("ancestor", "base of model 'merged' is damaged"),
    ):
        note(world, content)
        assert world.claim() is None
        with world.database.read() as session:
            [hold] = find_bad_inputs(session, [world.get(Model, model.id)]).values()
        assert hold.message.startswith(words)
        forget(world, content)

    world.lease_of(waiting)


def test_a_model_with_a_bad_base_is_not_prepared(world: World) -> None:
    target = world.ready_target()
    _, preparation = world.add_model(target, files={"base": blob("ancestor")})
    note(world, "ancestor")
    assert world.claim() is None
    forget(world, "ancestor")
    world.lease_of(preparation)


def test_all_queues_that_need_a_bad_archive_wait(world: World) -> None:
    with world.database.write() as session:
        _, validation = create_target(session, "ann", "faces", blob=blob("archive"))
    note(world, "archive")
    assert world.claim() is None
    forget(world, "archive")
    lease = world.lease_of(validation)
    world.close(lease, "succeeded")
    with world.database.write() as session:
        target, second = create_target(session, "ann", "again", blob=blob("archive"))
    world.close(world.lease_of(second), "succeeded")
    _, preparation = world.add_model(target)

    note(world, "archive")
    assert world.claim() is None
    forget(world, "archive")
    world.lease_of(preparation)


def test_looks_are_ever_farther_apart(world: World) -> None:
    pauses = []
    for _ in range(9):
        note(world, "weights")
        pauses.append(next_look(world, "weights") - world.now)
        world.now += pauses[-1]

    assert pauses[:4] == [SOONEST, SOONEST, 2 * SOONEST, 4 * SOONEST]
    assert pauses[-1] == LATEST


def test_who_looks_early_does_not_put_off_the_next_look(world: World) -> None:
    note(world, "weights")
    world.later(30)

    note(world, "weights", "missing")

    assert next_look(world, "weights") == START + SOONEST
    assert known(world, "weights") == ["missing"]


def test_many_may_notice_at_once(world: World) -> None:
    start = threading.Barrier(4)

    def notice(_: int) -> None:
        start.wait()
        note(world, "weights")

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(notice, range(4)))

    with world.database.read() as session:
        assert count_problems(session) == {"damaged": 1, "missing": 0, "unreadable": 0}


def test_bytes_that_are_stored_anew_are_sound(world: World) -> None:
    model = world.ready_model(keep_sources=True)
    contents = ["source", "tried", "archive", "weights", "state", "ancestor"]
    for content in contents:
        note(world, content)

    world.fold(model, "source", "weights", "state")
    world.try_out(model, "tried")
    with world.database.write() as session:
        target, _ = create_target(session, "ann", "archive", blob=blob("archive"))
    world.add_model(target, "other", files={"base": blob("ancestor")})

    assert known(world, *contents) == [None] * 6


def test_what_nothing_needs_is_no_problem(world: World) -> None:
    world.fold(world.ready_model(), "a", "weights")
    note(world, "weights")
    note(world, "of a deleted model")

    forget_unneeded(world.database)

    assert known(world, "weights", "of a deleted model") == ["damaged", None]


@pytest.mark.parametrize("problem", ["damaged", "missing", "unreadable"])
def test_a_model_says_what_its_jobs_wait_for(world: World, problem: ProblemKind) -> None:
    model, other = world.ready_model("faces"), world.ready_model("other")
    world.fold(model, "a", "weights")
    world.fold(other, "a", "other weights")
    note(world, "weights", problem)

    with world.database.read() as session:
        rows = [world.get(type(model), each.id) for each in (model, other)]
        holds = find_bad_inputs(session, rows)

    assert holds.keys() == {model.id}
    hold = holds[model.id]
    expected = {"damaged": "blob_damaged", "missing": "blob_missing"}
    assert hold.code == expected.get(problem, "storage_error")
    assert hold.message.startswith("version 1 of model 'faces' ")
    assert blob("weights").sha256 in hold.message
    assert hold.hint is not None


def test_scrub_notes_what_is_needed_and_what_is_sound_again(world: World, tmp_path: Path) -> None:
    store = LocalBlobStore(tmp_path / "blobs")
    for content in ("weights", "unneeded"):
        with store.create() as writer:
            writer.write(content.encode())
            writer.commit()
    model = world.ready_model()
    world.fold(model, "a", "weights")
    for content in ("weights", "unneeded"):
        path = store.fetch(blob(content).sha256)
        path.chmod(0o644)
        path.write_bytes(b"other")

    assert {report.problem for report in scrub(world.database, store)} == {"damaged"}
    assert known(world, "weights", "unneeded") == ["damaged", None]

    store.fetch(blob("weights").sha256).write_bytes(b"weights")
    assert [r.problem for r in scrub(world.database, store) if r.uses] == [None]
    assert known(world, "weights") == [None]
