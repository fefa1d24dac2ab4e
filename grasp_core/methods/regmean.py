"""RegMean: the linear layers whose outputs are closest to those of all sources, on the target.

https://arxiv.org/abs/2212.09849

    Gk = XᵀX of the layer's inputs X in source k, off the diagonal times α
    W  = (Σ Gk)⁻¹ Σ Gk Wk                      in closed form

What is no linear layer is averaged, and so is the head, of which sources may lack classes. The
state is ΣG and ΣGW.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from grasp_core.config import Fraction, MethodConfig
from grasp_core.methods.declaration import Method, Stage

if TYPE_CHECKING:
    from torch import Tensor, nn

    from grasp_core.methods.declaration import State
    from grasp_core.methods.tensors import Parts, Piece
    from grasp_core.workbench import Merge, Workbench

RIDGE = 1e-6  # of the mean of the diagonal: inputs that are always zero are averaged


class RegMeanConfig(MethodConfig):
    """Averages linear layers by what goes into them."""

    method: Literal["regmean"] = "regmean"
    alpha: Fraction = Field(
        0.9, description="α: scale of the products of different inputs; 0 leaves their squares."
    )


def merge(bench: Workbench, parameters: RegMeanConfig, state: State | None) -> Merge:
    from grasp_core.methods.tensors import SUM, Rule, fold_tensors

    def add(parts: Piece, weight: Tensor) -> Parts:
        gram = scale_off_diagonal(parts.measured, parameters.alpha)
        return {SUM: parts[SUM] + weight @ gram, "gram": parts["gram"] + gram}

    def combine(parts: Piece) -> Tensor:
        return solve(parts[SUM], parts["gram"])

    def measure(weights: Mapping[str, Tensor], known: Tensor | None) -> Parts:
        return measure_inputs(bench, weights, layers, known)

    layers = find_layers(bench)
    rule = Rule((SUM, "gram"), add, combine, names=layers, measure=measure)
    return fold_tensors(bench, rule, state)


def find_layers(bench: Workbench) -> dict[str, nn.Module]:
    """Linear layers but for the head, by the names of their weights."""
    from torch import nn

    modules = bench.model.named_modules()
    linear = {f"{name}.weight": module for name, module in modules if isinstance(module, nn.Linear)}
    return {name: module for name, module in linear.items() if not bench.source.is_head(name)}


def measure_inputs(
    bench: Workbench,
    weights: Mapping[str, Tensor],
    layers: Mapping[str, nn.Module],
    known: Tensor | None,
) -> dict[str, Tensor]:
    """XᵀX of each layer, a mean over its inputs."""
    import torch

    from grasp_core.gradients import alignment_parts

    grams: dict[str, Tensor] = {}
    rows = dict.fromkeys(layers, 0)

    def listen(name: str) -> Any:
        def hear(_: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            x = inputs[0].flatten(0, -2).float()
            grams[name].addmm_(x.T, x)
            rows[name] += len(x)

        return hear

    with bench.recorder.stage("inputs"), torch.no_grad():
        bench.load(weights, exact=True)
        bench.model.eval()
        for name, layer in layers.items():
            width = layer.get_parameter("weight").shape[1]
            grams[name] = bench.scratch((width, width))
        handles = [layer.register_forward_pre_hook(listen(n)) for n, layer in layers.items()]
        known = None if known is None else known.to(bench.runtime.device)
        for done, (batch, _) in enumerate(alignment_parts(bench, known), 1):
            bench.task.loss(bench.model, batch, known)
            bench.recorder.tick(min(done / bench.config.alignment_batches, 1.0))
        for handle in handles:
            handle.remove()
        return {name: gram.div_(max(rows[name], 1)).cpu() for name, gram in grams.items()}


def scale_off_diagonal(gram: Tensor, alpha: float) -> Tensor:
    import torch

    diagonal = gram.diagonal()
    ridge = RIDGE * diagonal.mean().clamp(min=1e-12)
    return alpha * gram + torch.diag((1.0 - alpha) * diagonal + ridge)


def solve(weighted: Tensor, gram: Tensor) -> Tensor:
    """W (out, in) of WG and G."""
    import torch

    solution: Tensor = torch.linalg.solve(gram.double(), weighted.double(), left=False)
    return solution.float()


METHOD = Method(
    name="regmean",
    summary="Averages linear layers so that their outputs on the target stay closest to all.",
    formula="W = (ΣG)⁻¹ ΣGW, with G = XᵀX of the layer's inputs, off the diagonal times α",
    remembers="ΣG and ΣGW of each linear layer",
    paper="https://arxiv.org/abs/2212.09849",
    parameters=RegMeanConfig,
    merge=merge,
    stages=(Stage("inputs", "Inputs of the source's layers"),),
    state=1,
    provenance="estimate",
)
