"""The site: a link that leads nowhere fails its build, and nothing in it comes from elsewhere."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = "docs/library.md"
LINKS = ("nowhere.md", "concepts.md#nowhere", "../nowhere.py")
IMAGE = "no.png"
# What a browser would fetch by itself; links are for people to follow.
FETCHED = re.compile(r'<(?:script|img|iframe|source)[^>]+src="([^"]+)"|<link[^>]+href="([^"]+)"')


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """This tree, with pages that can be changed and a site of its own."""
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    for entry in ROOT.iterdir():
        if entry.name not in ("docs", "build"):
            (tmp_path / entry.name).symlink_to(entry)
    return tmp_path


def build(tree: Path) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "mkdocs", "build", "--strict"]
    return subprocess.run(command, cwd=tree, capture_output=True, text=True, check=False)


def test_pages_fetch_nothing_from_elsewhere(tree: Path) -> None:
    built = build(tree)

    assert built.returncode == 0, built.stderr
    for page in (tree / "build/site").rglob("*.html"):
        for address in map("".join, FETCHED.findall(page.read_text())):
            assert not re.match(r"(https?:)?//", address), f"{page.name} fetches {address}"


def test_links_that_lead_nowhere_fail_the_build(tree: Path) -> None:
    with (tree / PAGE).open("a") as page:
        page.writelines(f"\n[x]({link})\n" for link in LINKS)
        page.write(f"\n![x]({IMAGE})\n")

    built = build(tree)

    assert built.returncode != 0
    warnings = [line for line in built.stderr.splitlines() if line.startswith("WARNING")]
    assert len(warnings) == len(LINKS) + 1
    for address in (*LINKS, IMAGE):
        assert any(address in line and PAGE.removeprefix("docs/") in line for line in warnings)
