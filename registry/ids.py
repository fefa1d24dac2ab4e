"""Identifiers: a prefix that says of what, the time, and enough chance. They sort by age."""

import secrets
import time
from typing import Literal

Prefix = Literal["tgt", "mdl", "src", "job", "key", "wrk", "upl"]
ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"  # Crockford's base 32: no i, l, o, u to misread
TIME_BITS, RANDOM_BITS = 48, 80  # milliseconds until the year 10889; as in a ULID
DIGITS = 26


def new_id(prefix: Prefix) -> str:
    number = (time.time_ns() // 1_000_000) << RANDOM_BITS | secrets.randbits(RANDOM_BITS)
    digits = (ALPHABET[number >> 5 * place & 31] for place in reversed(range(DIGITS)))
    return f"{prefix}_{''.join(digits)}"
