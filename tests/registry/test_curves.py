"""The losses of a running fold, from its start."""

from typing import Any

from registry.jobs.curves import POINTS, with_curves
from tests.registry.conftest import World


def report(*points: tuple[int, float], begin: Any = None, **others: Any) -> Any:
    """What is kept when a fold reports these, one after the other: its steps and its losses."""
    metrics: dict[str, Any] = begin or {}
    for step, loss in points:
        metrics = with_curves({"step": step, "steps": 100, "loss": loss} | others, metrics)
    return metrics


def test_each_candidate_has_a_curve_of_its_own() -> None:
    metrics = report((0, 3.0), (50, 2.0), candidate="keep")
    metrics = report((0, 4.0), begin=metrics, candidate="mean")

    assert metrics["curves"] == {"keep": [[0, 3.0], [50, 2.0]], "mean": [[0, 4.0]]}
    assert (metrics["candidate"], metrics["loss"]) == ("mean", 4.0)


def test_so_has_each_learning_rate_that_is_tried() -> None:
    trials = [report((0, 3.0), candidate="source", trial=trial, trials=5) for trial in (1.0, 2.0)]

    assert [list(each["curves"]) for each in trials] == [
        ["source, rate 1 of 5"],
        ["source, rate 2 of 5"],
    ]


def test_what_measures_no_loss_leaves_the_curves_as_they_are() -> None:
    assert with_curves({"val_accuracy": 0.5}, {}) == {"val_accuracy": 0.5}
    before = report((0, 3.0), candidate="keep")
    assert with_curves({}, before) == {"curves": before["curves"]}


def test_the_longest_refinement_has_a_short_curve() -> None:
    steps = 20_000
    metrics: dict[str, Any] = {}
    for step in range(steps):
        metrics = with_curves({"step": step, "steps": steps, "loss": 1.0}, metrics)

    assert len(metrics["curves"]["loss"]) <= POINTS


def test_a_fold_that_goes_on_from_an_earlier_step_takes_back_the_rest() -> None:
    before = report((20, 3.0), (40, 2.0), (60, 1.5))

    assert report((40, 1.9), begin=before)["curves"] == {"loss": [[20, 3.0], [40, 1.9]]}


def test_the_next_attempt_goes_on_with_the_curves(world: World) -> None:
    _, job, _ = world.offer(world.ready_model(), "a")
    lease = world.lease_of(job)
    world.progress(lease, "refine", 0.25, step=10)
    world.hand_back(lease)
    world.progress(world.lease_of(job), "refine", 0.5, step=20)
    assert world.job(job).metrics["curves"] == {"loss": [[10, 0.75], [20, 0.5]]}
