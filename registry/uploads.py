"""Uploads: files that arrive in parts (tus), each a blob, until something is made of the whole.

The offset of an upload moves by compare-and-set: of two requests that bring the same bytes, one
does. So what `received` counts is always there, once, and in order.
"""

import hashlib
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import CursorResult, and_, delete, select
from sqlalchemy.orm import Session

from registry.blobs.base import Blob, BlobStore, refuse_damaged, storage_errors
from registry.blobs.damage import forget_problems
from registry.errors import NotFound, OffsetMismatch, UploadUnfinished
from registry.jobs.transitions import change
from registry.lookup import new_id
from registry.tables import Upload, UploadPart

READ_BYTES = 2**20


def create_upload(
    session: Session, owner: str, size: int, details: dict[str, Any], expires_at: datetime
) -> Upload:
    """An upload of which nothing has arrived yet."""
    upload = Upload(
        id=new_id("upl"), owner=owner, size=size, details=details, expires_at=expires_at
    )
    session.add(upload)
    session.flush()
    return upload


def find_upload(session: Session, owner: str, upload_id: str, now: datetime) -> Upload:
    """The owner's upload, unless its time is over. Raises NotFound."""
    mine = select(Upload).where(Upload.id == upload_id, Upload.owner == owner)
    upload = session.scalar(mine.where(Upload.expires_at > now))
    if upload is None:
        raise _gone(upload_id)
    return upload


def require_offset(upload: Upload, offset: int) -> None:
    """Raise OffsetMismatch unless the next byte of the upload is that at `offset`."""
    if upload.received != offset:
        raise _mismatch(upload, offset)


def append_part(
    session: Session, upload_id: str, offset: int, blob: Blob | None, expires_at: datetime
) -> Upload:
    """Let the upload go on by a blob, or by nothing, and last longer; as it is then.

    Raises OffsetMismatch if another request was faster, NotFound if the upload is gone.
    """
    size = blob.size if blob else 0
    at_offset = and_(Upload.id == upload_id, Upload.received == offset)
    values = {"received": offset + size, "expires_at": expires_at}
    moved = change(session, Upload, at_offset, values)
    upload = session.get(Upload, upload_id, populate_existing=True)
    if upload is None:
        raise _gone(upload_id)
    if not moved:
        raise _mismatch(upload, offset)
    if blob is not None:
        part = UploadPart(upload_id=upload_id, offset=offset, size=size, sha256=blob.sha256)
        session.add(part)
        forget_problems(session, [blob.sha256])
    return upload


def finished_parts(session: Session, upload: Upload) -> Sequence[UploadPart]:
    """All of a finished upload, in order. Raises UploadUnfinished."""
    missing = upload.size - upload.received
    if missing:
        raise UploadUnfinished(
            f"{missing} of the upload's {upload.size} bytes are missing",
            hint=f"send them with PATCH {_path(upload)} and Upload-Offset: {upload.received}",
        )
    of_upload = select(UploadPart).where(UploadPart.upload_id == upload.id)
    return session.scalars(of_upload.order_by(UploadPart.offset)).all()


def read_parts(store: BlobStore, parts: Sequence[UploadPart]) -> Iterator[bytes]:
    """The bytes of the parts, piece by piece. Raises BlobMissing, BlobDamaged."""
    for part in parts:
        digest = hashlib.sha256()
        with storage_errors("read a blob"), store.fetch(part.sha256).open("rb") as file:
            while data := file.read(READ_BYTES):
                digest.update(data)
                yield data
        if digest.hexdigest() != part.sha256:
            refuse_damaged(part.sha256, digest.hexdigest())


def delete_upload(session: Session, upload_id: str) -> None:
    """Forget an upload and its parts; their bytes are collected. Raises NotFound."""
    result = session.execute(delete(Upload).where(Upload.id == upload_id))
    assert isinstance(result, CursorResult)  # noqa: S101 - what a DELETE gives
    if not result.rowcount:
        raise _gone(upload_id)


def forget_uploads(session: Session, now: datetime) -> None:
    """Delete those whose time is over, finished or not."""
    session.execute(delete(Upload).where(Upload.expires_at <= now))


def _path(upload: Upload) -> str:
    return f"/uploads/{upload.id}"


def _mismatch(upload: Upload, offset: int) -> OffsetMismatch:
    return OffsetMismatch(
        f"the upload has {upload.received} bytes, and these begin at {offset}",
        hint=f"go on with Upload-Offset: {upload.received}, as HEAD {_path(upload)} says",
    )


def _gone(upload_id: str) -> NotFound:
    return NotFound(
        f"there is no upload {upload_id!r}",
        hint="if there was one, it was made a source or a target, deleted, or has expired: "
        "GET /uploads lists those you have",
        kind="upload",
        name=upload_id,
    )
