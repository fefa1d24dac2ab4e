"""Task arithmetic: the sum of what all sources have learned.

https://arxiv.org/abs/2212.04089

    θ = θ0 + λ Στ

The state is Στ.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from grasp_core.methods.declaration import Method, Needs
from grasp_core.methods.task_vectors import MAX_SCALE, TaskVectorConfig

if TYPE_CHECKING:
    from torch import Tensor

    from grasp_core.methods.declaration import State
    from grasp_core.methods.tensors import Piece
    from grasp_core.workbench import Merge, Workbench


class TaskArithmeticConfig(TaskVectorConfig):
    """Adds up task vectors."""

    method: Literal["task_arithmetic"] = "task_arithmetic"
    scale: float = Field(
        0.3, ge=-MAX_SCALE, le=MAX_SCALE, description="λ: times the sum of all task vectors."
    )


def merge(bench: Workbench, parameters: TaskArithmeticConfig, state: State | None) -> Merge:
    from grasp_core.methods.tensors import SUM, Rule, add_up, fold_tensors

    def combine(sums: Piece) -> Tensor:
        return parameters.scale * sums[SUM]

    return fold_tensors(bench, Rule((SUM,), add_up, combine), state, parameters)


METHOD = Method(
    name="task_arithmetic",
    summary="Adds up what all sources have learned since the base, and scales the sum.",
    formula="θ = θ₀ + λ Στ",
    remembers="Στ, the sum of all task vectors",
    paper="https://arxiv.org/abs/2212.04089",
    parameters=TaskArithmeticConfig,
    merge=merge,
    needs=Needs(base=True),
    state=1,
)
