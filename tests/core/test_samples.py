"""The few images of a target that people are shown."""

from __future__ import annotations

from base64 import b64decode
from collections import Counter
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from grasp_core.data import Split, TargetData
from grasp_core.kinds.image import samples
from grasp_core.kinds.image.formats import open_images
from grasp_core.kinds.image.implementation import ANY_MODEL
from grasp_core.kinds.image.samples import show_samples
from grasp_core.operations import ValidateTarget
from tests.worker.digits import CLASSES, Bench, Heard

SIZE = 16


def target_of(labels: list[int], classes: int, seed: int = 0) -> TargetData:
    """Noise, which is the largest that a PNG can be; each image differs from all others."""
    rng = np.random.default_rng(seed)
    mapped = rng.integers(0, 256, (len(labels), SIZE, SIZE, 3)).astype(np.uint8)
    rows = np.arange(len(labels))
    train = Split("train", np.array(labels, np.int64), rows, mapped)
    none = Split("val", train.labels[:0], rows[:0], mapped)
    names = tuple(f"class {label}" for label in range(classes))
    return TargetData(names, "f" * 64, (), (1.0, 0.0, 0.0), train, none, none)


def pixels(image: dict[str, str]) -> bytes:
    with Image.open(BytesIO(b64decode(image["png"]))) as opened:
        assert opened.format == "PNG"
        return opened.convert("RGB").tobytes()


def test_of_every_class_some_are_chosen(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    summary = ValidateTarget({"target": bench.target}, tmp_path / "cache").run(Heard())
    assert [image["class"] for image in summary.samples] == [
        name for name in CLASSES for _ in range(samples.PER_CLASS)
    ]
    assert {image["split"] for image in summary.samples} == {"train"}
    target = open_images(bench.target, ANY_MODEL, cache_dir=tmp_path / "other")
    for image in summary.samples:
        train = target.train
        alike = train.labels == target.classes.index(image["class"])
        of_class = {row.tobytes() for row in train.read(np.flatnonzero(alike))}
        assert pixels(image) in of_class
    again = ValidateTarget({"target": bench.target}, tmp_path / "cache").run(Heard())
    assert again.samples == summary.samples
    assert len({image["png"] for image in summary.samples}) == len(summary.samples)


def test_a_class_with_few_images_shows_all_of_them() -> None:
    target = target_of([2, 0, 2, 2, 2, 2, 2], classes=3)
    chosen = show_samples(target)
    assert Counter(image["class"] for image in chosen) == {"class 0": 1, "class 2": 4}
    assert pixels(chosen[0]) == target.train.mapped[1].tobytes()


def test_of_many_classes_the_first_have_one_each() -> None:
    labels = [label for label in range(100) for _ in range(3)]
    chosen = show_samples(target_of(labels, classes=100))
    assert [image["class"] for image in chosen] == [f"class {n}" for n in range(samples.MAX_IMAGES)]
    labels = [label for label in range(20) for _ in range(9)]
    chosen = show_samples(target_of(labels, classes=20))
    counts = Counter(image["class"] for image in chosen)
    assert len(chosen) == samples.MAX_IMAGES
    assert set(counts.values()) == {2, 3}


def test_they_take_no_more_room_than_they_may(monkeypatch: pytest.MonkeyPatch) -> None:
    target = target_of([label for label in range(6) for _ in range(9)], classes=6)
    whole = show_samples(target)
    one = max(len(image["png"]) for image in whole)
    monkeypatch.setattr(samples, "MAX_BYTES", 9 * one)
    chosen = show_samples(target)
    assert 9 <= len(chosen) < len(whole) == 24
    assert sum(len(image["png"]) for image in chosen) <= 9 * one
    assert set(Counter(image["class"] for image in chosen).values()) == {1, 2}
    monkeypatch.setattr(samples, "MAX_BYTES", 10)
    assert show_samples(target) == ()


def test_what_validation_decodes_is_small() -> None:
    assert max(ANY_MODEL.image_size, ANY_MODEL.resize) <= 96


def test_nothing_to_show() -> None:
    assert show_samples(target_of([], classes=2)) == ()
