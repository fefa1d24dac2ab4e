"""One fold of one source: load → evaluate → run the candidates → choose → test → gate → publish."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from grasp_core.baseline import BASELINE_FILE, Evaluation, evaluate_before, predict_test
from grasp_core.candidates import Candidate
from grasp_core.checkpoints import write_checkpoint
from grasp_core.config import FoldConfig
from grasp_core.evaluation import Predictions, differ
from grasp_core.files import copy_file
from grasp_core.gate import find_bad_tensors, judge, name_cause
from grasp_core.inputs import Inputs
from grasp_core.kinds import check_augmentation, find_kind
from grasp_core.methods import METHODS
from grasp_core.named_files import STATES
from grasp_core.parameters import parse_config
from grasp_core.progress import ProgressCallback, Recorder
from grasp_core.provenance import Provenance
from grasp_core.race import Race, name_candidates, plan_fold
from grasp_core.report import (
    AS_IT_WAS,
    CandidateReport,
    FoldReport,
    MetricsReport,
    NamedFile,
    Worth,
    summarize,
)
from grasp_core.runtime import Runtime, deterministic
from grasp_core.spec import ModelSpec
from grasp_core.state import publish_files
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
    test_all: bool = False,
) -> FoldReport:
    """Fold the checkpoint `source` into `merged` on the task's target, and write `output`.

    Every candidate of the config merges in its own way and is refined; the best on validation is
    written, or `merged` as it is where none is better. Without `merged` the source is the first.
    `source_classes` names the source's outputs; without it the names in the file count, and without
    those the model's own. `version` is the number of the new version; without it, one more than
    `merged` says of itself, which is too few where its weights were kept or gone back to. A
    rejected fold writes no output; `force` writes it all the same. With a `work_dir`, a fold that
    was interrupted goes on at its last look at validation, and ends in the same bytes.

    `learning_rate` is what an earlier fold of the model has found; where the config says `auto` and
    there is none, this fold tries some, and reports which was the best.

    `test_all` measures every candidate on test, for the record; it decides nothing.

    `files` are what belongs to `merged` beside its weights, by name, and `base`: what the sources
    were fine-tuned from, for methods that need it. What methods remember, as `state/…`, and
    whatever else belongs to the new version goes to the folder `files_output`, together with
    `output`. What other methods left is not carried along: it would lack this source.

    Raises CheckpointError (CheckpointMismatch, with every difference by name) for a file that is no
    such model, pydantic's ValidationError for augmentation that the kind does not have, ConfigError
    where no candidate has what it needs, and FoldStopped if `progress` returns STOP.
    """
    config = check_augmentation(config or parse_config({}), find_kind(spec.kind))
    given = _choose_files(config, files or {})
    runtime = Runtime.choose(config)
    recorder = Recorder(runtime.device, progress, plan_fold(config))
    with deterministic(), _work_folder(work_dir) as folder:
        with recorder.stage("load"):
            inputs = Inputs.open(spec, source, merged, source_classes, version, files=given)
            bench = inputs.workbench(
                task,
                config,
                runtime,
                recorder,
                folder,
                learning_rate,
                remembers=files_output is not None,
            )
            flaw = find_bad_tensors(inputs.source, inputs.merged, config.gate)
        if flaw and not force:
            return _refuse(bench, inputs, flaw)

        before, source_alone = evaluate_before(bench)
        race = Race(bench, learning_rate)
        race.run()
        winner = race.choose(before.val if before else None)
        said = _test(bench, race, winner, everybody=test_all)
        after = Evaluation(winner.predictions, said[winner.name]) if winner else before
        assert after is not None  # noqa: S101 - without a winner, it is the version as it was
        keep = None
        if winner is not None and race.keep is not None:
            keep = Evaluation(race.keep.predictions, said[race.keep.name])
        verdict = judge(before.val if before else None, after.val, config.gate)
        reason = flaw or verdict.reason
        provenance = inputs.provenance(winner.merged) if winner else inputs.earlier_provenance
        sha256: str | None = None
        made: tuple[NamedFile, ...] = ()
        if reason is None or force:
            with recorder.stage("publish"):
                sha256 = _publish(inputs, bench, winner, Path(output), provenance)
                made = _publish_files(race, winner, files_output)
        _clear(folder, config)
        outcome = "rejected" if sha256 is None else "accepted" if winner else "kept"
        return FoldReport(
            **_describe(bench, inputs),
            **_describe_winner(bench, winner),
            **_describe_race(race, winner, said),
            **_measure(before, source_alone, keep, after),
            outcome=outcome,
            reason=AS_IT_WAS if outcome == "kept" else reason,
            forced=reason is not None and force,
            sha256=sha256,
            files=made,
            gate=verdict,
            provenance=provenance,
            warnings=_warn(race, winner, source_alone),
        )


def _refuse(bench: Workbench, inputs: Inputs, flaw: str) -> FoldReport:
    """The report on a source that nothing is tried with."""
    return FoldReport(
        **_describe(bench, inputs),
        outcome="rejected",
        reason=flaw,
        cause=name_cause(inputs.source),
        provenance=inputs.earlier_provenance,
    )


def _choose_files(config: FoldConfig, files: Mapping[str, str | Path]) -> dict[str, Path]:
    """Those that its methods read."""
    methods = [METHODS[name] for name in config.methods]
    read = (name for name in files if any(method.reads(name) for method in methods))
    return {name: Path(files[name]) for name in read}


def _test(
    bench: Workbench, race: Race, winner: Candidate | None, *, everybody: bool
) -> dict[str, Predictions]:
    """What the winner, `keep` and whoever else is asked for say of the test split, by name.

    The winner is the last, and left in the module.
    """
    runners = [each for each in race.candidates if each.is_runner and each is not winner]
    looked_at = [each for each in runners if everybody or (winner and each is race.keep)]
    looked_at += [winner] if winner else []
    said = {}
    with bench.recorder.stage("evaluate"):
        for number, candidate in enumerate(looked_at):
            bench.recorder.tick(number / len(looked_at))
            candidate.load()
            said[candidate.name] = predict_test(bench)
    return said


def _publish(
    inputs: Inputs,
    bench: Workbench,
    winner: Candidate | None,
    output: Path,
    provenance: Provenance,
) -> str:
    """Write the weights, or once more those that there were; return their sha256."""
    if winner is None:
        assert inputs.merged is not None  # noqa: S101 - as above
        copy_file(inputs.merged.path, output)
        return inputs.merged.sha256
    info = inputs.describe_output(provenance)
    return write_checkpoint(output, bench.model.state_dict(), info)


def _publish_files(
    race: Race, winner: Candidate | None, output: str | Path | None
) -> tuple[NamedFile, ...]:
    """The states of all methods, whoever has won, and whatever else the winner made."""
    if output is None:
        return ()
    made: list[NamedFile] = []
    for each in race.candidates:
        own = [f for f in each.files if each is winner or f.name.startswith(STATES)]
        publish_files(each.bench.work_dir, own, Path(output))
        made += own
    return tuple(sorted(made, key=lambda file: file.name))


def _describe(bench: Workbench, inputs: Inputs) -> dict[str, Any]:
    """What a fold was asked, and what it took."""
    lineage = inputs.lineage
    return {
        "spec": inputs.spec.model_dump(mode="json"),
        "config": bench.config.model_dump(mode="json"),
        "seed": bench.seed,
        "version": lineage.version,
        "parent": lineage.parent,
        "source": inputs.source.sha256,
        "stages": tuple(bench.recorder.stages),
        "environment": bench.runtime.describe(find_kind(inputs.spec.kind)),
    }


def _describe_winner(bench: Workbench, winner: Candidate | None) -> dict[str, Any]:
    """What a version says of how it came to be."""
    if winner is None:
        return {"transferred_share": 0.0, "parameters": bench.report_all(0.0)}
    merged, refined = winner.merged, winner.refined
    return {
        "details": merged.details,
        "transferred_share": merged.share,
        "parameters": merged.parameters,
        "history": refined.history,
        "best_epoch": refined.best and refined.best.epoch,
        "best_step": refined.best and refined.best.step,
        "resumed_from_epoch": refined.resumed_from and refined.resumed_from.epoch,
    }


def _describe_race(
    race: Race, winner: Candidate | None, said: Mapping[str, Predictions]
) -> dict[str, Any]:
    return {
        "candidates": tuple(_report(each, race, winner, said) for each in race.candidates),
        "learning_rate": race.learning_rate or (winner and winner.refined.learning_rate),
    }


def _measure(
    before: Evaluation | None, source: Evaluation, keep: Evaluation | None, after: Evaluation
) -> dict[str, Any]:
    """How good the version is, and what it gained."""
    return {
        "metrics": MetricsReport(
            before=before and before.metrics, after=after.metrics, source=source.metrics
        ),
        "change": before and before.compare(after),
        "worth": keep and Worth.measure(differ(keep.val, after.val), differ(keep.test, after.test)),
    }


def _report(
    candidate: Candidate, race: Race, winner: Candidate | None, said: Mapping[str, Predictions]
) -> CandidateReport:
    runner, merged, stages = candidate.runner, candidate.merged, candidate.stages
    refined, keep = runner.refined, race.keep
    gain = None
    if keep is not None and candidate.method.name != "keep" and runner.reason is None:
        gain = differ(keep.predictions, runner.predictions)
    return CandidateReport(
        name=candidate.name,
        method=candidate.method.name,
        config=candidate.parameters.model_dump(mode="json"),
        outcome="won" if candidate is winner else "out" if runner.reason else "lost",
        reason=runner.reason,
        same_as=candidate.twin and candidate.twin.name,
        went_on=runner.went_on,
        share=merged.share if merged.parameters else None,
        val=runner.val and summarize(runner.val.metrics),
        test=summarize(said[runner.name].metrics) if runner.name in said else None,
        error=runner.val and runner.val.log_likelihood_error,
        gain=gain,
        learning_rate=refined.learning_rate,
        history=refined.history,
        best_step=refined.best and refined.best.step,
        seconds=sum(stage.seconds for stage in stages),
        peak_bytes=max((stage.peak_bytes for stage in stages), default=0),
    )


def _warn(race: Race, winner: Candidate | None, source: Evaluation) -> tuple[str, ...]:
    begun = (
        f"{each.method.name} begins with this fold: of the sources before, it knows no more than"
        " the merged model"
        for each in race.candidates
        if each.merged.begins
    )
    return (*begun, *_warn_of_share(winner, source))


def _warn_of_share(winner: Candidate | None, source: Evaluation) -> tuple[str, ...]:
    """Where a method that chooses has chosen next to nothing, or next to everything."""
    if winner is None or winner.method.advice is None or winner.bench.merged is None:
        return ()
    share, advice = winner.merged.share, winner.method.advice
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


def _clear(folder: Path, config: FoldConfig) -> None:
    """Of what is needed only to go on."""
    (folder / BASELINE_FILE).unlink(missing_ok=True)
    for name in name_candidates(config.candidates):
        shutil.rmtree(folder / name, ignore_errors=True)
