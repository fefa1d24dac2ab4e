"""GRASP: gradient-aligned sequential parameter transfer, Algorithm 1 of the paper, for one source.

https://arxiv.org/abs/2606.14900

θ is the merged model, θk the source, L0 the loss on the target's train split, j a parameter:

    1. target gradients   g[j]  = ∂L0/∂θ[j]  at θ
    2. source gradients   gk[j] = ∂L0/∂θ[j]  at θk, on the same batches
    3. alignment          a[j]  = ⟨gk[j], g[j]⟩ / (‖gk[j]‖ ‖g[j]‖)
    4. transfer           θ[j] ← λ θk[j] + (1 - λ) θ[j]  where a[j] > τ
    5. refinement         fine-tune θ on the target

θ and θk take turns in one module, as views of their files; g is kept once, and each gk[j] is
compared and freed as the backward pass produces it. So stages 1 to 4 need one set of gradients (two
with several batches) where two models with two sets of gradients would be the naive way.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from grasp_core.alignment import align, auto_threshold, blended
from grasp_core.architectures import load_weights
from grasp_core.config import FoldConfig
from grasp_core.gradients import stream_gradients
from grasp_core.norms import follow_transfer, recalibrate
from grasp_core.refinement import Refined, RefineState, refine
from grasp_core.workbench import Merge, ParameterReport, Workbench

Tensors = dict[str, Tensor]


def grasp(bench: Workbench) -> Refined:
    """Fold the source into the merged model; the result is left in the module."""
    interrupted = RefineState.load(bench)
    if interrupted is not None:
        bench.recorder.recall(interrupted.stages)
        return refine(bench, interrupted.merge, interrupted)
    if bench.merged is None:
        return refine(bench, adopt(bench))
    with bench.recorder.stage("target_gradients"):
        g, statistics = target_gradients(bench, bench.merged)
    with bench.recorder.stage("source_gradients"):
        scores = source_gradients(bench, g)
    with bench.recorder.stage("transfer"):
        merge = transfer(bench, bench.merged, scores, statistics)
    if bench.config.norm_stats == "recalibrate" and merge.share > 0:
        with bench.recorder.stage("recalibrate"):
            recalibrate(bench)
    return refine(bench, merge)


def adopt(bench: Workbench) -> Merge:
    """The first source becomes the model: Algorithm 1 with k = 1 aligns it with itself."""
    with bench.recorder.stage("transfer"):
        own = {name: tensor.clone() for name, tensor in bench.source.items()}
        load_weights(bench.model, own, bench.runtime.device)
        everything = torch.ones((), dtype=torch.bool)
        return Merge(
            tau=0.0,
            parameters=tuple(
                _report(bench, name, parameter, torch.ones(()), everything)
                for name, parameter in bench.model.named_parameters()
            ),
        )


def target_gradients(bench: Workbench, merged: Mapping[str, Tensor]) -> tuple[Tensors, Tensors]:
    """Stage 1. The gradients at θ, and the buffers as train mode, if asked for, has left them."""
    load_weights(bench.model, merged, bench.runtime.device, exact=True)
    bench.model.train(bench.config.merged_mode == "train")
    g: Tensors = {}
    stream_gradients(bench, g.__setitem__)
    return g, {name: buffer.cpu().clone() for name, buffer in bench.model.named_buffers()}


def source_gradients(bench: Workbench, g: Tensors) -> Tensors:
    """Stage 2, with stage 3 inside it: gradients are compared as they appear, and freed."""
    load_weights(bench.model, bench.source, bench.runtime.device)
    bench.model.train(bench.config.source_mode == "train")
    scores: Tensors = {}

    def compare(name: str, gk: Tensor) -> None:
        if name in g:
            rows = bench.source.matched_rows(name)
            scores[name] = alignment(gk, g.pop(name), rows, bench.config)

    known = bench.source.match.known()
    stream_gradients(bench, compare, None if known is None else known.to(bench.runtime.device))
    return scores


def alignment(gk: Tensor, g: Tensor, rows: list[int] | None, config: FoldConfig) -> Tensor:
    """Stage 3. Only `rows` are compared: the source does not have the others."""
    if rows is not None:
        gk, g = gk[rows], g[rows]
    return align(gk, g, config.granularity, config.epsilon).cpu()


def transfer(
    bench: Workbench, merged: Mapping[str, Tensor], scores: Tensors, statistics: Tensors
) -> Merge:
    """Stage 4. Copy, or blend in, what agrees, and leave the result in the module."""
    config = bench.config
    tau = auto_threshold(scores.values()) if config.tau == "auto" else config.tau
    weights = {name: statistics.get(name, merged[name]).clone() for name in merged}
    chosen: Tensors = {}
    reports = []
    for name, parameter in bench.model.named_parameters():
        score = scores.get(name, torch.zeros(()))
        chosen[name] = score > tau
        if chosen[name].any():
            rows = bench.source.matched_rows(name)
            where = slice(None) if rows is None else rows
            weights[name][where] = blended(
                weights[name][where], bench.source[name][where], chosen[name], config.blend
            )
        reports.append(_report(bench, name, parameter, score, chosen[name]))
    if config.norm_stats == "follow":
        follow_transfer(weights, bench.source, chosen, config.blend)
    load_weights(bench.model, weights, bench.runtime.device)
    return Merge(tau=tau, parameters=tuple(reports))


def _report(
    bench: Workbench, name: str, parameter: Tensor, score: Tensor, chosen: Tensor
) -> ParameterReport:
    share = float(chosen.double().mean()) if chosen.numel() else 0.0
    rows = bench.source.matched_rows(name)
    if rows is not None:
        share *= len(rows) / len(parameter)
    return ParameterReport(
        name=name,
        size=parameter.numel(),
        alignment=float(score.double().mean()) if score.numel() else 0.0,
        transferred=bool(share) if share in (0.0, 1.0) else share,
    )
