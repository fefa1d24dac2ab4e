"""From an encoded image to a square of uint8, the same bytes on every run."""

from __future__ import annotations

import os
import warnings
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from io import BytesIO

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from grasp_core.config import Interpolation, Preprocessing
from grasp_core.data.limits import Limits
from grasp_core.data.sample import Sample, UInt8Array, Unreadable

# No format that runs programs (EPS starts Ghostscript) or that nobody trains on.
FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM")
RESAMPLING: dict[Interpolation, Image.Resampling] = {
    "nearest": Image.Resampling.NEAREST,
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "lanczos": Image.Resampling.LANCZOS,
}
THREADS = min(8, os.cpu_count() or 1)
WINDOW = 4 * THREADS  # samples in memory: enough that no thread waits for the reader


@dataclass(frozen=True)
class Recipe:
    """All that the decoded pixels depend on, beside the data; hence a part of the cache's key."""

    size: int
    interpolation: Interpolation
    grayscale: bool
    contrast: bool
    max_pixels: int
    max_image_bytes: int

    @classmethod
    def of(cls, preprocessing: Preprocessing, limits: Limits) -> Recipe:
        return cls(
            preprocessing.resize,
            preprocessing.interpolation,
            preprocessing.grayscale,
            preprocessing.contrast,
            limits.max_pixels,
            limits.max_image_bytes,
        )


def decode(content: bytes | UInt8Array, recipe: Recipe) -> UInt8Array:
    """The image's central square as (size, size, 3). Raises whatever Pillow raises if broken."""
    with _open(content) as image:
        if image.width * image.height > recipe.max_pixels:  # known from the header alone
            raise ValueError(
                f"{image.width}x{image.height}, over Limits.max_pixels = {recipe.max_pixels}"
            )
        upright = ImageOps.exif_transpose(image)
    plain = _to_rgb(upright)
    if recipe.grayscale:
        plain = plain.convert("L")
    if recipe.contrast:
        plain = ImageOps.autocontrast(plain)
    return np.asarray(_square(plain, recipe).convert("RGB"))


def attempt(content: bytes | UInt8Array | Unreadable, recipe: Recipe) -> UInt8Array | Unreadable:
    """The decoded image, or the reason why there is none."""
    if isinstance(content, Unreadable):
        return content
    try:
        return decode(content, recipe)
    except UnidentifiedImageError:
        return Unreadable("not an image of a known format")
    except MemoryError:
        raise  # it says nothing about the image
    except Exception as error:  # Pillow's plugins raise nearly anything on damaged files
        return Unreadable(str(error) or type(error).__name__)


def decode_in_order(
    samples: Iterable[Sample], recipe: Recipe
) -> Iterator[tuple[Sample, UInt8Array | Unreadable]]:
    """Decode on all cores (Pillow releases the GIL), in the given order, a WINDOW at a time."""
    waiting: deque[tuple[Sample, Future[UInt8Array | Unreadable]]] = deque()
    with ThreadPoolExecutor(THREADS) as pool, warnings.catch_warnings():
        # Pillow warns of sizes that our own limit has already judged.
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)
        for sample in samples:
            waiting.append((sample, pool.submit(attempt, sample.content, recipe)))
            if len(waiting) >= WINDOW:
                yield _finish(waiting)
        while waiting:
            yield _finish(waiting)


def _finish(
    waiting: deque[tuple[Sample, Future[UInt8Array | Unreadable]]],
) -> tuple[Sample, UInt8Array | Unreadable]:
    sample, future = waiting.popleft()
    return sample, future.result()


def _open(content: bytes | UInt8Array) -> Image.Image:
    if isinstance(content, bytes):
        return Image.open(BytesIO(content), formats=FORMATS)
    return Image.fromarray(content[..., 0] if content.shape[2:] == (1,) else content)


def _to_rgb(image: Image.Image) -> Image.Image:
    """RGB of any mode: 16 bits keep the upper eight, transparency lies on black."""
    if image.mode.startswith("I"):
        levels = np.asarray(image).clip(0, 65535).astype(np.uint16) >> 8
        return Image.fromarray(levels.astype(np.uint8)).convert("RGB")
    if not image.has_transparency_data:
        return image.convert("RGB")
    black = Image.new("RGBA", image.size, (0, 0, 0, 255))
    return Image.alpha_composite(black, image.convert("RGBA")).convert("RGB")


def _square(image: Image.Image, recipe: Recipe) -> Image.Image:
    """The shorter side resized and the centre kept, without computing what lies beside it."""
    side = min(image.size)
    left, top = (image.width - side) // 2, (image.height - side) // 2
    box = (left, top, left + side, top + side)
    return image.resize((recipe.size, recipe.size), RESAMPLING[recipe.interpolation], box=box)
