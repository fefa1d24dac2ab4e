"""Fixtures of the core's tests: tiny real models, saved to disk."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.core.toy import ToyTask, nudged, save, tiny_weights

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def task() -> ToyTask:
    return ToyTask()


@pytest.fixture(scope="session")
def merged_weights() -> dict[str, Tensor]:
    return tiny_weights(seed=1)


@pytest.fixture(scope="session")
def source_weights(merged_weights: dict[str, Tensor]) -> dict[str, Tensor]:
    return nudged(merged_weights, amount=0.3, seed=2)


@pytest.fixture
def merged(tmp_path: Path, merged_weights: dict[str, Tensor]) -> Path:
    return save(tmp_path / "merged.safetensors", merged_weights)


@pytest.fixture
def source(tmp_path: Path, source_weights: dict[str, Tensor]) -> Path:
    return save(tmp_path / "source.safetensors", source_weights)
