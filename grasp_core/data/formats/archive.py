"""A zip or tar archive (plain, gz, bz2, xz) of class folders."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from grasp_core.data.formats.members import Member, is_tar, is_zip, tar_members, zip_members
from grasp_core.data.layout import Place, arrange, is_image
from grasp_core.data.limits import Limits
from grasp_core.data.sample import Contents, Sample, fetch

LAYOUT = "a .zip, .tar, .tar.gz, .tar.bz2 or .tar.xz of such a folder"
OpenArchive = Callable[[Path, Limits], Iterator[Member]]


def matches(path: Path, _limits: Limits) -> bool:
    return path.is_file() and (is_zip(path) or is_tar(path))


def files(path: Path, _limits: Limits) -> list[Path]:
    return [path]


def read(path: Path, limits: Limits) -> Contents:
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
        limits.check_images(max(len(images), len(folders)))
    places = arrange(images, folders)
    return Contents(len(images), None, _samples(members(path, limits), places, limits))


def _samples(members: Iterator[Member], places: list[Place], limits: Limits) -> Iterator[Sample]:
    images = (member for member in members if not member.is_folder and is_image(member.name))
    for image, place in zip(images, places, strict=True):
        content = fetch(image.size, image.read, limits)
        yield Sample(image.name, place.split, place.label, content)
