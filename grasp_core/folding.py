"""One fold of one source: load → merge → refine → evaluate → gate → publish."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from grasp_core.architectures import build_model, load_weights, make_manifest, resolve_preprocessing
from grasp_core.checkpoints import Checkpoint, CheckpointInfo, Lineage, write_checkpoint
from grasp_core.config import FoldConfig
from grasp_core.evaluation import Predictions, predict
from grasp_core.gate import find_bad_tensors, judge
from grasp_core.heads import MatchedSource, match_classes
from grasp_core.kinds import check_augmentation, find_kind
from grasp_core.manifest import Manifest
from grasp_core.methods import METHODS
from grasp_core.progress import ProgressCallback, Recorder
from grasp_core.provenance import Provenance
from grasp_core.refinement import BEST_FILE, STATE_FILE, Refined
from grasp_core.report import (
    Environment,
    FoldReport,
    MetricsReport,
    SplitMetrics,
    Worth,
    share_warnings,
)
from grasp_core.runtime import Runtime, deterministic
from grasp_core.seeds import derive_seed
from grasp_core.spec import ModelSpec
from grasp_core.tasks import Task
from grasp_core.workbench import Merge, Workbench


def fold(
    spec: ModelSpec,
    source: str | Path,
    task: Task,
    output: str | Path,
    *,
    merged: str | Path | None = None,
    source_classes: Sequence[str] | None = None,
    config: FoldConfig | None = None,
    version: int | None = None,
    work_dir: str | Path | None = None,
    progress: ProgressCallback | None = None,
    force: bool = False,
) -> FoldReport:
    """Fold the checkpoint `source` into `merged` on the task's target, and write `output`.

    Without `merged` the source becomes the first version. `source_classes` names the source's
    outputs; without it the names in the file count, and without those the model's own. `version`
    is the number of the new version; without it, one more than `merged` says of itself. A rejected
    fold writes no output; `force` writes it all the same. With a `work_dir`, a fold that was
    interrupted goes on after its last finished epoch, and ends in the same bytes.

    Raises CheckpointError (CheckpointMismatch, with every difference by name) for a file that is no
    such model, pydantic's ValidationError for augmentation that the kind does not have, and
    FoldStopped if `progress` returns STOP.
    """
    config = check_augmentation(config or FoldConfig(), find_kind(spec.kind))
    runtime = Runtime.choose(config)
    recorder = Recorder(runtime.device, progress)
    with deterministic(), _work_folder(work_dir) as folder:
        with recorder.stage("load"):
            inputs = Inputs.open(spec, source, merged, source_classes, version)
            bench = inputs.workbench(task, config, runtime, recorder, folder)
            flaw = find_bad_tensors(inputs.source, inputs.merged, config.gate)
        draft = inputs.draft_report(bench)
        if flaw and not force:
            return draft.model_copy(update={"reason": flaw})

        before = _evaluate_before(bench)
        refined = METHODS[config.method](bench)
        after = _evaluate_after(bench)

        verdict = judge(before.val if before else None, after.val, config.gate)
        reason = flaw or verdict.reason
        metrics = MetricsReport(before=before and before.metrics, after=after.metrics)
        provenance = inputs.provenance(refined.merge, config.blend)
        sha256 = None
        if reason is None or force:
            with recorder.stage("publish"):
                info = inputs.describe_output(provenance)
                sha256 = write_checkpoint(output, bench.model.state_dict(), info)
        _clear(folder)
        return draft.model_copy(
            update={
                "outcome": "rejected" if sha256 is None else "accepted",
                "reason": reason,
                "forced": reason is not None and force,
                "sha256": sha256,
                "metrics": metrics,
                "gate": verdict,
                "worth": Worth.measure(metrics),
                "provenance": provenance,
                "stages": tuple(recorder.stages),
                **_describe_refined(refined, first=inputs.merged is None),
            }
        )


@dataclass(frozen=True)
class Inputs:
    """The files of one fold, checked against the model they should be."""

    spec: ModelSpec
    manifest: Manifest
    source: Checkpoint
    merged: Checkpoint | None
    source_classes: tuple[str, ...] | None
    version: int | None  # of the output, where it is not simply the next

    @classmethod
    def open(
        cls,
        spec: ModelSpec,
        source: str | Path,
        merged: str | Path | None,
        source_classes: Sequence[str] | None,
        version: int | None,
    ) -> Inputs:
        manifest = make_manifest(spec)
        file = Checkpoint(source)
        classes = tuple(source_classes) if source_classes else file.info.classes
        count = len(classes) if classes else None
        manifest.require(file.found, name=file.path.name, classes=count)
        base = None
        if merged is not None:
            base = Checkpoint(merged)
            manifest.require(base.found, name=base.path.name)
        return cls(spec, manifest, file, base, classes, version)

    @property
    def lineage(self) -> Lineage:
        following = self.merged.info.lineage.version + 1 if self.merged else 1
        return Lineage(
            version=following if self.version is None else self.version,
            parent=self.merged.sha256 if self.merged else None,
            source=self.source.sha256,
        )

    def workbench(
        self, task: Task, config: FoldConfig, runtime: Runtime, recorder: Recorder, folder: Path
    ) -> Workbench:
        match = match_classes(self.spec.classes, self.source_classes)
        lineage = self.lineage
        seed = derive_seed(config.seed, lineage.version, lineage.source)
        identity = (self.spec, config, lineage, self.source_classes, task.fingerprint)
        return Workbench(
            model=build_model(self.spec),
            merged=self.merged,
            source=MatchedSource(self.source, self.merged, self.manifest.heads(), match),
            task=task,
            config=config,
            runtime=runtime,
            recorder=recorder,
            seed=seed,
            work_dir=folder,
            fold_id=f"{derive_seed(*identity):016x}",
        )

    def draft_report(self, bench: Workbench) -> FoldReport:
        """What is known before anything is computed; as it stands, a rejection."""
        lineage = self.lineage
        return FoldReport(
            outcome="rejected",
            spec=self.spec,
            config=bench.config,
            seed=bench.seed,
            version=lineage.version,
            parent=lineage.parent,
            source=self.source.sha256,
            provenance=self.merged.info.provenance if self.merged else Provenance(),
            stages=tuple(bench.recorder.stages),
            environment=Environment.describe(bench.runtime, find_kind(self.spec.kind)),
        )

    def provenance(self, merge: Merge, blend: float) -> Provenance:
        """Who gave what after this merge; a first source is adopted whole, not blended in."""
        earlier = self.merged.info.provenance if self.merged else Provenance()
        weight = blend if self.merged else 1.0
        shares = {p.name: weight * float(p.transferred) for p in merge.parameters}
        return earlier.after_transfer(self.source.sha256, shares)

    def describe_output(self, provenance: Provenance) -> CheckpointInfo:
        return CheckpointInfo(
            kind=self.spec.kind,
            architecture=self.spec.architecture,
            classes=self.spec.classes,
            preprocessing=resolve_preprocessing(self.spec),
            lineage=self.lineage,
            provenance=provenance,
        )


@dataclass(frozen=True)
class Evaluation:
    """A model on the two splits that it is not trained on."""

    val: Predictions
    test: Predictions

    @property
    def metrics(self) -> SplitMetrics:
        return SplitMetrics(val=self.val.metrics, test=self.test.metrics)


def _evaluate_before(bench: Workbench) -> Evaluation | None:
    if bench.merged is None:
        return None
    with bench.recorder.stage("baseline"):
        load_weights(bench.model, bench.merged, bench.runtime.device)
        return _evaluate(bench)


def _evaluate_after(bench: Workbench) -> Evaluation:
    with bench.recorder.stage("evaluate"):
        return _evaluate(bench)


def _evaluate(bench: Workbench) -> Evaluation:
    size = bench.config.refine.batch_size
    val = predict(bench.model, bench.task, "val", bench.runtime, size)
    bench.recorder.tick(0.5, val_accuracy=val.metrics.accuracy)
    return Evaluation(val, predict(bench.model, bench.task, "test", bench.runtime, size))


def _describe_refined(refined: Refined, *, first: bool) -> dict[str, object]:
    merge = refined.merge
    return {
        "tau": None if first else merge.tau,
        "transferred_share": merge.share,
        "parameters": merge.parameters,
        "history": refined.history,
        "best_epoch": refined.best_epoch,
        "resumed_from_epoch": refined.resumed_from_epoch,
        "warnings": () if first else share_warnings(merge.share),
    }


@contextmanager
def _work_folder(given: str | Path | None) -> Iterator[Path]:
    if given is not None:
        Path(given).mkdir(parents=True, exist_ok=True)
        yield Path(given)
        return
    with TemporaryDirectory(prefix="grasp-") as folder:
        yield Path(folder)


def _clear(folder: Path) -> None:
    for name in (STATE_FILE, BEST_FILE):
        (folder / name).unlink(missing_ok=True)
