"""The source whole: what a user would do who fine-tunes what arrived, and nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from grasp_core.config import MethodConfig
from grasp_core.methods.declaration import Method

if TYPE_CHECKING:
    from grasp_core.methods.declaration import State
    from grasp_core.workbench import Merge, Workbench


class SourceConfig(MethodConfig):
    """Takes the source whole."""

    method: Literal["source"] = "source"


def merge(bench: Workbench, parameters: SourceConfig, state: State | None) -> Merge:
    del parameters, state  # it has none
    return take_source(bench)


def take_source(bench: Workbench) -> Merge:
    """Leave the source in the module; head rows that it lacks stay the merged model's."""
    from grasp_core.workbench import Merge

    with bench.recorder.stage("transfer"):
        bench.load(bench.source, exact=True)
        return Merge(bench.report_all(1.0))


METHOD = Method(
    name="source",
    summary="Takes the source whole, as if there were no other.",
    formula="θ = θk",
    paper=None,
    parameters=SourceConfig,
    merge=merge,
)
