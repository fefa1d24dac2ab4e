"""A checkpoint on its way in: what is said of it, and a look at its header as it arrives."""

from typing import Annotated, Any

from pydantic import BeforeValidator
from sqlalchemy.orm import Session, undefer

from app.fields import Classes, UploadId, Uri
from app.receiving import parse_json
from app.schemas import SourceCreate
from registry.lookup import find_named
from registry.safetensors_header import Header, HeaderReader
from registry.sources import check_fit, require_usable
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
    """Reads the header as it arrives; compares it with the model as soon as both are known."""

    def __init__(self, filename: str, model: Model | None, fields: SourceFields | None) -> None:
        self.reader = HeaderReader(filename)
        self.filename = filename
        self.model = model
        self.fields = fields

    def feed(self, data: bytes) -> None:
        header = self.reader.feed(data)
        if header is not None and self.model is not None and self.fields is not None:
            check_fit(self.model, header, self.fields.classes, self.filename)

    def finish(self) -> Header:
        return self.reader.finish()


def find_model(session: Session, owner: str, reference: str) -> Model:
    """With its manifest. Raises NotFound, and Conflict if it could not be prepared."""
    found = find_named(session, Model, owner, reference)
    require_usable(found)
    whole = undefer(Model.manifest)
    return session.get_one(Model, found.id, options=[whole], populate_existing=True)
