"""TIES: trim, elect a sign, and average what agrees with it.

https://arxiv.org/abs/2306.01708

    τ ← the largest entries of τk, per tensor           as it arrives
    s = sign(Στ)                                        entry by entry
    θ = θ0 + λ · the mean of those τ that have sign s

Those of one sign add up to (Σ|τ| + |Στ|) / 2, so that the state is Στ and Σ|τ|, and how many there
are of either sign.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from grasp_core.errors import ConfigError
from grasp_core.methods.declaration import Method, Needs
from grasp_core.methods.task_vectors import TaskVectorConfig

if TYPE_CHECKING:
    from torch import Tensor

    from grasp_core.methods.declaration import State
    from grasp_core.methods.tensors import Parts, Piece
    from grasp_core.workbench import Merge, Workbench

MOST_SOURCES = 2**15 - 1  # counts are int16, so that a state is three times its model
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
    from grasp_core.methods.tensors import COUNTS, SUM, Rule, fold_tensors

    if state is not None and int(state[COUNTS][-1]) >= MOST_SOURCES:
        raise ConfigError(f"ties counts the votes of at most {MOST_SOURCES} sources")

    def combine(votes: Piece) -> Tensor:
        return parameters.scale * average_elected(votes)

    rule = Rule((SUM, "sizes", "ups", "downs"), add, combine, share)
    return fold_tensors(bench, rule, state, parameters)


def add(votes: Piece, vector: Tensor) -> Parts:
    import torch

    return {
        "sum": votes["sum"] + vector,
        "sizes": votes["sizes"] + vector.abs(),
        "ups": (votes["ups"] + (vector > 0)).to(torch.int16),
        "downs": (votes["downs"] + (vector < 0)).to(torch.int16),
    }


def elect(votes: Piece) -> tuple[Tensor, Tensor]:
    """Στ, zero where both signs weigh the same but for the rounding of the sums, and how many there
    are of its sign, or 1."""
    total, sizes = votes["sum"], votes["sizes"]
    total = total * (total.abs() > ROUNDING * sizes)
    return total, votes["ups"].where(total > 0, votes["downs"]).clamp_(min=1)


def average_elected(votes: Piece) -> Tensor:
    """The mean of those with the sign that weighs more."""
    total, count = elect(votes)
    return (votes["sizes"] + total.abs()).mul_(total.sign()).div_(count).mul_(0.5)


def share(votes: Piece, vector: Tensor) -> Tensor:
    """Of each entry, what this source has in the mean."""
    total, count = elect(votes)
    return (vector * total > 0) / count


METHOD = Method(
    name="ties",
    summary="Keeps the largest entries of each task vector, and averages those whose signs agree.",
    formula="θ = θ₀ + λ · mean of those τ whose sign is that of Στ",
    remembers="Στ and Σ|τ| of all trimmed task vectors, and the counts of their positive and of"
    " their negative entries",
    paper="https://arxiv.org/abs/2306.01708",
    parameters=TiesConfig,
    merge=merge,
    needs=Needs(base=True),
    state=1,
    provenance="estimate",
)
