"""Uploads in parts: the offset moves by one request at a time, and parts live as their upload."""

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import func, select

from registry import uploads
from registry.blobs.base import BlobDamaged, BlobMissing
from registry.blobs.collection import is_referenced
from registry.blobs.local import LocalBlobStore
from registry.errors import NotFound, OffsetMismatch, UploadUnfinished
from registry.tables import Upload, UploadPart
from tests.registry.conftest import START, World, blob

DAY = timedelta(days=1)


def begin(world: World, size: int, owner: str = "ann") -> str:
    with world.database.write() as session:
        return uploads.create_upload(session, owner, size, {}, world.now + DAY).id


def append(world: World, upload: str, offset: int, content: str | None) -> Upload:
    part = None if content is None else blob(content)
    with world.database.write() as session:
        return uploads.append_part(session, upload, offset, part, world.now + DAY)


def find(world: World, upload: str, owner: str = "ann") -> Upload:
    with world.database.read() as session:
        return uploads.find_upload(session, owner, upload, world.now)


def parts(world: World, upload: str) -> list[str]:
    with world.database.read() as session:
        found = uploads.finished_parts(session, session.get_one(Upload, upload))
        return [part.sha256 for part in found]


def count_parts(world: World) -> int:
    with world.database.read() as session:
        return session.scalar(select(func.count()).select_from(UploadPart)) or 0


def test_parts_follow_each_other(world: World) -> None:
    upload = begin(world, 6)
    assert append(world, upload, 0, "ab").received == 2
    assert append(world, upload, 2, "cde").received == 5
    with pytest.raises(UploadUnfinished, match="1 of the upload's 6") as caught:
        parts(world, upload)
    assert caught.value.hint
    assert f"/uploads/{upload}" in caught.value.hint
    assert "Upload-Offset: 5" in caught.value.hint

    assert append(world, upload, 5, "f").received == 6

    assert parts(world, upload) == [blob(content).sha256 for content in ("ab", "cde", "f")]


def test_only_the_next_bytes_are_taken(world: World) -> None:
    upload = begin(world, 9)
    append(world, upload, 0, "abc")
    before = world.rows()
    for offset in (0, 2, 4):
        with pytest.raises(OffsetMismatch, match="has 3 bytes"):
            append(world, upload, offset, "x")
    assert world.rows() == before


def test_nothing_is_a_part_too(world: World) -> None:
    upload = begin(world, 3)
    append(world, upload, 0, None)
    append(world, upload, 0, "abc")
    append(world, upload, 3, None)
    append(world, upload, 3, None)
    with pytest.raises(OffsetMismatch):
        append(world, upload, 2, None)
    assert parts(world, upload) == [blob("abc").sha256]


def test_the_same_bytes_twice_are_two_parts(world: World) -> None:
    upload = begin(world, 4)
    append(world, upload, 0, "ab")
    append(world, upload, 2, "ab")
    assert parts(world, upload) == [blob("ab").sha256] * 2


def test_of_requests_at_once_one_wins(world: World) -> None:
    upload = begin(world, 100)
    together = threading.Barrier(6)

    def send(thread: int) -> str | None:
        together.wait()
        try:
            append(world, upload, 0, f"from {thread}")
        except OffsetMismatch:
            return None
        return f"from {thread}"

    with ThreadPoolExecutor(6) as pool:
        sent = [content for content in pool.map(send, range(6)) if content]

    assert len(sent) == 1
    assert find(world, upload).received == len(sent[0])
    with world.database.read() as session:
        assert session.scalars(select(UploadPart.sha256)).all() == [blob(sent[0]).sha256]


def test_strangers_and_the_late_find_nothing(world: World) -> None:
    upload = begin(world, 3)
    assert find(world, upload).owner == "ann"
    with pytest.raises(NotFound):
        find(world, upload, "bob")
    world.later(DAY.total_seconds())
    with pytest.raises(NotFound):
        find(world, upload)


def test_every_part_gives_it_more_time(world: World) -> None:
    upload, left = begin(world, 3), begin(world, 3)
    world.later(DAY.total_seconds() - 1)
    append(world, upload, 0, "a")
    world.later(1)

    with world.database.write() as session:
        uploads.forget_uploads(session, world.now)

    assert find(world, upload).expires_at == START + 2 * DAY - timedelta(seconds=1)
    with world.database.read() as session:
        assert session.get(Upload, left) is None


def test_bytes_are_kept_as_long_as_their_upload(world: World) -> None:
    kept, expired, deleted = (begin(world, 9) for _ in range(3))
    for upload in (expired, deleted):
        append(world, upload, 0, f"of {upload}"[-6:])
    append(world, kept, 0, "kept")

    def needed(content: str) -> bool:
        with world.database.read() as session:
            return is_referenced(session, blob(content).sha256)

    names = ["kept", f"of {expired}"[-6:], f"of {deleted}"[-6:]]
    assert [needed(name) for name in names] == [True, True, True]
    with world.database.write() as session:
        uploads.delete_upload(session, deleted)
    world.later(DAY.total_seconds() - 1)
    append(world, kept, 4, None)
    world.later(1)
    with world.database.write() as session:
        uploads.forget_uploads(session, world.now)

    assert [needed(name) for name in names] == [True, False, False]
    assert count_parts(world) == 1


def test_what_is_gone_cannot_go_on(world: World) -> None:
    upload = begin(world, 3)
    with world.database.write() as session:
        uploads.delete_upload(session, upload)
    with pytest.raises(NotFound):
        append(world, upload, 0, "abc")
    with pytest.raises(NotFound), world.database.write() as session:
        uploads.delete_upload(session, upload)
    assert count_parts(world) == 0


def test_parts_are_read_in_order_and_verified(world: World, tmp_path: Path) -> None:
    store = LocalBlobStore(tmp_path / "blobs")
    upload = begin(world, 6)
    for offset, content in ((0, "abc"), (3, "de"), (5, "f")):
        with store.create() as writer:
            writer.write(content.encode())
            writer.commit()
        append(world, upload, offset, content)

    def read() -> bytes:
        with world.database.read() as session:
            found = uploads.finished_parts(session, session.get_one(Upload, upload))
        return b"".join(uploads.read_parts(store, found))

    assert read() == b"abcdef"
    damaged = store.fetch(blob("de").sha256)
    damaged.chmod(0o644)
    damaged.write_text("dE")
    with pytest.raises(BlobDamaged):
        read()
    damaged.unlink()
    with pytest.raises(BlobMissing):
        read()
