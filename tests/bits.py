"""Damage that nothing announces."""

from pathlib import Path


def flip_a_bit(path: Path, byte: int = -1) -> None:
    """The lowest of this byte. Of the last one, hardly any file becomes unreadable by that."""
    data = bytearray(path.read_bytes())
    data[byte] ^= 1
    path.write_bytes(data)
