"""Bytes on their way into the blob store: streamed, counted, hashed and looked at as they come."""

import base64
import binascii
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack
from functools import partial
from typing import Any, NamedTuple, Protocol, Self, TypeVar

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
MAX_KEYS = 25_000  # each that is unknown is a mistake to report, and a kilobyte of memory
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


class Received(NamedTuple):
    """A file that came, or comes."""

    filename: str
    writer: BlobWriter


class Reception:
    """One request's files, and the fields that came with them: in a form, a raw body, or elsewhere.

    `parts` are the names of the form's files; the first of them may be the whole body instead.
    `begin` is called with such a name and a file's just before its first byte: it can refuse the
    request, and gives the inspector of the bytes. What was written is gone at the end of the
    context, unless it was committed.
    """

    def __init__(
        self,
        service: Service,
        fields: dict[str, Any],
        begin: Callable[[str, str], Awaitable[Inspector | None]],
        parts: tuple[str, ...] = ("file",),
    ) -> None:
        self.fields = fields  # all that came so far
        self.files: dict[str, Received] = {}
        self._parts = parts
        self._service = service
        self._max_bytes = service.settings.max_upload_bytes
        self._begin = begin
        self._exits = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: Any) -> None:
        self._exits.__exit__(*error)
        del self._begin  # whose owner holds this: megabytes would stay until a circle is found

    async def receive(self, request: Request) -> None:
        """Read the whole body. Raises what is wrong with it as soon as that is known."""
        length = request.headers.get("content-length")
        part = self._parts[0]
        if is_type(request, "multipart/form-data"):
            self._check_length(length, FORM_BYTES, files=len(self._parts))
            await self._receive_multipart(request.headers["content-type"], request.stream())
        else:
            self._check_length(length)
            expected = _digests(request)
            await self._take(part, request.stream(), "upload")
            for digest in expected:
                self.check_digest(part, digest)
        self.check_digest(part, self.fields.get("sha256"))

    async def _receive_multipart(self, content_type: str, body: AsyncIterator[bytes]) -> None:
        async for part in read_parts(content_type, body):
            if part.name in ("uri", "upload"):
                hint = f"send JSON with the {part.name} instead"
                raise Unusable(f"{part.name} cannot be part of a form", hint=hint)
            if part.name not in self._parts:
                self.fields[part.name] = await part.text()
                self._check_fields()
            elif part.name not in self.files:
                await self._take(part.name, part.chunks(), part.filename or "upload")
            else:
                raise Unusable(
                    f"the form has two parts named {part.name}", hint="send one file at a time"
                )

    def _check_fields(self) -> None:
        size = sum(len(name) + len(str(value)) for name, value in self.fields.items())
        if size > FIELDS:
            raise TooLarge(
                f"the fields of the form have more than {FIELDS} characters",
                hint="send the file in an upload, and JSON with its id, which may be longer",
            )

    async def fetch(self, part: str, uri: str) -> str:
        """Take the bytes from where the uri says; the uri as it was checked. Raises FetchError."""
        async with open_uri(uri, self._service.fetching) as fetched:
            self._check_length(fetched.size)
            await self.take(part, fetched.chunks, fetched.filename)
            return fetched.uri

    async def take(self, part: str, chunks: AsyncIterator[bytes], filename: str) -> None:
        """Take bytes that come from elsewhere than the request's body."""
        await self._take(part, chunks, filename)
        if part == self._parts[0]:
            self.check_digest(part, self.fields.get("sha256"))

    async def _take(self, part: str, chunks: AsyncIterator[bytes], filename: str) -> None:
        inspector = await self._begin(part, filename)
        writer = self._exits.enter_context(self._service.store.create())
        self.files[part] = Received(filename, writer)
        async for data in batched(chunks):
            ready = await run_in_threadpool(self._store, writer, data, inspector)
            if ready and inspector is not None:
                await self._service.turns.run(inspector.takes_long, inspector.look, writer)
        if not writer.size:
            raise Unusable("the file is empty", hint="it was cut off, or not found: send it again")
        if inspector is not None:
            inspector.finish()

    def _store(self, writer: BlobWriter, data: bytes, inspector: Inspector | None) -> bool:
        ready = inspector is not None and inspector.feed(data)
        self._check_length(writer.size + len(data))
        writer.write(data)
        return ready

    def _check_length(self, length: int | str | None, more: int = 0, files: int = 1) -> None:
        limit = files * self._max_bytes + more
        if length is not None and str(length).isdecimal() and int(length) > limit:
            raise too_large(self._max_bytes)

    def check_digest(self, part: str, expected: str | None) -> None:
        """Raises DigestMismatch if the file came and has another sha256 than `expected`."""
        if expected is None or part not in self.files:
            return
        found = self.files[part].writer.sha256()
        if expected != found:
            raise DigestMismatch(
                f"the bytes that arrived have sha256 {found}, not {expected}",
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


def validated(schema: type[Fields], values: dict[str, Any]) -> Fields:
    """Fields of a body that FastAPI did not read itself; errors look as if it had."""
    try:
        return schema.model_validate(values)
    except ValidationError as error:
        raise wrong_values(error, "body") from error


def wrong_values(error: ValidationError, *where: str) -> RequestValidationError:
    """As FastAPI would report values that were found there."""
    return RequestValidationError([{**e, "loc": (*where, *e["loc"])} for e in error.errors()])


def wrong_value(message: str, value: object, *where: str) -> RequestValidationError:
    """Of one that is wrong for a reason that no schema knows."""
    return RequestValidationError(
        [{"type": "value_error", "loc": where, "msg": message, "input": value}]
    )


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
