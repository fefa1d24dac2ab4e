"""What file and folder names say about splits and classes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import takewhile
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from grasp_core.data.contents import Limits, SplitName
from grasp_core.errors import TargetError

SPLIT_WORDS: dict[str, SplitName] = {
    "train": "train",
    "val": "val",
    "valid": "val",
    "validation": "val",
    "dev": "val",
    "test": "test",
}
SPLIT_NAMES = "train, val (or valid, validation, dev) and test"
NEAR_SPLITS = {"training", "trn", "tst", "testing", "evaluation", "eval", "holdout"}
Parts = tuple[str, ...]


class Place(NamedTuple):
    split: SplitName | None
    label: str


def split_named(word: str) -> SplitName | None:
    return SPLIT_WORDS.get(word.lower())


def shard_split(shard: Path, root: Path) -> SplitName | None:
    """The split in a shard's folder or name, as in test/0.tar or train-00000-of-00002.parquet."""
    if shard == root:
        return None  # a file opened by itself is all there is, whatever it is called
    *folders, name = shard.relative_to(root).parts
    return next(filter(None, map(split_named, [*folders, re.split(r"[-._]", name)[0]])), None)


def is_hidden(name: str) -> bool:
    """Whether a part of the name is hidden, or made by macOS."""
    return any(part[0] == "." or part == "__MACOSX" for part in PurePosixPath(name).parts)


def arrange(files: Sequence[str], folders: Iterable[str] = ()) -> list[Place]:
    """Split and class of every file, from its path: [wrapping/] [split/] class/ … file.

    `folders` are all the folders there are. Raises TargetError where a file lies outside of the
    layout, or a class folder holds none.
    """
    paths = [PurePosixPath(name).parts for name in files]
    wrapping = _wrapping(paths)
    paths = [parts[len(wrapping) :] for parts in paths]
    _refuse_near_splits(paths)
    splits = any(_in_split(parts) for parts in paths)
    places = [_place(parts, splits) for parts in paths]
    _refuse_empty({place.label for place in places}, wrapping, splits, folders)
    return places


def _wrapping(paths: list[Parts]) -> Parts:
    """The leading folders that all files share and that are neither split nor class."""
    if not paths:
        return ()
    outer = min(map(len, paths)) - 2  # below them, a class folder and a file remain
    pairs = zip(min(paths)[: max(0, outer)], max(paths), strict=False)
    shared = takewhile(lambda pair: pair[0] == pair[1] and not split_named(pair[0]), pairs)
    return tuple(part for part, _ in shared)


def _in_split(parts: Parts) -> bool:
    return len(parts) >= 3 and split_named(parts[0]) is not None


def _place(parts: Parts, splits: bool) -> Place:
    if splits and _in_split(parts):
        return Place(split_named(parts[0]), parts[1])
    if splits or len(parts) < 2:
        raise TargetError(
            f"{'/'.join(parts)} lies outside of the {'split' if splits else 'class'} folders",
            hint=f"every example belongs into [split/]class/, with splits called {SPLIT_NAMES}",
        )
    return Place(None, parts[0])


def _refuse_near_splits(paths: list[Parts]) -> None:
    """Folders that mean splits, and are called otherwise, would each become a class."""
    outer = {parts[0].lower() for parts in paths if len(parts) > 2}
    if len(outer) > 1 and outer <= {*NEAR_SPLITS, *SPLIT_WORDS} and outer & NEAR_SPLITS:
        raise TargetError(
            f"the folders {', '.join(sorted(outer))} look like splits, and are not called so",
            hint=f"call them {SPLIT_NAMES}",
        )


def _refuse_empty(labels: set[str], wrapping: Parts, splits: bool, folders: Iterable[str]) -> None:
    for folder in sorted(folders):
        parts = PurePosixPath(folder).parts
        inner = parts[len(wrapping) :]
        if parts[: len(wrapping)] != wrapping or is_hidden(folder):
            continue
        if len(inner) == 1 + splits and inner[-1] not in labels:
            raise TargetError(f"the class folder {folder} holds no examples")


def shards(path: Path, suffixes: tuple[str, ...], limits: Limits) -> list[Path]:
    """Files with such endings in a folder, in its data/ and in its split folders; or the file."""
    if path.is_file():
        return [path]
    inner = [f for f in path.iterdir() if f.is_dir() and (f.name == "data" or split_named(f.name))]
    found = (file for folder in [path, *inner] for file in folder.iterdir())
    named = (f for f in found if f.name.lower().endswith(suffixes) and not is_hidden(f.name))
    return sorted(file for file in named if is_ours(file, path, limits))


def is_ours(file: Path, root: Path, limits: Limits) -> bool:
    """Whether it is a regular file.

    Raises TargetError where a link leads out of the root: it would let whoever may write there
    read what only this process may.
    """
    leads_out = file.is_symlink() and not file.resolve().is_relative_to(root.resolve())
    if leads_out and not limits.follow_links:
        raise TargetError(
            f"{file} is a link out of the target's folder",
            hint="copy the file there, or allow Limits.follow_links",
        )
    return file.is_file()
