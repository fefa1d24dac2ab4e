"""Crops and mirrors of uint8 batches (n, height, width, channels), as plain numpy."""

from __future__ import annotations

import numpy as np

from grasp_core.data.sample import UInt8Array


def centre_crop(images: UInt8Array, size: int) -> UInt8Array:
    """The middle (n, size, size, c) of every image, as a view.

    Raises ValueError where the images are smaller than that.
    """
    height, width = images.shape[1:3]
    if size > min(height, width):
        raise ValueError(f"cannot crop {size}x{size} from {height}x{width}")
    top, left = (height - size) // 2, (width - size) // 2
    return images[:, top : top + size, left : left + size]


def random_crop(
    images: UInt8Array, size: int, padding: int, rng: np.random.Generator
) -> UInt8Array:
    """An independent window (n, size, size, c) of every image inside a black border.

    Raises ValueError where the images are smaller than that, with their border.
    """
    count, height, width, channels = images.shape
    room = np.array([height, width]) + 2 * padding - size
    if room.min() < 0:
        raise ValueError(f"cannot crop {size}x{size} from {height}x{width} with border {padding}")
    corners = rng.integers(0, room + 1, size=(count, 2)) - padding  # (n, 2), outside is border
    crops = np.zeros((count, size, size, channels), np.uint8)
    for crop, image, (top, left) in zip(crops, images, corners.tolist(), strict=True):
        # The border is never built: only what the window shares with the image is copied.
        window = image[max(top, 0) : max(top + size, 0), max(left, 0) : max(left + size, 0)]
        down, right = max(-top, 0), max(-left, 0)
        crop[down : down + window.shape[0], right : right + window.shape[1]] = window
    return crops


def random_flip(images: UInt8Array, rng: np.random.Generator) -> UInt8Array:
    """A batch of the same shape, each image mirrored left to right with probability one half."""
    flipped = images.copy()
    for index in np.flatnonzero(rng.random(len(images)) < 0.5):
        flipped[index] = images[index, :, ::-1]
    return flipped
