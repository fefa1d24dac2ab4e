"""What weights are, whatever file they came in: a digest of their tensors.

    content = sha256(sorted(sha256(sha256(JSON of [name, dtype, *shape]) + bytes) of each tensor))

Metadata, order and padding of a file are not in it, nor are its class names. The tensors' own
digests are sorted, not their names, so that no name is kept while gigabytes arrive.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path

from grasp_core.errors import CheckpointError
from grasp_core.manifest import Found

PIECE = 1 << 20  # bytes read at once


class ContentDigest:
    """Takes the bytes of all tensors as they lie in a safetensors file, one behind the other.

    `offsets` are begin and end of each tensor, in the order of `tensors`, from the first byte that
    belongs to one, and without holes. What is fed behind the last is passed over.
    """

    def __init__(self, tensors: Mapping[str, Found], offsets: Sequence[int]) -> None:
        ordered = sorted(zip(offsets[::2], offsets[1::2], tensors.items(), strict=True))
        self._ends = array("q", (end for _, end, _ in ordered))
        self._digests = [_describe(name, found) for _, _, (name, found) in ordered]
        self._position = 0
        self._number = 0  # of the tensor to which the next byte belongs
        self._begin()

    def feed(self, data: bytes | memoryview) -> None:
        rest = memoryview(data).cast("B")
        while self._number < len(self._ends):
            count = min(len(rest), self._ends[self._number] - self._position)
            self._digest.update(rest[:count])
            self._position += count
            if self._position < self._ends[self._number]:
                return
            rest = rest[count:]
            self._digests[self._number] = self._digest.digest()
            self._number += 1
            self._begin()

    def hexdigest(self) -> str:
        """Once all bytes were fed."""
        self.feed(b"")  # nobody has, if all tensors are empty
        return sha256(b"".join(sorted(self._digests))).hexdigest()

    def _begin(self) -> None:
        self._digest = sha256(b"".join(self._digests[self._number : self._number + 1]))


def digest_content(path: Path) -> str:
    """Of a file that was found to be safetensors before. Raises CheckpointError, OSError."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        try:
            tensors, offsets = _read_header(file.read(length))
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise CheckpointError(f"the header of {path.name} is damaged: {error}") from error
        content = ContentDigest(tensors, offsets)
        while data := file.read(PIECE):
            content.feed(data)
    return content.hexdigest()


def _read_header(text: bytes) -> tuple[dict[str, Found], list[int]]:
    entries = json.loads(text)
    entries.pop("__metadata__", None)
    tensors = {name: Found(tuple(e["shape"]), e["dtype"]) for name, e in entries.items()}
    return tensors, [place for e in entries.values() for place in e["data_offsets"]]


def _describe(name: str, found: Found) -> bytes:
    return sha256(json.dumps([name, found.dtype, *found.shape]).encode()).digest()
