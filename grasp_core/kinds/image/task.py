"""Images as a model sees them: in training at random windows, otherwise their centre."""

from __future__ import annotations

import numpy as np
import torch

from grasp_core.data import Array, TargetData
from grasp_core.kinds.image.config import Augmentation, Preprocessing
from grasp_core.kinds.image.decode import UInt8Array
from grasp_core.tasks import Augmentation as GivenAugmentation
from grasp_core.tasks import Classification, Inputs


class ImageClassification(Classification):
    """Images of a target, each with one of the model's classes."""

    def __init__(
        self, target: TargetData, classes: tuple[str, ...], preprocessing: Preprocessing
    ) -> None:
        super().__init__(target, classes, preprocessing)
        self._side = preprocessing.image_size
        self._mean = torch.tensor(preprocessing.mean).view(3, 1, 1) * 255
        self._std = torch.tensor(preprocessing.std).view(3, 1, 1) * 255

    def evaluation_inputs(self, rows: Array) -> Inputs:
        return self._normalised(centre_crop(rows, self._side))

    def training_inputs(
        self, rows: Array, augmentation: GivenAugmentation, rng: np.random.Generator
    ) -> Inputs:
        chosen = Augmentation.model_validate(augmentation)
        padding = self._side // 8 if chosen.padding is None else chosen.padding
        images = random_crop(rows, self._side, padding, rng)
        return self._normalised(random_flip(images, rng) if chosen.flip else images)

    def _normalised(self, images: UInt8Array) -> Inputs:
        pixels = torch.from_numpy(np.ascontiguousarray(images)).permute(0, 3, 1, 2)  # (B, 3, S, S)
        # The name of the argument is the same in all of timm's models.
        return {"x": ((pixels.float() - self._mean) / self._std).contiguous()}


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
