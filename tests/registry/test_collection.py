"""What is referred to is kept; the rest goes."""

from pathlib import Path

from registry import targets
from registry.blobs import collection
from registry.blobs.collection import is_referenced
from registry.blobs.local import LocalBlobStore
from registry.models import delete_model
from registry.tables import Model, Source
from tests.registry.conftest import World, blob


def needed(world: World, content: str) -> bool:
    with world.database.read() as session:
        return is_referenced(session, blob(content).sha256)


def test_an_uploaded_target_is_kept_until_it_is_deleted(world: World) -> None:
    with world.database.write() as session:
        target, _ = targets.create_target(session, "ann", "faces", blob=blob("archive"))
    assert needed(world, "archive")

    with world.database.write() as session:
        targets.delete_target(session, session.get_one(type(target), target.id))

    assert not needed(world, "archive")


def test_versions_are_kept_until_they_are_pruned(world: World) -> None:
    model = world.ready_model(keep_versions=1)
    world.fold(model, "a", "first")
    assert needed(world, "first")

    world.fold(model, "b", "second")

    assert (needed(world, "first"), needed(world, "second")) == (False, True)


def test_states_are_kept_until_their_versions_are_pruned(world: World) -> None:
    model = world.ready_model(keep_versions=1)
    world.fold(model, "a", state="first")
    assert needed(world, "first")

    world.fold(model, "b", state="second")

    assert (needed(world, "first"), needed(world, "second")) == (False, True)


def test_a_base_is_kept_while_its_model_lives(world: World) -> None:
    target = world.ready_target()
    one = world.ready_model("one", target=target, files={"base": blob("ancestor")})
    two = world.ready_model("two", target=target, files={"base": blob("ancestor")})
    world.fold(one, "ancestor")  # the same bytes as a source, which are not needed as such

    for model, still in ((one, True), (two, False)):
        assert needed(world, "ancestor")
        with world.database.write() as session:
            delete_model(session, session.get_one(Model, model.id))
        assert needed(world, "ancestor") is still


def test_bytes_that_two_need_are_kept_while_one_does(world: World) -> None:
    one, two = world.ready_model("one", keep_versions=1), world.ready_model("two")
    world.fold(one, "a", "same")
    world.fold(two, "a", "same")

    world.fold(one, "b", "other")

    assert needed(world, "same")


def test_sources_are_kept_until_they_are_folded(world: World) -> None:
    model = world.ready_model()
    _, job, _ = world.offer(model, "a")
    lease = world.lease_of(job)
    assert needed(world, "a")

    world.publish(lease, None, "weights")

    assert not needed(world, "a")


def test_a_dry_run_keeps_its_candidate_while_it_waits_or_runs(world: World) -> None:
    job = world.try_out(world.ready_model(), "a")
    assert needed(world, "a")
    lease = world.lease_of(job)
    assert needed(world, "a")

    world.close(lease, "succeeded")

    assert not needed(world, "a")
    assert not needed(world, "never heard of")


def test_unreferenced_blobs_are_deleted(world: World, tmp_path: Path) -> None:
    store = LocalBlobStore(tmp_path / "blobs")
    for content in ("a", "b", "weights"):
        with store.create() as writer:
            writer.write(content.encode())
            writer.commit()
    model = world.ready_model()
    source, job, _ = world.offer(model, "a")
    world.publish(world.lease_of(job), None, "weights")
    world.offer(model, "b")
    assert not world.get(Source, source.id).stored

    assert collection.collect_blobs(world.database, store, 3600) == []
    assert collection.collect_blobs(world.database, store, 0) == [blob("a").sha256]

    assert [store.has(blob(content).sha256) for content in ("a", "b", "weights")] == [
        False,
        True,
        True,
    ]


def test_work_folders_go_with_their_jobs(world: World, tmp_path: Path) -> None:
    model = world.ready_model()
    running, waiting, ended = (world.offer(model, name)[1] for name in "abc")
    world.cancel(ended)
    world.lease_of(running)
    folder = tmp_path / "work"
    collection.collect_work(world.database, folder)  # not there yet
    for name in (running.id, waiting.id, ended.id, "job_unknown"):
        (folder / name / "inner").mkdir(parents=True)
        (folder / name / "inner" / "state").write_text("half done")

    collection.collect_work(world.database, folder)

    assert {path.name for path in folder.iterdir()} == {running.id, waiting.id}
    assert (folder / running.id / "inner" / "state").read_text() == "half done"
