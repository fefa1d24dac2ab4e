"""Our own reader of safetensors headers: the first to look at a file that a stranger sends.

It looks as the bytes arrive, so that a wrong file is refused after its first kilobytes, and it is
stricter than the format: what it accepts, the safetensors library opens. The format is 8 bytes
(length of the header, little-endian), the header (JSON: name → dtype, shape, data_offsets), and
the tensors' bytes without holes. Each value of the JSON is either checked here or refused.

A header that arrives takes no memory: once it is complete it is read from where its bytes were
written, a window at a time, and refused at the first value that is wrong or one too many.
"""

from __future__ import annotations

import sys
from array import array
from math import prod
from typing import NamedTuple

from grasp_core.errors import CheckpointError, shorten
from grasp_core.manifest import Found
from registry.blobs.header_json import MAX_NUMBER, BadHeader, DoubledKey, Read, Scanner

LENGTH = 8  # bytes, before the header
MAX_HEADER = 16 << 20  # bytes; a header of 1,000 tensors has about 100 kB
MAX_TENSORS = 50_000
MAX_RANK = 8
MAX_NAME = 512  # characters
MAX_NAMES = 4 << 20  # characters of all names: each may take four bytes
MAX_METADATA = 1 << 20  # characters of all keys and values
MAX_WRITTEN = 2 * MAX_METADATA  # characters of a text of metadata with its escapes
LARGE_HEADER = 1 << 18  # bytes; whoever reads many at once should read those one by one
SHOWN = 60  # characters of a wrong value in a message

METADATA = "__metadata__"
_INT = frozenset({int})  # bool is none
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
TARGET = "register it with `grasp targets create NAME FILE`, or POST it to /targets"
UNPACK = "unpack it, and send the checkpoint that is in it; target data is for POST /targets"
ITSELF = "send the checkpoint itself, as safetensors' save_file wrote it"
LOOKALIKES: dict[bytes, tuple[str, str]] = {  # first bytes in lower case: (it is, do)
    b"pk": ("a zip archive", UNPACK),
    **dict.fromkeys((b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05"), ("a pickle", CONVERT)),
    b"\x1f\x8b": ("compressed with gzip", "unpack it first, with gunzip"),
    **dict.fromkeys((b"<!do", b"<htm"), ("a web page (HTML)", DOWNLOAD)),
    b"<?xml": ("an XML document, perhaps a file server's error message", DOWNLOAD),
    b"version ": ("a Git LFS pointer, not the file it points to", "fetch it with `git lfs pull`"),
    b"gguf": ("a GGUF file", EXPORT),
    b"\x89hdf": ("an HDF5 file, as Keras writes them", EXPORT),
    b"{": ("JSON, perhaps the index of a checkpoint in parts", "send one file with all tensors"),
}
ZIP = b"PK\x03\x04"  # begins with a file's header: 30 bytes, the last four the lengths of its name
ZIP_HEADER = 30  # and of an extra field; then comes the name
ZIP_MEMBERS: dict[bytes, tuple[str, str]] = {  # how the first file's name ends: (it is, do)
    b".npy": ("a NumPy archive (.npz): target data, not weights", TARGET),
    b"data.pkl": ("a zip archive, as torch.save (.pt, .pth) writes", CONVERT),
}
TEXT = frozenset(b"\t\n\v\f\r" + bytes(range(32, 127)))


class Header(NamedTuple):
    """What a safetensors file says about itself."""

    tensors: dict[str, Found]
    metadata: dict[str, str]
    size: int  # of the whole file, in bytes
    offsets: array[int]  # begin and end of each tensor, from the first byte of any

    @property
    def start(self) -> int:
        """Where in the file the tensors begin."""
        return self.size - max(self.offsets)


class HeaderReader:
    """Looks at the bytes of a file as they come. All its errors are CheckpointErrors."""

    def __init__(self, name: str = "the file") -> None:
        self._name = name
        self._start = bytearray()  # the length, and the first byte of the header; of a zip more
        self._wanted = LENGTH  # bytes of the length and the header
        self._size: int | None = None  # of the whole file, once the header was read
        self._seen = 0
        self._failure: CheckpointError | None = None

    @property
    def large(self) -> bool:
        return self._wanted > LARGE_HEADER

    def feed(self, data: bytes | memoryview) -> bool:
        """Whether the header is complete now; then `read` it. Raises what is wrong at once."""
        self._refuse_again()
        rest = memoryview(data).cast("B")
        before, self._seen = self._seen, self._seen + len(rest)
        self._look_at_start(rest)
        self._refuse_excess()
        return before < self._wanted <= self._seen and self._wanted > LENGTH

    def read(self, read: Read) -> Header:
        """What the complete header says; can be asked again, as nothing of it is kept here."""
        self._require_header()
        wrong: str | None = None
        try:
            tensors, metadata, offsets = _parse(Scanner(read, LENGTH, self._wanted))
        except BadHeader as error:
            wrong = str(error)
        if wrong is not None:  # here, so that no traceback keeps alive what had been read
            raise self._error(f"has a bad safetensors header: {wrong}", AGAIN)
        self._size = self._wanted + max(offsets)
        self._refuse_excess()
        return Header(tensors, metadata, self._size, offsets)

    def finish(self) -> None:
        """The file, whose header was read, is complete; raises if bytes are missing."""
        self._require_header()
        missing = (self._size or 0) - self._seen
        if missing > 0:
            raise self._error(
                f"ends within its tensors: {missing} of {self._size} bytes are missing", RESEND
            )

    def _require_header(self) -> None:
        self._refuse_again()
        if not self._seen:
            raise self._error("is empty", RESEND)
        if self._wanted == LENGTH:
            self._refuse_lookalike()
        missing = self._wanted - self._seen
        if missing > 0 or self._wanted == LENGTH:
            place = "header" if self._wanted > LENGTH else "length of its header"
            raise self._error(f"ends within the {place}: {missing} bytes are missing", RESEND)

    def _look_at_start(self, rest: memoryview) -> None:
        while rest and (count := _next_look(self._start) - len(self._start)) > 0:
            self._start += rest[:count]
            rest = rest[count:]
            self._check_start()

    def _check_start(self) -> None:
        if self._start.startswith(ZIP):
            if len(self._start) == _next_look(self._start):
                self._refuse_lookalike()
        elif len(self._start) == LENGTH:
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

    def _refuse_again(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _refuse_excess(self) -> None:
        if self._size is not None and self._seen > self._size:
            raise self._error(
                f"is longer than the {self._size} bytes that its header announces", RESEND
            )

    def _refuse_lookalike(self) -> None:
        lookalike = _recognize(bytes(self._start))
        if lookalike is not None:
            what, hint = lookalike
            raise self._error(f"is not safetensors: it is {what}", hint)

    def _error(self, message: str, hint: str) -> CheckpointError:
        self._failure = CheckpointError(f"{self._name} {message}", hint=hint)
        self._failure.convertible = hint is CONVERT
        return self._failure


def _next_look(start: bytes | bytearray) -> int:
    """How many bytes tell more than these: to the length, to the `{`, to the end of a zip's first
    name. As many as these: none do."""
    if len(start) < LENGTH:
        return LENGTH
    if not start.startswith(ZIP):
        return LENGTH + 1  # see at once whether JSON begins
    if len(start) < ZIP_HEADER:
        return ZIP_HEADER
    return ZIP_HEADER + min(int.from_bytes(start[26:28], "little"), MAX_NAME)


def _recognize(start: bytes) -> tuple[str, str] | None:
    """What a file is that is not safetensors, and what to do; None: nobody knows."""
    if start.startswith(ZIP):
        for ending, lookalike in ZIP_MEMBERS.items():
            if start[ZIP_HEADER:].endswith(ending):
                return lookalike
    for magic, lookalike in LOOKALIKES.items():
        if start.lower().startswith(magic):
            return lookalike
    return ("text", ITSELF) if TEXT.issuperset(start) else None


def _parse(scanner: Scanner) -> tuple[dict[str, Found], dict[str, str], array[int]]:
    """Tensors, metadata, and where each tensor begins and ends."""
    tensors: dict[str, Found] = {}
    offsets = array("q")
    metadata: dict[str, str] | None = None
    written = 0
    with scanner.refusing():
        scanner.begins("{")  # as the reader saw by its first byte
        for name in scanner.members():
            if name in tensors or (name == METADATA and metadata is not None):
                raise BadHeader(f"the header has the key {_shown(name)} twice")
            if name == METADATA:
                metadata = _metadata(scanner)
                continue
            if len(tensors) == MAX_TENSORS:
                raise BadHeader(f"it holds more than {MAX_TENSORS} tensors")
            written += len(name)
            if written > MAX_NAMES:
                raise BadHeader(f"the names of its tensors have more than {MAX_NAMES} characters")
            tensors[name], begin_and_end = _tensor(name, scanner)
            offsets.extend(begin_and_end)
        scanner.finish()
    if not tensors:
        raise BadHeader("it holds no tensors")
    _require_cover(list(tensors), offsets)
    return tensors, metadata or {}, offsets


def _metadata(scanner: Scanner) -> dict[str, str]:
    metadata: dict[str, str] = {}
    if not scanner.begins("{"):
        raise BadHeader(f"{METADATA} is {_shown(scanner.value())}, not an object")
    size = 0
    for key in scanner.members():
        place = f"{METADATA}: {_shown(key)}"
        _check_name(key, place)
        if key in metadata:
            raise BadHeader(f"{METADATA} has the key {_shown(key)} twice")
        if not scanner.begins('"'):
            raise BadHeader(f"{place} is {_shown(scanner.value())}, not a string")
        value = scanner.text(MAX_WRITTEN)
        if "\0" in value or not _encodable(value):
            raise BadHeader(f"{place} holds characters that are not text")
        size += len(key) + len(value)
        if size > MAX_METADATA:
            raise BadHeader(f"{METADATA} has more than {MAX_METADATA} characters")
        metadata[key] = value
    return metadata


def _tensor(name: str, scanner: Scanner) -> tuple[Found, tuple[int, int]]:
    """What a tensor is, and where its bytes begin and end."""
    place = f"tensor {_shown(name)}"
    _check_name(name, place)
    fields = _object(scanner.value(), place)
    if fields.keys() != KEYS:
        if missing := KEYS - fields.keys():
            raise BadHeader(f"{place} lacks {min(missing)}")
        unknown = fields.keys() - KEYS
        raise BadHeader(f"{place} has the unknown key {_shown(min(unknown))}")
    dtype = fields["dtype"]
    if type(dtype) is not str or dtype not in ITEMSIZE:
        raise BadHeader(f"{place} has the dtype {_shown(dtype)}, not one of {', '.join(ITEMSIZE)}")
    shape = _naturals(fields, "shape", place)
    if len(shape) > MAX_RANK:
        raise BadHeader(f"{place} has {len(shape)} dimensions, more than {MAX_RANK}")
    offsets = _naturals(fields, "data_offsets", place)
    if len(offsets) != 2 or offsets[0] > offsets[1]:
        raise BadHeader(f"{place}: data_offsets are {_shown(list(offsets))}, not [begin, end]")
    begin, end = offsets
    _check_size(place, shape, dtype, end - begin)
    return Found(shape, sys.intern(dtype)), (begin, end)


def _check_size(place: str, shape: tuple[int, ...], dtype: str, size: int) -> None:
    itemsize = ITEMSIZE[dtype]
    expected = prod(shape) * itemsize
    # Without its zeros: other readers multiply in order, and overflow before they come to one.
    if (expected or prod(filter(None, shape)) * itemsize) > MAX_NUMBER:
        raise BadHeader(f"{place} is impossibly large: shape {_shown(list(shape))}")
    if size != expected:
        raise BadHeader(
            f"{place} has {size} bytes, but {dtype} {_shown(list(shape))} needs {expected}"
        )


def _require_cover(names: list[str], offsets: array[int]) -> None:
    """Raises BadHeader unless each begins where another ends."""
    begins, ends = offsets[::2], offsets[1::2]
    expected = 0
    for number in sorted(range(len(names)), key=lambda n: (begins[n], ends[n])):
        begin = begins[number]
        if begin != expected:
            what = "leaves a hole" if begin > expected else "overlaps with another"
            raise BadHeader(
                f"tensor {_shown(names[number])} {what}: it begins at {begin} instead of {expected}"
            )
        expected = ends[number]


def _object(value: object, place: str) -> dict[str, object]:
    if isinstance(value, DoubledKey):
        raise BadHeader(f"{place} has the key {_shown(value.key)} twice")
    if not isinstance(value, dict):
        raise BadHeader(f"{place} is {_shown(value)}, not an object")
    return value


def _naturals(fields: dict[str, object], key: str, place: str) -> tuple[int, ...]:
    value = fields[key]
    if not isinstance(value, list) or not _INT.issuperset(map(type, value)):
        wanted = "a list of whole numbers from 0 to 2⁶³ - 1"
        raise BadHeader(f"{place}: {key} is {_shown(value)}, not {wanted}")
    return tuple(value)


def _check_name(name: str, place: str) -> None:
    if not 1 <= len(name) <= MAX_NAME:
        raise BadHeader(f"{place}: a name has 1 to {MAX_NAME} characters, not {len(name)}")
    if not name.isprintable():
        raise BadHeader(f"{place}: a name has only printable characters")


def _encodable(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:  # lone surrogates
        return False
    return True


def _shown(value: object) -> str:
    """A value of the header for a message, of which megabytes or deep nesting are left out."""
    if isinstance(value, dict | DoubledKey):
        return "an object"
    if isinstance(value, list):
        items = ("[…]" if isinstance(item, list) else _shown(item) for item in value[:SHOWN])
        text = f"[{', '.join(items)}]"
    else:
        text = repr(value[:SHOWN] if type(value) is str else value)
    return shorten(text, SHOWN)
