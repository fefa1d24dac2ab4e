"""MagMax: of every entry, the task vector in which it has changed most.

https://arxiv.org/abs/2407.06322

    θ = θ0 + λ · the τ of largest magnitude, entry by entry

The state is that τ.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from grasp_core.methods.declaration import Method, Needs
from grasp_core.methods.task_vectors import MAX_SCALE, TaskVectorConfig

if TYPE_CHECKING:
    from torch import Tensor

    from grasp_core.methods.declaration import State
    from grasp_core.methods.tensors import Parts, Piece
    from grasp_core.workbench import Merge, Workbench


class MagMaxConfig(TaskVectorConfig):
    """Takes each entry from the task vector where it is largest."""

    method: Literal["magmax"] = "magmax"
    scale: float = Field(
        0.5, ge=-MAX_SCALE, le=MAX_SCALE, description="λ: times the largest entries."
    )


def merge(bench: Workbench, parameters: MagMaxConfig, state: State | None) -> Merge:
    from grasp_core.methods.tensors import Rule, fold_tensors

    def combine(parts: Piece) -> Tensor:
        return parameters.scale * parts["largest"]

    return fold_tensors(bench, Rule(("largest",), add, combine, share), state, parameters)


def add(parts: Piece, vector: Tensor) -> Parts:
    """Of equals, the positive one: whichever came first."""
    largest = parts["largest"]
    equal = (vector.abs() == largest.abs()) & (vector > largest)
    return {"largest": vector.where((vector.abs() > largest.abs()) | equal, largest)}


def share(parts: Piece, vector: Tensor) -> Tensor:
    return (vector == parts["largest"]) & (vector != 0)


METHOD = Method(
    name="magmax",
    summary="Takes every entry from the task vector in which it has changed most.",
    formula="θ = θ₀ + λ · the τ of largest magnitude, entry by entry",
    remembers="the entries of largest magnitude so far",
    paper="https://arxiv.org/abs/2407.06322",
    parameters=MagMaxConfig,
    merge=merge,
    needs=Needs(base=True),
    state=1,
    provenance="estimate",
)
