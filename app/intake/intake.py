"""The way in, for sources, targets and models alike: receive → replay → commit → write.

A request brings a file (in a form, as its body, from a uri or as a finished upload) and what is
said of it. The bytes are checked as they come; a request that was answered before is answered as
before; then the bytes become a blob and the rows that need it are written, in one transaction.
What is refused leaves nothing.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

from fastapi import Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import JSONResponse
from sqlalchemy.orm import Session

from app.intake.checkpoints import SourceFields
from app.intake.idempotency import Created, Once
from app.intake.receiving import Fields, Inspector, Reception, is_type, read_json
from app.intake.uploads import take_upload
from app.schemas import TargetFields
from app.service import Service
from registry.blobs.base import Blob
from registry.errors import Unusable
from registry.uploads import delete_upload

Located = TypeVar("Located", SourceFields, TargetFields)


class Place(NamedTuple):
    """Where the bytes are that a JSON body refers to."""

    uri: str | None = None
    upload: str | None = None


class Intake(ABC, Generic[Fields]):
    """One request on its way from bytes to rows; its subclasses say what differs."""

    parts: ClassVar[tuple[str, ...]] = ("file",)  # what its files are called
    early: ClassVar[str]  # with this field before a file, a request can be refused at once
    raw: ClassVar[bool] = True  # whether a body that is neither form nor JSON is the file itself
    keeps_uploads = False

    def __init__(
        self,
        request: Request,
        service: Service,
        once: Once,
        given: Mapping[str, str | None] | None = None,
    ) -> None:
        """`given` are the fields of a raw body, from its query."""
        self.service = service
        self.once = once
        self.request_id: str = request.state.request_id
        known = {name: value for name, value in (given or {}).items() if value is not None}
        self.reception = Reception(service, known, self._begin, self.parts)
        self.is_json = is_type(request, "application/json") or not (
            self.raw or is_type(request, "multipart/form-data")
        )
        self.uris: dict[str, str] = {}  # where files were found, as it was checked
        self.uploads: dict[str, str] = {}  # which files they are
        self._request = request
        self._parsed: tuple[dict[str, Any], Fields] | None = None
        self._checked: Fields | None = None

    @abstractmethod
    def parse(self, values: dict[str, Any]) -> Fields:
        """What was asked. Raises what is wrong with the values."""

    @abstractmethod
    async def locate(self, fields: Fields) -> Mapping[str, Place]:
        """Where the files are that did not come with the request, by part."""

    @abstractmethod
    def check(self, session: Session, fields: Fields) -> None:
        """Raises what is in the way of the rows: before the bytes are taken, if that is known."""

    @abstractmethod
    def write(self, session: Session, fields: Fields, blobs: Mapping[str, Blob]) -> Created:
        """The rows, and the answer."""

    def inspect(
        self,
        part: str,  # noqa: ARG002
        filename: str,  # noqa: ARG002
        fields: Fields | None,  # noqa: ARG002
    ) -> Inspector | None:
        """Who looks at a file's bytes as they come; `fields` where they came before it."""
        return None

    async def verify(self, fields: Fields) -> None:
        """What must hold of the whole, just before it is stored."""
        await run_in_threadpool(self._check, fields)

    async def answer(self) -> JSONResponse:
        """Raises what is wrong with the request as soon as it is known."""
        with self.reception:
            before = await self._receive() or await run_in_threadpool(self._replay)
            if before is not None:
                return before
            await self.verify(self.fields)
            return await run_in_threadpool(self._store)

    @property
    def fields(self) -> Fields:
        """Parsed once for all that came so far; parts of a form may come after its file."""
        values = self.reception.fields
        if self._parsed is None or self._parsed[0] != values:
            self._parsed = dict(values), self.parse(values)
        return self._parsed[1]

    async def _receive(self) -> JSONResponse | None:
        """Take the bytes; or find the answer that was given before, to uploads that are gone."""
        if self.is_json:
            await read_json(self._request, self.service, self._add)
        else:
            await self.reception.receive(self._request)
        places = await self.locate(self.fields)
        for part, place in places.items():
            if place.uri is not None:
                await self._check_early()  # before anybody else is asked
                self.uris[part] = await self.reception.fetch(part, place.uri)
        self.uploads = {part: place.upload for part, place in places.items() if place.upload}
        before = await run_in_threadpool(self._replay) if self.uploads else None
        if before is None:
            for part, upload in self.uploads.items():
                await take_upload(self.reception, part, self.service, self.once.owner, upload)
        return before

    def _add(self, values: dict[str, Any]) -> None:
        self.reception.fields.update(values)
        _ = self.fields  # large ones are validated where they are read

    async def _begin(self, part: str, filename: str) -> Inspector | None:
        if self.early not in self.reception.fields:
            return self.inspect(part, filename, None)
        await self._check_early()
        return self.inspect(part, filename, self.fields)

    async def _check_early(self) -> None:
        if self._checked is not self.fields:
            self._checked = self.fields
            await run_in_threadpool(self._check_unanswered, self.fields)

    def _check_unanswered(self, fields: Fields) -> None:
        with self.service.database.read() as session:
            if not self.once.is_answered(session):  # a taken name may be this request's own
                self.check(session, fields)

    def _check(self, fields: Fields) -> None:
        with self.service.database.read() as session:
            self.check(session, fields)

    def _content(self) -> dict[str, Any]:
        """What was asked: an upload by its id, which never stands for other bytes."""
        hashes: dict[str, str | None] = {"content": None}
        for part, received in self.reception.files.items():
            if part not in self.uploads:
                hashes["content" if part == "file" else part] = received.writer.sha256()
        return self.fields.model_dump(mode="json") | hashes

    def _replay(self) -> JSONResponse | None:
        with self.service.database.read() as session:
            return self.once.replay(session, self._content())

    def _store(self) -> JSONResponse:
        """Make the bytes safe, then the rows, in one transaction."""
        content = self._content()
        with self.service.store.guard():
            blobs = {part: got.writer.commit() for part, got in self.reception.files.items()}
            with self.service.database.write() as session:

                def act() -> Created:
                    created = self.write(session, self.fields, blobs)
                    for upload in self.uploads.values() if not self.keeps_uploads else ():
                        delete_upload(session, upload)
                    return created

                return self.once.run(session, content, act)


class FileIntake(Intake[Located]):
    """One that is about its file: a JSON body says where it is, any other brings it."""

    file_hint: ClassVar[str]

    async def locate(self, fields: Located) -> Mapping[str, Place]:
        if self.is_json:
            return {"file": _one_place(fields.uri, fields.upload)}
        if "file" not in self.reception.files:
            raise Unusable("no file was sent", hint=self.file_hint)
        return {}


def _one_place(uri: str | None, upload: str | None) -> Place:
    """JSON says where the bytes are, in one way."""
    if (uri is None) == (upload is None):
        raise Unusable(
            f"the JSON body has {'both uri and upload' if uri else 'neither uri nor upload'}",
            hint="give a file://, https:// or s3:// uri, or a finished upload, or send the file",
        )
    return Place(uri, upload)
