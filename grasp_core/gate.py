"""The gate: what keeps a bad source from becoming a version.

It bounds how much worse a fold can make the model on the validation split. It does not promise to
find a backdoor.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from torch import Tensor

from grasp_core.config import GateConfig
from grasp_core.evaluation import Metrics

SMALL_RMS = 0.01  # a tensor this small (a bias at zero) is no measure for the source's
USUAL_RMS = 1.0  # the measure while there is no merged model
ROUNDING = 1e-9  # 0.90 - 0.88 is a little more than 0.02
SHOWN = 5
CHUNK = 2**16  # elements: their float64 copy stays in the cache


def find_bad_tensors(
    source: Mapping[str, Tensor], merged: Mapping[str, Tensor] | None, config: GateConfig
) -> str | None:
    """Why the source is refused before any gradient is computed; None if it is not."""
    infinite, outliers = [], []
    for name, tensor in source.items():
        size = root_mean_square(tensor)
        if not math.isfinite(size):
            infinite.append(name)
        elif _is_outlier(name, size, merged, config):
            outliers.append(f"{name} ({size:.3g})")
    if infinite:
        return f"the source has values that are not finite in {_some(infinite)}"
    if outliers:
        return (
            f"the source's root mean square is more than {config.max_norm_ratio:g} times"
            f" the merged model's in {_some(outliers)}"
        )
    return None


def find_regression(before: Metrics | None, after: Metrics, config: GateConfig) -> str | None:
    """Why the folded model is refused; None if it is at least nearly as good as before."""
    if after.log_likelihood is None:
        return "the folded model's outputs are not finite"
    if before is None:
        return None
    drop = before.accuracy - after.accuracy
    if drop > config.max_drop + ROUNDING:
        return (
            f"validation accuracy fell by {drop:.4f}, from {before.accuracy:.4f}"
            f" to {after.accuracy:.4f}; max_drop is {config.max_drop:g}"
        )
    limit = config.max_drop if config.max_class_drop is None else config.max_class_drop
    fallen = [name for name in after.per_class_count if _fell(name, before, after, limit)]
    if fallen:
        return "; ".join(
            f"validation accuracy of class {name} fell from {before.per_class_accuracy[name]:.4f}"
            f" to {after.per_class_accuracy[name]:.4f}, by more than {limit:g}"
            for name in fallen
        )
    return None


def root_mean_square(tensor: Tensor) -> float:
    """Accumulated in float64; not finite if any element is not."""
    chunks = (chunk.double() for chunk in tensor.reshape(-1).split(CHUNK))
    return math.sqrt(sum(float(chunk @ chunk) for chunk in chunks) / max(tensor.numel(), 1))


def _is_outlier(
    name: str, size: float, merged: Mapping[str, Tensor] | None, config: GateConfig
) -> bool:
    if name.endswith(("running_mean", "running_var", "num_batches_tracked")):
        return False  # statistics of the data, which may be of any size
    usual = USUAL_RMS if merged is None else max(root_mean_square(merged[name]), SMALL_RMS)
    return size > config.max_norm_ratio * usual


def _fell(name: str, before: Metrics, after: Metrics, limit: float) -> bool:
    old, new = before.per_class_accuracy.get(name), after.per_class_accuracy.get(name)
    if old is None or new is None:
        return False
    # One example of a small class is noise, however large its share.
    return old - new > limit + ROUNDING and round((old - new) * after.per_class_count[name]) > 1


def _some(names: list[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more
