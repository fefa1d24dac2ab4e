"""The code of docs/library.md, with a smaller network and fewer steps."""

from pathlib import Path
from zipfile import ZipFile

import numpy as np
import pytest
import timm
import torch
from PIL import Image

from grasp_cli.demo.experiment import train
from grasp_core import ModelSpec, open_task, parse_config
from scripts.markdown_code import blocks

PAGE = Path(__file__).parents[2] / "docs" / "library.md"
SMALL = ModelSpec(
    architecture="test_efficientnet", classes=("F", "M"), preprocessing={"image_size": 32}
)
SHORT = parse_config({"refine": {"steps": 10}})


def write_images(path: Path) -> None:
    random = np.random.default_rng(0)
    with ZipFile(path, "w") as archive:
        for number in range(40):
            light = 60 + 90 * (number % 2)
            pixels = random.integers(light, light + 60, (32, 32, 3)).astype(np.uint8)
            with archive.open(f"{SMALL.classes[number % 2]}/{number}.png", "w") as file:
                Image.fromarray(pixels).save(file, "PNG")


def test_the_code_merges_and_exports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.set_num_threads(1)
    monkeypatch.chdir(tmp_path)
    write_images(tmp_path / "faces.zip")
    task = open_task("faces.zip", SMALL)
    first = train(SMALL, task, tmp_path / "site-a.safetensors", epochs=15, lr=3e-3)
    train(SMALL, task, tmp_path / "site-b.safetensors", epochs=1, lr=1e-4, ancestor=first)

    for block in blocks(PAGE.read_text()):
        text = block.text.replace("mobilevit_xxs", SMALL.architecture)
        text = text.replace('"M"))', '"M"), preprocessing={"image_size": 32})')
        exec(text.replace("files_output=", "config=SHORT, files_output="), {"SHORT": SHORT})

    outcome = capsys.readouterr().out.split()[0]
    assert outcome in ("accepted", "kept")  # which of them, rounding may decide
    model = timm.create_model("local-dir:merged", pretrained=True)
    assert model.num_classes == 2
