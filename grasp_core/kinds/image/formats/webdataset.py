"""WebDataset shards: tar archives with key.jpg beside key.cls or key.json.

Read with tarfile. The webdataset library takes URLs such as `pipe:…` that run commands, and
shard names may come from a stranger.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import groupby, islice
from pathlib import Path
from typing import Any, NamedTuple

from grasp_core.data import Contents, Format, Limits, Sample, Unreadable, fetch
from grasp_core.data.archives import Member, is_tar, is_zip, tar_members
from grasp_core.data.layout import is_hidden, shard_split, shards
from grasp_core.errors import TargetError
from grasp_core.kinds.image.decode import Content, is_image

SUFFIXES = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz")
CLASS_NAMES = "classnames.txt"
LABEL_FIELDS = ("class_name", "class", "label")  # of key.json; a name says more than an index
PEEK = 256  # members: a shard keeps what belongs together side by side
MAX_LABEL_BYTES = 2**20


class _Entry(NamedTuple):
    """One member of a shard that belongs to a sample."""

    key: str
    kind: str  # image, cls or json
    name: str
    content: bytes | Unreadable


def _matches(path: Path, limits: Limits) -> bool:
    if path.is_dir():
        return bool(shards(path, SUFFIXES, limits))
    return path.is_file() and not is_zip(path) and is_tar(path) and _is_shard(path, limits)


def _files(path: Path, limits: Limits) -> list[Path]:
    """The shards, and the file of class names if there is one."""
    names = _class_file(path)
    return [*shards(path, SUFFIXES, limits), *([names] if names.is_file() else [])]


def _read(path: Path, limits: Limits) -> Contents[Content]:
    """The samples, shard by shard. Raises TargetError for damaged shards or missing labels."""
    found = shards(path, SUFFIXES, limits)
    total = 0
    for shard in found:
        total += sum(_kind(member) == "image" for member in tar_members(shard, limits))
        limits.check_examples(total)
    samples = (sample for shard in found for sample in _samples(shard, path, limits))
    return Contents(total, _class_names(path), samples)


def _samples(shard: Path, root: Path, limits: Limits) -> Iterator[Sample[Content]]:
    split = shard_split(shard, root)
    for key, entries in groupby(_entries(shard, limits), key=lambda entry: entry.key):
        fields = {entry.kind: entry for entry in entries}
        if image := fields.get("image"):
            label = _label(fields, f"{key} in {shard.name}")
            yield Sample(f"{shard.name}/{image.name}", split, label, image.content)


def _entries(shard: Path, limits: Limits) -> Iterator[_Entry]:
    for member in tar_members(shard, limits):
        if kind := _kind(member):
            yield _Entry(_key(member), kind, member.name, fetch(member.size, member.read, limits))


def _label(fields: dict[str, _Entry], where: str) -> str | int:
    entry = fields.get("cls") or fields.get("json")
    if entry is None:
        raise TargetError(f"{where} has no label", hint="every image needs key.cls or key.json")
    if isinstance(entry.content, Unreadable) or len(entry.content) > MAX_LABEL_BYTES:
        raise TargetError(f"{where} has an unreadable label")
    try:
        text = entry.content.decode().strip()
        label = text if entry.kind == "cls" else _json_label(json.loads(text))
    except (ValueError, RecursionError) as error:
        raise TargetError(f"{where} has an unreadable label: {error}") from error
    return int(label) if label.isdecimal() else label


def _json_label(record: Any) -> str:
    if not isinstance(record, dict):
        raise ValueError("not an object")
    for field in LABEL_FIELDS:
        if isinstance(value := record.get(field), str | int) and not isinstance(value, bool):
            return str(value)
    raise ValueError(f"none of the fields {', '.join(LABEL_FIELDS)}")


def _kind(member: Member) -> str | None:
    if member.is_folder or is_hidden(member.name):
        return None
    if is_image(member.name):
        return "image"
    suffix = Path(member.name).suffix.lower()
    return {".cls": "cls", ".json": "json"}.get(suffix)


def _key(member: Member) -> str:
    """The name up to the first dot after the folders, as WebDataset defines it."""
    folder, slash, name = member.name.rpartition("/")
    return folder + slash + name.split(".")[0]


def _is_shard(path: Path, limits: Limits) -> bool:
    seen: dict[str | None, set[str]] = {}
    for member in islice(tar_members(path, limits), PEEK):
        seen.setdefault(_kind(member), set()).add(_key(member))
    labelled = seen.get("cls", set()) | seen.get("json", set())
    return bool(seen.get("image", set()) & labelled)


def _class_file(path: Path) -> Path:
    return (path if path.is_dir() else path.parent) / CLASS_NAMES


def _class_names(path: Path) -> tuple[str, ...] | None:
    file = _class_file(path)
    if not file.is_file():
        return None
    return tuple(line.strip() for line in file.read_text("utf-8").splitlines() if line.strip())


FORMAT: Format[Content] = Format(
    "WebDataset .tar shards (key.jpg + key.cls or key.json), one or a folder of them",
    _matches,
    _files,
    _read,
)
