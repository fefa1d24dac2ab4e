"""The digest of weights says when they are the same, and only then."""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import save, save_file

from grasp_core.content import ContentDigest, digest_content
from grasp_core.errors import CheckpointError
from grasp_core.manifest import Found

Tensors = dict[str, np.ndarray[Any, Any]]


def tensors(**changes: Any) -> Tensors:
    rng = np.random.default_rng(0)
    return {
        "stem.weight": rng.standard_normal((4, 3), dtype=np.float32),
        "stem.bias": np.arange(4, dtype=np.float16),
        "seen": np.array(7, dtype=np.int64),
        "nothing": np.zeros((0, 3), dtype=np.float32),
        "nichts Ü": np.zeros((2, 0), dtype=np.int8),
        **changes,
    }


def naive(path: Path) -> str:
    """As the module's docstring says it, with each tensor as safetensors gives it."""
    digests = []
    with safe_open(path, framework="np") as file:
        for name in file.keys():  # noqa: SIM118
            about = file.get_slice(name)
            text = json.dumps([name, about.get_dtype(), *about.get_shape()])
            content = file.get_tensor(name).tobytes()
            digests.append(hashlib.sha256(hashlib.sha256(text.encode()).digest() + content))
    return hashlib.sha256(b"".join(sorted(each.digest() for each in digests))).hexdigest()


def digest(folder: Path, tensors: Tensors, metadata: dict[str, str] | None = None) -> str:
    save_file(tensors, folder / "w", metadata)
    content = digest_content(folder / "w")
    assert content == naive(folder / "w")
    return content


def by_hand(folder: Path, **entries: tuple[list[int], bytes]) -> str:
    """The content of U8 tensors, laid down in this order."""
    header, data = {}, b""
    for name, (shape, values) in entries.items():
        offsets = [len(data), len(data) + len(values)]
        header[name] = {"dtype": "U8", "shape": shape, "data_offsets": offsets}
        data += values
    text = json.dumps(header).encode()
    (folder / "w").write_bytes(len(text).to_bytes(8, "little") + text + data)
    content = digest_content(folder / "w")
    assert content == naive(folder / "w")
    return content


def test_metadata_and_order_change_nothing(tmp_path: Path) -> None:
    content = digest(tmp_path, tensors())

    assert digest(tmp_path, tensors(), {"epoch": "3"}) == content
    a, b = ([2], b"ab"), ([3], b"cde")
    assert by_hand(tmp_path, a=a, b=b) == by_hand(tmp_path, b=b, a=a)


CHANGES: dict[str, Any] = {
    "a value": {"seen": np.array(8, dtype=np.int64)},
    "a sign": {"stem.bias": np.array([-0.0, 1, 2, 3], dtype=np.float16)},
    "a type": {"seen": np.array(7, dtype=np.uint64)},
    "a shape": {"seen": np.array([7], dtype=np.int64)},
    "the shape of nothing": {"nothing": np.zeros((3, 0), dtype=np.float32)},
    "one more": {"more": np.zeros(0, dtype=np.float32)},
}


@pytest.mark.parametrize("change", CHANGES)
def test_whatever_else_is_changed_makes_other_weights(change: str, tmp_path: Path) -> None:
    assert digest(tmp_path, tensors(**CHANGES[change])) != digest(tmp_path, tensors())


def test_bytes_belong_to_their_tensor(tmp_path: Path) -> None:
    contents = [
        by_hand(tmp_path, a=([2], b"ab"), b=([3], b"cde")),
        by_hand(tmp_path, a=([3], b"abc"), b=([2], b"de")),
        by_hand(tmp_path, a=([2], b"cd"), b=([3], b"eab")),
        by_hand(tmp_path, b=([2], b"ab"), a=([3], b"cde")),
        by_hand(tmp_path, ab=([5], b"abcde")),
    ]

    assert len(set(contents)) == len(contents)


def test_two_tensors_that_swap_their_values_are_other_weights(tmp_path: Path) -> None:
    one, two = ([2], b"ab"), ([2], b"cd")
    assert by_hand(tmp_path, a=one, b=two) != by_hand(tmp_path, a=two, b=one)


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_bytes_may_come_in_pieces_of_any_size(size: int, tmp_path: Path) -> None:
    data = save(tensors())
    start = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:start])
    found = {name: Found(tuple(e["shape"]), e["dtype"]) for name, e in header.items()}
    fed = ContentDigest(found, [place for e in header.values() for place in e["data_offsets"]])

    for first in range(start, len(data), size):
        fed.feed(data[first : first + size])

    assert fed.hexdigest() == fed.hexdigest() == digest(tmp_path, tensors())


def test_tensors_may_all_be_empty(tmp_path: Path) -> None:
    content = digest(tmp_path, {"a": np.zeros(0), "b": np.zeros((0, 2))})
    assert content != digest(tmp_path, {"a": np.zeros(0)})


@pytest.mark.parametrize("text", [b"", b"[]", b'{"a": 1}', b'{"a": {"dtype": "U8"}}', b"\xff"])
def test_a_damaged_header_is_told(text: bytes, tmp_path: Path) -> None:
    (tmp_path / "w").write_bytes(len(text).to_bytes(8, "little") + text)

    with pytest.raises(CheckpointError, match="the header of w is damaged"):
        digest_content(tmp_path / "w")
