"""WUDI: the task vector that disturbs each source least, in the directions in which it acts.

https://arxiv.org/abs/2503.08099

    τ* = argmin over τ of  Σk ‖(τ - τk) τkᵀ‖² / ‖τk‖²       per matrix
    θ  = θ0 + λ τ*

found by Adam, beginning at Στ. What is no matrix is averaged. The gradient is 2 (τ A - B), so that
the state is A = Σ τᵀτ/‖τ‖² and B = Σ τ τᵀτ/‖τ‖², beside Στ.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from grasp_core.config import MAX_RATE, MAX_STEPS
from grasp_core.methods.declaration import Method, Needs
from grasp_core.methods.task_vectors import TaskVectorConfig

if TYPE_CHECKING:
    from torch import Tensor

    from grasp_core.methods.declaration import State
    from grasp_core.methods.tensors import Parts, Piece
    from grasp_core.workbench import Merge, Workbench


class WudiConfig(TaskVectorConfig):
    """Minimises how much the merged task vector disturbs each source."""

    method: Literal["wudi"] = "wudi"
    steps: int = Field(300, ge=0, le=MAX_STEPS, description="Of Adam, for each matrix.")
    lr: float = Field(1e-5, gt=0.0, le=MAX_RATE, description="Of Adam.")


def merge(bench: Workbench, parameters: WudiConfig, state: State | None) -> Merge:
    from grasp_core.methods.tensors import SUM, Rule, as_matrix, find_matrices, fold_tensors

    def add(parts: Piece, vector: Tensor) -> Parts:
        weighted = vector / vector.square().sum().clamp(min=1e-30)  # (out, in)
        gram = vector.T @ weighted  # (in, in)
        return {
            SUM: parts[SUM] + vector,
            "gram": parts["gram"] + gram,
            "pull": parts["pull"] + vector @ gram,
        }

    def combine(parts: Piece) -> Tensor:
        return parameters.scale * descend(parts[SUM], parts["gram"], parts["pull"], parameters)

    rule = Rule((SUM, "gram", "pull"), add, combine, view=as_matrix, names=find_matrices(bench))
    return fold_tensors(bench, rule, state, parameters)


def descend(vector: Tensor, gram: Tensor, pull: Tensor, parameters: WudiConfig) -> Tensor:
    """Adam's way from the sum towards the minimum."""
    import torch

    vector = vector.clone()
    optimizer = torch.optim.Adam([vector], lr=parameters.lr)
    for _ in range(parameters.steps):
        vector.grad = 2 * (vector @ gram - pull)
        optimizer.step()
    return vector


METHOD = Method(
    name="wudi",
    summary="Looks for the task vector that disturbs each source least.",
    formula="θ = θ₀ + λ argmin Σk ‖(τ - τk) τkᵀ‖² / ‖τk‖², per matrix",
    remembers="Στ, Σ τᵀτ/‖τ‖² and Σ τ τᵀτ/‖τ‖² of each matrix",
    paper="https://arxiv.org/abs/2503.08099",
    parameters=WudiConfig,
    merge=merge,
    needs=Needs(base=True),
    state=1,
    provenance="estimate",
)
