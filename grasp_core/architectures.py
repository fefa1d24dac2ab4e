"""Models of any kind: built without downloading, described without allocating weights."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from grasp_core.checkpoints import ALIGNMENT, DTYPES
from grasp_core.config import Frozen
from grasp_core.errors import ArchitectureError
from grasp_core.kinds import find_kind
from grasp_core.manifest import Manifest, TensorSpec
from grasp_core.spec import ModelSpec


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
    heads = tuple(f"{name}." for name in find_kind(spec.kind).load().head(spec))
    classes = len(spec.classes)
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
        raise ArchitectureError(f"{spec.architecture} has no classifier")
    return manifest


def resolve_preprocessing(spec: ModelSpec) -> Frozen:
    """The architecture's own preprocessing, with what the user replaced."""
    return find_kind(spec.kind).load().resolve_preprocessing(spec)


def _create(spec: ModelSpec, device: torch.device) -> nn.Module:
    implementation = find_kind(spec.kind).load()
    with device:
        return implementation.create(spec)


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
