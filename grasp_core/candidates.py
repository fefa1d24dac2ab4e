"""One candidate of a fold: its method merges, the result is refined, and predicts validation.

It does so in a folder of its own. What is done is sealed there, and from then on only read.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from shutil import rmtree

from pydantic import ValidationError

from grasp_core.checkpoints import Checkpoint, open_sealed, write_sealed
from grasp_core.config import Frozen, MethodConfig
from grasp_core.errors import (
    CheckpointError,
    ConfigError,
    DeviceError,
    FoldStopped,
    GraspError,
    OutOfTime,
    TargetError,
)
from grasp_core.evaluation import Predictions, predict
from grasp_core.methods import METHODS
from grasp_core.named_files import BASE
from grasp_core.norms import recalibrate
from grasp_core.refinement import Refined, Refinement, Start, choose_rates
from grasp_core.report import MergeReport, NamedFile, StageRecord
from grasp_core.state import open_state, require_kept
from grasp_core.workbench import Workbench

DONE_FILE = "done.safetensors"
NOT_FINITE = "its outputs are not finite"


class Done(Frozen):
    """What became of a candidate: its predictions, whose tensors lie in the same file, or that its
    time was up, which no later attempt may change."""

    fold_id: str
    start: Start | None  # None: its time was up before
    files: tuple[NamedFile, ...]
    refined: Refined
    went_on: bool
    stages: tuple[StageRecord, ...]
    weights: str | None  # the file of the best look, in the candidate's folder
    predictions: str | None
    out_of_time: str | None


class Candidate:
    """A method with its parameters, at work."""

    def __init__(self, bench: Workbench, name: str, parameters: MethodConfig) -> None:
        self.name, self.parameters = name, parameters
        self.method = METHODS[parameters.method]
        self.bench = replace(
            bench,
            candidate=name,
            method=self.method,
            work_dir=bench.work_dir / name,
            base=bench.base if self.method.reads(BASE) else None,
            files={n: path for n, path in bench.files.items() if self.method.reads(n)},
            kept={},
        )
        self.error: GraspError | None = None  # why it is out
        self.alike: Sequence[Candidate] = ()  # those before it that merged to the very same weights
        self.went_on = True  # after the heat
        self.val: Predictions | None = None  # None: it is out, or not done
        self._start: Start | None = None
        self._refinement: Refinement | None = None
        self._done: Done | None = None
        self._used = 0.0  # of the budget, in this attempt
        self._seconds = 0.0  # in this attempt

    def merge(self) -> None:
        """Have the method merge, unless an earlier attempt has."""
        with self._at_work():
            if not self._recall_done():
                self._start = self._recall_start() or self._begin()

    def refine(self, known_rate: float | None, share: float = 1.0) -> None:
        """Use that share of the budget; the next call goes on from there."""
        if self._is_over or share <= self._used:
            return
        with self._at_work():
            if self._refinement is None:
                rates = choose_rates(self.bench.config.refine, known_rate)
                self._refinement = Refinement(self.bench, rates)
            self._refinement.run(share)
            self._used = share

    def finish(self) -> None:
        """Predict validation, and seal what came of it."""
        if self._is_over or self._refinement is None:
            return
        with self._at_work():
            weights = self._refinement.best_file
            self.val = self._predict(weights)
            self._seal(weights)

    def load(self) -> None:
        """Put its refined weights into the module."""
        assert self._done is not None  # noqa: S101 - only then there are some
        assert self._done.weights is not None  # noqa: S101
        self._load(self._done.weights)

    @property
    def twin(self) -> Candidate | None:
        """Another, which is refined for both, as long as it is in the race."""
        return next((other for other in self.alike if other.error is None), None)

    @property
    def runner(self) -> Candidate:
        """Who is refined for it: of what came after the merge, this one knows."""
        return self.twin or self

    @property
    def is_runner(self) -> bool:
        """It runs for itself, and nothing has put it out."""
        return self.error is None and self.twin is None

    @property
    def merged(self) -> MergeReport:
        """What its method did; nothing, where it refused."""
        return self._start.merge if self._start else MergeReport()

    @property
    def weights(self) -> str | None:
        """A digest of what it merged to."""
        return self._start.weights if self._start else None

    @property
    def files(self) -> tuple[NamedFile, ...]:
        """What its method made for the next version, even if it came no further."""
        return tuple(self.bench.kept.values())

    @property
    def refined(self) -> Refined:
        if self._done is not None:
            return self._done.refined
        return self._refinement.describe() if self._refinement else Refined()

    @property
    def predictions(self) -> Predictions:
        """On validation, of one that is in the race."""
        assert self.val is not None  # noqa: S101
        return self.val

    @property
    def stages(self) -> tuple[StageRecord, ...]:
        return self.bench.recorder.stages_of(self.name)

    @property
    def likelihood(self) -> float:
        """By which it is judged."""
        return self.val.mean_log_likelihood if self.val else -math.inf

    @property
    def reason(self) -> str | None:
        """Why it is out of the race; None: it is not."""
        if self.error is not None:
            return self.error.message
        return NOT_FINITE if self.val and not math.isfinite(self.likelihood) else None

    @property
    def _is_over(self) -> bool:
        """Nothing is left to do for it."""
        return self._done is not None or not self.is_runner

    @contextmanager
    def _at_work(self) -> Iterator[None]:
        """What its method refuses, and what takes too long, puts it out of the race; what would be
        wrong with every candidate does not."""
        limit = self.bench.config.candidate_seconds
        begin = time.monotonic()
        try:
            left = None if limit is None else limit - self._seconds
            with self.bench.recorder.candidate(self.name, left):
                yield
        except (FoldStopped, DeviceError, TargetError):
            raise
        except GraspError as error:
            self.error = error
            if isinstance(error, OutOfTime):
                self._seal()
        self._seconds += time.monotonic() - begin

    def _begin(self) -> Start:
        rmtree(self.bench.work_dir, ignore_errors=True)  # not all is left of what was there
        self.bench.work_dir.mkdir()
        return Start.save(self.bench, self._merge())

    def _merge(self) -> MergeReport:
        """Leave the merged weights in the module, and put the method's next state aside."""
        self._require_files()
        path = self.bench.files.get(self.method.state_name)
        state = open_state(path, self.method) if path else None
        first = self.bench.merged is None
        if state is None:
            self.method.require_beginning(first=first)
        merge = self.method.merge(self.bench, self.parameters, state)
        if self.bench.config.norm_stats == "recalibrate":
            with self.bench.recorder.stage("recalibrate"):
                recalibrate(self.bench)
        return MergeReport(
            parameters=merge.parameters,
            details=merge.details,
            begins=self.method.state is not None and state is None and not first,
            files=self.files,
        )

    def _require_files(self) -> None:
        hint = "give its weights, or choose another method"
        self.method.require_base(given=self.bench.base is not None, hint=hint)
        if self.method.state is not None and not self.bench.remembers:
            name = self.method.state_name
            raise ConfigError(
                f"{self.method.name} remembers something from one fold to the next, and has nowhere"
                " to write it",
                hint=f"give a files_output; its {name} is one of the next fold's files",
            )

    def _predict(self, weights: str) -> Predictions:
        bench = self.bench
        with bench.recorder.stage("predict"):
            self._load(weights)
            size = bench.config.refine.batch_size
            return predict(bench.model, bench.task, "val", bench.runtime, size)

    def _load(self, file: str) -> None:
        self.bench.load(Checkpoint(self.bench.work_dir / file))

    def _seal(self, weights: str | None = None) -> None:
        """What it predicts with these weights; without, that its time was up."""
        self._done = Done(
            fold_id=self.bench.fold_id,
            start=self._start,
            files=self.files,
            refined=self.refined,
            went_on=self.went_on,
            stages=self.stages,
            weights=weights,
            predictions=self.val and self.val.describe(),
            out_of_time=self.error and self.error.message,
        )
        tensors = self.val.tensors() if self.val else {}
        metadata = {"done": self._done.model_dump_json()}
        write_sealed(self.bench.work_dir / DONE_FILE, tensors, metadata)

    def _recall_done(self) -> bool:
        """What an earlier attempt at the very same fold has sealed, if it is whole."""
        try:
            saved = open_sealed(self.bench.work_dir / DONE_FILE)
            done = Done.model_validate_json(saved.metadata.get("done", ""))
            require_kept(self.bench.work_dir, done.files)
            if done.weights is not None:
                open_sealed(self.bench.work_dir / done.weights)
        except (CheckpointError, ValidationError):
            return False
        if done.fold_id != self.bench.fold_id:
            return False
        self._done, self._start, self.went_on = done, done.start, done.went_on
        if done.predictions is not None:
            self.val = Predictions.read(done.predictions, saved)
        if done.out_of_time is not None:
            self.error = OutOfTime(done.out_of_time)
        self._take_over(done.stages, done.files)
        return True

    def _recall_start(self) -> Start | None:
        start = Start.load(self.bench)
        if start is not None:
            self._take_over(start.stages, start.merge.files)
        return start

    def _take_over(self, stages: Iterable[StageRecord], files: Iterable[NamedFile]) -> None:
        self.bench.recorder.recall(stages)
        self.bench.kept.update((file.name, file) for file in files)
