"""How a fold reports what it is doing, and hears that it should stop."""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import Literal

import torch

from grasp_core.errors import FoldStopped, OutOfTime
from grasp_core.memory import PeakMemory
from grasp_core.report import StageRecord

STOP: Literal["stop"] = "stop"

# How long stages take, roughly: shares of a common fold with one candidate.
_WEIGHTS = {
    "load": 0.02,
    "baseline": 0.05,
    "transfer": 0.01,
    "recalibrate": 0.02,
    "refine": 0.73,
    "predict": 0.01,
    "evaluate": 0.05,
    "publish": 0.01,
}
_OWN_WEIGHT = 0.05  # of a stage that a method adds

Work = tuple[str | None, str]  # a candidate, or None for the fold as a whole, and a stage of it


@dataclass(frozen=True)
class Progress:
    """Where a fold is: in which stage, how much of it is done, the metrics so far, and whose."""

    stage: str
    fraction: float
    metrics: Mapping[str, float] = field(default_factory=dict)
    candidate: str | None = None


ProgressCallback = Callable[[Progress], Literal["stop"] | None]


class Recorder:
    """Times the stages, measures their memory, and calls back."""

    def __init__(
        self,
        device: torch.device,
        callback: ProgressCallback | None = None,
        plan: Iterable[Work] = (),
    ) -> None:
        """`plan` is the work there is, in order; some of it may turn out to be needless."""
        self.stages: list[StageRecord] = []
        self._device = device
        self._callback = callback
        self._candidate: str | None = None
        self._stage = "load"
        self._metrics: defaultdict[str | None, dict[str, float]] = defaultdict(dict)
        self._fraction = 0.0
        self._deadline = math.inf
        self.plan(plan)

    def plan(self, work: Iterable[Work], share: float = 1.0) -> None:
        """What is left to do from here, where only `share` of the refinement is."""
        weights = {each: _WEIGHTS.get(each[1], _OWN_WEIGHT) for each in work}
        for each in weights:
            weights[each] *= share if each[1] == "refine" else 1.0
        begin, total = self._fraction, sum(weights.values())
        ends = [begin + (1.0 - begin) * done / total for done in accumulate(weights.values())]
        self._spans = dict(zip(weights, pairwise([begin, *ends[:-1], 1.0]), strict=True))

    @contextmanager
    def candidate(self, name: str, seconds: float | None = None) -> Iterator[None]:
        """Whose stages follow, and how long they may take. Raises OutOfTime."""
        self._candidate = name
        self._deadline = time.monotonic() + (math.inf if seconds is None else seconds)
        try:
            yield
        finally:
            self._candidate, self._deadline = None, math.inf

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        if (self._candidate, name) not in self._spans:
            raise ValueError(f"the method declares no stage {name!r}")
        self._stage = name
        self.tick(0.0)
        begin = time.perf_counter()
        with PeakMemory(self._device) as peak:
            yield
        seconds = time.perf_counter() - begin
        self.stages.append(
            StageRecord(
                name=name, seconds=seconds, peak_bytes=peak.bytes, candidate=self._candidate
            )
        )
        self.tick(1.0)

    def recall(self, stages: Iterable[StageRecord]) -> None:
        """Take over what an earlier attempt recorded of stages that are not run again."""
        known = {(stage.candidate, stage.name) for stage in self.stages}
        self.stages += [stage for stage in stages if (stage.candidate, stage.name) not in known]

    def stages_of(self, candidate: str | None) -> tuple[StageRecord, ...]:
        return tuple(stage for stage in self.stages if stage.candidate == candidate)

    def tick(self, fraction: float, **metrics: float) -> None:
        """Say how much of this stage is done. Raises FoldStopped if the callback says stop."""
        self._metrics[self._candidate].update(metrics)
        begin, end = self._spans[self._candidate, self._stage]
        self._fraction = max(self._fraction, begin + (end - begin) * fraction)
        if self._callback is not None and self._callback(self._progress()) == STOP:
            raise FoldStopped(
                f"stopped in stage {self._stage} at {self._fraction:.0%}",
                hint="fold again with the same work_dir to go on from the last look at validation",
            )
        if time.monotonic() > self._deadline:
            raise OutOfTime("it took longer than candidate_seconds allows")

    def _progress(self) -> Progress:
        metrics = dict(self._metrics[self._candidate])
        return Progress(self._stage, self._fraction, metrics, self._candidate)
