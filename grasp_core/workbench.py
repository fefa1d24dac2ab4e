"""What the stages of one fold share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor, nn

from grasp_core.config import FoldConfig, Frozen
from grasp_core.heads import MatchedSource
from grasp_core.progress import Recorder
from grasp_core.runtime import Runtime
from grasp_core.tasks import Task


@dataclass(frozen=True)
class Workbench:
    """One fold at work: a single module, two memory-mapped files, and the target."""

    model: nn.Module
    merged: Mapping[str, Tensor] | None  # None: the source is the first
    source: MatchedSource
    task: Task
    config: FoldConfig
    runtime: Runtime
    recorder: Recorder
    seed: int
    work_dir: Path
    fold_id: str  # what an interrupted fold must have been to be gone on with


class ParameterReport(Frozen):
    """What happened to one parameter tensor."""

    name: str
    size: int
    alignment: float  # the mean score, for channels and elements
    transferred: bool | float  # the share of it, where only a part was


class Merge(Frozen):
    """The outcome of stages 1 to 4."""

    tau: float
    parameters: tuple[ParameterReport, ...]

    @property
    def share(self) -> float:
        """Share of all parameters that the source gave."""
        total = sum(p.size for p in self.parameters)
        return sum(p.size * float(p.transferred) for p in self.parameters) / total
