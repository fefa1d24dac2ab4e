"""A folder of class folders, with or without split folders."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from grasp_core.data.layout import Place, arrange, is_hidden, is_image, is_ours
from grasp_core.data.limits import Limits
from grasp_core.data.sample import Contents, Sample, fetch

LAYOUT = "a folder [train|val|test/]class/image.png"


def matches(path: Path, _limits: Limits) -> bool:
    return path.is_dir() and any(is_image(name) for _, _, names in os.walk(path) for name in names)


def files(path: Path, limits: Limits) -> list[Path]:
    """All images below the folder, sorted by name. Raises TargetError for links out of it."""
    found = [
        Path(folder, name)
        for folder, _, names in os.walk(path)
        for name in names
        if is_image(_relative(Path(folder, name), path))
    ]
    return sorted(file for file in found if is_ours(file, path, limits))


def read(path: Path, limits: Limits) -> Contents:
    """The images in the order of their names. Raises TargetError for a bad layout."""
    images = files(path, limits)
    limits.check_bytes(sum(image.stat().st_size for image in images))
    places = arrange([_relative(image, path) for image in images], _folders(path))
    return Contents(len(images), None, _samples(path, images, places, limits))


def _samples(
    root: Path, images: list[Path], places: list[Place], limits: Limits
) -> Iterator[Sample]:
    for image, place in zip(images, places, strict=True):
        content = fetch(image.stat().st_size, image.read_bytes, limits)
        yield Sample(_relative(image, root), place.split, place.label, content)


def _folders(path: Path) -> Iterator[str]:
    for folder, names, _ in os.walk(path):
        names[:] = [name for name in names if not is_hidden(name)]
        yield from (_relative(Path(folder, name), path) for name in names)


def _relative(file: Path, root: Path) -> str:
    return file.relative_to(root).as_posix()
