"""Methods that come and go: jobs go to a worker that has theirs, or their model says what lacks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from grasp_core.methods import METHODS, mean
from grasp_core.methods.declaration import Needs
from registry.errors import Conflict
from registry.jobs.abilities import Abilities
from registry.models import find_holds
from registry.tables import Model, utc_now
from registry.tables import Worker as WorkerRow
from registry.versions import rollback
from tests.service.fake_folds import checkpoint, read_fake_job
from tests.service.place import Place, codes
from worker.loop import Worker


def make_worker(place: Place, **lacking: str) -> Worker:
    """As on a machine where some package is not installed."""
    worker = Worker(place.settings, read_job=read_fake_job, warm=False)
    here = Abilities.here()
    worker._abilities = here._replace(
        **{name: getattr(here, name) - {missing} for name, missing in lacking.items()}
    )
    return worker


def why_held(place: Place, model: Model) -> str | None:
    with place.database.read() as session:
        row = session.get_one(Model, model.id)
        hold = find_holds(session, [row], place.settings.lease_seconds).get(row.id)
    return hold.code if hold else None


@pytest.mark.parametrize(
    ("lacking", "code"),
    [({"methods": "grasp"}, "method_missing"), ({"kinds": "image"}, "kind_missing")],
)
def test_a_job_is_left_to_a_worker_that_has_what_it_needs(
    place: Place, lacking: dict[str, str], code: str
) -> None:
    model = place.ready_model()
    job = place.offer(model, checkpoint("a"))
    poor, rich = make_worker(place, **lacking), make_worker(place)

    assert why_held(place, model) is None  # there is no worker to know it of
    assert poor.drain() == 0
    assert why_held(place, model) == code
    assert place.job(job).attempts == 0
    assert rich.drain() == 1
    assert why_held(place, model) is None
    assert (place.job(job).status, codes(place.job(job))) == ("succeeded", [])
    poor.close()
    rich.close()


def test_targets_of_a_kind_that_a_worker_lacks_are_left_to_others(place: Place) -> None:
    _, job = place.add_target(b"fake")
    poor = make_worker(place, kinds="image")

    assert poor.drain() == 0
    assert place.job(job).status == "queued"
    poor.close()


def test_workers_of_an_older_release_hold_nothing(place: Place) -> None:
    model = place.ready_model()
    worker = make_worker(place, methods="grasp")
    worker.drain()
    place.change(WorkerRow, methods=None, kinds=None)

    assert why_held(place, model) is None
    worker.close()


def test_parameters_of_another_release_are_named(home: Path) -> None:
    place = Place(home, max_attempts=1)
    model = place.ready_model()
    with place.database.write() as session:
        row = session.get_one(Model, model.id)
        row.merge = {**row.merge, "momentum": 0.9}
    job = place.offer(model, checkpoint("a"))
    worker = Worker(place.settings, warm=False)

    worker.drain()

    ended = place.job(job)
    assert (ended.status, codes(ended)) == ("failed", ["unknown_parameters"])
    assert ended.error is not None
    assert "momentum" in ended.error["message"]
    worker.close()
    place.database.close()


def test_who_needs_their_history_does_not_go_back_to_where_it_is_not(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = place.ready_model()
    worker = make_worker(place)
    for label in "ab":
        place.offer(model, checkpoint(label))
    worker.drain()
    needs = replace(mean.METHOD, needs=Needs(history=True))
    monkeypatch.setitem(METHODS, "mean", needs)
    with place.database.write() as session:
        row = session.get_one(Model, model.id)
        row.merge = {**row.merge, "method": "mean"}

    with pytest.raises(Conflict, match="could not go on from version 1") as refusal:
        go_back(place, model)

    assert "PATCH its merge parameters" in str(refusal.value.hint)
    assert len(place.versions(model)) == 2
    with place.database.write() as session:
        row = session.get_one(Model, model.id)
        row.merge = {**row.merge, "method": "grasp"}
    go_back(place, model)
    assert [version.rollback_of for version in place.versions(model)] == [None, None, 1]
    worker.close()


def go_back(place: Place, model: Model) -> None:
    with place.database.write() as session:
        rollback(session, session.get_one(Model, model.id), 1, utc_now())
