"""Weights as safetensors: memory-mapped when read, streamed tensor by tensor when written."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from itertools import chain
from pathlib import Path
from tempfile import TemporaryFile
from typing import NamedTuple

import torch
from pydantic import SerializeAsAny, ValidationError, ValidationInfo, field_validator
from safetensors import SafetensorError, safe_open
from torch import Tensor

from grasp_core.config import ClassName, Frozen
from grasp_core.errors import CheckpointError
from grasp_core.files import atomic_write, sha256_file
from grasp_core.kinds import DEFAULT
from grasp_core.manifest import Found
from grasp_core.provenance import Provenance
from grasp_core.spec import KindName, of_kind

Bytes = bytes | memoryview

METADATA_KEY = "grasp"
SEAL_KEY = "sha256"
ALIGNMENT = 64  # bytes, as torch allocates; some kernels round otherwise on other addresses
DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


class Lineage(Frozen):
    """Where a version comes from: enough to follow the chain back, one link at a time."""

    version: int
    parent: str | None = None  # sha256 of the version before
    source: str | None = None  # sha256 of the source folded in


class CheckpointInfo(Frozen):
    """What a checkpoint says about itself. A foreign file may say nothing."""

    kind: KindName = DEFAULT
    architecture: str | None = None
    classes: tuple[ClassName, ...] | None = None
    preprocessing: SerializeAsAny[Frozen] | None = None  # of the kind's own class
    lineage: Lineage = Lineage(version=0)
    provenance: Provenance = Provenance()

    @field_validator("preprocessing", mode="before")
    @classmethod
    def _of_its_kind(cls, given: object, info: ValidationInfo) -> object:
        return of_kind(given, "preprocessing", info)


class Checkpoint(Mapping[str, Tensor]):
    """A safetensors file as a mapping from names to tensors.

    The tensors are views of the memory-mapped file: they cost page cache, not memory, until they
    are changed. Raises CheckpointError if the file is not safetensors.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        try:
            self._file = safe_open(self.path, framework="pt")
            names: list[str] = self._file.keys()
            metadata: dict[str, str] = self._file.metadata() or {}
        except OSError as error:
            raise CheckpointError(f"cannot read {self.path.name}: {error}") from error
        except SafetensorError as error:
            raise CheckpointError(
                f"cannot read {self.path.name} as safetensors: {error}",
                hint="convert .pt, .pth and .ckpt files with `grasp convert` or convert_checkpoint",
            ) from error
        self.found = {name: self._describe(name) for name in names}
        self.metadata = metadata

    def _describe(self, name: str) -> Found:
        tensor = self._file.get_slice(name)
        return Found(tuple(tensor.get_shape()), tensor.get_dtype())

    def __getitem__(self, name: str) -> Tensor:
        if name not in self.found:
            raise KeyError(name)
        tensor: Tensor = self._file.get_tensor(name)
        return tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self.found)

    def __len__(self) -> int:
        return len(self.found)

    @cached_property
    def sha256(self) -> str:
        return sha256_file(self.path)

    @cached_property
    def info(self) -> CheckpointInfo:
        try:
            return CheckpointInfo.model_validate_json(self.metadata.get(METADATA_KEY, "{}"))
        except ValidationError as error:
            raise CheckpointError(
                f"the {METADATA_KEY!r} metadata of {self.path.name} is damaged: {error}"
            ) from error


def write_checkpoint(path: str | Path, tensors: Mapping[str, Tensor], info: CheckpointInfo) -> str:
    """Write weights with what they should say about themselves; return the file's sha256."""
    own = info.model_dump_json(exclude_defaults=True)
    return write_safetensors(Path(path), tensors, {"format": "pt", METADATA_KEY: own})


def write_safetensors(path: Path, tensors: Mapping[str, Tensor], metadata: dict[str, str]) -> str:
    """Write `tensors` to `path`, atomically and one at a time; return the file's sha256.

    Unlike safetensors' own writer, the bytes depend on nothing but the arguments (its metadata
    comes in random order), and no more than one tensor is copied at a time, from any device.
    """
    digest = hashlib.sha256()
    _write_tensors(path, tensors, metadata, digest.update)
    return digest.hexdigest()


def write_streamed(path: Path, tensors: Mapping[str, Tensor], metadata: dict[str, str]) -> str:
    """The same for tensors that are computed when they are asked for: each is, once.

    A header comes before the tensors that it describes, so these are put aside first.
    """
    shapes, begins = {}, {}
    digest = hashlib.sha256()
    with TemporaryFile(dir=path.parent) as aside:
        for name, tensor in tensors.items():
            shapes[name], begins[name] = _Shape.of(tensor), aside.tell()
            aside.write(_bytes_of(tensor))

        def read(name: str) -> bytes:
            aside.seek(begins[name])
            return aside.read(shapes[name].size)

        _write(path, shapes, read, metadata, digest.update)
        return digest.hexdigest()


def write_computed(path: Path, tensors: Mapping[str, Tensor], like: Mapping[str, Tensor]) -> None:
    """Write what nobody needs for long: tensors of the shapes of others, each computed once, in
    float32 where they are fractions."""
    shapes = {name: _Shape.of(like[name]).as_float32() for name in tensors}
    ordered = _order(shapes)
    header = _header(ordered, {})
    with path.open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        for name, shape in ordered.items():
            file.write(_bytes_of(tensors[name].to(shape.dtype)))


def write_sealed(path: Path, tensors: Mapping[str, Tensor], metadata: dict[str, str]) -> None:
    """Write `tensors` so that `open_sealed` finds them as they are, or not at all."""
    _write_tensors(path, tensors, {**metadata, SEAL_KEY: _seal(tensors, metadata)})


def open_sealed(path: Path) -> Checkpoint:
    """What `write_sealed` wrote. Raises CheckpointError if a bit of it has changed."""
    saved = Checkpoint(path)
    metadata = {key: text for key, text in saved.metadata.items() if key != SEAL_KEY}
    if saved.metadata.get(SEAL_KEY) != _seal(saved, metadata):
        raise CheckpointError(f"{path.name} is damaged: it is not what was written")
    return saved


def digest_tensors(tensors: Mapping[str, Tensor]) -> str:
    """The same for the same names, types, shapes and values, and for no others."""
    return _seal(tensors, {})


def _seal(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> str:
    digest = hashlib.sha256(json.dumps(metadata, sort_keys=True).encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(json.dumps([name, str(tensor.dtype), *tensor.shape]).encode())
        digest.update(_bytes_of(tensor))
    return digest.hexdigest()


class _Shape(NamedTuple):
    """A tensor, but for its values."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    size: int  # in bytes

    @classmethod
    def of(cls, tensor: Tensor) -> _Shape:
        return cls(tensor.dtype, tuple(tensor.shape), tensor.numel() * tensor.itemsize)

    def as_float32(self) -> _Shape:
        if not self.dtype.is_floating_point:
            return self
        return self._replace(dtype=torch.float32, size=4 * self.size // self.dtype.itemsize)

    @property
    def rank(self) -> tuple[bool, int]:
        """Whole cache lines first, then wider types: all but the last few tensors are aligned."""
        return self.size % ALIGNMENT != 0, -self.dtype.itemsize


def _write_tensors(
    path: Path,
    tensors: Mapping[str, Tensor],
    metadata: dict[str, str],
    hear: Callable[[Bytes], None] = lambda _: None,
) -> None:
    shapes = {name: _Shape.of(tensor) for name, tensor in tensors.items()}
    _write(path, shapes, lambda name: _bytes_of(tensors[name]), metadata, hear)


def _write(
    path: Path,
    shapes: Mapping[str, _Shape],
    read: Callable[[str], Bytes],
    metadata: dict[str, str],
    hear: Callable[[Bytes], None],
) -> None:
    """`hear` is told all bytes as they are written."""
    ordered = _order(shapes)
    header = _header(ordered, metadata)
    with atomic_write(path) as file:
        for chunk in chain((len(header).to_bytes(8, "little"), header), map(read, ordered)):
            hear(chunk)
            file.write(chunk)


def _order(shapes: Mapping[str, _Shape]) -> dict[str, _Shape]:
    return dict(sorted(shapes.items(), key=lambda item: (*item[1].rank, item[0])))


def _header(shapes: Mapping[str, _Shape], metadata: dict[str, str]) -> bytes:
    entries: dict[str, object] = {"__metadata__": metadata}
    end = 0
    for name, tensor in shapes.items():
        begin, end = end, end + tensor.size
        entries[name] = {
            "dtype": DTYPES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [begin, end],
        }
    text = json.dumps(entries, separators=(",", ":")).encode()
    return text + b" " * (-(8 + len(text)) % ALIGNMENT)


def _bytes_of(tensor: Tensor) -> memoryview:
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().data
