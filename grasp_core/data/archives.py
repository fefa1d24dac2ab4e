"""Members of zip and tar archives, one by one, never written to disk.

Names are labels here and nothing else: no path is ever made from one. What is neither a file nor a
folder, such as a link or a device, is refused: its examples would be missing. What an archive
unpacks to is held against the limits before it is unpacked.
"""

from __future__ import annotations

import stat
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple, Self

from grasp_core.data.contents import DAMAGE, Limits
from grasp_core.errors import TargetError

MAX_TAR_HEADER = 256 * 2**10  # a long name needs some hundred bytes; tarfile holds it in memory
_EXTENDED = (
    tarfile.XHDTYPE,
    tarfile.XGLTYPE,
    tarfile.SOLARIS_XHDTYPE,
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
)
SPECIAL_IN_TAR = {
    tarfile.SYMTYPE: "a symbolic link",
    tarfile.LNKTYPE: "a hard link",
    tarfile.CHRTYPE: "a device",
    tarfile.BLKTYPE: "a device",
    tarfile.FIFOTYPE: "a named pipe",
}
SPECIAL_IN_ZIP = {  # by the file type of Unix, which other systems leave 0
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
}


class Member(NamedTuple):
    """A regular file or a folder; `read` works until the next member is taken."""

    name: str
    size: int
    is_folder: bool
    read: Callable[[], bytes]


class _Header(tarfile.TarInfo):
    """A tar header whose size is sane."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        header = super().frombuf(buf, encoding, errors)
        if header.size < 0 or (header.type in _EXTENDED and header.size > MAX_TAR_HEADER):
            raise TargetError(f"the tar archive has a header of {header.size} bytes")
        return header


def is_zip(path: Path) -> bool:
    return _begins(path, b"PK") and zipfile.is_zipfile(path)


def is_tar(path: Path) -> bool:
    try:
        with tarfile.open(path, tarinfo=_Header):
            return True
    except DAMAGE:
        return False


def zip_members(path: Path, limits: Limits) -> Iterator[Member]:
    """Raises TargetError if the archive is damaged, encrypted, over a limit, or holds links."""
    try:
        with zipfile.ZipFile(path) as archive:
            infos = archive.infolist()
            limits.check_bytes(sum(info.file_size for info in infos), path.stat().st_size)
            for info in infos:
                if info.flag_bits & 1:
                    raise TargetError(f"{info.filename} in {path.name} is encrypted")
                if special := SPECIAL_IN_ZIP.get(stat.S_IFMT(info.external_attr >> 16)):
                    raise _special(info.filename, path, special)
                read = partial(archive.read, info)
                yield Member(_plain(info.filename), info.file_size, info.is_dir(), read)
    except DAMAGE as error:
        raise TargetError(f"{path.name} is no sound zip archive: {error}") from error


def tar_members(path: Path, limits: Limits) -> Iterator[Member]:
    """Raises TargetError if the archive is damaged, over a limit, or holds links or devices."""
    packed = path.stat().st_size
    try:
        with tarfile.open(path, tarinfo=_Header) as archive:
            while (info := archive.next()) is not None:
                archive.members.clear()  # type: ignore[attr-defined]  # tarfile would remember all of them
                if info.size < 0:
                    raise TargetError(f"{info.name} in {path.name} has a negative size")
                limits.check_bytes(info.offset_data + info.size, packed)
                if info.issparse():  # a few bytes may claim to be a large file of zeros
                    raise _special(info.name, path, "a sparse file")
                if not (info.isdir() or info.isreg()):
                    raise _special(info.name, path, SPECIAL_IN_TAR.get(info.type, "no plain file"))
                read = partial(_read_tar, archive, info)
                yield Member(_plain(info.name), info.size, info.isdir(), read)
    except (*DAMAGE, RecursionError) as error:
        raise TargetError(f"{path.name} is no sound tar archive: {error}") from error


def _special(name: str, archive: Path, what: str) -> TargetError:
    return TargetError(
        f"{name!r} in {archive.name} is {what}",
        hint="pack plain files alone: tar with --dereference --hard-dereference, zip without -y",
    )


def _read_tar(archive: tarfile.TarFile, info: tarfile.TarInfo) -> bytes:
    file = archive.extractfile(info)
    return file.read() if file else b""  # None only for what is neither file nor link


def _plain(name: str) -> str:
    """The name with forward slashes and without a root. Raises TargetError if it climbs out."""
    name = name.replace("\\", "/").lstrip("/")
    if ".." in name.split("/"):
        raise TargetError(f"the archive holds the unsafe name {name!r}")
    return name.removeprefix("./")


def _begins(path: Path, magic: bytes) -> bool:
    with path.open("rb") as file:
        return file.read(len(magic)) == magic
