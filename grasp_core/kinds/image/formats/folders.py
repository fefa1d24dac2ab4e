"""Class folders of images, with or without split folders: as they lie, or in an archive."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from grasp_core.data import Contents, Format, Limits, Sample, fetch
from grasp_core.data.archives import Member, is_tar, is_zip, tar_members, zip_members
from grasp_core.data.formats import describe_files
from grasp_core.data.layout import Place, arrange, is_hidden, is_ours
from grasp_core.errors import TargetError
from grasp_core.kinds.image.decode import Content, is_image

LAYOUT = "a folder [train|val|test/]class/image.png"


def _is_folder(path: Path, _limits: Limits) -> bool:
    return path.is_dir() and any(is_image(name) for _, _, names in os.walk(path) for name in names)


def _files(path: Path, limits: Limits) -> list[Path]:
    """All images below the folder, sorted by name. Raises TargetError for links out of it."""
    found = [
        Path(folder, name)
        for folder, _, names in os.walk(path)
        for name in names
        if is_image(_relative(Path(folder, name), path))
    ]
    return sorted(file for file in found if is_ours(file, path, limits))


def _read_folder(path: Path, limits: Limits) -> Contents[Content]:
    """The images in the order of their names. Raises TargetError for a bad layout."""
    images = _files(path, limits)
    limits.check_bytes(sum(image.stat().st_size for image in images))
    places = arrange([_relative(image, path) for image in images], _folders(path))
    return Contents(len(images), None, _from_files(path, images, places, limits))


def _from_files(
    root: Path, images: list[Path], places: list[Place], limits: Limits
) -> Iterator[Sample[Content]]:
    for image, place in zip(images, places, strict=True):
        content = fetch(image.stat().st_size, image.read_bytes, limits)
        yield Sample(_relative(image, root), place.split, place.label, content)


def _folders(path: Path) -> Iterator[str]:
    for folder, names, _ in os.walk(path):
        names[:] = [name for name in names if not is_hidden(name)]
        yield from (_relative(Path(folder, name), path) for name in names)


def _relative(file: Path, root: Path) -> str:
    return file.relative_to(root).as_posix()


def _is_archive(path: Path, _limits: Limits) -> bool:
    return path.is_file() and (is_zip(path) or is_tar(path))


def _read_archive(path: Path, limits: Limits) -> Contents[Content]:
    """The images in the archive's order: one pass for the names, one for the bytes.

    Raises TargetError for a bad layout, a damaged archive, or one over a limit.
    """
    members = zip_members if is_zip(path) else tar_members
    images: list[str] = []
    folders: list[str] = []
    for member in members(path, limits):
        if member.is_folder:
            folders.append(member.name)
        elif is_image(member.name):
            images.append(member.name)
        limits.check_examples(max(len(images), len(folders)))
    if not images:
        held = describe_files(member.name for member in members(path, limits))
        raise TargetError(f"the archive holds {held}, and no images", hint=f"expected is {LAYOUT}")
    places = arrange(images, folders)
    return Contents(len(images), None, _from_members(members(path, limits), places, limits))


def _from_members(
    members: Iterator[Member], places: list[Place], limits: Limits
) -> Iterator[Sample[Content]]:
    images = (member for member in members if not member.is_folder and is_image(member.name))
    for image, place in zip(images, places, strict=True):
        content = fetch(image.size, image.read, limits)
        yield Sample(image.name, place.split, place.label, content)


FOLDER: Format[Content] = Format(LAYOUT, _is_folder, _files, _read_folder)
ARCHIVE: Format[Content] = Format(
    "a .zip, .tar, .tar.gz, .tar.bz2 or .tar.xz of such a folder",
    _is_archive,
    lambda path, _: [path],
    _read_archive,
)
