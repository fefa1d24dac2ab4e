"""The JSON of a safetensors header, of which a window at a time is in memory.

Strict: an object that has a key twice, and a number that is no index, are told apart from others.
"""

from __future__ import annotations

import re
from codecs import getincrementaldecoder
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from json import JSONDecodeError, JSONDecoder
from typing import NamedTuple

MAX_NUMBER = 2**63 - 1  # what an index of torch, or of a file, can be
MAX_ENTRY = 1 << 16  # characters of what is said of one tensor: 300 in practice
WINDOW = 1 << 18  # bytes read at once
AHEAD = 2 * MAX_ENTRY  # characters in memory where an entry begins: its name, and all of it
WHITE_SPACE = " \t\n\r"  # of JSON; Python's has more

Read = Callable[[int, int], bytes]  # (first byte, at most so many): of what has arrived


class BadHeader(Exception):
    """What is wrong with a header, and where in it."""


class OddNumber(str):
    """A number that has no place in a header (1.5, -3, NaN, 10²⁰), as it is written there."""

    def __repr__(self) -> str:
        return str(self)


class DoubledKey(NamedTuple):
    """An object that has a key twice."""

    key: str


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object] | DoubledKey:
    entries = dict(pairs)
    if len(entries) < len(pairs):
        (key, _), *_ = Counter(key for key, _ in pairs).most_common(1)
        return DoubledKey(key)
    return entries


def _natural(text: str) -> int | OddNumber:
    # Long ones are never converted: Python refuses to, and "-0" is no integer to other readers.
    number = int(text) if text.isdigit() and len(text) < 20 else MAX_NUMBER + 1
    return number if number <= MAX_NUMBER else OddNumber(text)


_SPACES = re.compile(f"[{WHITE_SPACE}]*")
_DECODER = JSONDecoder(
    object_pairs_hook=_unique, parse_int=_natural, parse_float=OddNumber, parse_constant=OddNumber
)


class Scanner:
    """JSON of which a window is in memory: it is asked for what may come next."""

    def __init__(self, read: Read, begin: int, end: int) -> None:
        self._read = read
        self._begin = begin
        self._first, self._end = begin, end  # bytes that have not been read
        self._decoder = getincrementaldecoder("utf-8")()
        self._text, self._at = "", 0
        self._before = 0  # characters in front of the window

    def members(self) -> Iterator[str]:
        """Those of the object that begins here. Each value is taken before the next key."""
        self._at += 1
        closed = self._next() == "}"
        while not closed:
            if self._next() != '"':
                raise self._expected("property name enclosed in double quotes")
            key = self.text(MAX_ENTRY)
            if self._next() != ":":
                raise self._expected("':' delimiter")
            self._at += 1
            yield key
            closed = self._next() == "}"
            if not closed:
                if self._next() != ",":
                    raise self._expected("',' delimiter")
                self._at += 1
        self._at += 1

    def begins(self, mark: str) -> bool:
        return self._next() == mark

    def text(self, most: int) -> str:
        """The string that begins here, of at most so many characters, quotes and escapes too."""
        self._fill(AHEAD)
        while True:
            try:
                text: str
                text, end = _DECODER.raw_decode(self._text, self._at)
            except JSONDecodeError as error:
                here = len(self._text) - self._at
                if here > most and error.msg.startswith("Unterminated"):
                    raise self._too_long(most) from error
                if here > most or self._first == self._end:
                    raise
                self._fill(min(2 * here, most + 1))
            else:
                self._move(end, most)
                return text

    def value(self) -> object:
        """Whatever begins here, if it is short."""
        self._next()
        self._fill(AHEAD)
        try:
            value, end = _DECODER.raw_decode(self._text, self._at)
        except JSONDecodeError as error:
            cut = error.msg.startswith("Unterminated") and self._first < self._end
            if cut or error.pos > self._at + MAX_ENTRY:
                raise self._too_long(MAX_ENTRY) from error
            raise
        self._move(end, MAX_ENTRY)
        return value

    def finish(self) -> None:
        if self._next():
            raise JSONDecodeError("Extra data", self._text, self._at)

    @contextmanager
    def refusing(self) -> Iterator[None]:
        """What is no JSON at all, said with its place in the header."""
        try:
            yield
        except UnicodeDecodeError as error:
            raise BadHeader(f"it is not UTF-8 at its byte {error.start}") from error
        except JSONDecodeError as error:
            place = self._before + error.pos
            raise BadHeader(f"it is not JSON: {error.msg} (character {place})") from error
        except RecursionError as error:
            raise BadHeader("its JSON is nested too deeply") from error

    def _next(self) -> str:
        """The next character that is no white space; none at the end."""
        while (mark := self._text[self._at : self._at + 1]) in WHITE_SPACE:
            if mark:
                self._at = _SPACES.match(self._text, self._at).end()  # type: ignore[union-attr]
            elif self._first < self._end:
                self._fill(AHEAD)
            else:
                break
        return mark

    def _move(self, end: int, most: int) -> None:
        if end - self._at > most:
            raise self._too_long(most)
        self._at = end

    def _fill(self, count: int) -> None:
        """Have so many characters in memory, or all that there are."""
        while len(self._text) - self._at < count and self._first < self._end:
            data = self._read(self._first, min(WINDOW, self._end - self._first))
            if not data:
                raise BadHeader("it ends too early")
            pending = len(self._decoder.getstate()[0])
            try:
                text = self._decoder.decode(data, self._first + len(data) == self._end)
            except UnicodeDecodeError as error:
                error.start += self._first - pending - self._begin
                raise
            self._first += len(data)
            self._before += self._at
            self._text, self._at = self._text[self._at :] + text, 0

    def _expected(self, what: str) -> JSONDecodeError:
        return JSONDecodeError(f"Expecting {what}", self._text, self._at)

    def _too_long(self, most: int) -> BadHeader:
        place = self._before + self._at
        return BadHeader(f"the value at its character {place} has more than {most} characters")
