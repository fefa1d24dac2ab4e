"""The pages that are written from the code are as it would write them now."""

import re
from itertools import chain
from pathlib import Path

import pytest

import app.main  # noqa: F401 - with all its errors
import worker.jobs  # noqa: F401
from app.errors import STATUS
from grasp_core.errors import GraspError
from scripts.reference.__main__ import PAGES

ROOT = Path(__file__).parents[2]
ERRORS = (ROOT / "docs/reference/errors.md").read_text()
ROOMS = ("app.", "registry.", "worker.", "grasp_core.")
BASES = {"grasp_error", "registry_error", "fetch_error"}  # of others, never raised themselves
IN_LOGS_ONLY = {"lease_lost", "no_such_device", "stopped"}
WORKER_CODES = re.compile(r'(?:Failed|Failure)\(\s*"(\w+)"|"code": "(\w+)"')


@pytest.mark.usefixtures("no_settings")
@pytest.mark.parametrize("name", PAGES)
def test_generated_pages_are_current(name: str) -> None:
    assert (ROOT / name).read_text() == PAGES[name](), "run `make docs` and commit what it writes"


def rows(heading: str) -> dict[str, list[str]]:
    """By code, the cells of the table below a heading."""
    part = ERRORS.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    cells = [line.strip("|").split("|") for line in part.splitlines() if line.startswith("| `")]
    return {
        code: [text.strip() for text in row[1:]]
        for row in cells
        for code in re.findall(r"`(\w+)`", row[0])
    }


def test_every_status_of_the_api_is_listed() -> None:
    listed = {code: int(cells[0]) for code, cells in rows("Answers of the API").items()}

    assert STATUS.items() <= listed.items()


def test_no_error_is_unlisted() -> None:
    ours = (kind for kind in subclasses(GraspError) if kind.__module__.startswith(ROOMS))
    raised = {kind.code for kind in ours} - BASES - IN_LOGS_ONLY

    assert raised <= {*rows("Answers of the API"), *rows("Errors of jobs")}
    assert all(f"`{code}`" in ERRORS for code in IN_LOGS_ONLY)


def test_every_error_of_jobs_is_listed() -> None:
    sources = chain((ROOT / "worker").rglob("*.py"), (ROOT / "registry").rglob("*.py"))
    found = (WORKER_CODES.findall(path.read_text()) for path in sources)
    codes = {code for pair in chain.from_iterable(found) for code in pair if code}

    assert codes >= {"gate_rejected", "worker_lost", "child_killed"}
    assert codes <= rows("Errors of jobs").keys()


def subclasses(kind: type[GraspError]) -> list[type[GraspError]]:
    return [kind, *chain.from_iterable(map(subclasses, kind.__subclasses__()))]
