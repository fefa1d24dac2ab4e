"""A checkpoint as a folder that the architecture's own library loads: weights, config, a card."""

from __future__ import annotations

import shutil
from pathlib import Path

from grasp_core.architectures import make_manifest
from grasp_core.card import model_card
from grasp_core.checkpoints import Checkpoint
from grasp_core.errors import CheckpointError, ConfigError
from grasp_core.files import atomic_write
from grasp_core.kinds import find_kind
from grasp_core.report import FoldReport


def export_folder(
    checkpoint: str | Path,
    folder: str | Path,
    *,
    report: FoldReport | None = None,
    name: str | None = None,
) -> Path:
    """Write weights, what loads them, and a model card; return `folder`.

    The weights are copied, not linked, since tools that save into such a folder overwrite in
    place; and they come last, so that a folder that has them is complete. The model card is titled
    `name`, and shows the metrics of the `report` of the fold that wrote the checkpoint.

    Raises CheckpointError if the checkpoint does not say what it is or is not what it says, and
    ConfigError if the report is of another version.
    """
    folder = Path(folder)
    weights = Checkpoint(checkpoint)
    _require_described(weights)
    export = find_kind(weights.info.kind).load().describe_export(weights.info)
    manifest = make_manifest(export.spec)
    manifest.require(weights.found, name=weights.path.name)
    _require_own(report, weights)

    title = name or export.spec.architecture
    card = model_card(weights, manifest, export, name=title, report=report)
    for file, text in {**export.files, "README.md": card}.items():
        _write_text(folder / file, text)
    with weights.path.open("rb") as source, atomic_write(folder / "model.safetensors") as target:
        shutil.copyfileobj(source, target)
    return folder


def _require_described(weights: Checkpoint) -> None:
    info = weights.info
    if not info.architecture or not info.classes:
        lacking = "class names" if info.architecture else "architecture"
        raise CheckpointError(
            f"{weights.path.name} does not say its {lacking}",
            hint="export a version that a fold has written, or convert the file with a ModelSpec",
        )


def _require_own(report: FoldReport | None, weights: Checkpoint) -> None:
    if report is not None and report.sha256 != weights.sha256:
        raise ConfigError(
            f"the report is not of {weights.path.name}: it describes the version with sha256"
            f" {report.sha256}, the file has {weights.sha256}"
        )


def _write_text(path: Path, text: str) -> None:
    with atomic_write(path) as file:
        file.write(text.encode())
