"""Crops and mirrors against loops that anyone can check."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from grasp_core.kinds.image.task import centre_crop, random_crop, random_flip


def batch(count: int, height: int, width: int) -> NDArray[np.uint8]:
    """No pixel is black, so that every border shows."""
    rng = np.random.default_rng(0)
    return rng.integers(1, 256, (count, height, width, 3), np.uint8)


@given(st.integers(1, 9), st.integers(1, 9), st.data())
def test_centre_crop_is_the_middle(height: int, width: int, data: st.DataObject) -> None:
    size = data.draw(st.integers(1, min(height, width)))
    images = batch(3, height, width)
    crops = centre_crop(images, size)
    assert crops.shape == (3, size, size, 3)
    assert np.shares_memory(crops, images)
    for y in range(size):
        for x in range(size):
            source = images[:, y + (height - size) // 2, x + (width - size) // 2]
            assert np.array_equal(crops[:, y, x], source)


@given(st.integers(1, 9), st.integers(1, 9), st.integers(0, 12), st.data())
def test_random_crop_is_a_window_of_the_padded_image(
    height: int, width: int, padding: int, data: st.DataObject
) -> None:
    size = data.draw(st.integers(1, min(height, width) + 2 * padding))
    images = batch(4, height, width)
    crops = random_crop(images, size, padding, np.random.default_rng(padding))
    border = (padding, padding)
    padded = np.pad(images, ((0, 0), border, border, (0, 0)))
    for crop, image in zip(crops, padded, strict=True):
        windows = (
            image[y : y + size, x : x + size]
            for y in range(image.shape[0] - size + 1)
            for x in range(image.shape[1] - size + 1)
        )
        assert any(np.array_equal(crop, window) for window in windows)


def test_random_crop_reaches_every_corner_independently() -> None:
    image = np.arange(1, 26, dtype=np.uint8).reshape(1, 5, 5, 1)
    crops = random_crop(np.repeat(image, 2000, axis=0), 5, 1, np.random.default_rng(0))
    kinds, counts = np.unique(crops.reshape(2000, -1), axis=0, return_counts=True)
    assert len(kinds) == 9
    assert counts.min() > 2000 / 9 * 0.7


def test_without_room_random_crop_changes_nothing() -> None:
    images = batch(5, 6, 6)
    assert np.array_equal(random_crop(images, 6, 0, np.random.default_rng(0)), images)


def test_crops_larger_than_the_image() -> None:
    with pytest.raises(ValueError, match="cannot crop 7x7 from 6x8"):
        centre_crop(batch(1, 6, 8), 7)
    with pytest.raises(ValueError, match="cannot crop 9x9 from 6x8 with border 1"):
        random_crop(batch(1, 6, 8), 9, 1, np.random.default_rng(0))


def test_random_flip_mirrors_half_of_the_images() -> None:
    images = batch(1000, 3, 4)
    before = images.copy()
    flipped = random_flip(images, np.random.default_rng(0))
    assert np.array_equal(images, before)
    mirrored = 0
    for image, result in zip(images, flipped, strict=True):
        same = np.array_equal(result, image)
        assert same or np.array_equal(result, np.stack([row[::-1] for row in image]))
        mirrored += not same
    assert 430 < mirrored < 570


def test_the_generator_decides() -> None:
    images = batch(20, 8, 8)
    for seed in (1, 2):
        first, again = (random_flip(images, np.random.default_rng(seed)) for _ in range(2))
        assert np.array_equal(first, again)
    one, two = (random_crop(images, 8, 2, np.random.default_rng(seed)) for seed in (1, 2))
    assert not np.array_equal(one, two)
