"""How a fold reports what it is doing, and hears that it should stop."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal

import torch

from grasp_core.errors import FoldStopped
from grasp_core.memory import PeakMemory
from grasp_core.methods.declaration import Stage
from grasp_core.report import StageRecord

STOP: Literal["stop"] = "stop"

# Where each stage begins on the way from 0 to 1: rough shares of the time of a common fold. Those
# of a method's own lie between baseline and transfer.
_BEGINS = {
    "load": 0.0,
    "baseline": 0.02,
    "transfer": 0.17,
    "recalibrate": 0.18,
    "refine": 0.20,
    "evaluate": 0.93,
    "publish": 0.99,
}
_MERGE_BEGINS = 0.07


@dataclass(frozen=True)
class Progress:
    """Where a fold is: its stage, the fraction of the whole that is done, the metrics so far."""

    stage: str
    fraction: float
    metrics: Mapping[str, float] = field(default_factory=dict)


ProgressCallback = Callable[[Progress], Literal["stop"] | None]


class Recorder:
    """Times the stages, measures their memory, and calls back."""

    def __init__(
        self,
        device: torch.device,
        callback: ProgressCallback | None = None,
        own_stages: Sequence[Stage] = (),
    ) -> None:
        """`own_stages` are those that the method adds."""
        self.stages: list[StageRecord] = []
        self._device = device
        self._callback = callback
        self._spans = _spans(own_stages)
        self._stage = "load"
        self._metrics: dict[str, float] = {}

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        if name not in self._spans:
            raise ValueError(f"the method declares no stage {name!r}")
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
        begin, end = self._spans[self._stage]
        whole = begin + (end - begin) * fraction
        if self._callback(Progress(self._stage, whole, dict(self._metrics))) == STOP:
            raise FoldStopped(
                f"stopped in stage {self._stage} at {whole:.0%}",
                hint="fold again with the same work_dir to go on from the last look at validation",
            )


def _spans(own: Sequence[Stage]) -> dict[str, tuple[float, float]]:
    """From where to where each stage leads."""
    step = (_BEGINS["transfer"] - _MERGE_BEGINS) / max(len(own), 1)
    begins = _BEGINS | {stage.name: _MERGE_BEGINS + i * step for i, stage in enumerate(own)}
    ordered = sorted(begins.items(), key=lambda item: item[1])
    return {name: (begin, end) for (name, begin), (_, end) in pairwise([*ordered, ("", 1.0)])}
