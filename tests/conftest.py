"""Fixtures shared by the tests of all rooms, and what holds for every run of them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

from tests.processes import IS_FIRST, end_those_of_this_run

if TYPE_CHECKING:
    from tests.trained import Digits

# Virtual machines may claim matrix instructions (AMX) that end whoever uses them; only a test of
# bfloat16 would. Before torch is imported, and for the processes that tests start.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

# No test depends on how fast the machine is, or on chance. To look further: CONTRIBUTING.md.
settings.register_profile("repeatable", deadline=None, derandomize=True)
settings.register_profile("explore", deadline=None, max_examples=1000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))

# Nor on how its processor rounds. To try others: CONTRIBUTING.md.
ROUNDING = ("PERTURBATION", "ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA", "MKL_CBWR")
if os.environ.get("PERTURBATION"):
    os.environ["PYTHONPATH"] = str(Path(__file__).with_name("perturbation"))  # of children
    from tests.perturbation import sitecustomize as sitecustomize

SLOWEST = ("proofs", "e2e", "examples", "docs", "service", "browser")  # folders
LONGEST = ("test_race.py", "test_exact_folds.py", "test_demo.py", "test_generated_clients.py")


def pytest_report_header() -> list[str]:
    chosen = [f"{name}={os.environ[name]}" for name in ROUNDING if name in os.environ]
    return [f"rounding: {' '.join(chosen)}"] if chosen else []


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes longest comes first, lest at the end of a parallel run all wait for one file."""
    items.sort(
        key=lambda item: (
            item.path.name not in LONGEST,
            item.path.parent.name not in SLOWEST,
        )
    )


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """A run that leaves a process behind has failed, and what it left is ended."""
    left = end_those_of_this_run() if IS_FIRST else []  # those of another may still be at work
    if left:
        print("\nstarted by a test, not ended by it:", *left, sep="\n  ")
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.fixture(autouse=True)
def usual_umask() -> Iterator[None]:
    """Whatever was started in this process before: a service keeps what it writes to itself."""
    before = os.umask(0o022)
    yield
    os.umask(before)


@pytest.fixture
def no_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the machine's GRASP_ variables nor a .env file in the working directory."""
    for name in [name for name in os.environ if name.upper().startswith("GRASP_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="session")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Digits:
    """A target and three trained sources, to be read: other processes of the run do so, too."""
    from tests.trained import trained_digits  # which loads torch

    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent
    return trained_digits(folder / "digits")
