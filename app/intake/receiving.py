"""Bytes on their way into the blob store: streamed, counted, hashed and looked at as they come."""

import base64
import binascii
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack
from functools import partial
from typing import Any, Protocol, TypeVar

from fastapi import Request
from fastapi.concurrency import run_in_threadpool
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ValidationError

from app.access.auth import CallerDep
from app.errors import DigestMismatch, InvalidJson, TooLarge
from app.fetching.fetch import open_uri
from app.intake.multipart import read_parts
from app.service import Service, ServiceDep
from registry.blobs.base import BlobWriter
from registry.errors import Unusable

BATCH = 2**20  # bytes handed to a thread at once: switching costs more than copying
MAX_JSON = 2**20
SMALL_JSON = 2**16  # and less is read at once
MAX_KEYS = 25_000  # each that is unknown is a mistake to tell, and a kilobyte of memory
BATCHES = 16 * 2**20  # bytes of all batches that fill at once
SMALLEST_BATCH = 2**16
FORM_BYTES = 2**20  # what a form may hold besides its file: headers and boundaries too
FIELDS = 2**17  # characters of its fields and their names
Fields = TypeVar("Fields", bound=BaseModel)
Checked = TypeVar("Checked")
DIGEST = re.compile(r"sha-256=:([A-Za-z0-9+/=]*):")


class Inspector(Protocol):
    """Looks at bytes as they pass; `feed` and `look` raise to refuse the rest of them."""

    @property
    def takes_long(self) -> bool:
        """Whether `look` needs much time and memory."""
        ...

    def feed(self, data: bytes) -> bool:
        """Whether there is something to `look` at, once these bytes are written."""
        ...

    def look(self, writer: BlobWriter) -> None: ...
    def finish(self) -> None: ...


class Reception:
    """One request's file, and the fields that came with it: a form, a raw body, or by a uri.

    `begin` is called with the fields known so far, just before the first byte of the file: it can
    refuse the request, and gives the inspector of the bytes.
    """

    def __init__(
        self,
        service: Service,
        writer: BlobWriter,
        fields: dict[str, Any],
        begin: Callable[[dict[str, Any], str], Awaitable[Inspector | None]],
    ) -> None:
        self.writer = writer
        self.fields = fields
        self.filename: str | None = None  # None: no file came
        self._max_bytes = service.settings.max_upload_bytes
        self._policy = service.fetching
        self._turns = service.turns
        self._begin = begin

    async def receive(self, request: Request) -> None:
        """Read the whole body. Raises what is wrong with it as soon as that is known."""
        length = request.headers.get("content-length")
        if is_type(request, "multipart/form-data"):
            self._check_length(length, FORM_BYTES)
            await self._receive_multipart(request.headers["content-type"], request.stream())
        else:
            self._check_length(length)
            expected = _digests(request)
            await self._take(request.stream(), "upload")
            for digest in expected:
                self._check_digest(digest)
        if self.filename is not None:
            self._check_digest(self.fields.get("sha256"))

    async def _receive_multipart(self, content_type: str, body: AsyncIterator[bytes]) -> None:
        async for part in read_parts(content_type, body):
            if part.name in ("uri", "upload"):
                hint = f"send JSON with the {part.name} instead"
                raise Unusable(f"{part.name} cannot be part of a form", hint=hint)
            if part.name != "file":
                self.fields[part.name] = await part.text()
                self._check_fields()
            elif self.filename is None:
                await self._take(part.chunks(), part.filename or "upload")
            else:
                raise Unusable("the form has two parts named file", hint="send one file at a time")

    def _check_fields(self) -> None:
        size = sum(len(name) + len(str(value)) for name, value in self.fields.items())
        if size > FIELDS:
            raise TooLarge(
                f"the fields of the form have more than {FIELDS} characters",
                hint="send the file in an upload, and JSON with its id, which may be longer",
            )

    async def fetch(self, uri: str) -> None:
        """Take the bytes from where the uri says instead. Raises FetchError."""
        async with open_uri(uri, self._policy) as fetched:
            self._check_length(fetched.size)
            await self.take(fetched.chunks, fetched.filename)

    async def take(self, chunks: AsyncIterator[bytes], filename: str) -> None:
        """Take bytes that come from elsewhere than the request's body."""
        await self._take(chunks, filename)
        self._check_digest(self.fields.get("sha256"))

    async def _take(self, chunks: AsyncIterator[bytes], filename: str) -> None:
        self.filename = filename
        inspector = await self._begin(self.fields, filename)
        async for data in batched(chunks):
            ready = await run_in_threadpool(self._store, data, inspector)
            if ready and inspector is not None:
                await self._turns.run(inspector.takes_long, inspector.look, self.writer)
        if not self.writer.size:
            raise Unusable("the file is empty", hint="it was cut off, or not found: send it again")
        if inspector is not None:
            inspector.finish()

    def _store(self, data: bytes, inspector: Inspector | None) -> bool:
        ready = inspector is not None and inspector.feed(data)
        self._check_length(self.writer.size + len(data))
        self.writer.write(data)
        return ready

    def _check_length(self, length: int | str | None, more: int = 0) -> None:
        if length is not None and str(length).isdecimal() and int(length) > self._max_bytes + more:
            raise too_large(self._max_bytes)

    def _check_digest(self, expected: str | None) -> None:
        if expected is not None and expected != self.writer.sha256():
            raise DigestMismatch(
                f"the bytes that arrived have sha256 {self.writer.sha256()}, not {expected}",
                hint="the file was changed or damaged on its way: send it again",
            )


def too_large(max_bytes: int) -> TooLarge:
    return TooLarge(
        f"the upload is larger than {max_bytes} bytes",
        hint="an administrator can raise GRASP_MAX_UPLOAD_BYTES",
    )


def is_type(request: Request, media_type: str) -> bool:
    return request.headers.get("content-type", "").lower().startswith(media_type)


async def read_json(
    request: Request, service: Service, check: Callable[[dict[str, Any]], Checked]
) -> Checked:
    """What `check` makes of a JSON object. Raises InvalidJson, TooLarge, Busy.

    Where the object is large, both are done in turn: it can be made to take long, and much memory.
    """
    body = bytearray()
    with ExitStack() as room:
        async for data in request.stream():
            if len(body) <= SMALL_JSON < len(body) + len(data):
                room.enter_context(service.turns.room())
            body += data
            if len(body) > MAX_JSON:
                raise TooLarge(f"a JSON body may have {MAX_JSON} bytes")
        if len(body) <= SMALL_JSON:
            return check(_object(body))
        return await service.turns.run(True, lambda: check(_object(body)))


def _object(body: bytearray) -> dict[str, Any]:
    if body.count(b":") > MAX_KEYS:
        raise TooLarge(f"a JSON body may have {MAX_KEYS} keys and colons")
    try:
        value = parse_json(body)
    except ValueError as error:
        raise InvalidJson(f"the body is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise InvalidJson("the body is JSON, but not an object")
    return value


def parse_json(text: str | bytearray) -> Any:
    """Raises ValueError, also where Python would give up at the depth of it."""
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def json_body(schema: type[Fields]) -> Callable[..., Awaitable[Fields]]:
    """A dependency: the body as `schema`. FastAPI's own would read any size, before the key."""

    async def read(request: Request, service: ServiceDep, _caller: CallerDep) -> Fields:
        return await read_json(request, service, partial(validated, schema))

    return read


def require_one_place(uri: str | None, upload: str | None) -> None:
    """JSON says where the bytes are, in one way."""
    if (uri is None) == (upload is None):
        raise Unusable(
            f"the JSON body has {'both uri and upload' if uri else 'neither uri nor upload'}",
            hint="give a file://, https:// or s3:// uri, or a finished upload, or send the file",
        )


def validated(schema: type[Fields], values: dict[str, Any]) -> Fields:
    """Fields of a body that FastAPI did not read itself; errors look as if it had."""
    try:
        return schema.model_validate(values)
    except ValidationError as error:
        raise wrong_values(error, "body") from error


def wrong_values(error: ValidationError, *where: str) -> RequestValidationError:
    """As FastAPI would tell it of values that were found there."""
    return RequestValidationError([{**e, "loc": (*where, *e["loc"])} for e in error.errors()])


async def batched(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The same bytes in larger pieces; the first as it comes, so that a look at it costs little.

    The more of them fill at once, the smaller they are.
    """
    waiting = bytearray()
    first = True
    mine = object()
    _filling.add(mine)
    try:
        async for data in chunks:
            waiting += data
            share = max(SMALLEST_BATCH, min(BATCH, BATCHES // len(_filling)))
            if len(waiting) >= share or (first and waiting):
                first = False
                yield bytes(waiting)
                waiting.clear()
    finally:
        _filling.discard(mine)
    if waiting:
        yield bytes(waiting)


_filling: set[object] = set()  # the batches of this process that fill


def _digests(request: Request) -> list[str]:
    """The sha256 that headers announce (RFC 9530), in hex; other algorithms are passed over.

    Raises Unusable: who sends a digest believes that it is verified.
    """
    given = [(name, request.headers.get(name, "")) for name in ("repr-digest", "content-digest")]
    return [_hex(value, name) for name, value in given if "sha-256" in value]


def _hex(value: str, name: str) -> str:
    found = DIGEST.search(value)
    try:
        return base64.b64decode(found[1] if found else "?", validate=True).hex()
    except binascii.Error as error:
        hint = "write sha-256=:…: with the digest in base64"
        raise Unusable(f"the {name} header cannot be understood: {value!r}", hint=hint) from error
