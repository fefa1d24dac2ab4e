"""The gate: what keeps a bad source from becoming a version.

It bounds how much worse a fold can make the model on the validation split, as far as that split is
large enough to show it. It does not promise to find a backdoor.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from grasp_core.config import GateConfig
from grasp_core.evaluation import Predictions
from grasp_core.report import Cause, Comparison, Verdict
from grasp_core.significance import lower_tail, paired_p_value

SMALL_RMS = 0.01  # a tensor this small (a bias at zero) is no measure for the source's
USUAL_RMS = 1.0  # the measure while there is no merged model
HUGE_RMS = 1e4  # of no weights that anybody trained
ROUNDING = 1e-9  # 0.90 - 0.88 is a little more than 0.02, and 1 / 16 as a sum than 0.0625
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


def name_cause(source: Mapping[str, Tensor]) -> Cause:
    """Of a source that `find_bad_tensors` refuses: whether any setting would allow it."""
    return "not_finite" if find_infinite(source) else "norm"


def find_infinite(tensors: Mapping[str, Tensor]) -> str | None:
    """The names of those with a value that is no number, or too large for one."""
    found = [
        name for name, tensor in tensors.items() if not math.isfinite(root_mean_square(tensor))
    ]
    return _some(found) if found else None


def find_unusual(tensors: Mapping[str, Tensor]) -> str | None:
    """What no trained model has: nothing but zeros, or values beyond all measure."""
    sizes = {name: root_mean_square(t) for name, t in tensors.items() if not _is_statistic(name)}
    if not any(sizes.values()):
        return "all its values are zero"
    huge = [name for name, size in sizes.items() if size > HUGE_RMS]
    return f"its root mean square is above {HUGE_RMS:g} in {_some(huge)}" if huge else None


def judge(before: Predictions | None, after: Predictions, config: GateConfig) -> Verdict:
    """Whether a folded model may follow the one before it, on the validation split.

    A drop counts if it is larger than allowed *and* more than chance would explain.
    """
    if after.metrics.log_likelihood is None:
        return Verdict(reason="the folded model's outputs are not finite", cause="not_finite")
    if before is None:
        floor = _below_floor(after, config)
        return Verdict(reason=floor, cause="floor" if floor else None)
    overall = _compare(before.right, after.right, config.max_drop, config)
    classes = _compare_classes(before, after, config)
    named = {"": overall} if overall.refused else {f" of class {n}": c for n, c in classes.items()}
    falls = [_describe(name, found) for name, found in named.items() if found.refused]
    return Verdict(
        reason="; ".join(falls) or None,
        cause="fall" if falls else None,
        overall=overall,
        classes=classes,
    )


def root_mean_square(tensor: Tensor) -> float:
    """Accumulated in float64; not finite if any element is not."""
    chunks = (chunk.double() for chunk in tensor.reshape(-1).split(CHUNK))
    return math.sqrt(sum(float(chunk @ chunk) for chunk in chunks) / max(tensor.numel(), 1))


def _is_outlier(
    name: str, size: float, merged: Mapping[str, Tensor] | None, config: GateConfig
) -> bool:
    if _is_statistic(name):
        return False
    usual = USUAL_RMS if merged is None else max(root_mean_square(merged[name]), SMALL_RMS)
    return size > config.max_norm_ratio * usual


def _is_statistic(name: str) -> bool:
    """Of the data, which may be of any size."""
    return name.endswith(("running_mean", "running_var", "num_batches_tracked"))


def _below_floor(first: Predictions, config: GateConfig) -> str | None:
    """A first version has no other to be compared with, but it must not be worse than guessing."""
    metrics, classes = first.metrics, len(first.metrics.per_class_count)
    if config.max_drop == 1 or classes < 2:
        return None
    if first.constant:
        return (
            "the folded model gives every validation example the same probabilities: what it says"
            " does not depend on what it sees"
        )
    chance, right = 1 / classes, int(first.right.sum())
    surprise = lower_tail(metrics.count, right, chance)
    if chance - metrics.accuracy > config.max_drop + ROUNDING and surprise <= config.significance:
        return (
            f"the folded model is worse than guessing: {right} of {metrics.count} validation"
            f" examples right, where guessing among {classes} classes gets {chance:.4f} of them;"
            f" chance alone gets so few with probability {surprise:.2g}"
        )
    return None


def _compare_classes(
    before: Predictions, after: Predictions, config: GateConfig
) -> dict[str, Comparison]:
    limit = config.max_drop if config.max_class_drop is None else config.max_class_drop
    rows = {
        name: after.labels == index
        for index, (name, count) in enumerate(after.metrics.per_class_count.items())
        if count
    }
    return {
        name: _compare(before.right[own], after.right[own], limit, config, tries=len(rows))
        for name, own in rows.items()
    }


def _compare(
    before: NDArray[np.bool_],
    after: NDArray[np.bool_],
    limit: float,
    config: GateConfig,
    tries: int = 1,
) -> Comparison:
    """One of `tries` comparisons, in any of which chance could have done the same (Bonferroni)."""
    count, right = len(before), int(before.sum())
    lost, gained = int((before & ~after).sum()), int((~before & after).sum())

    def p_value(lost: int) -> float:
        return min(1.0, tries * paired_p_value(lost, gained))

    def refused(lost: int) -> bool:
        too_far = (lost - gained) / count > limit + ROUNDING
        by_chance = p_value(lost) > config.significance + ROUNDING
        return too_far and (config.mode == "not_worse" or not by_chance)

    detectable = next(filter(refused, range(gained + 1, right + 1)), None)
    return Comparison(
        count=count,
        before=right / count,
        after=(right - lost + gained) / count,
        lost=lost,
        gained=gained,
        limit=limit,
        p_value=p_value(lost),
        refused=refused(lost),
        detectable_drop=None if detectable is None else (detectable - gained) / count,
    )


def _describe(whose: str, found: Comparison) -> str:
    return (
        f"validation accuracy{whose} fell from {found.before:.4f} to {found.after:.4f}, by more"
        f" than {found.limit:g}: of {found.count} examples {found.lost} were right before and are"
        f" wrong now, {found.gained} the other way round, which chance alone does with probability"
        f" {found.p_value:.2g}"
    )


def _some(names: list[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more
