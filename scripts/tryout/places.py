"""Folders to try a page in, one after the other; each is gone when the next is asked for."""

import subprocess
from collections.abc import Generator
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).parents[2]
PREFIX = "grasp-tryout-"


def linked_trees() -> Generator[Path]:
    """Links to all that is in this tree, so that nothing a page writes ends up here."""
    tracked = {Path(name).parts[0] for name in _git("ls-files", folder=ROOT).splitlines()}
    while True:
        with TemporaryDirectory(prefix=PREFIX) as folder:
            for name in {*tracked, ".venv"}:
                Path(folder, name).symlink_to(ROOT / name)
            yield Path(folder)


def fresh_clones() -> Generator[Path]:
    """A clone of what is committed; for the next page without all that the last one left, but for
    the environment, which takes minutes to set up."""
    with TemporaryDirectory(prefix=PREFIX) as folder:
        _git("clone", "--quiet", str(ROOT), folder, folder=ROOT)
        while True:
            yield Path(folder)
            _git("clean", "-fdxq", "--exclude=.venv", folder=Path(folder))


def _git(*arguments: str, folder: Path) -> str:
    found = subprocess.run(  # noqa: S603 - ours
        ["git", *arguments],  # noqa: S607
        cwd=folder,
        check=True,
        text=True,
        stdout=subprocess.PIPE,
    )
    return found.stdout
