"""Stages 3 and 4 of GRASP as pure tensor functions: how well two gradients agree, and what to do
where."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from grasp_core.methods.grasp import Granularity

PAPER_TAU = 0.3
STATISTICS = ("running_mean", "running_var")


def align(gk: Tensor, g: Tensor, granularity: Granularity, epsilon: float = 0.0) -> Tensor:
    """Scores in [-1, 1]: one for a `tensor` (), one per `channel` (C,), or one per `element`.

    a[j] = ⟨gk[j], g[j]⟩ / (‖gk[j]‖ ‖g[j]‖), Algorithm 1, stage 3; 0 where that is undefined.
    """
    if granularity == "element":
        return torch.sign(gk).mul_(torch.sign(g)).nan_to_num_(0.0).to(torch.int8)
    if granularity == "channel" and g.ndim > 0:
        return cosine(gk.reshape(len(gk), -1), g.reshape(len(g), -1), epsilon)
    return cosine(gk.reshape(-1), g.reshape(-1), epsilon)


def cosine(a: Tensor, b: Tensor, epsilon: float = 0.0) -> Tensor:
    """Cosine along the last axis.

    Sums of products are float32, which torch adds up pairwise: off by less than 1e-7 for millions
    of elements, where torch.dot is off by 1e-4. The rest is float64.
    """
    wide = torch.float32 if a.device.type == "mps" else torch.float64  # MPS has no float64
    dot, aa, bb = ((x * y).sum(-1).to(wide) for x, y in ((a, b), (a, a), (b, b)))
    norms = (aa * bb).sqrt()
    scores = (dot / (norms + epsilon)).clamp(-1.0, 1.0)
    return torch.where(norms > 0, scores, 0.0).nan_to_num(0.0)


def auto_threshold(scores: Iterable[Tensor]) -> float:
    """τ = auto: where the scores part best, but between 0 and the paper's τ.

    What disagrees is never transferred, and what agrees as well as the paper asks for always is.
    Signs of elements, which are -1 or 1, are parted by 0.
    """
    flat = [score.reshape(-1) for score in scores]
    if not flat or flat[0].dtype == torch.int8:
        return 0.0
    return min(max(otsu_threshold(torch.cat(flat)), 0.0), PAPER_TAU)


def otsu_threshold(scores: Tensor) -> float:
    """The upper end of the lower group, if scores (N,) are parted into the two most distinct ones.

    They are most distinct where the variance between them is largest (Otsu 1979).
    """
    ordered = scores.double().sort().values
    count = len(ordered)
    if count < 2:
        return 0.0
    below = torch.arange(1, count)  # size of the lower group
    sums = ordered.cumsum(0)
    low = sums[:-1] / below
    high = (sums[-1] - sums[:-1]) / (count - below)
    between = below * (count - below) * (high - low) ** 2
    return float(ordered[int(between.argmax())])


def blended(merged: Tensor, source: Tensor, chosen: Tensor, blend: float) -> Tensor:
    """λ θk + (1 - λ) θ where `chosen`, θ elsewhere; `chosen` is (), (C,) or as large as θ."""
    taken = source.to(merged.dtype)
    if blend < 1.0:
        taken = blend * taken + (1.0 - blend) * merged
    rows = chosen.reshape(-1, *[1] * (merged.ndim - 1)) if chosen.ndim == 1 else chosen
    return torch.where(rows, taken, merged)


def follow_transfer(
    weights: dict[str, Tensor],
    source: Mapping[str, Tensor],
    chosen: Mapping[str, Tensor],
    blend: float,
) -> None:
    """Take a layer's statistics from the source wherever its `weight` was taken from it."""
    for name in weights:
        layer, _, kind = name.rpartition(".")
        if kind in STATISTICS and f"{layer}.weight" in chosen:
            weights[name] = blended(weights[name], source[name], chosen[f"{layer}.weight"], blend)
