"""Folders of a cache: who makes one keeps it, and nothing else stays longer than it is needed."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from grasp_core import cache_folders
from grasp_core.cache_folders import make_aside, mark_used, sweep, sweep_aside

NO_LIMIT = 10**9


@pytest.fixture
def add(tmp_path: Path) -> Callable[..., Path]:
    def add_entry(name: str, size: int = 1000, hours_ago: float = 0) -> Path:
        folder = tmp_path / name
        folder.mkdir()
        (folder / "rows").write_bytes(b"x" * size)
        used_at = time.time() - 3600 * hours_ago
        os.utime(folder, (used_at, used_at))
        return folder

    return add_entry


def names(root: Path) -> set[str]:
    return {path.name for path in root.iterdir()}


def test_what_is_being_made_is_not_swept(tmp_path: Path) -> None:
    with make_aside(tmp_path / "cache", "a") as folder:
        (folder / "rows").write_bytes(b"x")
        sweep_aside(tmp_path / "cache")
        sweep(tmp_path / "cache", lambda _: False, 0)
        assert (folder / "rows").exists()
    assert names(tmp_path / "cache") == set()


def test_what_is_whole_stays(tmp_path: Path) -> None:
    with make_aside(tmp_path, "a") as folder:
        folder.rename(tmp_path / "a")
    sweep_aside(tmp_path)
    assert names(tmp_path) == {"a"}


def _make_for_ever(root: Path, begun: Any) -> None:
    with make_aside(root, "a") as folder:
        (folder / "rows").write_bytes(b"x")
        begun.set()
        time.sleep(600)


def test_what_a_killed_process_left_is_swept_at_once(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    begun = context.Event()
    maker = context.Process(target=_make_for_ever, args=(tmp_path, begun))
    maker.start()
    assert begun.wait(30)
    sweep_aside(tmp_path)
    assert len(names(tmp_path)) == 1

    os.kill(maker.pid or 0, signal.SIGKILL)
    maker.join()
    assert len(names(tmp_path)) == 1
    sweep_aside(tmp_path)
    assert names(tmp_path) == set()


@pytest.mark.parametrize("moment", ["before it is locked", "while it is swept"])
def test_who_is_swept_before_the_lock_begins_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    lock = cache_folders._lock
    locks: list[int] = []

    def interrupt(folder: Path) -> int | None:
        if not locks:
            locks.append(lock(folder) or 0)
            if moment == "before it is locked":
                folder.rmdir()
        return lock(folder)

    monkeypatch.setattr(cache_folders, "_lock", interrupt)
    with make_aside(tmp_path, "a") as folder:
        assert folder.exists()
    for descriptor in locks:
        os.close(descriptor)


def test_a_lock_on_what_is_deleted_meanwhile_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "a"
    folder.mkdir()
    monkeypatch.setattr("fcntl.flock", lambda *_: folder.rmdir())
    assert cache_folders._lock(folder) is None


def test_only_what_is_needed_stays(tmp_path: Path, add: Callable[..., Path]) -> None:
    add("needed")
    add("forgotten")
    add("forgotten.tmp-1")
    sweep(tmp_path, lambda name: name == "needed", NO_LIMIT)
    assert names(tmp_path) == {"needed"}


def test_beyond_the_limit_goes_what_was_used_longest_ago(
    tmp_path: Path, add: Callable[..., Path]
) -> None:
    add("new", hours_ago=1)
    add("old", hours_ago=3)
    mark_used(add("oldest, and used again", hours_ago=9))
    sweep(tmp_path, lambda _: True, 3000)
    assert len(names(tmp_path)) == 3
    sweep(tmp_path, lambda _: True, 2999)
    assert names(tmp_path) == {"new", "oldest, and used again"}
    sweep(tmp_path, lambda _: True, 1500)
    assert names(tmp_path) == {"oldest, and used again"}


def test_what_is_being_made_takes_room(tmp_path: Path, add: Callable[..., Path]) -> None:
    add("whole")
    with make_aside(tmp_path, "a") as folder:
        (folder / "rows").write_bytes(b"x" * 600)
        sweep(tmp_path, lambda _: True, 1600)
        assert names(tmp_path) == {"whole", folder.name}
        sweep(tmp_path, lambda _: True, 1500)
        assert names(tmp_path) == {folder.name}


def test_who_uses_what_is_deleted_is_not_disturbed(
    tmp_path: Path, add: Callable[..., Path]
) -> None:
    rows = np.memmap(add("a") / "rows", "uint8", "r")
    sweep(tmp_path, lambda _: True, 0)
    assert names(tmp_path) == set()
    assert (np.asarray(rows) == ord("x")).all()


def test_there_may_be_no_cache_yet(tmp_path: Path) -> None:
    sweep(tmp_path / "cache", lambda _: False, 0)
    mark_used(tmp_path / "cache")
    assert names(tmp_path) == set()
