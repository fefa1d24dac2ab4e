"""Files are either whole or not there."""

import errno
import hashlib
from pathlib import Path

import pytest

from grasp_core.files import atomic_write, link_file, sha256_file


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_finished_block_leaves_the_whole_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "file.bin"

    with atomic_write(path) as file:
        file.write(b"one")
        file.write(b"two")

    assert path.read_bytes() == b"onetwo"
    assert names(path.parent) == ["file.bin"]


def test_the_file_cannot_be_seen_before_the_block_ends(tmp_path: Path) -> None:
    path = tmp_path / "file.bin"

    with atomic_write(path) as file:
        file.write(b"half")
        file.flush()
        assert not path.exists()

    assert path.read_bytes() == b"half"


def test_an_error_keeps_the_old_file_and_leaves_no_temporary_one(tmp_path: Path) -> None:
    path = tmp_path / "file.bin"
    path.write_bytes(b"old")

    with pytest.raises(TypeError), atomic_write(path) as file:
        file.writelines([b"new", None])  # type: ignore[list-item]

    assert path.read_bytes() == b"old"
    assert names(tmp_path) == ["file.bin"]


def test_two_writers_of_one_file_do_not_mix(tmp_path: Path) -> None:
    path = tmp_path / "file.bin"

    with atomic_write(path) as first, atomic_write(path) as second:
        first.write(b"first")
        second.write(b"2nd")

    assert path.read_bytes() == b"first"  # whose block ended last
    assert names(tmp_path) == ["file.bin"]


def test_sha256_is_that_of_the_bytes(tmp_path: Path) -> None:
    path = tmp_path / "file.bin"
    path.write_bytes(b"x" * 3_000_000)

    assert sha256_file(path) == hashlib.sha256(b"x" * 3_000_000).hexdigest()


@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_file_has_a_second_name_on_any_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, elsewhere: bool
) -> None:
    def refuse(self: Path, target: Path) -> None:
        raise OSError(errno.EXDEV, "another file system")

    path, linked = tmp_path / "file.bin", tmp_path / "disk" / "linked.bin"
    path.write_bytes(b"content")
    linked.parent.mkdir()
    linked.write_bytes(b"of an attempt before")
    if elsewhere:
        monkeypatch.setattr(Path, "hardlink_to", refuse)

    link_file(path, linked)

    assert path.read_bytes() == linked.read_bytes() == b"content"
    assert path.samefile(linked) is not elsewhere
    assert names(linked.parent) == ["linked.bin"]
