"""What a method remembers: handed from version to version, whatever happens to a fold."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import pytest

from registry.blobs.collection import collect_blobs
from registry.blobs.damage import scrub
from registry.tables import Model, utc_now
from registry.versions import rollback
from tests.service.fake_folds import chain, checkpoint, remember, states
from tests.service.place import Place, codes
from worker.loop import Worker

BASE = checkpoint("the base")
SOURCES = [checkpoint(label, remembered=True) for label in "abcd"]


@pytest.fixture
def worker(place: Place) -> Iterator[Worker]:
    with place.worker() as found:
        yield found


def test_each_version_has_the_state_after_its_source(place: Place, worker: Worker) -> None:
    with_base = place.ready_model("with", files={"base": place.put(BASE)})
    without = place.ready_model("without")
    for source in SOURCES:
        for model in (with_base, without):
            place.offer(model, source)

    assert worker.drain() == 2 * len(SOURCES)

    assert place.states(with_base) == states(SOURCES, base=BASE)
    assert place.states(without) == states(SOURCES)
    sizes = [place.store.fetch(sha256).stat().st_size for sha256 in states(SOURCES)]
    assert [file.size for version in place.versions(without) for file in version.files] == sizes
    assert not any(report.problem for report in scrub(place.database, place.store))


def test_a_fold_that_remembers_nothing_leaves_none(place: Place, worker: Worker) -> None:
    model = place.ready_model()
    for source in (SOURCES[0], checkpoint("x"), SOURCES[1]):
        place.offer(model, source)

    worker.drain()

    [first] = states(SOURCES[:1])
    [anew] = states(SOURCES[1:2])
    assert place.states(model) == [first, None, anew]


def test_weights_that_stay_as_they_were_make_a_version_with_what_is_remembered(
    place: Place, worker: Worker
) -> None:
    model = place.ready_model(keep_versions=1)
    useless = checkpoint("useless", remembered=True, useless=True)
    sources = [SOURCES[0], useless, SOURCES[1]]
    for source in sources[:2]:
        place.offer(model, source)

    worker.drain()

    first, second = place.versions(model)
    assert second.sha256 == first.sha256
    assert (second.parent, second.method) == (1, first.method)
    assert place.states(model) == [None, states(sources[:2])[-1]]  # as only one is kept
    assert second.pruned_at is None
    kept = place.store.fetch(second.sha256)  # which the version that was pruned had, too
    assert hashlib.sha256(kept.read_bytes()).hexdigest() == second.sha256
    place.offer(model, sources[2])
    worker.drain()
    assert place.hashes(model) == chain(sources)
    assert not any(report.problem for report in scrub(place.database, place.store))


def test_who_goes_back_goes_on_from_the_state_of_then(place: Place, worker: Worker) -> None:
    model = place.ready_model()
    for source in SOURCES[:3]:
        place.offer(model, source)
    worker.drain()

    with place.database.write() as session:
        rollback(session, session.get_one(Model, model.id), 1, utc_now())
    place.offer(model, SOURCES[3])
    worker.drain()

    first, *_ = states(SOURCES)
    assert place.states(model)[3] == first
    assert place.states(model)[4] == states([SOURCES[0], SOURCES[3]])[1]


def test_a_dry_run_reads_the_state_and_leaves_it(place: Place, worker: Worker) -> None:
    model = place.ready_model()
    place.offer(model, SOURCES[0])
    worker.drain()
    before = place.blobs()

    job = place.try_out(model, SOURCES[1])
    worker.drain()

    assert place.job(job).status == "succeeded"
    assert place.blobs() == before
    assert place.states(model) == states(SOURCES[:1])


@pytest.mark.parametrize("deed", ["die", "exit", "raise"])
def test_a_fold_that_is_begun_again_leaves_the_same_state(
    place: Place, worker: Worker, deed: str
) -> None:
    killed = checkpoint("killed", deed, deed, remembered=True)
    model = place.ready_model()
    place.offer(model, SOURCES[0])
    job = place.offer(model, killed)
    place.offer(model, SOURCES[1])

    worker.drain()

    assert (place.job(job).status, len(codes(place.job(job)))) == ("succeeded", 2)
    assert place.states(model) == states([SOURCES[0], killed, SOURCES[1]])
    assert place.work() == []


def test_states_go_with_the_versions_that_are_not_kept(place: Place, worker: Worker) -> None:
    model = place.ready_model(keep_versions=1)
    for source in SOURCES:
        place.offer(model, source)
    worker.drain()

    collect_blobs(place.database, place.store, min_age=0)

    assert place.blobs() == {place.hashes(model)[-1], states(SOURCES)[-1]}


def test_the_state_is_not_the_weights(place: Place, worker: Worker) -> None:
    """Two blobs, each with bytes of its own."""
    model = place.ready_model()
    place.offer(model, SOURCES[0])
    worker.drain()

    [version] = place.versions(model)
    [state] = version.files
    assert (state.name, version.method) == ("state/fake", "fake")
    assert state.sha256 != version.sha256
    stored = place.store.fetch(state.sha256).read_bytes()
    assert stored == remember(None, None, SOURCES[0])
    assert hashlib.sha256(stored).hexdigest() == state.sha256
