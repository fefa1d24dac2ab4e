"""The losses of a running fold over its steps, from its start: for whoever looks later."""

from collections.abc import Mapping, Sequence
from typing import Any

POINTS = 50  # of one curve, at most: what a page can draw

Curve = Sequence[Sequence[float]]  # of steps and losses


def with_curves(metrics: Mapping[str, float | str], before: Mapping[str, Any]) -> dict[str, Any]:
    """What a fold measures now, and the `curves` that it reported before, by name."""
    curves: Mapping[str, Curve] = before.get("curves", {})
    if "loss" in metrics and "step" in metrics:
        name = _name(metrics)
        step, loss = int(metrics["step"]), round(float(metrics["loss"]), 4)
        between = float(metrics.get("steps", 0)) / POINTS
        curves = {**curves, name: _extend(curves.get(name, ()), step, loss, between)}
    return {**metrics, "curves": curves} if curves else dict(metrics)


def _name(metrics: Mapping[str, float | str]) -> str:
    """The candidate, and where several learning rates are tried, which."""
    candidate = str(metrics.get("candidate", "loss"))
    if "trial" not in metrics:
        return candidate
    return f"{candidate}, rate {metrics['trial']:g} of {metrics['trials']:g}"


def _extend(curve: Curve, step: int, loss: float, between: float) -> Curve:
    """A fold that was resumed takes back what it reported beyond that."""
    kept = [point for point in curve if point[0] < step]
    return kept if kept and step - kept[-1][0] < between else [*kept, [step, loss]]
