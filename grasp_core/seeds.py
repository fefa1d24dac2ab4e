"""Every random choice of a fold comes from one seed, by name, so that no choice shifts another."""

from __future__ import annotations

import hashlib


def derive_seed(*parts: object) -> int:
    """A 63-bit seed that depends on all of `parts` and on nothing else."""
    text = "/".join(map(str, parts))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1
