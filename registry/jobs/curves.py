"""The loss of a running fold over its progress: from its start, for whoever looks later."""

from collections.abc import Mapping, Sequence
from typing import Any

STEP = 0.005  # of the job between two points: more than a page can draw, and at most 200

Curve = Sequence[Sequence[float]]  # of progress and loss


def with_losses(
    metrics: Mapping[str, float | str], before: Mapping[str, Any], progress: float
) -> dict[str, Any]:
    """What a fold measures now, and the `losses` that it reported before."""
    losses: Curve = before.get("losses", ())
    if "loss" in metrics:
        losses = _extended(losses, round(progress, 4), round(float(metrics["loss"]), 4))
    return {**metrics, "losses": losses} if losses else dict(metrics)


def _extended(losses: Curve, progress: float, loss: float) -> Curve:
    """A fold that goes on from an earlier epoch takes back what it reported beyond that."""
    kept = [point for point in losses if point[0] < progress]
    if kept and (progress - kept[-1][0] < STEP or loss == kept[-1][1]):
        return kept
    return [*kept, [progress, loss]]
