"""What the service computes, one operation per job: plain data that travels to another process,
and `run`, which computes.

Importing this module loads no torch: `run` does.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from pydantic import JsonValue, ValidationError

from grasp_core.cache_folders import make_aside
from grasp_core.config import FoldConfig, Frozen
from grasp_core.errors import CheckpointError, ConfigError, TargetError
from grasp_core.kinds import DEFAULT, find_kind
from grasp_core.manifest import Manifest
from grasp_core.named_files import BASE, SOURCE, TARGET, WEIGHTS
from grasp_core.report import Figures, FoldVerdict, LearningRate, NamedFile, Outcome, StageRecord
from grasp_core.spec import ModelSpec

if TYPE_CHECKING:
    from grasp_core import FoldReport, Progress
    from grasp_core.data import Fractions

TARGET_PAGE = "docs/target-data.md shows all that is accepted"
LISTED = 20  # broken examples that a summary names; it counts them all
LEGACY_FRACTIONS = (0.7, 0.1, 0.2)  # of targets whose summary has none: it was so for all
DECODED_BYTES = 2**40  # that a target's rows may take, unless somebody says less


Live = Mapping[str, float | str]  # metrics so far


class ReportProgress(Protocol):
    """Says where an operation is; raises FoldStopped if it must not go on.

    Among the metrics is the name of the `candidate`, where it is at work on one of several.
    """

    def __call__(self, stage: str, fraction: float, metrics: Live) -> None: ...


@dataclass(frozen=True)
class TargetSummary:
    """What validation found in a target."""

    classes: tuple[str, ...]
    fingerprint: str
    counts: dict[str, dict[str, int]]  # examples of each class in each split
    broken: tuple[dict[str, str], ...]  # name and reason of the first few
    broken_count: int
    images: int  # examples of whichever kind that can be used: clients know it by this name
    samples: tuple[dict[str, str], ...] = ()  # a few: class, split, and png or text
    fractions: Fractions | None = None  # by which splits were drawn; None: by an older release


@dataclass(frozen=True)
class Prepared:
    """A model that can take sources."""

    classes: tuple[str, ...]
    manifest: Manifest
    preprocessing: Frozen  # of the kind's own class
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Folded:
    """The outcome of a fold."""

    report: str  # FoldReport as JSON
    verdict: FoldVerdict
    metrics: Figures
    method: str | None = None
    files: tuple[NamedFile, ...] = ()  # in the output folder, `weights` among them; rejected: none
    stages: tuple[StageRecord, ...] = ()
    learning_rate: LearningRate | None = None  # as it was probed; None: it was not

    @property
    def outcome(self) -> Outcome:
        return self.verdict.outcome

    @property
    def reason(self) -> str | None:
        return self.verdict.reason

    @property
    def sha256(self) -> str | None:
        """Of the weights."""
        return next((file.sha256 for file in self.files if file.name == WEIGHTS), None)


Result = TargetSummary | Prepared | Folded


class Operation(Protocol):
    """What a child process or `grasp merge` runs. It survives pickling, and can be run again.

    Ours read `files`, by name.
    """

    def run(self, report: ReportProgress) -> Result: ...


@dataclass(frozen=True)
class ValidateTarget:
    """Read a target once, whole: can it be used, and what is in it?"""

    files: Mapping[str, Path]  # `target`
    cache_dir: Path
    kind: str = DEFAULT
    max_bytes: int | None = None  # of its files, unpacked
    max_decoded_bytes: int = DECODED_BYTES

    def run(self, report: ReportProgress) -> TargetSummary:
        """Raises TargetError if the data cannot be used; leaves nothing in the cache."""
        from grasp_core.data import Limits

        report("hash", 0.0, {})
        kind = find_kind(self.kind).load()
        limits = Limits(max_decoded_bytes=self.max_decoded_bytes)
        if self.max_bytes is not None:
            limits = replace(limits, max_bytes=self.max_bytes)
        with (
            _named_for_people(self.files[TARGET]),
            make_aside(self.cache_dir, "validate") as folder,
        ):
            target = kind.open_target(
                self.files[TARGET],
                cache_dir=folder,
                limits=limits,
                progress=_decoding(report),
            )
            counts = {str(split): found for split, found in target.counts().items()}
            samples = kind.show_samples(target)
        return TargetSummary(
            classes=target.classes,
            fingerprint=target.fingerprint,
            counts=counts,
            broken=tuple(found._asdict() for found in target.broken[:LISTED]),
            broken_count=len(target.broken),
            images=sum(sum(found.values()) for found in counts.values()),
            samples=samples,
            fractions=target.fractions,
        )


@dataclass(frozen=True)
class PrepareModel:
    """Settle what a new model is, and decode its target so that the first fold begins at once."""

    architecture: str
    classes: tuple[str, ...] | None  # None: the target's
    preprocessing: Mapping[str, JsonValue]  # what to replace of the architecture's own
    target_fingerprint: str
    target_classes: tuple[str, ...]
    cache_dir: Path
    files: Mapping[str, Path]  # `target`, and `base`, if the model has one
    kind: str = DEFAULT
    max_decoded_bytes: int = DECODED_BYTES
    fractions: Fractions | None = None  # as in the target's summary

    def run(self, report: ReportProgress) -> Prepared:
        """Raises ArchitectureError for what cannot be built, ConfigError for missing classes,
        CheckpointError for a base that is no such model, TargetError for more than may be kept."""
        from grasp_core import make_manifest, open_task, resolve_preprocessing
        from grasp_core.data import Limits

        report("build", 0.0, {})
        with _values_checked():
            spec = self._spec()
            manifest, preprocessing = make_manifest(spec), resolve_preprocessing(spec)
        base = self.files.get(BASE)
        if base is not None:
            _require_base(base, manifest)
        warnings = _find_strange_classes(base, spec.classes) if base else ()
        with _named_for_people(self.files[TARGET]):
            open_task(
                self.files[TARGET],
                spec,
                cache_dir=self.cache_dir,
                limits=Limits(max_decoded_bytes=self.max_decoded_bytes),
                fractions=self.fractions,
                fingerprint=self.target_fingerprint,
                progress=_decoding(report),
            )
        return Prepared(spec.classes, manifest, preprocessing, warnings)

    def _spec(self) -> ModelSpec:
        classes = self.target_classes if self.classes is None else self.classes
        missing = [name for name in self.target_classes if name not in classes]
        if missing:
            raise ConfigError(
                f"the model lacks classes that its target has: {', '.join(missing)}",
                hint="name all of the target's classes, or none to take them as they are",
            )
        return ModelSpec(
            kind=self.kind,
            architecture=self.architecture,
            classes=classes,
            preprocessing=self.preprocessing,
        )


def _require_base(path: Path, manifest: Manifest) -> None:
    """Whether sources can be compared with it. Raises CheckpointError."""
    from grasp_core.checkpoints import Checkpoint
    from grasp_core.gate import find_infinite, find_unusual

    base = Checkpoint(path)
    classes = base.info.classes
    manifest.require(base.found, name="the base", classes=len(classes) if classes else None)
    hint = "make the model anew, with the weights that its sources were fine-tuned from"
    if names := find_infinite(base):
        raise CheckpointError(f"the base has values that are not finite in {names}", hint=hint)
    if reason := find_unusual(base):
        raise CheckpointError(f"the base is no trained model: {reason}", hint=hint)


def _find_strange_classes(path: Path, classes: Sequence[str]) -> tuple[str, ...]:
    """What is to be said of a base that knows other classes."""
    from grasp_core.checkpoints import Checkpoint

    known = Checkpoint(path).info.classes
    if known is None or set(known) & set(classes):
        return ()
    return ("the base knows none of the model's classes, so its head says nothing about them",)


@dataclass(frozen=True)
class FoldSource:
    """Fold one source into the merged model. With the same `work_dir` it goes on where it was."""

    spec: ModelSpec
    config: FoldConfig
    version: int  # that the output will be
    source_sha256: str
    source_classes: tuple[str, ...] | None
    target_fingerprint: str
    cache_dir: Path
    work_dir: Path
    output: Path  # a folder, in which each file that is made has its name
    files: Mapping[str, Path]  # `target`, `source`, those of the newest version and of the model
    learning_rate: float | None = None  # that an earlier fold found
    dry_run: bool = False  # only measured: whatever comes of it is not published
    test_all: bool = False  # every candidate on test, not only what would be published
    max_decoded_bytes: int = DECODED_BYTES
    fractions: Fractions | None = None  # as in the target's summary

    def run(self, report: ReportProgress) -> Folded:
        """Raises CheckpointError for a file that is no such model, and what else `fold` raises."""
        from grasp_core import fold, open_task
        from grasp_core.data import Limits

        files = dict(self.files)
        source, merged = files.pop(SOURCE), files.pop(WEIGHTS, None)
        target = open_task(
            files.pop(TARGET),
            self.spec,
            cache_dir=self.cache_dir,
            limits=Limits(max_decoded_bytes=self.max_decoded_bytes),
            fractions=self.fractions,
            fingerprint=self.target_fingerprint,
            progress=_decoding(report, share=0.0),
        )

        def progressed(progress: Progress) -> None:
            metrics: dict[str, float | str] = dict(progress.metrics)
            if progress.candidate and len(self.config.candidates) > 1:
                metrics["candidate"] = progress.candidate
            report(progress.stage, progress.fraction, metrics)

        result = fold(
            self.spec,
            source,
            target,
            self.output / WEIGHTS,
            merged=merged,
            files=files,
            files_output=self.output,
            source_classes=self.source_classes,
            config=self.config,
            learning_rate=self.learning_rate,
            version=self.version,
            work_dir=self.work_dir,
            progress=progressed,
            test_all=self.test_all,
        )
        return self._folded(result)

    def _folded(self, report: FoldReport) -> Folded:
        rate = report.learning_rate
        return Folded(
            report=report.to_json(),
            verdict=report.verdict,
            metrics=report.figures,
            method=report.method,
            files=self._made(report),
            stages=report.stages,
            learning_rate=rate if rate and rate.probe else None,
        )

    def _made(self, report: FoldReport) -> tuple[NamedFile, ...]:
        if report.sha256 is None:
            return ()
        size = (self.output / WEIGHTS).stat().st_size
        return (NamedFile(name=WEIGHTS, sha256=report.sha256, size=size), *report.files)


def _decoding(report: ReportProgress, share: float = 1.0) -> Callable[[float], None]:
    """Reports the decoding of a target, which is `share` of the whole operation."""

    def progressed(fraction: float) -> None:
        report("decode", share * fraction, {})

    return progressed


@contextmanager
def _named_for_people(path: Path) -> Iterator[None]:
    """What is wrong with a target, and where it says what would be right. A file that is stored by
    its sha256 has no name that tells anybody anything."""
    try:
        yield
    except TargetError as error:
        if re.fullmatch(r"[0-9a-f]{64}", path.name):
            error.message = error.message.replace(path.name, "the file")
        error.hint = "; ".join(filter(None, (error.hint, TARGET_PAGE)))
        raise


@contextmanager
def _values_checked() -> Iterator[None]:
    """Values that fit together badly are the user's to mend, not an accident."""
    try:
        yield
    except ValidationError as error:
        found = "; ".join(str(problem["msg"]) for problem in error.errors())
        raise ConfigError(f"the model cannot be made: {found}") from error
