"""The files of one fold, checked against the model that they should be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from grasp_core.architectures import build_model, make_manifest, resolve_preprocessing
from grasp_core.checkpoints import Checkpoint, CheckpointInfo, Lineage
from grasp_core.config import FoldConfig
from grasp_core.files import sha256_file
from grasp_core.heads import MatchedSource, match_classes
from grasp_core.manifest import Manifest
from grasp_core.named_files import BASE
from grasp_core.progress import Recorder
from grasp_core.provenance import Provenance
from grasp_core.report import MergeReport
from grasp_core.runtime import Runtime
from grasp_core.seeds import derive_seed
from grasp_core.spec import ModelSpec
from grasp_core.tasks import Task
from grasp_core.workbench import Workbench


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
    files: Mapping[str, Path] = field(default_factory=dict)  # what its methods read, by name

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
        *,
        remembers: bool,
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
            source_sha256=lineage.source or "",
            files=self.files,
            remembers=remembers,
        )

    def _matched(
        self, file: Checkpoint, merged: Checkpoint | None, classes: tuple[str, ...] | None
    ) -> MatchedSource:
        match = match_classes(self.spec.classes, classes)
        return MatchedSource(file, merged, self.manifest.heads(), match)

    @property
    def earlier_provenance(self) -> Provenance:
        return self.merged.info.provenance if self.merged else Provenance()

    def provenance(self, merge: MergeReport) -> Provenance:
        """Who gave what after this merge."""
        shares = {p.name: float(p.transferred) for p in merge.parameters}
        return self.earlier_provenance.after_transfer(self.source.sha256, shares)

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
