"""Batch-norm statistics, which no gradient reaches: what becomes of them after a transfer."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from grasp_core.alignment import blended
from grasp_core.gradients import alignment_parts
from grasp_core.workbench import Workbench

STATISTICS = ("running_mean", "running_var")


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


@torch.no_grad()
def recalibrate(bench: Workbench) -> None:
    """Measure all statistics anew, as plain means over the alignment batches."""
    norms = [module for module in bench.model.modules() if isinstance(module, _BatchNorm)]
    if not norms:
        return
    momenta = [norm.momentum for norm in norms]
    bench.model.eval()
    for norm in norms:
        norm.train()
        norm.reset_running_stats()
        norm.momentum = None  # torch's way to ask for a cumulative mean
    for part, _ in alignment_parts(bench):
        bench.task.log_probabilities(bench.model, part)
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum
