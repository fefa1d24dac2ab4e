"""Every kind of image becomes the same kind of square."""

from __future__ import annotations

import io
import struct
import warnings
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image, ImageOps

from grasp_core.data import Limits, Sample, Unreadable
from grasp_core.errors import BrokenExamples, TargetError
from grasp_core.kinds.image.config import Interpolation, Preprocessing
from grasp_core.kinds.image.decode import (
    THREADS,
    WINDOW,
    Content,
    Recipe,
    attempt,
    decode,
    decode_in_order,
)
from grasp_core.kinds.image.formats import open_images
from tests.core.data_fixtures import PREPROCESSING, encoded, pictures, png, write_folder

ORIENTATION = 0x0112  # EXIF


def recipe(size: int = 16, max_pixels: int = 10**6, **options: Any) -> Recipe:
    preprocessing = Preprocessing(image_size=8, resize=size, **options)
    return Recipe.of(preprocessing, Limits(max_values=max_pixels))


@pytest.fixture
def photo() -> NDArray[np.uint8]:
    """A coloured 16x16 picture made of digits, one per channel, doubled in size."""
    channels = [picture.pixels.repeat(2, axis=0).repeat(2, axis=1) for picture in pictures(1)]
    return np.stack(channels, axis=2)


def test_lossless_formats_keep_their_pixels(photo: NDArray[np.uint8]) -> None:
    for kind in ("PNG", "BMP", "TIFF", "PPM"):
        assert np.array_equal(decode(encoded(Image.fromarray(photo), kind), recipe()), photo)
    webp = encoded(Image.fromarray(photo), "WEBP", lossless=True)
    assert np.array_equal(decode(webp, recipe()), photo)


def test_arrays_decode_like_files(photo: NDArray[np.uint8]) -> None:
    gray = photo[..., 0]
    for array in (photo, gray, gray[..., None]):
        expected = decode(png(np.squeeze(array)), recipe(8))
        assert np.array_equal(decode(array, recipe(8)), expected)


def test_jpeg_is_what_pillow_makes_of_it(photo: NDArray[np.uint8]) -> None:
    jpeg = encoded(Image.fromarray(photo), "JPEG", quality=80)
    with Image.open(io.BytesIO(jpeg)) as image:
        assert np.array_equal(decode(jpeg, recipe()), np.asarray(image))


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation_is_applied(photo: NDArray[np.uint8], orientation: int) -> None:
    turned = {
        1: photo,
        2: photo[:, ::-1],
        3: photo[::-1, ::-1],
        4: photo[::-1],
        5: photo.transpose(1, 0, 2),
        6: np.rot90(photo, -1),
        7: np.rot90(photo, 2).transpose(1, 0, 2),
        8: np.rot90(photo),
    }[orientation]
    exif = Image.Exif()
    exif[ORIENTATION] = orientation
    assert np.array_equal(decode(encoded(Image.fromarray(photo), exif=exif), recipe()), turned)


def test_sixteen_bits_keep_the_upper_eight() -> None:
    levels = np.linspace(0, 65535, 256).astype(np.uint16).reshape(16, 16)
    decoded = decode(png(levels), recipe())
    assert np.array_equal(decoded, np.repeat((levels >> 8).astype(np.uint8)[..., None], 3, axis=2))


def test_thirty_two_bits_that_fit_into_sixteen_are_taken_as_these() -> None:
    levels = np.array([[0, 300], [65535, 255]], np.int32).repeat(8, 0).repeat(8, 1)
    decoded = decode(encoded(Image.fromarray(levels), "TIFF"), recipe())
    assert decoded[::8, ::8, 0].tolist() == [[0, 1], [255, 0]]


@pytest.mark.parametrize("white", [1.0, 255.0])
def test_floats_go_from_black_to_white(photo: NDArray[np.uint8], white: float) -> None:
    gray = photo[..., 0]
    levels = (gray / 255.0 * white).astype(np.float32)

    decoded = decode(encoded(Image.fromarray(levels), "TIFF"), recipe())

    assert gray.max() > 200
    assert np.array_equal(decoded, np.repeat(gray[..., None], 3, axis=2))


@pytest.mark.parametrize(
    ("value", "kind", "message"),
    [
        (-0.5, np.float32, "its values go from -0.5 to 0, not from 0 to 255"),
        (256.0, np.float32, "its values go from 0 to 256, not from 0 to 255"),
        (np.nan, np.float32, "its values go from nan to nan"),
        (np.inf, np.float32, "its values go from 0 to inf"),
        (-5, np.int32, "its values go from -5 to 0, not from 0 to 65535"),
        (10**6, np.int32, r"its values go from 0 to 1e\+06, not from 0 to 65535"),
    ],
)
def test_numbers_of_unknown_brightness_are_refused(value: float, kind: type, message: str) -> None:
    levels: NDArray[Any] = np.zeros((16, 16), kind)
    levels[3, 4] = value

    with pytest.raises(ValueError, match=message):
        decode(encoded(Image.fromarray(levels), "TIFF"), recipe())


def test_palettes_become_colours(photo: NDArray[np.uint8]) -> None:
    palette = Image.fromarray(photo).quantize(8)
    expected = np.asarray(palette.convert("RGB"))
    assert np.array_equal(decode(encoded(palette), recipe()), expected)
    assert np.array_equal(decode(encoded(palette, "GIF"), recipe()), expected)


def test_transparency_lies_on_black(photo: NDArray[np.uint8]) -> None:
    alpha = np.zeros((16, 16, 1), np.uint8)
    alpha[:, :5], alpha[:, 5:10] = 255, 128
    decoded = decode(png(np.concatenate([photo, alpha], axis=2)), recipe())
    expected = np.rint(photo * (alpha / 255.0)).astype(int)
    assert np.abs(decoded.astype(int) - expected).max() <= 1
    transparent = Image.fromarray(photo).quantize(8)
    clear = int(np.asarray(transparent)[0, 0])
    decoded = decode(encoded(transparent, transparency=clear), recipe())
    assert not decoded[np.asarray(transparent) == clear].any()


def test_grayscale_is_luminance_on_three_channels(photo: NDArray[np.uint8]) -> None:
    decoded = decode(png(photo), recipe(grayscale=True))
    luminance = photo @ np.array([0.299, 0.587, 0.114])
    assert np.ptp(decoded, axis=2).max() == 0
    assert np.abs(decoded[..., 0] - luminance).max() <= 1


def test_contrast_reaches_the_full_range(photo: NDArray[np.uint8]) -> None:
    pale = (photo // 4 + 90).astype(np.uint8)
    decoded = decode(png(pale), recipe(contrast=True))
    expected = np.asarray(ImageOps.autocontrast(Image.fromarray(pale)))
    assert np.array_equal(decoded, expected)
    assert (decoded.min(), decoded.max()) == (0, 255)
    gray = decode(png(pale), recipe(contrast=True, grayscale=True))
    assert (gray.min(), gray.max(), np.ptp(gray, axis=2).max()) == (0, 255, 0)


@pytest.mark.parametrize("interpolation", ["nearest", "bilinear", "bicubic", "lanczos"])
def test_the_shorter_side_is_resized_and_the_centre_kept(
    photo: NDArray[np.uint8], interpolation: Interpolation
) -> None:
    resampling = Image.Resampling[interpolation.upper()]
    wide = np.concatenate([photo[:, :6], photo, photo[:, -6:]], axis=1)  # (16, 28, 3)
    for image in (wide, np.ascontiguousarray(wide.transpose(1, 0, 2))):
        height, width = image.shape[0] // 2, image.shape[1] // 2
        top, left = (height - 8) // 2, (width - 8) // 2
        # Pillow resizes one axis after the other, rounding in between, and picks the order itself.
        orders = [(width, height * 2), (width * 2, height)]
        whole = [
            Image.fromarray(image).resize(first, resampling).resize((width, height), resampling)
            for first in orders
        ]
        centres = [np.asarray(w)[top : top + 8, left : left + 8] for w in whole]
        decoded = decode(png(image), recipe(8, interpolation=interpolation))
        assert any(np.array_equal(decoded, centre) for centre in centres)


def test_a_thread_of_an_image_costs_no_more_than_a_square() -> None:
    line = np.zeros((1, 60_000), np.uint8)
    assert decode(png(line), recipe(64)).shape == (64, 64, 3)


def huge_png(side: int) -> bytes:
    """The header of an enormous image, and nothing behind it."""
    chunk = b"IHDR" + struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    tail = struct.pack(">I", zlib.crc32(chunk)) + b"\0\0\0\0IDAT\x35\xaf\x06\x1e"
    return b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + chunk + tail


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "not an image of a known format"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "not an image of a known format"),
        (png(np.eye(64, dtype=np.uint8) * 255)[:60], "truncated"),
        (huge_png(5000), r"5000x5000, over Limits.max_values = 1000000"),
        (Unreadable("on strike"), "on strike"),
    ],
)
def test_reasons_of_broken_images(content: Any, reason: str) -> None:
    result = attempt(content, recipe())
    assert isinstance(result, Unreadable)
    assert reason in result.reason


def test_an_error_without_words_is_named_by_its_type(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object) -> None:
        raise IndexError

    monkeypatch.setattr("grasp_core.kinds.image.decode._to_rgb", fail)
    assert attempt(png(np.eye(8, dtype=np.uint8)), recipe()) == Unreadable("IndexError")


def test_a_lack_of_memory_is_not_the_images_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object) -> None:
        raise MemoryError

    monkeypatch.setattr("grasp_core.kinds.image.decode._to_rgb", fail)
    with pytest.raises(MemoryError):
        attempt(png(np.eye(8, dtype=np.uint8)), recipe())


@pytest.mark.parametrize("side", [10_000, 20_000])
def test_pillows_own_warning_of_bombs_stays_inside(side: int) -> None:
    sample = Sample[Content]("bomb", None, "a", huge_png(side))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        ((_, result),) = decode_in_order([sample], recipe())
    assert caught == []
    assert isinstance(result, Unreadable)


def test_decoding_keeps_order_and_a_bounded_window() -> None:
    taken = 0

    def samples() -> Any:
        nonlocal taken
        for taken in range(1, 5 * WINDOW):
            yield Sample(str(taken), None, "a", np.full((8, 8), taken % 256, np.uint8))

    for done, (sample, pixels) in enumerate(decode_in_order(samples(), recipe(8)), start=1):
        assert sample.name == str(done)
        assert not isinstance(pixels, Unreadable)
        assert (pixels == done % 256).all()
        assert taken - done <= WINDOW
    assert done == 5 * WINDOW - 1
    assert THREADS >= 1


# Broken images in a target


def broken_target(root: Path, broken: int) -> Path:
    write_folder(root, pictures(50, (None,)))  # 150 images
    for i in range(broken):
        (root / "two" / f"{i:03}.png").write_bytes(b"not an image")
    return root


def test_few_broken_images_are_skipped_and_named(tmp_path: Path) -> None:
    target = open_images(
        broken_target(tmp_path / "d", 3), PREPROCESSING, cache_dir=tmp_path / "c", max_broken=0.02
    )
    assert [image.name for image in target.broken] == [f"two/{i:03}.png" for i in range(3)]
    assert target.broken[0].reason == "not an image of a known format"
    assert sum(counts["two"] for counts in target.counts().values()) == 47


def test_many_broken_images_are_an_error(tmp_path: Path) -> None:
    root = broken_target(tmp_path / "d", 12)
    for _ in range(2):  # the second time from the cache
        with pytest.raises(BrokenExamples, match=r"12 of 150 examples are broken") as caught:
            open_images(root, PREPROCESSING, cache_dir=tmp_path / "c", max_broken=0.0799)
        for i in range(10):
            assert f"two/{i:03}.png: not an image of a known format" in caught.value.message
        assert "two/010.png" not in caught.value.message
        assert "and 2 more" in caught.value.message
    open_images(root, PREPROCESSING, cache_dir=tmp_path / "c", max_broken=0.08)


def test_a_class_of_broken_images_does_not_vanish(tmp_path: Path) -> None:
    root = broken_target(tmp_path / "d", 50)
    with pytest.raises(TargetError, match="no example can be used of the classes: two"):
        open_images(root, PREPROCESSING, cache_dir=tmp_path / "c", max_broken=0.5)
