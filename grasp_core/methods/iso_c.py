"""Iso-C: the sum of task vectors with all directions made equally strong.

https://arxiv.org/abs/2502.04959

    U S Vᵀ = Στ               per matrix
    θ = θ0 + λ mean(S) U Vᵀ

What is no matrix is averaged. The state is Στ.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from grasp_core.methods.declaration import Method, Needs
from grasp_core.methods.task_vectors import TaskVectorConfig

if TYPE_CHECKING:
    from torch import Tensor

    from grasp_core.methods.declaration import State
    from grasp_core.methods.tensors import Piece
    from grasp_core.workbench import Merge, Workbench


class IsoCConfig(TaskVectorConfig):
    """Makes the singular values of each summed matrix equal."""

    method: Literal["iso_c"] = "iso_c"


def merge(bench: Workbench, parameters: IsoCConfig, state: State | None) -> Merge:
    from grasp_core.methods.tensors import (
        SUM,
        Rule,
        add_up,
        as_unfused,
        find_matrices,
        fold_tensors,
    )

    def combine(sums: Piece) -> Tensor:
        return parameters.scale * flatten_spectrum(sums[SUM])

    rule = Rule((SUM,), add_up, combine, view=as_unfused, names=find_matrices(bench))
    return fold_tensors(bench, rule, state, parameters)


def flatten_spectrum(matrix: Tensor) -> Tensor:
    """The same directions, each with the mean of all singular values."""
    import torch

    u, s, vh = torch.linalg.svd(matrix, full_matrices=False)
    isotropic: Tensor = s.mean() * u @ vh
    return isotropic


METHOD = Method(
    name="iso_c",
    summary="Adds up task vectors, and makes all directions of each matrix equally strong.",
    formula="θ = θ₀ + λ mean(S) U Vᵀ, with U S Vᵀ = Στ per matrix",
    remembers="Στ, the sum of all task vectors",
    paper="https://arxiv.org/abs/2502.04959",
    parameters=IsoCConfig,
    merge=merge,
    needs=Needs(base=True),
    state=1,
)
