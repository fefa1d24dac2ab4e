"""What a worker sums up, and that its row has it."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest
from opentelemetry.trace import INVALID_SPAN

from grasp_core.methods import METHODS, list_stages
from grasp_core.operations import Folded
from grasp_core.report import Accuracies, Figures, FoldVerdict, SplitAccuracies, StageRecord
from registry.jobs.totals import NO_OUTCOMES, SHARES, Totals
from registry.jobs.transitions import Failure
from registry.tables import Worker
from tests.service.fake_folds import checkpoint
from tests.service.place import Place
from tests.worker.waiting import until
from worker.observability import AttemptObserver, Tally


@pytest.fixture
def place(no_settings: None, tmp_path: Path) -> Iterator[Place]:
    place = Place(tmp_path / "home")
    yield place
    place.database.close()


def folded(
    outcome: Literal["accepted", "rejected"] = "accepted",
    *,
    share: float | None = 0.5,
    first: bool = False,
    measured: bool = True,
    **seconds: float,
) -> Folded:
    stages = tuple(StageRecord(name=n, seconds=value, peak_bytes=0) for n, value in seconds.items())
    half = Accuracies(accuracy=0.5)
    splits = SplitAccuracies(val=half, test=half)
    metrics = Figures(
        before=None if first else splits,
        after=splits if measured else None,
        transferred_share=share,
    )
    verdict = FoldVerdict(outcome=outcome)
    return Folded("{}", verdict, metrics, stages=stages)


def totals(tally: Tally) -> Totals:
    return Totals.model_validate(json.loads(json.dumps(tally.snapshot())))


def test_a_new_worker_has_done_nothing_in_any_stage() -> None:
    found = totals(Tally())

    assert tuple(found.stages) == tuple(s.name for s in list_stages(METHODS.values()))
    assert set(found.folds["fold"].values()) == set(found.failures.values()) == {0}
    assert found.resident_bytes > 0


def test_outcomes_and_stages_add_up_and_tallies_share_nothing() -> None:
    tally = Tally()
    tally.count_fold("fold", folded(load=1.0, refine=10.0))
    tally.count_fold("fold", folded(load=2.0))
    tally.count_fold("dry_run", folded("rejected"))
    tally.count_end("fold", "failed")

    found = totals(tally)

    assert found.folds["fold"] == NO_OUTCOMES | {"accepted": 2, "failed": 1}
    assert found.folds["dry_run"]["rejected"] == 1
    seconds = {name: (stage.count, stage.total) for name, stage in found.stages.items()}
    assert (seconds["load"], seconds["refine"], seconds["publish"]) == ((2, 3.0), (1, 10.0), (0, 0))
    assert totals(Tally()).folds["fold"]["accepted"] == 0


def test_the_gate_rejects_folds_for_one_of_two_reasons_and_dry_runs_for_none() -> None:
    tally = Tally()
    tally.count_fold("fold", folded("rejected"))
    tally.count_fold("fold", folded("rejected"))
    tally.count_fold("fold", folded("rejected", measured=False, share=None))
    tally.count_fold("dry_run", folded("rejected"))

    assert totals(tally).rejections == {"accuracy": 2, "tensors": 1}


@pytest.mark.parametrize(
    ("share", "bound"), [(0.0, 0.01), (0.01, 0.01), (0.011, 0.1), (0.9, 0.9), (1.0, None)]
)
def test_a_share_counts_up_to_its_bound(share: float, bound: float | None) -> None:
    tally = Tally()
    tally.count_fold("fold", folded(share=share))

    spread = totals(tally).transferred_share

    assert (spread.count, spread.total) == (1, share)
    bounds: list[float | None] = [*SHARES, None]
    assert spread.counts == [int(each == bound) for each in bounds]


def test_what_was_taken_whole_was_not_chosen() -> None:
    tally = Tally()
    tally.count_fold("fold", folded(share=1.0, first=True))

    assert totals(tally).transferred_share.count == 0
    assert totals(tally).folds["fold"]["accepted"] == 1


def test_failures_are_counted_by_code() -> None:
    tally = Tally()
    for code in ("child_killed", "child_killed", "checkpoint_mismatch"):
        tally.count_failure(code)

    failures = totals(tally).failures

    assert (failures["child_killed"], failures["checkpoint_mismatch"]) == (2, 1)


def test_a_child_that_has_ended_is_remembered_by_its_peak() -> None:
    hoard = "x = b'x' * 300_000_000"
    subprocess.run([sys.executable, "-c", hoard], check=True)

    assert totals(Tally()).child_peak_bytes > 300_000_000


def test_a_row_holds_what_its_worker_did(place: Place) -> None:
    model = place.ready_model()
    place.offer(model, checkpoint("a", "raise"))
    place.offer(model, checkpoint("b", "refuse"))
    place.try_out(model, checkpoint("c"))

    with place.worker() as worker:
        assert worker.drain() == 4
        (row,) = place.rows(Worker)
        found = Totals.model_validate(row.totals)

    assert row.id == worker.id
    assert found.folds["fold"] == NO_OUTCOMES | {"accepted": 1, "failed": 1}
    assert found.folds["dry_run"]["accepted"] == 1
    assert (found.failures["internal_error"], found.failures["invalid_checkpoint"]) == (1, 1)
    assert found.transferred_share.count == 1  # not that of the first version
    assert found.stages["refine"].count == 2
    assert found.child_peak_bytes > 0


def test_a_heartbeat_in_mid_job_tells_what_was_done_before(
    no_settings: None, tmp_path: Path
) -> None:
    place = Place(tmp_path / "home", heartbeat_seconds=0.1, lease_seconds=60)
    model = place.ready_model()
    place.offer(model, checkpoint("a"))
    endless = place.offer(model, checkpoint("b", ticks=10**6))

    with place.working():
        place.started(endless)
        place.change(Worker, totals=None)  # as nobody but a heartbeat writes it now

        def reported() -> bool:
            (row,) = place.rows(Worker)
            return bool(row.totals and row.totals["folds"]["fold"]["accepted"] == 1)

        until(reported)
    place.database.close()


def test_a_lost_lease_is_a_failure_and_a_retried_job_has_not_ended() -> None:
    tally = Tally()
    observer = AttemptObserver("fold", INVALID_SPAN, tally)
    observer.lost(Exception("gone"))
    observer.failed(Failure("child_killed", "killed"), "queued")
    observer.cancelled()

    found = totals(tally)
    assert (found.failures["lease_lost"], found.failures["child_killed"]) == (1, 1)
    assert found.folds["fold"] == NO_OUTCOMES | {"cancelled": 1}
