"""A checkpoint on its way in: what is said of it, and a look at its header as it arrives."""

from typing import Annotated, Any

from pydantic import BeforeValidator
from sqlalchemy.orm import Session, undefer

from app.fields import Classes, UploadId, Uri
from app.intake.receiving import parse_json
from app.schemas import SourceCreate
from grasp_core.content import PIECE, ContentDigest
from registry.blobs.base import BlobWriter
from registry.blobs.safetensors_header import Header, HeaderReader
from registry.lookup import find_named
from registry.sources import check_fit, read_classes, require_usable
from registry.tables import Model


def _from_json(value: Any) -> Any:
    """A form field or query parameter holds a list as JSON."""
    if not isinstance(value, str):
        return value
    try:
        return parse_json(value)
    except ValueError:
        raise ValueError('must be a JSON list of names, such as ["F", "M"]') from None


class SourceFields(SourceCreate):
    """What comes beside the bytes, in whichever way they come."""

    uri: Uri | None = None
    upload: UploadId | None = None
    classes: Annotated[Classes | None, BeforeValidator(_from_json)] = None


class CheckpointInspector:
    """Reads the header once it has arrived; compares it with the model, if that is known by then.

    The header is not kept, which may be large and last as long as the upload: where it is compared
    later, it is read again from what was written.
    """

    def __init__(
        self, filename: str, model: Model | None = None, fields: SourceFields | None = None
    ) -> None:
        self.filename = filename
        self._reader = HeaderReader(filename)
        self._known = (model, fields) if model is not None and fields is not None else None
        self._compared: SourceFields | None = None

    @property
    def takes_long(self) -> bool:
        return self._reader.large

    def feed(self, data: bytes) -> bool:
        return self._reader.feed(data)

    def look(self, writer: BlobWriter) -> None:
        self._check(self._reader.read(writer.read))

    def finish(self) -> None:
        self._reader.finish()

    def compare(self, writer: BlobWriter, model: Model, fields: SourceFields) -> None:
        """Raises CheckpointMismatch. Of a model that is not prepared yet nothing is known."""
        self._compare(self._reader.read(writer.read), model, fields)

    def has_compared(self, fields: SourceFields) -> bool:
        """A manifest never changes, and is compared once."""
        known = self._compared
        return known is not None and (known.model, known.classes) == (fields.model, fields.classes)

    def _check(self, header: Header) -> None:
        if self._known is not None:
            self._compare(header, *self._known)
        else:
            read_classes(header, self.filename)

    def _compare(self, header: Header, model: Model, fields: SourceFields) -> None:
        check_fit(model, header, fields.classes, self.filename)
        if model.manifest is not None:
            self._compared = fields


class SourceInspector(CheckpointInspector):
    """Digests the tensors too, as they pass; of the header it keeps a hundred bytes for each."""

    _digest: ContentDigest | None = None

    def feed(self, data: bytes) -> bool:
        ready = super().feed(data)
        if self._digest is not None:
            self._digest.feed(data)
        return ready

    def look(self, writer: BlobWriter) -> None:
        header = self._reader.read(writer.read)
        self._check(header)
        self._digest = ContentDigest(header.tensors, header.offsets)
        for first in range(header.start, writer.size, PIECE):  # what came with the header's end
            self._digest.feed(writer.read(first, PIECE))

    @property
    def content(self) -> str:
        """What the weights are, whatever file they came in; once it is complete."""
        assert self._digest  # noqa: S101 - a complete file has a header
        return self._digest.hexdigest()


def find_model(session: Session, owner: str, reference: str) -> Model:
    """With its manifest. Raises NotFound, and Conflict if it could not be prepared."""
    found = find_named(session, Model, owner, reference)
    require_usable(found)
    whole = undefer(Model.manifest)
    return session.get_one(Model, found.id, options=[whole], populate_existing=True)
