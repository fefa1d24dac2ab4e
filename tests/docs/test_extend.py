"""The code of docs/extend.md, in real folds."""

from __future__ import annotations

import base64
import io
import json
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from PIL import Image
from pydantic import ValidationError
from safetensors.torch import load_file

from grasp_core import Batch, fold
from grasp_core.errors import TargetError
from grasp_core.kinds.image import formats
from grasp_core.kinds.image.config import Preprocessing
from grasp_core.methods import METHODS
from grasp_core.parameters import parse_config
from scripts.markdown_code import blocks
from tests.core.toy import CLASSES, TINY, ToyTask, nudged, quick, save, tiny_weights

PAGE = Path(__file__).parents[2] / "docs" / "extend.md"


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def module_of(title: str) -> ModuleType:
    """What the page says is in this file."""
    (text,) = (block.text for block in blocks(PAGE.read_text()) if block.title == title)
    module = ModuleType(title.removesuffix(".py"))
    sys.modules[module.__name__] = module  # where pydantic looks for what annotations name
    exec(compile(text, title, "exec"), module.__dict__)
    return module


@pytest.fixture
def checkpoints(tmp_path: Path) -> tuple[Path, Path]:
    first = tiny_weights(seed=1)
    return (
        save(tmp_path / "merged.safetensors", first),
        save(tmp_path / "source.safetensors", nudged(first, amount=0.3, seed=2)),
    )


@pytest.fixture
def ema(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(METHODS, "ema", module_of("ema.py").METHOD)


@pytest.mark.usefixtures("ema")
def test_the_method_merges(checkpoints: tuple[Path, Path], tmp_path: Path) -> None:
    given = {"method": "ema", "weight": 0.25, "norm_stats": "keep", "gate": {"max_drop": 1.0}}
    config = parse_config(given | {"refine": {"epochs": 0}})
    merged, source = checkpoints

    report = fold(TINY, source, ToyTask(), tmp_path / "v2", merged=merged, config=config)

    old, new, result = (load_file(path) for path in (merged, source, tmp_path / "v2"))
    assert report.accepted
    assert report.transferred_share == pytest.approx(0.25)
    for name, tensor in result.items():
        wanted = (
            old[name] + (new[name] - old[name]) / 4 if tensor.is_floating_point() else old[name]
        )
        torch.testing.assert_close(tensor, wanted)


@pytest.mark.usefixtures("ema")
def test_the_method_takes_a_first_source(checkpoints: tuple[Path, Path], tmp_path: Path) -> None:
    config = parse_config({"method": "ema", "refine": {"epochs": 0}})

    assert fold(TINY, checkpoints[0], ToyTask(), tmp_path / "v1", config=config).accepted


@pytest.mark.usefixtures("ema")
def test_what_is_declared_is_checked() -> None:
    with pytest.raises(ValidationError, match=r"(?s)tau.*ema has no such parameter.*of grasp"):
        parse_config({"method": "ema", "tau": 0.3})
    with pytest.raises(ValidationError, match="weight"):
        parse_config({"method": "ema", "weight": 2})


def test_the_task_can_be_folded(checkpoints: tuple[Path, Path], tmp_path: Path) -> None:
    labels = torch.arange(96) % 3
    inputs = torch.randn(96, 3, 32, 32) + labels.view(-1, 1, 1, 1)
    parts = {"train": slice(0, 64), "val": slice(64, 80), "test": slice(80, 96)}
    splits = {name: Batch({"x": inputs[rows]}, labels[rows]) for name, rows in parts.items()}
    task = module_of("spectrograms.py").Spectrograms(CLASSES, splits, "sounds")
    config = quick(refine={"steps": 1, "lr": 1e-3}, gate={"max_drop": 1.0})

    report = fold(TINY, checkpoints[1], task, tmp_path / "v1", config=config)

    assert report.accepted
    assert [look.step for look in report.history] == [0, 1]


def test_the_format_is_read_like_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jsonl = module_of("jsonl.py")
    monkeypatch.setattr(formats, "FORMATS", (*formats.FORMATS, jsonl.FORMAT))
    path = tmp_path / "target.jsonl"
    path.write_text("".join(json_line(number) for number in range(30)))

    target = formats.open_images(path, Preprocessing(image_size=16, resize=16))

    assert target.classes == ("cat", "dog")
    assert sum(len(split) for split in (target.train, target.val, target.test)) == 30
    path.write_text('{"label": "cat"}\n')
    with pytest.raises(TargetError, match="line 1"):
        formats.open_images(path, Preprocessing(image_size=16, resize=16))


@pytest.mark.parametrize("file", ["pyproject.toml", "__init__.py", "implementation.py"])
def test_the_kind_is_the_example_word_for_word(file: str) -> None:
    """Which tests/examples/test_tabular.py installs and takes through the whole service."""
    titled = {block.title: block.text for block in blocks(PAGE.read_text())}
    (path,) = (PAGE.parents[1] / "examples" / "tabular").rglob(file)

    assert titled[path.relative_to(PAGE.parents[1]).as_posix()] == path.read_text()


def json_line(number: int) -> str:
    encoded = io.BytesIO()
    Image.fromarray(np.full((16, 16), number, np.uint8)).save(encoded, "PNG")
    image = base64.b64encode(encoded.getvalue()).decode()
    return json.dumps({"image": image, "label": ("cat", "dog")[number % 2]}) + "\n"
