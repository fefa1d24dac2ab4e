"""Fisher merging: the mean of all sources, each entry weighed by how much it matters there.

https://arxiv.org/abs/2111.09832

    Fk = the mean square of each parameter's gradient at θk, example by example of the target
    θ  = Σ Fk θk / Σ Fk

The gradients are those of the loss on the target's own labels (the empirical Fisher information).
The state is ΣF and ΣFθ.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from grasp_core.config import MethodConfig
from grasp_core.methods.declaration import Method, Needs, Stage

if TYPE_CHECKING:
    from torch import Tensor

    from grasp_core.methods.declaration import State
    from grasp_core.methods.tensors import Parts, Piece
    from grasp_core.workbench import Merge, Workbench


class FisherConfig(MethodConfig):
    """Averages sources by the Fisher information of their parameters."""

    method: Literal["fisher"] = "fisher"
    floor: float = Field(
        1e-6,
        gt=0.0,
        le=1.0,
        description="Added to every weight: what matters in no source is averaged evenly.",
    )


def merge(bench: Workbench, parameters: FisherConfig, state: State | None) -> Merge:
    from grasp_core.methods.tensors import SUM, Rule, fold_tensors

    def add(parts: Piece, theta: Tensor) -> Parts:
        weight = (parts.measured + parameters.floor) * parts.given
        return {SUM: parts[SUM] + weight * theta, "weights": parts["weights"] + weight}

    def combine(parts: Piece) -> Tensor:
        return parts[SUM] / parts["weights"].clamp(min=parameters.floor)

    def share(parts: Piece, _: Tensor) -> Tensor:
        weight = (parts.measured + parameters.floor) * parts.given
        return weight / parts["weights"].clamp(min=parameters.floor)

    def measure(weights: Mapping[str, Tensor], known: Tensor | None) -> Parts:
        return measure_fisher(bench, weights, known)

    rule = Rule((SUM, "weights"), add, combine, share, measure=measure)
    return fold_tensors(bench, rule, state)


def measure_fisher(
    bench: Workbench, weights: Mapping[str, Tensor], known: Tensor | None
) -> dict[str, Tensor]:
    """The diagonal of the Fisher information, on the alignment batches."""
    from grasp_core.gradients import alignment_parts, micro_batches

    with bench.recorder.stage("fisher"):
        bench.load(weights, exact=True)
        bench.model.eval()
        named = dict(bench.model.named_parameters())
        fisher = {name: bench.scratch(parameter.shape) for name, parameter in named.items()}
        known = None if known is None else known.to(bench.runtime.device)
        examples = 0
        for batch, _ in alignment_parts(bench, known):
            for example, _ in micro_batches(batch, 1):
                bench.task.loss(bench.model, example, known).backward()
                for name, parameter in named.items():
                    if parameter.grad is not None:
                        fisher[name] += parameter.grad.square()
                        parameter.grad = None
            examples += len(batch)
            bench.recorder.tick(min(examples / bench.alignment_examples, 1.0))
        for total in fisher.values():
            total /= max(examples, 1)
        return {name: total.cpu() for name, total in fisher.items()}


METHOD = Method(
    name="fisher",
    summary="Averages all sources, each entry weighed by its Fisher information on the target.",
    formula="θ = Σ Fθ / ΣF",
    remembers="ΣF and ΣFθ",
    paper="https://arxiv.org/abs/2111.09832",
    parameters=FisherConfig,
    merge=merge,
    needs=Needs(gradients=True),
    stages=(Stage("fisher", "Fisher information of the source"),),
    state=1,
    provenance="estimate",
)
