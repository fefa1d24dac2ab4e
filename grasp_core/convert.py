"""Other tools' checkpoints (.pt, .pth, .ckpt, .bin) as safetensors, without running pickles."""

from __future__ import annotations

import argparse
import pathlib
import re
import warnings
import zipfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import numpy as np
import torch
from torch import Tensor

from grasp_core.architectures import make_manifest, resolve_preprocessing
from grasp_core.checkpoints import DTYPES, CheckpointInfo, write_checkpoint
from grasp_core.errors import CheckpointError
from grasp_core.kinds import DEFAULT, KINDS
from grasp_core.manifest import Found, Manifest
from grasp_core.spec import ModelSpec

State = dict[str, Tensor]

# Where trainers put their weights: Lightning, torch's reference scripts, BasicSR, …
PLAIN_KEYS = ("state_dict", "model_state_dict", "model", "module", "net", "params")
EMA_KEYS = (
    "state_dict_ema",
    "model_ema",
    "model_ema_state_dict",
    "ema_state_dict",
    "ema_model",
    "params_ema",
    "ema",
)
WRAPPERS = ("module", "model", "net")  # attributes that hold the whole model, whatever its kind
INSERTED = re.compile(r"(?:_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)\.")
UNNAMED = tuple(map(str, range(7919)))  # so many rows no other tensor of a head has
COUNTERS = frozenset({"n_averaged"})  # torch.optim.swa_utils.AveragedModel, beside its module

RESAVE = (
    "where it can be loaded, save the weights alone: torch.save(model.state_dict(), 'weights.pt')"
)


def convert_checkpoint(
    path: str | Path,
    output: str | Path,
    *,
    spec: ModelSpec | None = None,
    kind: str = DEFAULT,
    architecture: str | None = None,
    classes: Sequence[str] | None = None,
    ema: bool = True,
) -> str:
    """Write the weights in the torch file `path` to `output` as safetensors; return its sha256.

    The state dict is found inside a trainer's checkpoint (with `ema`, averaged weights before the
    others), and names lose what DDP, torch.compile, Lightning and the like put
    before them. Values and precision stay as they are. Tensors are read through a memory map,
    unless the file is older than torch 1.6, and written one at a time.

    With a `spec` the result is known to be such a model, and says so; `classes` names its outputs
    if they are not the spec's. What lies beside a complete wrapped model (a loss's weights, metric
    states) is then left out. An `architecture` of a `kind` does as well: without `classes` it has
    as many outputs as the weights have.

    Raises CheckpointError if the file is no torch file, holds no weights, or needs objects that
    only unpickling could restore, and CheckpointMismatch, with every difference by name, if the
    weights are not those of the spec.
    """
    path = Path(path)
    names = tuple(classes) if classes else (spec.classes if spec else None)
    if spec is None and architecture is not None:
        spec = ModelSpec(kind=kind, architecture=architecture, classes=names or UNNAMED)
    manifest = make_manifest(spec) if spec else None
    state = _find_state(_load(path), (*EMA_KEYS, *PLAIN_KEYS) if ema else (*PLAIN_KEYS, *EMA_KEYS))
    _require_storable(state, path.name)
    state = _unwrap_names(state, manifest)
    if manifest:
        count = len(names) if names else _count_outputs(state, manifest)
        manifest.require(_describe(state), name=path.name, classes=count)
    info = CheckpointInfo(
        kind=spec.kind if spec else kind,
        architecture=spec.architecture if spec else None,
        classes=names,
        preprocessing=resolve_preprocessing(spec) if spec else None,
    )
    return write_checkpoint(output, state, info)


def _load(path: Path) -> object:
    """What torch saved, with tensors mapped from the file where its format allows."""
    if path.suffix == ".safetensors":  # which some versions of torch.load would read
        raise CheckpointError(f"{path.name} is safetensors already", hint="use it as it is")
    zipped = zipfile.is_zipfile(path)
    try:
        with (
            warnings.catch_warnings(action="ignore"),  # what they say of the file, the error says
            torch.serialization.safe_globals(_harmless_globals()),
        ):
            return torch.load(path, map_location="cpu", weights_only=True, mmap=zipped)
    except UnpicklingError as error:
        if not zipped and not _refused_global(error):
            raise _unreadable(path, error) from error
        raise CheckpointError(
            f"{path.name} holds more than weights: restoring it means running code that it names"
            f" ({_refused_global(error) or 'pickled objects'}), which is refused",
            hint=RESAVE,
        ) from error
    except Exception as error:  # a file of any other kind raises anything, KeyError included
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: Exception) -> CheckpointError:
    if isinstance(error, OSError):
        return CheckpointError(f"cannot read {path.name}: {error.strerror}")
    if _holds_torchscript(path):
        return CheckpointError(f"{path.name} is a TorchScript program, not weights", hint=RESAVE)
    return CheckpointError(
        f"{path.name} is not a torch checkpoint",
        hint="make sure that it was written by torch.save, and copied whole",
    )


def _holds_torchscript(path: Path) -> bool:
    if not zipfile.is_zipfile(path):
        return False
    with zipfile.ZipFile(path) as archive:
        return any(name.endswith("/constants.pkl") for name in archive.namelist())


def _refused_global(error: UnpicklingError) -> str | None:
    found = re.search(r"GLOBAL ([\w.]+)", str(error))
    return found[1] if found else None


def _harmless_globals() -> list[Any]:
    """Plain data that trainers keep beside the weights: arguments, paths, numpy numbers."""
    scalar = np.float64(0).__reduce__()[0]
    array = np.zeros(0).__reduce__()[0]
    codes = np.typecodes["AllInteger"] + np.typecodes["Float"] + "?"
    return [
        argparse.Namespace,
        pathlib.PosixPath,
        pathlib.WindowsPath,
        np.dtype,
        np.ndarray,
        *{type(np.dtype(code)) for code in codes},
        # numpy 2 has moved them; files written with numpy 1 have the old address
        *((scalar, f"numpy.{core}.multiarray.scalar") for core in ("core", "_core")),
        *((array, f"numpy.{core}.multiarray._reconstruct") for core in ("core", "_core")),
    ]


def _find_state(saved: object, keys: tuple[str, ...]) -> State:
    """The tensors under the first of `keys` that has any, however deep; else its own tensors."""
    if not isinstance(saved, Mapping):
        return {}
    for key in keys:
        if inner := _find_state(saved.get(key), keys):
            return inner
    return {
        INSERTED.sub("", name): value
        for name, value in saved.items()
        if isinstance(name, str) and isinstance(value, Tensor)
    }


def _require_storable(state: State, name: str) -> None:
    if not state:
        raise CheckpointError(f"{name} holds no weights where trainers put them", hint=RESAVE)
    strange = [
        f"{key} ({tensor.dtype}, {tensor.layout})"
        for key, tensor in state.items()
        if tensor.dtype not in DTYPES or tensor.layout != torch.strided or tensor.is_meta
    ]
    if strange:
        raise CheckpointError(
            f"{name} has tensors that safetensors cannot hold: {', '.join(strange)}"
        )


def _unwrap_names(state: State, manifest: Manifest | None) -> State:
    """The state with names as the model itself has them."""
    prefix = _model_prefix(state, manifest) if manifest else None
    if prefix is None:
        prefix = _shared_prefix(state)
    inside = {name[len(prefix) :]: t for name, t in state.items() if name.startswith(prefix)}
    if manifest and manifest.compare(_describe(inside)).missing:
        # Then all there is belongs into the list of differences.
        return {name: t for name, t in state.items() if not name.startswith(prefix)} | inside
    return inside


def _model_prefix(state: State, manifest: Manifest) -> str | None:
    """What stands before most of the model's names; None if nothing of the model is there."""
    found = Counter(
        prefix
        for name in state
        for prefix in _wrapper_prefixes(name)
        if name[len(prefix) :] in manifest.tensors
    )
    return max(found, key=lambda prefix: found[prefix], default=None)


def _shared_prefix(state: State) -> str:
    """The longest row of wrappers that stands before all names."""
    names = [name for name in state if name not in COUNTERS] or list(state)
    shared = (
        prefix
        for prefix in _wrapper_prefixes(names[0])
        if all(name.startswith(prefix) for name in names)
    )
    return max(shared, key=len)


def _wrapper_prefixes(name: str) -> Iterator[str]:
    """Every row of wrappers that `name` begins with, the empty one first."""
    yield ""
    wrappers = {*WRAPPERS, *(own for kind in KINDS.values() for own in kind.wrappers)}
    end = 0
    for part in name.split(".")[:-1]:
        if part not in wrappers:
            return
        end += len(part) + 1
        yield name[:end]


def _count_outputs(state: State, manifest: Manifest) -> int:
    """As many as all of the head has rows; the manifest's own number where that is not clear."""
    found = {len(state[name]) for name in manifest.heads() if name in state and state[name].ndim}
    return found.pop() if len(found) == 1 else manifest.classes


def _describe(state: State) -> dict[str, Found]:
    return {name: Found(tuple(t.shape), DTYPES[t.dtype]) for name, t in state.items()}
