"""Sources: each accepted once, whoever offers it and how often."""

import json
import threading
from array import array
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file
from sqlalchemy import update

from grasp_core.content import digest_content
from grasp_core.errors import CheckpointMismatch
from grasp_core.manifest import Found
from registry import sources
from registry.blobs.base import BlobMissing
from registry.blobs.damage import note_problem
from registry.blobs.safetensors_header import Header
from registry.errors import Conflict
from registry.jobs.transitions import Failure
from registry.sources import check_fit
from registry.tables import Model, Source
from tests.registry.conftest import World, blob

BAD = Failure("broken", "it is broken", retryable=False)
MANIFEST = {
    "architecture": "tiny",
    "classes": 2,
    "tensors": {
        "stem.weight": {"shape": [4, 3], "dtype": "F32", "kind": "parameter"},
        "head.weight": {"shape": [2, 4], "dtype": "F32", "kind": "parameter", "head": True},
    },
}


def test_a_source_is_stored_with_the_job_that_folds_it(world: World) -> None:
    model = world.ready_model()

    made, job, new = world.offer(model, "a")

    assert new
    source = world.get(Source, made.id)
    assert (source.owner, source.model_id, source.name) == ("ann", model.id, "a")
    assert (source.sha256, source.size, source.stored) == (*blob("a"), True)
    stored = world.job(job)
    assert (stored.id, stored.kind, stored.status) == (source.job_id, "fold", "queued")
    assert (stored.source_id, stored.model_id, stored.queue_id) == (source.id, model.id, model.id)


def test_the_same_bytes_give_the_same_source_and_job(world: World) -> None:
    model, other = world.ready_model("one"), world.ready_model("two")
    source, job, _ = world.offer(model, "a")
    before = world.rows()

    again, same_job, new = world.offer(model, "a")

    assert (again.id, same_job.id, new) == (source.id, job.id, False)
    assert world.rows() == before
    assert world.offer(other, "a")[2]


def test_the_same_weights_in_another_file_give_the_same_source_and_job(world: World) -> None:
    model, other = world.ready_model("one"), world.ready_model("two")
    source, job, _ = world.offer(model, "a", weights="w")
    before = world.rows()

    again, same_job, new = world.offer(model, "a with notes", weights="w")

    assert (again.id, same_job.id, new) == (source.id, job.id, False)
    assert world.rows() == before
    assert world.offer(other, "a with notes", weights="w")[2]
    assert world.offer(model, "b", weights="others")[2]


def test_of_two_that_an_older_release_took_the_first_is_given(world: World) -> None:
    model = world.ready_model()
    first, second = (world.offer(model, name)[0] for name in "ab")
    with world.database.write() as session:
        for source in (first, second):
            session.get_one(Source, source.id).content = blob("w").sha256
        session.get_one(Source, first.id).created_at = world.now - timedelta(days=1)
        session.get_one(Source, second.id).created_at = world.now

    def offer(name: str) -> str:
        with world.database.write() as session:
            content = blob("w").sha256
            return sources.offer_source(
                session, model, blob(name), content=content, name="", classes=None
            )[0].id

    assert offer("c") == first.id
    assert offer("b") == second.id  # bytes say more than weights


def test_a_retry_reads_the_bytes_that_came_last_if_the_first_are_gone(world: World) -> None:
    model = world.ready_model()
    source, job, _ = world.offer(model, "a", weights="w")
    world.reject(world.lease_of(job))

    world.offer(model, "a with notes", weights="w")

    stored = world.get(Source, source.id)
    assert (stored.sha256, stored.size, stored.stored) == (*blob("a with notes"), True)
    world.offer(model, "a", weights="w")  # both are here now
    assert world.get(Source, source.id).sha256 == blob("a with notes").sha256


@pytest.mark.parametrize("bad", [True, False])
def test_bytes_of_a_failed_fold_stay_unless_they_are_bad(world: World, bad: bool) -> None:
    model = world.ready_model()
    source, job, _ = world.offer(model, "a", weights="w")
    world.fail(world.lease_of(job), BAD)
    if bad:
        with world.database.write() as session:
            note_problem(session, blob("a").sha256, "missing", world.now)

    world.offer(model, "a with notes", weights="w")

    expected = "a with notes" if bad else "a"
    assert world.get(Source, source.id).sha256 == blob(expected).sha256


@pytest.mark.parametrize("ended", [True, False])
def test_what_waits_or_was_folded_keeps_the_bytes_that_came_first(
    world: World, ended: bool
) -> None:
    model = world.ready_model()
    source, job, _ = world.offer(model, "a", weights="w")
    if ended:
        world.publish(world.lease_of(job), None, "weights")
    before = world.rows()

    world.offer(model, "a with notes", weights="w")

    assert world.get(Source, source.id).sha256 == blob("a").sha256
    assert world.rows() == before


def test_weights_of_older_releases_are_digested_where_their_bytes_are(
    world: World, tmp_path: Path
) -> None:
    def fetch(sha256: str) -> Path:
        if sha256 == blob("lost").sha256:
            raise BlobMissing("it is gone")
        return tmp_path / "w"

    model, other = world.ready_model("one"), world.ready_model("other")
    offered = {name: world.offer(model, name)[0].id for name in ("kept", "lost", "bad", "let go")}
    offered["another model's"] = world.offer(other, "a")[0].id
    with world.database.write() as session:
        session.execute(update(Source).values(content=None))
        session.get_one(Source, offered["let go"]).stored = False
        note_problem(session, blob("bad").sha256, "damaged", world.now)
    save_file({"w": np.zeros(3)}, tmp_path / "w")

    with world.database.read() as session:
        undigested = sources.find_undigested(session, model.id)
    sources.digest_stored(world.database, fetch, undigested)

    known = {name for name in offered if world.get(Source, offered[name]).content}
    assert known == {"kept"}
    assert world.get(Source, offered["kept"]).content == digest_content(tmp_path / "w")
    world.offer(model, "let go")  # its bytes came again
    assert world.get(Source, offered["let go"]).content


def test_offers_at_once_make_one_source(world: World) -> None:
    model = world.ready_model()
    together = threading.Barrier(6)

    def offer(_: int) -> tuple[str, str, bool]:
        together.wait()
        source, job, new = world.offer(model, "a")
        return source.id, job.id, new

    with ThreadPoolExecutor(6) as pool:
        answers = list(pool.map(offer, range(6)))

    assert len({answer[:2] for answer in answers}) == 1
    assert [answer[2] for answer in answers].count(True) == 1
    assert world.queue(model.id).next_seq == 2


@pytest.mark.parametrize("keep_sources", [False, True])
def test_the_bytes_of_a_folded_source_are_let_go(world: World, keep_sources: bool) -> None:
    model = world.ready_model(keep_sources=keep_sources)
    source, job, _ = world.offer(model, "a")
    assert world.get(Source, source.id).stored

    world.publish(world.lease_of(job), None, "weights")

    assert world.get(Source, source.id).stored is keep_sources
    world.offer(model, "a")  # succeeded: they are not needed again
    assert world.get(Source, source.id).stored is keep_sources


def test_a_rejected_source_offered_again_can_be_retried(world: World) -> None:
    model = world.ready_model()
    source, job, _ = world.offer(model, "a")
    world.reject(world.lease_of(job))
    assert not world.get(Source, source.id).stored

    again, same_job, new = world.offer(model, "a")

    assert (again.id, same_job.id, new) == (source.id, job.id, False)
    assert world.get(Source, source.id).stored
    world.retry(job)
    assert world.publish(world.lease_of(job), None, "weights") == 1


@pytest.mark.parametrize("ending", ["failed", "cancelled"])
def test_a_source_that_was_not_folded_is_kept(world: World, ending: str) -> None:
    source, job, _ = world.offer(world.ready_model(), "a")

    if ending == "failed":
        world.fail(world.lease_of(job), BAD)
    else:
        world.cancel(job)

    assert world.get(Source, source.id).stored


def test_a_model_that_could_not_be_prepared_takes_nothing(world: World) -> None:
    model, job = world.add_model(world.ready_target())
    world.offer(model, "early")  # while it is undecided
    world.fail(world.lease_of(job), BAD)
    failed = world.get(Model, model.id)
    before = world.rows()

    with pytest.raises(Conflict, match="it is broken") as raised:
        world.offer(failed, "a")
    with pytest.raises(Conflict, match="it is broken"):
        world.try_out(failed, "a")

    assert f"/jobs/{job.id}/retry" in str(raised.value.hint)
    assert world.rows() == before


def test_a_trial_makes_a_job_but_no_source(world: World) -> None:
    model = world.ready_model()

    jobs = [world.try_out(model, "a") for _ in range(2)]

    assert jobs[0].id != jobs[1].id
    stored = world.job(jobs[0])
    assert (stored.kind, stored.source_id) == ("dry_run", None)
    assert stored.candidate == {"name": "a", "size": 1, "classes": None}
    assert stored.candidate_sha256 == blob("a").sha256
    assert world.rows()["sources"] == []


def header(classes: int, metadata: dict[str, str] | None = None) -> Header:
    tensors = {"stem.weight": Found((4, 3), "F32"), "head.weight": Found((classes, 4), "F32")}
    return Header(tensors=tensors, metadata=metadata or {}, size=0, offsets=array("q"))


def test_a_header_is_compared_with_the_manifest() -> None:
    model = Model(manifest=MANIFEST)

    check_fit(model, header(2), None, "a")
    check_fit(model, header(5), list("abcde"), "a")
    own = {"grasp": json.dumps({"classes": ["a", "b", "c"]})}
    check_fit(model, header(3, own), None, "a")
    with pytest.raises(CheckpointMismatch, match=r"head\.weight"):
        check_fit(model, header(5), list("abc"), "a")
    for odd in ("no JSON", "[]", '{"classes": 3}'):
        check_fit(model, header(2, {"grasp": odd}), None, "a")


def test_a_model_that_is_not_prepared_takes_any_header() -> None:
    check_fit(Model(manifest=None), header(7), ["a"], "a")
