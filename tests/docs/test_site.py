"""The site: a link that leads nowhere fails its build, and nothing in it comes from elsewhere."""

import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = "docs/library.md"
LINKS = ("nowhere.md", "concepts.md#nowhere", "../nowhere.py")
IMAGE = "no.png"
# What a browser would fetch by itself; links are for people to follow.
FETCHED = re.compile(r'<(?:script|img|iframe|source)[^>]+src="([^"]+)"|<link[^>]+href="([^"]+)"')


@dataclass
class Built:
    """What came of a build."""

    code: int
    words: str
    pages: Path


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """The site of this tree, with links in one page that lead nowhere; a build takes its time."""
    tree = tmp_path_factory.mktemp("tree")
    shutil.copytree(ROOT / "docs", tree / "docs")
    for entry in ROOT.iterdir():
        if entry.name not in ("docs", "build"):
            (tree / entry.name).symlink_to(entry)
    with (tree / PAGE).open("a") as page:
        page.writelines(f"\n[x]({link})\n" for link in LINKS)
        page.write(f"\n![x]({IMAGE})\n")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict"]
    done = subprocess.run(command, cwd=tree, capture_output=True, text=True, check=False)
    return Built(done.returncode, done.stderr, tree / "build/site")


def test_pages_fetch_nothing_from_elsewhere(built: Built) -> None:
    pages = list(built.pages.rglob("*.html"))

    assert len(pages) > len(list((ROOT / "docs").glob("*.md")))  # and those of folders
    for page in pages:
        addresses = ["".join(found) for found in FETCHED.findall(page.read_text())]
        assert addresses
        for address in addresses:
            assert not re.match(r"(https?:)?//", address), f"{page.name} fetches {address}"


def test_links_that_lead_nowhere_fail_the_build(built: Built) -> None:
    """And nothing else does: of this tree's own there is not one warning."""
    assert built.code != 0
    warnings = [line for line in built.words.splitlines() if line.startswith("WARNING")]
    assert len(warnings) == len(LINKS) + 1
    for address in (*LINKS, IMAGE):
        assert any(address in line and PAGE.removeprefix("docs/") in line for line in warnings)
