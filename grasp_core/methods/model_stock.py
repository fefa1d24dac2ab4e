"""Model Stock: the mean of task vectors, the shorter the less they point the same way.

https://arxiv.org/abs/2403.19522

    c = the mean cosine of two task vectors, per tensor
    t = k c / (1 + (k - 1) c)
    θ = θ0 + t Στ / k

The state is Στ and Σ τ/‖τ‖, whose length tells the mean cosine: ‖Σu‖² = k + k (k - 1) c.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from grasp_core.methods.declaration import Method, Needs
from grasp_core.methods.task_vectors import TaskVectorConfig

if TYPE_CHECKING:
    from torch import Tensor

    from grasp_core.methods.declaration import State
    from grasp_core.methods.tensors import Parts, Piece
    from grasp_core.workbench import Merge, Workbench


class ModelStockConfig(TaskVectorConfig):
    """Averages task vectors, and trusts them as far as they agree."""

    method: Literal["model_stock"] = "model_stock"


def merge(bench: Workbench, parameters: ModelStockConfig, state: State | None) -> Merge:
    from grasp_core.methods.tensors import SUM, Rule, average, fold_tensors

    def add(parts: Piece, vector: Tensor) -> Parts:
        length = vector.norm()
        return {
            SUM: parts[SUM] + vector,
            "directions": parts["directions"] + (vector / length if length > 0 else vector),
            "moved": parts["moved"] + (length > 0),
        }

    def combine(parts: Piece) -> Tensor:
        ratio = interpolation(parts["directions"], parts["moved"])
        return parameters.scale * ratio * average(parts)

    rule = Rule((SUM, "directions", "moved"), add, combine)
    return fold_tensors(bench, rule, state, parameters)


def interpolation(directions: Tensor, count: Tensor) -> Tensor:
    """t, of the sum of so many unit vectors; what points apart on the whole counts as at right
    angles."""
    k = count.double()
    if k < 2:
        return k.new_ones(()).float()
    cosine = ((directions.double().square().sum() - k) / (k * (k - 1))).clamp(min=0.0)
    return (k * cosine / (1 + (k - 1) * cosine)).float()


METHOD = Method(
    name="model_stock",
    summary="Averages task vectors, and moves from the base as far as they point the same way.",
    formula="θ = θ₀ + t Στ / k, with t = k c / (1 + (k - 1) c) and c the mean cosine of two τ",
    remembers="Στ and Σ τ/‖τ‖ of each tensor",
    paper="https://arxiv.org/abs/2403.19522",
    parameters=ModelStockConfig,
    merge=merge,
    needs=Needs(base=True),
    state=1,
)
