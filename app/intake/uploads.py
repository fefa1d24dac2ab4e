"""Uploads in parts: their bytes on the way in, and out again to what is made of them."""

from collections.abc import AsyncIterator, Sequence
from datetime import datetime, timedelta

from fastapi.concurrency import iterate_in_threadpool, run_in_threadpool
from sqlalchemy.orm import Session
from starlette.requests import ClientDisconnect, Request

from app.errors import TooLarge
from app.intake.checkpoints import CheckpointInspector, SourceFields, find_model
from app.intake.multipart import plain_name
from app.intake.receiving import Reception, batched, validated
from app.intake.tus import Checksum, read_metadata
from app.service import Service
from registry.blobs.base import BlobMissing, BlobWriter
from registry.tables import Upload, UploadPart, utc_now
from registry.uploads import append_part, find_upload, finished_parts, read_parts

PIECE_BYTES = 32 * 2**20  # what a crash of the server costs at most; longer than any header


class Arrival:
    """The bytes of one request, which continue an upload at its offset.

    They are kept in pieces, each a blob and a row, and so is what came before the connection was
    cut. Only those with a checksum are kept as a whole or not at all.
    """

    def __init__(
        self,
        service: Service,
        upload: Upload,
        *,
        checksum: Checksum | None = None,
        inspector: CheckpointInspector | None = None,
    ) -> None:
        self._service = service
        self._upload = upload
        self._checksum = checksum
        self._inspector = inspector  # of the first bytes
        self._ended = self._cut = False

    async def receive(self, request: Request) -> Upload:
        """Read the whole body; the upload as it is then.

        Raises what is wrong with it, and ClientDisconnect if there is nobody to answer.
        """
        length = request.headers.get("content-length", "")
        self._require_room(int(length) if length.isdecimal() else 0)
        chunks = batched(self._until_cut(request.stream()))
        while not self._ended:
            with self._service.store.create() as writer:
                await self._fill(writer, chunks)
                if self._checksum is None or not self._cut:
                    await run_in_threadpool(self._keep, writer)
        if self._cut:
            raise ClientDisconnect
        return self._upload

    async def _until_cut(self, chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """What arrived is worth the same, whether or not the rest did."""
        try:
            async for data in chunks:
                yield data
        except ClientDisconnect:
            self._cut = True

    async def _fill(self, writer: BlobWriter, chunks: AsyncIterator[bytes]) -> None:
        async for data in chunks:
            ready = await run_in_threadpool(self._store, writer, data)
            if ready and self._inspector is not None:
                await self._service.turns.run(
                    self._inspector.takes_long, self._inspector.look, writer
                )
            if writer.size >= PIECE_BYTES and self._checksum is None:
                return
        self._ended = True

    def _store(self, writer: BlobWriter, data: bytes) -> bool:
        self._require_room(writer.size + len(data))
        if self._checksum is not None:
            self._checksum.feed(data)
        ready = self._inspector is not None and self._inspector.feed(data)
        writer.write(data)
        return ready

    def _keep(self, writer: BlobWriter) -> None:
        if self._checksum is not None:
            self._checksum.finish()
        with self._service.store.guard():
            blob = writer.commit() if writer.size else None
            with self._service.database.write() as session:
                at, until = self._upload.received, next_expiry(self._service)
                self._upload = append_part(session, self._upload.id, at, blob, until)

    def _require_room(self, count: int) -> None:
        received, size = self._upload.received, self._upload.size
        if received + count > size:
            raise TooLarge(
                f"{received} and {count} bytes are more than the upload's {size}",
                hint="Upload-Length is the size of the whole file: begin a new upload with it",
            )


def next_expiry(service: Service) -> datetime:
    """Until when an upload that got something now is kept."""
    return utc_now() + timedelta(seconds=service.settings.upload_expiry_seconds)


def inspector_of(session: Session, upload: Upload) -> CheckpointInspector | None:
    """With a model in its metadata, a checkpoint of another one is refused by its first bytes.

    Raises NotFound if there is no such model, Conflict if it could not be prepared.
    """
    metadata = metadata_of(upload)
    if "model" not in metadata:
        return None
    known = {key: value for key, value in metadata.items() if key in ("model", "classes")}
    fields = validated(SourceFields, known)
    model = find_model(session, upload.owner, fields.model)
    return CheckpointInspector(filename_of(upload), model, fields)


def metadata_of(upload: Upload) -> dict[str, str]:
    return read_metadata(upload.details["metadata"])


def filename_of(upload: Upload) -> str:
    return plain_name(metadata_of(upload).get("filename", "")) or "upload"


async def take_upload(
    reception: Reception, part: str, service: Service, owner: str, upload_id: str
) -> None:
    """Receive the bytes of a finished upload. Raises NotFound, UploadUnfinished."""

    def open_upload() -> tuple[Upload, Sequence[UploadPart]]:
        with service.database.read() as session:
            upload = find_upload(session, owner, upload_id, utc_now())
            return upload, finished_parts(session, upload)

    upload, parts = await run_in_threadpool(open_upload)
    try:
        pieces = iterate_in_threadpool(read_parts(service.store, parts))
        await reception.take(part, pieces, filename_of(upload))
    except BlobMissing:
        await run_in_threadpool(open_upload)  # deleted meanwhile: then it is not the store's fault
        raise
