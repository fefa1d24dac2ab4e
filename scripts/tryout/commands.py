"""What a page asks its reader to do: commands with what they print, and files to write.

Commands stand in ```console blocks behind `$ `, and go on while a line ends in a backslash; what
follows is what they print. A block that names a file, as in ```json title="model.json", is that
file.
"""

from collections.abc import Iterator
from typing import NamedTuple

from scripts.markdown_code import Block, blocks

PROMPT = "$ "
SHELLS = ("bash", "sh", "shell")


class Command(NamedTuple):
    line: int
    text: str
    printed: str  # empty: nothing is said about it


class File(NamedTuple):
    line: int
    name: str
    text: str


def steps(markdown: str) -> list[Command | File]:
    """In order. Raises ValueError for commands that would be passed over."""
    found: list[Command | File] = []
    for block in blocks(markdown):
        if block.title:
            found.append(File(block.line, block.title, block.text))
        elif block.language == "console":
            found += _commands(block)
        elif block.language in SHELLS or block.text.startswith(PROMPT):
            raise ValueError(f"line {block.line}: commands belong into ```console blocks")
    return found


def _commands(block: Block) -> Iterator[Command]:
    if not block.text.startswith(PROMPT):
        raise ValueError(f"line {block.line}: a console block begins with a command")
    for number, text in _prompts(block):
        lines = text.splitlines()
        end = next(i for i, line in enumerate(lines) if not line.endswith("\\")) + 1
        yield Command(number, "\n".join(lines[:end]), "\n".join(lines[end:]).strip())


def _prompts(block: Block) -> Iterator[tuple[int, str]]:
    """Each command with all that follows it."""
    text, line = block.text, block.line
    for part in f"\n{text}".split(f"\n{PROMPT}")[1:]:
        yield line, part
        line += part.count("\n") + 1
