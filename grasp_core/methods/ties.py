"""TIES: trim, elect a sign, and average what agrees with it.

https://arxiv.org/abs/2306.01708

    τ ← the largest entries of τk, per tensor           as it arrives
    s = sign(Στ)                                        entry by entry
    θ = θ0 + λ · the mean of those τ that have sign s

The state is what this needs of all sources: the sums of positive and of negative entries, and how
many there are of each.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from grasp_core.methods.declaration import Method, Needs
from grasp_core.methods.task_vectors import TaskVectorConfig

if TYPE_CHECKING:
    from torch import Tensor

    from grasp_core.methods.declaration import State
    from grasp_core.methods.tensors import Parts, Piece
    from grasp_core.workbench import Merge, Workbench

ROUNDING = 1e-5  # of a sum of hundreds of numbers in float32


class TiesConfig(TaskVectorConfig):
    """Averages task vectors where their signs agree."""

    method: Literal["ties"] = "ties"
    density: float = Field(
        0.2,
        gt=0.0,
        le=1.0,
        description="Share of each tensor of a task vector that is kept: its largest entries.",
    )


def merge(bench: Workbench, parameters: TiesConfig, state: State | None) -> Merge:
    from grasp_core.methods.tensors import Rule, fold_tensors

    def combine(votes: Piece) -> Tensor:
        return parameters.scale * elect(votes)

    rule = Rule(("ups", "downs", "up_count", "down_count"), add, combine, share)
    return fold_tensors(bench, rule, state, parameters)


def add(votes: Piece, vector: Tensor) -> Parts:
    import torch

    up, down = vector > 0, vector < 0
    return {
        "ups": votes["ups"] + vector * up,
        "downs": votes["downs"] + vector * down,
        "up_count": (votes["up_count"] + up).to(torch.int32),
        "down_count": (votes["down_count"] + down).to(torch.int32),
    }


def weigh(votes: Piece) -> Tensor:
    """Στ; zero where both signs weigh the same, but for the rounding of the sums."""
    weight = votes["ups"] + votes["downs"]
    return weight * (weight.abs() > ROUNDING * (votes["ups"] - votes["downs"]))


def elect(votes: Piece) -> Tensor:
    """The mean of those with the sign that weighs more."""
    weight = weigh(votes)
    up = votes["ups"] / votes["up_count"].clamp(min=1)
    down = votes["downs"] / votes["down_count"].clamp(min=1)
    return up * (weight > 0) + down * (weight < 0)


def share(votes: Piece, vector: Tensor) -> Tensor:
    """Of each entry, what this source has in the mean."""
    weight = weigh(votes)
    count = votes["up_count"].where(weight > 0, votes["down_count"])
    return (vector * weight > 0) / count.clamp(min=1)


METHOD = Method(
    name="ties",
    summary="Keeps the largest entries of each task vector, and averages those whose signs agree.",
    formula="θ = θ₀ + λ · mean of those τ whose sign is that of Στ",
    remembers="the sums of the positive and of the negative entries of all trimmed task vectors,"
    " and their counts",
    paper="https://arxiv.org/abs/2306.01708",
    parameters=TiesConfig,
    merge=merge,
    needs=Needs(base=True),
    state=1,
    provenance="estimate",
)
