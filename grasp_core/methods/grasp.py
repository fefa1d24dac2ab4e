"""GRASP: gradient-aligned sequential parameter transfer, Algorithm 1 of the paper, for one source.

https://arxiv.org/abs/2606.14900

θ is the merged model, θk the source, L0 the loss on the target's train split, j a parameter:

    1. target gradients   g[j]  = ∂L0/∂θ[j]  at θ
    2. source gradients   gk[j] = ∂L0/∂θ[j]  at θk, on the same batches
    3. alignment          a[j]  = ⟨gk[j], g[j]⟩ / (‖gk[j]‖ ‖g[j]‖)
    4. transfer           θ[j] ← λ θk[j] + (1 - λ) θ[j]  where a[j] > τ
    5. refinement         fine-tune θ on the target

Stage 5 is the same for all methods, and not here; a first source is taken whole: Algorithm 1 with
k = 1 aligns it with itself.

θ and θk take turns in one module, as views of their files; g is kept once, and each gk[j] is
compared and freed as the backward pass produces it. So stages 1 to 4 need one set of gradients (two
with several batches) where two models with two sets of gradients would be the naive way.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from grasp_core.config import Fraction, MethodConfig, one_message
from grasp_core.methods.declaration import Advice, Method, Needs, Score, Stage
from grasp_core.methods.source import take_source

if TYPE_CHECKING:
    from torch import Tensor

    from grasp_core.methods.declaration import State
    from grasp_core.report import ParameterReport
    from grasp_core.workbench import Merge, Workbench

    Tensors = dict[str, Tensor]

Granularity = Literal["tensor", "channel", "element"]
Mode = Literal["train", "eval"]


class GraspConfig(MethodConfig):
    """Copies the parameters whose gradients agree. The defaults are what measured best."""

    method: Literal["grasp"] = "grasp"
    tau: Annotated[
        Fraction | Literal["auto"], one_message("must be a number from 0 to 1, or auto")
    ] = Field(
        "auto",
        description="Transfer where alignment is above this; auto: where the alignments part best,"
        " at most 0.3.",
    )
    granularity: Granularity = Field("tensor", description="What is compared and copied as one.")
    blend: Fraction = Field(
        1.0, description="λ: aligned parameters become λ·source + (1 - λ)·merged."
    )
    merged_mode: Mode = Field("eval", description="Mode in which the merged model is compared.")
    source_mode: Mode = Field("eval", description="Mode in which the source is compared.")
    epsilon: float = Field(0.0, ge=0.0, description="Added to the cosine's denominator.")


def merge(bench: Workbench, parameters: GraspConfig, state: State | None) -> Merge:
    """Stages 1 to 4, with stage 3 inside stage 2; the result is left in the module."""
    del state  # it remembers nothing: θ is all there is
    if bench.merged is None:
        return take_source(bench)
    with bench.recorder.stage("target_gradients"):
        g, statistics = target_gradients(bench, bench.merged, parameters)
    with bench.recorder.stage("source_gradients"):
        scores = source_gradients(bench, g, parameters)
    with bench.recorder.stage("transfer"):
        return transfer(bench, bench.merged, scores, statistics, parameters)


def target_gradients(
    bench: Workbench, merged: Mapping[str, Tensor], parameters: GraspConfig
) -> tuple[Tensors, Tensors]:
    """Stage 1. The gradients at θ, and the buffers as train mode, if asked for, has left them."""
    from grasp_core.gradients import stream_gradients

    bench.load(merged, exact=True)
    bench.model.train(parameters.merged_mode == "train")
    g: Tensors = {}
    stream_gradients(bench, g.__setitem__)
    return g, {name: buffer.cpu().clone() for name, buffer in bench.model.named_buffers()}


def source_gradients(bench: Workbench, g: Tensors, parameters: GraspConfig) -> Tensors:
    """Stage 2, with stage 3 inside it: gradients are compared as they appear, and freed."""
    from grasp_core.gradients import stream_gradients

    bench.load(bench.source)
    bench.model.train(parameters.source_mode == "train")
    scores: Tensors = {}

    def compare(name: str, gk: Tensor) -> None:
        if name in g:
            rows = bench.source.matched_rows(name)
            scores[name] = alignment(gk, g.pop(name), rows, parameters)

    known = bench.source.match.known()
    stream_gradients(bench, compare, None if known is None else known.to(bench.runtime.device))
    return scores


def alignment(gk: Tensor, g: Tensor, rows: list[int] | None, parameters: GraspConfig) -> Tensor:
    """Stage 3. Only `rows` are compared: the source does not have the others."""
    from grasp_core.alignment import align

    if rows is not None:
        gk, g = gk[rows], g[rows]
    return align(gk, g, parameters.granularity, parameters.epsilon).cpu()


def transfer(
    bench: Workbench,
    merged: Mapping[str, Tensor],
    scores: Tensors,
    statistics: Tensors,
    parameters: GraspConfig,
) -> Merge:
    """Stage 4. Copy, or blend in, what agrees, and leave the result in the module."""
    import torch

    from grasp_core.alignment import auto_threshold, blended, follow_transfer
    from grasp_core.workbench import Merge

    tau = auto_threshold(scores.values()) if parameters.tau == "auto" else parameters.tau
    weights = {name: statistics.get(name, merged[name]).clone() for name in merged}
    chosen: Tensors = {}
    reports = []
    for name, _ in bench.model.named_parameters():
        score = scores.get(name, torch.zeros(()))
        chosen[name] = score > tau
        if chosen[name].any():
            rows = bench.source.matched_rows(name)
            where = slice(None) if rows is None else rows
            weights[name][where] = blended(
                weights[name][where], bench.source[name][where], chosen[name], parameters.blend
            )
        reports.append(_report(bench, name, score, chosen[name], parameters.blend))
    if bench.config.norm_stats == "follow":
        follow_transfer(weights, bench.source, chosen, parameters.blend)
    bench.load(weights)
    return Merge(parameters=tuple(reports), details={"tau": tau})


def _report(
    bench: Workbench, name: str, score: Tensor, chosen: Tensor, blend: float
) -> ParameterReport:
    """Of channels and elements, the mean score, and the share of them that was chosen."""
    share = float(chosen.double().mean()) if chosen.numel() else 0.0
    mean = float(score.double().mean()) if score.numel() else 0.0
    return bench.report(name, blend * share, mean)


METHOD = Method(
    name="grasp",
    summary="Copies the parameters whose gradients agree with the target's.",
    formula="θ[j] ← λ θk[j] + (1 - λ) θ[j] where a[j] > τ, with a[j] the cosine of both gradients",
    paper="https://arxiv.org/abs/2606.14900",
    parameters=GraspConfig,
    merge=merge,
    needs=Needs(gradients=True),
    stages=(
        Stage("target_gradients", "Gradients of the merged model"),
        Stage("source_gradients", "Gradients of the source"),
    ),
    score=Score(
        name="alignment",
        meaning="Cosine between the gradients of source and merged model on target data. Above the"
        " threshold τ, a parameter was taken from the source.",
        threshold="tau",
        symbol="τ",
    ),
    advice=Advice(
        too_little="try more alignment_batches, both modes eval, or a lower tau",
        too_much="try a higher tau, or a blend below 1",
    ),
)
