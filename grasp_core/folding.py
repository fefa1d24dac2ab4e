"""One fold of one source: load → merge → refine → evaluate → gate → publish."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from torch import Tensor

from grasp_core.architectures import build_model, make_manifest, resolve_preprocessing
from grasp_core.checkpoints import Checkpoint, CheckpointInfo, Lineage, write_checkpoint
from grasp_core.config import FoldConfig
from grasp_core.errors import ConfigError
from grasp_core.evaluation import Predictions, compare, predict
from grasp_core.files import sha256_file
from grasp_core.gate import find_bad_tensors, judge
from grasp_core.heads import MatchedSource, match_classes
from grasp_core.kinds import check_augmentation, find_kind
from grasp_core.manifest import Manifest
from grasp_core.methods import METHODS, parse_config
from grasp_core.methods.declaration import AnyMethod
from grasp_core.named_files import BASE
from grasp_core.norms import recalibrate
from grasp_core.progress import ProgressCallback, Recorder
from grasp_core.provenance import Provenance
from grasp_core.refinement import START_FILE, TRIAL, Refined, Start, refine
from grasp_core.report import (
    FoldReport,
    MergeReport,
    MetricsReport,
    SplitCounts,
    SplitMetrics,
    Worth,
)
from grasp_core.runtime import Runtime, deterministic
from grasp_core.seeds import derive_seed
from grasp_core.spec import ModelSpec
from grasp_core.state import KEPT, describe_state, open_state, publish_files
from grasp_core.tasks import Task
from grasp_core.workbench import Workbench

USELESS = "as it came, the source does no better than guessing here: there may be nothing to take"
EXTREME_SHARE = 0.01  # nearer to 0 or 1 than this, a method did not really choose


def fold(
    spec: ModelSpec,
    source: str | Path,
    task: Task,
    output: str | Path,
    *,
    merged: str | Path | None = None,
    files: Mapping[str, str | Path] | None = None,
    files_output: str | Path | None = None,
    source_classes: Sequence[str] | None = None,
    config: FoldConfig | None = None,
    learning_rate: float | None = None,
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
    interrupted goes on at its last look at validation, and ends in the same bytes.

    `learning_rate` is what an earlier fold of the model has found; where the config says `auto` and
    there is none, this fold tries some, and reports which was the best.

    `files` are what belongs to `merged` beside its weights, by name, and `base`: what the sources
    were fine-tuned from, for methods that need it. What a method remembers, as `state/…`, and
    whatever else belongs to the new version goes to the folder `files_output`, together with
    `output`. What other methods left is not carried along: it would lack this source.

    Raises CheckpointError (CheckpointMismatch, with every difference by name) for a file that is no
    such model, pydantic's ValidationError for augmentation that the kind does not have, ConfigError
    where the method lacks what it needs, and FoldStopped if `progress` returns STOP.
    """
    config = check_augmentation(config or parse_config({}), find_kind(spec.kind))
    method = METHODS[config.method]
    given = {name: Path(path) for name, path in (files or {}).items() if method.reads(name)}
    _require_files(method, given, files_output)
    runtime = Runtime.choose(config)
    recorder = Recorder(runtime.device, progress, method.stages)
    with deterministic(), _work_folder(work_dir) as folder:
        with recorder.stage("load"):
            inputs = Inputs.open(
                spec,
                source,
                merged,
                source_classes,
                version,
                files=given,
            )
            path = given.get(method.state_name)
            state = open_state(path, method) if path else None
            if state is None:
                method.require_beginning(first=inputs.merged is None)
            bench = inputs.workbench(task, config, runtime, recorder, folder, learning_rate)
            flaw = find_bad_tensors(inputs.source, inputs.merged, config.gate)
        draft = inputs.draft_report(bench)
        if flaw and not force:
            return draft.model_copy(update={"reason": flaw})

        before, as_it_came = _evaluate_before(bench)
        refined = _merge_and_refine(bench, method, state, learning_rate)
        after = _evaluate_after(bench)

        verdict = judge(before.val if before else None, after.val, config.gate)
        reason = flaw or verdict.reason
        metrics = MetricsReport(
            before=before and before.metrics, after=after.metrics, source=as_it_came.metrics
        )
        provenance = inputs.provenance(refined.merge)
        sha256 = None
        if reason is None or force:
            with recorder.stage("publish"):
                info = inputs.describe_output(provenance)
                sha256 = write_checkpoint(output, bench.model.state_dict(), info)
                if files_output is not None:
                    publish_files(folder, refined.merge.files, Path(files_output))
        _clear(folder)
        return draft.model_copy(
            update={
                "outcome": "rejected" if sha256 is None else "accepted",
                "reason": reason,
                "forced": reason is not None and force,
                "sha256": sha256,
                "files": refined.merge.files if sha256 else (),
                "metrics": metrics,
                "change": before and before.compare(after),
                "gate": verdict,
                "worth": Worth.measure(metrics),
                "provenance": provenance,
                "stages": tuple(recorder.stages),
                "warnings": (
                    *_begin_warnings(method, inputs, state),
                    *_share_warnings(method, refined, as_it_came),
                ),
                **_describe_refined(refined),
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
    base: Checkpoint | None = None
    files: Mapping[str, Path] = field(default_factory=dict)  # what the method reads, by name

    @classmethod
    def open(
        cls,
        spec: ModelSpec,
        source: str | Path,
        merged: str | Path | None,
        source_classes: Sequence[str] | None,
        version: int | None,
        *,
        files: Mapping[str, Path] | None = None,
    ) -> Inputs:
        manifest = make_manifest(spec)
        file = Checkpoint(source)
        classes = tuple(source_classes) if source_classes else file.info.classes
        _require_fit(manifest, file, classes)
        newest = Checkpoint(merged) if merged is not None else None
        if newest is not None:
            _require_fit(manifest, newest, None)
        files = files or {}
        ancestor = Checkpoint(files[BASE]) if BASE in files else None
        if ancestor is not None:
            _require_fit(manifest, ancestor, ancestor.info.classes)
        return cls(spec, manifest, file, newest, classes, version, ancestor, files)

    @property
    def lineage(self) -> Lineage:
        following = self.merged.info.lineage.version + 1 if self.merged else 1
        return Lineage(
            version=following if self.version is None else self.version,
            parent=self.merged.sha256 if self.merged else None,
            source=self.source.sha256,
        )

    def workbench(
        self,
        task: Task,
        config: FoldConfig,
        runtime: Runtime,
        recorder: Recorder,
        folder: Path,
        learning_rate: float | None,
    ) -> Workbench:
        lineage = self.lineage
        seed = derive_seed(config.seed, lineage.version, lineage.source)
        read = [(name, sha256_file(path)) for name, path in sorted(self.files.items())]
        about = (self.spec, config, learning_rate, lineage, self.source_classes)
        identity = (*about, task.fingerprint, *read)
        return Workbench(
            model=build_model(self.spec),
            merged=self.merged,
            source=self._matched(self.source, self.merged, self.source_classes),
            base=self._matched(self.base, None, self.base.info.classes) if self.base else None,
            task=task,
            config=config,
            runtime=runtime,
            recorder=recorder,
            seed=seed,
            work_dir=folder,
            fold_id=f"{derive_seed(*identity):016x}",
            files=self.files,
        )

    def _matched(
        self, file: Checkpoint, merged: Checkpoint | None, classes: tuple[str, ...] | None
    ) -> MatchedSource:
        match = match_classes(self.spec.classes, classes)
        return MatchedSource(file, merged, self.manifest.heads(), match)

    def draft_report(self, bench: Workbench) -> FoldReport:
        """What is known before anything is computed; as it stands, a rejection."""
        lineage = self.lineage
        return FoldReport(
            outcome="rejected",
            spec=self.spec.model_dump(mode="json"),
            config=bench.config.model_dump(mode="json"),
            seed=bench.seed,
            version=lineage.version,
            parent=lineage.parent,
            source=self.source.sha256,
            provenance=self.merged.info.provenance if self.merged else Provenance(),
            stages=tuple(bench.recorder.stages),
            environment=bench.runtime.describe(find_kind(self.spec.kind)),
        )

    def provenance(self, merge: MergeReport) -> Provenance:
        """Who gave what after this merge."""
        earlier = self.merged.info.provenance if self.merged else Provenance()
        shares = {p.name: float(p.transferred) for p in merge.parameters}
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


def _require_fit(manifest: Manifest, file: Checkpoint, classes: tuple[str, ...] | None) -> None:
    count = len(classes) if classes else None
    manifest.require(file.found, name=file.path.name, classes=count)


def _require_files(
    method: AnyMethod, files: Mapping[str, Path], files_output: str | Path | None
) -> None:
    hint = "give its weights, or choose another method"
    method.require_base(given=BASE in files, hint=hint)
    if method.state is not None and files_output is None:
        raise ConfigError(
            f"{method.name} remembers something from one fold to the next, and has nowhere to write"
            " it",
            hint=f"give a files_output; its {method.state_name} is one of the next fold's files",
        )


def _merge_and_refine(
    bench: Workbench,
    method: AnyMethod,
    state: Mapping[str, Tensor] | None,
    learning_rate: float | None,
) -> Refined:
    """Leave the refined model in the module; what an earlier attempt has done is not done again."""
    start = Start.load(bench)
    if start is not None:
        bench.recorder.recall(start.stages)
        return refine(bench, start, learning_rate)
    _clear(bench.work_dir)  # of what may have been, not all is left
    merge = _merge(bench, method, state)
    if bench.config.norm_stats == "recalibrate" and merge.share > 0:
        with bench.recorder.stage("recalibrate"):
            recalibrate(bench)
    start = Start(fold_id=bench.fold_id, merge=merge, stages=tuple(bench.recorder.stages))
    start.save(bench)
    return refine(bench, start, learning_rate)


def _merge(bench: Workbench, method: AnyMethod, state: Mapping[str, Tensor] | None) -> MergeReport:
    """Have the method merge, and put its next state aside."""
    if bench.merged is None and method.needs.several_sources:
        return _adopt(bench)
    merge = method.merge(bench, bench.config, state)
    if merge.state is not None:
        if method.state is None:
            raise ConfigError(f"{method.name} returns a state and declares none")
        bench.keep(method.state_name, merge.state, describe_state(method))
    files = tuple(bench.kept.values())
    return MergeReport(parameters=merge.parameters, details=merge.details, files=files)


def _adopt(bench: Workbench) -> MergeReport:
    """The first source becomes the model."""
    with bench.recorder.stage("transfer"):
        bench.load({name: tensor.clone() for name, tensor in bench.source.items()})
        names = (name for name, _ in bench.model.named_parameters())
        return MergeReport(
            parameters=tuple(bench.report(name, 1.0) for name in names), adopted=True
        )


@dataclass(frozen=True)
class Evaluation:
    """A model on the two splits that it is not trained on."""

    val: Predictions
    test: Predictions

    @property
    def metrics(self) -> SplitMetrics:
        return SplitMetrics(val=self.val.metrics, test=self.test.metrics)

    def compare(self, after: Evaluation) -> SplitCounts:
        return SplitCounts(val=compare(self.val, after.val), test=compare(self.test, after.test))


def _evaluate_before(bench: Workbench) -> tuple[Evaluation | None, Evaluation]:
    """The merged model, if there is one, and the source as it came."""
    with bench.recorder.stage("baseline"):
        merged = None
        if bench.merged is not None:
            bench.load(bench.merged)
            merged = _evaluate(bench)
        bench.load(bench.source)
        return merged, _evaluate(bench, bench.source.match.known())


def _evaluate_after(bench: Workbench) -> Evaluation:
    with bench.recorder.stage("evaluate"):
        return _evaluate(bench)


def _evaluate(bench: Workbench, known: Tensor | None = None) -> Evaluation:
    """What is in the module, of classes that are known."""
    size = bench.config.refine.batch_size
    val = predict(bench.model, bench.task, "val", bench.runtime, size, known)
    bench.recorder.tick(0.5, val_accuracy=val.metrics.accuracy)
    return Evaluation(val, predict(bench.model, bench.task, "test", bench.runtime, size, known))


def _describe_refined(refined: Refined) -> dict[str, object]:
    merge = refined.merge
    return {
        "details": merge.details,
        "transferred_share": merge.share,
        "parameters": merge.parameters,
        "learning_rate": refined.learning_rate,
        "history": refined.history,
        "best_epoch": refined.best and refined.best.epoch,
        "best_step": refined.best and refined.best.step,
        "resumed_from_epoch": refined.resumed_from and refined.resumed_from.epoch,
    }


def _begin_warnings(method: AnyMethod, inputs: Inputs, state: Checkpoint | None) -> tuple[str, ...]:
    """A warning where a method takes over what another has merged."""
    if method.state is None or inputs.merged is None or state is not None:
        return ()
    return (
        f"{method.name} begins with this fold: of the sources before, it knows no more than the"
        " merged model",
    )


def _share_warnings(method: AnyMethod, refined: Refined, source: Evaluation) -> tuple[str, ...]:
    """A warning where a method that chooses has chosen next to nothing, or next to everything."""
    share, advice = refined.merge.share, method.advice
    if advice is None or refined.merge.adopted:
        return ()
    if share < EXTREME_SHARE:
        advised = advice.too_little if source.val.beats_guessing else USELESS
        return (
            f"only {share:.2%} of the merged weights are the source's, so this fold is little more"
            f" than fine-tuning; {advised}",
        )
    if share > 1 - EXTREME_SHARE:
        return (
            f"{share:.2%} of the merged weights are the source's, so it all but replaced the merged"
            f" model; {advice.too_much}",
        )
    return ()


@contextmanager
def _work_folder(given: str | Path | None) -> Iterator[Path]:
    if given is not None:
        Path(given).mkdir(parents=True, exist_ok=True)
        yield Path(given)
        return
    with TemporaryDirectory(prefix="grasp-") as folder:
        yield Path(folder)


def _clear(folder: Path) -> None:
    (folder / START_FILE).unlink(missing_ok=True)
    for made in (folder / KEPT, *folder.glob(f"{TRIAL}*")):
        shutil.rmtree(made, ignore_errors=True)
