"""The loss of a running fold, from its start."""

from itertools import pairwise
from typing import Any

from registry.jobs.curves import STEP, with_losses
from tests.registry.conftest import World


def reported(*points: tuple[float, float | None], begin: Any = None) -> Any:
    """What is kept when a fold reports these, one after the other: its progress and its loss."""
    metrics: dict[str, Any] = begin or {}
    for progress, loss in points:
        metrics = with_losses({} if loss is None else {"loss": loss}, metrics, progress)
    return metrics


def test_the_curve_begins_with_the_first_loss_and_ends_with_the_last() -> None:
    metrics = reported((0.1, None), (0.2, 3.0), (0.4, 2.0), (0.9, 1.0), (0.95, 1.0))
    assert metrics == {"loss": 1.0, "losses": [[0.2, 3.0], [0.4, 2.0], [0.9, 1.0]]}


def test_a_fold_without_losses_has_no_curve() -> None:
    assert reported((0.1, None), (0.5, None)) == {}


def test_the_longest_fold_has_a_short_curve() -> None:
    steps = 20_000
    losses = reported(*((step / steps, 2.0 - step / steps) for step in range(steps)))["losses"]
    assert len(losses) <= 1 / STEP
    gaps = [after[0] - before[0] for before, after in pairwise(losses)]
    assert max(gaps) < 1.1 * STEP


def test_a_fold_that_goes_on_from_an_earlier_epoch_takes_back_the_rest() -> None:
    before = reported((0.2, 3.0), (0.4, 2.0), (0.6, 1.5))
    loading = reported((0.0, None), begin=before)
    assert loading["losses"] == before["losses"]
    assert reported((0.4, 1.9), begin=loading)["losses"] == [[0.2, 3.0], [0.4, 1.9]]


def test_the_next_attempt_goes_on_with_the_curve(world: World) -> None:
    _, job, _ = world.offer(world.ready_model(), "a")
    lease = world.lease_of(job)
    world.progress(lease, "refine", 0.25)
    world.hand_back(lease)
    world.progress(world.lease_of(job), "refine", 0.5)
    assert world.job(job).metrics["losses"] == [[0.25, 0.75], [0.5, 0.5]]
