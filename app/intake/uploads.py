"""Uploads in parts, by tus 1.0.0 (https://tus.io): its headers, their bytes on the way in, and out
again to what is made of them.

GraspError
├── UnsupportedTus          412: a client that speaks another version
├── UnsupportedMediaType    415: bytes that are not announced as tus wants it
├── InvalidChecksum         400: an Upload-Checksum that cannot be verified
└── ChecksumMismatch        460: one that does not hold
"""

import base64
import binascii
import hashlib
from collections.abc import AsyncIterator, Sequence
from datetime import datetime, timedelta
from typing import Annotated

from fastapi import Depends, Header
from fastapi.concurrency import iterate_in_threadpool, run_in_threadpool
from sqlalchemy.orm import Session
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.access.auth import CallerDep
from app.errors import TooLarge
from app.intake.checkpoints import CheckpointInspector, SourceFields, find_model
from app.intake.multipart import plain_name
from app.intake.receiving import Reception, batched, validated
from app.service import Service
from grasp_core.errors import GraspError
from registry.blobs.base import BlobMissing, BlobWriter
from registry.errors import Unusable
from registry.tables import Upload, UploadPart, utc_now
from registry.uploads import append_part, find_upload, finished_parts, read_parts

PATH = "/uploads"
VERSION = "1.0.0"
EXTENSIONS = "creation,creation-with-upload,expiration,checksum,termination"
ALGORITHMS = ("sha256", "sha1")
MEDIA_TYPE = "application/offset+octet-stream"
# Clients that are generated from the OpenAPI document know no such type; to them it is just bytes.
MEDIA_TYPES = (MEDIA_TYPE, "application/octet-stream")
OVERRIDE = "x-http-method-override"


class UnsupportedTus(GraspError):
    code = "unsupported_tus"


class UnsupportedMediaType(GraspError):
    code = "unsupported_media_type"


class InvalidChecksum(GraspError):
    code = "invalid_checksum"


class ChecksumMismatch(GraspError):
    code = "checksum_mismatch"


class TusHeaders:
    """Around everything below /uploads: each answer says which version is spoken, and a POST may
    stand for another method, for clients that know no PATCH."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not f"{scope['path']}/".startswith(f"{PATH}/"):
            await self.app(scope, receive, send)
            return

        async def send_with_version(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers["Tus-Resumable"] = headers["Tus-Version"] = VERSION
            await send(message)

        meant = Headers(scope=scope).get(OVERRIDE) if scope["method"] == "POST" else None
        scope = {**scope, "method": meant.upper()} if meant else scope
        await self.app(scope, receive, send_with_version)


def require_version(
    _caller: CallerDep,
    tus_resumable: Annotated[
        str | None,
        Header(
            description=f"The version of tus that you speak: {VERSION}.",
            json_schema_extra={"const": VERSION},
        ),
    ] = None,
) -> None:
    """Raises UnsupportedTus; whoever names no version is taken at their word."""
    if tus_resumable not in (None, VERSION):
        raise UnsupportedTus(
            f"this server speaks tus {VERSION}, not {tus_resumable[:20]!r}",
            hint=f"send Tus-Resumable: {VERSION}",
        )


VersionChecked = Depends(require_version)


class Checksum:
    """What Upload-Checksum says of a request's bytes; looks at them as they pass."""

    def __init__(self, header: str) -> None:
        """Raises InvalidChecksum."""
        algorithm, _, expected = header.partition(" ")
        if algorithm not in ALGORITHMS:
            known = " and ".join(ALGORITHMS)
            raise InvalidChecksum(f"the checksum {header[:100]!r} is not one of {known}")
        try:
            self._expected = base64.b64decode(expected, validate=True)
        except binascii.Error as error:
            raise InvalidChecksum(f"the checksum {header[:100]!r} is not in base64") from error
        self._algorithm = algorithm
        self._digest = hashlib.new(algorithm)

    def feed(self, data: bytes) -> None:
        self._digest.update(data)

    def finish(self) -> None:
        """Raises ChecksumMismatch."""
        if self._digest.digest() != self._expected:
            found = base64.b64encode(self._digest.digest()).decode()
            raise ChecksumMismatch(
                f"the bytes that arrived have the {self._algorithm} checksum {found}",
                hint="they were changed on their way, and not kept: send them again",
            )


def read_metadata(header: str) -> dict[str, str]:
    """Upload-Metadata: keys, and values in base64, which must be text here. Raises Unusable."""
    found: dict[str, str] = {}
    for pair in header.split(",") if header.strip() else ():
        key, _, value = pair.strip().partition(" ")
        try:
            text = base64.b64decode(value.strip(), validate=True).decode()
        except ValueError as error:  # also binascii.Error and UnicodeDecodeError
            raise _unreadable(f"the value of {key!r} is not UTF-8 text in base64") from error
        if not key or key in found:
            raise _unreadable(f"the key {key!r} is there twice" if key else "a key is empty")
        found[key] = text
    return found


def _unreadable(why: str) -> Unusable:
    return Unusable(
        f"the Upload-Metadata header cannot be understood: {why}",
        hint="write key and base64 of the value, separated by a space; pairs by a comma",
    )


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
