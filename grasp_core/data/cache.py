"""Decoded images on disk: <root>/<key>/ with images.u8, memory-mapped, its sha256, and index.npz.

A cache is built in a sibling folder and renamed, so that it is there as a whole or not at all;
who finds it damaged, and be it by a bit, builds it again. Reading it through costs little beside
what is done with the images then.
"""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np

from grasp_core.data.decode import Recipe
from grasp_core.data.index import Index
from grasp_core.data.sample import UInt8Array
from grasp_core.files import sha256_file, sync_folder

VERSION = 2  # of the files, and of how images are decoded
STALE_S = 24 * 3600  # no build pauses for a day between two images
IMAGES, SHA256, INDEX = "images.u8", "images.sha256", "index.npz"
Fill = Callable[[BinaryIO], Index]


@dataclass(frozen=True)
class Stored:
    """What a cache holds; images are (n, size, size, 3), mapped from disk."""

    index: Index
    images: UInt8Array


def cache_key(fingerprint: str, recipe: Recipe) -> str:
    parts = {"version": VERSION, "fingerprint": fingerprint, **asdict(recipe)}
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def load(folder: Path, size: int) -> Stored | None:
    """The cache in a folder; None if there is none, or it is damaged."""
    index = Index.load(folder / INDEX)
    if index is None:
        return None
    shape = (len(index.labels), size, size, 3)
    try:
        if (folder / IMAGES).stat().st_size != math.prod(shape):
            return None
        if sha256_file(folder / IMAGES) != (folder / SHA256).read_text(errors="replace"):
            return None
        return Stored(index, _map(folder / IMAGES, shape))
    except FileNotFoundError:
        return None


def build(folder: Path, size: int, fill: Fill) -> Stored:
    """Let `fill` write the images and return their index; then publish both under the folder.

    Several processes may do so at once: all succeed, one of the results is kept.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    _sweep(folder.parent)
    temporary = Path(tempfile.mkdtemp(prefix=f"{folder.name}.tmp-", dir=folder.parent))
    try:
        with (temporary / IMAGES).open("wb") as file:
            index = fill(file)
            _sync(file)
        with (temporary / SHA256).open("wb") as file:
            file.write(sha256_file(temporary / IMAGES).encode())
            _sync(file)
        with (temporary / INDEX).open("wb") as file:
            index.save(file)
            _sync(file)
        sync_folder(temporary)
        return _publish(temporary, folder, index, size)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _publish(built: Path, folder: Path, index: Index, size: int) -> Stored:
    # A map outlives its file's name: whatever others do meanwhile, it stays whole.
    ours = Stored(index, _map(built / IMAGES, (len(index.labels), size, size, 3)))
    while True:
        try:
            built.rename(folder)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
        else:
            sync_folder(folder.parent)
            return ours
        if theirs := load(folder, size):
            return theirs
        _remove(folder)


def _remove(folder: Path) -> None:
    """Take a damaged cache out of the way at once, then delete it at leisure."""
    aside = Path(tempfile.mkdtemp(prefix=f"{folder.name}.tmp-", dir=folder.parent))
    with suppress(FileNotFoundError):  # someone else was faster
        folder.rename(aside)
    shutil.rmtree(aside, ignore_errors=True)


def _sweep(root: Path) -> None:
    """Delete what builds left behind that crashed long ago."""
    for folder in root.glob("*.tmp-*"):
        with suppress(FileNotFoundError):  # swept by someone else
            touched = max(path.stat().st_mtime for path in [folder, *folder.iterdir()])
            if time.time() - touched > STALE_S:
                shutil.rmtree(folder, ignore_errors=True)


def _map(file: Path, shape: tuple[int, ...]) -> UInt8Array:
    if shape[0] == 0:
        return np.empty(shape, np.uint8)  # an empty file cannot be mapped
    return np.asarray(np.memmap(file, np.uint8, "r", shape=shape))


def _sync(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())
