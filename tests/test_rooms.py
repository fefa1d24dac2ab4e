"""The import contracts are checked by `make lint`; this checks what a process really loads."""

import re
import subprocess
import sys
from pathlib import Path

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


ROOT = Path(__file__).parents[1]
ROOMS = ("app", "registry", "worker", "grasp_core", "grasp_client", "grasp_cli", "migrations")
KIND = ROOT / "grasp_core" / "kinds" / "image"
ITS_OWN = {  # may say what they like
    "grasp_core/kinds/__init__.py",  # the table of kinds
    "migrations/versions/0007_kinds.py",  # what all were before it
    "registry/tables.py",  # the same, as a literal
    "grasp_cli/service.py",  # images of containers
}
COMPATIBLE = re.compile(  # names of the API and the command line, and of other trades
    r"image_size|ImageSize|broken_images|\bimages(?=[:=])|[.\"]images\b|--timm"
    r"|image/(png|svg)|image-rendering: pixelated"
)


def test_nothing_but_its_kind_speaks_of_images() -> None:
    files = (file for room in ROOMS for file in (ROOT / room).rglob("*"))
    texts = {
        file.relative_to(ROOT).as_posix(): file.read_text()
        for file in files
        if file.suffix in {".py", ".pyi", ".html", ".js", ".css"}
        and not file.is_relative_to(KIND)
        and not file.is_relative_to(ROOT / "grasp_cli" / "demo")
    }

    said = {
        f"{name}:{number}: {line.strip()}"
        for name, text in texts.items()
        if name not in ITS_OWN
        for number, line in enumerate(text.splitlines(), start=1)
        if re.search("timm|image|pixel|pillow|torchvision", COMPATIBLE.sub("", line), re.IGNORECASE)
    }

    assert len(texts) > 100
    assert said == set()
