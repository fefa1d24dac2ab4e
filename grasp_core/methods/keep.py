"""The merged model without this source: what the others are measured against."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from grasp_core.config import MethodConfig
from grasp_core.errors import ConfigError
from grasp_core.methods.declaration import Method

if TYPE_CHECKING:
    from grasp_core.methods.declaration import State
    from grasp_core.workbench import Merge, Workbench


class KeepConfig(MethodConfig):
    """Does without the source."""

    method: Literal["keep"] = "keep"


def merge(bench: Workbench, parameters: KeepConfig, state: State | None) -> Merge:
    """Leave the merged model in the module; before a first source, the model's base."""
    from grasp_core.workbench import Merge

    del parameters, state  # it has none
    weights = bench.base if bench.merged is None else bench.merged
    if weights is None:
        raise ConfigError("there is nothing to keep: this source is the first, without a base")
    with bench.recorder.stage("transfer"):
        bench.load(weights, exact=True)
        return Merge(bench.report_all(0.0))


METHOD = Method(
    name="keep",
    summary="Does without the source: the merged model, or before a first source its base.",
    formula="θ",
    paper=None,
    parameters=KeepConfig,
    merge=merge,
    uses_base=True,
)
