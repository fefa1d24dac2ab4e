"""Everything a fold measured, as versioned JSON."""

from __future__ import annotations

import math
import platform
from importlib.metadata import version
from typing import Literal

import torch
from pydantic import Field

from grasp_core.config import FoldConfig, Frozen
from grasp_core.evaluation import Metrics
from grasp_core.gate import Verdict
from grasp_core.kinds import Kind
from grasp_core.progress import StageRecord
from grasp_core.provenance import Provenance
from grasp_core.refinement import EpochRecord
from grasp_core.runtime import Runtime
from grasp_core.spec import ModelSpec
from grasp_core.workbench import ParameterReport

LIBRARIES = ("torch", "safetensors", "numpy")  # and those of the kind
EXTREME_SHARE = 0.01  # nearer to 0 or 1 than this, the alignment did not really choose


class SplitMetrics(Frozen):
    val: Metrics
    test: Metrics


class MetricsReport(Frozen):
    before: SplitMetrics | None = None  # None: the first source, or refused before a look
    after: SplitMetrics | None = None  # None: refused before a fold


class Worth(Frozen):
    """What the source was worth on the validation split, in the paper's terms (section 3.2).

    P is the geometric mean probability of the true class.
    """

    effectiveness: float  # |log P(m) - log P(m-1)|
    informativeness: float  # P(m) / P(m-1); above 1: the source helped

    @classmethod
    def measure(cls, metrics: MetricsReport) -> Worth | None:
        if metrics.before is None or metrics.after is None:
            return None
        before, after = metrics.before.val.log_likelihood, metrics.after.val.log_likelihood
        if before is None or after is None:
            return None
        return cls(effectiveness=abs(after - before), informativeness=math.exp(after - before))


class Environment(Frozen):
    """What computed the fold; the same fold gives the same bytes on the same of these."""

    python: str
    libraries: dict[str, str]
    device: str
    threads: int
    autocast: str | None

    @classmethod
    def describe(cls, runtime: Runtime, kind: Kind) -> Environment:
        on_cuda = runtime.device.type == "cuda"
        return cls(
            python=platform.python_version(),
            libraries={name: version(name) for name in (*LIBRARIES, *kind.libraries)},
            device=torch.cuda.get_device_name(runtime.device) if on_cuda else runtime.device.type,
            threads=torch.get_num_threads(),
            autocast=str(runtime.autocast_dtype).removeprefix("torch.")
            if runtime.autocast_dtype
            else None,
        )


class FoldReport(Frozen):
    """One fold, whole: what it was asked, what it measured, what it decided."""

    schema_version: Literal[1] = Field(1, alias="schema")
    outcome: Literal["accepted", "rejected"]
    reason: str | None = None  # why it was rejected, or would have been
    forced: bool = False
    spec: ModelSpec
    config: FoldConfig
    seed: int
    version: int
    parent: str | None  # sha256 of the version folded into
    source: str  # sha256
    sha256: str | None = None  # of the new version; None if rejected
    metrics: MetricsReport = MetricsReport()
    gate: Verdict | None = None  # None: refused before a fold
    worth: Worth | None = None
    tau: float | None = None
    transferred_share: float | None = None
    parameters: tuple[ParameterReport, ...] = ()
    history: tuple[EpochRecord, ...] = ()
    best_epoch: int | None = None
    resumed_from_epoch: int | None = None
    provenance: Provenance = Provenance()
    warnings: tuple[str, ...] = ()
    stages: tuple[StageRecord, ...] = ()
    environment: Environment

    @property
    def accepted(self) -> bool:
        return self.outcome == "accepted"

    def to_json(self) -> str:
        return self.model_dump_json(by_alias=True, indent=2)


def share_warnings(share: float) -> tuple[str, ...]:
    """A warning where the alignment has chosen next to nothing, or next to everything."""
    if share < EXTREME_SHARE:
        return (
            f"only {share:.2%} of the parameters were transferred, so this fold is little more than"
            " fine-tuning; try more alignment_batches, both modes eval, or a lower tau",
        )
    if share > 1 - EXTREME_SHARE:
        return (
            f"{share:.2%} of the parameters were transferred, so the source all but replaced the"
            " merged model; try a higher tau, or a blend below 1",
        )
    return ()
