"""timm's architectures: built without downloading."""

from __future__ import annotations

import difflib
from math import floor
from typing import Any

import timm
from timm.data import resolve_data_config
from timm.models import get_pretrained_cfg
from torch import nn

from grasp_core.errors import ArchitectureError
from grasp_core.kinds.image.config import Preprocessing, PreprocessingOverrides
from grasp_core.spec import ModelSpec


def create(spec: ModelSpec) -> nn.Module:
    """timm's model. Raises ArchitectureError if there is none, or not with these parameters."""
    arguments = model_arguments(spec)
    try:
        model: nn.Module = timm.create_model(
            spec.architecture, pretrained=False, num_classes=len(spec.classes), **arguments
        )
    except Exception as error:  # timm's own checks raise anything, assertions included
        raise ArchitectureError(f"timm cannot build {spec.architecture}: {error}") from error
    return model


def head(spec: ModelSpec) -> tuple[str, ...]:
    """Modules whose tensors have a row for every class."""
    classifier = pretrained_config(spec.architecture).get("classifier") or ()
    return (classifier,) if isinstance(classifier, str) else tuple(classifier)


def resolve_preprocessing(spec: ModelSpec) -> Preprocessing:
    """The architecture's own preprocessing, with what the user replaced."""
    own = resolve_data_config(pretrained_cfg=pretrained_config(spec.architecture))
    given = _overrides(spec)
    image_size = given.image_size or _square_side(spec.architecture, own["input_size"])
    return Preprocessing(
        image_size=image_size,
        # timm pads where its crop_pct is above 1, as volo's is; here nothing is padded
        resize=max(image_size, floor(image_size / (given.crop_pct or own["crop_pct"]))),
        interpolation=own["interpolation"],
        mean=given.mean or own["mean"],
        std=given.std or own["std"],
        grayscale=given.grayscale,
        contrast=given.contrast,
    )


def model_arguments(spec: ModelSpec) -> dict[str, Any]:
    """What timm must be given beyond the name and the number of classes."""
    size = _overrides(spec).image_size
    fixed = pretrained_config(spec.architecture).get("fixed_input_size", False)
    return {"img_size": size} if size and fixed else {}


def pretrained_config(architecture: str) -> dict[str, Any]:
    """What timm knows of an architecture; raises ArchitectureError if it knows nothing."""
    # Asking the registry first keeps names such as hf-hub:… from reaching the network.
    if not timm.is_model(architecture):
        close = difflib.get_close_matches(architecture, timm.list_models(), n=3)
        raise ArchitectureError(
            f"timm has no model named {architecture!r}",
            hint=f"did you mean {' or '.join(close)}?" if close else "see timm.list_models()",
        )
    try:
        cfg = get_pretrained_cfg(architecture)
    except RuntimeError as error:
        raise ArchitectureError(
            f"timm has no {architecture!r}: {error}",
            hint="leave out what follows the dot: no pretrained weights are used",
        ) from error
    return cfg.to_dict() if cfg is not None else {}


def _square_side(architecture: str, input_size: tuple[int, int, int]) -> int:
    _, height, width = input_size
    if height != width:
        raise ArchitectureError(
            f"{architecture} expects images of {height} x {width}, and only squares are prepared",
            hint="give an image_size",
        )
    return height


def _overrides(spec: ModelSpec) -> PreprocessingOverrides:
    return PreprocessingOverrides.model_validate(spec.preprocessing)
