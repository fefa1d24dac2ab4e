"""A checkpoint as a folder that timm loads: weights, config and a model card."""

from __future__ import annotations

import json
import shutil
from math import floor, nextafter
from pathlib import Path
from typing import Any

from timm.models import split_model_name_tag

from grasp_core.architectures import (
    make_manifest,
    model_arguments,
    pretrained_config,
    resolve_preprocessing,
)
from grasp_core.card import model_card
from grasp_core.checkpoints import Checkpoint
from grasp_core.config import ModelSpec, Preprocessing, PreprocessingOverrides
from grasp_core.errors import CheckpointError, ConfigError
from grasp_core.files import atomic_write
from grasp_core.report import FoldReport

# What timm knows of the architecture itself, and not of its own weights, licences or labels.
KEPT = ("fixed_input_size", "pool_size", "first_conv", "classifier")


def export_timm_folder(
    checkpoint: str | Path,
    folder: str | Path,
    *,
    report: FoldReport | None = None,
    name: str | None = None,
) -> Path:
    """Write what `timm.create_model("local-dir:<folder>", pretrained=True)` loads; return `folder`.

    The weights are copied, not linked, since tools that save into such a folder overwrite in
    place; and they come last, so that a folder that has them is complete. The model card is titled
    `name`, and shows the metrics of the `report` of the fold that wrote the checkpoint.

    Raises CheckpointError if the checkpoint does not say what it is or is not what it says, and
    ConfigError if the report is of another version.
    """
    folder = Path(folder)
    weights = Checkpoint(checkpoint)
    spec = _spec(weights)
    manifest = make_manifest(spec)
    manifest.require(weights.found, name=weights.path.name)
    _require_own(report, weights)

    seen = weights.info.preprocessing or resolve_preprocessing(spec)
    config = json.dumps(timm_config(spec, seen), indent=2, ensure_ascii=False)
    card = model_card(weights, manifest, seen, name=name or spec.architecture, report=report)
    _write_text(folder / "config.json", config + "\n")
    _write_text(folder / "README.md", card)
    with weights.path.open("rb") as source, atomic_write(folder / "model.safetensors") as target:
        shutil.copyfileobj(source, target)
    return folder


def timm_config(spec: ModelSpec, seen: Preprocessing) -> dict[str, Any]:
    """timm's config.json: how to build the model, and how to prepare its images."""
    own = pretrained_config(spec.architecture)
    return {
        "architecture": split_model_name_tag(spec.architecture)[0],
        "num_classes": len(spec.classes),
        "label_names": list(spec.classes),
        "model_args": model_arguments(spec),
        "pretrained_cfg": {
            **{key: own[key] for key in KEPT if key in own},
            "num_classes": len(spec.classes),
            "input_size": [3, seen.image_size, seen.image_size],
            "interpolation": seen.interpolation,
            "crop_pct": crop_pct(seen),
            "crop_mode": "center",
            "mean": list(seen.mean),
            "std": list(seen.std),
        },
    }


def crop_pct(seen: Preprocessing) -> float:
    """image_size / resize, such that timm's floor(image_size / crop_pct) is `resize` again."""
    ratio = seen.image_size / seen.resize
    return ratio if floor(seen.image_size / ratio) == seen.resize else nextafter(ratio, 0.0)


def _spec(weights: Checkpoint) -> ModelSpec:
    """The model that the file says it is."""
    info = weights.info
    if not info.architecture or not info.classes:
        lacking = "class names" if info.architecture else "architecture"
        raise CheckpointError(
            f"{weights.path.name} does not say its {lacking}",
            hint="export a version that a fold has written, or convert the file with a ModelSpec",
        )
    size = info.preprocessing.image_size if info.preprocessing else None
    return ModelSpec(
        architecture=info.architecture,
        classes=info.classes,
        preprocessing=PreprocessingOverrides(image_size=size),
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
