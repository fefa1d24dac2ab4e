"""Links of the pages that are not part of the site; `mkdocs build --strict` checks the others."""

import re
from pathlib import Path

import pytest

from scripts.reference.markdown import anchor

ROOT = Path(__file__).parents[2]
LINK = re.compile(r"\]\((?!https?:)([^)#\s]*)(#[^)\s]+)?\)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


@pytest.mark.parametrize("page", sorted(ROOT.glob("*.md")), ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for path, place in LINK.findall(page.read_text()):
        linked = page.parent / path if path else page
        assert linked.exists(), path
        assert not place or place in anchors(linked), path + place


def anchors(page: Path) -> set[str]:
    return {anchor(heading) for heading in HEADING.findall(page.read_text())}
