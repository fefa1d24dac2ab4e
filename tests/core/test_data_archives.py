"""Archives made by strangers: bombs, climbing names, links, damage."""

from __future__ import annotations

import gzip
import io
import stat
import struct
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from grasp_core.data import Limits, TargetData
from grasp_core.data.archives import MAX_TAR_HEADER
from grasp_core.errors import BrokenExamples, TargetError
from grasp_core.kinds.image.formats import open_images
from tests.core.data_fixtures import (
    CLASSES,
    PREPROCESSING,
    encoded,
    pictures,
    png,
    write_folder,
    write_npz,
    write_parquet,
    write_shards,
    write_tar,
    write_tar_members,
    write_zip,
)

MIB = 2**20


@pytest.fixture
def open_at(tmp_path: Path) -> Callable[..., TargetData]:
    def open_(path: Path, **options: Any) -> TargetData:
        return open_images(path, PREPROCESSING, cache_dir=tmp_path / "cache", **options)

    return open_


def _total(target: TargetData) -> int:
    return len(target.train) + len(target.val) + len(target.test)


@pytest.fixture
def zip_bomb(tmp_path: Path) -> Path:
    path = write_zip(tmp_path / "bomb.zip", pictures(splits=(None,)))
    with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("one/zeros.bmp", bytes(32 * MIB))
    return path


def test_a_zip_bomb_is_refused_before_it_is_unpacked(
    zip_bomb: Path, open_at: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(zipfile.ZipFile, "open", lambda *_: pytest.fail("unpacked"))
    with pytest.raises(TargetError, match="over the limit max_ratio = 200") as caught:
        open_at(zip_bomb)
    assert caught.value.hint == "if the data is trusted, raise Limits.max_ratio"


def test_a_trusted_ratio_may_be_raised(zip_bomb: Path, open_at: Any) -> None:
    target = open_at(zip_bomb, limits=Limits(max_ratio=5000), max_broken=0.1)
    assert [image.name for image in target.broken] == ["one/zeros.bmp"]


def test_small_archives_may_compress_as_well_as_they_can(tmp_path: Path, open_at: Any) -> None:
    blank = encoded(Image.new("RGB", (512, 512)), "BMP")
    path = tmp_path / "blank.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for i in range(6):
            archive.writestr(f"{'ab'[i % 2]}/{i}.bmp", blank)
    assert 6 * len(blank) / path.stat().st_size > Limits().max_ratio
    assert _total(open_at(path)) == 6


def test_a_tar_bomb_is_refused_at_its_header(tmp_path: Path, open_at: Any) -> None:
    info = tarfile.TarInfo("one/zeros.png")
    info.size = 2**30  # announced only: reading on would fail differently
    path = tmp_path / "bomb.tar.gz"
    path.write_bytes(gzip.compress(info.tobuf() + bytes(1024)))
    with pytest.raises(TargetError, match="over the limit max_ratio"):
        open_at(path)


def test_a_huge_extended_header_is_refused(tmp_path: Path, open_at: Any) -> None:
    info = tarfile.TarInfo("././@LongLink")
    info.type, info.size = tarfile.GNUTYPE_LONGNAME, MAX_TAR_HEADER + 1
    (tmp_path / "a.tar").write_bytes(info.tobuf() + bytes(MAX_TAR_HEADER + 1024))
    with pytest.raises(TargetError, match="a header of 262145 bytes"):
        open_at(tmp_path / "a.tar")


def test_negative_sizes_do_not_lead_in_circles(tmp_path: Path, open_at: Any) -> None:
    info = tarfile.TarInfo("one/a.png")
    info.size = -512
    header = info.tobuf(tarfile.GNU_FORMAT)
    (tmp_path / "a.tar").write_bytes(header + bytes(1024))
    with pytest.raises(TargetError, match="a header of -512 bytes"):
        open_at(tmp_path / "a.tar")
    info.size, info.pax_headers = 0, {"size": "-512"}
    (tmp_path / "b.tar").write_bytes(info.tobuf(tarfile.PAX_FORMAT) + bytes(1024))
    with pytest.raises(TargetError, match=r"one/a.png in b.tar has a negative size"):
        open_at(tmp_path / "b.tar")


def test_endless_extended_headers_are_refused(tmp_path: Path, open_at: Any) -> None:
    info = tarfile.TarInfo("././@LongLink")
    info.type, info.size = tarfile.GNUTYPE_LONGNAME, 1
    first = tarfile.TarInfo("one/a.png").tobuf()
    chain = (info.tobuf() + b"a" + bytes(511)) * 2000
    (tmp_path / "a.tar").write_bytes(first + chain + bytes(1024))
    with pytest.raises(TargetError, match="no sound tar archive"):
        open_at(tmp_path / "a.tar")


@pytest.mark.parametrize("name", ["../../one/evil.png", "one/../../evil.png", "..\\evil\\a.png"])
@pytest.mark.parametrize("kind", ["zip", "tar"])
def test_names_that_climb_are_refused(tmp_path: Path, open_at: Any, kind: str, name: str) -> None:
    image = png(pictures(1)[0].pixels)
    path = tmp_path / f"evil.{kind}"
    if kind == "tar":
        write_tar_members(path, [("one/a.png", image), (name, image)])
    else:
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr(name, image)
    with pytest.raises(TargetError, match="unsafe name"):
        open_at(path)
    assert not list(tmp_path.rglob("evil.png"))


def test_absolute_names_are_only_labels(tmp_path: Path, open_at: Any) -> None:
    members = [
        ("/" * (i % 2) + picture.path, png(picture.pixels)) for i, picture in enumerate(pictures())
    ]
    target = open_at(write_tar_members(tmp_path / "d.tar", members))
    assert (_total(target), target.classes) == (30, CLASSES)


@pytest.mark.parametrize(
    ("kind", "what"),
    [
        (tarfile.SYMTYPE, "a symbolic link"),
        (tarfile.LNKTYPE, "a hard link"),
        (tarfile.CHRTYPE, "a device"),
        (tarfile.BLKTYPE, "a device"),
        (tarfile.FIFOTYPE, "a named pipe"),
        (tarfile.GNUTYPE_SPARSE, "a sparse file"),
    ],
)
@pytest.mark.parametrize("write", [write_tar, write_shards])
def test_what_is_no_plain_file_in_a_tar_is_refused_by_name(
    tmp_path: Path, open_at: Any, kind: bytes, what: str, write: Callable[..., Path]
) -> None:
    (tmp_path / "secret.png").write_bytes(png(pictures(1)[0].pixels))
    path = write(tmp_path / "d.tar", pictures(splits=(None,)))
    shard = path if path.is_file() else min(path.glob("*.tar"))
    with tarfile.open(shard, "a") as archive:
        info = tarfile.TarInfo("one/other.png")
        info.type, info.linkname = kind, str(tmp_path / "secret.png")
        archive.addfile(info)

    with pytest.raises(TargetError, match=rf"'one/other.png' in {shard.name} is {what}"):
        open_at(path)


@pytest.mark.parametrize(
    ("kind", "what"),
    [
        (stat.S_IFLNK, "a symbolic link"),
        (stat.S_IFCHR, "a device"),
        (stat.S_IFBLK, "a device"),
        (stat.S_IFIFO, "a named pipe"),
        (stat.S_IFSOCK, "a socket"),
    ],
)
def test_what_is_no_plain_file_in_a_zip_is_refused_by_name(
    tmp_path: Path, open_at: Any, kind: int, what: str
) -> None:
    path = write_zip(tmp_path / "d.zip", pictures(splits=(None,)))
    with zipfile.ZipFile(path, "a") as archive:
        link = zipfile.ZipInfo("one/link.png")
        link.external_attr = (kind | 0o777) << 16
        archive.writestr(link, "/etc/passwd")

    with pytest.raises(TargetError, match=rf"'one/link.png' in d.zip is {what}"):
        open_at(path)


def test_an_empty_class_folder_in_an_archive_is_an_error(tmp_path: Path, open_at: Any) -> None:
    path = write_zip(tmp_path / "d.zip", pictures(splits=(None,)), "digits/")
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("elsewhere/", "")
        archive.writestr("digits/__MACOSX/", "")
        archive.writestr("digits/three/", "")
    with pytest.raises(TargetError, match="class folder digits/three/ holds no examples"):
        open_at(path)


def test_folders_in_a_tar_are_no_images(tmp_path: Path, open_at: Any) -> None:
    root = write_folder(tmp_path / "d", pictures(splits=(None,)))
    with tarfile.open(tmp_path / "d.tar", "w") as archive:
        archive.add(root, arcname=".")
    target = open_at(tmp_path / "d.tar")
    assert (_total(target), target.classes) == (30, CLASSES)


def test_an_encrypted_zip_is_named(tmp_path: Path, open_at: Any) -> None:
    path = write_zip(tmp_path / "d.zip", pictures(1, (None,)))
    data = bytearray(path.read_bytes())
    entry = data.index(b"PK\x01\x02")
    data[entry + 8] |= 1  # the flag bits of the first entry in the directory
    path.write_bytes(data)
    with pytest.raises(TargetError, match=r"one/000.png in d.zip is encrypted"):
        open_at(path)


def test_a_damaged_zip_member_is_a_broken_image(tmp_path: Path, open_at: Any) -> None:
    image = png(pictures(1)[0].pixels)
    path = tmp_path / "d.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for i in range(20):
            archive.writestr(f"{'ab'[i % 2]}/{i}.png", image + bytes([i]))
    data = path.read_bytes()
    path.write_bytes(data.replace(image + b"\x04", image + b"\x44"))
    target = open_at(path, max_broken=0.05)
    assert [image.name for image in target.broken] == ["a/4.png"]
    assert "Bad CRC-32" in target.broken[0].reason


def test_an_unknown_compression_is_a_broken_image(tmp_path: Path, open_at: Any) -> None:
    path = write_zip(tmp_path / "d.zip", pictures(splits=(None,)))
    data = bytearray(path.read_bytes())
    local, entry = data.index(b"PK\x03\x04"), data.index(b"PK\x01\x02")
    data[local + 8], data[entry + 10] = 99, 99  # the compression method, in both headers
    path.write_bytes(data)
    target = open_at(path, max_broken=0.05)
    assert [image.name for image in target.broken] == ["one/000.png"]
    assert "compression" in target.broken[0].reason


def test_a_zip_without_its_directory_is_no_archive(tmp_path: Path, open_at: Any) -> None:
    path = write_zip(tmp_path / "d.zip", pictures(1, (None,)))
    data = path.read_bytes()
    path.write_bytes(data[: data.index(b"PK\x01\x02")])
    with pytest.raises(TargetError, match="in no known format"):
        open_at(path)
    end = data.index(b"PK\x05\x06")
    entries = struct.pack("<HH", 99, 99)
    path.write_bytes(data[: end + 8] + entries + struct.pack("<I", 9999) + data[end + 16 :])
    with pytest.raises(TargetError, match="no sound zip archive"):
        open_at(path)


@pytest.mark.parametrize("compression", ["", "gz", "xz"])
def test_a_truncated_tar_is_an_error(tmp_path: Path, open_at: Any, compression: str) -> None:
    noise = np.random.default_rng(0).bytes(80_000)
    members = [("one/a.png", noise[:40_000]), ("two/b.png", noise[40_000:])]
    path = write_tar_members(tmp_path / "d.tar", members, compression)
    path.write_bytes(path.read_bytes()[:60_000])
    with pytest.raises(TargetError, match="no sound tar archive"):
        open_at(path)


def test_npz_with_a_lying_header(tmp_path: Path, open_at: Any) -> None:
    header = io.BytesIO()
    shape = {"descr": "|u1", "fortran_order": False, "shape": (10**12, 8, 8)}
    np.lib.format.write_array_header_1_0(header, shape)
    with zipfile.ZipFile(tmp_path / "d.npz", "w") as archive:
        archive.writestr("images.npy", header.getvalue() + bytes(640))
    with pytest.raises(TargetError, match=r"images has the shape .* and 640 bytes"):
        open_at(tmp_path / "d.npz")


@pytest.mark.parametrize("data", [b"no array", b"\x93NUMPY\x03\x00\x00\x00", b"\x93NUMPY\x01\x00"])
def test_npz_with_a_damaged_header(tmp_path: Path, open_at: Any, data: bytes) -> None:
    with zipfile.ZipFile(tmp_path / "d.npz", "w") as archive:
        archive.writestr("images.npy", data)
    with pytest.raises(TargetError, match="the array images is damaged"):
        open_at(tmp_path / "d.npz")


WRITERS: dict[str, Callable[[Path], Path]] = {
    "folder": lambda tmp: write_folder(tmp / "d", pictures()),
    "zip": lambda tmp: write_zip(tmp / "d.zip", pictures()),
    "tar": lambda tmp: write_tar(tmp / "d.tar", pictures()),
    "shards": lambda tmp: write_shards(tmp / "d", pictures()),
    "parquet": lambda tmp: write_parquet(tmp / "d", pictures()),
    "npz": lambda tmp: write_npz(tmp / "d.npz", pictures()),
}


@pytest.mark.parametrize("layout", WRITERS)
def test_counts_and_bytes_are_capped_in_every_layout(
    tmp_path: Path, open_at: Any, layout: str
) -> None:
    path = WRITERS[layout](tmp_path)
    with pytest.raises(TargetError, match="over the limit max_examples = 8"):
        open_at(path, limits=Limits(max_examples=8))
    with pytest.raises(TargetError, match="over the limit max_bytes = 900"):
        open_at(path, limits=Limits(max_bytes=900))


@pytest.mark.parametrize("layout", sorted(set(WRITERS) - {"npz"}))
def test_an_image_of_too_many_bytes_is_broken(tmp_path: Path, open_at: Any, layout: str) -> None:
    with pytest.raises(BrokenExamples, match=r"30 of 30 .* over Limits.max_example_bytes = 10"):
        open_at(WRITERS[layout](tmp_path), limits=Limits(max_example_bytes=10))


def test_npz_images_of_too_many_pixels(tmp_path: Path, open_at: Any) -> None:
    with pytest.raises(TargetError, match=r"images of 8x8 .*Limits.max_values = 63"):
        open_at(WRITERS["npz"](tmp_path), limits=Limits(max_values=63))
