"""multipart/form-data, read as it arrives: nothing is spooled, memory does not grow with the body.

    async for part in read_parts(content_type, request.stream()):
        if part.filename is None:
            fields[part.name] = await part.text()
        else:
            async for chunk in part.chunks():
                ...

python-multipart finds the boundaries. defnull's `multipart` was tried in its place: as fast, and
no smaller with all that is refused here.

GraspError
└── MultipartError    the body, or its Content-Type, is not what it should be
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import AsyncIterator
from urllib.parse import unquote

from python_multipart.exceptions import MultipartParseError
from python_multipart.multipart import MultipartParser

from grasp_core.errors import GraspError

MAX_HEADER_BYTES = 8 * 1024  # of one part: two or three lines in practice
# RFC 2046: at most 70 characters, of these. The parser relies on it that CR is not among them.
_BOUNDARY = re.compile(r"[0-9A-Za-z'()+_,\-./:=? ]{0,69}[0-9A-Za-z'()+_,\-./:=?]")
_PARAMETER = re.compile(r';\s*([\w!#$%&\'*+.^`|~-]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^;"\s]*))\s*')
# What browsers and httpx write instead of a quote or a line break (WHATWG, multipart/form-data).
_ESCAPED = {"%22": '"', "%0D": "\r", "%0A": "\n", '\\"': '"', "\\\\": "\\"}
_CHARSETS = ("utf-8", "iso-8859-1")  # those RFC 5987 asks for


class MultipartError(GraspError):
    code = "invalid_multipart"


class Part:
    """One field or file of the form. Its bytes are read once, and before the next part."""

    def __init__(
        self, name: str, filename: str | None, content_type: str | None, reader: _Reader
    ) -> None:
        self.name = name
        self.filename = filename  # without folders; None if it is a field
        self.content_type = content_type
        self._reader = reader

    def chunks(self) -> AsyncIterator[bytes]:
        """The bytes in pieces, as they come from the network."""
        return self._reader.data_of(self)

    async def text(self, limit: int = 64 * 1024) -> str:
        """The whole part. Raises MultipartError beyond `limit` bytes, or if it is not UTF-8."""
        content = bytearray()
        async for chunk in self.chunks():
            content += chunk
            if len(content) > limit:
                raise MultipartError(
                    f"the field {self.name!r} is longer than {limit} bytes",
                    hint="send files with a filename, and shorter values",
                )
        return _utf8(bytes(content), f"the field {self.name!r}")


async def read_parts(
    content_type: str, body: AsyncIterator[bytes], *, max_parts: int = 64
) -> AsyncIterator[Part]:
    """The parts of a request's body; what is not read of one is skipped. Raises MultipartError."""
    reader = _Reader(_boundary(content_type), body, max_parts)
    while (part := await reader.next_part()) is not None:
        yield part


class _Reader:
    """The parser pushes, the application pulls: between them, the events of one piece of body.

    A Part stands for its headers, bytes for some of its data, None for its end. An error stays.
    """

    def __init__(self, boundary: str, body: AsyncIterator[bytes], max_parts: int) -> None:
        self._body = body
        self._max_parts = max_parts
        self._events: deque[Part | bytes | MultipartError | None] = deque()
        self._current: Part | None = None
        self._parts = self._bytes_before = 0
        self._complete = self._in_headers = False
        self._headers: dict[str, bytes] = {}
        self._field = self._value = b""
        self._header_bytes = 0
        self._parser = MultipartParser(
            boundary,
            {
                "on_part_begin": self._on_part_begin,
                "on_header_field": self._on_header_field,
                "on_header_value": self._on_header_value,
                "on_header_end": self._on_header_end,
                "on_headers_finished": self._on_headers_finished,
                "on_part_data": self._on_part_data,
                "on_part_end": self._on_part_end,
                "on_end": self._on_end,
            },
        )

    async def next_part(self) -> Part | None:
        self._current = None
        while await self._wait():
            event = self._events.popleft()
            if isinstance(event, Part):
                self._current = event
                return event
        return None

    async def data_of(self, part: Part) -> AsyncIterator[bytes]:
        if self._current is not part:
            raise RuntimeError(f"the bytes of the part {part.name!r} have been read or skipped")
        while self._current is part and await self._wait():
            event = self._events.popleft()
            if isinstance(event, bytes):
                yield event
            else:
                self._current = None

    async def _wait(self) -> bool:
        """Read on until there is an event; False at the end of the body. Raises MultipartError."""
        while not self._events:
            try:
                data = await anext(self._body)
            except StopAsyncIteration:
                if self._complete:
                    return False
                self._events.append(_ended_early())
            else:
                self._feed(data)
        if isinstance(self._events[0], MultipartError):
            raise self._events[0]
        return True

    def _feed(self, data: bytes) -> None:
        try:
            self._parser.write(data)
        except MultipartError as error:
            self._events.append(error)
        except MultipartParseError as error:
            self._events.append(self._broken(self._bytes_before + max(error.offset, 0)))
        self._bytes_before += len(data)

    def _broken(self, position: int) -> MultipartError:
        if self._in_headers:
            what = f"the headers of part {self._parts} are broken or too large"
        else:
            what = "there is no boundary where one should be"
        return MultipartError(
            f"{what}, at byte {position} of the body",
            hint="let an HTTP library write the body, and its Content-Type with the boundary",
        )

    def _on_part_begin(self) -> None:
        self._parts += 1
        if self._parts > self._max_parts:
            raise MultipartError(
                f"the form has more than {self._max_parts} parts",
                hint="send one file per request, and only the fields that are documented",
            )
        self._in_headers, self._headers, self._header_bytes = True, {}, 0
        self._field = self._value = b""

    def _on_header_field(self, data: bytes, start: int, end: int) -> None:
        self._count_header_bytes(end - start)
        self._field += data[start:end]

    def _on_header_value(self, data: bytes, start: int, end: int) -> None:
        self._count_header_bytes(end - start)
        self._value += data[start:end]

    def _count_header_bytes(self, count: int) -> None:
        self._header_bytes += count
        if self._header_bytes > MAX_HEADER_BYTES:
            raise MultipartError(
                f"the headers of part {self._parts} are larger than {MAX_HEADER_BYTES} bytes",
                hint="Content-Disposition and Content-Type are all that is needed",
            )

    def _on_header_end(self) -> None:
        self._headers[self._field.decode("ascii").lower()] = self._value.strip()
        self._field = self._value = b""

    def _on_headers_finished(self) -> None:
        self._in_headers = False
        self._events.append(self._part())

    def _part(self) -> Part:
        where = f"part {self._parts}"
        disposition = _utf8(self._headers.get("content-disposition", b""), where)
        kind, parameters = _parameters(disposition, where)
        if kind != "form-data" or "name" not in parameters:
            raise MultipartError(
                f"{where} has no name",
                hint='each part needs a header Content-Disposition: form-data; name="…"',
            )
        content_type = _utf8(self._headers.get("content-type", b""), where) or None
        return Part(parameters["name"], _filename(parameters, where), content_type, self)

    def _on_part_data(self, data: bytes, start: int, end: int) -> None:
        self._events.append(data[start:end])

    def _on_part_end(self) -> None:
        self._events.append(None)

    def _on_end(self) -> None:
        self._complete = True


def _ended_early() -> MultipartError:
    return MultipartError(
        "the body ends before the form does",
        hint="the upload was cut off: send it again",
    )


def _boundary(content_type: str) -> str:
    kind, parameters = _parameters(content_type, "the Content-Type")
    if kind != "multipart/form-data":
        raise MultipartError(
            f"the Content-Type is {kind!r}, not multipart/form-data",
            hint="let an HTTP library write the body and its Content-Type",
        )
    boundary = parameters.get("boundary", "")
    if not _BOUNDARY.fullmatch(boundary):
        raise MultipartError(
            "the Content-Type has no boundary, or one that is not 1 to 70 plain characters",
            hint="do not set the Content-Type by hand: the HTTP library knows the boundary",
        )
    return boundary


def _parameters(header: str, where: str) -> tuple[str, dict[str, str]]:
    """`kind; name="value"; …`, unescaped, names in lower case."""
    kind, semicolon, rest = header.partition(";")
    rest, position = (semicolon + rest).rstrip("; \t"), 0
    parameters: dict[str, str] = {}
    while position < len(rest):
        match = _PARAMETER.match(rest, position)
        if match is None or match[1].lower() in parameters:
            raise MultipartError(
                f"{where} cannot be understood: {header!r}",
                hint="write parameters once each, and put their values in quotes",
            )
        quoted, plain = match[2], match[3]
        parameters[match[1].lower()] = plain if quoted is None else _unescaped(quoted)
        position = match.end()
    return kind.strip().lower(), parameters


def _unescaped(quoted: str) -> str:
    return re.sub(r'%22|%0[AD]|\\["\\]', lambda match: _ESCAPED[match[0]], quoted)


def _filename(parameters: dict[str, str], where: str) -> str | None:
    """Only the last component, which no path can hide in; `filename*` (RFC 5987) comes first."""
    name = parameters.get("filename")
    if "filename*" in parameters:
        name = _extended(parameters["filename*"], where)
    return None if name is None else plain_name(name)


def plain_name(name: str) -> str:
    """The last component of what a client calls its file, without control characters."""
    base = re.sub(r"[\x00-\x1f\x7f]", "", re.split(r"[/\\]", name)[-1])
    return "" if base in (".", "..") else base


def _extended(value: str, where: str) -> str:
    """`UTF-8''na%C3%AFve.bin`, decoded."""
    charset, _, rest = value.partition("'")
    _, quote, encoded = rest.partition("'")
    try:
        if quote and charset.lower() in _CHARSETS:
            return unquote(encoded, charset, errors="strict")
    except UnicodeDecodeError:
        pass
    raise MultipartError(
        f"{where} has a filename* that cannot be decoded: {value!r}",
        hint="write filename*=UTF-8''… with percent-encoded bytes, or a plain filename",
    )


def _utf8(content: bytes, where: str) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise MultipartError(f"{where} is not UTF-8", hint="send text as UTF-8") from error
