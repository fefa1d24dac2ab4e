"""The switch that stands for another rounding does what it says."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from tests.perturbation.sitecustomize import SEED, perturbed


def ones(**_: object) -> nn.Module:
    model = nn.Linear(100, 1)
    nn.init.ones_(model.weight)
    return model


def weight(model: nn.Module) -> list[float]:
    found = next(model.parameters())
    assert isinstance(found, torch.Tensor)
    return found.flatten().tolist()


def test_every_fresh_weight_differs_by_some_roundings(monkeypatch: pytest.MonkeyPatch) -> None:
    create = perturbed(ones)
    monkeypatch.setenv(SEED, "1")
    fresh, again = (weight(create()) for _ in range(2))
    monkeypatch.setenv(SEED, "2")
    other = weight(create())

    assert fresh == again != other
    assert fresh == pytest.approx([1.0] * 100, abs=1e-5)
    assert sum(value != 1.0 for value in fresh) > 90


def test_weights_from_a_file_are_left_alone() -> None:
    assert weight(perturbed(ones)(checkpoint_path="some.safetensors")) == [1.0] * 100


@pytest.mark.parametrize(("seed", "name"), [("1", "create"), ("", "create_model")])
def test_every_python_has_it_that_a_seed_is_given_to(tmp_path: Path, seed: str, name: str) -> None:
    (tmp_path / "timm.py").write_text("def create_model(): pass")
    path = os.pathsep.join([str(Path(__file__).with_name("perturbation")), str(tmp_path)])

    asked = subprocess.run(
        [sys.executable, "-c", "import timm; print(timm.create_model.__name__)"],
        env=os.environ | {"PYTHONPATH": path, SEED: seed},
        capture_output=True,
        text=True,
    )

    assert asked.stdout == f"{name}\n", asked.stderr
