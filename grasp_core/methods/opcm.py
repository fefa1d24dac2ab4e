"""OPCM: adds of each source only what is at right angles to what there is.

https://arxiv.org/abs/2501.09522

    U S Vᵀ = the sum so far                                   per matrix
    P(τ)   = τ without its entries on the diagonal and in the leading block of U, V
    sum    ← sum + P(τ),        λ = ‖sum‖ / the mean ‖τ‖      of the whole model
    θ      = θ0 + sum / λ

The leading block holds the share α of the singular values. What is no matrix is simply added. The
state is the sum, and the lengths of all task vectors added up. The order of the sources matters.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from grasp_core.config import Fraction
from grasp_core.methods.declaration import Method, Needs
from grasp_core.methods.task_vectors import TaskVectorConfig

if TYPE_CHECKING:
    from torch import Tensor

    from grasp_core.methods.declaration import State
    from grasp_core.methods.tensors import Parts, Piece
    from grasp_core.workbench import Merge, Workbench

LENGTHS = "lengths"  # Σ‖τ‖, each of a whole model


class OpcmConfig(TaskVectorConfig):
    """Adds what is orthogonal to the sources before."""

    method: Literal["opcm"] = "opcm"
    alpha: Fraction = Field(
        0.5,
        description="α: share of the singular values whose directions belong to earlier sources.",
    )


def merge(bench: Workbench, parameters: OpcmConfig, state: State | None) -> Merge:
    from grasp_core.methods.tensors import COUNTS, SUM, Rule, as_unfused, fold_tensors

    arrived, total = Length(), Length()
    sources = 1 if state is None else int(state[COUNTS][-1]) + 1

    def add(parts: Piece, vector: Tensor) -> Parts:
        added = parts[SUM] + project(vector, parts[SUM], parameters.alpha)
        arrived.add(vector)
        total.add(added)
        return {SUM: added}

    def lengths() -> Tensor:
        return arrived.value if state is None else arrived.value + state[LENGTHS]

    def combine(parts: Piece) -> Tensor:
        mean = lengths() / sources
        return parameters.scale * parts[SUM] * (mean / total.value.clamp(min=1e-30)).float()

    rule = Rule((SUM,), add, combine, view=as_unfused, totals={LENGTHS: lengths})
    return fold_tensors(bench, rule, state, parameters)


def project(vector: Tensor, total: Tensor, alpha: float) -> Tensor:
    """What of a matrix is at right angles to the sum so far."""
    import torch

    if total.ndim != 2:
        return vector
    u, s, vh = torch.linalg.svd(total, full_matrices=False)
    inside = u.T @ vector @ vh.T  # (r, r)
    leading = int((s.cumsum(0) <= alpha * s.sum()).sum())
    taken = torch.eye(len(s), dtype=torch.bool, device=s.device)
    taken[:leading, :leading] = True
    outside: Tensor = vector - u @ (inside * taken) @ vh
    return outside


class Length:
    """Euclidean, of tensors that come one by one."""

    def __init__(self) -> None:
        self._squares: list[Tensor] = []

    def add(self, tensor: Tensor) -> None:
        self._squares.append(tensor.double().square().sum())

    @property
    def value(self) -> Tensor:
        import torch

        return torch.stack(self._squares).sum().sqrt()


METHOD = Method(
    name="opcm",
    summary="Adds of each source only what is at right angles to the sources before it.",
    formula="θ = θ₀ + λ · sum / c, with sum ← sum + P(τ), and c such that the merged task vector is"
    " as long as the τ are on average",
    remembers="the sum of all projected task vectors, and the lengths of the τ added up",
    paper="https://arxiv.org/abs/2501.09522",
    parameters=OpcmConfig,
    merge=merge,
    needs=Needs(base=True, history=True),
    state=1,
    provenance="estimate",
)
