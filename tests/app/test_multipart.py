"""The multipart reader, on bodies that httpx wrote and on bodies written by hand."""

import asyncio
import tracemalloc
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from itertools import pairwise

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.intake.multipart import MAX_HEADER_BYTES, MultipartError, read_parts

FORM = "multipart/form-data; boundary=b"
NAMED = 'Content-Disposition: form-data; name="n"'
END = b"--b--\r\n"


@dataclass(frozen=True)
class Whole:
    name: str
    filename: str | None
    content_type: str | None
    content: bytes


async def pieces_of(pieces: Iterable[bytes]) -> AsyncIterator[bytes]:
    for piece in pieces:
        await asyncio.sleep(0)
        yield piece


def read(content_type: str, *pieces: bytes, max_parts: int = 64) -> list[Whole]:
    async def gather() -> list[Whole]:
        parts = []
        async for part in read_parts(content_type, pieces_of(pieces), max_parts=max_parts):
            content = b"".join([chunk async for chunk in part.chunks()])
            parts.append(Whole(part.name, part.filename, part.content_type, content))
        return parts

    return asyncio.run(gather())


def encoded(
    fields: dict[str, str] | None = None,
    files: dict[str, tuple[str, bytes] | tuple[str, bytes, str]] | None = None,
) -> tuple[str, bytes]:
    request = httpx.Request("POST", "http://test", data=fields, files=files)
    return request.headers["content-type"], request.read()


def part(headers: str | bytes, content: bytes = b"") -> bytes:
    lines = headers.encode() if isinstance(headers, str) else headers
    return b"--b\r\n" + lines + b"\r\n\r\n" + content + b"\r\n"


def form_data(parameters: str) -> bytes:
    return part(f"Content-Disposition: form-data; {parameters}", b"x") + b"--b--\r\n"


def one(body: bytes) -> Whole:
    (whole,) = read(FORM, body)
    return whole


# What is read


def test_a_form_of_httpx() -> None:
    content_type, body = encoded(
        {"model": "faces", "classes": '["F","M"]'},
        {"file": ("site-a.safetensors", b"\0\1\r\n--\2", "application/octet-stream")},
    )

    assert read(content_type, body) == [
        Whole("model", None, None, b"faces"),
        Whole("classes", None, None, b'["F","M"]'),
        Whole("file", "site-a.safetensors", "application/octet-stream", b"\0\1\r\n--\2"),
    ]


@given(
    st.dictionaries(st.text(min_size=1), st.text(), min_size=1, max_size=4),
    st.text(st.characters(exclude_categories=["C"], exclude_characters="/%"), min_size=3),
    st.binary(max_size=300),
)
def test_any_form_of_httpx_comes_back(
    fields: dict[str, str], filename: str, content: bytes
) -> None:
    # httpx writes %09 for a tab, but % as it is; only what browsers escape can be told apart.
    fields = {"".join(c for c in k if c >= " " and c != "%") or "k": v for k, v in fields.items()}
    filename = filename.replace("\\", "_")
    content_type, body = encoded(fields, {"file": (filename, content, "a/b")})

    *read_fields, file = read(content_type, body)

    assert {part.name: part.content.decode() for part in read_fields} == fields
    assert file == Whole("file", filename, "a/b", content)


BODY = (
    part('Content-Disposition: form-data; name="a"', b"\r\n-b\r\r\n--\r\n--c")
    + part('Content-Disposition: form-data; name="e"')
    + part(
        'content-disposition:form-data;name=f;filename="x"\r\nContent-Type: text/plain\r\nX: z',
        b"--b--" + bytes(range(256)) + b"\r\n",
    )
    + b"--b--\r\nepilogue"
)
WHOLE = [
    Whole("a", None, None, b"\r\n-b\r\r\n--\r\n--c"),
    Whole("e", None, None, b""),
    Whole("f", "x", "text/plain", b"--b--" + bytes(range(256)) + b"\r\n"),
]


def test_a_body_written_by_hand_with_what_looks_like_boundaries() -> None:
    assert read(FORM, BODY) == WHOLE


def test_a_body_byte_by_byte() -> None:
    assert read(FORM, *(BODY[i : i + 1] for i in range(len(BODY)))) == WHOLE


def cut(body: bytes, places: Iterable[int]) -> list[bytes]:
    bounds = [0, *sorted(places), len(body)]
    return [body[a:b] for a, b in pairwise(bounds)]


@given(st.lists(st.integers(0, len(BODY)), max_size=30))
def test_the_pieces_a_body_comes_in_make_no_difference(places: list[int]) -> None:
    assert read(FORM, *cut(BODY, places)) == WHOLE


ALMOST_BOUNDARIES = st.text("\r\n-b", max_size=40).map(str.encode)


@given(
    st.lists(ALMOST_BOUNDARIES.filter(lambda c: b"\r\n--b" not in b"\r\n" + c), max_size=3),
    st.lists(st.integers(0, 400), max_size=20),
)
def test_content_made_of_boundary_characters(contents: list[bytes], places: list[int]) -> None:
    body = b"".join(part(NAMED, content) for content in contents) + END

    pieces = cut(body, [place % (len(body) + 1) for place in places])

    assert [whole.content for whole in read(FORM, *pieces)] == contents


def test_a_form_without_parts() -> None:
    assert read(FORM, b"--b--\r\n") == []


@pytest.mark.parametrize(
    "content_type",
    [
        'multipart/form-data; boundary="b"',
        "Multipart/Form-Data;charset=utf-8; BOUNDARY=b ;",
    ],
)
def test_ways_to_write_the_boundary(content_type: str) -> None:
    assert read(content_type, BODY) == WHOLE


@pytest.mark.parametrize(
    ("parameters", "name", "filename"),
    [
        ('name="a;b=\\"c\\\\"', 'a;b="c\\', None),
        ('name="a%22b%0D%0Ac%41"', 'a"b\r\nc%41', None),
        ('name="größe"; filename="naïve.bin"', "größe", "naïve.bin"),
        ("name=f; filename=x.bin", "f", "x.bin"),
        ('name="f"; filename=""', "f", ""),
        ('name="f"; filename="../../etc/passwd"', "f", "passwd"),
        ('name="f"; filename="C:\\dir\\x.bin"', "f", "x.bin"),
        ('name="f"; filename=".."', "f", ""),
        ('name="f"; filename="a/."', "f", ""),
        ('name="f"; filename="a\0b\x7f"', "f", "ab"),
        ("name=\"f\"; filename*=UTF-8''na%C3%AFve.bin", "f", "naïve.bin"),
        ('name="f"; filename="n.bin"; filename*=utf-8\'en\'na%C3%AFve.bin', "f", "naïve.bin"),
        ("name=\"f\"; filename*=ISO-8859-1''na%EFve.bin", "f", "naïve.bin"),
        ("name=\"f\"; filename*=UTF-8''..%2Fx.bin", "f", "x.bin"),
        ("NAME=\"f\"; FileName='x'", "f", "'x'"),
    ],
)
def test_names(parameters: str, name: str, filename: str | None) -> None:
    whole = one(form_data(parameters))

    assert (whole.name, whole.filename) == (name, filename)


def test_parts_not_read_are_skipped_whole_or_in_part() -> None:
    content = bytes(1000)
    header = 'Content-Disposition: form-data; name="{}"'
    body = b"".join(part(header.format(name), content) for name in "abcd") + b"--b--"

    async def some() -> list[str]:
        seen = []
        async for item in read_parts(FORM, pieces_of(cut(body, range(0, len(body), 100)))):
            seen.append(item.name)
            if item.name == "b":
                assert len(await anext(item.chunks())) <= 100
            if item.name == "c":
                assert (await item.text()).encode() == content
        return seen

    assert asyncio.run(some()) == ["a", "b", "c", "d"]


def test_the_bytes_of_a_part_cannot_be_had_twice_or_late() -> None:
    body = form_data('name="a"')[: -len(b"--b--\r\n")] + form_data('name="b"')

    async def late() -> None:
        parts = [item async for item in read_parts(FORM, pieces_of([body]))]
        with pytest.raises(RuntimeError, match="'a'"):
            await anext(parts[0].chunks())

    async def twice() -> None:
        async for item in read_parts(FORM, pieces_of([body])):
            assert await item.text() == "x"
            with pytest.raises(RuntimeError, match="read or skipped"):
                await item.text()

    asyncio.run(late())
    asyncio.run(twice())


def test_chunks_come_as_they_arrive_and_are_not_gathered() -> None:
    """A piece is asked for only after the one before it has been handed over."""
    asked = 0

    async def body() -> AsyncIterator[bytes]:
        nonlocal asked
        yield b"--b\r\nContent-Disposition: form-data; name=f\r\n\r\n"
        for asked in range(1, 4):  # noqa: B007
            yield bytes(64 * 1024)
        yield b"\r\n--b--\r\n"

    async def sizes() -> list[tuple[int, int]]:
        item = await anext(read_parts(FORM, body()))
        return [(len(chunk), asked) async for chunk in item.chunks()]

    assert asyncio.run(sizes()) == [(64 * 1024, 1), (64 * 1024, 2), (64 * 1024, 3)]


def test_a_large_file_takes_little_memory() -> None:
    size, piece = 200_000_000, b"\r\n--almost" * 6400

    async def body() -> AsyncIterator[bytes]:
        yield b'--b\r\nContent-Disposition: form-data; name="f"; filename="f"\r\n\r\n'
        for _ in range(size // len(piece)):
            yield bytes(bytearray(piece))  # a new one each time
        yield b"\r\n--b--\r\n"

    async def count() -> int:
        return sum([len(c) async for p in read_parts(FORM, body()) async for c in p.chunks()])

    tracemalloc.start()
    try:
        assert asyncio.run(count()) == size // len(piece) * len(piece)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 2_000_000


# What is refused


@pytest.mark.parametrize(
    "content_type",
    [
        "",
        "application/json",
        "multipart/form-data",
        "multipart/form-data; boundary=",
        'multipart/form-data; boundary="a\r\nb"',
        'multipart/form-data; boundary="a "',
        f"multipart/form-data; boundary={'b' * 71}",
        "multipart/form-data; boundary=a; boundary=b",
        'multipart/form-data; boundary="b',
        "multipart/mixed; boundary=b",
    ],
)
def test_content_types_that_are_refused(content_type: str) -> None:
    with pytest.raises(MultipartError, match="the Content-Type") as caught:
        read(content_type, BODY)
    assert caught.value.code == "invalid_multipart"
    assert caught.value.hint


def test_a_boundary_of_70_characters() -> None:
    boundary = "b" * 70
    body = BODY.replace(b"--b\r\n", f"--{boundary}\r\n".encode())
    body = body.replace(b"\r\n--b--\r\nepi", f"\r\n--{boundary}--\r\nepi".encode())

    assert len(read(f"multipart/form-data; boundary={boundary}", body)) == 3


REFUSED = {
    "empty": (b"", "ends before"),
    "no boundary": (b"hello", "no boundary .* at byte 0"),
    "another boundary": (b"--c\r\n", "no boundary .* at byte 2"),
    "broken after the boundary": (b"--bx", "no boundary .* at byte 3"),
    "ends in the headers": (b"--b\r\nContent-Dis", "ends before"),
    "ends in the data": (part(NAMED, b"data"), "ends before"),
    "ends in the last boundary": (part(NAMED) + b"--b-", "ends before"),
    "header without colon": (part("nonsense"), "headers of part 1 are broken"),
    "header with a space in its name": (part(f"A B: c\r\n{NAMED}"), "headers of part 1 are broken"),
    "header without a name": (part(f": c\r\n{NAMED}"), "headers of part 1 are broken"),
    "second part": (part(NAMED) + part("x y: z"), "headers of part 2 are broken"),
    "one large header": (part(f"{NAMED}\r\nX: {'x' * MAX_HEADER_BYTES}"), "part 1 .* large"),
    "large headers": (part("X: y" + "z" * 4000 + ("\r\nX: " + "z" * 4000) * 2), "part 1 .* large"),
    "many headers": (part("X: y\r\n" * 1000 + NAMED), "part 1 .* large"),
    "no Content-Disposition": (part("Content-Type: text/plain") + END, "part 1 has no name"),
    "no headers": (b"--b\r\n\r\nx\r\n" + END, "part 1 has no name"),
    "no name": (part("Content-Disposition: form-data; filename=x") + END, "part 1 has no name"),
    "not form-data": (part("Content-Disposition: file; name=x") + END, "part 1 has no name"),
    "open quote": (form_data('name="x'), "part 1 cannot be understood"),
    "two names": (form_data("name=a; name=b"), "part 1 cannot be understood"),
    "no value": (form_data("name"), "part 1 cannot be understood"),
    "filename* of what": (form_data("name=a; filename*=abc"), "filename\\*"),
    "filename* in EBCDIC": (form_data("name=a; filename*=cp500''abc"), "filename\\*"),
    "filename* not UTF-8": (form_data("name=a; filename*=UTF-8''%FF"), "filename\\*"),
    "name not UTF-8": (part(b'Content-Disposition: form-data; name="\xff"') + END, "not UTF-8"),
}


@pytest.mark.parametrize(("body", "message"), REFUSED.values(), ids=REFUSED)
@pytest.mark.parametrize("bytewise", [False, True])
def test_bodies_that_are_refused(body: bytes, message: str, bytewise: bool) -> None:
    pieces = cut(body, range(len(body))) if bytewise else [body]

    with pytest.raises(MultipartError, match=message) as caught:
        read(FORM, *pieces)

    assert caught.value.code == "invalid_multipart"
    assert caught.value.hint


def test_too_many_parts() -> None:
    three = part(NAMED) * 3 + END

    assert len(read(FORM, three, max_parts=3)) == 3
    with pytest.raises(MultipartError, match="more than 2 parts"):
        read(FORM, three, max_parts=2)


def test_parts_before_an_error_are_read_and_the_error_stays() -> None:
    body = part(NAMED, b"good") + part("x y: z")

    async def some() -> None:
        parts = read_parts(FORM, pieces_of([body]))
        item = await anext(parts)
        assert await item.text() == "good"
        for _ in range(2):
            with pytest.raises(MultipartError, match="part 2"):
                await item._reader.next_part()

    asyncio.run(some())


def test_an_error_in_the_middle_of_a_file_reaches_who_reads_it() -> None:
    async def some() -> None:
        parts = read_parts(FORM, pieces_of([part(NAMED, b"data")[:-3]]))
        item = await anext(parts)
        chunks = item.chunks()
        assert await anext(chunks) == b"dat"
        with pytest.raises(MultipartError, match="ends before"):
            await anext(chunks)

    asyncio.run(some())


@pytest.mark.parametrize(("size", "limit"), [(11, 10), (70_000, None)])
def test_text_has_a_limit(size: int, limit: int | None) -> None:
    async def text() -> str:
        item = await anext(read_parts(FORM, pieces_of([part(NAMED, b"x" * size) + END])))
        return await (item.text() if limit is None else item.text(limit))

    with pytest.raises(
        MultipartError, match=f"'n' is longer than {limit or 65536} bytes"
    ) as caught:
        asyncio.run(text())
    assert caught.value.hint


@pytest.mark.parametrize(("content", "good"), [("größe".encode(), True), (b"\xff", False)])
def test_text_is_utf8(content: bytes, good: bool) -> None:
    async def text() -> str:
        item = await anext(read_parts(FORM, pieces_of([part(NAMED, content) + END])))
        return await item.text(len(content))

    if good:
        assert asyncio.run(text()) == "größe"
    else:
        with pytest.raises(MultipartError, match="'n' is not UTF-8"):
            asyncio.run(text())


def test_an_error_of_the_network_is_not_a_multipart_error() -> None:
    async def lost() -> AsyncIterator[bytes]:
        yield part(NAMED, b"data")[:-3]
        raise ConnectionResetError

    async def some() -> None:
        async for item in read_parts(FORM, lost()):
            await item.text()

    with pytest.raises(ConnectionResetError):
        asyncio.run(some())
