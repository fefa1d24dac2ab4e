"""Merging without a server: what a worker does, one after the other, on files of this machine.

What comes out is, to the last byte, what the service publishes for the same sources in the same
order: a fold depends on its files, its parameters and the number of its version, and on nothing
else of the service. (Device, number of threads and library versions must be the same too.)

Imported by `grasp merge` when it runs: this loads torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp
from typing import Any, Literal

import torch
from pydantic import JsonValue

from grasp_cli.local import CONVERTED
from grasp_core import Checkpoint, convert_checkpoint
from grasp_core.config import FoldConfig
from grasp_core.content import digest_content
from grasp_core.inputs import Inputs
from grasp_core.named_files import SOURCE, TARGET, WEIGHTS, download_name
from grasp_core.operations import Folded, FoldSource, PrepareModel, ReportProgress, ValidateTarget
from grasp_core.spec import ModelSpec

Bar = Callable[[str], AbstractContextManager[ReportProgress]]  # of what has this name


@dataclass(frozen=True)
class MergeOptions:
    """What all folds of one merge have in common, as a model of the service has."""

    kind: str
    architecture: str
    target: Path
    classes: tuple[str, ...] | None  # None: the target's
    source_classes: tuple[str, ...] | None  # None: those that each file names, or the model's
    preprocessing: Mapping[str, JsonValue]
    config: FoldConfig
    files: Mapping[str, Path] = field(default_factory=dict)  # of the model: a `base`
    test_all: bool = False  # every candidate on test, not only what is written
    threads: int | None = None  # of torch; None: its own choice, which is the service's too
    cache: Path = field(default_factory=lambda: Path.home() / ".cache" / "grasp")  # as grasp_core


@dataclass(frozen=True)
class OfflineSource:
    """A source that fits: what the user called it, and the safetensors that hold it."""

    given: Path
    file: Path
    sha256: str
    content: str  # of its tensors


@dataclass(frozen=True)
class Outcome:
    """What became of a source."""

    source: OfflineSource
    status: Literal["accepted", "kept", "rejected", "known"]  # known: its weights came before
    version: int | None = None
    folded: Folded | None = None

    def summary(self) -> dict[str, Any]:
        folded = self.folded
        rate = folded.learning_rate if folded else None
        return {
            "source": str(self.source.given),
            "sha256": self.source.sha256,
            "status": self.status,
            "version": self.version,
            "reason": folded.reason if folded else None,
            "metrics": folded.metrics.model_dump(mode="json", exclude={"transferred_share"})
            if folded
            else None,
            "transferred_share": folded.metrics.transferred_share if folded else None,
            "learning_rate": rate.rate if rate else None,
        }


def merge_files(
    options: MergeOptions,
    sources: Sequence[Path],
    output: Path,
    bar: Bar,
    *,
    newest: Mapping[str, Path] | None = None,
    version: int | None = None,
) -> list[Outcome]:
    """Fold `sources` into `newest`, or from nothing, and write `output` if any was accepted.

    `newest` has the files of a version by name, its `weights` and what methods remember of it;
    `version` is its number, where that is not what the weights say, as after a rollback. What
    methods remember in the end is written beside the output (`beside`). All work is done in a
    folder beside the output, which is gone afterwards; the output appears when everything is done.
    Raises what the operations raise; a source that is no such model does so before the first is
    folded.
    """
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    output.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=f".{output.name}.", dir=output.parent) as folder:
        with bar(options.target.name) as report:
            work = OfflineMerge.begin(options, Path(folder), report, newest or {}, version)
        offered = [work.check(path) for path in sources]
        outcomes = []
        for source in offered:
            with bar(source.given.name) as report:
                outcomes.append(work.fold(source, report))
        if work.newest != (newest or {}):
            for name in sorted(work.newest, key=WEIGHTS.__eq__):  # the weights last
                work.newest[name].replace(output if name == WEIGHTS else beside(output, name))
    return outcomes


def beside(output: Path, name: str) -> Path:
    """Where a file goes that belongs to a version whose weights are written to `output`."""
    return output.with_name(download_name(output.stem, name))


@dataclass
class OfflineMerge:
    """A merged model on its way, in a folder of its own."""

    options: MergeOptions
    spec: ModelSpec
    fingerprint: str  # of the target
    folder: Path
    newest: Mapping[str, Path]  # its files, by name; none: there is no version yet
    version: int  # of the newest; 0: there is none yet
    learning_rate: float | None = None  # that the first fold has found
    _seen: set[str] = field(default_factory=set)

    @classmethod
    def begin(
        cls,
        options: MergeOptions,
        folder: Path,
        report: ReportProgress,
        newest: Mapping[str, Path],
        version: int | None,
    ) -> OfflineMerge:
        """Read the target, as the service does for a new target and for a new model of it."""
        target = {TARGET: options.target}
        summary = ValidateTarget(target, options.cache, kind=options.kind).run(report)
        prepared = PrepareModel(
            kind=options.kind,
            architecture=options.architecture,
            classes=options.classes,
            preprocessing=options.preprocessing,
            target_fingerprint=summary.fingerprint,
            target_classes=summary.classes,
            cache_dir=options.cache,
            files=target | dict(options.files),
        ).run(report)
        spec = ModelSpec(
            kind=options.kind,
            architecture=options.architecture,
            classes=prepared.classes,
            preprocessing=options.preprocessing,
        )
        number = version or _version_of(newest.get(WEIGHTS))
        return cls(options, spec, summary.fingerprint, folder, newest, number)

    def check(self, path: Path) -> OfflineSource:
        """The source as safetensors that fit. Raises CheckpointError, CheckpointMismatch."""
        file, classes = path, self.options.source_classes
        if path.suffix.lower() in CONVERTED:
            file = Path(mkdtemp(dir=self.folder), path.name)  # two may have the same name
            convert_checkpoint(path, file, spec=self.spec, classes=classes)
        opened = Inputs.open(self.spec, file, self.newest.get(WEIGHTS), classes, version=None)
        return OfflineSource(path, file, opened.source.sha256, digest_content(file))

    def fold(self, source: OfflineSource, report: ReportProgress) -> Outcome:
        """What the gate rejects leaves the model as it is."""
        if source.content in self._seen:  # the service, too, folds the same weights only once
            return Outcome(source, "known")
        self._seen.add(source.content)
        operation = self._operation(source)
        folded = operation.run(report)
        self._discard(source.file)
        if folded.outcome == "rejected":
            return Outcome(source, "rejected", folded=folded)
        for path in self.newest.values():
            self._discard(path)
        self.newest = {file.name: operation.output / file.name for file in folded.files}
        self.version = operation.version
        if folded.learning_rate is not None:
            self.learning_rate = folded.learning_rate.rate
        return Outcome(source, folded.outcome, operation.version, folded)

    def _operation(self, source: OfflineSource) -> FoldSource:
        version = self.version + 1
        return FoldSource(
            spec=self.spec,
            config=self.options.config,
            learning_rate=self.learning_rate,
            test_all=self.options.test_all,
            version=version,
            source_sha256=source.sha256,
            source_classes=self.options.source_classes,
            target_fingerprint=self.fingerprint,
            cache_dir=self.options.cache,
            work_dir=self.folder / "work",
            output=self.folder / f"v{version}",
            files={
                TARGET: self.options.target,
                SOURCE: source.file,
                **self.options.files,
                **self.newest,
            },
        )

    def _discard(self, file: Path) -> None:
        """Nothing is read twice; the user's own files stay."""
        if file.is_relative_to(self.folder):
            file.unlink()


def _version_of(merged: Path | None) -> int:
    return Checkpoint(merged).info.lineage.version if merged else 0
