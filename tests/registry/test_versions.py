"""Versions: published one after the other, gone back to, and thinned out."""

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from sqlalchemy import select

from registry import versions
from registry.errors import BytesGone, LeaseLost, NotFound, NoVersion, StaleBase
from registry.tables import Model, Version
from tests.registry.conftest import World, blob, result


def lineage(world: World, model: Model) -> list[Version]:
    with world.database.read() as session:
        query = select(Version).where(Version.model_id == model.id).order_by(Version.number)
        return list(session.scalars(query))


def with_weights(world: World, model: Model) -> list[int]:
    return [version.number for version in lineage(world, model) if version.pruned_at is None]


def test_a_published_fold_is_the_newest_version(world: World) -> None:
    model = world.ready_model()
    world.fold(model, "a")
    source, job, _ = world.offer(model, "b")

    assert world.publish(world.lease_of(job), 1, "weights") == 2

    version = lineage(world, model)[1]
    assert (version.number, version.parent, version.rollback_of) == (2, 1, None)
    assert (version.sha256, version.size) == blob("weights")
    assert (version.source_id, version.job_id, version.owner) == (source.id, job.id, "ann")
    assert version.metrics == {"accuracy": 0.5}
    assert world.get(Model, model.id).version == 2
    ended = world.job(job)
    assert (ended.status, ended.version, ended.metrics) == ("succeeded", 2, {"accuracy": 0.5})
    with world.database.read() as session:
        assert session.scalar(select(type(ended).report).filter_by(id=job.id)) == '{"schema": 1}'
    assert world.queue(model.id).holder is None


def test_a_state_is_published_and_gone_back_to_with_its_version(world: World) -> None:
    model = world.ready_model()
    world.fold(model, "a", state="after a")
    world.fold(model, "b", state="after b")
    world.fold(model, "c")  # by a method that remembers nothing

    world.rollback(model, 2)

    found = [[(f.name, f.sha256, f.size) for f in v.files] for v in lineage(world, model)]
    first, second = (("state/grasp", *blob(content)) for content in ("after a", "after b"))
    assert found == [[first], [second], [], [second]]
    assert {version.method for version in lineage(world, model)} == {"grasp"}


def test_a_fold_into_a_version_that_is_no_longer_the_newest_is_stale(world: World) -> None:
    model = world.ready_model()
    world.fold(model, "a")
    _, job, _ = world.offer(model, "b")
    lease = world.lease_of(job)
    world.rollback(model, 1)
    before = world.rows()

    with pytest.raises(StaleBase) as found:
        world.publish(lease, 1, "weights")

    assert world.rows() == before
    assert not isinstance(found.value, LeaseLost)
    world.hold(lease)  # it is still its own
    world.hand_back(lease)  # and folded again
    assert world.publish(world.lease_of(job), 2, "weights") == 3


def test_a_rejection_by_a_version_that_is_no_longer_the_newest_is_stale(world: World) -> None:
    model = world.ready_model()
    world.fold(model, "a")
    _, job, _ = world.offer(model, "b")
    lease = world.lease_of(job)
    world.rollback(model, 1)
    before = world.rows()

    worse = versions.FoldResult(1, "{}", {}, verdict={"outcome": "rejected", "reason": "worse"})
    with pytest.raises(StaleBase), world.database.write() as session:
        versions.reject(session, lease, worse, world.now)

    assert world.rows() == before


@pytest.mark.parametrize("base", [None, 1])
def test_a_wrong_base_is_stale(world: World, base: int | None) -> None:
    model = world.ready_model()
    if base is None:
        world.fold(model, "a")
    _, job, _ = world.offer(model, "b")

    with pytest.raises(StaleBase):
        world.publish(world.lease_of(job), base, "weights")


def test_a_rejected_fold_leaves_the_model_as_it_was(world: World) -> None:
    model = world.ready_model()
    world.fold(model, "a")
    _, job, _ = world.offer(model, "b")

    world.reject(world.lease_of(job), 1)

    ended = world.job(job)
    assert (ended.status, ended.version) == ("rejected", None)
    assert ended.error is not None
    assert (ended.error["code"], ended.error["message"]) == ("gate_rejected", "worse")
    assert world.get(Model, model.id).version == 1
    assert len(lineage(world, model)) == 1


@pytest.mark.parametrize(
    ("cause", "said"),
    [
        ("norm", "PATCH the model's merge.gate.max_norm_ratio,"),
        ("floor", "PATCH the model's merge.gate.max_drop to 1,"),
        ("fall", "PATCH the model's merge.gate.max_drop (of one class: max_class_drop),"),
        (None, "PATCH the model's merge.gate,"),  # of an older worker
        ("not_finite", "no setting allows what is not finite: offer a checkpoint whose"),
    ],
)
@pytest.mark.parametrize("kept", [True, False])
def test_a_rejected_fold_says_what_would_allow_it(
    world: World, cause: str | None, said: str, kept: bool
) -> None:
    model = world.ready_model(keep_sources=kept)
    _, job, _ = world.offer(model, "a")
    verdict = {"outcome": "rejected", "reason": "worse", "cause": cause}

    lease = world.lease_of(job)
    with world.database.write() as session:
        refused = versions.FoldResult(None, "{}", {}, verdict=verdict)
        versions.reject(session, lease, refused, world.now)

    error = world.job(job).error
    assert error is not None
    hint = error["hint"]
    again = " POST the same checkpoint again, which is no longer stored,"
    assert said in hint
    assert (again in hint) == (not kept and cause != "not_finite")
    assert ("retry the job" in hint) == (cause != "not_finite")


def test_a_trial_leaves_the_model_as_it_was(world: World) -> None:
    model = world.ready_model()
    job = world.try_out(model, "a")
    lease = world.lease_of(job)

    with world.database.write() as session:
        done = versions.FoldResult(None, "{}", {"accuracy": 1.0})
        versions.record_trial(session, lease, done, world.now)

    assert (world.job(job).status, world.job(job).metrics) == ("succeeded", {"accuracy": 1.0})
    assert lineage(world, model) == []


def test_rollback_makes_a_new_version_that_equals_the_old(world: World) -> None:
    model = world.ready_model()
    for name in "abc":
        world.fold(model, name)

    made = world.rollback(model, 1)

    assert (made.number, made.parent, made.rollback_of) == (4, 3, 1)
    first, *_, last = lineage(world, model)
    assert (last.sha256, last.size, last.source_id) == (first.sha256, first.size, first.source_id)
    assert (last.job_id, last.metrics) == (first.job_id, first.metrics)
    assert world.get(Model, model.id).version == 4
    assert world.fold(model, "d") == 5


def test_rollbacks_and_folds_at_once_make_one_row_of_versions(world: World) -> None:
    model = world.ready_model()
    world.fold(model, "a")
    _, job, _ = world.offer(model, "b")
    lease = world.lease_of(job)
    together = threading.Barrier(4)

    def go_back(_: int) -> int:
        together.wait()
        return world.rollback(model, 1).number

    def publish() -> int:
        together.wait()
        return world.publish(lease, 1, "weights")

    with ThreadPoolExecutor(4) as pool:
        fold = pool.submit(publish)
        made = list(pool.map(go_back, range(3)))
        stale = fold.exception()

    made += [] if stale else [fold.result()]
    assert stale is None or isinstance(stale, StaleBase)
    assert sorted(made) == list(range(2, 2 + len(made)))
    assert [v.parent for v in lineage(world, model)] == [None, *range(1, 1 + len(made))]


def test_finding_versions(world: World) -> None:
    model = world.ready_model()
    with pytest.raises(NoVersion), world.database.read() as session:
        versions.find_version(session, model, 1)
    with pytest.raises(NoVersion):
        world.rollback(model, 1)
    world.fold(model, "a")
    world.fold(model, "b")
    model = world.get(Model, model.id)

    with world.database.read() as session:
        assert versions.find_version(session, model).number == 2
        assert versions.find_version(session, model, 1).number == 1
        for absent in (0, 3, -1):
            with pytest.raises(NotFound, match=f"no version {absent}"):
                versions.find_version(session, model, absent)


def test_the_best_version_is_the_likeliest_whose_bytes_are_here(world: World) -> None:
    model = world.ready_model()
    likelihoods = {1: -0.5, 2: -0.2, 3: None, 4: -0.2, 5: -0.9}
    for number, likelihood in likelihoods.items():
        world.fold(model, str(number))
        with world.database.write() as session:
            version = session.get_one(Version, (model.id, number))
            version.metrics = {"after": {"val": {"log_likelihood": likelihood}}}

    def best() -> int | None:
        with world.database.read() as session:
            return versions.find_best(session, session.get_one(Model, model.id))

    assert best() == 4
    with world.database.write() as session:
        session.get_one(Model, model.id).keep_versions = 1
        versions.prune(session, session.get_one(Model, model.id), world.now)
    assert best() == 5
    with world.database.write() as session:
        session.get_one(Version, (model.id, 5)).metrics = {"after": None}
    assert best() is None


def test_a_learning_rate_that_was_probed_is_kept_with_the_model(world: World) -> None:
    model = world.ready_model()
    found = {"rate": 1e-3, "probe": [{"rate": 1e-3}]}
    for number, learning_rate in ((1, found), (2, None)):
        _, job, _ = world.offer(model, str(number))
        lease = world.lease_of(job)
        made = replace(result(number - 1 or None, str(number)), learning_rate=learning_rate)
        with world.database.write() as session:
            versions.publish(session, lease, made, world.now)

    assert world.get(Model, model.id).learning_rate == found | {"version": 1}


def test_only_the_last_versions_keep_their_weights(world: World) -> None:
    model = world.ready_model(keep_versions=2)
    kept = []
    for name in "abcd":
        world.fold(model, name)
        kept.append(with_weights(world, model))

    assert kept == [[1], [1, 2], [2, 3], [3, 4]]
    assert lineage(world, model)[0].pruned_at == world.now
    with pytest.raises(BytesGone):
        world.rollback(model, 1)


def test_weights_that_a_kept_version_equals_are_kept(world: World) -> None:
    model = world.ready_model(keep_versions=2)
    world.fold(model, "a")
    world.fold(model, "b")

    world.rollback(model, 1)  # 3 equals 1
    assert with_weights(world, model) == [1, 2, 3]
    world.fold(model, "c")
    assert with_weights(world, model) == [1, 3, 4]
    world.fold(model, "d")
    assert with_weights(world, model) == [4, 5]


def test_equal_weights_with_another_state_are_another_version(world: World) -> None:
    model = world.ready_model(keep_versions=1)
    for number in range(3):
        world.fold(model, f"source {number}", "always the same", state=f"after {number}")

    assert with_weights(world, model) == [3]


def test_models_do_not_prune_each_other(world: World) -> None:
    one, two = world.ready_model("one", keep_versions=1), world.ready_model("two")
    world.fold(two, "a")
    world.fold(two, "b")

    world.fold(one, "a")
    world.fold(one, "b")

    assert with_weights(world, one) == [2]
    assert with_weights(world, two) == [1, 2]
