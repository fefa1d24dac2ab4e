"""The fenced blocks of a Markdown page."""

import re
from collections.abc import Iterator
from typing import NamedTuple

FENCE = re.compile(r"^( *)```(\w*)([^\n]*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
TITLE = re.compile(r'title="([^"]+)"')


class Block(NamedTuple):
    """Code, the language it names, the file it names, and the line where it begins."""

    language: str
    title: str | None
    text: str
    line: int


def blocks(markdown: str) -> Iterator[Block]:
    for found in FENCE.finditer(markdown):
        _, language, options, text = found.groups()
        title = TITLE.search(options)
        line = markdown.count("\n", 0, found.start(4)) + 1
        yield Block(language, title[1] if title else None, text, line)
