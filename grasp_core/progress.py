"""How a fold tells what it is doing, and hears that it should stop."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal

import torch

from grasp_core.config import Frozen, Stage
from grasp_core.errors import FoldStopped
from grasp_core.memory import PeakMemory

STOP: Literal["stop"] = "stop"

# Where each stage begins on the way from 0 to 1: rough shares of the time of a common fold.
_BEGINS: dict[Stage, float] = {
    "load": 0.0,
    "baseline": 0.02,
    "target_gradients": 0.07,
    "source_gradients": 0.12,
    "transfer": 0.17,
    "recalibrate": 0.18,
    "refine": 0.20,
    "evaluate": 0.93,
    "publish": 0.99,
}
_ENDS = dict(zip(_BEGINS, [*list(_BEGINS.values())[1:], 1.0], strict=True))


@dataclass(frozen=True)
class Progress:
    """Where a fold is: its stage, the fraction of the whole that is done, the metrics so far."""

    stage: Stage
    fraction: float
    metrics: Mapping[str, float] = field(default_factory=dict)


ProgressCallback = Callable[[Progress], Literal["stop"] | None]


class StageRecord(Frozen):
    """What a stage cost."""

    name: Stage
    seconds: float
    peak_bytes: int


class Recorder:
    """Times the stages, measures their memory, and calls back."""

    def __init__(self, device: torch.device, callback: ProgressCallback | None = None) -> None:
        self.stages: list[StageRecord] = []
        self._device = device
        self._callback = callback
        self._stage: Stage = "load"
        self._metrics: dict[str, float] = {}

    @contextmanager
    def stage(self, name: Stage) -> Iterator[None]:
        self._stage = name
        self.tick(0.0)
        begin = time.perf_counter()
        with PeakMemory(self._device) as peak:
            yield
        seconds = time.perf_counter() - begin
        self.stages.append(StageRecord(name=name, seconds=seconds, peak_bytes=peak.bytes))
        self.tick(1.0)

    def recall(self, stages: Iterable[StageRecord]) -> None:
        """Take over what an earlier attempt recorded of stages that are not run again."""
        known = {stage.name for stage in self.stages}
        self.stages += [stage for stage in stages if stage.name not in known]

    def tick(self, fraction: float, **metrics: float) -> None:
        """Say how much of this stage is done. Raises FoldStopped if the callback says stop."""
        self._metrics.update(metrics)
        if self._callback is None:
            return
        begin, end = _BEGINS[self._stage], _ENDS[self._stage]
        whole = begin + (end - begin) * fraction
        if self._callback(Progress(self._stage, whole, dict(self._metrics))) == STOP:
            raise FoldStopped(
                f"stopped in stage {self._stage} at {whole:.0%}",
                hint="fold again with the same work_dir to go on from the last finished epoch",
            )
