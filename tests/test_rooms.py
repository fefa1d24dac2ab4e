"""The import contracts are checked by `make lint`; this checks what a process really loads."""

import subprocess
import sys

import pytest

HEAVY = {"PIL", "numpy", "pyarrow", "safetensors", "sklearn", "timm", "torch", "torchvision"}


@pytest.mark.parametrize(
    "module",
    [
        "app.main",
        "grasp_cli.main",
        "grasp_core.config",
        "grasp_core.errors",
        "grasp_core.kinds",
        "grasp_core.manifest",
        "grasp_core.methods",
        "grasp_core.operations",
        "grasp_core.report",
        "grasp_core.spec",
        "registry.process.settings",
    ],
)
def test_importing_loads_nothing_heavy(module: str) -> None:
    code = f"import sys, {module}; print(*{{name.partition('.')[0] for name in sys.modules}})"

    process = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True
    )

    assert HEAVY & set(process.stdout.split()) == set()
