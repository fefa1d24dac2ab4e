"""timm architectures: built without downloading, described without allocating weights."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from math import floor
from typing import Any

import timm
import torch
from timm.data import resolve_data_config
from timm.models import get_pretrained_cfg
from torch import Tensor, nn

from grasp_core.checkpoints import ALIGNMENT, DTYPES
from grasp_core.config import ModelSpec, Preprocessing
from grasp_core.errors import ArchitectureError
from grasp_core.manifest import Manifest, TensorSpec


def build_model(spec: ModelSpec) -> nn.Module:
    """The architecture, to be filled by `load_weights`.

    Its weights are on the meta device unless it computes buffers that no checkpoint holds (window
    indices, rotary embeddings): then it is built for real, and so are they.
    """
    model = _create(spec, torch.device("meta"))
    if _computed_buffers(model):
        model = _create(spec, torch.device("cpu"))
    return model


def load_weights(
    model: nn.Module, weights: Mapping[str, Tensor], device: torch.device, *, exact: bool = False
) -> None:
    """Let `model` use `weights` as they are, without a copy where they lie on `device` already.

    Buffers are copied: train mode writes to them. A missing step counter becomes 0. A result that
    must be the same to the last bit as that of a model in ordinary memory needs `exact`: it copies
    the few tensors that lie in their file where no allocation would.
    """
    parameters = {name for name, _ in model.named_parameters()}
    state = {
        name: _placed(name, weights, device, copy=name not in parameters, aligned=exact)
        for name in model.state_dict()
    }
    model.load_state_dict(state, assign=True)
    if _computed_buffers(model):
        model.to(device)


def make_manifest(spec: ModelSpec) -> Manifest:
    """Names, shapes and types of all stored tensors, and which of them are the head."""
    model = _create(spec, torch.device("meta"))
    parameters = {name for name, _ in model.named_parameters()}
    heads, classes = _head_prefixes(spec), len(spec.classes)
    manifest = Manifest(
        architecture=spec.architecture,
        classes=classes,
        tensors={
            name: TensorSpec(
                shape=tuple(tensor.shape),
                dtype=DTYPES[tensor.dtype],
                kind="parameter" if name in parameters else "buffer",
                head=name.startswith(heads) and tensor.shape[:1] == (classes,),
            )
            for name, tensor in model.state_dict().items()
        },
    )
    if not manifest.heads():
        raise ArchitectureError(f"timm's {spec.architecture} has no classifier")
    return manifest


def resolve_preprocessing(spec: ModelSpec) -> Preprocessing:
    """The architecture's own preprocessing, with what the user replaced."""
    own = resolve_data_config(pretrained_cfg=pretrained_config(spec.architecture))
    given = spec.preprocessing
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
    """What timm must be told beyond the name and the number of classes."""
    size = spec.preprocessing.image_size
    fixed = pretrained_config(spec.architecture).get("fixed_input_size", False)
    return {"img_size": size} if size and fixed else {}


def _create(spec: ModelSpec, device: torch.device) -> nn.Module:
    arguments = model_arguments(spec)
    try:
        with device:
            model: nn.Module = timm.create_model(
                spec.architecture, pretrained=False, num_classes=len(spec.classes), **arguments
            )
    except Exception as error:  # timm's own checks raise anything, assertions included
        raise ArchitectureError(f"timm cannot build {spec.architecture}: {error}") from error
    return model


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


def _head_prefixes(spec: ModelSpec) -> tuple[str, ...]:
    classifier = pretrained_config(spec.architecture).get("classifier") or ()
    names = (classifier,) if isinstance(classifier, str) else tuple(classifier)
    return tuple(f"{name}." for name in names)


def _computed_buffers(model: nn.Module) -> bool:
    stored = model.state_dict().keys()
    return any(name not in stored for name, _ in model.named_buffers())


def _placed(
    name: str, weights: Mapping[str, Tensor], device: torch.device, *, copy: bool, aligned: bool
) -> Tensor:
    tensor = weights.get(name)
    if tensor is None:
        return torch.zeros((), dtype=torch.int64, device=device)
    dtype = torch.float32 if tensor.is_floating_point() else tensor.dtype
    misplaced = aligned and tensor.data_ptr() % ALIGNMENT != 0
    return tensor.to(device, dtype, copy=copy or misplaced)
