"""From an encoded image to a square of uint8, the same bytes on every run."""

from __future__ import annotations

import os
import warnings
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from io import BytesIO
from pathlib import PurePosixPath
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

from grasp_core.data import Decoder, Limits, Sample, Unreadable
from grasp_core.data.layout import is_hidden
from grasp_core.data.target import DEFAULT_LIMITS
from grasp_core.errors import TargetError
from grasp_core.kinds.image.config import Interpolation, Preprocessing

UInt8Array = NDArray[np.uint8]
Content = bytes | UInt8Array  # encoded, or as an array (h, w) or (h, w, 1 | 3)
SUFFIXES = frozenset(
    (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm", ".pbm")
)

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
            limits.max_values,
            limits.max_example_bytes,
        )


class PixelCount:
    """Pixels of a target's images as they were sent, for the threads that decode them."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._total = self._blank = 0
        self._lock = Lock()

    def add(self, content: Content) -> None:
        """Raises TargetError where the target's images are too large together."""
        with _open(content) as image:
            pixels = image.width * image.height
        if pixels > self._limits.max_values:
            return  # it is not decoded
        encoded = len(content) if isinstance(content, bytes) else content.nbytes
        with self._lock:
            self._total += pixels
            self._blank += max(0, pixels - int(self._limits.max_ratio * encoded))
            self._limits.check_values(self._total, self._blank, "pixels")


def is_image(name: str) -> bool:
    """Whether the name is an image's, and no part of it is hidden or made by macOS."""
    return PurePosixPath(name).suffix.lower() in SUFFIXES and not is_hidden(name)


def decoder(preprocessing: Preprocessing, limits: Limits) -> Decoder[Content]:
    """Images as squares of uint8, as large as they are cut from."""
    recipe = Recipe.of(preprocessing, limits)
    return Decoder(
        file="images.u8",
        shape=(recipe.size, recipe.size, 3),
        dtype="uint8",
        key=asdict(recipe),
        decode=partial(decode_in_order, recipe=recipe, limits=limits),
        remedy="take a smaller image_size or fewer images",
    )


def decode(content: Content, recipe: Recipe) -> UInt8Array:
    """The image's central square as (size, size, 3). Raises whatever Pillow raises if broken."""
    with _open(content) as image:
        if image.width * image.height > recipe.max_pixels:  # known from the header alone
            raise ValueError(
                f"{image.width}x{image.height}, over Limits.max_values = {recipe.max_pixels}"
            )
        upright = ImageOps.exif_transpose(image)
    plain = _to_rgb(upright)
    if recipe.grayscale:
        plain = plain.convert("L")
    if recipe.contrast:
        plain = ImageOps.autocontrast(plain)
    return np.asarray(_square(plain, recipe).convert("RGB"))


def attempt(
    content: Content | Unreadable, recipe: Recipe, count: PixelCount | None = None
) -> UInt8Array | Unreadable:
    """The decoded image, or the reason why there is none. Raises TargetError with `count`."""
    if isinstance(content, Unreadable):
        return content
    try:
        if count is not None:
            count.add(content)
        return decode(content, recipe)
    except UnidentifiedImageError:
        return Unreadable("not an image of a known format")
    except (MemoryError, TargetError):
        raise  # it says nothing about the image
    except Exception as error:  # Pillow's plugins raise nearly anything on damaged files
        return Unreadable(str(error) or type(error).__name__)


def decode_in_order(
    samples: Iterable[Sample[Content]], recipe: Recipe, limits: Limits = DEFAULT_LIMITS
) -> Iterator[tuple[Sample[Content], UInt8Array | Unreadable]]:
    """Decode on all cores (Pillow releases the GIL), in the given order, a WINDOW at a time.

    Raises TargetError where the images are too large together.
    """
    count = PixelCount(limits)
    waiting: deque[tuple[Sample[Content], Future[UInt8Array | Unreadable]]] = deque()
    with ThreadPoolExecutor(THREADS) as pool, warnings.catch_warnings():
        # Pillow warns of sizes that our own limit has already judged.
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)
        for sample in samples:
            waiting.append((sample, pool.submit(attempt, sample.content, recipe, count)))
            if len(waiting) >= WINDOW:
                yield _finish(waiting)
        while waiting:
            yield _finish(waiting)


def _finish(
    waiting: deque[tuple[Sample[Content], Future[UInt8Array | Unreadable]]],
) -> tuple[Sample[Content], UInt8Array | Unreadable]:
    sample, future = waiting.popleft()
    return sample, future.result()


def _open(content: Content) -> Image.Image:
    if isinstance(content, bytes):
        return Image.open(BytesIO(content), formats=FORMATS)
    return Image.fromarray(content[..., 0] if content.shape[2:] == (1,) else content)


def _to_rgb(image: Image.Image) -> Image.Image:
    """RGB of any mode: of 16 bits the upper eight, of floats 0 to 1 or 0 to 255, transparency on
    black. Raises ValueError for integers and floats outside of these ranges: how bright they are
    is not in the file."""
    if image.mode == "F" or image.mode.startswith("I"):
        levels = _levels_of_floats if image.mode == "F" else _levels_of_integers
        return Image.fromarray(levels(np.asarray(image))).convert("RGB")
    if not image.has_transparency_data:
        return image.convert("RGB")
    black = Image.new("RGBA", image.size, (0, 0, 0, 255))
    return Image.alpha_composite(black, image.convert("RGBA")).convert("RGB")


def _levels_of_integers(pixels: NDArray[np.int32]) -> UInt8Array:
    """(h, w), 16 bits or more, as 8 bits."""
    _require_range(pixels, 65535)
    return (pixels >> 8).astype(np.uint8)


def _levels_of_floats(pixels: NDArray[np.float32]) -> UInt8Array:
    """(h, w) as 8 bits. None above 1 means that 1 is white: else it would be as good as black."""
    _require_range(pixels, 255)
    return np.rint(pixels * 255 if pixels.max() <= 1 else pixels).astype(np.uint8)


def _require_range(pixels: NDArray[Any], most: int) -> None:
    low, high = pixels.min(), pixels.max()  # both NaN, if any is
    if not 0 <= low <= high <= most:
        raise ValueError(
            f"its values go from {low:g} to {high:g}, not from 0 to {most}: scale them first"
            f"{' (or to 0 to 1)' if pixels.dtype.kind == 'f' else ''}"
        )


def _square(image: Image.Image, recipe: Recipe) -> Image.Image:
    """The shorter side resized and the centre kept, without computing what lies beside it."""
    side = min(image.size)
    left, top = (image.width - side) // 2, (image.height - side) // 2
    box = (left, top, left + side, top + side)
    return image.resize((recipe.size, recipe.size), RESAMPLING[recipe.interpolation], box=box)
