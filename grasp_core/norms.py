"""Batch-norm statistics, which no gradient reaches and no merge of weights makes right."""

from __future__ import annotations

import torch
from torch.nn.modules.batchnorm import _BatchNorm

from grasp_core.gradients import alignment_parts
from grasp_core.workbench import Workbench


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
