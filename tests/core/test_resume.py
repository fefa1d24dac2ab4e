"""The same fold gives the same bytes: twice, and interrupted anywhere."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from grasp_core import STOP, FoldStopped, GraspConfig, Progress, fold
from grasp_core.refinement import BEST_FILE, STATE_FILE
from tests.bits import flip_a_bit
from tests.core.toy import TINY, ToyTask, quick, save, tiny_weights

EPOCHS = 4
CONFIG = quick(refine={"epochs": EPOCHS, "batch_size": 16, "lr": 1e-3})


def run(
    folder: Path,
    merged: Path | None,
    source: Path,
    stop_after: int | None = None,
    config: GraspConfig = CONFIG,
) -> str | None:
    """Fold, stopping in the epoch after `stop_after`; returns the version's sha256."""

    def progress(progress: Progress) -> str | None:
        epoch = progress.metrics.get("epoch", 0)
        return STOP if stop_after is not None and epoch > stop_after else None

    return fold(
        TINY,
        source,
        ToyTask(),
        folder / "out.safetensors",
        merged=merged,
        config=config,
        work_dir=folder / "work",
        progress=progress,  # type: ignore[arg-type]
        force=True,
    ).sha256


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("files")
    return (
        save(folder / "merged.safetensors", tiny_weights(1)),
        save(folder / "source.safetensors", tiny_weights(2)),
    )


@pytest.fixture(scope="module")
def uninterrupted(files: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> str:
    sha256 = run(tmp_path_factory.mktemp("uninterrupted"), *files)
    assert sha256 is not None
    return sha256


def test_the_same_fold_twice_gives_the_same_bytes(
    files: tuple[Path, Path], uninterrupted: str, tmp_path: Path
) -> None:
    assert run(tmp_path, *files) == uninterrupted


@pytest.mark.parametrize("epochs_done", range(EPOCHS))
def test_a_fold_stopped_after_any_epoch_ends_in_the_same_bytes(
    files: tuple[Path, Path], uninterrupted: str, tmp_path: Path, epochs_done: int
) -> None:
    with pytest.raises(FoldStopped):
        run(tmp_path, *files, stop_after=epochs_done)

    assert (tmp_path / "work" / STATE_FILE).exists() == (epochs_done > 0)
    assert run(tmp_path, *files) == uninterrupted
    assert list((tmp_path / "work").iterdir()) == []


def test_a_first_fold_can_be_interrupted_too(files: tuple[Path, Path], tmp_path: Path) -> None:
    with pytest.raises(FoldStopped):
        run(tmp_path, None, files[1], stop_after=2)

    assert run(tmp_path, None, files[1]) == run(tmp_path / "fresh", None, files[1])


def test_it_can_be_stopped_again_and_again(
    files: tuple[Path, Path], uninterrupted: str, tmp_path: Path
) -> None:
    for epochs_done in range(1, EPOCHS):
        with pytest.raises(FoldStopped):
            run(tmp_path, *files, stop_after=epochs_done)

    assert run(tmp_path, *files) == uninterrupted


def test_a_killed_process_leaves_a_fold_to_go_on_with(
    files: tuple[Path, Path], uninterrupted: str, tmp_path: Path
) -> None:
    """SIGKILL in the middle of the third epoch, in a process of its own."""
    script = f"""
import os, signal
from pathlib import Path
from tests.core import test_resume
from grasp_core import Progress
def die(progress: Progress) -> None:
    if progress.metrics.get("epoch", 0) == 3:
        os.kill(os.getpid(), signal.SIGKILL)
test_resume.fold(
    test_resume.TINY, {str(files[1])!r}, test_resume.ToyTask(), "out.safetensors",
    merged={str(files[0])!r}, config=test_resume.CONFIG, work_dir="work", progress=die, force=True,
)
"""
    root = Path(__file__).parents[2]
    process = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(root)!r})\n{script}"],
        cwd=tmp_path,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        check=False,
    )

    assert process.returncode == -9
    assert not (tmp_path / "out.safetensors").exists()
    assert run(tmp_path, *files) == uninterrupted


def test_the_report_says_where_it_went_on(files: tuple[Path, Path], tmp_path: Path) -> None:
    with pytest.raises(FoldStopped):
        run(tmp_path, *files, stop_after=2)

    report = fold(
        TINY,
        files[1],
        ToyTask(),
        tmp_path / "out.safetensors",
        merged=files[0],
        config=CONFIG,
        work_dir=tmp_path / "work",
        force=True,
    )

    assert report.resumed_from_epoch == 2
    assert [epoch.epoch for epoch in report.history] == [1, 2, 3, 4]
    assert [stage.name for stage in report.stages].count("target_gradients") == 1
    assert report.parameters


CHANGES = ["config", "source", "damage", "a bit", "foreign", "best lost", "a bit of the best"]


@pytest.mark.parametrize("change", CHANGES)
def test_what_another_fold_has_left_is_not_gone_on_with(
    files: tuple[Path, Path], tmp_path: Path, change: str
) -> None:
    merged, source = files
    with pytest.raises(FoldStopped):
        run(tmp_path, merged, source, stop_after=2)

    config = CONFIG
    if change == "config":
        config = CONFIG.model_copy(update={"tau": 0.5})
    elif change == "source":
        source = save(tmp_path / "other.safetensors", tiny_weights(3))
    elif change == "damage":
        (tmp_path / "work" / STATE_FILE).write_bytes(b"damaged")
    elif change == "foreign":
        save(tmp_path / "work" / STATE_FILE, tiny_weights(3))
    elif change == "a bit":
        flip_a_bit(tmp_path / "work" / STATE_FILE)
    elif change == "a bit of the best":
        flip_a_bit(tmp_path / "work" / BEST_FILE)
    else:
        (tmp_path / "work" / BEST_FILE).unlink()

    fresh = tmp_path / "fresh"
    assert run(tmp_path, merged, source, config=config) == run(fresh, merged, source, config=config)
