"""Decoded once, found again, never trusted when damaged."""

from __future__ import annotations

import errno
import hashlib
import multiprocessing
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from grasp_core.cache_folders import make_aside
from grasp_core.data import Contents, Limits, Sample, TargetData, cache
from grasp_core.data.cache import Index
from grasp_core.errors import TargetError
from grasp_core.kinds.image import decode
from grasp_core.kinds.image.config import Preprocessing
from grasp_core.kinds.image.formats import open_images
from tests.bits import flip_a_bit
from tests.core.data_fixtures import (
    PREPROCESSING,
    contents_of,
    expected_contents,
    pictures,
    write_folder,
    write_zip,
)

Opened = Callable[..., TargetData]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "digits", pictures())


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def open_(source: Path, root: Path) -> Opened:
    def open_target(path: Path = source, **options: Any) -> TargetData:
        preprocessing = options.pop("preprocessing", PREPROCESSING)
        return open_images(path, preprocessing, cache_dir=root, **options)

    return open_target


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Grows with every image that is decoded."""
    calls: list[object] = []
    original = decode.decode

    def counting(content: Any, recipe: Any) -> Any:
        calls.append(recipe)
        return original(content, recipe)

    monkeypatch.setattr(decode, "decode", counting)
    return calls


def test_the_second_time_nothing_is_decoded(open_: Opened, decoded: list[object]) -> None:
    first = open_()
    assert len(decoded) == 30
    second = open_()
    assert len(decoded) == 30
    assert contents_of(second) == contents_of(first) == expected_contents(pictures())
    assert second.fingerprint == first.fingerprint


def test_with_a_fingerprint_the_data_is_not_even_touched(open_: Opened, source: Path) -> None:
    first = open_()
    shutil.rmtree(source)
    again = open_(fingerprint=first.fingerprint)
    assert contents_of(again) == contents_of(first)
    with pytest.raises(TargetError, match="there is nothing at"):
        open_()
    with pytest.raises(TargetError, match="there is nothing at"):
        open_(fingerprint="f" * 64)


def test_data_of_another_fingerprint_is_refused_before_it_is_decoded(
    open_: Opened, decoded: list[object], root: Path
) -> None:
    with pytest.raises(TargetError, match="not what it was when it was validated") as info:
        open_(fingerprint="f" * 64)
    assert info.value.hint
    assert not decoded
    assert not root.exists()


@pytest.mark.parametrize(
    ("preprocessing", "decodes"),
    [
        (Preprocessing(image_size=8, resize=9), True),
        (Preprocessing(image_size=8, resize=8, interpolation="nearest"), True),
        (Preprocessing(image_size=8, resize=8, grayscale=True), True),
        (Preprocessing(image_size=8, resize=8, contrast=True), True),
        (Preprocessing(image_size=8, resize=8, mean=(0, 0, 0), std=(1, 1, 1)), False),
    ],
)
def test_only_what_changes_the_pixels_decodes_again(
    open_: Opened, decoded: list[object], preprocessing: Preprocessing, decodes: bool
) -> None:
    open_()
    open_(preprocessing=preprocessing, split_seed=5)
    assert (len(decoded) > 30) == decodes


def test_limits_that_decide_what_is_broken_decode_again(
    open_: Opened, decoded: list[object]
) -> None:
    with pytest.raises(TargetError, match="30 of 30 examples are broken"):
        open_(limits=Limits(max_values=63))
    assert open_().broken == ()


def _images(root: Path) -> Path:
    return next(root.glob("*/images.u8"))


DAMAGE: dict[str, Callable[[Path], object]] = {
    "images cut": lambda folder: os.truncate(folder / "images.u8", 100),
    "images too long": lambda folder: (folder / "images.u8").open("ab").write(b"x"),
    "images: one bit": lambda folder: flip_a_bit(folder / "images.u8"),
    "images gone": lambda folder: (folder / "images.u8").unlink(),
    "index gone": lambda folder: (folder / "index.npz").unlink(),
    "index empty": lambda folder: (folder / "index.npz").write_bytes(b""),
    "index cut": lambda folder: os.truncate(folder / "index.npz", 300),
    "index of something else": lambda folder: np.savez(folder / "index.npz", labels=np.zeros(3)),
    "sha256 gone": lambda folder: (folder / "images.sha256").unlink(),
}


@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")
@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_cache_is_built_again(
    open_: Opened, root: Path, decoded: list[object], damage: str
) -> None:
    open_()
    DAMAGE[damage](_images_folder(root))
    target = open_()
    assert len(decoded) == 60
    assert contents_of(target) == expected_contents(pictures())
    open_()
    assert len(decoded) == 60
    assert [path.name for path in root.iterdir()] == [_images_folder(root).name]


def _images_folder(root: Path) -> Path:
    return _images(root).parent


def test_an_index_that_disagrees_with_itself_is_damaged(tmp_path: Path) -> None:
    labels, splits = np.zeros(3, np.int64), np.zeros(2, np.int8)
    with (tmp_path / "index.npz").open("wb") as file:
        Index(("a",), ["x", "y", "z"], labels, splits, ()).save(file)
    assert Index.load(tmp_path / "index.npz") is None


def _build(source: Path, root: Path, barrier: Any, results: Any) -> None:
    def together(fraction: float) -> None:
        if fraction == 0.0:
            barrier.wait(30)  # both have found no cache by now

    target = open_images(source, PREPROCESSING, cache_dir=root, progress=together)
    results.put((os.getpid(), sorted(map(len, contents_of(target).values()))))


def test_two_builders_at_once_both_succeed(source: Path, root: Path) -> None:
    context = multiprocessing.get_context("fork")
    barrier, results = context.Barrier(2), context.Queue()
    builders = [
        context.Process(target=_build, args=(source, root, barrier, results)) for _ in range(2)
    ]
    for builder in builders:
        builder.start()
    answers = [results.get(timeout=60) for _ in builders]
    for builder in builders:
        builder.join()
    assert len({process for process, _ in answers}) == 2
    assert answers[0][1] == answers[1][1] == [3] * 6 + [4] * 3
    assert len(list(root.iterdir())) == 1


def test_who_comes_second_takes_what_is_there(open_: Opened, root: Path) -> None:
    target = open_()
    folder = _images_folder(root)
    inode = (folder / "images.u8").stat().st_ino

    another = Sample[decode.Content]("x", None, "a", np.zeros((8, 8), np.uint8))
    decoder = decode.decoder(PREPROCESSING, Limits())

    stored = cache.build(folder, decoder, Contents(1, None, iter([another])), lambda _: None)
    assert len(stored.index.names) == 30
    assert (folder / "images.u8").stat().st_ino == inode
    assert contents_of(target) == contents_of(open_())


def test_a_builder_that_cannot_publish_says_so(
    open_: Opened, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def rename(self: Path, target: Path) -> None:
        raise OSError(errno.EACCES, "denied")

    monkeypatch.setattr(Path, "rename", rename)
    with pytest.raises(PermissionError, match="denied"):
        open_()
    assert list(root.iterdir()) == []


def test_a_stopped_build_leaves_nothing(open_: Opened, root: Path) -> None:
    class Stopped(Exception):
        pass

    def stop(fraction: float) -> None:
        raise Stopped

    with pytest.raises(Stopped):
        open_(progress=stop)
    assert list(root.iterdir()) == []
    assert contents_of(open_()) == expected_contents(pictures())


def test_leftovers_of_crashed_builds_go_with_the_next(open_: Opened, root: Path) -> None:
    (root / "k.tmp-dead").mkdir(parents=True)
    (root / "k.tmp-dead" / "images.u8").write_bytes(b"x")
    with make_aside(root, "k") as alive:
        open_()
        left = {path.name for path in root.iterdir() if ".tmp-" in path.name}
        assert left == {alive.name}


def test_the_name_tells_whose_rows_they_are(open_: Opened, root: Path) -> None:
    fingerprint = open_().fingerprint
    assert _images_folder(root).name.partition("-")[0] == fingerprint


def test_what_is_found_is_marked_as_used(open_: Opened, root: Path) -> None:
    open_()
    os.utime(_images_folder(root), (0, 0))
    open_()
    assert time.time() - _images_folder(root).stat().st_mtime < 60


def test_data_that_would_take_too_much_room_is_refused_before_it_is_decoded(
    open_: Opened, decoded: list[object], root: Path
) -> None:
    size = 30 * 8 * 8 * 3
    with pytest.raises(TargetError, match=r"30 examples .* to 5760 bytes.* = 5759") as info:
        open_(limits=Limits(max_decoded_bytes=size - 1))
    assert "image_size" in str(info.value.hint)
    assert "GRASP_DECODED_TARGET_BYTES" in str(info.value.hint)
    assert not decoded
    assert not root.exists()
    open_(limits=Limits(max_decoded_bytes=size))
    open_(limits=Limits(max_decoded_bytes=1))  # what is there takes no more


def test_images_that_take_too_long_together_are_refused(open_: Opened, root: Path) -> None:
    total = 30 * 8 * 8
    with pytest.raises(TargetError, match=r"pixels or more, .* max_total_values = 1919") as info:
        open_(limits=Limits(max_total_values=total - 1))
    assert "scale" in str(info.value.hint)
    assert list(root.iterdir()) == []
    assert len(open_(limits=Limits(max_total_values=total)).broken) == 0


def test_large_blank_images_are_refused_before_the_most_are_decoded(
    tmp_path: Path, open_: Opened, decoded: list[object]
) -> None:
    folder = tmp_path / "blank"
    for number in range(40):
        path = folder / f"class {number % 2}" / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("1", (2000, 2000)).save(path)
    with pytest.raises(TargetError, match=r"beyond 200 per byte .* max_blank_values = 9000000"):
        open_(folder, limits=Limits(max_blank_values=9 * 10**6))
    assert len(decoded) <= 2
    assert len(open_(folder).broken) == 0


def test_progress_rises_to_one(tmp_path: Path, open_: Opened) -> None:
    path = write_zip(tmp_path / "many.zip", pictures(100))
    seen: list[float] = []
    open_(path, progress=seen.append)
    assert seen == sorted(seen)
    assert len(seen) > 3
    assert (seen[0], seen[-1]) == (0.0, 1.0)
    assert seen[1] == pytest.approx(64 / 300)
    seen.clear()
    open_(path, progress=seen.append)
    assert seen == [1.0]


def test_read_takes_only_these_images_from_the_map(open_: Opened) -> None:
    split = open_().train
    everything = split.read(np.arange(len(split)))
    chosen = np.array([5, 0, 5])
    images = split.read(chosen)
    assert np.array_equal(images, everything[chosen])
    assert images.shape == (3, 8, 8, 3)
    assert images.dtype == np.uint8
    assert not isinstance(images, np.memmap)
    images[:] = 0  # a copy: what the caller does to it stays with the caller
    assert np.array_equal(split.read(chosen), everything[chosen])
    with pytest.raises(ValueError, match="read-only"):
        split.mapped[0] = 0
    assert split.labels.dtype == np.int64
    assert len(split) == len(split.labels) == 12


def test_the_default_cache_is_in_the_home(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    open_images(str(source), PREPROCESSING)
    assert _images(tmp_path / "home/.cache/grasp").stat().st_size == 30 * 8 * 8 * 3


# The fingerprint


def test_the_fingerprint_does_not_depend_on_the_place(
    tmp_path: Path, source: Path, open_: Opened
) -> None:
    moved = tmp_path / "elsewhere" / "renamed"
    shutil.copytree(source, moved)
    assert open_(moved).fingerprint == open_().fingerprint
    archive = write_zip(tmp_path / "a.zip", pictures())
    renamed = tmp_path / "b"
    shutil.copy(archive, renamed)
    assert open_(renamed).fingerprint == open_(archive).fingerprint


def test_the_fingerprint_of_a_file_is_its_sha256(tmp_path: Path, open_: Opened) -> None:
    archive = write_zip(tmp_path / "a.zip", pictures())
    assert open_(archive).fingerprint == hashlib.sha256(archive.read_bytes()).hexdigest()


CHANGES: dict[str, Callable[[Path], object]] = {
    "a byte": lambda root: (root / "train/one/000.png").open("ab").write(b"x"),
    "a name": lambda root: (root / "train/one/000.png").rename(root / "train/one/000a.png"),
    "a class": lambda root: (root / "train/one/000.png").rename(root / "train/two/zzz.png"),
    "a file less": lambda root: (root / "train/one/000.png").unlink(),
    "a file more": lambda root: shutil.copy(root / "val/one/001.png", root / "val/one/x.png"),
    "two contents swapped": lambda root: _swap(
        root / "train/one/000.png", root / "val/one/001.png"
    ),
}


def _swap(one: Path, two: Path) -> None:
    first, second = one.read_bytes(), two.read_bytes()
    one.write_bytes(second)
    two.write_bytes(first)


@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")
@pytest.mark.parametrize("change", CHANGES)
def test_the_fingerprint_sees_every_change(source: Path, open_: Opened, change: str) -> None:
    before = open_().fingerprint
    CHANGES[change](source)
    assert open_().fingerprint != before
