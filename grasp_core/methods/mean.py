"""The running mean of all sources, as they came: the paper's Multi-Source, a uniform model soup.

https://arxiv.org/abs/2203.05482

    θ = (θ1 + … + θk) / k

The state is the sum and the count, so that fold by fold the mean is that of all sources at once;
what refinement did to a version never enters it. A row of the head is the mean of those sources
that know its class.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from grasp_core.config import MethodConfig
from grasp_core.methods.declaration import Method

if TYPE_CHECKING:
    from grasp_core.methods.declaration import State
    from grasp_core.workbench import Merge, Workbench


class MeanConfig(MethodConfig):
    """Averages all sources with equal weights."""

    method: Literal["mean"] = "mean"


def merge(bench: Workbench, parameters: MeanConfig, state: State | None) -> Merge:
    from grasp_core.methods.tensors import AVERAGE, fold_tensors

    del parameters  # it has none of its own
    return fold_tensors(bench, AVERAGE, state)


METHOD = Method(
    name="mean",
    summary="Averages all sources, each with the same weight.",
    formula="θ = Σθ / k",
    remembers="Σθ and k",
    paper="https://arxiv.org/abs/2203.05482",
    parameters=MeanConfig,
    merge=merge,
    state=1,
)
