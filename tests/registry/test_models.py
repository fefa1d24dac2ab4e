"""Targets and models: made with their jobs, changed, deleted whole."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from pydantic import ValidationError
from sqlalchemy import select

from grasp_core.config import FoldConfig, GateConfig
from grasp_core.kinds.image.config import PreprocessingOverrides
from grasp_core.methods.grasp import GraspConfig
from grasp_core.parameters import PRESETS, parse_config
from grasp_core.spec import ModelSpec
from registry import models, targets
from registry.errors import NameTaken, NotFound, StillUsed
from registry.jobs import queue
from registry.jobs.transitions import Failure
from registry.lookup import find
from registry.tables import Job, Model, Source, Target, Version
from tests.configs import grasp_alone
from tests.registry.conftest import World, blob


def delete_model(world: World, model: Model) -> None:
    with world.database.write() as session:
        models.delete_model(session, session.get_one(Model, model.id))


def delete_target(world: World, target: Target) -> None:
    with world.database.write() as session:
        targets.delete_target(session, session.get_one(Target, target.id))


MISSPELT = Failure("unknown_architecture", "no such model", retryable=False)


def rename_model(world: World, model: Model, name: str) -> None:
    with world.database.write() as session:
        models.rename_model(session, session.get_one(Model, model.id), name)


def test_a_target_is_made_with_the_job_that_validates_it(world: World) -> None:
    with world.database.write() as session:
        made, job = targets.create_target(
            session, "ann", "faces", blob=blob("archive"), request_id="req"
        )

    target = world.get(Target, made.id)
    assert (target.owner, target.name, target.status) == ("ann", "faces", "validating")
    assert (target.uri, target.sha256, target.size) == (None, *blob("archive"))
    stored = world.job(job)
    assert (stored.kind, stored.status, stored.seq) == ("validate", "queued", 0)
    assert (stored.queue_id, stored.target_id, stored.id) == (target.id, target.id, target.job_id)
    assert stored.request_id == "req"


def test_a_model_is_made_with_the_job_that_prepares_it(world: World) -> None:
    target = world.ready_target()
    merge = grasp_alone(tau=0.2, gate=GateConfig(max_drop=0.1))
    preprocessing = PreprocessingOverrides(image_size=64)

    made, job = world.add_model(
        target, classes=None, merge=merge, preprocessing=preprocessing, keep_versions=2
    )

    model = world.get(Model, made.id)
    assert (model.status, model.version, model.classes) == ("preparing", None, None)
    assert parse_config(model.merge) == merge
    assert (model.keep_versions, model.keep_sources) == (2, False)
    stored = world.job(job)
    assert (stored.kind, stored.seq, stored.id) == ("prepare", 0, model.job_id)
    assert (stored.model_id, stored.target_id) == (model.id, target.id)
    world.prepare(world.lease_of(job))
    prepared = world.get(Model, made.id)
    assert models.spec_of(prepared) == ModelSpec(
        architecture="mobilevit_xxs", classes=("F", "M"), preprocessing=preprocessing
    )
    with world.database.read() as session:  # the manifest is only loaded when asked for
        assert session.get_one(Model, made.id).manifest == {"tensors": {}}


def test_a_name_is_taken_once_per_owner(world: World) -> None:
    target = world.ready_target("faces", owner="ann")
    world.add_target("faces", owner="bob")
    world.add_model(target, "merged")
    before = world.rows()

    with pytest.raises(NameTaken, match="target named 'faces'"):
        world.add_target("faces", owner="ann")
    with pytest.raises(NameTaken, match="model named 'merged'"):
        world.add_model(target, "merged")

    assert world.rows() == before


def test_of_equal_names_at_once_one_is_taken(world: World) -> None:
    target = world.ready_target()
    together = threading.Barrier(4)

    def make(_: int) -> bool:
        together.wait()
        try:
            world.add_model(target, "merged")
        except NameTaken:
            return False
        return True

    with ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(make, range(4))) == 1


def test_a_failed_model_gives_way_to_one_of_its_name(world: World) -> None:
    target = world.ready_target()
    failed, job = world.add_model(target, "merged")
    world.offer(failed, "a")
    world.fail(world.lease_of(job), MISSPELT)

    made, _ = world.add_model(target, "merged")

    rows = world.rows()
    assert [row[0] for row in rows["models"]] == [made.id]
    assert rows["sources"] == []
    assert sorted(row[0] for row in rows["queues"]) == sorted([target.id, made.id])
    assert world.get(Model, made.id).status == "preparing"


def test_a_failed_target_gives_way_with_the_models_that_failed_for_it(world: World) -> None:
    failed, job = world.add_target("faces")
    _, preparation = world.add_model(failed, "merged")
    world.fail(world.lease_of(job), MISSPELT)
    world.fail(world.lease_of(preparation), MISSPELT)

    made, _ = world.add_target("faces")

    rows = world.rows()
    assert [row[0] for row in rows["targets"]] == [made.id]
    assert rows["models"] == []
    assert [row[0] for row in rows["queues"]] == [made.id]


def test_a_failed_target_stays_while_a_model_may_still_be_made_of_it(world: World) -> None:
    failed, job = world.add_target("faces")
    world.add_model(failed, "merged")
    world.fail(world.lease_of(job), MISSPELT)
    before = world.rows()

    with pytest.raises(NameTaken, match="it has failed, but models use it") as caught:
        world.add_target("faces")

    assert caught.value.hint == "delete merged first, or choose another name"
    assert world.rows() == before


def test_a_failed_model_gives_its_name_to_one_that_is_renamed(world: World) -> None:
    target = world.ready_target()
    model = world.ready_model("other", target=target)
    failed, job = world.add_model(target, "merged")
    world.fail(world.lease_of(job), MISSPELT)

    rename_model(world, failed, "merged")  # to what it has
    assert world.get(Model, failed.id).status == "failed"
    rename_model(world, model, "merged")

    assert [row[0] for row in world.rows()["models"]] == [model.id]
    assert world.get(Model, model.id).name == "merged"


def test_what_has_not_failed_keeps_its_name(world: World) -> None:
    target = world.ready_target()
    model = world.ready_model("merged", target=target)
    other = world.ready_model("other", target=target)

    with pytest.raises(NameTaken):
        rename_model(world, other, "merged")
    with pytest.raises(NameTaken):
        world.add_model(target, "merged")

    assert world.get(Model, model.id).status == "ready"


def test_a_failed_model_is_either_tried_again_or_replaced(world: World) -> None:
    target = world.ready_target()
    for i in range(5):
        failed, job = world.add_model(target, f"model {i}")
        world.fail(world.lease_of(job), MISSPELT)
        together = threading.Barrier(2)

        def retry(job: Job = job, together: threading.Barrier = together) -> None:
            together.wait()
            with world.database.write() as session:
                queue.retry(session, find(session, Job, job.owner, job.id))

        def replace(name: str = failed.name, together: threading.Barrier = together) -> None:
            together.wait()
            world.add_model(target, name)

        with ThreadPoolExecutor(2) as pool:
            retried, replaced = pool.submit(retry), pool.submit(replace)
            errors = [type(retried.exception()), type(replaced.exception())]

        assert errors in ([NotFound, type(None)], [type(None), NameTaken])
        lease = world.claim()  # one of the two prepares it
        assert lease is not None
        assert (lease.queue_id == failed.id) == (errors[0] is type(None))
        world.prepare(lease)


def test_of_two_that_replace_a_failed_one_at_once_one_does(world: World) -> None:
    target = world.ready_target()
    _, job = world.add_model(target, "merged")
    world.fail(world.lease_of(job), MISSPELT)
    together = threading.Barrier(4)

    def make(_: int) -> bool:
        together.wait()
        try:
            world.add_model(target, "merged")
        except NameTaken:
            return False
        return True

    with ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(make, range(4))) == 1


def test_a_target_is_deleted_with_its_job_when_unused(world: World) -> None:
    target = world.ready_target("faces")
    other = world.ready_target("other")
    model, _ = world.add_model(target)

    with pytest.raises(StillUsed, match="used by 1 model "):
        delete_target(world, target)
    delete_model(world, model)
    delete_target(world, target)

    rows = world.rows()
    assert [row[0] for row in rows["targets"]] == [other.id]
    assert [row[0] for row in rows["queues"]] == [other.id]
    assert [row[0] for row in rows["jobs"]] == [other.job_id]


def test_no_model_is_made_of_a_target_that_is_gone(world: World) -> None:
    target = world.ready_target()
    delete_target(world, target)

    with pytest.raises(NotFound):
        world.add_model(target)


def test_a_target_is_either_used_or_deleted(world: World) -> None:
    for i in range(5):
        target = world.ready_target(f"target {i}")
        together = threading.Barrier(2)

        def use(target: Target = target, together: threading.Barrier = together) -> None:
            together.wait()
            world.add_model(target, target.name)

        def delete(target: Target = target, together: threading.Barrier = together) -> None:
            together.wait()
            delete_target(world, target)

        with ThreadPoolExecutor(2) as pool:
            used, deleted = pool.submit(use), pool.submit(delete)
            errors = [type(used.exception()), type(deleted.exception())]

        assert errors in ([NotFound, type(None)], [type(None), StillUsed])
        if errors[0] is type(None):  # its preparation would come before the next target's job
            lease = world.claim()
            assert lease is not None
            world.prepare(lease)


def test_a_model_is_deleted_whole(world: World) -> None:
    target = world.ready_target()
    kept = world.ready_model("kept", target=target)
    model = world.ready_model("deleted", target=target)
    world.fold(kept, "a")
    world.fold(model, "a")
    world.offer(model, "b")

    delete_model(world, model)

    with world.database.read() as session:
        for column in (Source.model_id, Version.model_id):
            assert session.scalars(select(column)).all() == [kept.id]
        assert set(session.scalars(select(Job.model_id))) == {None, kept.id}
    assert world.claim() is None
    world.ready_model("deleted", target=target)  # the name is free again


def merge_of(world: World, **values: object) -> Model:
    target = world.ready_target()
    return world.add_model(target, merge=parse_config(values))[0]


def changed_merge(world: World, model: Model, changes: dict[str, object]) -> FoldConfig:
    with world.database.read() as session:
        return models.changed_merge(session, model, changes)


def test_merge_parameters_change_one_by_one(world: World) -> None:
    model = merge_of(world, tau=0.2, refine={"epochs": 1, "lr": 1e-3})

    changed = changed_merge(world, model, {"blend": 0.5, "refine": {"lr": 1e-4}})

    assert changed == parse_config({"tau": 0.2, "blend": 0.5, "refine": {"epochs": 1, "lr": 1e-4}})
    assert model.merge == parse_config(
        {"tau": 0.2, "refine": {"epochs": 1, "lr": 1e-3}}
    ).model_dump(mode="json")


def test_a_preset_replaces_what_it_names_and_what_is_given_wins(world: World) -> None:
    model = merge_of(world, tau=0.7, alignment_batches=5, seed=3, gate={"max_drop": 0.5})

    changed = changed_merge(world, model, {"preset": "paper", "alignment_batches": 9})

    values = changed.model_dump()
    expected = PRESETS["paper"] | {"preset": "paper", "alignment_batches": 9}
    refine = expected.pop("refine")
    assert {name: values[name] for name in expected} == expected
    assert {name: values["refine"][name] for name in refine} == refine
    assert (changed.seed, changed.gate.max_drop) == (3, 0.5)


def test_leaving_a_preset_keeps_its_values(world: World) -> None:
    model = merge_of(world, preset="paper")

    changed = changed_merge(world, model, {"preset": None, "blend": 0.25})

    (method,) = changed.candidates
    assert isinstance(method, GraspConfig)
    assert (changed.preset, method.tau, method.blend) == (None, 0.3, 0.25)


def test_impossible_parameters_are_all_named(world: World) -> None:
    model = merge_of(world)

    def wrong(**changes: object) -> list[tuple[int | str, ...]]:
        with pytest.raises(ValidationError) as raised:
            changed_merge(world, model, changes)
        return [error["loc"] for error in raised.value.errors()]

    found = wrong(blend=2, refine={"lr": -1}, tua=0.3)
    assert sorted(found) == [("blend",), ("refine", "lr"), ("tua",)]
    assert wrong(tau=7) == [("tau",)]
    assert wrong(preset="ours") == [("preset",)]
    assert wrong(refine=None) == [("refine",)]
