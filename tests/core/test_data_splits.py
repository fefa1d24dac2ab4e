"""Who trains, who validates, who tests."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grasp_core.data import SPLITS
from grasp_core.data.splits import TRAIN, UNGIVEN, assign_splits, choose_fractions
from grasp_core.errors import ConfigError, TargetError
from grasp_core.kinds.image.config import Preprocessing
from grasp_core.kinds.image.formats import open_images
from tests.core.data_fixtures import (
    CLASSES,
    PREPROCESSING,
    contents_of,
    pictures,
    write_folder,
    write_npz,
    write_shards,
    write_tar,
    write_zip,
)

FRACTIONS = (0.7, 0.1, 0.2)


def _draw(
    labels: list[int],
    given_splits: list[int] | None = None,
    seed: int = 0,
    fractions: tuple[float, float, float] = FRACTIONS,
) -> list[int]:
    names = [f"{i:05}" for i in range(len(labels))]
    splits = np.array(given_splits or [UNGIVEN] * len(labels), np.int8)
    return list(map(int, assign_splits(splits, np.array(labels), names, seed, fractions)))


@given(
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=5),
    fractions=st.sampled_from([FRACTIONS, (0.1, 0.45, 0.45), (0.98, 0.01, 0.01), (0.2, 0.1, 0.7)]),
)
def test_every_class_of_three_is_in_every_split(
    sizes: list[int], fractions: tuple[float, float, float]
) -> None:
    labels = [label for label, size in enumerate(sizes) for _ in range(size)]
    found = Counter(zip(labels, _draw(labels, fractions=fractions), strict=True))
    for label, size in enumerate(sizes):
        counts = [found[label, split] for split in range(3)]
        assert sum(counts) == size
        assert counts[TRAIN] >= 1
        assert min(counts) >= 1 or size < 3
        for count, fraction in zip(counts, fractions, strict=True):
            assert abs(count - size * fraction) <= 2 or size < 3


def test_the_seed_draws_the_images_but_not_their_numbers() -> None:
    labels = [0] * 50 + [1] * 30
    first, again, other = _draw(labels), _draw(labels), _draw(labels, seed=1)
    assert first == again
    assert first != other
    assert Counter(zip(labels, first, strict=True)) == Counter(zip(labels, other, strict=True))


def test_the_order_of_the_images_does_not_matter() -> None:
    labels = np.array([0] * 20 + [1] * 20)
    names = np.array([f"{i:03}" for i in range(40)])
    shuffled = np.random.default_rng(0).permutation(40)
    ungiven = np.full(40, UNGIVEN, np.int8)
    splits = assign_splits(ungiven, labels, names.tolist(), 7, FRACTIONS)
    moved = assign_splits(ungiven, labels[shuffled], names[shuffled].tolist(), 7, FRACTIONS)
    assert np.array_equal(moved, splits[shuffled])


@pytest.mark.parametrize(
    ("kept", "drawn", "share"), [((0, 2), 1, 0.1 / 0.8), ((0, 1), 2, 0.2 / 0.9)]
)
def test_a_missing_split_is_cut_from_train(kept: Any, drawn: int, share: float) -> None:
    labels = [0, 1] * 100
    before = [kept[i % 4 == 3] for i in range(200)]
    after = np.array(_draw(labels, before))
    given_splits = np.array(before)
    assert (after[given_splits != TRAIN] == given_splits[given_splits != TRAIN]).all()
    assert abs(np.mean(after[given_splits == TRAIN] == drawn) - share) < 0.02


@pytest.mark.parametrize(
    ("counts", "val"),
    [
        ([100] * 10, 100),
        ([500, 500], 100),
        ([100, 100], 20),
        ([18] * 4, 20),
        ([8] * 9, 20),
        ([7] * 10, 20),
        ([10, 10], 6),
        ([40, 3], 12),
    ],
)
def test_of_few_examples_more_validate(counts: list[int], val: int) -> None:
    fractions = choose_fractions(counts)
    labels = [label for label, count in enumerate(counts) for _ in range(count)]
    drawn = Counter(_draw(labels, fractions=fractions))

    assert sum(fractions) == pytest.approx(1)
    assert val <= drawn[1] <= val + len(counts)
    assert drawn[0] >= 0.35 * len(labels)


def test_only_train_is_as_good_as_no_splits() -> None:
    labels = [0, 1, 1] * 30
    assert _draw(labels, [TRAIN] * 90) == _draw(labels)


def test_complete_splits_stay_as_they_are() -> None:
    given_splits = [0, 1, 2, 2, 1, 0]
    assert _draw([0, 1, 0, 1, 0, 1], given_splits) == given_splits


def test_a_split_of_no_share_stays_empty() -> None:
    assert Counter(_draw([0] * 10 + [1] * 10, fractions=(0.8, 0.2, 0))) == {0: 16, 1: 4}


@pytest.mark.parametrize(
    "fractions", [(0.5, 0.5, 0.5), (0.0, 0.5, 0.5), (1.2, -0.1, -0.1), (0.8, 0.2)]
)
def test_impossible_fractions(tmp_path: Path, fractions: Any) -> None:
    with pytest.raises(ConfigError, match="fractions"):
        open_images(tmp_path, PREPROCESSING, fractions=fractions)


def _names(path: Path, tmp: Path, **options: Any) -> Any:
    return contents_of(
        open_images(path, options.pop("preprocessing", PREPROCESSING), cache_dir=tmp, **options)
    )


def test_archives_are_split_like_their_folder(tmp_path: Path) -> None:
    found = pictures(splits=(None,))
    folder = _names(write_folder(tmp_path / "d", found), tmp_path / "c")
    assert _names(write_zip(tmp_path / "d.zip", found[::-1]), tmp_path / "c") == folder
    assert _names(write_tar(tmp_path / "d.tar", found, "gz"), tmp_path / "c") == folder
    assert _names(tmp_path / "d", tmp_path / "c", split_seed=1) != folder


def test_splits_do_not_depend_on_the_preprocessing(tmp_path: Path) -> None:
    path = write_folder(tmp_path / "d", pictures(splits=(None,)))
    opened = [
        open_images(path, preprocessing, cache_dir=tmp_path / "c")
        for preprocessing in (
            PREPROCESSING,
            Preprocessing(image_size=8, resize=12, grayscale=True, interpolation="nearest"),
        )
    ]
    for split in SPLITS:
        one, other = (target.split(split).rows for target in opened)
        assert np.array_equal(one, other)


def test_another_process_draws_the_same(tmp_path: Path) -> None:
    path = write_folder(tmp_path / "d", pictures(splits=(None,)))
    target = open_images(path, PREPROCESSING, cache_dir=tmp_path / "a", split_seed=3)
    code = f"""
from grasp_core.kinds.image.config import Preprocessing
from grasp_core.kinds.image.formats import open_images
target = open_images({str(path)!r}, Preprocessing(image_size=8, resize=8),
                         cache_dir={str(tmp_path / "b")!r}, split_seed=3)
print(target.fingerprint, target.train.rows.tolist(), target.test.rows.tolist())
import sys
assert "torch" not in sys.modules and "pyarrow" not in sys.modules
"""
    answer = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONHASHSEED": "17", "PYTHONPATH": str(Path.cwd())},
        capture_output=True,
        text=True,
        check=True,
    )
    expected = f"{target.fingerprint} {target.train.rows.tolist()} {target.test.rows.tolist()}"
    assert answer.stdout.strip() == expected


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"split": np.array(["val", "test"] * 15)}, "the data has no train split"),
        (
            {"split": np.repeat(["train", "train", "test"], 10)},
            "train split lacks the classes: two",
        ),
        ({"labels": np.zeros(30, int), "classes": None}, "the data has a single class, '0'"),
    ],
)
def test_data_that_cannot_be_split(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    path = write_npz(tmp_path / "d.npz", pictures(), **changes)
    with pytest.raises(TargetError, match=message):
        open_images(path, PREPROCESSING, cache_dir=tmp_path / "c")


def test_a_single_image_is_trained_on(tmp_path: Path) -> None:
    labels = np.array([0] * 20 + [1] * 9 + [2])
    path = write_npz(tmp_path / "d.npz", pictures(splits=(None,)), labels=labels)
    counts = open_images(path, PREPROCESSING, cache_dir=tmp_path / "c").counts()
    assert [counts[split]["two"] for split in SPLITS] == [1, 0, 0]


def test_splits_in_part_of_the_files_are_an_error(tmp_path: Path) -> None:
    root = write_shards(tmp_path / "d", pictures(splits=("train", None)))
    with pytest.raises(TargetError, match="some examples name their split and some do not"):
        open_images(root, PREPROCESSING, cache_dir=tmp_path / "c")


def test_too_few_images_for_every_split(tmp_path: Path) -> None:
    path = write_folder(tmp_path / "d", pictures(2, (None,)))
    with pytest.raises(TargetError, match="no example is left for the val split"):
        open_images(path, PREPROCESSING, cache_dir=tmp_path / "c")
    target = open_images(path, PREPROCESSING, cache_dir=tmp_path / "c", fractions=(1, 0, 0))
    assert target.counts()["train"] == dict.fromkeys(CLASSES, 2)
    assert len(target.val) == 0


def test_an_archive_without_images(tmp_path: Path) -> None:
    with pytest.raises(TargetError, match="the archive holds nothing, and no images"):
        open_images(write_zip(tmp_path / "d.zip", []), PREPROCESSING, cache_dir=tmp_path / "c")
