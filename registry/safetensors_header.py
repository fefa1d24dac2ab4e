"""Our own reader of safetensors headers: the first to look at a file that a stranger sends.

It reads as the bytes arrive, so that a wrong file is refused after its first kilobytes, and it is
stricter than the format: what it accepts, the safetensors library opens. The format is 8 bytes
(length of the header, little-endian), the header (JSON: name → dtype, shape, data_offsets), and
the tensors' bytes without holes. Each value of the JSON is either checked here or refused.
"""

from __future__ import annotations

import json
from collections import Counter
from math import prod
from pathlib import Path
from typing import NamedTuple

from grasp_core.errors import CheckpointError
from grasp_core.manifest import Found

LENGTH = 8  # bytes, before the header
MAX_HEADER = 16 << 20  # bytes; a header of 1,000 tensors has about 100 kB
MAX_TENSORS = 50_000
MAX_RANK = 8
MAX_NAME = 512  # characters
MAX_METADATA = 1 << 20  # characters of all keys and values
MAX_NUMBER = 2**63 - 1  # what an index of torch, or of a file, can be
# Commas and brackets: at most 14 for each tensor, a million in metadata, and some in names. More
# would be values that are refused anyway, but only after they took 20 times their size in memory.
MAX_MARKS = 2_000_000
READ_AT_ONCE = 1 << 16  # bytes
SHOWN = 60  # characters of a wrong value in a message

METADATA = "__metadata__"
KEYS = frozenset({"dtype", "shape", "data_offsets"})
ITEMSIZE = {  # bytes
    **dict.fromkeys(("BOOL", "U8", "I8"), 1),
    **dict.fromkeys(("F8_E4M3", "F8_E5M2", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"), 1),
    **dict.fromkeys(("U16", "I16", "F16", "BF16"), 2),
    **dict.fromkeys(("U32", "I32", "F32"), 4),
    **dict.fromkeys(("U64", "I64", "F64", "C64"), 8),
}

AGAIN = "write the file again with safetensors' save_file"
RESEND = "the file was cut off or damaged on its way: send it again"
CONVERT = "convert it with `grasp convert`, or send it with `grasp push`, which does that by itself"
DOWNLOAD = "download the file itself, not the page that shows it"
EXPORT = "export the weights as safetensors"
LOOKALIKES: dict[bytes, tuple[str, str]] = {  # first bytes in lower case: (it is, do)
    b"pk": ("a zip archive, as torch.save (.pt, .pth) and numpy (.npz) write", CONVERT),
    **dict.fromkeys((b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05"), ("a pickle", CONVERT)),
    b"\x1f\x8b": ("compressed with gzip", "unpack it first, with gunzip"),
    **dict.fromkeys((b"<!do", b"<htm"), ("a web page (HTML)", DOWNLOAD)),
    b"<?xml": ("an XML document, perhaps a file server's error message", DOWNLOAD),
    b"version ": ("a Git LFS pointer, not the file it points to", "fetch it with `git lfs pull`"),
    b"gguf": ("a GGUF file", EXPORT),
    b"\x89hdf": ("an HDF5 file, as Keras writes them", EXPORT),
    b"{": ("JSON, perhaps the index of a checkpoint in parts", "send one file with all tensors"),
}


class Header(NamedTuple):
    """What a safetensors file says about itself."""

    tensors: dict[str, Found]
    metadata: dict[str, str]
    size: int  # of the whole file, in bytes


class HeaderReader:
    """Takes the bytes of a file as they come. All its errors are CheckpointErrors."""

    def __init__(self, name: str = "the file") -> None:
        self.header: Header | None = None
        self._name = name
        self._start = bytearray()  # the length and the header, as far as they are here
        self._wanted = LENGTH  # bytes of both
        self._seen = 0
        self._failure: CheckpointError | None = None

    def feed(self, data: bytes | memoryview) -> Header | None:
        """Return the header once, when it is complete; raise as soon as something is wrong."""
        self._refuse_again()
        rest = memoryview(data).cast("B")
        self._seen += len(rest)
        complete = self._collect(rest) if self.header is None else None
        self._refuse_excess()
        return complete

    def finish(self) -> Header:
        """The header of a file that is complete; raises if bytes are missing."""
        self._refuse_again()
        self._refuse_excess()
        if not self._seen:
            raise self._error("is empty", RESEND)
        if self.header is None:
            if self._wanted == LENGTH:
                self._refuse_lookalike()
            missing = self._wanted - self._seen
            place = "header" if self._wanted > LENGTH else "length of its header"
            raise self._error(f"ends within the {place}: {missing} bytes are missing", RESEND)
        missing = self.header.size - self._seen
        if missing > 0:
            whole = self.header.size
            raise self._error(
                f"ends within its tensors: {missing} of {whole} bytes are missing", RESEND
            )
        return self.header

    def skip(self, count: int) -> None:
        """Count bytes of tensors as arrived that the caller need not show."""
        self._seen += count

    def _collect(self, rest: memoryview) -> Header | None:
        while len(self._start) < self._wanted and rest:
            count = self._wanted - len(self._start)
            if len(self._start) == LENGTH:
                count = 1  # see at once whether JSON begins
            self._start += rest[:count]
            rest = rest[count:]
            self._check_start()
        if len(self._start) == self._wanted > LENGTH:
            self.header = self._parsed()
        return self.header

    def _check_start(self) -> None:
        if len(self._start) == LENGTH:
            length = int.from_bytes(self._start, "little")
            if not 0 < length <= MAX_HEADER:
                self._refuse_lookalike()
                raise self._error(
                    f"is not safetensors: its first 8 bytes announce a header of {length} bytes,"
                    f" not of 1 to {MAX_HEADER}",
                    AGAIN,
                )
            self._wanted = LENGTH + length
        elif len(self._start) == LENGTH + 1 and not self._start.endswith(b"{"):
            self._refuse_lookalike()
            raise self._error(
                f"is not safetensors: its header begins with {bytes(self._start[LENGTH:])!r},"
                " not with '{'",
                AGAIN,
            )

    def _parsed(self) -> Header:
        try:
            tensors, metadata, end = _parse(bytes(self._start[LENGTH:]))
        except _Refused as error:
            raise self._error(f"has a bad safetensors header: {error}", AGAIN) from error
        self._start.clear()
        return Header(tensors, metadata, self._wanted + end)

    def _refuse_again(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _refuse_excess(self) -> None:
        if self.header is not None and self._seen > self.header.size:
            raise self._error(
                f"is longer than the {self.header.size} bytes that its header announces", RESEND
            )

    def _refuse_lookalike(self) -> None:
        start = bytes(self._start).lower()
        for magic, (what, hint) in LOOKALIKES.items():
            if start.startswith(magic):
                raise self._error(f"is not safetensors: it is {what}", hint)

    def _error(self, message: str, hint: str) -> CheckpointError:
        self._failure = CheckpointError(f"{self._name} {message}", hint=hint)
        return self._failure


def read_header(path: Path) -> Header:
    """The header of a complete file, of whose tensors only the size is looked at."""
    reader = HeaderReader(path.name)
    try:
        with path.open("rb") as file:
            while reader.header is None and (chunk := file.read(READ_AT_ONCE)):
                reader.feed(chunk)
            reader.skip(path.stat().st_size - file.tell())
    except OSError as error:
        raise CheckpointError(f"cannot read {path.name}: {error.strerror or error}") from error
    return reader.finish()


class _Refused(Exception):
    """What is wrong with a header, and where in it."""


class _Odd(str):
    """A number that has no place in a header (1.5, -3, NaN, 10²⁰), as it is written there."""

    def __repr__(self) -> str:
        return str(self[:SHOWN])


class _Doubled(NamedTuple):
    """An object that has a key twice."""

    key: str


def _parse(data: bytes) -> tuple[dict[str, Found], dict[str, str], int]:
    """Tensors, metadata, and the number of bytes of all tensors."""
    entries = _object(_json(data), "the header")
    metadata = _metadata(entries.pop(METADATA, {}))
    if not entries:
        raise _Refused("it holds no tensors")
    if len(entries) > MAX_TENSORS:
        raise _Refused(f"it holds {len(entries)} tensors, more than {MAX_TENSORS}")
    read = {name: _tensor(name, entry) for name, entry in entries.items()}
    end = _covered({name: offsets for name, (_, offsets) in read.items()})
    return {name: found for name, (found, _) in read.items()}, metadata, end


def _json(data: bytes) -> object:
    if sum(data.count(mark) for mark in (b",", b"[", b"{")) > MAX_MARKS:
        raise _Refused(f"it holds more values than {MAX_TENSORS} tensors can have")
    try:
        return json.loads(
            data.decode("utf-8"),
            object_pairs_hook=_unique,
            parse_int=_natural,
            parse_float=_Odd,
            parse_constant=_Odd,
        )
    except UnicodeDecodeError as error:
        raise _Refused(f"it is not UTF-8 at its byte {error.start}") from error
    except json.JSONDecodeError as error:
        raise _Refused(f"it is not JSON: {error.msg} (character {error.pos})") from error
    except RecursionError as error:
        raise _Refused("its JSON is nested too deeply") from error


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object] | _Doubled:
    entries = dict(pairs)
    if len(entries) < len(pairs):
        (key, _), *_ = Counter(key for key, _ in pairs).most_common(1)
        return _Doubled(key)
    return entries


def _natural(text: str) -> int | _Odd:
    # Long ones are never converted: Python refuses to, and "-0" is no integer to other readers.
    number = int(text) if text.isdigit() and len(text) < 20 else MAX_NUMBER + 1
    return number if number <= MAX_NUMBER else _Odd(text)


def _metadata(entry: object) -> dict[str, str]:
    metadata: dict[str, str] = {}
    for key, value in _object(entry, METADATA).items():
        place = f"{METADATA}: {_shown(key)}"
        _check_name(key, place)
        if type(value) is not str:
            raise _Refused(f"{place} is {_shown(value)}, not a string")
        if "\0" in value or not _encodable(value):
            raise _Refused(f"{place} holds characters that are not text")
        metadata[key] = value
    size = sum(len(key) + len(value) for key, value in metadata.items())
    if size > MAX_METADATA:
        raise _Refused(f"{METADATA} has {size} characters, more than {MAX_METADATA}")
    return metadata


def _tensor(name: str, entry: object) -> tuple[Found, tuple[int, int]]:
    """What a tensor is, and where its bytes begin and end."""
    place = f"tensor {_shown(name)}"
    _check_name(name, place)
    fields = _object(entry, place)
    if missing := KEYS - fields.keys():
        raise _Refused(f"{place} lacks {min(missing)}")
    if unknown := fields.keys() - KEYS:
        raise _Refused(f"{place} has the unknown key {_shown(min(unknown))}")
    dtype = fields["dtype"]
    if type(dtype) is not str or dtype not in ITEMSIZE:
        raise _Refused(f"{place} has the dtype {_shown(dtype)}, not one of {', '.join(ITEMSIZE)}")
    shape = _naturals(fields["shape"], f"{place}: shape")
    if len(shape) > MAX_RANK:
        raise _Refused(f"{place} has {len(shape)} dimensions, more than {MAX_RANK}")
    offsets = _naturals(fields["data_offsets"], f"{place}: data_offsets")
    if len(offsets) != 2 or offsets[0] > offsets[1]:
        raise _Refused(f"{place}: data_offsets are {_shown(list(offsets))}, not [begin, end]")
    begin, end = offsets
    _check_size(place, shape, dtype, end - begin)
    return Found(shape, dtype), (begin, end)


def _check_size(place: str, shape: tuple[int, ...], dtype: str, size: int) -> None:
    itemsize = ITEMSIZE[dtype]
    # Without its zeros: other readers multiply in order, and overflow before they come to one.
    if prod(filter(None, shape)) * itemsize > MAX_NUMBER:
        raise _Refused(f"{place} is impossibly large: shape {_shown(list(shape))}")
    expected = prod(shape) * itemsize
    if size != expected:
        raise _Refused(
            f"{place} has {size} bytes, but {dtype} {_shown(list(shape))} needs {expected}"
        )


def _covered(offsets: dict[str, tuple[int, int]]) -> int:
    """Where the last tensor ends, if each begins where another ends."""
    expected = 0
    for name, (begin, end) in sorted(offsets.items(), key=lambda item: item[1]):
        if begin != expected:
            what = "leaves a hole" if begin > expected else "overlaps with another"
            raise _Refused(
                f"tensor {_shown(name)} {what}: it begins at {begin} instead of {expected}"
            )
        expected = end
    return expected


def _object(value: object, place: str) -> dict[str, object]:
    if isinstance(value, _Doubled):
        raise _Refused(f"{place} has the key {_shown(value.key)} twice")
    if not isinstance(value, dict):
        raise _Refused(f"{place} is {_shown(value)}, not an object")
    return value


def _naturals(value: object, place: str) -> tuple[int, ...]:
    if not isinstance(value, list) or any(type(number) is not int for number in value):
        raise _Refused(f"{place} is {_shown(value)}, not a list of whole numbers from 0 to 2⁶³ - 1")
    return tuple(value)


def _check_name(name: str, place: str) -> None:
    if not 1 <= len(name) <= MAX_NAME:
        raise _Refused(f"{place}: a name has 1 to {MAX_NAME} characters, not {len(name)}")
    if not name.isprintable():
        raise _Refused(f"{place}: a name has only printable characters")


def _encodable(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:  # lone surrogates
        return False
    return True


def _shown(value: object) -> str:
    """A value of the header for a message, of which megabytes or deep nesting are left out."""
    if isinstance(value, dict | _Doubled):
        return "an object"
    if isinstance(value, list):
        items = ("[…]" if isinstance(item, list) else _shown(item) for item in value[:SHOWN])
        text = f"[{', '.join(items)}]"
    else:
        text = repr(value[:SHOWN] if type(value) is str else value)
    return text if len(text) <= SHOWN else f"{text[: SHOWN - 1]}…"
