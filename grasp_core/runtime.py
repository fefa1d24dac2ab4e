"""Where and how a fold computes: device, number format, memory layout, determinism."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any, cast

import torch
from torch import nn
from torch.utils import deterministic as _deterministic

from grasp_core.config import FoldConfig, Precision
from grasp_core.errors import DeviceError
from grasp_core.kinds import Kind
from grasp_core.report import Environment
from grasp_core.tasks import Batch

uninitialized: Any = _deterministic  # its setting is hidden from type checkers
LIBRARIES = ("torch", "safetensors", "numpy")  # and those of the kind
FORMATS = {"bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True)
class Runtime:
    """The choices of one fold, made once."""

    device: torch.device
    autocast_dtype: torch.dtype | None
    channels_last: bool
    compile_backend: str | None

    @classmethod
    def choose(cls, config: FoldConfig) -> Runtime:
        device = choose_device(config.device)
        on_cuda = device.type == "cuda"
        return cls(
            device=device,
            autocast_dtype=choose_format(config.precision, device),
            channels_last=on_cuda if config.channels_last is None else config.channels_last,
            compile_backend=config.compile,
        )

    def describe(self, kind: Kind) -> Environment:
        """All that the bytes of a fold depend on besides what it is given."""
        on_cuda = self.device.type == "cuda"
        return Environment(
            python=platform.python_version(),
            libraries={name: version(name) for name in (*LIBRARIES, *kind.libraries)},
            device=torch.cuda.get_device_name(self.device) if on_cuda else self.device.type,
            threads=torch.get_num_threads(),
            autocast=str(self.autocast_dtype).removeprefix("torch.")
            if self.autocast_dtype
            else None,
        )

    def place(self, batch: Batch) -> Batch:
        layout = torch.channels_last if self.channels_last else torch.contiguous_format
        return batch.to(self.device, layout)

    def lay_out(self, model: nn.Module) -> nn.Module:
        """`model` in the memory layout that trains fastest here."""
        return model.to(memory_format=torch.channels_last) if self.channels_last else model

    def compiled(self, model: nn.Module) -> nn.Module:
        if self.compile_backend is None:
            return model
        return cast(nn.Module, torch.compile(model, backend=self.compile_backend))

    def autocast(self) -> AbstractContextManager[object]:
        if self.autocast_dtype is None:
            return nullcontext()
        return torch.autocast(self.device.type, self.autocast_dtype)


def choose_device(name: str) -> torch.device:
    """`auto` takes CUDA, then MPS, then the CPU. Raises DeviceError if there is no such device."""
    if name == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise DeviceError(
            f"device {name!r} cannot be used: {error}", hint="auto takes the best there is"
        ) from error
    return device


def choose_format(precision: Precision, device: torch.device) -> torch.dtype | None:
    """Autocast type, or None for float32; `auto` uses half precision on CUDA only."""
    if precision == "auto":
        if device.type != "cuda":
            return None
        return torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float16
    return FORMATS.get(precision)


@contextmanager
def deterministic() -> Iterator[None]:
    """Ask torch for the same bits every time, and give it its old settings back afterwards."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # what cuBLAS needs for it
    before = torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    benchmark = torch.backends.cudnn.benchmark
    fill = uninitialized.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.backends.cudnn.benchmark = False
    # Filling new memory with NaN is for finding faulty kernels, and is not free.
    uninitialized.fill_uninitialized_memory = False
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before, warn_only=warn_only)
        torch.backends.cudnn.benchmark = benchmark
        uninitialized.fill_uninitialized_memory = fill
