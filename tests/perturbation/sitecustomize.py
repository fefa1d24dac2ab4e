"""Another rounding: every fresh weight is multiplied by (1 + 1e-6 x noise), seeded by PERTURBATION.

Python runs a `sitecustomize` on its path as it starts; tests/conftest.py puts this one there, so it
is in every process of the tests, their services, workers and children too. What training and folds
make of so small a difference is what they make of another processor's kernels. Weights that come
from a file are left alone, so that bytes can be compared.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

SEED = "PERTURBATION"
SIZE = 1e-6  # some ten roundings of float32
FROM_FILES = ("pretrained", "checkpoint_path")  # options of timm.create_model


class PerturbedTimm:
    """Finds timm, as soon as it is imported, with a perturbed `create_model`."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != "timm":
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            run = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                run(module)
                vars(module)["create_model"] = perturbed(vars(module)["create_model"])

            vars(spec.loader)["exec_module"] = exec_module
        return spec


def perturbed(create_model: Callable[..., Any]) -> Callable[..., Any]:
    def create(*arguments: Any, **options: Any) -> Any:
        import torch  # not before somebody needs it

        model = create_model(*arguments, **options)
        if any(options.get(name) for name in FROM_FILES):
            return model
        chance = torch.Generator().manual_seed(int(os.environ[SEED]))
        with torch.no_grad():
            for weight in model.parameters():
                if not weight.is_meta:
                    weight.mul_(1 + SIZE * torch.randn(weight.shape, generator=chance))
        return model

    return create


if os.environ.get(SEED):
    sys.meta_path.insert(0, PerturbedTimm())
