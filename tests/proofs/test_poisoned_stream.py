"""Forty sources, half of them poisoned: what the gate refuses leaves no trace, and nothing gets
worse by more than it allows."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from grasp_core import Checkpoint, fold, parse_config
from grasp_core.files import sha256_file
from tests.core.test_race import learned, network
from tests.core.toy import TINY, ToyTask, nudged, save, tiny_weights

pytestmark = pytest.mark.proof
COUNT = 40
MAX_DROP = 0.05
TASK = ToyTask()
Weights = dict[str, Tensor]


def poison(weights: Weights, number: int) -> Weights:
    """In one of four ways."""
    match number % 4:
        case 0:
            return weights | {"conv_stem.weight": weights["conv_stem.weight"] * float("nan")}
        case 1:
            return {n: 100 * t if t.is_floating_point() else t for n, t in weights.items()}
        case 2:  # as if its labels had been exchanged
            heads = {name: weights[name].roll(1, 0) for name in weights if "classifier" in name}
            return weights | heads
        case _:
            return tiny_weights(number)


@pytest.fixture(scope="module")
def stream(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """In turn good and bad."""
    folder = tmp_path_factory.mktemp("stream")
    good = learned(40)
    save(folder / "base.safetensors", learned(10))
    return [
        save(
            folder / f"{number}.safetensors",
            poison(good, number // 2) if number % 2 else nudged(good, 0.05, seed=number),
        )
        for number in range(COUNT)
    ]


class Version(NamedTuple):
    weights: Path
    files: dict[str, Path]


def accuracy(weights: Path) -> float:
    """On validation, by a plain loop."""
    batch = TASK.splits["val"]
    model = network(dict(Checkpoint(weights))).eval()
    with torch.no_grad():
        right = model(**batch.inputs).argmax(-1) == batch.labels
    return float(right.float().mean())


def fold_one(
    folder: Path, source: Path, before: Version | None, method: str, *, force: bool = False
) -> Version | None:
    """None: it was refused."""
    gate = {"mode": "not_worse", "max_drop": MAX_DROP, "max_class_drop": 1.0}
    values: dict[str, object] = {
        "method": method,
        "gate": gate,
        "refine": {"steps": 0},
        "norm_stats": "keep",
    }
    values |= {"alignment_batches": 2} | ({"scale": 0.5} if method == "ties" else {})
    report = fold(
        TINY,
        source,
        TASK,
        folder / "weights",
        merged=before.weights if before else None,
        files={"base": source.with_name("base.safetensors")} | (before.files if before else {}),
        files_output=folder,
        config=parse_config(values),
        force=force,
    )
    if not report.accepted:
        assert not (folder / "weights").exists()
        assert report.files == ()
        return None
    return Version(folder / "weights", {file.name: folder / file.name for file in report.files})


@pytest.mark.parametrize("method", ["mean", "ties", "grasp"])
def test_what_is_refused_leaves_no_trace(stream: list[Path], tmp_path: Path, method: str) -> None:
    newest: Version | None = None
    taken: list[Path] = []
    for number, source in enumerate(stream):
        made = fold_one(tmp_path / str(number), source, newest, method)
        if made is None:
            continue
        if newest is not None:
            assert accuracy(made.weights) >= accuracy(newest.weights) - MAX_DROP - 1e-6
        newest = made
        taken.append(source)

    assert newest is not None
    assert set(stream[::2]) <= set(taken) or method == "grasp"  # no good one is lost
    broken = [path for number, path in enumerate(stream) if number % 2 and number // 2 % 4 == 0]
    assert not set(broken) & set(taken)
    assert len(taken) < COUNT
    alone: Version | None = None
    for number, source in enumerate(taken):
        alone = fold_one(tmp_path / f"alone{number}", source, alone, method, force=True)
    assert alone is not None
    assert newest.files.keys() == alone.files.keys()
    for name, path in newest.files.items():
        assert sha256_file(path) == sha256_file(alone.files[name])
