"""What belongs to models and versions beside weights: rows with a name."""

from collections.abc import Iterable, Mapping
from typing import TypeVar

from registry.blobs.base import Blob
from registry.tables import ModelFile, VersionFile

File = TypeVar("File", ModelFile, VersionFile)


def find_file(files: Iterable[File], name: str) -> File | None:
    return next((file for file in files if file.name == name), None)


def make_files(table: type[File], blobs: Mapping[str, Blob]) -> list[File]:
    """Rows for blobs that are stored, by name."""
    return [table(name=name, **blob._asdict()) for name, blob in blobs.items()]
