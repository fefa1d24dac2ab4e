"""Write the client that does things at once from the one that is awaited.

    python -m scripts.unasync            write grasp_client/_sync
    python -m scripts.unasync --check    fail if it is not what would be written

As httpcore does it: the two differ in words, and `WORDS` are all of them.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

CLIENT = Path(__file__).parent.parent / "grasp_client"
NOTE = "# Written by `make client` from grasp_client/_async/{name}: change that one.\n"
WORDS = {
    r"\basync (def|with|for)\b": r"\1",
    r"\bawait ": "",
    r"\bAwaitable\[(\w+)\]": r"\1",
    r"\bAsyncGenerator\[(.+), None\]": r"Generator[\1, None, None]",
    r"\bAsync(\w+)": r"\1",
    r"\basync_(\w+)": r"\1",
    r"\basynccontextmanager\b": "contextmanager",
    r"\baclosing\b": "closing",
    r"\ba(close|read|iter_bytes)\b": r"\1",
    r"\b__a(enter|exit)__\b": r"__\1__",
    r"\b_async\b": "_sync",
    r", to be awaited\b": "",
}


def written() -> Iterator[tuple[Path, str]]:
    """Every file, and what belongs into it."""
    for source in sorted((CLIENT / "_async").glob("*.py")):
        text = source.read_text()
        for word, other in WORDS.items():
            text = re.sub(word, other, text)
        note = NOTE.format(name=source.name)
        yield CLIENT / "_sync" / source.name, _formatted(note + text)


def _formatted(text: str) -> str:
    """Names are sorted anew, and lines broken where they are shorter now."""
    ours = "lint.isort.known-first-party = ['grasp_client']"  # also what is not written yet
    for command in (["check", "--select", "I,F401", "--fix-only", "--config", ours], ["format"]):
        ruff = [sys.executable, "-m", "ruff", *command, "--quiet", "-"]
        done = subprocess.run(ruff, input=text, check=True, stdout=subprocess.PIPE, text=True)  # noqa: S603 - it is ours
        text = done.stdout
    return text


def main(check: bool) -> int:
    stale = [path for path, text in written() if not path.exists() or path.read_text() != text]
    if check:
        for path in stale:
            print(f"{path.relative_to(CLIENT.parent)} is not what `make client` would write")
        return len(stale)
    (CLIENT / "_sync").mkdir(exist_ok=True)
    for path, text in written():
        path.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main("--check" in sys.argv[1:]))
