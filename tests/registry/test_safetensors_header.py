"""The header reader accepts what safetensors wrote, and refuses everything else, saying why."""

import gc
import gzip
import io
import json
import os
import pickle
import re
import tracemalloc
import zipfile
from array import array
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
import safetensors.torch
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open

from grasp_core.checkpoints import write_safetensors
from grasp_core.errors import CheckpointError
from grasp_core.manifest import Found
from registry.blobs.safetensors_header import Header, HeaderReader


def entry(
    dtype: object = "F32", shape: object = (2,), offsets: object = (0, 8)
) -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


def pack(header: object, size: int = 8) -> bytes:
    """A file of this header (JSON as text, or something to dump) and `size` bytes of tensors."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + bytes(size)


def one(**changes: object) -> bytes:
    return pack({"w": entry(**changes)})


def literal(shape: str = "[2]", offsets: str = "[0,8]", dtype: str = '"F32"') -> bytes:
    text = f'{{"w":{{"dtype":{dtype},"shape":{shape},"data_offsets":{offsets}}}}}'
    return pack(text.encode())


def outcome(chunks: Iterable[bytes | memoryview]) -> Header | str:
    reader, arrived, header = HeaderReader(), bytearray(), None
    try:
        for chunk in chunks:
            complete = reader.feed(chunk)
            arrived += chunk
            if complete:
                assert header is None
                header = reader.read(reading(arrived))
        reader.finish()
    except CheckpointError as error:
        return str(error)
    assert header is not None
    return header


def reading(data: bytes | bytearray) -> Callable[[int, int], bytes]:
    return lambda first, count: bytes(data[first : first + count])


def read_header(path: Path) -> Header:
    """As a file that arrives is read: from where its bytes were written."""
    reader, header = HeaderReader(path.name), None
    with path.open("rb") as file:
        while data := file.read(2**16):
            if reader.feed(data):
                header = reader.read(lambda first, count: os.pread(file.fileno(), count, first))
    reader.finish()
    assert header is not None
    return header


def bytes_until_refused(data: bytes) -> int:
    reader = HeaderReader()
    for count in range(len(data)):
        try:
            if reader.feed(data[count : count + 1]):
                reader.read(reading(data[: count + 1]))
        except CheckpointError:
            return count + 1
    raise AssertionError("never refused")


def torch_zip() -> bytes:
    file = io.BytesIO()
    torch.save({"w": torch.zeros(2)}, file)
    return file.getvalue()


def torch_legacy() -> bytes:
    file = io.BytesIO()
    torch.save({"w": torch.zeros(2)}, file, _use_new_zipfile_serialization=False)
    return file.getvalue()


def npz() -> bytes:
    file = io.BytesIO()
    np.savez(file, x=np.zeros(2), y=np.zeros(2))
    return file.getvalue()


def zip_of(name: str) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(name, b"\0" * 100)
    return file.getvalue()


def empty_zip() -> bytes:
    file = io.BytesIO()
    zipfile.ZipFile(file, "w").close()
    return file.getvalue()


GOOD = one()
ENTRY = GOOD[13:-9]  # {"dtype": … }
TWO = {"a": entry(offsets=(0, 8)), "b": entry(offsets=(8, 16))}
LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 3\n"
BROKEN: dict[str, tuple[bytes, str]] = {  # what: (bytes, what the message says)
    # other things than safetensors
    "empty": (b"", "is empty"),
    "torch zip": (torch_zip(), "it is a zip archive, as torch.save .* writes .*grasp convert"),
    "npz": (npz(), "it is a NumPy archive .*: target data, not weights .*grasp targets create"),
    "cut npz": (npz()[:32], r"it is a zip archive \(unpack it"),
    "zip": (zip_of("cats/1.png"), r"it is a zip archive \(unpack it"),
    "a zip of a long name": (zip_of("x" * 60_000 + ".npy"), r"it is a zip archive \(unpack it"),
    "empty zip": (empty_zip(), r"it is a zip archive \(unpack it"),
    "torch legacy": (torch_legacy(), "it is a pickle .*grasp convert"),
    "pickle 3": (pickle.dumps({"w": 1}, protocol=3), "it is a pickle"),
    "pickle 4": (pickle.dumps({"w": list(range(99))}, protocol=4), "it is a pickle"),
    "pickle 5": (pickle.dumps({"w": list(range(99))}, protocol=5), "it is a pickle"),
    "gzip, no time": (gzip.compress(GOOD, mtime=0), "it is compressed with gzip .*gunzip"),
    "gzip, time": (gzip.compress(GOOD, mtime=1_700_000_000), "it is compressed with gzip"),
    "doctype": (b"<!DOCTYPE html><html>no</html>", r"it is a web page \(HTML\) .*download"),
    "html": (b"<html><body>Sign in</body></html>", "it is a web page"),
    "short html": (b"<html>", "it is a web page"),
    "xml": (b'<?xml version="1.0"?><Error/>', "it is an XML document"),
    "lfs": (LFS, "it is a Git LFS pointer.*git lfs pull"),
    "gguf": (b"GGUF\x03\x00\x00\x00" + bytes(16), "it is a GGUF file"),
    "hdf5": (b"\x89HDF\r\n\x1a\n" + bytes(16), "it is an HDF5 file"),
    "index": (b'{"metadata": {}, "weight_map": {}}', "it is JSON, perhaps the index"),
    "text": (b"hello world, this is text", r"it is text \(send the checkpoint itself"),
    "short text": (b"hello\n", r"it is text \(send the checkpoint itself"),
    "text and more": (b"hello\xff\xff\xff", "announce a header of"),
    # the length
    "three bytes": (GOOD[:3], "ends within the length of its header: 5 bytes are missing"),
    "length 0": (bytes(20), "announce a header of 0 bytes"),
    "length 16 MiB + 1": ((2**24 + 1).to_bytes(8, "little") + b"{", "of 16777217 bytes, not of 1"),
    "length 2^64 - 1": (b"\xff" * 20, "a header of 18446744073709551615 bytes"),
    "cut in the header": (GOOD[:20], r"ends within the header: \d+ bytes are missing"),
    "cut before the header": (GOOD[:8], r"ends within the header: \d+ bytes are missing"),
    "cut, its length like gzip": (
        pack(GOOD[8:-8].ljust(0x8B1F))[:100],
        r"ends within the header: \d+ bytes are missing",
    ),
    "cut in the data": (GOOD[:-3], r"ends within its tensors: 3 of \d+ bytes are missing"),
    "excess": (GOOD + b"x", r"is longer than the \d+ bytes that its header announces"),
    # the JSON
    "array": (pack(b"[1]"), r"its header begins with b'\[', not with '{'"),
    "space first": (pack(b" " + GOOD[8:-8]), "its header begins with b' '"),
    "byte order mark": (pack(b"\xef\xbb\xbf" + GOOD[8:-8]), r"begins with b'\\xef'"),
    "half JSON": (pack(b'{"w":{"dtype"'), r"it is not JSON: Expecting ':'.* \(character 13\)"),
    "junk after": (pack(GOOD[8:-8] + b" x"), "it is not JSON: Extra data"),
    "NUL padding": (pack(GOOD[8:-8] + b"\0"), "it is not JSON: Extra data"),
    "two objects": (pack(GOOD[8:-8] * 2, 8), "it is not JSON: Extra data"),
    "UTF-8": (pack(b'{"\xff":1}'), "it is not UTF-8 at its byte 2"),
    "UTF-8 surrogate": (pack(b'{"\xed\xa0\x80":1}'), "it is not UTF-8 at its byte 2"),
    "overlong UTF-8": (pack(b'{"\xc1\x81":1}'), "it is not UTF-8 at its byte 2"),
    "deep": (pack(b'{"w":' + b"[" * 100_000), "nested too deeply"),
    "rather deep": (literal(shape="[" * 600 + "]" * 600), r"'w': shape is \[\[…\]\], not a list"),
    "deep objects": (pack(b'{"w":' + b'{"w":' * 100_000), "nested too deeply"),
    "many values": (pack(b'{"w":[' + b"[]," * 2_000_000), "character 5 has more than 65536 char"),
    "a long value": (pack(b'{"w":"' + b"x" * 300_000), "character 5 has more than 65536 char"),
    "a long key": (pack(b'{"' + b"x" * 300_000), "character 1 has more than 65536 characters"),
    "much space": (
        pack(b'{"w":{"dtype":' + b" " * 65536 + GOOD[22:-8]),
        "character 5 has more than 65536 characters",
    ),
    "no tensors": (pack({}, 0), "it holds no tensors"),
    "only metadata": (pack({"__metadata__": {"a": "b"}}, 0), "it holds no tensors"),
    "50,001 tensors": (
        pack({str(n): entry("U8", [0], [0, 0]) for n in range(50_001)}, 0),
        "it holds more than 50000 tensors",
    ),
    "long names": (
        pack({f"{n:05}".ljust(500, "x"): entry("U8", [0], [0, 0]) for n in range(9_000)}, 0),
        "the names of its tensors have more than 4194304 characters",
    ),
    # keys
    "tensor twice": (
        pack(b'{"w":%b,"v":%b,"w":3}' % (ENTRY, ENTRY)),
        "the header has the key 'w' twice",
    ),
    "tensor twice, escaped": (
        pack(b'{"w":%b,"\\u0077":3}' % ENTRY),
        "the header has the key 'w' twice",
    ),
    "dtype twice": (
        pack(b'{"w":{"dtype":"F32","dtype":"F32","shape":[2],"data_offsets":[0,8]}}'),
        "tensor 'w' has the key 'dtype' twice",
    ),
    "metadata twice": (
        pack(b'{"__metadata__":{},"__metadata__":{}}'),
        "the key '__metadata__' twice",
    ),
    "metadata key twice": (
        pack(b'{"__metadata__":{"a":"1","a":"1"}}'),
        "__metadata__ has the key 'a' twice",
    ),
    "no dtype": (pack({"w": {"shape": [2], "data_offsets": [0, 8]}}), "tensor 'w' lacks dtype"),
    "no shape": (pack({"w": {"dtype": "F32", "data_offsets": [0, 8]}}), "'w' lacks shape"),
    "no offsets": (pack({"w": {"dtype": "F32", "shape": [2]}}), "'w' lacks data_offsets"),
    "extra key": (pack({"w": {**entry(), "stride": [1]}}), "'w' has the unknown key 'stride'"),
    "entry is a list": (pack({"w": [1, 2]}), r"tensor 'w' is \[1, 2\], not an object"),
    "entry is null": (pack({"w": None}), "tensor 'w' is None, not an object"),
    "entry is NaN": (pack(b'{"w":NaN}'), "tensor 'w' is NaN, not an object"),
    # names
    "empty name": (pack({"": entry()}), "1 to 512 characters, not 0"),
    "long name": (pack({"w" * 513: entry()}), "1 to 512 characters, not 513"),
    "newline in name": (pack({"a\nb": entry()}), r"tensor 'a\\nb': a name has only printable"),
    "raw newline": (pack(b'{"a\nb":1}'), "it is not JSON: Invalid control character"),
    "NUL in name": (pack({"a\0": entry()}), "only printable"),
    "right-to-left": (pack({"a\u202eb": entry()}), "only printable"),
    "lone surrogate": (pack(b'{"\\ud800":1}'), r"tensor '\\ud800': a name has only printable"),
    # dtypes
    "F4": (one(dtype="F4"), "tensor 'w' has the dtype 'F4', not one of BOOL"),
    "F6": (one(dtype="F6_E2M3"), "'w' has the dtype 'F6_E2M3', not one of"),
    "unknown dtype": (one(dtype="float32"), "'w' has the dtype 'float32', not one of"),
    "lower case": (one(dtype="f32"), "'w' has the dtype 'f32'"),
    "dtype is a number": (one(dtype=32), "'w' has the dtype 32"),
    "dtype is a list": (one(dtype=["F32"]), r"'w' has the dtype \['F32'\]"),
    "dtype is an object": (one(dtype={}), "'w' has the dtype an object"),
    # shapes
    "negative": (one(shape=[-2]), r"tensor 'w': shape is \[-2\], not a list of whole numbers"),
    "minus zero": (literal(shape="[-0]", offsets="[0,0]"), r"shape is \[-0\]"),
    "float": (one(shape=[2.0]), r"shape is \[2.0\]"),
    "exponent": (literal(shape="[2e0]"), r"shape is \[2e0\]"),
    "NaN": (literal(shape="[NaN]"), r"shape is \[NaN\]"),
    "infinite": (literal(shape="[-Infinity]"), r"shape is \[-Infinity\]"),
    "bool": (one(shape=[True, 2]), r"shape is \[True, 2\]"),
    "strings": (one(shape=["2"]), r"shape is \['2'\]"),
    "shape is a number": (one(shape=2), "shape is 2, not a list"),
    "shape is null": (one(shape=None), "shape is None, not a list"),
    "shape is an object": (one(shape={}), "shape is an object, not a list"),
    "2^63": (one(shape=[2**63]), r"shape is \[9223372036854775808\]"),
    "10,000 digits": (literal(shape=f"[{'9' * 10_000}]"), r"shape is \[9{58}…, not a list"),
    "rank 9": (one(shape=[1] * 9), "'w' has 9 dimensions, more than 8"),
    "overflow": (one(shape=[2**40, 2**40]), "'w' is impossibly large: shape"),
    "overflow, then 0": (
        one(shape=[2**40, 2**40, 0], offsets=[0, 0]),
        "'w' is impossibly large",
    ),
    # offsets
    "backwards": (one(offsets=[8, 0]), r"'w': data_offsets are \[8, 0\], not \[begin, end\]"),
    "one offset": (one(offsets=[8]), r"data_offsets are \[8\], not"),
    "three offsets": (one(offsets=[0, 8, 8]), r"data_offsets are \[0, 8, 8\], not"),
    "float offset": (one(offsets=[0, 8.0]), r"'w': data_offsets is \[0, 8.0\], not a list"),
    "bool offset": (one(offsets=[False, 8]), r"'w': data_offsets is \[False, 8\]"),
    "negative offset": (one(offsets=[-8, 0]), r"'w': data_offsets is \[-8, 0\]"),
    "huge offset": (one(offsets=[0, 10**30]), "'w': data_offsets is"),
    "offsets are null": (one(offsets=None), "'w': data_offsets is None"),
    "too few bytes": (one(offsets=[0, 7]), r"'w' has 7 bytes, but F32 \[2\] needs 8"),
    "too many bytes": (one(shape=[]), r"'w' has 8 bytes, but F32 \[\] needs 4"),
    "empty with bytes": (one(shape=[0, 2]), r"'w' has 8 bytes, but F32 \[0, 2\] needs 0"),
    "hole at the start": (
        pack({"w": entry(offsets=[8, 16])}, 16),
        "'w' leaves a hole: it begins at 8 instead of 0",
    ),
    "hole": (
        pack({**TWO, "b": entry(offsets=[12, 20])}, 20),
        "tensor 'b' leaves a hole: it begins at 12 instead of 8",
    ),
    "overlap": (
        pack({**TWO, "b": entry(offsets=[4, 12])}, 12),
        "tensor 'b' overlaps with another: it begins at 4 instead of 8",
    ),
    "same bytes": (pack({"a": entry(), "b": entry()}), "tensor 'b' overlaps with another"),
    "empty inside another": (
        pack({"a": entry(), "b": entry("F32", [0], [4, 4])}),
        "tensor 'b' overlaps with another",
    ),
    "empty beyond the end": (
        pack({"a": entry(), "b": entry("F32", [0], [99, 99])}),
        "tensor 'b' leaves a hole",
    ),
    # metadata
    "metadata is a list": (
        pack({"__metadata__": [], "w": entry()}),
        "__metadata__ is .*not an obj",
    ),
    "metadata is null": (pack({"__metadata__": None, "w": entry()}), "__metadata__ is None"),
    "metadata number": (
        pack({"__metadata__": {"epoch": 3}, "w": entry()}),
        "__metadata__: 'epoch' is 3, not a string",
    ),
    "metadata float": (
        pack({"__metadata__": {"lr": 0.1}, "w": entry()}),
        "__metadata__: 'lr' is 0.1, not a string",
    ),
    "metadata object": (pack({"__metadata__": {"a": {}}, "w": entry()}), "'a' is an object, not a"),
    "metadata surrogate": (
        pack(b'{"__metadata__":{"a":"\\udfff"}}'),
        "__metadata__: 'a' holds characters that are not text",
    ),
    "metadata NUL": (
        pack({"__metadata__": {"a": "\0"}, "w": entry()}),
        "__metadata__: 'a' holds characters that are not text",
    ),
    "metadata key": (pack({"__metadata__": {"\n": "b"}, "w": entry()}), "only printable"),
    "metadata long": (
        pack({"__metadata__": {"a": "b" * 2**20}, "w": entry()}),
        "__metadata__ has more than 1048576 characters",
    ),
    "metadata longer": (
        pack(b'{"__metadata__":{"a":"' + b"x" * 3_000_000),
        "the value at its character 21 has more than 2097152 characters",
    ),
    "metadata text without an end": (
        pack(b'{"__metadata__":{"a":"' + b"x" * 300_000),
        "it is not JSON: Unterminated string",
    ),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_a_broken_file_is_refused_saying_what_and_where(kind: str, tmp_path: Path) -> None:
    data, message = BROKEN[kind]
    path = tmp_path / "weights.bin"
    path.write_bytes(data)

    refusal = outcome([data])

    assert isinstance(refusal, str)
    assert re.search(message, refusal)
    assert len(refusal) < 400
    with pytest.raises(CheckpointError, match=message) as info:
        read_header(path)
    assert info.value.message.startswith("weights.bin ")
    assert info.value.hint
    info.value.message.encode()  # whatever the file holds, the message can be sent


@pytest.mark.parametrize(
    ("kind", "count"),
    [
        ("text", 8),
        ("length 0", 8),
        ("torch zip", 46),
        ("npz", 35),
        ("array", 9),
        ("excess", len(GOOD) + 1),
    ],
)
def test_a_wrong_file_is_refused_at_the_first_wrong_byte(kind: str, count: int) -> None:
    assert bytes_until_refused(BROKEN[kind][0]) == count


def test_a_bad_header_is_refused_before_the_tensors_arrive() -> None:
    assert bytes_until_refused(BROKEN["overlap"][0]) == len(BROKEN["overlap"][0]) - 12


@pytest.mark.parametrize("kind", ["text", "array", "overlap", "excess"])
def test_a_refused_file_stays_refused(kind: str) -> None:
    reader, data = HeaderReader(), BROKEN[kind][0]
    with pytest.raises(CheckpointError) as first:  # noqa: PT012 - in which step depends on the kind
        if reader.feed(data):
            reader.read(reading(data))

    with pytest.raises(CheckpointError, match=re.escape(first.value.message)):
        reader.feed(GOOD)
    with pytest.raises(CheckpointError, match=re.escape(first.value.message)):
        reader.read(reading(GOOD))
    with pytest.raises(CheckpointError, match=re.escape(first.value.message)):
        reader.finish()


def test_the_header_is_said_to_be_complete_once_and_can_be_read_again() -> None:
    reader = HeaderReader()

    complete = [reader.feed(part) for part in (GOOD[:20], GOOD[20:-1])]
    headers = [reader.read(reading(GOOD)) for _ in range(2)]
    complete.append(reader.feed(GOOD[-1:]))
    reader.finish()

    assert complete == [False, True, False]
    offsets = array("q", [0, 8])
    assert headers == [Header({"w": Found((2,), "F32")}, {}, len(GOOD), offsets)] * 2
    assert headers[0].start == len(GOOD) - 8


# What safetensors writes


def assert_as_safetensors_says(path: Path) -> Header:
    header = read_header(path)
    with safe_open(path, framework="pt") as file:
        slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
        theirs = {n: Found(tuple(s.get_shape()), s.get_dtype()) for n, s in slices.items()}
        assert header.tensors == theirs
        assert header.metadata == (file.metadata() or {})
    assert header.size == path.stat().st_size
    return header


SHAPES: list[tuple[int, ...]] = [(), (0,), (1,), (3, 0, 2), (5, 7), (1,) * 8]
FLOAT8 = ["e4m3fn", "e5m2", "e4m3fnuz", "e5m2fnuz", "e8m0fnu"]
TORCH = [
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.complex64, torch.bool),
    *(torch.int64, torch.int32, torch.int16, torch.int8),
    *(torch.uint64, torch.uint32, torch.uint16, torch.uint8),
    *(getattr(torch, f"float8_{kind}") for kind in FLOAT8),
]


@pytest.mark.parametrize("dtype", TORCH, ids=str)
def test_every_dtype_and_shape_of_torch_is_read(dtype: torch.dtype, tmp_path: Path) -> None:
    tensors = {f"t{shape}": torch.zeros(shape, dtype=dtype) for shape in SHAPES}
    safetensors.torch.save_file(tensors, tmp_path / "w", metadata={"format": "pt"})

    header = assert_as_safetensors_says(tmp_path / "w")

    assert {found.shape for found in header.tensors.values()} == set(SHAPES)


@pytest.mark.parametrize("kind", ["f8", "f4", "f2", "i8", "i4", "i2", "i1", "u8", "u1", "?", "c8"])
def test_every_dtype_of_numpy_is_read(kind: str, tmp_path: Path) -> None:
    arrays = {f"t{shape}": np.zeros(shape, dtype=kind) for shape in SHAPES}
    safetensors.numpy.save_file(arrays, tmp_path / "w")

    assert_as_safetensors_says(tmp_path / "w")


def test_all_dtypes_in_one_file_with_unusual_names_and_metadata(tmp_path: Path) -> None:
    tensors = {
        f"blöcke[{n}], {dtype} 層": torch.zeros(n, dtype=dtype) for n, dtype in enumerate(TORCH)
    }
    metadata = {"notes": 'two\nlines, "quoted" \U0001f600', "empty": ""}
    safetensors.torch.save_file(tensors, tmp_path / "w", metadata=metadata)

    assert assert_as_safetensors_says(tmp_path / "w").metadata == metadata


def test_dtypes_smaller_than_a_byte_are_refused_by_name(tmp_path: Path) -> None:
    half = torch.zeros(2, dtype=torch.uint8).view(torch.float4_e2m1fn_x2)
    safetensors.torch.save_file({"w": half}, tmp_path / "w")

    with pytest.raises(CheckpointError, match="tensor 'w' has the dtype 'F4', not one of"):
        read_header(tmp_path / "w")


def test_what_grasp_core_writes_is_read(tmp_path: Path) -> None:
    tensors = {"a": torch.zeros(3), "b": torch.zeros((), dtype=torch.int64), "c": torch.zeros(2, 4)}
    write_safetensors(tmp_path / "w", tensors, {"format": "pt"})

    header = assert_as_safetensors_says(tmp_path / "w")

    assert header.tensors["c"] == Found((2, 4), "F32")


def test_empty_tensors_may_lie_anywhere_between_the_others(tmp_path: Path) -> None:
    empty = {f"at {place}": entry("F32", [0], [place, place]) for place in (8, 0, 16)}
    (tmp_path / "w").write_bytes(pack({**TWO, **empty}, 16))

    assert len(assert_as_safetensors_says(tmp_path / "w").tensors) == 5


def test_the_limits_themselves_are_allowed(tmp_path: Path) -> None:
    names = [f"{n:0>5}".rjust(512, "x") if n < 9 else f"layer[{n}]" for n in range(50_000)]
    tensors = {name: entry("U8", [1] * 7 + [0], [0, 0]) for name in names}
    data = pack({"__metadata__": {"a": "[" * (2**20 - 1)}, **tensors}, 0)
    (tmp_path / "w").write_bytes(pack(data[8:].ljust(2**24), 0))

    assert len(assert_as_safetensors_says(tmp_path / "w").tensors) == 50_000


MANY = {str(n): entry("U8", [0], [0, 0]) for n in range(240_000)}
FACE = "\N{GRINNING FACE}"  # one such character, and each of a text takes four bytes
HOSTILE = {
    "many tensors": json.dumps(MANY).encode(),
    "many values": b'{"w":[' + b"[]," * (5 << 20),
    "many keys": b'{"w":{' + b'"a":0,' * (2 << 20),
    "much metadata": b'{"__metadata__":{"a":"' + FACE.encode() + b"x" * (15 << 20),
    "many texts": b'{"__metadata__":{' + b",".join(b'"%d":""' % n for n in range(1_000_000)),
    "a long name": b'{"' + FACE.encode() + b"x" * (15 << 20),
    "spaces": b"{" + b" " * (15 << 20),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_what_a_header_takes_in_memory_has_an_end(kind: str, tmp_path: Path) -> None:
    """Sixteen megabytes that, read as JSON, would be up to four hundred."""
    path = tmp_path / "w"
    path.write_bytes(pack(HOSTILE[kind], 0))

    tracemalloc.start()
    with pytest.raises(CheckpointError):
        read_header(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert peak < 32e6


def test_a_refused_file_keeps_nothing_of_its_header() -> None:
    names = [f"{n:05}".ljust(400, "x") for n in range(9_999)]
    data = pack({**dict.fromkeys(names, entry("U8", [0], [0, 0])), "w": 1}, 0)
    reader = HeaderReader()
    reader.feed(data)

    tracemalloc.start()
    gc.disable()  # what only a collection finds stays until there is one
    try:
        with pytest.raises(CheckpointError) as caught:
            reader.read(reading(data))
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        gc.enable()
        tracemalloc.stop()

    assert "tensor 'w' is 1" in caught.value.message
    assert kept < 100_000


# Any chunks, any damage


def cut(data: bytes, places: list[int]) -> list[memoryview]:
    ends = sorted({place % (len(data) + 1) for place in places} | {len(data)})
    return [memoryview(data)[a:b] for a, b in zip([0, *ends], ends, strict=False)]


SMALL = {kind: data for kind, (data, _) in BROKEN.items() if len(data) < 5_000}
SMALL |= {"good": GOOD, "two": pack(TWO, 16), "padded": pack(GOOD[8:-8] + b" " * 50)}


@given(st.sampled_from(sorted(SMALL)), st.lists(st.integers(0, 5_000), max_size=20))
def test_the_answer_does_not_depend_on_the_chunks(kind: str, places: list[int]) -> None:
    data = SMALL[kind]

    assert outcome(cut(data, places)) == outcome([data])
    assert isinstance(outcome([data]), str) == (kind in BROKEN)


VALID = safetensors.torch.save(
    {
        "conv.weight": torch.zeros(2, 3, dtype=torch.float16),
        "conv.bias": torch.zeros(2),
        "empty": torch.zeros(0, 4),
        "steps": torch.zeros((), dtype=torch.int64),
    },
    metadata={"format": "pt"},
)
HEADER_END = 8 + int.from_bytes(VALID[:8], "little")


def assert_refused_or_opened(data: bytes, path: Path) -> None:
    """Whatever our reader accepts, the safetensors library opens, and reads the same."""
    path.write_bytes(data)
    header = outcome([data])
    if isinstance(header, Header):
        assert assert_as_safetensors_says(path) == header


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzz") / "w"


@given(
    st.lists(st.tuples(st.integers(0, HEADER_END - 1), st.integers(0, 255)), min_size=1, max_size=4)
)
def test_changed_bytes_are_refused_or_harmless(scratch: Path, flips: list[tuple[int, int]]) -> None:
    data = bytearray(VALID)
    for place, value in flips:
        data[place] = value

    assert_refused_or_opened(bytes(data), scratch)


PIECES = re.findall(rb'"[^"]*"|\d+|[^"\d]', VALID[8:HEADER_END])
ODD = [
    *(
        b"-0",
        b"0",
        b"00",
        b"1",
        b"8",
        b"12",
        b"1.0",
        b"1e0",
        b"1E400",
        b"-1",
        b"+1",
        b"0x1",
        b"1_0",
    ),
    *(b"9223372036854775807", b"9223372036854775808", b"18446744073709551616", b"9" * 5_000),
    *(b"NaN", b"Infinity", b"-Infinity", b"true", b"null", b"[]", b"{}", b"[0,0]", b"\xd9\xa3"),
    *(b'""', b'"\\ud800"', b'"\\u0000"', b'"F32"', b'"F4"', b'"F8_E8M0"', b'"shape"', b'"\\x"'),
    *(b",", b":", b"]", b"}", b"[", b"{", b" ", b"\n", b"\t", b"\0", b"\xff", b"\x0c", b"\xc2\xa0"),
    *(b'"__metadata__"', b"/**/", b"'a'", b"", b'"e\xcc\x81"', b'"\xf0\x9f\x98\x80"'),
]


@given(
    st.lists(
        st.tuples(st.integers(0, len(PIECES) - 1), st.sampled_from(ODD + PIECES)),
        min_size=1,
        max_size=3,
    )
)
def test_changed_words_are_refused_or_harmless(
    scratch: Path, changes: list[tuple[int, bytes]]
) -> None:
    pieces = list(PIECES)
    for place, piece in changes:
        pieces[place] = piece
    data = pack(b"".join(pieces), 0) + VALID[HEADER_END:]

    assert_refused_or_opened(data, scratch)


@given(st.binary(max_size=200))
def test_any_bytes_are_refused(data: bytes) -> None:
    assert isinstance(outcome([data]), str)
