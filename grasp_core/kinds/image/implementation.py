"""What the kind computes."""

from __future__ import annotations

from pathlib import Path

from grasp_core.data import Fractions, Limits, TargetData
from grasp_core.kinds.declaration import Progress
from grasp_core.kinds.image.architectures import create, head, resolve_preprocessing
from grasp_core.kinds.image.config import Preprocessing
from grasp_core.kinds.image.export import describe_export
from grasp_core.kinds.image.formats import open_images
from grasp_core.kinds.image.samples import show_samples
from grasp_core.kinds.image.task import ImageClassification
from grasp_core.spec import ModelSpec

__all__ = [
    "create",
    "describe_export",
    "head",
    "open_target",
    "open_task",
    "resolve_preprocessing",
    "show_samples",
]

# To see whether images decode; small squares make it quick.
ANY_MODEL = Preprocessing(image_size=64, resize=64, interpolation="bilinear")


def open_task(
    path: Path,
    spec: ModelSpec,
    *,
    cache_dir: Path | None,
    limits: Limits,
    fractions: Fractions | None,
    fingerprint: str | None,
    progress: Progress | None,
) -> ImageClassification:
    preprocessing = resolve_preprocessing(spec)
    target = open_images(
        path,
        preprocessing,
        cache_dir=cache_dir,
        limits=limits,
        fractions=fractions,
        fingerprint=fingerprint,
        progress=progress,
    )
    return ImageClassification(target, spec.classes, preprocessing)


def open_target(
    path: Path, *, cache_dir: Path, limits: Limits, progress: Progress | None
) -> TargetData:
    return open_images(path, ANY_MODEL, cache_dir=cache_dir, limits=limits, progress=progress)
