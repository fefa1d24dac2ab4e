"""Folders to try a page in, one after the other; each is gone when the next is asked for."""

import subprocess
import sys
from collections.abc import Generator, Iterable
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).parents[2]
PREFIX = "grasp-tryout-"


def linked_trees() -> Generator[Path]:
    """Links to all that is in this tree, so that nothing a page writes ends up here."""
    tracked = {Path(name).parts[0] for name in _git("ls-files", folder=ROOT).splitlines()}
    while True:
        with TemporaryDirectory(prefix=PREFIX) as name:
            folder = Path(name)
            _link([ROOT / entry for entry in tracked], folder)
            _link(Path(sys.prefix).iterdir(), folder / ".venv")
            _take_as_it_is(folder / ".venv")
            yield folder


def fresh_clones() -> Generator[Path]:
    """A clone of what is committed; for the next page without all that the last one left, but for
    the environment, which takes minutes to set up."""
    with TemporaryDirectory(prefix=PREFIX) as folder:
        _git("clone", "--quiet", str(ROOT), folder, folder=ROOT)
        while True:
            yield Path(folder)
            _git("clean", "-fdxq", "--exclude=.venv", folder=Path(folder))


def _link(entries: Iterable[Path], folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    for entry in entries:
        (folder / entry.name).symlink_to(entry)


def _take_as_it_is(environment: Path) -> None:
    """Let make find nothing to install: the environment is the one that this runs in."""
    ready = environment / ".ready"
    for mark in (ready, environment / ".serving"):
        mark.unlink(missing_ok=True)
        mark.touch()


def _git(*arguments: str, folder: Path) -> str:
    found = subprocess.run(  # noqa: S603 - ours
        ["git", *arguments],  # noqa: S607
        cwd=folder,
        check=True,
        text=True,
        stdout=subprocess.PIPE,
    )
    return found.stdout
