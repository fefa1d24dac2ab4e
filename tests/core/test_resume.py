"""The same fold gives the same bytes: twice, and interrupted anywhere."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Literal

import pytest

from grasp_core import STOP, FoldConfig, FoldReport, FoldStopped, Progress, fold
from grasp_core.config import LEARNING_RATES
from grasp_core.refinement import BEST_FILE, START_FILE, STATE_FILE, Trainer
from grasp_core.report import Look
from tests.bits import flip_a_bit
from tests.core.toy import TINY, ToyTask, quick, save, tiny_weights

CONFIG = quick(refine={"steps": 25, "batch_size": 16, "lr": 1e-3})  # looks within epochs, too
PROBE = quick(refine={"steps": 3, "batch_size": 16, "lr": "auto"})
PAPER = quick(preset="paper", refine={"epochs": 4, "batch_size": 16, "lr": 1e-3})
CONFIGS = {"a rate": CONFIG, "auto": PROBE, "by epoch": PAPER}
# Of refinement's reports of progress: some between two looks, some at one.
MOMENTS = {"a rate": range(1, 24, 3), "auto": range(2, 34, 5), "by epoch": range(1, 9)}


class StopAt:
    """Says stop when refinement reports for the `count`th time."""

    def __init__(self, count: int | None) -> None:
        self._left = count

    def __call__(self, progress: Progress) -> Literal["stop"] | None:
        if self._left is None or progress.stage != "refine":
            return None
        self._left -= 1
        return STOP if self._left < 0 else None


def run(
    folder: Path,
    merged: Path | None,
    source: Path,
    stop_at: int | None = None,
    config: FoldConfig = CONFIG,
) -> FoldReport:
    """Fold, and stop at that moment."""
    return fold(
        TINY,
        source,
        ToyTask(),
        folder / "out.safetensors",
        merged=merged,
        config=config,
        work_dir=folder / "work",
        progress=StopAt(stop_at),
        force=True,
    )


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("files")
    return (
        save(folder / "merged.safetensors", tiny_weights(1)),
        save(folder / "source.safetensors", tiny_weights(2)),
    )


@pytest.fixture(scope="module")
def uninterrupted(
    files: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, FoldReport]:
    return {
        name: run(tmp_path_factory.mktemp("uninterrupted"), *files, config=config)
        for name, config in CONFIGS.items()
    }


def test_the_same_fold_twice_gives_the_same_bytes(
    files: tuple[Path, Path], uninterrupted: dict[str, FoldReport], tmp_path: Path
) -> None:
    assert run(tmp_path, *files).sha256 == uninterrupted["a rate"].sha256


@pytest.mark.parametrize(
    ("name", "moment"),
    [
        pytest.param(name, moment, marks=[pytest.mark.proof] * (number % 2))
        for name in CONFIGS
        for number, moment in enumerate(MOMENTS[name])
    ],
)
def test_a_fold_stopped_at_any_moment_ends_in_the_same_bytes(
    files: tuple[Path, Path],
    uninterrupted: dict[str, FoldReport],
    tmp_path: Path,
    name: str,
    moment: int,
) -> None:
    with pytest.raises(FoldStopped):
        run(tmp_path, *files, moment, CONFIGS[name])
    begun = {path.name for path in (tmp_path / "work" / "grasp").iterdir()}

    report, whole = run(tmp_path, *files, config=CONFIGS[name]), uninterrupted[name]

    assert START_FILE in begun
    assert (report.sha256, report.history) == (whole.sha256, whole.history)
    assert report.learning_rate == whole.learning_rate
    assert [stage.name for stage in report.stages] == [stage.name for stage in whole.stages]
    assert list((tmp_path / "work").iterdir()) == []


def test_a_trial_that_is_over_is_not_run_again(
    files: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(FoldStopped):
        run(tmp_path, *files, 20, PROBE)
    rates: list[float] = []
    advance = Trainer.advance

    def note(self: Trainer, step: int) -> Look:
        rates.append(self.rate)
        return advance(self, step)

    monkeypatch.setattr(Trainer, "advance", note)
    run(tmp_path, *files, config=PROBE)

    assert LEARNING_RATES[0] not in rates
    assert LEARNING_RATES[-1] in rates


def test_a_first_fold_can_be_interrupted_too(files: tuple[Path, Path], tmp_path: Path) -> None:
    with pytest.raises(FoldStopped):
        run(tmp_path, None, files[1], 8)

    resumed, fresh = run(tmp_path, None, files[1]), run(tmp_path / "fresh", None, files[1])
    assert resumed.sha256 == fresh.sha256


def test_it_can_be_stopped_again_and_again(
    files: tuple[Path, Path], uninterrupted: dict[str, FoldReport], tmp_path: Path
) -> None:
    for _ in range(6):
        with pytest.raises(FoldStopped):
            run(tmp_path, *files, 4)

    assert run(tmp_path, *files).sha256 == uninterrupted["a rate"].sha256


def test_a_killed_process_leaves_a_fold_to_go_on_with(
    files: tuple[Path, Path], uninterrupted: dict[str, FoldReport], tmp_path: Path
) -> None:
    """SIGKILL in the middle of the second trial, in a process of its own."""
    script = f"""
import os, signal
from tests.core import test_resume
from grasp_core import Progress
def die(progress: Progress) -> None:
    if progress.metrics.get("trial") == 2 and progress.metrics["step"] == 2:
        os.kill(os.getpid(), signal.SIGKILL)
test_resume.fold(
    test_resume.TINY, {str(files[1])!r}, test_resume.ToyTask(), "out.safetensors",
    merged={str(files[0])!r}, config=test_resume.PROBE, work_dir="work", progress=die, force=True,
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
    assert run(tmp_path, *files, config=PROBE).sha256 == uninterrupted["auto"].sha256


def test_the_report_says_where_it_went_on(files: tuple[Path, Path], tmp_path: Path) -> None:
    with pytest.raises(FoldStopped):
        run(tmp_path, *files, 10)

    report = run(tmp_path, *files)

    assert report.resumed_from_epoch == 2.5  # after ten steps, four of which are an epoch
    assert [look.step for look in report.history] == [0, 2, 5, 8, 10, 12, 15, 18, 20, 22, 25]
    assert [stage.name for stage in report.stages].count("target_gradients") == 1
    assert report.parameters


CHANGES = [
    "config",
    "rate",
    "source",
    "damage",
    "a bit",
    "foreign",
    "best lost",
    "a bit of the best",
    "start lost",
    "a bit of the start",
]


@pytest.fixture(scope="module")
def stopped(files: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a fold has left, to be copied."""
    folder = tmp_path_factory.mktemp("stopped")
    with pytest.raises(FoldStopped):
        run(folder, *files, 15)
    return folder


@pytest.mark.parametrize("change", CHANGES)
def test_what_another_fold_has_left_is_not_gone_on_with(
    files: tuple[Path, Path],
    uninterrupted: dict[str, FoldReport],
    stopped: Path,
    tmp_path: Path,
    change: str,
) -> None:
    merged, source = files
    shutil.copytree(stopped, tmp_path, dirs_exist_ok=True)

    config, work = CONFIG, tmp_path / "work" / "grasp"
    state, best, start = (
        work / "trial1" / STATE_FILE,
        work / "trial1" / BEST_FILE,
        work / START_FILE,
    )
    assert state.exists()
    assert best.exists()
    match change:
        case "config":
            config = quick(tau=0.5, refine=CONFIG.refine.model_dump())
        case "rate":
            config = quick(refine={"steps": 25, "batch_size": 16, "lr": 2e-3})
        case "source":
            source = save(tmp_path / "other.safetensors", tiny_weights(3))
        case "damage":
            state.write_bytes(b"damaged")
        case "foreign":
            save(state, tiny_weights(3))
        case "a bit":
            flip_a_bit(state)
        case "a bit of the best":
            flip_a_bit(best)
        case "best lost":
            best.unlink()
        case "start lost":
            start.unlink()
        case "a bit of the start":
            flip_a_bit(start)

    resumed, fresh = run(tmp_path, merged, source, config=config), uninterrupted["a rate"]
    if change in ("config", "rate", "source"):
        fresh = run(tmp_path / "fresh", merged, source, config=config)
        assert fresh.sha256 != uninterrupted["a rate"].sha256
    assert resumed.sha256 == fresh.sha256
